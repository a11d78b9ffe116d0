#include "cpu/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/activation.hpp"
#include "core/numeric.hpp"
#include "cpu/dot.hpp"
#include "cpu/in_order.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::reference {
namespace {

// Rows one unit of work puts through an expert: enough to make widening the weights cheap, few enough to share out.
constexpr std::int64_t kUnitRows = 64;

// Stored elements are bf16, fp16, fp32 or fp64; a row of a matrix starts `row` lengths in.
const void* row_of(DType dtype, const void* matrix, std::int64_t row, std::int64_t length) {
  return static_cast<const char*>(matrix) + row * length * static_cast<std::int64_t>(dtype_bytes(dtype));
}

// out[r][c] = sum over i of rows[r][i] * matrix[c][i]. Eight matrix rows at a time are widened and used for all rows.
void project(DType dtype, const void* matrix, std::int64_t num_columns, std::int64_t length,
             const std::vector<double>& rows, std::vector<double>& out) {
  constexpr std::int64_t kColumns = 8;
  constexpr std::int64_t kRows = 4;
  const std::int64_t num_rows = static_cast<std::int64_t>(rows.size()) / length;
  out.resize(static_cast<std::size_t>(num_rows * num_columns));
  std::vector<double> widened(static_cast<std::size_t>(kColumns * length));
  for (std::int64_t first = 0; first < num_columns; first += kColumns) {
    const std::int64_t count = std::min(kColumns, num_columns - first);
    load_doubles(dtype, row_of(dtype, matrix, first, length), count * length, widened.data());
    for (std::int64_t row = 0; row < num_rows; row += kRows) {
      const std::int64_t block = std::min(kRows, num_rows - row);
      for (std::int64_t c = 0; c < count; ++c) {
        double sums[kRows];
        dot_rows(widened.data() + c * length, rows.data() + row * length, block, length, sums);
        for (std::int64_t r = 0; r < block; ++r) out[(row + r) * num_columns + first + c] = sums[r];
      }
    }
  }
}

// Buffers of one worker. x, gate_up, h and out hold the same rows.
struct Block {
  std::vector<double> x;        // [num_rows][hidden]
  std::vector<double> weights;  // [num_rows]
  std::vector<double> gate_up;  // [num_rows][up_columns]
  std::vector<double> h;        // [num_rows][intermediate]
  std::vector<double> out;      // [num_rows][hidden]
};

// The expert MLP on block.x, formulas of Problem.
void run_expert(const Problem& problem, const ExpertParameters& expert, Block& block) {
  if ((problem.up_bias && !expert.up_bias) || (problem.down_bias && !expert.down_bias)) {
    throw InvalidArgument("the problem has expert biases, but the expert source gives none; "
                          "clear up_bias and down_bias or add them to the source");
  }
  const auto num_rows = static_cast<std::int64_t>(block.weights.size());
  const std::int64_t intermediate = problem.intermediate;
  const std::int64_t columns = problem.up_columns();

  project(problem.dtype, expert.up, columns, problem.hidden, block.x, block.gate_up);
  block.h.resize(static_cast<std::size_t>(num_rows * intermediate));
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const double scale = problem.weight_on_input ? block.weights[r] : 1.0;
    double* sums = block.gate_up.data() + r * columns;
    for (std::int64_t c = 0; c < columns; ++c) {
      sums[c] = scale * sums[c] + (problem.up_bias ? static_cast<double>(expert.up_bias[c]) : 0.0);
    }
    for (std::int64_t i = 0; i < intermediate; ++i) {
      block.h[r * intermediate + i] =
          problem.gated ? gate_up<double>(problem.activation, sums[i], sums[intermediate + i], problem.swiglu_alpha,
                                          problem.swiglu_limit)
                        : activate<double>(problem.activation, sums[i]);
    }
  }

  project(problem.dtype, expert.down, problem.hidden, intermediate, block.h, block.out);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const double scale = problem.weight_on_input ? 1.0 : block.weights[r];
    double* sums = block.out.data() + r * problem.hidden;
    for (std::int64_t c = 0; c < problem.hidden; ++c) {
      sums[c] = scale * (sums[c] + (problem.down_bias ? static_cast<double>(expert.down_bias[c]) : 0.0));
    }
  }
}

struct Route {
  int expert;
  std::int64_t position;  ///< of its token in the result
  double weight;
};

void check_ids(const Problem& problem, std::int64_t num_tokens, const std::int32_t* topk_ids) {
  for (std::int64_t i = 0; i < num_tokens * problem.top_k; ++i) {
    if (topk_ids[i] < -1 || topk_ids[i] >= problem.num_experts) {
      throw InvalidArgument(fmt::format("topk_ids[{}][{}] ({}) must be -1 (masked) or an expert in 0..{}",
                                        i / problem.top_k, i % problem.top_k, topk_ids[i], problem.num_experts - 1));
    }
  }
}

// Routes of the wanted tokens, by expert, then token, then choice.
std::vector<Route> routes_by_expert(const Problem& problem, RoutingView routing, const std::vector<std::int64_t>& rows) {
  std::vector<Route> routes;
  routes.reserve(rows.size() * static_cast<std::size_t>(problem.top_k));
  for (std::size_t position = 0; position < rows.size(); ++position) {
    for (std::int64_t i = rows[position] * problem.top_k; i < (rows[position] + 1) * problem.top_k; ++i) {
      if (routing.topk_ids[i] < 0) continue;
      routes.push_back({routing.topk_ids[i], static_cast<std::int64_t>(position), routing.topk_weights[i]});
    }
  }
  std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.expert < b.expert; });
  return routes;
}

