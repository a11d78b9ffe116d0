/* The C interface: everything of the C++ one, with opaque handles and status codes. C11; safe to include from C++.
 *
 * Every function that can fail returns a status; flashmoe_last_error() then has the sentence that says what was wanted,
 * what was got and what to do. No exception leaves the library. A handle that a function makes is written on success
 * alone; destroying NULL does nothing, and handles may be destroyed in any order.
 *
 * Every struct begins with `struct_size` and must be initialised by its _init function, results too, which sets the size
 * and every default: a program built against an older header keeps working with a newer library, which gives the members
 * it does not know their defaults. A struct of a newer header than the library's is refused. */
#ifndef FLASHMOE_FLASHMOE_H
#define FLASHMOE_FLASHMOE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "flashmoe/export.hpp"
#include "flashmoe/version.hpp"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors and versions ---- */

typedef enum flashmoe_status {
  FLASHMOE_OK = 0,
  FLASHMOE_ERROR = 1,            /* none of the following: no memory for a heap, a damaged BLAS */
  FLASHMOE_INVALID_ARGUMENT = 2, /* the caller's input breaks a stated rule */
  FLASHMOE_CUDA_ERROR = 3,       /* a CUDA call failed, or there is no usable device */
  FLASHMOE_FABRIC_ERROR = 4,     /* the ranks disagree, or another one failed */
  FLASHMOE_TIMEOUT = 5,          /* a wait passed its deadline, or the layer's heap is dead since one did */
  FLASHMOE_OUT_OF_MEMORY = 6
} flashmoe_status;

/* The sentence of this thread's last call that failed; "" when none did. Valid until the thread's next failure. */
FLASHMOE_API const char* flashmoe_last_error(void);

/* "ok", "invalid argument", ...; "unknown status" for another number. Static storage. */
FLASHMOE_API const char* flashmoe_status_name(flashmoe_status status);

/* The library's version, "major.minor.patch"; compare with FLASHMOE_VERSION of the header. Static storage. */
FLASHMOE_API const char* flashmoe_version(void);

/* Fails with FLASHMOE_INVALID_ARGUMENT when this library cannot serve a program built against the header of that
 * version: another major number (below 1.0: another minor one), or a newer header than the library. */
FLASHMOE_API flashmoe_status flashmoe_check_version(int major, int minor, int patch);
#define FLASHMOE_CHECK_VERSION() \
  flashmoe_check_version(FLASHMOE_VERSION_MAJOR, FLASHMOE_VERSION_MINOR, FLASHMOE_VERSION_PATCH)

/* ---- Problem: flashmoe/problem.hpp says what each member means ---- */

enum { FLASHMOE_BF16 = 0, FLASHMOE_FP16 = 1, FLASHMOE_TF32 = 2, FLASHMOE_FP32 = 3, FLASHMOE_FP64 = 4 };
enum {
  FLASHMOE_SILU = 0,
  FLASHMOE_GELU_ERF = 1,
  FLASHMOE_GELU_TANH = 2,
  FLASHMOE_RELU = 3,
  FLASHMOE_RELU_SQUARED = 4,
  FLASHMOE_IDENTITY = 5,
  FLASHMOE_SWIGLU_CLAMPED = 6
};
enum { FLASHMOE_WIRE_AUTOMATIC = 0, FLASHMOE_WIRE_COUNTED = 1, FLASHMOE_WIRE_LINED = 2 };
enum { FLASHMOE_RESULT_AUTOMATIC = 0, FLASHMOE_RESULT_PER_ROUTE = 1, FLASHMOE_RESULT_PRE_REDUCED = 2 };

