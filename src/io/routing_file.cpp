#include "io/routing_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashmoe/error.hpp"
#include "io/npy.hpp"

namespace flashmoe {
namespace {

NpyArray read_matrix(const std::filesystem::path& path, std::string_view what, const Problem& problem,
                     std::int64_t num_tokens) {
  NpyArray array = read_npy(path);
  if (array.shape != std::vector<std::int64_t>{num_tokens, problem.top_k}) {
    throw InvalidArgument(fmt::format("{} in {} must have the shape [{}][{}] (tokens of all ranks, top_k), not [{}]", what,
                                      path.string(), num_tokens, problem.top_k, fmt::join(array.shape, "][")));
  }
  return array;
}

std::int64_t id_at(const NpyArray& ids, std::int64_t index) {
  return ids.type == NpyType::int32 ? ids.as<std::int32_t>()[index] : ids.as<std::int64_t>()[index];
}

}  // namespace

RankRouting read_routing(const std::filesystem::path& ids_file, const std::filesystem::path& weights_file,
                     const Problem& problem, std::int64_t num_tokens) {
  const NpyArray ids = read_matrix(ids_file, "topk_ids", problem, num_tokens);
  if (ids.type != NpyType::int32 && ids.type != NpyType::int64) {
    throw InvalidArgument(fmt::format("topk_ids in {} must be int32 or int64, not {}", ids_file.string(),
                                      to_string(ids.type)));
  }
  RankRouting routing;
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
    const std::int64_t id = id_at(ids, i);
    if (id < -1 || id >= problem.num_experts) {
      throw InvalidArgument(fmt::format("topk_ids[{}][{}] ({}) in {} must be -1 (masked) or an expert in 0..{}",
                                        i / problem.top_k, i % problem.top_k, id, ids_file.string(),
                                        problem.num_experts - 1));
    }
    routing.topk_ids.push_back(static_cast<std::int32_t>(id));
  }
  routing.topk_weights.assign(routing.topk_ids.size(), 1.0f / static_cast<float>(problem.top_k));
  if (weights_file.empty()) return routing;

  const NpyArray weights = read_matrix(weights_file, "topk_weights", problem, num_tokens);
  if (weights.type != NpyType::float32 && weights.type != NpyType::float64) {
    throw InvalidArgument(fmt::format("topk_weights in {} must be float32 or float64, not {}", weights_file.string(),
                                      to_string(weights.type)));
  }
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) {
    routing.topk_weights[i] = weights.type == NpyType::float32 ? weights.as<float>()[i]
                                                               : static_cast<float>(weights.as<double>()[i]);
  }
  return routing;
}

}  // namespace flashmoe
