// The forms that a call of any size can take.
#pragma once

#include "flashmoe/types.hpp"

namespace flashmoe::test {

struct Form {
  WireForm wire;
  ResultForm results;
};
inline constexpr Form kForms[] = {{WireForm::counted, ResultForm::per_route},
                                  {WireForm::counted, ResultForm::pre_reduced},
                                  {WireForm::lined, ResultForm::per_route}};

}  // namespace flashmoe::test
