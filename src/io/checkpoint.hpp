// One MoE layer of a Hugging Face checkpoint directory: config.json and safetensors files, mapped, not read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/expert_source.hpp"
#include "flashmoe/model_config.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// The routed part of the layer: router and experts. A shared expert, where the model has one, stays with the model.
/// Copies share one state; every member is thread-safe.
class CheckpointLayer final : public ExpertSource {
 public:
  const ModelConfig& config() const;

  /// The router's parameters, for router_logits() and route_logits(). Empty where the family has none.
  const std::vector<float>& router_weight() const;   // [num_experts][hidden]
  const std::vector<float>& router_bias() const;     // [num_experts] or empty
  const std::vector<float>& selection_bias() const;  // [num_experts] or empty

  /// Bytes an expert's handle owns: a matrix whose type and layout on disk are the engine's is handed out as it lies in
  /// the mapped file, any other one is copied once. 0: nothing is copied.
  std::size_t copied_bytes(int expert_index) const;

  /// Throws InvalidArgument for an index outside 0..num_experts-1 and Error when there is no memory for a copy. The
  /// handle keeps the mapped files alive, whose content must not change (mapped_file.hpp).
  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override;

 private:
  struct Shared;
  explicit CheckpointLayer(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  friend CheckpointLayer load_checkpoint_layer(const std::filesystem::path&, int, DType, std::size_t);

  std::shared_ptr<const Shared> shared_;
};

/// Opens layer `layer_index` (zero-based) of the checkpoint for an engine of `dtype`. Families: mixtral, qwen2_moe,
/// qwen3_moe, olmoe, deepseek_v2, deepseek_v3, llama4_text, gpt_oss, phimoe, with experts in BF16, F16, F32 or F64, as
/// published or as transformers 5 saves them. Every tensor's presence, type and shape is checked here; the experts'
/// values are read when an expert is asked for. Copies of recently used experts are kept within `cache_bytes`.
/// Throws InvalidArgument, one sentence that names the file and the tensor: a config load_model_config() refuses, a
/// layer that is out of range or dense, a quantised checkpoint, a missing or malformed file, a missing tensor, one of
/// another shape or type.
CheckpointLayer load_checkpoint_layer(const std::filesystem::path& directory, int layer_index, DType dtype,
                                      std::size_t cache_bytes = 0);

}  // namespace flashmoe
