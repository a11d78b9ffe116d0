// How each family of models names and lays out the tensors of one MoE layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/checkpoint_files.hpp"

namespace flashmoe {

/// Layout of an expert's matrices in the checkpoint. E experts, H hidden, I intermediate.
enum class ExpertForm : std::uint8_t {
  separate,     ///< a tensor each for gate [I, H], up [I, H] and down [H, I] of every expert
  fused,        ///< gate_up_proj [E, 2I, H], gate rows first; down_proj [E, H, I]
  transposed,   ///< gate_up_proj [E, H, 2I], gate columns first; down_proj [E, I, H]
  interleaved,  ///< as transposed, gate in the even columns of 2I and up in the odd ones
};

/// Full names of a layer's tensors.
struct LayerNames {
  ExpertForm form = ExpertForm::separate;
  std::string router;          ///< "model.layers.3.mlp.gate.weight"
  std::string router_bias;     ///< where the family has one
  std::string selection_bias;  ///< where the family has one
  std::string gate_up;         ///< fused forms; the biases' names have "_bias" after it
  std::string down;

  std::string experts;  ///< separate: "model.layers.3.mlp.experts."
  std::string_view gate_part, up_part, down_part;

  /// separate: "model.layers.3.mlp.experts.17.gate_proj.weight" for part gate_part.
  std::string of_expert(int expert_index, std::string_view part) const;
};

/// The names this checkpoint uses for MoE layer `layer_index`: the first of the family's that has a router in it.
/// Throws InvalidArgument, one sentence, for a family without a checkpoint format known here, and when there is no
/// router.
LayerNames find_layer_names(const CheckpointFiles& files, const std::string& directory, std::string_view architecture,
                            int layer_index);

}  // namespace flashmoe
