#include "cuda/vmm_heap.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "cuda/check.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

namespace {

/// Runs a step; a CudaError of it says which rank failed at what.
template <class Function>
auto at_step(int rank, const std::string& step, const Function& function) {
  try {
    return function();
  } catch (const CudaError& error) {
    throw CudaError(fmt::format("rank {} could not {}: {}", rank, step, error.what()));
  }
}

}  // namespace

VmmHeap::VmmHeap(const Geometry& geometry, int device, std::unique_ptr<fabric::Bootstrap> meeting,
                 const fabric::AskPeerLink& ask)
    : DeviceHeap(geometry), device_(device), meeting_(std::move(meeting)) {
  try {
    if (meeting_->num_ranks() != geometry.num_ranks) {
      throw InvalidArgument(fmt::format("the heap of {} ranks needs a group of as many, got {}", geometry.num_ranks,
                                        meeting_->num_ranks()));
    }
    const DeviceGuard guard(device_);
    const auto mapped_bytes = at_step(rank(), "prepare its GPU", [&] {
      check(cudaFree(nullptr), "cudaFree");  // the driver's own functions want a context
      return VmmMemory::rounded_bytes(device_, layout_.total_bytes);
    });
    const Card own{.gpu = {.uuid = uuid_of(device_), .device = device_},
                   .heap_bytes = layout_.total_bytes,
                   .mapped_bytes = mapped_bytes,
                   .generation = next_generation()};
    const std::vector<Card> cards = meeting_->allgather_values(own);
    compare(cards);
    require_peer_access(cards, ask);
    share(cards);
    generation_ = static_cast<std::uint16_t>(cards[0].generation);
    meeting_->barrier();  // nobody stores before all are zeroed and mapped
  } catch (const std::exception& error) {
    meeting_->give_up(error.what());
    throw;
  }
}

/// Every rank comes to the same verdict.
void VmmHeap::compare(const std::vector<Card>& cards) const {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].heap_bytes != cards[0].heap_bytes) {
      throw FabricError(fmt::format("the heap of group '{}' has {} bytes on rank 0 and {} on rank {}: build the same layer on "
                                    "all ranks", meeting_->group_id(), cards[0].heap_bytes, cards[rank].heap_bytes, rank));
    }
  }
}

void VmmHeap::require_peer_access(const std::vector<Card>& cards, const fabric::AskPeerLink& ask) {
  std::vector<int> devices;
  std::vector<int> seen;
  for (const Card& card : cards) {
    devices.push_back(card.gpu.device);
    seen.push_back(find_device(card.gpu.uuid));
  }
  fabric::compare_peer_links(*meeting_, devices, seen, ask);
}

void VmmHeap::share(const std::vector<Card>& cards) {
  memory_.resize(cards.size());
  const auto own = static_cast<std::size_t>(rank());
  fabric::UniqueFd shared;
  at_step(rank(), "make its heap", [&] {
    memory_[own] = VmmMemory::create(device_, cards[own].mapped_bytes, shared);
    check(cudaMemsetAsync(memory_[own].data(), 0, cards[own].mapped_bytes, cudaStreamPerThread), "cudaMemsetAsync");
    check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  });
  const std::vector<fabric::UniqueFd> fds = meeting_->exchange_fds(shared.get());
  for (std::size_t peer = 0; peer < cards.size(); ++peer) {
    if (peer == own) continue;
    at_step(rank(), fmt::format("map the heap of rank {}", peer),
            [&] { memory_[peer] = VmmMemory::import(device_, cards[peer].mapped_bytes, fds[peer]); });
  }
  for (const VmmMemory& memory : memory_) bases_.push_back(memory.data());
}

VmmHeap::~VmmHeap() {
  const ReleaseGuard guard(device_);
  if (guard.forked()) return;
  cudaDeviceSynchronize();
  meeting_->leave(kLeaveSeconds);
  memory_.clear();
}

int VmmHeap::device(int rank) const {
  if (rank != this->rank()) {
    throw InvalidArgument(fmt::format("rank {} of group '{}' lives in another process than rank {}: make its layer there", rank,
                                      meeting_->group_id(), this->rank()));
  }
  return device_;
}

}  // namespace flashmoe::cuda_backend
