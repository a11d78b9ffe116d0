#include "flashmoe/types.hpp"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "core/enumerators.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

using testing::ThrowsMessage;

template <class Range, class Parse>
void expect_names_round_trip(const Range& enumerators, Parse parse) {
  std::set<std::string_view> names;
  for (const auto enumerator : enumerators) {
    EXPECT_EQ(parse(to_string(enumerator)), enumerator);
    EXPECT_NE(to_string(enumerator), "?");
    names.insert(to_string(enumerator));
  }
  EXPECT_EQ(names.size(), enumerators.size());
}

TEST(Types, parsing_inverts_naming) {
  expect_names_round_trip(kDTypes, parse_dtype);
  expect_names_round_trip(kActivations, parse_activation);
  expect_names_round_trip(kWireForms, parse_wire_form);
  expect_names_round_trip(kResultForms, parse_result_form);
}

TEST(Types, unknown_names_are_refused_with_the_accepted_ones) {
  EXPECT_THAT([] { parse_dtype("bfloat16"); },
              ThrowsMessage<InvalidArgument>("dtype (bfloat16) must be one of bf16, fp16, tf32, fp32, fp64"));
  EXPECT_THAT([] { parse_activation("SiLU"); },
              ThrowsMessage<InvalidArgument>("activation (SiLU) must be one of silu, gelu, gelu_tanh, relu, relu2, "
                                             "identity, swiglu_clamped"));
  EXPECT_THAT([] { parse_wire_form(""); },
              ThrowsMessage<InvalidArgument>("wire_form () must be one of auto, counted, lined"));
  EXPECT_THAT([] { parse_result_form("per route"); },
              ThrowsMessage<InvalidArgument>("result_form (per route) must be one of auto, per_route, pre_reduced"));
}

TEST(Types, hostile_names_stay_short_and_printable_in_messages) {
  std::string hostile("a\n\x1b[31m\xff");
  hostile.resize(1000, 'b');
  EXPECT_THAT([&] { parse_wire_form(hostile); },
              ThrowsMessage<InvalidArgument>("wire_form (a??[31m?" + std::string(40, 'b') +
                                             "...) must be one of auto, counted, lined"));
}

TEST(Types, element_sizes_are_those_of_the_storage) {
  EXPECT_EQ(dtype_bytes(DType::bf16), 2u);
  EXPECT_EQ(dtype_bytes(DType::fp16), 2u);
  EXPECT_EQ(dtype_bytes(DType::tf32), 4u);
  EXPECT_EQ(dtype_bytes(DType::fp32), 4u);
  EXPECT_EQ(dtype_bytes(DType::fp64), 8u);
}

}  // namespace
}  // namespace flashmoe
