#include "fabric/rank_gpus.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "flashmoe/error.hpp"

namespace flashmoe::fabric {

namespace {

/// "a", "a and b", "a, b and c"
std::string enumerate(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace

void require_own_gpus(std::string_view group_id, std::span<const RankGpu> gpus) {
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    std::vector<std::string> sharing;
    for (std::size_t other = rank; other < gpus.size(); ++other) {
      if (gpus[other].uuid == gpus[rank].uuid) sharing.push_back(std::to_string(other));
    }
    if (sharing.size() == 1) continue;
    throw FabricError(
        fmt::format("ranks {} of group '{}' have chosen one GPU (device {} of rank {}), where kernels of two "
                    "processes do not run at once: give every process another device, such as its local rank "
                    "(in torch by torch.cuda.set_device), or run the ranks as threads of one process",
                    enumerate(sharing), group_id, gpus[rank].device, rank));
  }
}

}  // namespace flashmoe::fabric