// First route of every unit and the end: a unit is up to kUnitRows routes of one expert.
std::vector<std::size_t> unit_bounds(const std::vector<Route>& routes) {
  std::vector<std::size_t> bounds = {0};
  for (std::size_t i = 1; i < routes.size(); ++i) {
    if (routes[i].expert != routes[i - 1].expert || i - bounds.back() == kUnitRows) bounds.push_back(i);
  }
  if (!routes.empty()) bounds.push_back(routes.size());
  return bounds;
}

void check_lengths(const std::vector<double>& value, const std::vector<double>& reference) {
  if (value.size() != reference.size()) {
    throw InvalidArgument(fmt::format("compared arrays must have one length, but the value has {} elements and the "
                                      "reference {}", value.size(), reference.size()));
  }
}

}  // namespace

void expert_row(const Problem& problem, const ExpertParameters& expert, const double* x, double weight, double* out) {
  Block block;
  block.x.assign(x, x + problem.hidden);
  block.weights = {weight};
  run_expert(problem, expert, block);
  std::copy(block.out.begin(), block.out.end(), out);
}

std::vector<double> layer(const Problem& problem, const ExpertSource& experts, ConstRows x, RoutingView routing,
                          const std::vector<std::int64_t>& rows, int num_threads) {
  if (num_threads < 1) throw InvalidArgument(fmt::format("num_threads ({}) must be at least 1", num_threads));
  check_ids(problem, x.num_rows, routing.topk_ids);
  std::vector<std::int64_t> tokens = rows;
  if (tokens.empty()) {
    for (std::int64_t token = 0; token < x.num_rows; ++token) tokens.push_back(token);
  }
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= x.num_rows) {
      throw InvalidArgument(fmt::format("row {} must be a token of the batch, 0..{}", token, x.num_rows - 1));
    }
  }

  const std::vector<Route> routes = routes_by_expert(problem, routing, tokens);
  const std::vector<std::size_t> bounds = unit_bounds(routes);
  std::vector<double> y(tokens.size() * static_cast<std::size_t>(problem.hidden), 0.0);
  std::vector<Block> blocks(static_cast<std::size_t>(num_threads));
  const auto compute = [&](std::int64_t unit, int worker) {
    Block& block = blocks[worker];
    const std::size_t num_rows = bounds[unit + 1] - bounds[unit];
    block.x.resize(num_rows * static_cast<std::size_t>(problem.hidden));
    block.weights.clear();
    for (std::size_t i = bounds[unit]; i < bounds[unit + 1]; ++i) {
      load_doubles(problem.dtype, row_of(problem.dtype, x.data, tokens[routes[i].position], problem.hidden),
                   problem.hidden, block.x.data() + block.weights.size() * problem.hidden);
      block.weights.push_back(routes[i].weight);
    }
    run_expert(problem, *experts.expert(routes[bounds[unit]].expert), block);
  };
  const auto add = [&](std::int64_t unit, int worker) {
    const double* contribution = blocks[worker].out.data();
    for (std::size_t i = bounds[unit]; i < bounds[unit + 1]; ++i) {
      double* sum = y.data() + routes[i].position * problem.hidden;
      for (int c = 0; c < problem.hidden; ++c) sum[c] += *contribution++;
    }
  };
  compute_in_order(static_cast<std::int64_t>(bounds.size()) - 1, num_threads, compute, add);
  return y;
}

double relative_l2(const std::vector<double>& value, const std::vector<double>& reference) {
  check_lengths(value, reference);
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double difference = value[i] - reference[i];
    error += difference * difference;
    norm += reference[i] * reference[i];
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / norm);
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 3e-3;
    case DType::fp16: return 5e-4;
    case DType::tf32: return 1e-3;
    case DType::fp32: return 1e-5;
    case DType::fp64: return 1e-13;
  }
  return 0.0;
}

// Independent errors add in squares, a third for each rounding: of the intermediate, of a route's down output and of
// the sum over a token's routes. Of the last two there is one an element, and their share scatters as 1 /
// sqrt(elements).
//
// The intermediate's error in a row is sum_i d_i h_i w_i, its value sum_i h_i w_i over the expert's rows w_i of the
// down matrix, so its relative square is the mean of d_i^2 weighted by h_i^2. Few large h_i dominate that mean:
// products of a gate and an up value have heavy tails. For SiLU, ReLU and squared ReLU of normal values, drawn 200,000
// times for 1 to 16,384 values, the root of that mean never exceeded its expectation 2^-8 / sqrt(3) * 0.7355 = 1.66e-3
// (bf16) by more than 0.2 + 18 / sqrt(values), nor can it exceed the largest |d_i|, half a unit in the last place of 1:
// 2^-8, which is 2.36 times that.
double error_bar(DType dtype, std::int64_t num_elements, std::int64_t num_intermediates) {
  constexpr std::int64_t many = 1 << 16;
  constexpr double largest_rounding = 2.36;
  const auto allowance = [](std::int64_t count, double scatter) {
    return count >= many ? 1.0 : 1.2 + scatter / std::sqrt(static_cast<double>(std::max<std::int64_t>(count, 1)));
  };
  const double of_elements = allowance(num_elements, 3.0);
  const double of_intermediates = std::max(of_elements, std::min(largest_rounding, allowance(num_intermediates, 18.0)));
  return tolerance(dtype) * std::sqrt((of_intermediates * of_intermediates + 2.0 * of_elements * of_elements) / 3.0);
}

double max_abs_error(const std::vector<double>& value, const std::vector<double>& reference) {
  check_lengths(value, reference);
  double largest = 0.0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double difference = std::abs(value[i] - reference[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace flashmoe::reference
