#include "checksum.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <fstream>

namespace flashmoe::cli {

std::string checksum_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::uint64_t hash = 0xcbf29ce484222325u;
  std::array<char, 1 << 16> block;
  while (stream) {
    stream.read(block.data(), block.size());
    for (std::streamsize i = 0; i < stream.gcount(); ++i) {
      hash = (hash ^ static_cast<unsigned char>(block[static_cast<std::size_t>(i)])) * 0x100000001b3u;
    }
  }
  return stream.eof() ? fmt::format("{:016x}", hash) : "unreadable";
}

}  // namespace flashmoe::cli
