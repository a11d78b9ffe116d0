#include "cpu/interleaver.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/counter_rng.hpp"
#include "cpu/rank_program.hpp"

namespace flashmoe::cpu {

namespace {

/// Turns of a run after which it counts as one that will never end.
constexpr std::uint64_t kMostSteps = 50'000'000;
/// Turns between two draws of who is fast, slow or starved.
constexpr std::uint64_t kPhaseTurns = 300;

/// Chances, in 1 / 256, that something picked gets its turn.
constexpr int kFull = 256;

}  // namespace

/// One rank between and inside calls.
struct Interleaver::Rank {
  std::unique_ptr<RankContext> context;
  std::vector<Engine> engines;
  Call call;
  std::unique_ptr<RankProgram<DelayedFabric>> program;  ///< null between calls
  std::size_t num_entered = 0;                          ///< calls of this run
  Traffic traffic;

  bool finished() const {
    for (int actor = 0; actor < program->num_actors(); ++actor) {
      if (program->status(actor) != Step::finished) return false;
    }
    return true;
  }

  void leave() {
    const Traffic sent = program->traffic();
    traffic.payload_bytes += sent.payload_bytes;
    traffic.overhead_bytes += sent.overhead_bytes;
    program.reset();
    finish_epoch(call);
  }
};

/// The order of one run.
class Interleaver::Turns {
 public:
  Turns(Interleaver& group, const std::vector<std::vector<CallInput>>& calls, std::uint64_t seed)
      : group_(group),
        calls_(calls),
        rng_(seed, 1),
        network_(group.heap_->bases(), static_cast<int>(group.ranks_.size())),
        channel_chance_(static_cast<std::size_t>(network_.num_channels())),
        rank_chance_(group.ranks_.size()) {
    for (std::size_t rank = 0; rank < group.ranks_.size(); ++rank) {
      const int num_actors = RankProgram<DelayedFabric>::num_actors(group.ranks_[rank]->context->options().roster);
      for (int actor = 0; actor < num_actors; ++actor) actors_.push_back({rank, actor, 0});
      group.ranks_[rank]->num_entered = 0;
      group.ranks_[rank]->traffic = {};
    }
  }

  InterleavedRun run() {
    InterleavedRun result;
    const auto patience = 3 * actors_.size();
    while (!failed_ && num_steps_ < kMostSteps) {
      if (num_turns_++ % kPhaseTurns == 0) draw_phase();
      if (take_turn()) {
        idle_turns_ = 0;
      } else if (++idle_turns_ > patience && !move_anything()) {
        break;
      }
    }
    if (num_steps_ >= kMostSteps) {
      result.waits = fmt::format("stopped after {} turns, which need not mean that nothing moved\n", kMostSteps);
    }
    result.finished = !failed_ && network_.empty();
    result.num_steps = num_steps_;
    result.trace = trace_;
    for (std::size_t rank = 0; rank < group_.ranks_.size(); ++rank) {
      Rank& it = *group_.ranks_[rank];
      result.finished = result.finished && it.program == nullptr && it.num_entered == calls_[rank].size();
      result.stalls.push_back(it.program != nullptr ? it.program->stall() : Stall{});
      result.traffic.push_back(it.traffic);
      if (it.program != nullptr) result.waits += describe_waits(rank);
      it.program.reset();
    }
    return result;
  }

 private:
  struct ActorTurn {
    std::size_t rank;
    int actor;
    int chance;
  };

  std::uint64_t below(std::uint64_t bound) { return rng_.below(num_draws_++, bound); }
  bool happens(int chance) { return static_cast<int>(below(kFull)) < chance; }
  void note(std::uint64_t what, std::uint64_t result) { trace_ = mix64(trace_ * 31 + what * 8 + result + 1); }

  /// Most at full speed, some slow, few starved.
  int draw_chance() {
    constexpr int chances[] = {kFull, kFull, kFull, kFull, 64, 16, 4, 0};
    return chances[below(std::size(chances))];
  }

  void draw_phase() {
    constexpr int deliveries[] = {4, 32, 96, 160, 230};
    delivery_chance_ = deliveries[below(std::size(deliveries))];
    constexpr int entries[] = {0, 2, 32, kFull};
    entry_chance_ = entries[below(std::size(entries))];
    for (int& chance : rank_chance_) chance = draw_chance();
    for (int& chance : channel_chance_) chance = draw_chance();
    for (ActorTurn& turn : actors_) turn.chance = draw_chance();
  }

  /// One random pick; false when it had no turn or nothing to do.
  bool take_turn() {
    if (!network_.empty() && happens(delivery_chance_)) {
      const int channel = static_cast<int>(below(channel_chance_.size()));
      return happens(channel_chance_[static_cast<std::size_t>(channel)]) && deliver(channel);
    }
    const ActorTurn& turn = actors_[below(actors_.size())];
    if (!happens(rank_chance_[turn.rank]) || !happens(turn.chance)) return false;
    if (group_.ranks_[turn.rank]->program == nullptr) return happens(entry_chance_) && enter(turn.rank);
    return step(turn);
  }

