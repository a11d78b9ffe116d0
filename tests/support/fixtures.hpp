// The checkpoints under tests/fixtures/checkpoints and what the transformers library's own MoE block did with them
// (tools/make_fixtures.py says how both are made).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "flashmoe/types.hpp"
#include "io/convert_elements.hpp"
#include "io/hidden_states.hpp"
#include "io/safetensors.hpp"

namespace flashmoe::test {

struct CheckpointFixture {
  std::string name;
  int layer;
  DType dtype;  ///< of its weights and hidden states
};

inline std::ostream& operator<<(std::ostream& out, const CheckpointFixture& fixture) { return out << fixture.name; }

/// Every fixture there is.
inline const std::vector<CheckpointFixture>& checkpoint_fixtures() {
  static const std::vector<CheckpointFixture> fixtures = {
      {"mixtral-bf16", 1, DType::bf16},       {"mixtral-fp32", 1, DType::fp32},
      {"mixtral-fp32-fused", 1, DType::fp32}, {"qwen2_moe-bf16", 1, DType::bf16},
      {"qwen2_moe-fp16", 1, DType::fp16},     {"qwen2_moe-fp32", 1, DType::fp32},
      {"qwen3_moe-bf16", 1, DType::bf16},     {"qwen3_moe-fp32", 1, DType::fp32},
      {"olmoe-bf16", 0, DType::bf16},         {"olmoe-fp32", 0, DType::fp32},
      {"deepseek_v2-bf16", 1, DType::bf16},   {"deepseek_v2-fp32", 1, DType::fp32},
      {"deepseek_v3-bf16", 1, DType::bf16},   {"deepseek_v3-fp32", 1, DType::fp32},
      {"llama4-bf16", 1, DType::bf16},        {"gpt_oss-bf16", 0, DType::bf16},
      {"phimoe-bf16", 0, DType::bf16},        {"phimoe-bf16-fused", 0, DType::bf16},
  };
  return fixtures;
}

inline std::filesystem::path folder_of(const CheckpointFixture& fixture) {
  return std::filesystem::path("fixtures/checkpoints") / fixture.name;  // tests run in tests/
}

/// What the library's block read and returned.
struct RecordedBlock {
  HiddenStates input;                  // of the dtype asked for
  std::vector<float> router_logits;    // [num_tokens][num_experts]
  std::vector<std::int32_t> topk_ids;  // [num_tokens][top_k]; some routers leave a token's choices in no order
  std::vector<float> topk_weights;     // [num_tokens][top_k]
  std::vector<double> output;          // [num_tokens][hidden]
};

inline std::vector<float> recorded_floats(const SafetensorsFile& file, const char* name) {
  const StoredTensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> values(tensor->data.size() / sizeof(float));
  convert_elements(DType::fp32, tensor->data.data(), static_cast<std::int64_t>(values.size()), DType::fp32,
                   values.data());
  return values;
}

inline RecordedBlock read_recorded_block(const CheckpointFixture& fixture, int hidden, DType dtype) {
  const std::filesystem::path path = folder_of(fixture) / "block.safetensors";
  const SafetensorsFile file(path);
  RecordedBlock block;
  block.input = read_hidden_states(path, hidden, dtype, "hidden_states");
  block.router_logits = recorded_floats(file, "router_logits");
  block.topk_weights = recorded_floats(file, "topk_weights");
  block.topk_ids.resize(block.topk_weights.size());
  const auto& ids = file.find("topk_ids")->data;
  std::copy(ids.begin(), ids.end(), reinterpret_cast<std::byte*>(block.topk_ids.data()));
  const std::vector<float> output = recorded_floats(file, "output");
  block.output.assign(output.begin(), output.end());
  return block;
}

/// A token's routes in the order of expert ids, to compare routers that order them differently.
struct Route {
  std::int32_t expert;
  float weight;
};
inline std::vector<Route> sorted_routes(const std::int32_t* ids, const float* weights, int top_k) {
  std::vector<Route> routes;
  for (int choice = 0; choice < top_k; ++choice) routes.push_back({ids[choice], weights[choice]});
  std::sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.expert < b.expert; });
  return routes;
}

}  // namespace flashmoe::test
