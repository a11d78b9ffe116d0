// Ranks that meet by a Bootstrap, each in a process of its own.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "fabric/bootstrap.hpp"
#include "support/processes.hpp"

namespace flashmoe::test {

inline constexpr double kAmple = 30;   // a deadline that must not pass
inline constexpr double kShort = 0.8;  // one that must

inline void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

class BootstrapTest : public ::testing::Test {
 protected:
  using RankBody = std::function<std::string(fabric::Bootstrap&, const Processes::Say&)>;

  /// Starts a process that joins as `rank` after `delay_ms` and then runs `body`.
  void start(int rank, int num_ranks, double deadline_seconds, const RankBody& body, int delay_ms = 0) {
    processes_.start([=, group = group_](const Processes::Say& say) {
      sleep_ms(delay_ms);
      fabric::Bootstrap bootstrap(group, rank, num_ranks, deadline_seconds);
      return body(bootstrap, say);
    });
  }
  void start_all(int num_ranks, double deadline_seconds, const RankBody& body) {
    for (int rank = 0; rank < num_ranks; ++rank) start(rank, num_ranks, deadline_seconds, body);
  }
  double elapsed_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  static std::string nothing(fabric::Bootstrap&, const Processes::Say&) { return "met"; }
  static std::string meet_again(fabric::Bootstrap& bootstrap, const Processes::Say& say) {
    say("met;");
    bootstrap.barrier();
    return "again";
  }

  /// The socket's name, for those who come without a Bootstrap.
  std::string socket_name() const { return fmt::format("flashmoe/{}/{}", geteuid(), group_); }
  fabric::UniqueFd knock() const {
    while (true) {
      if (std::optional<fabric::UniqueFd> connection = fabric::connect_to(socket_name())) return std::move(*connection);
      sleep_ms(5);
    }
  }

  std::string group_ =
      fmt::format("{}-{:.40}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  Processes processes_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace flashmoe::test
