// Exceptions of the library. A message is one sentence: what was wanted, what was got, what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "flashmoe/export.hpp"

namespace flashmoe {

/// Base of every exception the library throws on purpose.
class FLASHMOE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's input breaks a stated rule: a Problem, a shape, a file, an option.
class FLASHMOE_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A CUDA call failed, or there is no usable device.
class FLASHMOE_API CudaError : public Error {
 public:
  using Error::Error;
};

/// The ranks cannot share memory, or they disagree about what they are building together.
class FLASHMOE_API FabricError : public Error {
 public:
  using Error::Error;
};

/// A wait passed its deadline, or the layer's heap is dead after such a wait (design section 7).
class FLASHMOE_API Timeout : public Error {
 public:
  using Error::Error;
};

}  // namespace flashmoe
