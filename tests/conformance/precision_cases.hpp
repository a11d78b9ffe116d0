// Reported failures of sums held in a narrow type: see cases.hpp.
#pragma once

#include <gmock/gmock.h>

#include "conformance/cases.hpp"

namespace flashmoe::test {

template <class Backend>
class PrecisionCases : public Cases<Backend> {};
TYPED_TEST_SUITE_P(PrecisionCases);

/// Every expert gives its token back: both matrices are the unit matrix.
class UnitExperts : public ExpertSource {
 public:
  explicit UnitExperts(const Problem& problem) : unit_(problem.hidden * problem.hidden * dtype_bytes(problem.dtype)) {
    for (std::int64_t i = 0; i < problem.hidden; ++i) {
      store_element(problem.dtype, unit_.data(), i * problem.hidden + i, 1.0);
    }
  }
  std::shared_ptr<const ExpertParameters> expert(int) const override {
    return std::make_shared<ExpertParameters>(ExpertParameters{unit_.data(), unit_.data(), nullptr, nullptr});
  }

 private:
  std::vector<char> unit_;  // [hidden][hidden] of dtype
};

// ---- PREC: small terms between large ones that cancel -------------------------------------------------------------

TYPED_TEST_P(PrecisionCases, PREC1_PREC2_small_terms_survive_large_ones_that_cancel) {
  constexpr float kSmall = 1.0f / 4096;  // 1 + kSmall is 1 in bf16 and fp16
  const std::vector<float> terms{1, kSmall, -1, kSmall, 2, kSmall, -2, kSmall};
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int num_ranks : {1, 2}) {
      for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
        for (const ResultForm result : {ResultForm::per_route, ResultForm::pre_reduced}) {
          Problem problem = problem_of(num_ranks, 8, 8, 3);
          problem.intermediate = static_cast<int>(problem.hidden);
          problem.gated = false;
          problem.activation = Activation::identity;
          problem.dtype = dtype;
          problem.wire_form = wire;
          problem.result_form = result;
          std::vector<Batch> batches = make_batches(problem, std::vector<std::int64_t>(num_ranks, 3), 40);
          for (Batch& batch : batches) {
            const std::int64_t num_elements = batch.num_tokens * problem.hidden;
            for (std::int64_t i = 0; i < num_elements; ++i) store_element(dtype, batch.x.data(), i, 1.0);
            for (std::size_t i = 0; i < batch.topk_ids.size(); ++i) {
              batch.topk_ids[i] = static_cast<std::int32_t>(i % 8);  // what cancels lies on one rank: experts 0 to 3
              batch.topk_weights[i] = terms[i % 8];
            }
          }
          typename TypeParam::World world(problem, std::make_shared<UnitExperts>(problem));
          std::vector<Batch*> pointers;
          for (Batch& batch : batches) pointers.push_back(&batch);
          world.poison();
          world.call(pointers, problem.max_tokens);
          for (std::size_t rank = 0; rank < batches.size(); ++rank) {
            ASSERT_EQ(world.message(rank), "");
            EXPECT_THAT(batches[rank].output(problem), testing::Each(4.0 * kSmall)) << to_string(problem);
          }
        }
      }
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(PrecisionCases, PREC1_PREC2_small_terms_survive_large_ones_that_cancel);

}  // namespace flashmoe::test
