#include "cuda/repeated_launch.hpp"

#include <cstdint>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/hold.hpp"
#include "cuda/memory.hpp"

namespace flashmoe::cuda_backend {

RepeatedLaunch::RepeatedLaunch(LaunchedCall call, const Repetition& repetition)
    : call_(std::move(call)),
      hold_last_us_(repetition.hold_last_us),
      events_(static_cast<std::size_t>(repetition.most_calls) + 1) {
  const DeviceGuard guard(call_.context->device());
  for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  if (repetition.replay == Replay::graph) capture();
  if (hold_last_us_ > 0) {  // the kernel is loaded now: later it would wait for the other ranks' kernels
    hold(0);
    check(cudaStreamSynchronize(call_.stream), "cudaStreamSynchronize");
  }
}

RepeatedLaunch::~RepeatedLaunch() {
  const ReleaseGuard guard(call_.context->device());
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void RepeatedLaunch::capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(call_.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  call_.layer->forward(call_.input, call_.stream);
  check(cudaStreamEndCapture(call_.stream, &graph), "cudaStreamEndCapture");
  const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "cudaGraphInstantiate");
  check(cudaGraphUpload(graph_, call_.stream), "cudaGraphUpload");
  check(cudaStreamSynchronize(call_.stream), "cudaStreamSynchronize");
}

void RepeatedLaunch::launch() {
  if (graph_ == nullptr) {
    call_.layer->forward(call_.input, call_.stream);
  } else {
    check(cudaGraphLaunch(graph_, call_.stream), "cudaGraphLaunch");
  }
}

void RepeatedLaunch::hold(double us) {
  check(launch_hold(static_cast<std::uint64_t>(us * 1e3), call_.stream), "launch_hold");
}

TimedCalls RepeatedLaunch::run(int num_calls) {
  const DeviceGuard guard(call_.context->device());
  check(cudaStreamWaitEvent(call_.stream, call_.context->last_launch(), 0), "cudaStreamWaitEvent");
  const KernelState before = call_.context->state(call_.stream);
  check(cudaEventRecord(events_.front(), call_.stream), "cudaEventRecord");
  for (int i = 1; i <= num_calls; ++i) {
    if (hold_last_us_ > 0 && i == num_calls) hold(hold_last_us_);
    launch();
    check(cudaEventRecord(events_[static_cast<std::size_t>(i)], call_.stream), "cudaEventRecord");
  }
  check(cudaStreamSynchronize(call_.stream), "cudaStreamSynchronize");
  if (call_.after_run) call_.after_run();  // of a call that failed, too
  call_.layer->status();
  const KernelState after = call_.context->state(call_.stream);

  TimedCalls calls;
  for (int i = 0; i < num_calls; ++i) {
    const auto index = static_cast<std::size_t>(i);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[index], events_[index + 1]), "cudaEventElapsedTime");
    calls.us.push_back(1e3 * static_cast<double>(ms));
  }
  const CallPlan plan = call_.layer->plan(call_.input.max_tokens);
  const auto count = static_cast<std::uint64_t>(num_calls);
  calls.stats = {.wire_form = plan.wire_form,
                 .result_form = plan.result_form,
                 .epoch = call_.context->outcome().finished_epochs - 1,
                 .wire_bytes = (after.payload_bytes - before.payload_bytes) / count,
                 .wire_overhead_bytes = (after.overhead_bytes - before.overhead_bytes) / count,
                 .kernel_launches = 1,
                 .phases = {}};
  calls.device = call_.context->device();
  if (call_.host_y != nullptr && call_.y_bytes > 0) {
    check(cudaMemcpy(call_.host_y, call_.input.y.data, call_.y_bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  return calls;
}

}  // namespace flashmoe::cuda_backend
