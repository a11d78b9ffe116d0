#include "gpu_monitor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

extern char** environ;

namespace flashmoe::cli {

namespace {

constexpr const char* kIdentify = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null";

}  // namespace

std::string first_line_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string line;
  for (int c = std::fgetc(pipe); c != EOF && c != '\n'; c = std::fgetc(pipe)) line += static_cast<char>(c);
  pclose(pipe);
  return line;
}

std::optional<GpuIdentity> identify_gpu() {
  const std::string line = first_line_of(kIdentify);
  const std::size_t comma = line.rfind(", ");
  if (comma == std::string::npos) return std::nullopt;
  return GpuIdentity{.card = line.substr(0, comma), .driver = line.substr(comma + 2)};
}

GpuMonitor::GpuMonitor() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string words[] = {"nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu,clocks_event_reasons.active",
                         "--format=csv,noheader,nounits", "--loop-ms=200"};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  if (posix_spawnp(&process_, words[0].c_str(), &actions, nullptr, arguments, environ) != 0) process_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
  reader_ = std::thread([this] { read_samples(); });
}

GpuMonitor::~GpuMonitor() {
  if (process_ > 0) {
    kill(process_, SIGTERM);
    waitpid(process_, nullptr, 0);
  }
  if (reader_.joinable()) reader_.join();  // the pipe has ended with its writer
  if (output_ >= 0) close(output_);
}

void GpuMonitor::Range::add(double value, bool first) {
  low = first ? value : std::min(low, value);
  high = first ? value : std::max(high, value);
}

void GpuMonitor::read_samples() {
  std::string line;
  char buffer[512];
  for (ssize_t count = read(output_, buffer, sizeof(buffer)); count > 0;
       count = read(output_, buffer, sizeof(buffer))) {
    for (ssize_t i = 0; i < count; ++i) {
      if (buffer[i] != '\n') {
        line += buffer[i];
        continue;
      }
      add_sample(line);
      line.clear();
    }
  }
}

void GpuMonitor::add_sample(const std::string& line) {
  double clock = 0;
  double temperature = 0;
  unsigned long long reasons = 0;
  if (std::sscanf(line.c_str(), "%lf, %lf, 0x%llx", &clock, &temperature, &reasons) != 3) return;
  const std::lock_guard lock(mutex_);
  clock_mhz_.add(clock, num_samples_ == 0);
  temperature_c_.add(temperature, num_samples_ == 0);
  throttle_reasons_ |= reasons;
  ++num_samples_;
}

nlohmann::json GpuMonitor::take() {
  const std::lock_guard lock(mutex_);
  if (num_samples_ == 0) return nullptr;
  nlohmann::json json{{"sm_clock_mhz", {clock_mhz_.low, clock_mhz_.high}},
                      {"temperature_c", {temperature_c_.low, temperature_c_.high}},
                      {"throttle_reasons", fmt::format("{:#x}", throttle_reasons_)}};
  num_samples_ = 0;
  throttle_reasons_ = 0;
  return json;
}

}  // namespace flashmoe::cli
