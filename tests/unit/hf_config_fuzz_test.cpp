// Damaged configs: whatever the bytes, an InvalidArgument or a config that keeps every promise of model_config.hpp.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "flashmoe/error.hpp"
#include "flashmoe/model_config.hpp"

namespace flashmoe {
namespace {

std::vector<std::string> fixture_texts() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("fixtures/configs")) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const std::string& path : paths) texts.push_back((std::ostringstream() << std::ifstream(path).rdbuf()).str());
  return texts;
}

void expect_consistent(const ModelConfig& config) {
  EXPECT_FALSE(config.architecture.empty());
  EXPECT_NO_THROW(validate(config.router));
  EXPECT_EQ(config.router.num_experts, config.num_experts);
  EXPECT_EQ(config.router.top_k, config.top_k);
  ASSERT_FALSE(config.moe_layers.empty());
  EXPECT_TRUE(std::is_sorted(config.moe_layers.begin(), config.moe_layers.end(), std::less_equal<>()));
  EXPECT_GE(config.moe_layers.front(), 0);
  EXPECT_LT(config.moe_layers.back(), config.num_layers);
  EXPECT_GE(config.shared_intermediate, 0);
  Problem problem = make_problem(config, 1, 1, DType::bf16);
  problem.hidden = (problem.hidden + 7) / 8 * 8;  // an engine's rule, not the config's
  problem.intermediate = (problem.intermediate + 7) / 8 * 8;
  EXPECT_NO_THROW(validate(problem));
}

/// Parses; true when the text was accepted. Any exception but InvalidArgument fails the test.
bool accepted(const std::string& text) {
  try {
    expect_consistent(parse_model_config(text, "config.json"));
    return true;
  } catch (const InvalidArgument& refusal) {
    const std::string message = refusal.what();
    EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c <= '~'; })) << message;
    EXPECT_LT(message.size(), 400u) << message;
    return false;
  }
}

TEST(HfConfigFuzz, every_truncation_is_refused) {
  for (const std::string& text : fixture_texts()) {
    const std::size_t complete = text.rfind('}') + 1;
    for (std::size_t size = 0; size < complete; ++size) ASSERT_FALSE(accepted(text.substr(0, size))) << size;
    EXPECT_TRUE(accepted(text.substr(0, complete)));
  }
}

TEST(HfConfigFuzz, flipped_bytes_give_a_refusal_or_a_consistent_config) {
  std::mt19937_64 random(20240611);
  int num_accepted = 0;
  int num_refused = 0;
  for (const std::string& text : fixture_texts()) {
    for (int round = 0; round < 400; ++round) {
      std::string damaged = text;
      const auto num_flips = 1 + random() % 4;
      for (std::uint64_t flip = 0; flip < num_flips; ++flip) {
        damaged[random() % damaged.size()] ^= static_cast<char>(1u << random() % 8);
      }
      ++(accepted(damaged) ? num_accepted : num_refused);
      if (HasFailure()) FAIL() << damaged;
    }
  }
  EXPECT_GT(num_accepted, 100);  // both outcomes were exercised
  EXPECT_GT(num_refused, 1000);
}

TEST(HfConfigFuzz, odd_values_under_every_key_give_a_refusal_or_a_consistent_config) {
  const std::vector<std::string> values = {
      "0",     "-1",   "1",  "3",  "2147483648", "1e18",  "-0.0",  "0.5",   "1e-300", "\"\"",      "true",
      "false", "null", "[]", "{}", "[-1]",       "[1e9]", "[[0]]", "\"a\"", "999999", "[0, 0, 1]", "\"\\ud800\""};
  int num_accepted = 0;
  for (const std::string& text : fixture_texts()) {
    for (std::size_t colon = text.find(": "); colon != std::string::npos; colon = text.find(": ", colon + 1)) {
      const std::size_t end = text.find_first_of(",\n", colon);
      for (const std::string& value : values) {
        num_accepted += accepted(text.substr(0, colon + 2) + value + text.substr(end));
        if (HasFailure()) FAIL() << text.substr(text.rfind('\n', colon), colon) << value;
      }
    }
  }
  EXPECT_GT(num_accepted, 1000);
}

}  // namespace
}  // namespace flashmoe
