// Who writes a results file.
#pragma once

#include <filesystem>

#include "fabric/unique_fd.hpp"

namespace flashmoe::cli {

/// Held by one process of this machine at a time, through a file FILE.lock beside it; gone with the process, however
/// that ends. Devices and pipes are anybody's.
class FileLock {
 public:
  /// Throws InvalidArgument, calling the file `name`, when another process holds it or the folder cannot be written to.
  FileLock(const char* name, const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// The file beside; empty: none is needed.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  fabric::UniqueFd fd_;
};

}  // namespace flashmoe::cli
