#include "api/timed_calls.hpp"

#include <memory>

#include "api/backend.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

class RepeatedForward final : public PreparedCalls {
 public:
  RepeatedForward(RankLayer& layer, const LayerCall& call, double deadline_seconds)
      : layer_(layer), call_(call), deadline_seconds_(deadline_seconds) {}

  TimedCalls run(int num_calls) override {
    TimedCalls calls;
    for (int i = 0; i < num_calls; ++i) {
      calls.stats = layer_.forward(call_, deadline_seconds_);
      calls.us.push_back(calls.stats.phases.wall_us);
    }
    return calls;
  }

 private:
  RankLayer& layer_;
  LayerCall call_;
  double deadline_seconds_;
};

}  // namespace

void RankLayer::enqueue(const LayerCall&, const StreamCall&, double) {
  throw InvalidArgument("calls on a stream need backend cuda: use forward(), or another backend");
}

std::unique_ptr<PreparedCalls> RankLayer::prepare_calls(const LayerCall& call, const Repetition& repetition) {
  if (repetition.replay == Replay::graph) {
    throw InvalidArgument("replay (graph) needs backend cuda: use eager, or another backend");
  }
  return std::make_unique<RepeatedForward>(*this, call, repetition.deadline_seconds);
}

}  // namespace flashmoe