typedef struct flashmoe_problem {
  size_t struct_size;
  int32_t num_ranks;
  int32_t hidden;
  int32_t intermediate;
  int32_t num_experts;
  int32_t top_k;
  int32_t dtype; /* FLASHMOE_BF16 ... */
  int64_t max_tokens;
  int32_t activation; /* FLASHMOE_SILU ... */
  int32_t gated;      /* this and the other flags: 0 or 1 */
  int32_t up_bias;
  int32_t down_bias;
  int32_t weight_on_input;
  int32_t batch_invariant;
  double swiglu_alpha;
  double swiglu_limit;
  int64_t wave_tokens;
  int32_t wave_ring;
  int32_t wire_form;   /* FLASHMOE_WIRE_AUTOMATIC ... */
  int32_t result_form; /* FLASHMOE_RESULT_AUTOMATIC ... */
} flashmoe_problem;

FLASHMOE_API void flashmoe_problem_init_sized(flashmoe_problem* problem, size_t struct_size);
static inline void flashmoe_problem_init(flashmoe_problem* problem) {
  flashmoe_problem_init_sized(problem, sizeof *problem);
}
FLASHMOE_API flashmoe_status flashmoe_problem_validate(const flashmoe_problem* problem);
FLASHMOE_API flashmoe_status flashmoe_problem_hash(const flashmoe_problem* problem, uint64_t* hash);

/* ---- Router: flashmoe/router.hpp ---- */

enum {
  FLASHMOE_ROUTER_SOFTMAX_TOPK = 0,
  FLASHMOE_ROUTER_TOPK_SOFTMAX = 1,
  FLASHMOE_ROUTER_SIGMOID_GROUPED = 2,
  FLASHMOE_ROUTER_SIGMOID_TOPK = 3,
  FLASHMOE_ROUTER_SOFTMAX_GROUP_LIMITED = 4,
  FLASHMOE_ROUTER_SPARSEMIXER = 5
};

typedef struct flashmoe_router_config {
  size_t struct_size;
  int32_t function; /* FLASHMOE_ROUTER_SOFTMAX_TOPK ... */
  int32_t num_experts;
  int32_t top_k;
  int32_t renormalize; /* 0 or 1 */
  double scaling_factor;
  int32_t num_groups;
  int32_t topk_groups;
  double jitter_epsilon;
} flashmoe_router_config;

typedef struct flashmoe_router_parameters {
  size_t struct_size;
  int32_t hidden;
  const void* weight;          /* [num_experts][hidden] of weight_dtype or NULL: the router takes logits only */
  const float* bias;           /* [num_experts] or NULL */
  const float* selection_bias; /* [num_experts] or NULL */
  int32_t weight_dtype;        /* FLASHMOE_FP32 ... */
  int32_t backend;             /* FLASHMOE_BACKEND_CPU: the parameters are copied. _CUDA: used where they lie */
  int32_t device;              /* the GPU of FLASHMOE_BACKEND_CUDA */
} flashmoe_router_parameters;

typedef struct flashmoe_router flashmoe_router;

FLASHMOE_API void flashmoe_router_config_init_sized(flashmoe_router_config* config, size_t struct_size);
static inline void flashmoe_router_config_init(flashmoe_router_config* config) {
  flashmoe_router_config_init_sized(config, sizeof *config);
}
FLASHMOE_API void flashmoe_router_parameters_init_sized(flashmoe_router_parameters* parameters, size_t struct_size);
static inline void flashmoe_router_parameters_init(flashmoe_router_parameters* parameters) {
  flashmoe_router_parameters_init_sized(parameters, sizeof *parameters);
}
FLASHMOE_API flashmoe_status flashmoe_router_config_validate(const flashmoe_router_config* config);

/* `parameters` NULL: none, on backend cpu. */
FLASHMOE_API flashmoe_status flashmoe_router_create(const flashmoe_router_config* config,
                                                    const flashmoe_router_parameters* parameters,
                                                    flashmoe_router** router);
FLASHMOE_API void flashmoe_router_destroy(flashmoe_router* router);

/* Routes of hidden states. x [num_tokens][hidden] of dtype; topk_ids, topk_weights [num_tokens][top_k] out. Backend
 * cuda: launched on `stream`, a cudaStream_t (NULL: the default stream), without waiting. */
