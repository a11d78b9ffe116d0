// Whether two files are the same, told by a few digits.
#pragma once

#include <filesystem>
#include <string>

namespace flashmoe::cli {

/// 64-bit FNV-1a of the file's bytes, 16 hexadecimal digits; "unreadable" for a file that is.
std::string checksum_of_file(const std::filesystem::path& file);

}  // namespace flashmoe::cli
