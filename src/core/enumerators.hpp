// Every enumerator of the public enumerations, for parsing, checking and listing their names.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "flashmoe/types.hpp"

namespace flashmoe {

inline constexpr std::array kDTypes = {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64};
inline constexpr std::array kActivations = {Activation::silu,          Activation::gelu_erf,     Activation::gelu_tanh,
                                            Activation::relu,          Activation::relu_squared, Activation::identity,
                                            Activation::swiglu_clamped};
inline constexpr std::array kWireForms = {WireForm::automatic, WireForm::counted, WireForm::lined};
inline constexpr std::array kResultForms = {ResultForm::automatic, ResultForm::per_route, ResultForm::pre_reduced};

/// False for a value that only a cast can make.
template <class Range, class Enum>
constexpr bool is_enumerator(const Range& enumerators, Enum value) {
  return std::find(enumerators.begin(), enumerators.end(), value) != enumerators.end();
}

/// "bf16, fp16, ...", as messages list them.
template <class Range>
std::string names_of(const Range& enumerators) {
  std::string names;
  for (const auto enumerator : enumerators) {
    if (!names.empty()) names += ", ";
    names += to_string(enumerator);
  }
  return names;
}

}  // namespace flashmoe
