// What the program may use of this machine.
#pragma once

#include <cstdint>
#include <string>

namespace flashmoe::cli {

struct Machine {
  std::string processor;
  int num_cores = 1;                     ///< that this process may run on
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;     ///< that can be had without swapping, the limits of a container included
};

Machine this_machine();

/// "1.5 GiB"
std::string readable_bytes(std::uint64_t bytes);

}  // namespace flashmoe::cli
