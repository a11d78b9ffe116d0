#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view wanted, std::string_view got) {
  throw InvalidArgument(fmt::format("{} must be {}: {}", path.string(), wanted, got));
}

/// Closed at the end of the scope: a mapping outlives its descriptor.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.value() < 0) refuse(path, "a readable file", std::strerror(errno));
  struct stat status = {};
  if (fstat(file.value(), &status) != 0) refuse(path, "a readable file", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, "a regular file", "it is a directory, a pipe or a device");
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (address == MAP_FAILED) refuse(path, "a file that can be mapped into memory", std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace flashmoe