FLASHMOE_API flashmoe_status flashmoe_router_route(const flashmoe_router* router, int32_t dtype, const void* x,
                                                   int64_t num_tokens, int32_t* topk_ids, float* topk_weights,
                                                   void* stream);

/* Routes of logits [num_tokens][num_experts]. */
FLASHMOE_API flashmoe_status flashmoe_router_route_logits(const flashmoe_router* router, const float* logits,
                                                          int64_t num_tokens, int32_t* topk_ids, float* topk_weights,
                                                          void* stream);

/* ---- Models: flashmoe/model_config.hpp ---- */

FLASHMOE_API size_t flashmoe_num_presets(void);

/* Name of preset `index`, or NULL beyond the last. Static storage. */
FLASHMOE_API const char* flashmoe_preset_name(size_t index);

/* Problem and router of a preset's layer, over structs that have been initialised; `router` may be NULL. Not validated:
 * flashmoe_problem_validate() says whether ranks, tokens and dtype go with it. Fails, with nothing written, where a
 * struct of an older header lacks a member that the layer sets. */
FLASHMOE_API flashmoe_status flashmoe_preset(const char* name, int32_t num_ranks, int64_t max_tokens, int32_t dtype,
                                             flashmoe_problem* problem, flashmoe_router_config* router);

/* The same of a Hugging Face config.json, or of a directory that holds one. */
FLASHMOE_API flashmoe_status flashmoe_load_config(const char* path, int32_t num_ranks, int64_t max_tokens, int32_t dtype,
                                                  flashmoe_problem* problem, flashmoe_router_config* router);

/* ---- Group: flashmoe/group.hpp ---- */

enum { FLASHMOE_BACKEND_CPU = 0, FLASHMOE_BACKEND_CUDA = 1 };

typedef struct flashmoe_group_options {
  size_t struct_size;
  int32_t backend; /* FLASHMOE_BACKEND_CPU ... */
  int32_t num_dispatchers;
  int32_t num_processors;
  int32_t num_threads;
  double deadline_seconds;
  double meeting_seconds;
  int32_t first_device; /* of FLASHMOE_BACKEND_CUDA, all ranks in this process; on FLASHMOE_BACKEND_CPU 0 */
} flashmoe_group_options;

typedef struct flashmoe_group flashmoe_group;

FLASHMOE_API void flashmoe_group_options_init_sized(flashmoe_group_options* options, size_t struct_size);
static inline void flashmoe_group_options_init(flashmoe_group_options* options) {
  flashmoe_group_options_init_sized(options, sizeof *options);
}

/* Ranks of this process, each on a thread of its own. `options` NULL: defaults. */
FLASHMOE_API flashmoe_status flashmoe_group_create_local(int32_t num_ranks, const flashmoe_group_options* options,
                                                         flashmoe_group** group);

/* Joins this process to a group of processes as rank `rank` on GPU `device`: Group::join() of the header says how.
 * `options` with backend FLASHMOE_BACKEND_CUDA. */
FLASHMOE_API flashmoe_status flashmoe_group_join(const char* group_id, int32_t rank, int32_t num_ranks, int32_t device,
                                                 const flashmoe_group_options* options, flashmoe_group** group);
FLASHMOE_API void flashmoe_group_destroy(flashmoe_group* group);

/* ---- Layer: flashmoe/layer.hpp ---- */

typedef struct flashmoe_weights {
  size_t struct_size;
  const void* up;         /* [num_local_experts][up_columns][hidden], gate rows first */
  const void* down;       /* [num_local_experts][hidden][intermediate] */
  const float* up_bias;   /* [num_local_experts][up_columns] or NULL */
  const float* down_bias; /* [num_local_experts][hidden] or NULL */
} flashmoe_weights;

