// What the program says on standard error beside its result: one line each, by spdlog. Its header takes longer to compile
// than most of the program, so log.cpp alone reads it.
#pragma once

#include <string>

namespace flashmoe::cli {

/// Before the first line.
void start_log();

void log_info(const std::string& text);
void log_error(const std::string& text);

/// Errors alone from here on.
void silence_info();
bool shows_info();

}  // namespace flashmoe::cli
