#include "api/process_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "api/checks.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"

namespace flashmoe {

namespace {

/// For a heap's meeting: its ranks have just met for the layer.
constexpr double kHeapMeetingSeconds = 30.0;

const std::string& checked(const std::string& group_id) {
  check_group_id(group_id);
  return group_id;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

ProcessGroup::ProcessGroup(const ProcessRank& place, const GroupOptions& options,
                           const std::function<std::unique_ptr<Backend>()>& make)
    : GroupState(place.num_ranks, options),
      place_(place),
      meeting_(checked(place.group_id), place.rank, place.num_ranks, options.meeting_seconds) {
  try {
    backend_ = make();
    compare_versions();
    compare_gpus();
  } catch (const std::exception& error) {
    meeting_.give_up(error.what());
    throw;
  }
}

void ProcessGroup::compare_versions() {
  const auto versions = meeting_.allgather(bytes_of(version()));
  for (std::size_t rank = 1; rank < versions.size(); ++rank) {
    if (versions[rank] == versions[0]) continue;
    throw FabricError(fmt::format("group '{}' has flashmoe {} on rank 0 and {} on rank {}: install one version for all ranks",
                                  place_.group_id, text_of(versions[0]), text_of(versions[rank]), rank));
  }
}

void ProcessGroup::compare_gpus() {
  const fabric::RankGpu own{.uuid = backend_->gpu_uuid(place_.rank), .device = place_.device};
  fabric::require_own_gpus(place_.group_id, meeting_.allgather_values(own));
}

void ProcessGroup::require_rank(int rank) const {
  if (rank == place_.rank) return;
  throw InvalidArgument(fmt::format("rank ({}) must be {}, that of this process in group '{}': create the layers of other "
                                    "ranks in their processes", rank, place_.rank, place_.group_id));
}

GroupState::CreatedLayer ProcessGroup::create_layer(int rank, const Problem& problem, const RankWeights& weights) {
  const std::lock_guard lock(mutex_);
  const Geometry geometry = plan_geometry(problem, backend_->engine_traits(problem));
  FoundHeap found = find_heap(geometry);
  const std::vector<Wish> wishes = meeting_.allgather_values(Wish{.problem = problem, .heap_index = found.index});
  const std::uint64_t layer_id = num_layers_ + 1;
  for (std::size_t other = 1; other < wishes.size(); ++other) {
    require_same(layer_id, wishes[0].problem, 0, wishes[other].problem, static_cast<int>(other));
  }
  const bool all_have_it = std::all_of(wishes.begin(), wishes.end(), [&](const Wish& wish) {
    return wish.heap_index != 0 && wish.heap_index == wishes[0].heap_index;
  });

  CreatedLayer created;
  std::exception_ptr error;
  std::string reason;
  try {
    created.heap = all_have_it ? std::move(found.heap) : make_heap(geometry);
    created.layer = created.heap->make_layer(rank, problem, weights, layer_id);
  } catch (const std::exception& caught) {
    error = std::current_exception();
    reason = caught.what();
  }
  const auto reasons = meeting_.allgather(bytes_of(reason));
  if (error) std::rethrow_exception(error);
  for (std::size_t other = 0; other < reasons.size(); ++other) {
    if (reasons[other].empty()) continue;
    throw FabricError(fmt::format("layer {} was not created because rank {} could not create its end: {}", layer_id, other,
                                  text_of(reasons[other])));
  }
  num_layers_ = layer_id;
  return created;
}

ProcessGroup::FoundHeap ProcessGroup::find_heap(const Geometry& geometry) {
  std::erase_if(heaps_, [](const KnownHeap& known) { return known.heap.expired(); });
  for (const KnownHeap& known : heaps_) {
    std::shared_ptr<SharedHeap> heap = known.heap.lock();
    if (heap && heap->layout().geometry == geometry && !heap->dead()) return {known.index, std::move(heap)};
  }
  return {};
}

std::shared_ptr<SharedHeap> ProcessGroup::make_heap(const Geometry& geometry) {
  ++num_heaps_;
  auto meeting = std::make_unique<fabric::Bootstrap>(fmt::format("{}.{}", place_.group_id, num_heaps_), place_.rank,
                                                     place_.num_ranks, kHeapMeetingSeconds);
  std::shared_ptr<SharedHeap> heap = backend_->make_heap(geometry, std::move(meeting));
  heaps_.push_back({num_heaps_, heap});
  return heap;
}

}  // namespace flashmoe
