// What every function of the C interface needs: exceptions become status codes, structs of any known size are read.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "flashmoe/error.hpp"
#include "flashmoe/flashmoe.h"

namespace flashmoe {

/// Keeps the current exception's message for flashmoe_last_error() and returns its status. Only in a catch block.
flashmoe_status keep_current_exception() noexcept;

/// Runs `body`; no exception leaves.
template <class Body>
flashmoe_status guarded(const Body& body) noexcept {
  try {
    body();
    return FLASHMOE_OK;
  } catch (...) {
    return keep_current_exception();
  }
}

inline void require_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) throw InvalidArgument(fmt::format("{} must not be NULL: pass its address", name));
}

/// Throws InvalidArgument unless `given` is a struct of this library's header or an older one.
template <class T>
void check_struct(const char* name, const T* given) {
  require_pointer(name, given);
  if (given->struct_size < sizeof(given->struct_size)) {
    throw InvalidArgument(fmt::format("{0}->struct_size ({1}) must be the struct's size: call flashmoe_{0}_init first", name,
                                      given->struct_size));
  }
  if (given->struct_size > sizeof(T)) {
    throw InvalidArgument(fmt::format("{}->struct_size ({}) must be at most {}, all that this library knows: initialise the "
                                      "struct, or use a library as new as the header", name, given->struct_size,
                                      sizeof(T)));
  }
}

/// The caller's members over `defaults`.
template <class T>
T read_struct(const char* name, const T* given, T defaults) {
  check_struct(name, given);
  std::memcpy(&defaults, given, given->struct_size);
  return defaults;
}

/// As many of `value`'s members as the caller's struct has.
template <class T>
void write_struct(const char* name, T* out, T value) {
  check_struct(name, out);
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, out->struct_size);
}

/// For _init functions: `size` bytes of `defaults`.
template <class T>
void init_struct(T* out, std::size_t size, T defaults) noexcept {
  if (out == nullptr) return;
  std::memset(static_cast<void*>(out), 0, size);
  defaults.struct_size = size;
  std::memcpy(static_cast<void*>(out), &defaults, size < sizeof(T) ? size : sizeof(T));
}

/// The enumerator of that number; validate() judges whether it exists. Throws InvalidArgument for a number no enumeration
/// of the library can have.
template <class Enum>
Enum to_enum(const char* name, int value) {
  if (value < 0 || value > 255) {
    throw InvalidArgument(fmt::format("{} (number {}) must be one of the header's constants", name, value));
  }
  return static_cast<Enum>(value);
}

/// Throws InvalidArgument for another number than 0 and 1.
inline bool to_bool(const char* name, int value) {
  if (value == 0 || value == 1) return value == 1;
  throw InvalidArgument(fmt::format("{} ({}) must be 0 or 1: initialise the struct, then set its fields", name, value));
}

}  // namespace flashmoe
