#include "io/safetensors_writer.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>

#include "flashmoe/error.hpp"
#include "io/new_file.hpp"
#include "io/safetensors_types.hpp"

namespace flashmoe {
namespace {

constexpr std::size_t kAlignment = 8;

/// The header, padded.
std::string format_header(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::size_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    if (stored_bytes(tensor.type, tensor.shape) != tensor.data.size()) {
      throw InvalidArgument(
          fmt::format("tensor {} of {} bytes does not fit its type {} and its shape, which must be that of {}",
                      tensor.name, tensor.data.size(), tensor.type, path.string()));
    }
    if (header.contains(tensor.name)) {
      throw InvalidArgument(fmt::format("tensor {} must be written to {} once, not twice", tensor.name, path.string()));
    }
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = header.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors) {
  const std::string header = format_header(path, tensors);
  const std::uint64_t length = header.size();
  write_new_file(path, [&](std::ostream& file) {
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header;
    for (const TensorToWrite& tensor : tensors) {
      file.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
    }
  });
}

}  // namespace flashmoe
