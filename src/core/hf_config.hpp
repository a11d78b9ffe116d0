// The Hugging Face config.json of every family of MoE models the library knows, as ModelConfig.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "flashmoe/model_config.hpp"

namespace flashmoe {

/// The config of an already parsed file; `name` is left to the caller. Throws InvalidArgument as parse_model_config().
ModelConfig read_hf_config(const nlohmann::json& root, std::string_view origin);

}  // namespace flashmoe
