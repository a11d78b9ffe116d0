// What one rank's part of one call did: forms, bytes, time.
#pragma once

#include <cstdint>

#include "flashmoe/types.hpp"

namespace flashmoe {

/// Where one rank's time went in one call, us, summed over its threads; `wall_us` is the call's own.
struct PhaseTimes {
  double dispatch_us = 0;
  double subscribe_us = 0;
  double schedule_us = 0;
  double process_us = 0;
  double combine_us = 0;
  double idle_us = 0;
  double wall_us = 0;
};

struct CallStats {
  WireForm wire_form = WireForm::counted;           ///< what the plan chose for this call, never automatic
  ResultForm result_form = ResultForm::per_route;   ///< the same
  std::uint64_t epoch = 0;                          ///< calls this rank finished on the layer's heap before this one
  std::uint64_t wire_bytes = 0;           ///< rows this rank sent to other ranks: tokens and results
  std::uint64_t wire_overhead_bytes = 0;  ///< everything else it sent: lists, ids, tags, padding, headers, counters
  std::uint64_t kernel_launches = 0;      ///< 0 on the CPU
  PhaseTimes phases;
};

}  // namespace flashmoe
