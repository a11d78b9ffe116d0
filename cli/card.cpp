#include "card.hpp"

#include <optional>

#include "gpu_monitor.hpp"

namespace flashmoe::cli {

Card card_of(BackendKind backend, const Machine& machine) {
  if (backend == BackendKind::cpu) return {.name = machine.processor, .driver = nullptr};
  const std::optional<GpuIdentity> gpu = identify_gpu();
  if (!gpu) return {.name = "unknown", .driver = "unknown"};
  return {.name = gpu->card, .driver = gpu->driver};
}

}  // namespace flashmoe::cli