typedef struct flashmoe_call {
  size_t struct_size;
  int64_t num_tokens;
  int64_t max_tokens;        /* the same on all ranks; 0: the problem's */
  const void* x;             /* [num_tokens][hidden] */
  const int32_t* topk_ids;   /* [num_tokens][top_k] */
  const float* topk_weights; /* [num_tokens][top_k] */
  void* y;                   /* [num_tokens][hidden] out */
  void* stream;              /* flashmoe_layer_enqueue() alone: a cudaStream_t; NULL: the default stream */
  const int64_t* gpu_tokens; /* flashmoe_layer_enqueue() alone: GPU memory, rows of x that count; NULL: all */
} flashmoe_call;

typedef struct flashmoe_call_stats {
  size_t struct_size;
  int32_t wire_form;
  int32_t result_form;
  uint64_t epoch;
  uint64_t wire_bytes;
  uint64_t wire_overhead_bytes;
  uint64_t kernel_launches;
  double dispatch_us;
  double subscribe_us;
  double schedule_us;
  double process_us;
  double combine_us;
  double idle_us;
  double wall_us;
} flashmoe_call_stats;

typedef struct flashmoe_layer_info {
  size_t struct_size;
  const char* engine; /* this and the other strings live as long as the layer */
  const char* plan;
  int32_t wire_form;
  int32_t result_form;
  int64_t wave_tokens;
  int64_t lined_tokens;
  int32_t wave_ring;
  size_t heap_bytes;
  size_t local_bytes;
  size_t num_heap_regions;
  int32_t device; /* the rank's GPU; -1 on FLASHMOE_BACKEND_CPU */
} flashmoe_layer_info;

typedef struct flashmoe_heap_region {
  size_t struct_size;
  const char* name;
  size_t offset_bytes;
  size_t bytes;
} flashmoe_heap_region;

typedef struct flashmoe_layer flashmoe_layer;

static inline void flashmoe_weights_init(flashmoe_weights* weights) {
  memset(weights, 0, sizeof *weights);
  weights->struct_size = sizeof *weights;
}
static inline void flashmoe_call_init(flashmoe_call* call) {
  memset(call, 0, sizeof *call);
  call->struct_size = sizeof *call;
}
static inline void flashmoe_call_stats_init(flashmoe_call_stats* stats) {
  memset(stats, 0, sizeof *stats);
  stats->struct_size = sizeof *stats;
}
static inline void flashmoe_layer_info_init(flashmoe_layer_info* info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
}
static inline void flashmoe_heap_region_init(flashmoe_heap_region* region) {
  memset(region, 0, sizeof *region);
  region->struct_size = sizeof *region;
}

/* The weights stay the caller's, unchanged and alive as long as the layer. `deadline_seconds` 0: the group's. */
FLASHMOE_API flashmoe_status flashmoe_layer_create(const flashmoe_group* group, int32_t rank,
                                                   const flashmoe_problem* problem, const flashmoe_weights* weights,
                                                   double deadline_seconds, flashmoe_layer** layer);
FLASHMOE_API void flashmoe_layer_destroy(flashmoe_layer* layer);

/* Collective; blocks until y is done. `stats` may be NULL. */
FLASHMOE_API flashmoe_status flashmoe_layer_forward(flashmoe_layer* layer, const flashmoe_call* call,
                                                    flashmoe_call_stats* stats);

/* FLASHMOE_BACKEND_CUDA: launches the call and returns at once; Layer::enqueue() of the header says how. */
FLASHMOE_API flashmoe_status flashmoe_layer_enqueue(flashmoe_layer* layer, const flashmoe_call* call);

/* Fails as a call did that has finished by now; waits for none. */
FLASHMOE_API flashmoe_status flashmoe_layer_check_calls(const flashmoe_layer* layer);

FLASHMOE_API flashmoe_status flashmoe_layer_get_info(const flashmoe_layer* layer, flashmoe_layer_info* info);

/* Region `index` of the symmetric heap, in memory order. */
FLASHMOE_API flashmoe_status flashmoe_layer_get_heap_region(const flashmoe_layer* layer, size_t index,
                                                            flashmoe_heap_region* region);

#ifdef __cplusplus
}
#endif

#endif
