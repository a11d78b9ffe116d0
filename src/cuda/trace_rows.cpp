#include "cuda/trace_rows.hpp"

namespace flashmoe::cuda_backend {

namespace {

/// Of the rank; see roster_of().
ActorTrace describe_service(const Roster& roster, int service) {
  if (service < roster.num_subscribers) return {.actor = Actor::subscriber, .index = service};
  if (service == roster.scheduler()) return {.actor = Actor::scheduler};
  return {.actor = Actor::dispatcher, .index = service - roster.first_dispatcher()};
}

}  // namespace

ActorTrace describe_row(const TraceRows& rows, const Roster& roster, int block, int row) {
  const int first_service = block * rows.service_warps;
  if (row >= rows.helper(0)) {
    return {.actor = Actor::combiner, .index = roster.num_dispatchers + block * rows.helpers + row - rows.helper(0)};
  }
  if (row >= rows.combiner(0)) {
    return {.actor = Actor::combiner,
            .index = describe_service(roster, first_service + row - rows.combiner(0)).index};
  }
  if (row >= rows.service(0)) return describe_service(roster, first_service + row - rows.service(0));
  ActorTrace processor{.actor = Actor::processor, .index = block};
  if (rows.processor_rows == 1) return processor;
  processor.part = row == kForemanRow  ? ProcessorPart::foreman
                   : row == kLoaderRow ? ProcessorPart::loader
                                       : ProcessorPart::consumer;
  if (row >= kFirstConsumerRow) processor.warpgroup = row - kFirstConsumerRow;
  return processor;
}

}  // namespace flashmoe::cuda_backend
