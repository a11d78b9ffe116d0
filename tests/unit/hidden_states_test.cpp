#include "io/hidden_states.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>

#include "core/numeric.hpp"
#include "flashmoe/error.hpp"
#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "io/safetensors_types.hpp"
#include "io/safetensors_writer.hpp"
#include "support/dense_experts.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe {
namespace {

using testing::ThrowsMessage;

constexpr DType kTypes[] = {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64};

std::vector<char> values(DType dtype, std::int64_t count) {
  return test::random_elements(dtype, count, 7, 1, test::Values::real, 2.0);
}

class HiddenStatesFile : public testing::Test {
 protected:
  std::filesystem::path save(const std::vector<std::int64_t>& shape, std::string type = "F32") const {
    const std::size_t bytes = *stored_bytes(type, shape);
    const std::vector<std::byte> data(bytes, std::byte{0});
    const std::filesystem::path path = folder_ / "x.safetensors";
    write_safetensors(path, {{.name = "first", .type = std::move(type), .shape = shape, .data = data},
                             {.name = "second", .type = "F32", .shape = {1, 8}, .data = std::span(kOnes)}});
    return path;
  }

  static constexpr std::array<std::byte, 32> kOnes = {};
  test::TempFolder folder_;
};

TEST_F(HiddenStatesFile, what_is_written_is_read_in_both_formats_and_all_types) {
  for (const DType dtype : kTypes) {
    const std::vector<char> rows = values(dtype, 3 * 8);
    for (const char* name : {"y.safetensors", "y.npy"}) {
      write_rows(folder_ / name, "output", dtype, {rows.data(), 3}, 8);
      const HiddenStates read = read_hidden_states(folder_ / name, 8, dtype);
      EXPECT_EQ(read.num_tokens, 3);
      ASSERT_EQ(read.rows.size(), rows.size());
      EXPECT_EQ(std::memcmp(read.rows.data(), rows.data(), rows.size()), 0) << name << " " << to_string(dtype);
    }
    const SafetensorsFile file(folder_ / "y.safetensors");
    ASSERT_NE(file.find("output"), nullptr);
    EXPECT_EQ(file.find("output")->type, stored_type(dtype));
  }
}

TEST_F(HiddenStatesFile, elements_are_converted_to_the_engines_type) {
  for (const DType from : kTypes) {
    const std::vector<char> rows = values(from, 5 * 16);
    write_rows(folder_ / "y.safetensors", "output", from, {rows.data(), 5}, 16);
    for (const DType to : kTypes) {
      const HiddenStates read = read_hidden_states(folder_ / "y.safetensors", 16, to);
      for (std::int64_t i = 0; i < 5 * 16; ++i) {
        // fp64 narrows by way of fp32, as everywhere.
        double expected = load_element(from, rows.data(), i);
        if (from != to) expected = static_cast<float>(expected);
        alignas(8) std::byte stored[8] = {};
        store_element(to, stored, 0, expected);
        ASSERT_EQ(load_element(to, read.rows.data(), i), load_element(to, stored, 0))
            << to_string(from) << to_string(to);
      }
    }
  }
}

TEST_F(HiddenStatesFile, batches_of_sequences_are_tokens_in_order) {
  EXPECT_EQ(read_hidden_states(save({2, 3, 8}), 8, DType::fp32, "first").num_tokens, 6);
  EXPECT_EQ(read_hidden_states(save({0, 8}), 8, DType::fp32, "first").num_tokens, 0);
  EXPECT_EQ(read_hidden_states(save({5, 0, 8}), 8, DType::bf16, "first").num_tokens, 0);
}

TEST_F(HiddenStatesFile, of_several_tensors_one_must_be_named_or_have_the_usual_name) {
  const std::filesystem::path path = save({3, 8});
  EXPECT_EQ(read_hidden_states(path, 8, DType::fp32, "first").num_tokens, 3);
  EXPECT_EQ(read_hidden_states(path, 8, DType::fp32, "second").num_tokens, 1);
  EXPECT_THAT([&] { read_hidden_states(path, 8, DType::fp32, "third"); },
              ThrowsMessage<InvalidArgument>(path.string() +
                                             " must hold tensor third, and holds first, ...: name one of them"));
  EXPECT_THAT([&] { read_hidden_states(path, 8, DType::fp32); },
              ThrowsMessage<InvalidArgument>(path.string() +
                                             " must hold tensor hidden_states, and holds first, ...: name one of them"));
  write_safetensors(path, {{.name = "ids", .type = "F32", .shape = {1, 8}, .data = std::span(kOnes)},
                           {.name = "hidden_states", .type = "F32", .shape = {1, 8}, .data = std::span(kOnes)}});
  EXPECT_EQ(read_hidden_states(path, 8, DType::fp32).num_tokens, 1);
}

TEST_F(HiddenStatesFile, wrong_shapes_and_types_are_refused) {
  const std::string name = (folder_ / "x.safetensors").string();
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{8}, {3, 16}, {8, 3}, {1, 1, 3, 8}}) {
    EXPECT_THAT([&] { read_hidden_states(save(shape), 8, DType::fp32, "first"); },
                ThrowsMessage<InvalidArgument>(
                    fmt::format("tensor first of {} must have shape [tokens, 8] or [batch, sequence, "
                                "8], not [{}]: check that it is of this model",
                                name, fmt::join(shape, ", "))));
  }
  EXPECT_THAT([&] { read_hidden_states(save({3, 8}, "I32"), 8, DType::fp32, "first"); },
              ThrowsMessage<InvalidArgument>("tensor first of " + name +
                                             " must be BF16, F16, F32 or F64, not I32: convert it"));
  const std::vector<std::byte> zeros(3 * 8 * 4);
  write_npy(folder_ / "x.npy", NpyType::int32, {3, 8}, zeros);
  EXPECT_THAT([&] { read_hidden_states(folder_ / "x.npy", 8, DType::fp32); },
              ThrowsMessage<InvalidArgument>((folder_ / "x.npy").string() +
                                             " must be BF16, F16, F32 or F64, not int32: convert it"));
}

TEST_F(HiddenStatesFile, other_files_are_refused) {
  const std::filesystem::path text = folder_.write("x.txt", "1 2 3");
  const std::string wanted = text.string() + " must end in .safetensors or .npy: rename it or choose one of the two";
  EXPECT_THAT([&] { read_hidden_states(text, 8, DType::fp32); }, ThrowsMessage<InvalidArgument>(wanted));
  EXPECT_THAT([&] { write_rows(text, "output", DType::fp32, {nullptr, 0}, 8); },
              ThrowsMessage<InvalidArgument>(wanted));
  write_safetensors(folder_ / "empty.safetensors", {});
  EXPECT_THAT([&] { read_hidden_states(folder_ / "empty.safetensors", 8, DType::fp32); },
              ThrowsMessage<InvalidArgument>((folder_ / "empty.safetensors").string() +
                                             " must hold a tensor, and holds none: write it again"));
  EXPECT_THROW(read_hidden_states(folder_ / "missing.safetensors", 8, DType::fp32), InvalidArgument);
  EXPECT_THROW(read_hidden_states(folder_ / "missing.npy", 8, DType::fp32), InvalidArgument);
}

}  // namespace
}  // namespace flashmoe
