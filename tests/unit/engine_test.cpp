// The CPU's tile engine on m-blocks put together by hand: what it reads, what it stores, and where it sends results.
#include "cpu/engine.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "cpu/layer.hpp"
#include "cpu/reference.hpp"
#include "support/batch.hpp"

namespace flashmoe::cpu {
namespace {

using test::Batch;
using test::DenseExperts;
using test::Routing;

/// Keeps what an engine sends.
struct RecordingFabric {
  struct Sent {
    int peer;
    std::vector<char> bytes;
    std::uint64_t tag;
  };
  std::map<std::size_t, Sent> rows, lines;  // by offset

  void put_row(const SoloGroup&, int peer, std::size_t offset, const void* data, std::int64_t bytes) {
    const char* begin = static_cast<const char*>(data);
    ASSERT_TRUE(rows.emplace(offset, Sent{peer, {begin, begin + bytes}, 0}).second);
  }
  void put_row_lines(const SoloGroup&, int peer, std::size_t offset, const void* data, std::int64_t words,
                     std::uint64_t tag) {
    const char* begin = static_cast<const char*>(data);
    ASSERT_TRUE(lines.emplace(offset, Sent{peer, {begin, begin + 8 * words}, tag}).second);
  }
};

/// Two ranks; rank 0 holds experts 0 and 1. Its own wave brings tokens 0..3, rank 1's wave three more; expert 1 gets rows
/// of both. Widths are no multiples of the tile's columns.
class EngineTest : public testing::TestWithParam<DType> {
 protected:
  static constexpr int kExpert = 1;

  Problem make_problem(WireForm wire, ResultForm result) const {
    return {.num_ranks = 2, .hidden = 40, .intermediate = 24, .num_experts = 4, .top_k = 2, .max_tokens = 8,
            .dtype = GetParam(), .up_bias = true, .down_bias = true, .wire_form = wire, .result_form = result,
            .wave_ring = 1};
  }

  void build(WireForm wire, ResultForm result) {
    problem_ = make_problem(wire, result);
    experts_ = std::make_shared<DenseExperts>(problem_, 1);
    const EngineTraits traits{.tile = {.rows = 16, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 2};
    heap_ = std::make_shared<Heap>(plan_geometry(problem_, traits));
    context_ = std::make_unique<RankContext>(heap_, 0, RankOptions{});
    own_ = test::make_batch(problem_, 4, 1);
    other_ = test::make_batch(problem_, 3, 2);
    call_ = make_call(*context_, problem_, 1, {.x = own_.x_view(), .routing = own_.routing(), .y = own_.y_view(), .max_tokens = 8});
    const auto row = static_cast<std::size_t>(call_.geometry().row_bytes());
    for (std::int64_t slot = 0; slot < 3; ++slot) {
      char* to = call_.lined() ? call_.lined_row(1, slot) : call_.heap_at<char>(call_.heap.token_row(1, 0, slot));
      std::copy_n(other_.x.data() + static_cast<std::size_t>(slot) * row, row, to);
    }
    // Routes to expert 1 alone: own tokens 1 and 3 by choice 0, the other's slots 0 and 2 by choice 1.
    fill_image(0, 4, {{1, 1 * 2 + 0}, {3, 3 * 2 + 0}}, {0.5f, 2.0f});
    fill_image(1, 3, {{0, 0 * 2 + 1}, {2, 2 * 2 + 1}}, {-1.0f, 0.25f});
    MBlock& block = call_.m_block(0);
    block.local_expert = kExpert;
    block.num_rows = 4;
    block.num_segments = 2;
    block.segments[0] = {0, 0, 2};
    block.segments[1] = {1, 0, 2};
    engine_ = std::make_unique<Engine>(call_.geometry(), call_.math, *experts_);
  }

  void fill_image(int source, std::uint32_t slots, const std::vector<RouteEntry>& entries, const std::vector<float>& weights) {
    const RouteImage image = call_.image(call_.wave_slot(source, 0));
    image.set_header(slots, static_cast<std::uint32_t>(entries.size()));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      image.set_entry(static_cast<std::int64_t>(i), entries[i]);
      if (call_.plan.list_weights) image.weights(static_cast<std::uint32_t>(entries.size()))[i] = weights[i];
    }
    call_.wave(call_.wave_slot(source, 0)).num_slots = slots;
  }

  /// Both phases of the block.
  void run() {
    for (int tile = 0; tile < call_.geometry().num_up_tiles(); ++tile) {
      engine_->up(SoloGroup{}, call_, call_.m_block(0), 0, tile);
    }
    for (int tile = 0; tile < call_.geometry().num_down_tiles(); ++tile) {
      engine_->down(SoloGroup{}, call_, fabric_, call_.m_block(0), 0, tile);
    }
  }

