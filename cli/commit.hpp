// Which code the program is.
#pragma once

#include <string>

namespace flashmoe::cli {

/// The commit of the checkout that the program was built from, "-dirty" behind it where it was edited; "unknown" where
/// the sources were none.
std::string commit_of_program();

/// Whether it names the code: neither edited nor unknown.
bool names_code(const std::string& commit);

/// A checksum of the running program, 16 hexadecimal digits.
std::string checksum_of_program();

}  // namespace flashmoe::cli
