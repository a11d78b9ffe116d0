// Damaged and hostile checkpoints: whatever the bytes, an InvalidArgument of one sentence or a layer whose every
// parameter can be read. Any other exception, a bad_alloc included, fails; memory faults are the sanitizers' to find.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "core/numeric.hpp"
#include "flashmoe/error.hpp"
#include "io/checkpoint.hpp"
#include "io/hidden_states.hpp"
#include "support/checkpoint_copy.hpp"
#include "support/safetensors_text.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;
using test::CheckpointCopy;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

void expect_sentence(const InvalidArgument& refusal) {
  const std::string message = refusal.what();
  EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c <= '~'; })) << message;
  EXPECT_LT(message.size(), 1200u) << message;  // 32 dimensions of a shape take 700
}

/// Reads every parameter of the layer.
void read_all(const CheckpointLayer& layer) {
  const ModelConfig& config = layer.config();
  const std::int64_t matrix = std::int64_t{config.hidden} * config.intermediate;
  ASSERT_EQ(layer.router_weight().size(),
            static_cast<std::size_t>(config.num_experts) * static_cast<std::size_t>(config.hidden));
  double sum = 0;
  for (int e = 0; e < config.num_experts; ++e) {
    const auto expert = layer.expert(e);
    for (std::int64_t i = 0; i < 2 * matrix; ++i) sum += load_element(DType::fp32, expert->up, i);
    for (std::int64_t i = 0; i < matrix; ++i) sum += load_element(DType::fp32, expert->down, i);
    for (int i = 0; expert->up_bias && i < 2 * config.intermediate; ++i) sum += expert->up_bias[i];
  }
  volatile double used = sum;
  (void)used;
}

/// Loads the layer; true when it was accepted.
bool accepted(const CheckpointCopy& copy, int layer) {
  try {
    read_all(load_checkpoint_layer(copy.path(), layer, DType::fp32));
    return true;
  } catch (const InvalidArgument& refusal) {
    expect_sentence(refusal);
    return false;
  }
}

std::size_t header_end(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return sizeof length + length;
}

TEST(CheckpointFuzz, truncations_are_refused) {
  const CheckpointCopy copy("gpt_oss-bf16");
  const std::string whole = copy.read(kModel);
  for (std::size_t size = 0; size < whole.size(); size += size < header_end(whole) + 8 ? 1 : 997) {
    copy.write(kModel, std::string_view(whole).substr(0, size));
    ASSERT_FALSE(accepted(copy, 0)) << size;
  }
  copy.write(kModel, std::string_view(whole).substr(0, whole.size() - 1));
  EXPECT_FALSE(accepted(copy, 0));
  copy.write(kModel, whole + "x");
  EXPECT_FALSE(accepted(copy, 0));
  copy.write(kModel, whole);
  EXPECT_TRUE(accepted(copy, 0));
}

TEST(CheckpointFuzz, truncations_of_an_index_are_refused) {
  const CheckpointCopy copy("mixtral-bf16");
  const std::string whole = copy.read(kIndex);
  for (std::size_t size = 0; size <= whole.rfind('}'); size += 3) {
    copy.write(kIndex, std::string_view(whole).substr(0, size));
    ASSERT_FALSE(accepted(copy, 1)) << size;
  }
}

/// Flips bits, overwrites, inserts, deletes and repeats bytes in [0, end).
std::string damage(std::string text, std::size_t end, std::mt19937& random) {
  static constexpr std::string_view kTokens[] = {
      "{", "}", "[", "]", "\"", ",", ":", "-", "null", "1e999", "\\u0000", "99999999999999999999", "\xff"};
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
    const std::size_t at = below(std::min(end, text.size()));
    switch (below(5)) {
      case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
      case 1: text[at] = static_cast<char>(below(256)); break;
      case 2: text.insert(at, kTokens[below(std::size(kTokens))]); break;
      case 3: text.erase(at, 1 + below(16)); break;
      case 4: text.insert(at, text.substr(at, 1 + below(64))); break;
    }
  }
  return text;
}

void fuzz_file(const CheckpointCopy& copy, int layer, const std::string& file, std::size_t end, int rounds,
               unsigned seed) {
  std::mt19937 random(seed);
  const std::string whole = copy.read(file);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    copy.write(file, damage(whole, end, random));
    accepted(copy, layer);
  }
  EXPECT_FALSE(testing::Test::HasFailure()) << "left in " << file;
  copy.write(file, whole);
}

