// What nvidia-smi says about this machine's GPUs: their name and driver, and clock, temperature and throttling while
// something is measured.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

namespace flashmoe::cli {

struct GpuIdentity {
  std::string card;
  std::string driver;
};

/// Of the first GPU; none where nvidia-smi is missing or says nothing.
std::optional<GpuIdentity> identify_gpu();

/// The first line that a command prints, without its end; empty when it prints none.
std::string first_line_of(const std::string& command);

/// Watches until it is destroyed, a few samples a second.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// {"sm_clock_mhz": [low, high], "temperature_c": [low, high], "throttle_reasons": "0x..."} over all samples since
  /// the last call, reasons or-ed; null without a sample.
  nlohmann::json take();

 private:
  struct Range {
    double low = 0;
    double high = 0;
    void add(double value, bool first);
  };
  void read_samples();
  void add_sample(const std::string& line);

  int output_ = -1;  // of nvidia-smi
  pid_t process_ = -1;
  std::mutex mutex_;  // of what follows
  int num_samples_ = 0;
  Range clock_mhz_;
  Range temperature_c_;
  unsigned long long throttle_reasons_ = 0;
  std::thread reader_;
};

}  // namespace flashmoe::cli
