// Expert parameters from a counter-based generator, made when asked for: a layer larger than memory still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/expert_source.hpp"
#include "flashmoe/problem.hpp"
#include "io/expert_cache.hpp"
#include "io/synthetic.hpp"

namespace flashmoe {

/// Bytes of one expert's matrices and biases, each aligned to 64 bytes.
std::size_t expert_bytes(const Problem& problem);

/// Matrices are uniform with variance 1 / fan-in (hidden for up, intermediate for down), biases in (-0.1, 0.1); or small
/// integers (synthetic.hpp). Values depend on the seed, the global expert and the position alone.
class GeneratedExperts final : public ExpertSource {
 public:
  /// Keeps recently used experts within `cache_bytes`; what callers hold comes on top.
  GeneratedExperts(const Problem& problem, std::uint64_t seed, std::size_t cache_bytes,
                   ValueSet values = ValueSet::uniform);

  /// Throws InvalidArgument for an index outside 0..num_experts-1 and Error when there is no memory for an expert.
  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override;

 private:
  std::shared_ptr<const ExpertParameters> make(int expert_index) const;

  Problem problem_;
  std::uint64_t seed_;
  ValueSet values_;
  mutable ExpertCache cache_;
};

}  // namespace flashmoe
