// Threads that take turns inside one thread of the host, in an order drawn from a seed: an order that fails is replayed
// by it.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "support/dice.hpp"

namespace flashmoe::on_host {

/// A fiber runs until it lets others run; only between such points does anything else happen. Fibers of a team that can
/// go on do so one after the other, the first before the others, with none of other teams between them: as a warp's
/// threads, which run together, but for what its leader does alone. Whose turn comes is drawn in phases: in each, some
/// teams, or neighbours of them, get hardly any turn while others can go on.
class Fibers {
 public:
  using Body = std::function<void()>;

  /// `most_turns`: a run that takes more is given up. `neighbours`: so many teams in a row are slow together, as a
  /// block's or a rank's.
  Fibers(std::uint64_t seed, std::uint64_t most_turns, std::vector<std::size_t> neighbours);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// `name`: what errors call it. `team`: 0 or the last one's, or the next.
  int spawn(std::string name, std::size_t team, Body body);

  /// Until all have ended. Throws what one of them throws, and std::runtime_error, saying who waits for what, when none
  /// can go on or they take too many turns.
  void run();

  // Called by the fiber that runs:
  int current() const { return current_; }
  /// Other teams may run; then this fiber, before the others of its own.
  void yield();
  /// It may be waiting for others, in a loop of its own: they run if it calls this often.
  void poll() {
    constexpr int kOften = 64;
    if (++num_polls_ % kOften == 0) yield();
  }
  void sleep(std::uint64_t ns);
  /// 0..bound-1.
  int draw(int bound) { return dice_.below(bound); }
  /// As work does that may be short or long.
  void sleep_some() { sleep(static_cast<std::uint64_t>(dice_.pick({1, 5, 100}))); }
  /// Until it is woken. `what`: it waits for, a string that stays.
  void block(const char* what);
  void wake(int fiber);
  /// A clock that goes on with every turn, and skips what all sleep through.
  std::uint64_t now_ns() const { return now_ns_; }

 private:
  struct Fiber;
  struct Sleeper {
    std::uint64_t until;
    int fiber;
    bool operator<(const Sleeper& other) const { return until > other.until; }  // the earliest on top
  };

  void draw_next();
  /// Of the runnable teams.
  std::size_t draw_team();
  void enter(int fiber);
  void leave();
  static void begin();
  std::string waits() const;

  test::Dice dice_;
  std::uint64_t most_turns_;
  std::vector<std::size_t> neighbours_;
  std::size_t slow_together_ = 1;  ///< in this phase
  std::uint64_t phase_ = 0;
  int turns_of_phase_ = 0;  ///< that are left
  std::vector<std::unique_ptr<Fiber>> fibers_;
  struct Team {
    std::vector<int> runnable;
    int yielded = -1;  ///< that must be next
    bool listed = false;
  };
  std::vector<Team> teams_;
  std::vector<std::size_t> runnable_;  ///< teams that have such fibers
  std::vector<int> running_;           ///< of the team whose turn it is, those that are still to run
  std::priority_queue<Sleeper> sleepers_;
  int num_alive_ = 0;
  int current_ = -1;
  int num_polls_ = 0;  ///< of the current fiber in its turn
  std::uint64_t now_ns_ = 0;
  std::jmp_buf scheduler_;
  std::exception_ptr failure_;
};

}  // namespace flashmoe::on_host
