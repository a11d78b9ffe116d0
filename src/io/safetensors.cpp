#include "io/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/json_text.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "io/safetensors_types.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDimensions = 32;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kShownName = 120;
constexpr std::string_view kRemedy = "fetch the file again";

/// Turns one tensor's entry of the header into a StoredTensor; knows what messages have to name.
class EntryReader {
 public:
  EntryReader(const std::filesystem::path& path, const std::string& name, const json& entry)
      : path_(path), name_(name), entry_(entry) {
    if (!entry.is_object()) refuse(fmt::format("must be an object, not {}", describe(entry)));
  }

  StoredTensor read(std::span<const std::byte> data) const {
    StoredTensor tensor{.name = name_, .type = type(), .shape = integers("shape"), .data = {}};
    const std::vector<std::int64_t> offsets = integers("data_offsets");
    const auto data_bytes = static_cast<std::int64_t>(data.size());
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
      refuse(fmt::format("has data_offsets {}, which must be a begin and an end within the file's {} bytes of data",
                         offsets, data_bytes));
    }
    const auto begin = static_cast<std::uint64_t>(offsets[0]);
    const auto end = static_cast<std::uint64_t>(offsets[1]);
    const std::optional<std::uint64_t> bytes = stored_bytes(tensor.type, tensor.shape);
    if (!bytes || *bytes != end - begin) {
      refuse(fmt::format("takes {} bytes by its data_offsets, but its type {} and shape {} need {}", end - begin,
                         tensor.type, tensor.shape,
                         bytes ? fmt::format("{}", *bytes) : "more than 64 bits can count or parts of a byte"));
    }
    tensor.data = data.subspan(begin, end - begin);
    return tensor;
  }

 private:
  [[noreturn]] void refuse(std::string_view fault) const {
    throw InvalidArgument(
        fmt::format("tensor {} of {} {}: {}", printable(name_, kShownName), path_.string(), fault, kRemedy));
  }

  const json& at(const char* key) const {
    const auto found = entry_.find(key);
    if (found == entry_.end()) refuse(fmt::format("has no {}", key));
    return *found;
  }

  std::string type() const {
    const json& value = at("dtype");
    if (!value.is_string()) refuse(fmt::format("has dtype {}, which must be a string", describe(value)));
    auto name = value.get<std::string>();
    if (!is_stored_type(name)) {
      refuse(fmt::format("has dtype {}, which the safetensors format does not know", describe(value)));
    }
    return name;
  }

  /// A short list of integers, none negative.
  std::vector<std::int64_t> integers(const char* key) const {
    const json& value = at(key);
    std::vector<std::int64_t> numbers;
    bool fits = value.is_array() && value.size() <= kMaxDimensions;
    for (std::size_t i = 0; fits && i < value.size(); ++i) {
      fits = value[i].is_number_unsigned() && value[i].get<std::uint64_t>() <= INT64_MAX;
      if (fits) numbers.push_back(value[i].get<std::int64_t>());
    }
    if (!fits)
      refuse(
          fmt::format("has a {} that must be a list of at most {} integers from 0 to 2^63 - 1", key, kMaxDimensions));
    return numbers;
  }

  const std::filesystem::path& path_;
  const std::string& name_;
  const json& entry_;
};

/// The header's text.
std::string_view header_text(const std::filesystem::path& path, std::span<const std::byte> file) {
  std::uint64_t length = 0;
  if (file.size() >= kLengthBytes) std::memcpy(&length, file.data(), kLengthBytes);
  if (file.size() < kLengthBytes || length > file.size() - kLengthBytes) {
    throw InvalidArgument(fmt::format(
        "{} ({} bytes) must hold {} bytes of length and a header as long as they say ({}): it is cut short or no "
        "safetensors file, so {}",
        path.string(), file.size(), kLengthBytes, length, kRemedy));
  }
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<std::size_t>(length)};
}

void check_metadata(std::string_view origin, const json& metadata) {
  const auto is_string = [](const json& value) { return value.is_string(); };
  if (!metadata.is_object() || !std::all_of(metadata.begin(), metadata.end(), is_string)) {
    throw InvalidArgument(fmt::format("{} of {} must be an object of strings: {}", kMetadata, origin, kRemedy));
  }
}

/// Sorts the tensors by their place and refuses gaps and overlaps.
void check_cover(const std::filesystem::path& path, std::vector<StoredTensor>& tensors,
                 std::span<const std::byte> data) {
  const auto begin = [&](const StoredTensor& tensor) {
    return static_cast<std::size_t>(tensor.data.data() - data.data());
  };
  std::sort(tensors.begin(), tensors.end(), [&](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(begin(a), begin(a) + a.data.size()) < std::pair(begin(b), begin(b) + b.data.size());
  });
  std::size_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    if (begin(tensor) != covered) {
      throw InvalidArgument(
          fmt::format("tensor {} of {} must begin at byte {} of the data, where the one before ends, "
                      "not at byte {}: {}",
                      printable(tensor.name, kShownName), path.string(), covered, begin(tensor), kRemedy));
    }
    covered += tensor.data.size();
  }
  if (covered != data.size()) {
    throw InvalidArgument(fmt::format("the tensors of {} must fill its {} bytes of data, but end after {}: {}",
                                      path.string(), data.size(), covered, kRemedy));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::string_view text = header_text(path, file_.bytes());
  const std::string origin = fmt::format("the header of {}", path.string());
  const json header = parse_json(text, origin);
  if (!header.is_object()) {
    throw InvalidArgument(fmt::format("{} must be a JSON object, not {}: {}", origin, describe(header), kRemedy));
  }
  const std::span<const std::byte> data = file_.bytes().subspan(kLengthBytes + text.size());
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      check_metadata(origin, entry);
    } else {
      tensors_.push_back(EntryReader(path, name, entry).read(data));
    }
  }
  check_cover(path, tensors_, data);
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace flashmoe