  /// Everything gets its turn, in a random rotation, until something moves; false when nothing can.
  bool move_anything() {
    // As many as an actor may be idle for before it gets on: the scheduler flushes after some, and a processor that looks for its
    // task passes so many batches a look, at most all of the ring.
    constexpr std::uint32_t kBatchesALook = 8;
    const auto looks = static_cast<int>(task_ring_capacity(group_.heap_->layout().geometry) / kBatchesALook);
    const int rounds = group_.ranks_.front()->context->options().flush_after_idle_steps + 2 + looks;
    for (int round = 0; round < rounds; ++round) {
      const std::size_t first = below(actors_.size());
      for (std::size_t i = 0; i < actors_.size(); ++i) {
        const ActorTurn& turn = actors_[(first + i) % actors_.size()];
        if (group_.ranks_[turn.rank]->program != nullptr && step(turn)) return true;
        if (failed_) return false;
      }
    }
    const std::size_t first_channel = below(channel_chance_.size());
    for (std::size_t i = 0; i < channel_chance_.size(); ++i) {
      if (deliver(static_cast<int>((first_channel + i) % channel_chance_.size()))) return true;
    }
    const std::size_t first_rank = below(group_.ranks_.size());
    for (std::size_t i = 0; i < group_.ranks_.size(); ++i) {
      if (enter((first_rank + i) % group_.ranks_.size())) return true;
    }
    return false;
  }

  bool deliver(int channel) {
    const std::size_t choices = network_.num_deliverable(channel);
    if (choices == 0) return false;
    const std::size_t index = below(choices);
    note(static_cast<std::uint64_t>(channel), 5 + index);
    network_.deliver(channel, index);
    return true;
  }

  bool enter(std::size_t rank) {
    Rank& it = *group_.ranks_[rank];
    if (it.program != nullptr || it.num_entered == calls_[rank].size()) return false;
    it.call = make_call(*it.context, group_.problem_, 1, calls_[rank][it.num_entered++]);
    it.program = std::make_unique<RankProgram<DelayedFabric>>(it.call, it.engines, [&](Traffic* traffic) {
      return DelayedFabric(network_, it.call.rank, traffic);
    });
    note(rank, 6);
    return true;
  }

  /// True when the actor did something. The last one to finish leaves the call.
  bool step(const ActorTurn& turn) {
    Rank& it = *group_.ranks_[turn.rank];
    if (it.program->status(turn.actor) == Step::finished) return false;
    const Step result = it.program->step(turn.actor);
    ++num_steps_;
    note(turn.rank * 64 + static_cast<std::uint64_t>(turn.actor), static_cast<std::uint64_t>(result));
    failed_ = failed_ || result == Step::failed;
    if (result == Step::finished && it.finished()) it.leave();
    return result == Step::advanced || result == Step::finished;
  }

  std::string describe_waits(std::size_t rank) {
    RankProgram<DelayedFabric>& program = *group_.ranks_[rank]->program;
    std::string text;
    for (int actor = 0; actor < program.num_actors(); ++actor) {
      const Wait wait = program.wait(actor);
      text += fmt::format("rank {} call {} actor {} ({}): {}", rank, group_.ranks_[rank]->call.epoch, actor,
                          to_string(program.kind(actor)),
                          program.status(actor) == Step::finished
                              ? std::string("finished\n")
                              : fmt::format("{} of rank {}, wanted {}, saw {}\n", to_string(wait.signal), wait.peer,
                                            wait.expected, wait.seen));
    }
    return text;
  }

  Interleaver& group_;
  const std::vector<std::vector<CallInput>>& calls_;
  CounterRng rng_;
  std::uint64_t num_draws_ = 0;
  DelayedNetwork network_;
  std::vector<int> channel_chance_;
  std::vector<int> rank_chance_;
  std::vector<ActorTurn> actors_;
  int delivery_chance_ = kFull / 2;
  int entry_chance_ = kFull;
  std::uint64_t num_turns_ = 0;
  std::uint64_t num_steps_ = 0;
  std::uint64_t trace_ = 0;
  std::size_t idle_turns_ = 0;
  bool failed_ = false;
};

Interleaver::Interleaver(const Problem& problem, const Geometry& geometry, std::shared_ptr<const ExpertSource> experts,
                         const std::vector<Roster>& rosters, int flush_after_idle_steps)
    : problem_(problem), experts_(std::move(experts)), heap_(std::make_shared<Heap>(geometry)) {
  for (int rank = 0; rank < geometry.num_ranks; ++rank) {
    auto it = std::make_unique<Rank>();
    it->context = std::make_unique<RankContext>(
        heap_, rank,
        RankOptions{.roster = rosters.at(static_cast<std::size_t>(rank)), .flush_after_idle_steps = flush_after_idle_steps});
    for (int i = 0; i < it->context->options().roster.num_processors; ++i) {
      it->engines.emplace_back(geometry, expert_math(problem_), *experts_);
    }
    ranks_.push_back(std::move(it));
  }
}
Interleaver::~Interleaver() = default;

InterleavedRun Interleaver::run(const std::vector<std::vector<CallInput>>& calls, std::uint64_t seed) {
  return Turns(*this, calls, seed).run();
}

const RankContext& Interleaver::context(int rank) const { return *ranks_[static_cast<std::size_t>(rank)]->context; }

}  // namespace flashmoe::cpu
