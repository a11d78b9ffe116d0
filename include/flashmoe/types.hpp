// Enumerations every interface shares, with their names as the command line and JSON spell them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flashmoe/export.hpp"

namespace flashmoe {

/// Type of tokens, expert weights, intermediate and output.
/// tf32: 4-byte storage of fp32; matrix operands are rounded to tf32 (round to nearest, ties away).
enum class DType : std::uint8_t { bf16, fp16, tf32, fp32, fp64 };

/// Element-wise function between the two expert matrices.
/// gelu_erf is x * Phi(x); gelu_tanh its tanh approximation; relu_squared is max(x, 0)^2.
/// swiglu_clamped is gpt-oss': gate' = min(gate, limit), up' = clamp(up, -limit, limit),
/// gate' * sigmoid(alpha * gate') * (up' + 1); it exists only gated.
enum class Activation : std::uint8_t { silu, gelu_erf, gelu_tanh, relu, relu_squared, identity, swiglu_clamped };

/// How tokens and results travel (docs/protocol.md). `automatic` lets the plan choose.
enum class WireForm : std::uint8_t { automatic, counted, lined };

/// per_route: one result cell per (token, choice). pre_reduced: one per (token, expert rank): that rank's sum, rounded, so
/// that results depend on the number of ranks and a small term is lost beside large ones of other ranks that cancel.
/// `automatic` takes it where the wire would take longer than the experts (Problem::batch_invariant: never).
enum class ResultForm : std::uint8_t { automatic, per_route, pre_reduced };

/// Bytes of one stored element.
constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::bf16:
    case DType::fp16: return 2;
    case DType::tf32:
    case DType::fp32: return 4;
    case DType::fp64: return 8;
  }
  return 0;
}

constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
    case DType::tf32: return "tf32";
    case DType::fp32: return "fp32";
    case DType::fp64: return "fp64";
  }
  return "?";
}

constexpr std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::silu: return "silu";
    case Activation::gelu_erf: return "gelu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::relu: return "relu";
    case Activation::relu_squared: return "relu2";
    case Activation::identity: return "identity";
    case Activation::swiglu_clamped: return "swiglu_clamped";
  }
  return "?";
}

constexpr std::string_view to_string(WireForm form) {
  switch (form) {
    case WireForm::automatic: return "auto";
    case WireForm::counted: return "counted";
    case WireForm::lined: return "lined";
  }
  return "?";
}

constexpr std::string_view to_string(ResultForm form) {
  switch (form) {
    case ResultForm::automatic: return "auto";
    case ResultForm::per_route: return "per_route";
    case ResultForm::pre_reduced: return "pre_reduced";
  }
  return "?";
}

/// The inverse of to_string; throws InvalidArgument listing the accepted names.
FLASHMOE_API DType parse_dtype(std::string_view name);
FLASHMOE_API Activation parse_activation(std::string_view name);
FLASHMOE_API WireForm parse_wire_form(std::string_view name);
FLASHMOE_API ResultForm parse_result_form(std::string_view name);

}  // namespace flashmoe