TEST(CheckpointFuzz, damaged_headers) {
  for (const auto& [fixture, layer] : {std::pair("gpt_oss-bf16", 0), {"llama4-bf16", 1}, {"olmoe-bf16", 0}}) {
    const CheckpointCopy copy(fixture);
    fuzz_file(copy, layer, kModel, header_end(copy.read(kModel)), 500, 11);
  }
}

TEST(CheckpointFuzz, damaged_configs_and_indexes) {
  const CheckpointCopy copy("deepseek_v3-bf16");
  fuzz_file(copy, 1, "config.json", copy.read("config.json").size(), 700, 12);
  fuzz_file(copy, 1, kIndex, copy.read(kIndex).size(), 700, 13);
}

/// A header value that breaks something.
json absurd(std::mt19937& random) {
  static const json kValues[] = {0,
                                 1,
                                 2,
                                 40,
                                 -1,
                                 1u << 31,
                                 1ull << 32,
                                 (1ull << 62) - 1,
                                 1ull << 62,
                                 INT64_MAX,
                                 1ull << 63,
                                 UINT64_MAX,
                                 1.5,
                                 1e30,
                                 true,
                                 nullptr,
                                 "BF16",
                                 "F64",
                                 "F4",
                                 "F6_E2M3",
                                 "I8",
                                 json::array(),
                                 json::object(),
                                 json::array({0, 0}),
                                 json::array({INT64_MAX, INT64_MAX})};
  return kValues[std::uniform_int_distribution<std::size_t>(0, std::size(kValues) - 1)(random)];
}

TEST(CheckpointFuzz, absurd_types_shapes_and_offsets) {
  const CheckpointCopy copy("phimoe-bf16-fused");
  const std::string whole = copy.read(kModel);
  const json header = json::parse(whole.substr(8, header_end(whole) - 8));
  const std::string data = whole.substr(header_end(whole));
  std::mt19937 random(14);
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  int num_accepted = 0;
  constexpr int kRounds = 1200;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    json changed = header;
    auto entry = std::next(changed.begin(), static_cast<std::ptrdiff_t>(below(changed.size())));
    if (entry.key() == "__metadata__") entry = std::next(entry);
    json& tensor = entry.value();
    switch (below(5)) {
      case 0: tensor["dtype"] = absurd(random); break;
      case 1: tensor["shape"] = absurd(random); break;
      case 2: tensor["shape"][below(tensor["shape"].size())] = absurd(random); break;
      case 3: tensor["data_offsets"][below(2)] = absurd(random); break;
      case 4:
        tensor["data_offsets"] = std::next(header.begin(), 1 + static_cast<std::ptrdiff_t>(below(header.size() - 1)))
                                     .value()["data_offsets"];
        break;
    }
    std::string text = test::safetensors_text(changed.dump(), 0);
    copy.write(kModel, text + data);
    num_accepted += accepted(copy, 0) ? 1 : 0;
  }
  EXPECT_LT(num_accepted, kRounds / 2);  // what happened to change nothing, or a tensor that is not the layer's
}

TEST(CheckpointFuzz, damaged_hidden_states) {
  const CheckpointCopy copy("olmoe-bf16");
  const std::string file = "block.safetensors";
  const std::string whole = copy.read(file);
  std::mt19937 random(15);
  for (int round = 0; round < 500 && !HasFailure(); ++round) {
    copy.write(file, damage(whole, header_end(whole), random));
    try {
      const HiddenStates states = read_hidden_states(copy.path() / file, 40, DType::fp32, "hidden_states");
      EXPECT_EQ(states.rows.size(), static_cast<std::size_t>(states.num_tokens) * 40 * sizeof(float));
    } catch (const InvalidArgument& refusal) {
      expect_sentence(refusal);
    }
  }
}

TEST(CheckpointFuzz, deep_and_wide_json_in_every_file) {
  std::string deep(200000, '[');
  std::string wide = "{\"weight_map\":{";
  for (int i = 0; i < 200000; ++i) wide += fmt::format("\"{}\":\"f\",", i);
  wide.back() = '}';
  wide += "}";
  for (const std::string& text : {deep, wide, "{\"a\":" + deep}) {
    const CheckpointCopy config("mixtral-bf16");
    config.write("config.json", text);
    EXPECT_FALSE(accepted(config, 1));
    const CheckpointCopy index("mixtral-bf16");
    index.write(kIndex, text);
    EXPECT_FALSE(accepted(index, 1));
    const CheckpointCopy header("olmoe-bf16");
    header.write(kModel, test::safetensors_text(text, 8));
    EXPECT_FALSE(accepted(header, 0));
  }
}

}  // namespace
}  // namespace flashmoe
