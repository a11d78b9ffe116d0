#include "io/npy.hpp"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <optional>
#include <string>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "io/new_file.hpp"
#include "io/npy_header.hpp"

namespace flashmoe {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kHeaderLimit = 65536;  // real ones have about a hundred bytes
constexpr std::size_t kAlignment = 64;       // of the data, as NumPy writes it

struct TypeRow {
  NpyType type;
  std::string_view name;
  std::string_view descr;
  std::size_t bytes;
};
constexpr std::array<TypeRow, 6> kTypes = {{{NpyType::int32, "int32", "<i4", 4},
                                            {NpyType::int64, "int64", "<i8", 8},
                                            {NpyType::bits16, "bits16", "<u2", 2},
                                            {NpyType::float16, "float16", "<f2", 2},
                                            {NpyType::float32, "float32", "<f4", 4},
                                            {NpyType::float64, "float64", "<f8", 8}}};

const TypeRow& row_of(NpyType type) { return kTypes[static_cast<std::size_t>(type)]; }

NpyType parse_descr(std::string_view descr) {
  if (descr == "<V2" || descr == "|V2") return NpyType::bits16;
  std::string accepted;
  for (const TypeRow& row : kTypes) {
    if (descr == row.descr) return row.type;
    accepted += fmt::format("{}, ", row.descr);
  }
  throw InvalidArgument(fmt::format("its element type must be one of {}or V2 for bf16, not '{}'", accepted, printable(descr)));
}

// Bytes of an array, or nothing when they overflow.
std::optional<std::uint64_t> array_bytes(NpyType type, const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = element_bytes(type);
  bool overflow = false;
  for (const std::int64_t dimension : shape) {
    if (dimension == 0) return 0;
    overflow |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes);
  }
  if (overflow) return std::nullopt;
  return bytes;
}

// A regular file of known size, read front to back; never reads or allocates past that size.
class Input {
 public:
  explicit Input(const std::filesystem::path& path) {
    if (!std::filesystem::is_regular_file(path)) throw InvalidArgument("it must be an existing regular file");
    remaining_ = std::filesystem::file_size(path);
    file_.open(path, std::ios::binary);
    if (!file_) throw InvalidArgument("it must be readable, but it cannot be opened");
  }

  std::uint64_t remaining() const { return remaining_; }

  void read(void* target, std::uint64_t bytes) {
    if (bytes > remaining_) throw InvalidArgument("it is shorter than its header says; it must be complete");
    remaining_ -= bytes;
    if (!file_.read(static_cast<char*>(target), static_cast<std::streamsize>(bytes))) {
      throw InvalidArgument("reading it failed; it must stay as it is while it is read");
    }
  }

 private:
  std::ifstream file_;
  std::uint64_t remaining_ = 0;
};

NpyHeader read_header(Input& input) {
  char prefix[8] = {};  // magic, major and minor version
  if (input.remaining() < sizeof prefix) throw InvalidArgument("it must be a .npy file, but it is too short for one");
  input.read(prefix, sizeof prefix);
  if (std::string_view(prefix, kMagic.size()) != kMagic) {
    throw InvalidArgument("it must be a .npy file, but it does not start like one");
  }
  const int major = static_cast<unsigned char>(prefix[6]);
  if (major < 1 || major > 3) throw InvalidArgument(fmt::format("its format version ({}) must be 1, 2 or 3", major));
  unsigned char length_bytes[4] = {};
  input.read(length_bytes, major == 1 ? 2 : 4);
  const std::uint32_t length = length_bytes[0] | length_bytes[1] << 8 | length_bytes[2] << 16 |
                               static_cast<std::uint32_t>(length_bytes[3]) << 24;
  if (length > kHeaderLimit) {
    throw InvalidArgument(fmt::format("its header ({} bytes) must be at most {} bytes", length, kHeaderLimit));
  }
  std::string text(length, '\0');
  input.read(text.data(), length);
  return parse_npy_header(text);
}

NpyArray read(const std::filesystem::path& path) {
  Input input(path);
  NpyHeader header = read_header(input);
  if (header.fortran_order) {
    throw InvalidArgument("it must be in C order, but it is in Fortran order; save numpy.ascontiguousarray(array)");
  }
  NpyArray array{.type = parse_descr(header.descr), .shape = std::move(header.shape), .data = {}};
  const std::optional<std::uint64_t> bytes = array_bytes(array.type, array.shape);
  if (!bytes || *bytes != input.remaining()) {
    throw InvalidArgument(fmt::format("its array of type {} must fill the rest of the file: {} bytes after the header, "
                                      "but its shape needs {}",
                                      to_string(array.type), input.remaining(),
                                      bytes ? std::to_string(*bytes) : "more than 64 bits can count"));
  }
  array.data.resize(*bytes);
  input.read(array.data.data(), *bytes);
  return array;
}

}  // namespace

std::string_view to_string(NpyType type) { return row_of(type).name; }
std::size_t element_bytes(NpyType type) { return row_of(type).bytes; }

std::int64_t NpyArray::num_elements() const { return static_cast<std::int64_t>(data.size() / element_bytes(type)); }

NpyArray read_npy(const std::filesystem::path& path) {
  try {
    return read(path);
  } catch (const std::exception& error) {
    throw InvalidArgument(fmt::format("{} cannot be read as a NumPy array: {}", path.string(), error.what()));
  }
}

void write_npy(const std::filesystem::path& path, NpyType type, const std::vector<std::int64_t>& shape,
               std::span<const std::byte> data) {
  const std::optional<std::uint64_t> bytes = array_bytes(type, shape);
  if (!bytes || *bytes != data.size()) {
    throw InvalidArgument(fmt::format("an array of {} bytes does not fit its shape, which must be that of {}", data.size(),
                                      path.string()));
  }
  std::string header = format_npy_header(row_of(type).descr, shape);
  const std::size_t prefix = kMagic.size() + 4;
  header.append((kAlignment - (prefix + header.size() + 1) % kAlignment) % kAlignment, ' ');
  header += '\n';
  write_new_file(path, [&](std::ostream& file) {
    file << kMagic << '\x01' << '\0' << static_cast<char>(header.size() & 0xff)
         << static_cast<char>(header.size() >> 8) << header;
    file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  });
}

}  // namespace flashmoe
