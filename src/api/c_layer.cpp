// Groups and layers of the C interface.
#include <fmt/format.h>

#include <utility>

#include "api/c_abi.hpp"
#include "api/c_structs.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/layer.hpp"

struct flashmoe_group {
  flashmoe::Group group;
};

struct flashmoe_layer {
  flashmoe::Layer layer;
};

namespace flashmoe {

namespace {

flashmoe_call_stats stats_to_c(const CallStats& stats) {
  return {.struct_size = sizeof(flashmoe_call_stats),
          .wire_form = static_cast<int>(stats.wire_form),
          .result_form = static_cast<int>(stats.result_form),
          .epoch = stats.epoch,
          .wire_bytes = stats.wire_bytes,
          .wire_overhead_bytes = stats.wire_overhead_bytes,
          .kernel_launches = stats.kernel_launches,
          .dispatch_us = stats.phases.dispatch_us,
          .subscribe_us = stats.phases.subscribe_us,
          .schedule_us = stats.phases.schedule_us,
          .process_us = stats.phases.process_us,
          .combine_us = stats.phases.combine_us,
          .idle_us = stats.phases.idle_us,
          .wall_us = stats.phases.wall_us};
}

flashmoe_layer_info info_to_c(const LayerInfo& info) {
  return {.struct_size = sizeof(flashmoe_layer_info),
          .engine = info.engine.c_str(),
          .plan = info.plan.c_str(),
          .wire_form = static_cast<int>(info.wire_form),
          .result_form = static_cast<int>(info.result_form),
          .wave_tokens = info.wave_tokens,
          .lined_tokens = info.lined_tokens,
          .wave_ring = info.wave_ring,
          .heap_bytes = info.heap_bytes,
          .local_bytes = info.local_bytes,
          .num_heap_regions = info.heap_regions.size(),
          .device = info.device};
}

/// A call that blocks takes every row of x and has a stream of its own.
void refuse_stream_call(const flashmoe_call& call) {
  const char* name = call.gpu_tokens != nullptr ? "gpu_tokens" : call.stream != nullptr ? "stream" : nullptr;
  if (name == nullptr) return;
  throw InvalidArgument(
      fmt::format("{} of the call must be NULL in flashmoe_layer_forward(), which blocks and takes all "
                  "num_tokens rows: call flashmoe_layer_enqueue(), or leave it NULL",
                  name));
}

}  // namespace

}  // namespace flashmoe

extern "C" {

void flashmoe_group_options_init_sized(flashmoe_group_options* options, size_t struct_size) {
  flashmoe::init_struct(options, struct_size, flashmoe::to_c(flashmoe::GroupOptions{}));
}

flashmoe_status flashmoe_group_create_local(int32_t num_ranks, const flashmoe_group_options* options,
                                            flashmoe_group** group) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("group", group);
    *group = new flashmoe_group{flashmoe::Group::local(num_ranks, flashmoe::read_group_options(options))};
  });
}

flashmoe_status flashmoe_group_join(const char* group_id, int32_t rank, int32_t num_ranks, int32_t device,
                                    const flashmoe_group_options* options, flashmoe_group** group) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("group_id", group_id);
    flashmoe::require_pointer("group", group);
    *group = new flashmoe_group{
        flashmoe::Group::join({.group_id = group_id, .rank = rank, .num_ranks = num_ranks, .device = device},
                              flashmoe::read_group_options(options))};
  });
}

void flashmoe_group_destroy(flashmoe_group* group) { delete group; }

flashmoe_status flashmoe_layer_create(const flashmoe_group* group, int32_t rank, const flashmoe_problem* problem,
                                      const flashmoe_weights* weights, double deadline_seconds, flashmoe_layer** layer) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("group", group);
    flashmoe::require_pointer("layer", layer);
    *layer = new flashmoe_layer{flashmoe::Layer(group->group, rank, flashmoe::read_problem(problem),
                                                flashmoe::read_weights(weights),
                                                {.deadline_seconds = deadline_seconds})};
  });
}

void flashmoe_layer_destroy(flashmoe_layer* layer) { delete layer; }

flashmoe_status flashmoe_layer_forward(flashmoe_layer* layer, const flashmoe_call* call, flashmoe_call_stats* stats) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("layer", layer);
    const flashmoe_call c = flashmoe::read_struct("call", call, {});
    if (stats != nullptr) flashmoe::check_struct("call_stats", stats);
    flashmoe::refuse_stream_call(c);
    const flashmoe::CallStats result = layer->layer.forward({c.x, c.num_tokens}, {c.topk_ids, c.topk_weights},
                                                            {c.y, c.num_tokens}, c.max_tokens);
    if (stats != nullptr) flashmoe::write_struct("call_stats", stats, flashmoe::stats_to_c(result));
  });
}

flashmoe_status flashmoe_layer_enqueue(flashmoe_layer* layer, const flashmoe_call* call) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("layer", layer);
    const flashmoe_call c = flashmoe::read_struct("call", call, {});
    layer->layer.enqueue({c.x, c.num_tokens}, {c.topk_ids, c.topk_weights}, {c.y, c.num_tokens},
                         {.stream = c.stream, .max_tokens = c.max_tokens, .num_tokens = c.gpu_tokens});
  });
}

flashmoe_status flashmoe_layer_check_calls(const flashmoe_layer* layer) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("layer", layer);
    layer->layer.check_calls();
  });
}

flashmoe_status flashmoe_layer_get_info(const flashmoe_layer* layer, flashmoe_layer_info* info) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("layer", layer);
    flashmoe::write_struct("layer_info", info, flashmoe::info_to_c(layer->layer.info()));
  });
}

flashmoe_status flashmoe_layer_get_heap_region(const flashmoe_layer* layer, size_t index, flashmoe_heap_region* region) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("layer", layer);
    const auto& regions = layer->layer.info().heap_regions;
    if (index >= regions.size()) {
      throw flashmoe::InvalidArgument(fmt::format("index ({}) of the heap region must be in 0..{}: num_heap_regions of the "
                                                  "layer's info says how many there are", index, regions.size() - 1));
    }
    flashmoe::write_struct("heap_region", region,
                           {.struct_size = sizeof(flashmoe_heap_region),
                            .name = regions[index].name.c_str(),
                            .offset_bytes = regions[index].offset_bytes,
                            .bytes = regions[index].bytes});
  });
}

}  // extern "C"
