#include "io/new_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

#include "flashmoe/error.hpp"

namespace flashmoe {

void write_new_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write) {
  std::error_code error;
  // A device or pipe is written to, not replaced; what a link leads to is replaced, not the link.
  const bool exists = std::filesystem::exists(path, error);
  const bool in_place = exists && !std::filesystem::is_regular_file(path, error);
  const std::filesystem::path final_path = exists ? std::filesystem::canonical(path, error) : path;
  std::filesystem::path target = final_path;
  if (!in_place) target += fmt::format(".partial-{}", getpid());
  std::ofstream file(target, std::ios::binary | std::ios::trunc);
  write(file);
  file.close();
  if (file && !in_place) std::filesystem::rename(target, final_path, error);
  if (!file || error) {
    std::error_code ignored;
    if (!in_place) std::filesystem::remove(target, ignored);
    throw InvalidArgument(fmt::format("{} cannot be written: its folder must exist and have room", path.string()));
  }
}

}  // namespace flashmoe
