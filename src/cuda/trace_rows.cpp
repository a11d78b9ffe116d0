#include "cuda/trace_rows.hpp"

namespace flashmoe::cuda_backend {

namespace {

/// Of the rank; the first two service warps run the subscriber and the scheduler.
ActorTrace describe_service(int service) {
  if (service == 0) return {.actor = Actor::subscriber};
  if (service == 1) return {.actor = Actor::scheduler};
  return {.actor = Actor::dispatcher, .index = service - 2};
}

}  // namespace

ActorTrace describe_row(const TraceRows& rows, int block, int num_blocks, int row) {
  const int first_service = block * rows.service_warps;
  if (row >= rows.helper(0)) {
    const int num_dispatchers = num_blocks * rows.service_warps - 2;
    return {.actor = Actor::combiner, .index = num_dispatchers + block * rows.helpers + row - rows.helper(0)};
  }
  if (row >= rows.combiner(0)) {
    return {.actor = Actor::combiner, .index = first_service + row - rows.combiner(0) - 2};
  }
  if (row >= rows.service(0)) return describe_service(first_service + row - rows.service(0));
  ActorTrace processor{.actor = Actor::processor, .index = block};
  if (rows.processor_rows == 1) return processor;
  processor.part = row == kForemanRow  ? ProcessorPart::foreman
                   : row == kLoaderRow ? ProcessorPart::loader
                                       : ProcessorPart::consumer;
  if (row >= kFirstConsumerRow) processor.warpgroup = row - kFirstConsumerRow;
  return processor;
}

}  // namespace flashmoe::cuda_backend
