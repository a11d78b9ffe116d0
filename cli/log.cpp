#include "log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace flashmoe::cli {

void start_log() {
  spdlog::set_default_logger(spdlog::stderr_color_mt("flashmoe"));
  spdlog::set_pattern("flashmoe: %^%l%$: %v");
}

void log_info(const std::string& text) { spdlog::info("{}", text); }
void log_error(const std::string& text) { spdlog::error("{}", text); }

void silence_info() { spdlog::set_level(spdlog::level::err); }
bool shows_info() { return spdlog::should_log(spdlog::level::info); }

}  // namespace flashmoe::cli
