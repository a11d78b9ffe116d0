// What a timeline says in numbers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/rank_trace.hpp"

namespace flashmoe::cli {

/// Why actors wait.
enum class WaitCause : std::uint8_t {
  tokens,    ///< headers, ids, lists or rows of another rank have not come
  ring,      ///< a ring slot is not free again, here or on another rank
  task,      ///< no task is ready
  results,   ///< results of other ranks have not come
  own_rank,  ///< another actor of the rank has not got so far
};
inline constexpr int kNumWaitCauses = 5;
std::string_view to_string(WaitCause cause);
WaitCause cause_of(SignalKind signal);

struct TraceSummary {
  double wall_us = 0;                     ///< first begin to last end over all ranks
  std::map<std::string, double> busy_us;  ///< by role, those with tasks by task; of all ranks together
  /// By cause; of all ranks' actors together. Of a Hopper block's processor each consumer counts, foreman and loader do
  /// not.
  std::array<double, kNumWaitCauses> wait_us{};

  /// Of the time in which a rank's dispatchers or combiners work, the part in which a processor of it works, too: 1
  /// when moving tokens and results is hidden behind computing. Over all ranks; 0 when nothing is moved.
  double overlap_efficiency = 0;

  /// SM utilisation, a processor standing for its SM: as the thesis defines it, the share of the call in which the
  /// processor is there at all (a persistent kernel: until it leaves); the share in which it runs tasks; and that of
  /// its up and down tasks, which is the time of the tensor cores: on a Hopper block the products alone, with waits for
  /// operands, elsewhere the whole tasks.
  double resident_share = 0;
  double busy_share = 0;
  double product_share = 0;

  std::uint64_t num_records = 0;
  std::uint64_t num_dropped = 0;  ///< spans that did not fit; above 0 every other number is of the beginning alone
};

TraceSummary summarise(const std::vector<RankTrace>& ranks);

}  // namespace flashmoe::cli
