#include "on_host/fibers.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace flashmoe::on_host {

namespace {

constexpr std::size_t kStackBytes = 256 << 10;  // pages cost nothing until they are written

/// Whose fiber begins: makecontext() passes no pointer.
thread_local Fibers* beginning = nullptr;

}  // namespace

struct Fibers::Fiber {
  std::string name;
  std::size_t team;
  Body body;
  void* stack = nullptr;
  std::jmp_buf context;
  bool begun = false;
  bool ended = false;
  const char* waits_for = nullptr;  ///< null: it does not

  ~Fiber() {
    if (stack != nullptr) munmap(stack, kStackBytes);
  }
};

Fibers::Fibers(std::uint64_t seed, std::uint64_t most_turns, std::vector<std::size_t> neighbours)
    : dice_(seed), most_turns_(most_turns), neighbours_(std::move(neighbours)) {
  neighbours_.push_back(1);
}
Fibers::~Fibers() = default;

int Fibers::spawn(std::string name, std::size_t team, Body body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->name = std::move(name);
  fiber->team = team;
  fiber->body = std::move(body);
  fiber->stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fiber->stack == MAP_FAILED) throw std::runtime_error("no memory for a fiber's stack");
  fibers_.push_back(std::move(fiber));
  const int number = static_cast<int>(fibers_.size()) - 1;
  if (team == teams_.size()) teams_.emplace_back();
  ++num_alive_;
  wake(number);
  return number;
}

void Fibers::run() {
  for (std::uint64_t turn = 0; num_alive_ > 0 && !failure_; ++turn) {
    if (turn == most_turns_) throw std::runtime_error(fmt::format("after {} turns:\n{}", turn, waits()));
    if (running_.empty()) draw_next();
    const int fiber = running_.back();
    running_.pop_back();
    enter(fiber);
  }
  if (failure_) std::rethrow_exception(failure_);
}

void Fibers::draw_next() {
  ++now_ns_;
  if (runnable_.empty() && !sleepers_.empty() && sleepers_.top().until > now_ns_) now_ns_ = sleepers_.top().until;
  while (!sleepers_.empty() && sleepers_.top().until <= now_ns_) {
    wake(sleepers_.top().fiber);
    sleepers_.pop();
  }
  if (runnable_.empty()) throw std::runtime_error("none can go on:\n" + waits());
  Team& team = teams_[std::exchange(runnable_[draw_team()], runnable_.back())];
  runnable_.pop_back();
  team.listed = false;
  running_ = std::exchange(team.runnable, {});
  const int first = std::exchange(team.yielded, -1);
  std::sort(running_.begin(), running_.end(),  // the next one last
            [&](int a, int b) { return a == first || b == first ? b == first && a != first : a > b; });
}

std::size_t Fibers::draw_team() {
  constexpr int kTries = 8;
  if (turns_of_phase_-- == 0) {
    turns_of_phase_ = dice_.pick({100, 1000, 10000});
    slow_together_ = neighbours_[static_cast<std::size_t>(dice_.below(static_cast<int>(neighbours_.size())))];
    ++phase_;
  }
  std::size_t drawn = 0;
  for (int i = 0; i < kTries; ++i) {
    drawn = static_cast<std::size_t>(dice_.below(static_cast<int>(runnable_.size())));
    const bool slow = CounterRng(phase_, 7).below(runnable_[drawn] / slow_together_, 3) == 0;
    if (!slow) break;
  }
  return drawn;
}

void Fibers::enter(int fiber) {
  current_ = fiber;
  num_polls_ = 0;
  Fiber& it = *fibers_[static_cast<std::size_t>(fiber)];
  // The jumps leave the signal mask alone, which would take most of the time; only a fiber's first turn needs more.
  if (_setjmp(scheduler_) == 0) {
    if (it.begun) _longjmp(it.context, 1);
    it.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {.ss_sp = it.stack, .ss_flags = 0, .ss_size = kStackBytes};
    context.uc_link = nullptr;
    beginning = this;
    makecontext(&context, &Fibers::begin, 0);
    setcontext(&context);
  }
  current_ = -1;
}

void Fibers::begin() {
  Fibers& fibers = *beginning;
  Fiber& it = *fibers.fibers_[static_cast<std::size_t>(fibers.current_)];
  try {
    it.body();
  } catch (...) {
    fibers.failure_ = std::current_exception();
  }
  it.ended = true;
  --fibers.num_alive_;
  _longjmp(fibers.scheduler_, 1);
}

void Fibers::leave() {
  if (_setjmp(fibers_[static_cast<std::size_t>(current_)]->context) == 0) _longjmp(scheduler_, 1);
}

void Fibers::yield() {
  teams_[fibers_[static_cast<std::size_t>(current_)]->team].yielded = current_;
  for (const int fiber : std::exchange(running_, {})) wake(fiber);
  wake(current_);
  leave();
}

void Fibers::sleep(std::uint64_t ns) {
  sleepers_.push({now_ns_ + ns, current_});
  leave();
}

void Fibers::block(const char* what) {
  Fiber& it = *fibers_[static_cast<std::size_t>(current_)];
  it.waits_for = what;
  leave();
  it.waits_for = nullptr;
}

void Fibers::wake(int fiber) {
  const std::size_t number = fibers_[static_cast<std::size_t>(fiber)]->team;
  Team& team = teams_[number];
  team.runnable.push_back(fiber);
  if (!team.listed) runnable_.push_back(number);
  team.listed = true;
}

std::string Fibers::waits() const {
  constexpr int kMost = 40;
  std::string text;
  int count = 0;
  const char* last = nullptr;
  for (const auto& fiber : fibers_) {
    if (fiber->ended || (fiber->waits_for != nullptr && fiber->waits_for == last)) continue;  // one of each
    last = fiber->waits_for;
    if (++count > kMost) break;
    text += fmt::format("  {}: {}\n", fiber->name, last != nullptr ? last : "runs");
  }
  return text;
}

}  // namespace flashmoe::on_host
