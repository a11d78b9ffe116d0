#include "file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// Whether the open file is still the one of that name: its last holder may have removed it after it was opened here.
bool is_named(int fd, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

}  // namespace

FileLock::FileLock(const char* name, const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) return;
  path_ = std::filesystem::weakly_canonical(file, error);
  if (error) path_ = file;
  path_ += ".lock";
  do {
    fd_ = fabric::UniqueFd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!fd_) {
      throw InvalidArgument(
          fmt::format("{} ({}) must lie in a folder that can be written to, got: {}: give another name", name,
                      file.string(), std::strerror(errno)));
    }
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      throw InvalidArgument(fmt::format(
          "{} ({}) is being written by another process: wait for its end, or give another name", name, file.string()));
    }
  } while (!is_named(fd_.get(), path_));
}

FileLock::~FileLock() {
  if (fd_) unlink(path_.c_str());
}

}  // namespace flashmoe::cli
