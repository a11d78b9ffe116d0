#include "cuda/device_trace.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/clock_offset.hpp"
#include "cuda/trace_rows.hpp"

namespace flashmoe::cuda_backend {

DeviceTrace::DeviceTrace(const RankContext& context, std::size_t capacity)
    : context_(context),
      num_rows_(context.num_blocks() * context.trace_rows().total()),
      capacity_(static_cast<std::uint32_t>(capacity)),
      records_(context.device(), static_cast<std::size_t>(num_rows_) * capacity * sizeof(TraceRecord)),
      counts_(context.device(), static_cast<std::size_t>(num_rows_) * sizeof(TraceCount)),
      clock_offset_ns_(clock_offset_ns(context.device())) {}

TraceTarget DeviceTrace::target() const {
  return {.records = records_.as<TraceRecord>(), .counts = counts_.as<TraceCount>(), .capacity = capacity_};
}

void DeviceTrace::fetch(RankTrace& trace, cudaStream_t stream) const {
  const DeviceGuard guard(context_.device());
  std::vector<TraceCount> counts(static_cast<std::size_t>(num_rows_));
  check(cudaMemcpyAsync(counts.data(), counts_.as<void>(), counts.size() * sizeof(TraceCount), cudaMemcpyDeviceToHost,
                        stream),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");

  // One copy, as wide as the longest timeline: thousands of short ones would each cost a launch.
  std::size_t longest = 0;
  for (const TraceCount& count : counts) longest = std::max<std::size_t>(longest, count.num_records);
  std::vector<TraceRecord> records(longest * counts.size());
  if (longest > 0) {
    check(cudaMemcpy2DAsync(records.data(), longest * sizeof(TraceRecord), records_.as<void>(),
                            capacity_ * sizeof(TraceRecord), longest * sizeof(TraceRecord), counts.size(),
                            cudaMemcpyDeviceToHost, stream),
          "cudaMemcpy2DAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  const TraceRows& rows = context_.trace_rows();
  trace.actors.clear();
  for (std::size_t row = 0; row < counts.size(); ++row) {
    if (counts[row].num_records == 0) continue;
    const int block = static_cast<int>(row) / rows.total();
    ActorTrace actor = describe_row(rows, context_.roster(), block, static_cast<int>(row) % rows.total());
    actor.sm = static_cast<int>(counts[row].sm);
    actor.num_dropped = counts[row].num_dropped;
    const auto first = records.begin() + static_cast<std::ptrdiff_t>(row * longest);
    actor.records.assign(first, first + counts[row].num_records);
    for (TraceRecord& record : actor.records) {
      record.begin_ns += static_cast<std::uint64_t>(clock_offset_ns_);
      record.end_ns += static_cast<std::uint64_t>(clock_offset_ns_);
    }
    trace.actors.push_back(std::move(actor));
  }
}

}  // namespace flashmoe::cuda_backend
