// What the late network promises, and what it does not.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "core/counter_rng.hpp"
#include "cpu/delayed_fabric.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cpu {
namespace {

/// Two ranks with heaps of 1 KiB.
class Network : public testing::Test {
 protected:
  alignas(128) std::array<std::array<char, 1024>, 2> memory_{};
  char* bases_[2] = {memory_[0].data(), memory_[1].data()};
  DelayedNetwork network_{bases_, 2};
  Traffic traffic_;
  DelayedFabric rank0_{network_, 0, &traffic_};

  static constexpr int kChannel = 1;  // rank 0 to rank 1
  std::uint64_t word(std::size_t offset) const {
    std::uint64_t value;
    std::memcpy(&value, memory_[1].data() + offset, 8);
    return value;
  }
  void deliver_all(std::uint64_t seed) {
    const CounterRng rng(seed, 0);
    for (std::uint64_t draw = 0; network_.num_deliverable(kChannel) > 0; ++draw) {
      network_.deliver(kChannel, rng.below(draw, network_.num_deliverable(kChannel)));
    }
  }
};

TEST_F(Network, nothing_arrives_before_it_is_delivered) {
  const std::uint64_t row[2] = {11, 12};
  rank0_.put_row({}, 1, 0, row, 16);
  rank0_.signal(1, 64, 1);
  EXPECT_EQ(word(0), 0u);
  EXPECT_EQ(word(64), 0u);
  EXPECT_FALSE(network_.empty());
  deliver_all(1);
  EXPECT_EQ(word(0), 11u);
  EXPECT_EQ(word(8), 12u);
  EXPECT_EQ(word(64), 1u);
  EXPECT_TRUE(network_.empty());
}

TEST_F(Network, a_signal_waits_for_the_puts_before_it_and_for_no_others) {
  const std::uint64_t row[2] = {1, 2};
  rank0_.signal(1, 64, 5);
  rank0_.put_row({}, 1, 0, row, 16);
  rank0_.signal(1, 72, 6);
  EXPECT_EQ(network_.num_deliverable(kChannel), 3u);  // two halves and the first signal
  network_.deliver(kChannel, 2);
  EXPECT_EQ(word(64), 5u);
  network_.deliver(kChannel, 1);
  EXPECT_EQ(network_.num_deliverable(kChannel), 1u);
  network_.deliver(kChannel, 0);
  EXPECT_EQ(network_.num_deliverable(kChannel), 1u);
  EXPECT_EQ(word(72), 0u);
  network_.deliver(kChannel, 0);
  EXPECT_EQ(word(72), 6u);
}

TEST_F(Network, lines_of_one_call_come_in_every_order) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::uint64_t words[2 * Line::kDataWords + 3];
    for (std::uint64_t i = 0; i < std::size(words); ++i) words[i] = 100 * seed + i;
    const std::uint64_t tag = line_tag(1, seed);
    rank0_.put_lines({}, 1, 128, words, std::size(words), tag);
    const CounterRng rng(seed, 5);
    std::string order;
    std::uint64_t got[std::size(words)];
    for (std::uint64_t draw = 0; network_.num_deliverable(kChannel) > 0; ++draw) {
      EXPECT_FALSE(try_load_lines({}, reinterpret_cast<Line*>(memory_[1].data() + 128), std::size(words), tag, got));
      network_.deliver(kChannel, rng.below(draw, network_.num_deliverable(kChannel)));
      for (std::size_t line = 0; line < 3; ++line) {
        const char name = static_cast<char>('a' + line);
        if (word(128 * (line + 1) + 120) == tag && order.find(name) == std::string::npos) order += name;
      }
    }
    ASSERT_TRUE(try_load_lines({}, reinterpret_cast<Line*>(memory_[1].data() + 128), std::size(words), tag, got));
    EXPECT_TRUE(std::equal(std::begin(words), std::end(words), got));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST_F(Network, channels_do_not_wait_for_each_other) {
  DelayedFabric rank1(network_, 1, &traffic_);
  const std::uint64_t row[2] = {1, 2};
  rank0_.put_row({}, 1, 0, row, 16);
  rank1.signal(1, 64, 1);
  EXPECT_EQ(network_.num_deliverable(3), 1u);
  network_.deliver(3, 0);
  EXPECT_EQ(word(64), 1u);
}

TEST_F(Network, two_puts_under_way_to_one_cell_are_refused) {
  const std::uint64_t row[2] = {1, 2};
  rank0_.put_row({}, 1, 0, row, 16);
  EXPECT_THROW(rank0_.put_row({}, 1, 0, row, 16), Error);
  EXPECT_NO_THROW(rank0_.put_row({}, 0, 0, row, 16));  // another rank's cell
}

TEST_F(Network, traffic_counts_as_the_plain_fabric_does) {
  std::uint64_t words[20] = {};
  alignas(128) std::array<std::array<char, 1024>, 2> memory{};
  char* bases[2] = {memory[0].data(), memory[1].data()};
  Traffic plain_traffic;
  const Fabric plain(bases, 0, &plain_traffic);
  const auto send = [&words](const auto& fabric) {
    for (int peer = 0; peer < 2; ++peer) {
      fabric.put_row({}, peer, 0, words, 40);
      fabric.put_lines({}, peer, 128, words, 17, 1);
      fabric.put_row_lines({}, peer, 512, words, 20, 1);
      fabric.signal(peer, 64, 3);
    }
  };
  send(plain);
  send(rank0_);
  EXPECT_EQ(traffic_.payload_bytes, 200u);
  EXPECT_EQ(traffic_.payload_bytes, plain_traffic.payload_bytes);
  EXPECT_EQ(traffic_.overhead_bytes, plain_traffic.overhead_bytes);
  deliver_all(2);
  EXPECT_EQ(memory_[1], memory[1]);
}

}  // namespace
}  // namespace flashmoe::cpu
