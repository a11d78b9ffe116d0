// Time of the router on one GPU beside the time to read x and the gate once: replays of a graph of one kernel, over
// several batches so that x comes from memory. One JSON object a row on stdout.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cuda/router_args.hpp"

namespace {

using namespace flashmoe;
using namespace flashmoe::cuda_backend;

void require(cudaError_t result, int line) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(result));
  std::exit(3);
}
#define REQUIRE(call) require(call, __LINE__)

__global__ void fill(__nv_bfloat16* values, std::size_t count, float scale) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    unsigned h = static_cast<unsigned>(i) * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    values[i] = __float2bfloat16((static_cast<float>(h & 0xffffu) / 32768.0f - 1.0f) * scale);
  }
}

__device__ unsigned sink;

__global__ void __launch_bounds__(512) read_once(const uint4* a, std::size_t num_a, const uint4* b, std::size_t num_b) {
  unsigned seen = 0;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t first = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 8
  for (std::size_t i = first; i < num_a; i += stride) seen ^= a[i].x ^ a[i].y ^ a[i].z ^ a[i].w;
#pragma unroll 4
  for (std::size_t i = first; i < num_b; i += stride) seen ^= b[i].x ^ b[i].y ^ b[i].z ^ b[i].w;
  if (seen == 0x12345678u) sink = seen;
}

/// Median time of one launch, in us.
double time_us(const std::function<void(int, cudaStream_t)>& launch, int num_batches) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t begin, end;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  REQUIRE(cudaEventCreate(&begin));
  REQUIRE(cudaEventCreate(&end));
  constexpr int kNodes = 20;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kNodes; ++i) launch(i % num_batches, stream);
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<float> times;
  for (int i = 0; i < 15; ++i) {
    REQUIRE(cudaEventRecord(begin, stream));
    REQUIRE(cudaGraphLaunch(executable, stream));
    REQUIRE(cudaEventRecord(end, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    float ms = 0;
    REQUIRE(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms * 1000.0f / kNodes);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

void time_row(const char* model, std::int64_t num_tokens, int hidden, const RouterArgs& rules) {
  const std::size_t x_elements = static_cast<std::size_t>(num_tokens) * hidden;
  const std::size_t gate_elements = static_cast<std::size_t>(rules.num_experts) * hidden;
  // More than the 50 MB that the L2 holds, at most 20 batches.
  const int num_batches = static_cast<int>(std::clamp<std::size_t>((std::size_t{120} << 20) / (2 * (x_elements + gate_elements)), 2, 20));
  std::vector<__nv_bfloat16*> x(num_batches), gate(num_batches);
  for (int i = 0; i < num_batches; ++i) {
    REQUIRE(cudaMalloc(&x[i], x_elements * 2));
    REQUIRE(cudaMalloc(&gate[i], gate_elements * 2));
    fill<<<264, 512>>>(x[i], x_elements, 1.0f);
    fill<<<264, 512>>>(gate[i], gate_elements, 0.05f);
  }
  std::int32_t* ids;
  float* weights;
  REQUIRE(cudaMalloc(&ids, static_cast<std::size_t>(num_tokens) * rules.top_k * 4));
  REQUIRE(cudaMalloc(&weights, static_cast<std::size_t>(num_tokens) * rules.top_k * 4));
  REQUIRE(cudaDeviceSynchronize());
  const double router_us = time_us(
      [&](int batch, cudaStream_t stream) {
        RouterArgs args = rules;
        args.x = x[batch];
        args.gate = gate[batch];
        args.topk_ids = ids;
        args.topk_weights = weights;
        args.max_tokens = num_tokens;
        args.hidden = hidden;
        launch_router(DType::bf16, args, stream);
      },
      num_batches);
  const double read_us = time_us(
      [&](int batch, cudaStream_t stream) {
        read_once<<<264, 512, 0, stream>>>(reinterpret_cast<const uint4*>(x[batch]), x_elements / 8,
                                           reinterpret_cast<const uint4*>(gate[batch]), gate_elements / 8);
      },
      num_batches);
  std::printf("{\"model\": \"%s\", \"tokens\": %lld, \"hidden\": %d, \"experts\": %d, \"top_k\": %d, \"function\": \"%s\", "
              "\"router_us\": %.2f, \"read_us\": %.2f, \"ratio\": %.2f}\n",
              model, static_cast<long long>(num_tokens), hidden, rules.num_experts, rules.top_k,
              std::string(to_string(rules.function)).c_str(), router_us, read_us, router_us / read_us);
  std::fflush(stdout);
  for (int i = 0; i < num_batches; ++i) {
    cudaFree(x[i]);
    cudaFree(gate[i]);
  }
  cudaFree(ids);
  cudaFree(weights);
}

}  // namespace

int main() {
  for (const std::int64_t tokens : {1, 16, 64, 128, 512, 1024, 4096, 8192, 16384}) {
    RouterArgs qwen;
    qwen.num_experts = 128;
    qwen.top_k = 8;
    qwen.renormalize = true;
    time_row("qwen3-30b-a3b", tokens, 2048, qwen);
    RouterArgs deepseek;
    deepseek.num_experts = 256;
    deepseek.top_k = 8;
    deepseek.function = RouterFunction::sigmoid_grouped;
    deepseek.renormalize = true;
    deepseek.num_groups = 8;
    deepseek.topk_groups = 4;
    deepseek.scaling_factor = 2.5f;
    time_row("deepseek-v3", tokens, 7168, deepseek);
    RouterArgs mixtral;
    mixtral.num_experts = 8;
    mixtral.top_k = 2;
    mixtral.renormalize = true;
    time_row("mixtral-8x7b", tokens, 4096, mixtral);
  }
  return 0;
}
