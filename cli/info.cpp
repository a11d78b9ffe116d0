#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/layer_factory.hpp"
#include "bench_report.hpp"
#include "commands.hpp"
#include "core/thesis_layout.hpp"
#include "flashmoe/model_config.hpp"
#include "flashmoe/version.hpp"
#include "io/synthetic_experts.hpp"
#include "job.hpp"
#include "machine.hpp"
#include "planner/bound.hpp"
#include "run_report.hpp"
#include "table.hpp"

namespace flashmoe::cli {

namespace {

nlohmann::json machine_json(const Machine& machine) {
  return {{"processor", machine.processor},
          {"num_cores", machine.num_cores},
          {"memory_bytes", machine.memory_bytes},
          {"available_bytes", machine.available_bytes}};
}

std::string machine_text(const Machine& machine) {
  return fmt::format("machine: {}, {} cores, {} of {} memory available\n", machine.processor, machine.num_cores,
                     readable_bytes(machine.available_bytes), readable_bytes(machine.memory_bytes));
}

nlohmann::json presets_json() {
  nlohmann::json presets = nlohmann::json::array();
  for (const ModelConfig& model : model_presets()) {
    presets.push_back({{"name", model.name},
                       {"hidden", model.hidden},
                       {"intermediate", model.intermediate},
                       {"num_experts", model.num_experts},
                       {"top_k", model.top_k},
                       {"activation", to_string(model.activation)},
                       {"router", to_string(model.router.function)},
                       {"shared_intermediate", model.shared_intermediate}});
  }
  return presets;
}

std::string presets_text() {
  Table table({"preset", "hidden", "intermediate", "experts", "top k", "activation", "router"});
  for (const ModelConfig& model : model_presets()) {
    table.add({model.name, fmt::format("{}", model.hidden), fmt::format("{}", model.intermediate),
               fmt::format("{}", model.num_experts), fmt::format("{}", model.top_k),
               std::string(to_string(model.activation)), std::string(to_string(model.router.function))});
  }
  return table.text();
}

/// Of a rank when all have the most tokens that one has, spread evenly over the experts.
RankBound balanced_bound(const Problem& problem) {
  return rank_bound(problem, expected_work(problem, problem.max_tokens), BoundRates::h100(problem.dtype));
}

nlohmann::json layer_json(const Job& job, const LayerInfo& info) {
  nlohmann::json regions = nlohmann::json::array();
  for (const HeapRegionInfo& region : info.heap_regions) {
    regions.push_back({{"name", region.name}, {"offset_bytes", region.offset_bytes}, {"bytes", region.bytes}});
  }
  const RankBound bound = balanced_bound(job.problem);
  return {{"layer", job.layer_name},
          {"problem", to_json(job.problem)},
          {"backend", to_string(job.group.backend)},
          {"bound_us", bound.us()},
          {"bound_limiter", bound.limiter()},
          {"bound", to_json(bound)},
          {"engine", info.engine},
          {"plan", info.plan},
          {"wire_form", to_string(info.wire_form)},
          {"result_form", to_string(info.result_form)},
          {"wave_tokens", info.wave_tokens},
          {"wave_ring", info.wave_ring},
          {"lined_tokens", info.lined_tokens},
          {"num_ranks", job.problem.num_ranks},
          {"tokens_per_rank", job.tokens_per_rank},
          {"dtype", to_string(job.problem.dtype)},
          {"weight_bytes_per_rank", expert_bytes(job.problem) * static_cast<std::size_t>(job.problem.num_local_experts())},
          {"heap_bytes", info.heap_bytes},
          {"heap_regions", regions},
          {"local_bytes", info.local_bytes},
          {"thesis_layout_bytes", thesis_layout(job.problem).size_l_bytes},
          {"thesis_layout_capacity", thesis_layout(job.problem).capacity}};
}

std::string layer_text(const Job& job, const LayerInfo& info) {
  const Problem& problem = job.problem;
  std::string text = fmt::format("layer: {}: {}\n", job.layer_name, to_string(problem));
  text += fmt::format("backend {}, engine {}: {}\n", to_string(job.group.backend), info.engine, info.plan);
  text += fmt::format("weights of one rank: {}\n\nsymmetric heap of one rank:\n",
                      readable_bytes(expert_bytes(problem) * static_cast<std::size_t>(problem.num_local_experts())));
  Table table({"region", "offset", "bytes", ""});
  for (const HeapRegionInfo& region : info.heap_regions) {
    table.add({region.name, fmt::format("{}", region.offset_bytes), fmt::format("{}", region.bytes),
               readable_bytes(region.bytes)});
  }
  table.add({"all", "", fmt::format("{}", info.heap_bytes), readable_bytes(info.heap_bytes)});
  text += table.text();
  const ThesisLayout thesis = thesis_layout(problem);
  text += fmt::format("\nscratch memory of one rank: {}\n", readable_bytes(info.local_bytes));
  text += fmt::format("the layout of the FlashDMoE thesis for as many tokens, capacity {} rows an expert and rank: {}\n",
                      thesis.capacity, readable_bytes(static_cast<std::uint64_t>(thesis.size_l_bytes)));
  const RankBound bound = balanced_bound(problem);
  text += fmt::format("lower bound with balanced routing, one H100 a rank: {:.1f} us, the largest of compute {:.1f}, hbm {:.1f} "
                      "and wire {:.1f}\n", bound.us(), bound.compute_us, bound.hbm_us, bound.wire_us);
  return text;
}

}  // namespace

ExitCode info(const Options& options) {
  const Machine machine = this_machine();
  nlohmann::json json{{"command", "info"}, {"version", version()}, {"machine", machine_json(machine)}};
  std::string text = fmt::format("flashmoe {}\n", version()) + machine_text(machine);
  if (options.names_a_layer()) {
    const Job job = make_job(options, machine.num_cores);
    const LayerInfo info = LayerFactory::plan(Group::local(job.problem.num_ranks, job.group), job.problem);
    json.update(layer_json(job, info));
    text += layer_text(job, info);
  } else {
    json["presets"] = presets_json();
    text += '\n' + presets_text();
  }
  print(options.json ? json.dump() + '\n' : text);
  return kRight;
}

}  // namespace flashmoe::cli