  /// The expert's result on a stored row, unweighted, in double.
  std::vector<double> wanted(const Batch& batch, std::int64_t token) const {
    std::vector<double> x(static_cast<std::size_t>(problem_.hidden)), out(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = load_element(problem_.dtype, batch.x.data(), token * problem_.hidden + static_cast<std::int64_t>(i));
    }
    reference::expert_row(problem_, *experts_->expert(kExpert), x.data(), 1.0, out.data());
    return out;
  }
  std::vector<double> values(const std::vector<char>& bytes) const {
    std::vector<double> out(bytes.size() / dtype_bytes(problem_.dtype));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_element(problem_.dtype, bytes.data(), static_cast<std::int64_t>(i));
    return out;
  }
  void expect_near(const std::vector<double>& got, const std::vector<double>& wanted) const {
    EXPECT_LE(reference::relative_l2(got, wanted), test::error_bar(problem_.dtype, got.size()));
  }

  Problem problem_;
  std::shared_ptr<DenseExperts> experts_;
  std::shared_ptr<Heap> heap_;
  std::unique_ptr<RankContext> context_;
  Batch own_, other_;
  Call call_;
  std::unique_ptr<Engine> engine_;
  RecordingFabric fabric_;
};

TEST_P(EngineTest, counted_results_go_to_their_cells_at_the_tokens_ranks) {
  build(WireForm::counted, ResultForm::per_route);
  run();
  EXPECT_EQ(fabric_.rows.size(), 4u * 3u);  // four rows in three column tiles
  EXPECT_TRUE(fabric_.lines.empty());
  const struct { int peer; const Batch& batch; std::int64_t token; int choice; } routes[] = {
      {0, own_, 1, 0}, {0, own_, 3, 0}, {1, other_, 0, 1}, {1, other_, 2, 1}};
  for (const auto& route : routes) {
    std::vector<char> row;
    for (int tile = 0; tile < 3; ++tile) {
      const std::size_t offset = call_.heap.result_cell(0, route.token, route.choice) +
                                 static_cast<std::size_t>(tile) * 16 * dtype_bytes(problem_.dtype);
      ASSERT_EQ(fabric_.rows.count(offset), 1u);
      const auto& sent = fabric_.rows.at(offset);
      EXPECT_EQ(sent.peer, route.peer);
      EXPECT_EQ(sent.bytes.size(), (tile < 2 ? 16u : 8u) * dtype_bytes(problem_.dtype));
      row.insert(row.end(), sent.bytes.begin(), sent.bytes.end());
    }
    expect_near(values(row), wanted(route.batch, route.token));
  }
}

TEST_P(EngineTest, lined_results_go_to_their_lines_with_the_epochs_tag) {
  build(WireForm::lined, ResultForm::per_route);
  run();
  EXPECT_EQ(fabric_.lines.size(), 4u * 3u);
  EXPECT_TRUE(fabric_.rows.empty());
  std::vector<char> row;
  for (int tile = 0; tile < 3; ++tile) {
    const auto& sent = fabric_.lines.at(call_.heap.lined_result(0, 2 * 2 + 1, tile));
    EXPECT_EQ(sent.peer, 1);
    EXPECT_EQ(sent.tag, line_tag(call_.generation, 0));
    row.insert(row.end(), sent.bytes.begin(), sent.bytes.end());
  }
  expect_near(values(row), wanted(other_, 2));
}

TEST_P(EngineTest, pre_reduced_results_stay_until_a_slot_is_summed_with_its_weights) {
  build(WireForm::counted, ResultForm::pre_reduced);
  call_.plan.result_form = ResultForm::pre_reduced;
  run();
  EXPECT_TRUE(fabric_.rows.empty());
  // Slot 2 of the other rank's wave has one route here; slot 1 none.
  const int wave_slot = call_.wave_slot(1, 0);
  for (std::int64_t slot = 0; slot < 3; ++slot) {
    for (int choice = 0; choice < 2; ++choice) call_.slot_routes(wave_slot, slot)[choice] = 0;
  }
  call_.slot_routes(wave_slot, 0)[1] = 1;
  call_.slot_routes(wave_slot, 2)[1] = 2;
  engine_->reduce(SoloGroup{}, call_, fabric_, static_cast<std::uint32_t>(wave_slot), 1, 2);
  ASSERT_EQ(fabric_.rows.size(), 1u);
  const auto& [offset, sent] = *fabric_.rows.begin();
  EXPECT_EQ(offset, call_.heap.result_cell(0, 2, 0));  // cell of rank 0, of token 2
  EXPECT_EQ(sent.peer, 1);
  std::vector<double> scaled = wanted(other_, 2);
  for (double& value : scaled) value *= 0.25;
  expect_near(values(sent.bytes), scaled);
}

TEST_P(EngineTest, a_row_has_the_same_bits_alone_and_at_another_place) {
  build(WireForm::counted, ResultForm::per_route);
  run();
  const RecordingFabric together = fabric_;
  fabric_ = {};
  MBlock& block = call_.m_block(0);
  block.num_rows = 1;
  block.num_segments = 1;
  block.segments[0] = {1, 1, 1};  // the last row of the block before
  run();
  ASSERT_EQ(fabric_.rows.size(), 3u);
  for (const auto& [offset, sent] : fabric_.rows) EXPECT_EQ(sent.bytes, together.rows.at(offset).bytes);
}

INSTANTIATE_TEST_SUITE_P(DTypes, EngineTest,
                         testing::Values(DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64),
                         [](const auto& it) { return std::string(to_string(it.param)); });

}  // namespace
}  // namespace flashmoe::cpu
