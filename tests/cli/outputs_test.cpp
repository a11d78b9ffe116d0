// No command replaces a file that it reads: one sentence that names both flags, before anything runs.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "io/npy.hpp"

namespace flashmoe {
namespace {

using test::expect_refused;
using test::flashmoe;
using test::TempFolder;

const std::string kSmall = " --backend cpu --ranks 1 --hidden 64 --intermediate 96 --experts 8 --top-k 2 ";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A batch of one token in files, which must be as they were in the end.
class CliOutputs : public testing::Test {
 protected:
  CliOutputs() {
    const std::vector<float> halves(64, 0.5f);
    const std::vector<std::int32_t> experts{3, 5};
    write_npy(x, NpyType::float32, {1, 64}, std::as_bytes(std::span(halves)));
    write_npy(ids, NpyType::int32, {1, 2}, std::as_bytes(std::span(experts)));
    write_npy(weights, NpyType::float32, {1, 2}, std::as_bytes(std::span(halves).first(2)));
    for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
      before.emplace_back(entry.path(), text_of(entry.path()));
    }
  }
  ~CliOutputs() override {
    for (const auto& [path, text] : before) EXPECT_EQ(text_of(path), text) << path;
  }

  const TempFolder folder;
  const std::string x = folder / "x.npy", ids = folder / "ids.npy", weights = folder / "weights.npy";
  const std::string counts = folder.write("counts.json", "[1, 2, 3, 4, 5, 6, 7, 8]");
  const std::string config = folder.write("config.json", R"({"model_type": "mixtral", "hidden_size": 64,
      "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2})");
  std::vector<std::pair<std::filesystem::path, std::string>> before;
};

std::string sentence(const std::string& output_flag, const std::string& output, const std::string& input_flag,
                     const std::string& input) {
  return fmt::format("{} ({}) must not replace the file of {} ({}), which it is computed from: give another file",
                     output_flag, output, input_flag, input);
}

TEST_F(CliOutputs, no_command_replaces_what_it_reads) {
  for (const std::string command : {"run", "verify", "route"}) {
    expect_refused(command + kSmall + "--hidden-states " + x + " --output " + x, sentence("--output", x, "--hidden-states", x));
  }
  const std::string with_routing = "run --tokens 1" + kSmall + "--routing ";
  expect_refused(with_routing + ids + " --output " + ids, sentence("--output", ids, "--routing", ids));
  expect_refused(with_routing + ids + "," + weights + " --output " + weights, sentence("--output", weights, "--routing", weights));
  const std::string trace = "trace --tokens 1" + kSmall;
  expect_refused(trace + "--hidden-states " + x + " --svg " + x, sentence("--svg", x, "--hidden-states", x));
  expect_refused(trace + "--routing histogram:" + counts + " --summary " + counts,
                 sentence("--summary", counts, "--routing", counts));
  expect_refused("trace --tokens 1 --backend cpu --config " + config + " --chrome " + config,
                 sentence("--chrome", config, "--config", config));
  expect_refused("trace --tokens 1 --backend cpu --config " + (folder / "").string() + " --chrome " + config,
                 sentence("--chrome", config, "--config", config));
  expect_refused("bench --tokens 1" + kSmall + "--routing uniform,histogram:" + counts + " --csv " + counts,
                 sentence("--csv", counts, "--routing", counts));
  const std::string baseline = folder.write("other.json", R"({"schema": "baseline", "name": "other", "card": "H100", "rows": []})");
  expect_refused("bench --tokens 1" + kSmall + "--baselines " + baseline + " --csv " + baseline,
                 sentence("--csv", baseline, "--baselines", baseline));
}

TEST_F(CliOutputs, another_name_of_an_input_is_known_too) {
  std::filesystem::create_symlink("x.npy", folder / "symlink.npy");
  std::filesystem::create_hard_link(x, folder / "hard_link.npy");
  for (const char* name : {"./x.npy", "symlink.npy", "hard_link.npy"}) {
    const std::string output = folder / name;
    expect_refused("run" + kSmall + "--hidden-states " + x + " --output " + output,
                   sentence("--output", output, "--hidden-states", x));
  }
  EXPECT_EQ(flashmoe("run" + kSmall + "--hidden-states " + x + " --output " + (folder / "y.npy").string()).exit_code, 0);
}

TEST_F(CliOutputs, a_checkpoint_keeps_its_files) {
  const std::filesystem::path checkpoint = folder / "checkpoint";
  std::filesystem::copy("fixtures/checkpoints/qwen3_moe-bf16", checkpoint);
  const std::string weights_file = checkpoint / "model-00001-of-00004.safetensors";
  const std::string stored = folder / "blob.safetensors";  // as in a cache whose folders hold links alone
  std::filesystem::rename(weights_file, stored);
  std::filesystem::create_symlink(stored, weights_file);
  const std::string text = text_of(stored);
  const std::string layer = " --backend cpu --ranks 2 --tokens 1 --layer 1 --checkpoint " + checkpoint.string();
  for (const std::string& output : {weights_file, stored, (checkpoint / "new.safetensors").string()}) {
    expect_refused("run --output " + output + layer,
                   fmt::format("--output ({}) must not be a file of --checkpoint ({})", output, checkpoint.string()));
  }
  expect_refused("route --output " + (folder / "new.npy").string() + "," + (checkpoint / "new.npy").string() + layer,
                 "must not be a file of --checkpoint");
  EXPECT_EQ(text_of(stored), text);
  EXPECT_EQ(flashmoe("run --output " + (folder / "y.npy").string() + layer).exit_code, 0);
}

}  // namespace
}  // namespace flashmoe
