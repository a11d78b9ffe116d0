// A group of several host threads, for actors that a GPU runs on a warp: what they share out among their threads is seen here
// without a GPU. Every collective call is a barrier; slow, and seen by the thread sanitizer.
#pragma once

#include <array>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "actors/group.hpp"

namespace flashmoe::test {

template <int width>
class Lanes {
  static constexpr std::size_t kMostBytes = 64;

 public:
  /// One of the threads. As WarpGroup; see actors/group.hpp for what its members are.
  class Group {
   public:
    static constexpr int size() { return width; }
    int index() const { return index_; }
    bool leader() const { return index_ == 0; }
    void sync() const { lanes_->barrier_.arrive_and_wait(); }

    /// What all threads bring.
    template <class T>
    std::array<T, width> all_of(const T& value) const {
      static_assert(sizeof(T) <= kMostBytes);
      std::array<T, width> values;
      std::memcpy(lanes_->brought_[static_cast<std::size_t>(index_)].data(), &value, sizeof(T));
      sync();
      for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(&values[i], lanes_->brought_[i].data(), sizeof(T));
      sync();
      return values;
    }

    bool all(bool value) const { return sum(value ? 1 : 0) == width; }
    bool any(bool value) const { return sum(value ? 1 : 0) > 0; }
    template <class T>
    T broadcast(T value) const {
      return all_of(value)[0];
    }
    template <class T>
    T first(bool mine, T value) const {
      const auto flags = all_of(mine);
      const auto values = all_of(value);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (flags[i]) return values[i];
      }
      return value;
    }
    Scan scan(std::uint32_t value) const {
      Scan scan{};
      const auto values = all_of(value);
      for (int i = 0; i < width; ++i) {
        if (i == index_) scan.before = scan.total;
        scan.total += values[static_cast<std::size_t>(i)];
      }
      return scan;
    }
    Scan number(bool mine) const { return scan(mine ? 1 : 0); }
    std::uint32_t sum(std::uint32_t value) const { return scan(value).total; }
    std::uint32_t least(std::uint32_t value) const {
      for (const std::uint32_t other : all_of(value)) value = other < value ? other : value;
      return value;
    }
    Match match(int key) const {
      Match match{0, 0};
      const auto keys = all_of(key);
      for (int i = 0; i < width; ++i) {
        if (keys[static_cast<std::size_t>(i)] != key) continue;
        match.index += i < index_ ? 1 : 0;
        ++match.count;
      }
      return match;
    }
    template <int rounds>
    Pick pick(const std::uint32_t (&values)[rounds], std::uint32_t n) const {
      Pick picked;
      for (int round = 0; round < rounds; ++round) {
        const auto all = all_of(values[round]);
        for (int i = 0; i < width; ++i) {
          const std::uint32_t value = all[static_cast<std::size_t>(i)];
          if (value == 0 || picked.total++ != n) continue;
          picked.position = round * width + i;
          picked.value = value;
        }
      }
      return picked;
    }

   private:
    friend class Lanes;
    Group(Lanes* lanes, int index) : lanes_(lanes), index_(index) {}
    Lanes* lanes_;
    int index_;
  };

  /// body(group) on every thread.
  template <class Body>
  void run(const Body& body) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < width; ++i) {
      threads.emplace_back([this, &body, i] { body(Group(this, i)); });
    }
  }

 private:
  std::barrier<> barrier_{width};
  std::array<std::array<char, kMostBytes>, width> brought_{};
};

}  // namespace flashmoe::test
