// The card that results name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "flashmoe/group.hpp"
#include "machine.hpp"

namespace flashmoe::cli {

struct Card {
  std::string name;       ///< of the first GPU, or of the processor; "unknown" for a GPU that does not tell
  nlohmann::json driver;  ///< null without a GPU
};

/// What a backend runs on.
Card card_of(BackendKind backend, const Machine& machine);

}  // namespace flashmoe::cli
