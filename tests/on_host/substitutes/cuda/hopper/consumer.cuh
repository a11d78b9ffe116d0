// In the place of src/cuda/hopper/consumer.cuh: one thread of the block multiplies, in fp64, what the task slot says.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/activation.hpp"
#include "core/expert_source.hpp"
#include "cpu/fabric.hpp"
#include "cuda/hopper/block.cuh"
#include "cuda/hopper/result_place.cuh"
#include "cuda/reduce.cuh"

namespace flashmoe::cuda_backend::hopper {

/// Of all ranks of the launch.
inline const ExpertSource* experts_on_host = nullptr;

template <DType dtype, bool kPairs>
class Consumer {
  static_assert(dtype == DType::fp64);

 public:
  Consumer(const Call& call, const Fabric& fabric, const WeightsView&, BlockMemory& block, int warp)
      : call_(call), fabric_(fabric), block_(block), warp_(warp) {}

  void run() const {
    for (std::uint32_t number = 0;; ++number) {
      const std::uint32_t index = number % kTaskSlots;
      block_.filled[index].wait(parity_of(number));
      const TaskSlot& slot = block_.slots[index];
      if (slot.task.kind == TaskKind::exit) return;
      if (slot.number != number) throw std::logic_error("a task slot has another task's number");
      block_.located[index].wait(parity_of(number));
      block_.stored[index].wait(parity_of(number));  // of products loaders wait for it
      if (slot.task.kind == TaskKind::reduce) {
        if (warp_ < static_cast<int>(slot.num_rows)) {
          reduce_slot<dtype>(call_, fabric_, slot.task.wave_slot,
                             slot.task.tile * kReduceSlots + static_cast<std::uint32_t>(warp_));
        }
      } else if (warp_ == 0 && WarpGroup::leader()) {
        multiply(slot);
      }
      block_.done[index].arrive();
    }
  }

 private:
  const Geometry& geometry() const { return call_.geometry(); }

  void multiply(const TaskSlot& slot) const {
    on_host::device().fibers().sleep_some();
    if (slot.num_rows < 1 || slot.num_rows > kMostRows) throw std::logic_error("a task slot has no rows, or too many");
    const auto expert = experts_on_host->expert(call_.rank * geometry().num_local_experts + static_cast<int>(slot.local_expert));
    for (int tile = static_cast<int>(slot.task.tile); tile < static_cast<int>(slot.task.tile) + slot.task.num_tiles; ++tile) {
      for (std::uint32_t row = 0; row < slot.num_rows; ++row) {
        if (slot.task.kind == TaskKind::up) {
          up(slot, *expert, tile, row);
        } else {
          down(slot, *expert, tile, row);
        }
      }
    }
  }

  void up(const TaskSlot& slot, const ExpertParameters& expert, int tile, std::uint32_t row) const {
    const Geometry& g = geometry();
    const auto* x = reinterpret_cast<const double*>(slot.rows[row]);
    auto* intermediate = reinterpret_cast<double*>(call_.intermediate_row(slot.task.index, row));
    const double weight = call_.math.weight_on_input ? static_cast<double>(slot.weights[row]) : 1.0;
    const auto sum = [&](int unit) {
      return weight * dot(x, static_cast<const double*>(expert.up) + std::int64_t{unit} * g.hidden, g.hidden) +
             (call_.math.up_bias ? static_cast<double>(expert.up_bias[unit]) : 0.0);
    };
    const int first = first_up_column(g, slot.task, tile);
    const int end = min(first + g.tile.up_columns / (slot.task.half != 0 ? 2 : 1), g.intermediate);
    for (int unit = first; unit < end; ++unit) {
      intermediate[unit] = call_.math.gated ? gate_up(call_.math.activation, sum(unit), sum(g.intermediate + unit),
                                                      call_.math.swiglu_alpha, call_.math.swiglu_limit)
                                            : activate(call_.math.activation, sum(unit));
    }
  }

  void down(const TaskSlot& slot, const ExpertParameters& expert, int tile, std::uint32_t row) const {
    const Geometry& g = geometry();
    const auto* intermediate = reinterpret_cast<const double*>(call_.intermediate_row(slot.task.index, row));
    const int first = tile * g.tile.down_columns;
    std::vector<double> results;
    for (int column = first; column < min(first + g.tile.down_columns, g.hidden); ++column) {
      results.push_back(dot(intermediate, static_cast<const double*>(expert.down) + std::int64_t{column} * g.intermediate,
                            g.intermediate) +
                        (call_.math.down_bias ? static_cast<double>(expert.down_bias[column]) : 0.0));
    }
    if (call_.lined()) {
      cpu::Traffic traffic{};
      const std::uint64_t place = slot.rows[row];
      cpu::Fabric(call_.heap_base, call_.rank, &traffic)
          .put_row_lines(SoloGroup{}, rank_of_place(place),
                         offset_of_place(place) + bytes_of_lines_before(call_, slot.task, tile), results.data(),
                         static_cast<std::int64_t>(results.size()), line_tag(call_.generation, call_.epoch));
    } else {  // a cell, or, pre_reduced, accumulators
      std::copy(results.begin(), results.end(), reinterpret_cast<double*>(slot.rows[row]) + first);
    }
  }

  static double dot(const double* a, const double* b, int count) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

  const Call& call_;
  const Fabric& fabric_;
  BlockMemory& block_;
  int warp_;
};

}  // namespace flashmoe::cuda_backend::hopper
