#include "api/timed_calls.hpp"

#include <chrono>
#include <memory>
#include <thread>

#include "api/backend.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

class RepeatedForward final : public PreparedCalls {
 public:
  RepeatedForward(RankLayer& layer, const LayerCall& call, const Repetition& repetition)
      : layer_(layer), call_(call), repetition_(repetition) {}

  TimedCalls run(int num_calls) override {
    TimedCalls calls;
    for (int i = 0; i < num_calls; ++i) {
      if (i == num_calls - 1) {
        std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(repetition_.hold_last_us));
      }
      calls.stats = layer_.forward(call_, repetition_.deadline_seconds);
      calls.us.push_back(calls.stats.phases.wall_us);
    }
    return calls;
  }

 private:
  RankLayer& layer_;
  LayerCall call_;
  Repetition repetition_;
};

}  // namespace

void RankLayer::enqueue(const LayerCall&, const StreamCall&, double) {
  throw InvalidArgument("calls on a stream need backend cuda: use forward(), or another backend");
}

std::unique_ptr<PreparedCalls> RankLayer::prepare_calls(const LayerCall& call, const Repetition& repetition) {
  if (repetition.replay == Replay::graph) {
    throw InvalidArgument("replay (graph) needs backend cuda: use eager, or another backend");
  }
  return std::make_unique<RepeatedForward>(*this, call, repetition);
}

}  // namespace flashmoe
