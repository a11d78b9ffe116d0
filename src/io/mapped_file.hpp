// A regular file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace flashmoe {

class MappedFile {
 public:
  /// Maps the whole file; an empty one has no bytes. Throws InvalidArgument, naming the file, for one that is missing,
  /// not regular or not readable. Never waits (on a FIFO, say).
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  /// Page-aligned, as many as the file had when it was opened. The file must not be cut short afterwards: reading what
  /// is no longer there is a bus error. Replacing it by renaming another one over it is harmless.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace flashmoe
