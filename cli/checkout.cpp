#include "checkout.hpp"

#include <system_error>

namespace flashmoe::cli {

std::optional<std::filesystem::path> find_checkout() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  while (folder != folder.parent_path()) {
    folder = folder.parent_path();
    if (std::filesystem::is_regular_file(folder / "tools/plot/plot.py", error)) return folder;
  }
  return std::nullopt;
}

}  // namespace flashmoe::cli
