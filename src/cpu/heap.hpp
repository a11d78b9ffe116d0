// Memory the ranks of one process share: every rank's symmetric heap, and what the emulator knows about all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "actors/step.hpp"
#include "core/heap_layout.hpp"

namespace flashmoe::cpu {

/// Zeroed memory at a page boundary. Pages cost nothing until somebody writes them. Throws Error when there is none.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  Pages& operator=(Pages&&) = delete;
  char* data() const { return data_; }

 private:
  char* data_;
  std::size_t bytes_;
};

/// Heaps of all ranks of a group. Layers of one geometry share them; calls on one heap never overlap.
class Heap {
 public:
  explicit Heap(const Geometry& geometry);

  const HeapLayout& layout() const { return layout_; }
  char* const* bases() const { return bases_.data(); }
  std::uint16_t generation() const { return generation_; }

  /// Grows whenever any rank's actors do something: a deadline counts only time in which nobody did.
  std::atomic<std::uint64_t>& progress() { return progress_; }

  /// A heap is dead after an abort; later calls fail with the first record.
  void kill(const Stall& stall);
  std::optional<Stall> death() const;

 private:
  HeapLayout layout_;
  std::vector<Pages> memory_;
  std::vector<char*> bases_;
  std::uint16_t generation_;
  std::atomic<std::uint64_t> progress_{0};
  mutable std::mutex mutex_;
  std::optional<Stall> death_;
};

}  // namespace flashmoe::cpu
