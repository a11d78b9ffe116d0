#include "flashmoe/types.hpp"

#include <fmt/format.h>

#include "core/enumerators.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

template <class Range>
typename Range::value_type parse(const Range& enumerators, std::string_view what, std::string_view name) {
  for (const auto enumerator : enumerators) {
    if (to_string(enumerator) == name) return enumerator;
  }
  throw InvalidArgument(fmt::format("{} ({}) must be one of {}", what, printable(name), names_of(enumerators)));
}

}  // namespace

DType parse_dtype(std::string_view name) { return parse(kDTypes, "dtype", name); }
Activation parse_activation(std::string_view name) { return parse(kActivations, "activation", name); }
WireForm parse_wire_form(std::string_view name) { return parse(kWireForms, "wire_form", name); }
ResultForm parse_result_form(std::string_view name) { return parse(kResultForms, "result_form", name); }

}  // namespace flashmoe
