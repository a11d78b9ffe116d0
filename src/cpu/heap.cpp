#include "cpu/heap.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "flashmoe/error.hpp"

namespace flashmoe::cpu {

namespace {

std::uint16_t next_generation() {
  static std::atomic<std::uint32_t> count{0};
  return static_cast<std::uint16_t>(count.fetch_add(1) % 0xffffu + 1);
}

}  // namespace

Pages::Pages(std::size_t bytes) : bytes_(bytes == 0 ? 1 : bytes) {
  void* pages = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(fmt::format("cannot map {} bytes: use fewer tokens, ranks or waves", bytes_));
  }
  data_ = static_cast<char*>(pages);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Pages::Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Heap::Heap(const Geometry& geometry) : layout_(make_heap_layout(geometry)), generation_(next_generation()) {
  for (int rank = 0; rank < geometry.num_ranks; ++rank) {
    memory_.emplace_back(layout_.total_bytes);
    bases_.push_back(memory_.back().data());
  }
}

void Heap::kill(const Stall& stall) {
  const std::lock_guard lock(mutex_);
  if (!death_) death_ = stall;
}

std::optional<Stall> Heap::death() const {
  const std::lock_guard lock(mutex_);
  return death_;
}

}  // namespace flashmoe::cpu
