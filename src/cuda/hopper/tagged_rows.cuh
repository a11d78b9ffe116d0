// The intermediate of few rows, in packets that say themselves that they are there (TaggedPacket). A down task's loaders need
// no fence, no add and no look at its m-block's counter between the last up tile and its rows. Only of
// m-blocks cut early, as no other has their place in the call; of a place's last call packets have another tag.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "cuda/fabric.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// As a loader warp reads them: it has every other row, of which each lane has a packet a stage.
class TaggedRows {
 public:
  static constexpr int kRowsEach = kTaggedRows / kLoaderWarps;
  static constexpr int kStagePackets = kDeepSteps * kStageElements / TaggedPacket::kElements;
  static_assert(kTaggedRows % kLoaderWarps == 0 && kStagePackets == 32);

  __device__ TaggedRows(const Call& call, const TaskSlot& slot, int warp, int lane)
      : call_(call), slot_(slot), warp_(warp), lane_(lane) {}

  /// The lane's packets of one stage, as far as they have been looked at.
  struct Look {
    uint4 packets[kRowsEach];
    __device__ uint2 data(int row) const { return make_uint2(packets[row].x, packets[row].y); }
  };

  /// Asks for those of stage `stage`. Zeros beyond the last column or row.
  __device__ void look(Look& look, int stage) const {
#pragma unroll
    for (int row = 0; row < kRowsEach; ++row) {
      const std::uint64_t tag = this->tag();
      look.packets[row] = make_uint4(0, 0, static_cast<std::uint32_t>(tag), static_cast<std::uint32_t>(tag >> 32));
      const int packet = stage * kStagePackets + lane_;
      const auto from = static_cast<std::uint32_t>(warp_ + row * kLoaderWarps);
      if (packet >= call_.geometry().intermediate / TaggedPacket::kElements || from >= slot_.num_rows) continue;
      look.packets[row] = load_16(call_.tagged_row(slot_.task.index, from) + packet);
    }
  }

  /// Looks again until all are there, or give_up(): then what is there has to do.
  template <class GiveUp>
  __device__ void await(Look& look, int stage, const GiveUp& give_up) const {
#pragma unroll 1
    while (!are_here(look)) {
      const bool last = give_up();
      if (!last) __nanosleep(kLookPauseNs);
      this->look(look, stage);
      if (last) break;
    }
    WarpGroup::sync();
  }

 private:
  __device__ bool are_here(const Look& look) const {
    bool here = true;
#pragma unroll
    for (const uint4& packet : look.packets) here = here && (packet.z | std::uint64_t{packet.w} << 32) == tag();
    return here;
  }

  /// Read from shared memory each time, as are places: loaders have few registers.
  __device__ std::uint64_t tag() const { return line_tag(call_.generation, call_.epoch); }

  const Call& call_;
  const TaskSlot& slot_;
  int warp_;
  int lane_;
};

}  // namespace flashmoe::cuda_backend::hopper
