// A call launched again and again on one stream, by itself or as a captured graph, and timed by events.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "api/timed_calls.hpp"
#include "cuda/layer.hpp"

namespace flashmoe::cuda_backend {

/// What is launched, and where its results go afterwards.
struct LaunchedCall {
  std::shared_ptr<RankContext> context;
  Layer* layer = nullptr;  ///< outlives the launches
  CallInput input;         ///< in device memory
  cudaStream_t stream = nullptr;
  void* host_y = nullptr;  ///< null: y stays where it is
  std::size_t y_bytes = 0;
  std::function<void()> after_run;  ///< when the calls of a run have ended; may be empty
};

/// Makes everything that allocates before the first launch: a kernel of another rank may wait for this rank's on the
/// same GPU. A call's time is that between two events on the stream, so a host that keeps up is not part of it.
class RepeatedLaunch final : public PreparedCalls {
 public:
  /// The repetition's deadline is the call's own. Throws CudaError.
  RepeatedLaunch(LaunchedCall call, const Repetition& repetition);
  ~RepeatedLaunch() override;
  RepeatedLaunch(const RepeatedLaunch&) = delete;
  RepeatedLaunch& operator=(const RepeatedLaunch&) = delete;

  TimedCalls run(int num_calls) override;

 private:
  void capture();
  void launch();
  void hold(double us);

  LaunchedCall call_;
  double hold_last_us_;
  cudaGraphExec_t graph_ = nullptr;  // null: eager
  std::vector<cudaEvent_t> events_;  // [most_calls + 1]
};

}  // namespace flashmoe::cuda_backend
