// Counters that publish memory: signal only by ADD, wait only by >=. One source for the GPU and the emulator.
#pragma once

#include <cuda/atomic>

#include <cstddef>
#include <cstdint>

#include "core/annotate.hpp"

namespace flashmoe {

/// Who must see a counter: another actor of this rank's GPU, or any rank.
enum class Scope : std::uint8_t { device, system };

namespace detail {
template <Scope scope, class T>
using AtomicRef =
    cuda::atomic_ref<T, scope == Scope::system ? cuda::thread_scope_system : cuda::thread_scope_device>;
}

/// Current value of a counter.
/// Memory ordering: acquire. Everything its adders did before the adds that led to this value is visible after it.
template <Scope scope, class T>
FLASHMOE_HD inline T observe(const T* counter) {
  return detail::AtomicRef<scope, T>(*const_cast<T*>(counter)).load(cuda::memory_order_acquire);
}

/// Value of a counter as a hint only; Scope::system where other ranks write it. Memory ordering: relaxed; observe it before relying
/// on what it says.
template <Scope scope = Scope::device, class T>
FLASHMOE_HD inline T peek(const T* counter) {
  return detail::AtomicRef<scope, T>(*const_cast<T*>(counter)).load(cuda::memory_order_relaxed);
}

/// Adds to a counter.
/// Memory ordering: release. Covers this thread's earlier writes and all that they were ordered after.
template <Scope scope, class T>
FLASHMOE_HD inline void add(T* counter, T amount) {
  detail::AtomicRef<scope, T>(*counter).fetch_add(amount, cuda::memory_order_release);
}

/// Adds and returns the value before: the one whose add completes a count has seen the work of all the others.
/// Memory ordering: acquire and release, within the rank.
template <class T>
FLASHMOE_HD inline T join(T* counter, T amount) {
  return detail::AtomicRef<Scope::device, T>(*counter).fetch_add(amount, cuda::memory_order_acq_rel);
}

/// Adds to a count whose readers wait for another signal, or for the group to sync; or after fence_release(). Memory ordering:
/// relaxed.
template <Scope scope = Scope::device, class T>
FLASHMOE_HD inline void tally(T* counter, T amount) {
  detail::AtomicRef<scope, T>(*counter).fetch_add(amount, cuda::memory_order_relaxed);
}

/// Makes of all tally() of this thread that follow what add() is, with one fence. GPU alone; elsewhere publish_fenced() needs none,
/// and thread sanitizers know none.
template <Scope scope>
FLASHMOE_HD inline void fence_release() {
#if defined(__CUDA_ARCH__)
  cuda::atomic_thread_fence(cuda::memory_order_release,
                            scope == Scope::system ? cuda::thread_scope_system : cuda::thread_scope_device);
#endif
}

/// Takes the next `count` of numbers that several actors share out, within the rank; returns the first. Memory ordering:
/// relaxed; a number says nothing about memory.
template <class T>
FLASHMOE_HD inline T draw(T* counter, T count = 1) {
  return detail::AtomicRef<Scope::device, T>(*counter).fetch_add(count, cuda::memory_order_relaxed);
}

/// Replaces the value by next(value) in one step, within the rank, and returns the value before. Memory ordering: as draw().
template <class T, class Next>
FLASHMOE_HD inline T draw(T* counter, const Next& next) {
  detail::AtomicRef<Scope::device, T> shared(*counter);
  T before = shared.load(cuda::memory_order_relaxed);
  while (!shared.compare_exchange_weak(before, next(before), cuda::memory_order_relaxed)) {
  }
  return before;
}

/// Replaces the value of a counter that one actor owns; others observe it.
/// Memory ordering: release, within the rank.
template <class T>
FLASHMOE_HD inline void publish(T* counter, T value) {
  detail::AtomicRef<Scope::device, T>(*counter).store(value, cuda::memory_order_release);
}

/// Replaces the value of a counter that one actor owns and that says nothing about memory. Memory ordering: relaxed.
template <class T>
FLASHMOE_HD inline void set(T* counter, T value) {
  detail::AtomicRef<Scope::device, T>(*counter).store(value, cuda::memory_order_relaxed);
}

/// publish() after fence_release() of this thread: a GPU need not fence again.
template <class T>
FLASHMOE_HD inline void publish_fenced(T* counter, T value) {
#if defined(__CUDA_ARCH__)
  set(counter, value);
#else
  publish(counter, value);
#endif
}

/// publish() of several counters, with one fence on the GPU. Null pointers are passed over.
template <int count, class T>
FLASHMOE_HD inline void publish_all(T* const (&counters)[count], const T (&values)[count]) {
#if defined(__CUDA_ARCH__)
  cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
  FLASHMOE_UNROLL
  for (int i = 0; i < count; ++i) {
    if (counters[i] != nullptr) {
      detail::AtomicRef<Scope::device, T>(*counters[i]).store(values[i], cuda::memory_order_relaxed);
    }
  }
#else
  for (int i = 0; i < count; ++i) {
    if (counters[i] != nullptr) publish(counters[i], values[i]);
  }
#endif
}

}  // namespace flashmoe
