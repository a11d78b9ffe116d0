// `flashmoe verify --checkpoint`: a layer of real weights, routed by its own router, against the recorded output of the
// library the checkpoint comes from.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/program.hpp"
#include "core/numeric.hpp"
#include "cpu/reference.hpp"
#include "flashmoe/model_config.hpp"
#include "io/hidden_states.hpp"
#include "support/batch.hpp"
#include "support/fixtures.hpp"

namespace flashmoe {
namespace {

using test::CheckpointFixture;
using test::Outcome;
using test::TempFolder;

class CliCheckpoint : public testing::TestWithParam<CheckpointFixture> {};

TEST_P(CliCheckpoint, gives_what_the_library_recorded) {
  const CheckpointFixture& fixture = GetParam();
  const std::filesystem::path checkpoint = test::folder_of(fixture);
  const int hidden = load_model_config(checkpoint).hidden;
  const test::RecordedBlock block = test::read_recorded_block(fixture, hidden, fixture.dtype);
  const TempFolder folder;
  write_rows(folder / "x.safetensors", "hidden_states", fixture.dtype, {block.input.rows.data(), block.input.num_tokens},
             hidden);
  const Outcome outcome = test::flashmoe(
      "verify --json --backend cpu --ranks 2 --checkpoint " + checkpoint.string() + " --layer " +
      std::to_string(fixture.layer) + " --dtype " + std::string(to_string(fixture.dtype)) + " --hidden-states " +
      (folder / "x.safetensors").string() + " --output " + (folder / "y.npy").string());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(outcome.json()["routing"], "router");
  EXPECT_EQ(outcome.json()["verified_tokens"], block.input.num_tokens);

  const HiddenStates y = read_hidden_states(folder / "y.npy", hidden, fixture.dtype);
  std::vector<double> values(block.output.size());
  load_doubles(fixture.dtype, y.rows.data(), static_cast<std::int64_t>(values.size()), values.data());
  const double slack = fixture.dtype == DType::bf16 ? 1.2 : 1.0;  // few elements: see docs/testing.md
  EXPECT_LE(reference::relative_l2(values, block.output), slack * test::tolerance(fixture.dtype));
}

/// Layouts on disk are the unit tests' business.
std::vector<CheckpointFixture> some_fixtures() {
  std::vector<CheckpointFixture> chosen;
  for (const CheckpointFixture& fixture : test::checkpoint_fixtures()) {
    if (fixture.name.find("fused") == std::string::npos) chosen.push_back(fixture);
  }
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Families, CliCheckpoint, testing::ValuesIn(some_fixtures()), [](const auto& fixture) {
  std::string name = fixture.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(CliCheckpointErrors, a_dense_or_missing_layer_is_one_sentence) {
  const std::string checkpoint = "run --json --checkpoint fixtures/checkpoints/qwen2_moe-bf16 --layer ";
  for (const char* layer : {"0", "2", "-1"}) {
    const Outcome outcome = test::flashmoe(checkpoint + layer);
    EXPECT_EQ(outcome.exit_code, 2) << layer;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, testing::AllOf(testing::StartsWith("flashmoe: error: "), testing::HasSubstr("layer")));
  }
}

}  // namespace
}  // namespace flashmoe
