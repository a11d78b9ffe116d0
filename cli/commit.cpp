#include "commit.hpp"

#include "checksum.hpp"
#include "program_commit.hpp"

namespace flashmoe::cli {

std::string commit_of_program() { return FLASHMOE_COMMIT; }

bool names_code(const std::string& commit) { return commit != "unknown" && !commit.ends_with("-dirty"); }

std::string checksum_of_program() { return checksum_of_file("/proc/self/exe"); }

}  // namespace flashmoe::cli
