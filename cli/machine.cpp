#include "machine.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace flashmoe::cli {

namespace {

/// The text after `key` and its colon in a file of "key: value" lines; empty where there is none.
std::string value_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::uint64_t kib_of(const std::string& key) {
  std::uint64_t kib = 0;
  std::istringstream(value_of("/proc/meminfo", key)) >> kib;
  return kib * 1024;
}

/// The number a control group's file holds; none where there is no file, or no limit.
std::optional<std::uint64_t> cgroup_bytes(const char* name) {
  std::ifstream file(std::string("/sys/fs/cgroup/") + name);
  std::uint64_t bytes = 0;
  if (file >> bytes) return bytes;
  return std::nullopt;
}

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

}  // namespace

Machine this_machine() {
  Machine machine{.processor = value_of("/proc/cpuinfo", "model name"),
                  .num_cores = usable_cores(),
                  .memory_bytes = kib_of("MemTotal"),
                  .available_bytes = kib_of("MemAvailable")};
  const auto limit = cgroup_bytes("memory.max");
  if (limit) {
    const std::uint64_t used = std::min(cgroup_bytes("memory.current").value_or(0), *limit);
    machine.memory_bytes = std::min(machine.memory_bytes, *limit);
    machine.available_bytes = std::min(machine.available_bytes, *limit - used);
  }
  return machine;
}

std::string readable_bytes(std::uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace flashmoe::cli
