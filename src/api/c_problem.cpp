// Problems and models of the C interface.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>

#include "api/c_abi.hpp"
#include "api/c_structs.hpp"
#include "flashmoe/model_config.hpp"

namespace flashmoe {

namespace {

/// Throws InvalidArgument where the caller's struct, of an older header, ends before a member that `value` sets: left
/// out, it would be another layer. `read`: a struct as the C++ interface's.
template <class T, class Value>
void require_room(const char* name, const T* out, const Value& value, Value (*read)(const T*)) {
  check_struct(name, out);
  const T all = to_c(value);
  T kept = to_c(Value{});
  std::memcpy(&kept, &all, out->struct_size);
  if (read(&kept) == value) return;
  throw InvalidArgument(
      fmt::format("{}->struct_size ({}) must be larger for this model, which sets a member behind it: "
                  "build the program with a header as new as the library",
                  name, out->struct_size));
}

void write_model(const ModelConfig& model, int num_ranks, std::int64_t max_tokens, int dtype, flashmoe_problem* problem,
                 flashmoe_router_config* router) {
  const Problem layer = make_problem(model, num_ranks, max_tokens, to_enum<DType>("dtype", dtype));
  require_room("problem", problem, layer, read_problem);
  if (router != nullptr) require_room("router_config", router, model.router, read_router_config);
  write_struct("problem", problem, to_c(layer));
  if (router != nullptr) write_struct("router_config", router, to_c(model.router));
}

}  // namespace

}  // namespace flashmoe

extern "C" {

void flashmoe_problem_init_sized(flashmoe_problem* problem, size_t struct_size) {
  flashmoe::init_struct(problem, struct_size, flashmoe::to_c(flashmoe::Problem{}));
}

flashmoe_status flashmoe_problem_validate(const flashmoe_problem* problem) {
  return flashmoe::guarded([&] { flashmoe::validate(flashmoe::read_problem(problem)); });
}

flashmoe_status flashmoe_problem_hash(const flashmoe_problem* problem, uint64_t* hash) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("hash", hash);
    *hash = flashmoe::hash(flashmoe::read_problem(problem));
  });
}

size_t flashmoe_num_presets(void) { return flashmoe::model_presets().size(); }

const char* flashmoe_preset_name(size_t index) {
  const auto& presets = flashmoe::model_presets();
  return index < presets.size() ? presets[index].name.c_str() : nullptr;
}

flashmoe_status flashmoe_preset(const char* name, int32_t num_ranks, int64_t max_tokens, int32_t dtype,
                                flashmoe_problem* problem, flashmoe_router_config* router) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("name", name);
    flashmoe::write_model(flashmoe::model_preset(name), num_ranks, max_tokens, dtype, problem, router);
  });
}

flashmoe_status flashmoe_load_config(const char* path, int32_t num_ranks, int64_t max_tokens, int32_t dtype,
                                     flashmoe_problem* problem, flashmoe_router_config* router) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("path", path);
    flashmoe::write_model(flashmoe::load_model_config(path), num_ranks, max_tokens, dtype, problem, router);
  });
}

}  // extern "C"
