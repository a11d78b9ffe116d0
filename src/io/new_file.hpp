// Files that are there whole or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <ostream>

namespace flashmoe {

/// Calls `write` with a stream to a file beside `path`, which takes its place once everything is written. A process that
/// dies on the way leaves `path` as it was. Throws InvalidArgument, naming the file, when it cannot be written.
void write_new_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);

}  // namespace flashmoe
