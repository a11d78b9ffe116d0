// The router of the C interface.
#include <utility>

#include "api/c_abi.hpp"
#include "api/c_structs.hpp"

struct flashmoe_router {
  flashmoe::Router router;
};

extern "C" {

void flashmoe_router_config_init_sized(flashmoe_router_config* config, size_t struct_size) {
  flashmoe::init_struct(config, struct_size, flashmoe::to_c(flashmoe::RouterConfig{}));
}

void flashmoe_router_parameters_init_sized(flashmoe_router_parameters* parameters, size_t struct_size) {
  flashmoe::init_struct(parameters, struct_size, flashmoe::to_c(flashmoe::RouterParameters{}));
}

flashmoe_status flashmoe_router_config_validate(const flashmoe_router_config* config) {
  return flashmoe::guarded([&] { flashmoe::validate(flashmoe::read_router_config(config)); });
}

flashmoe_status flashmoe_router_create(const flashmoe_router_config* config, const flashmoe_router_parameters* parameters,
                                       flashmoe_router** router) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("router", router);
    flashmoe::Router made(flashmoe::read_router_config(config), flashmoe::read_router_parameters(parameters),
                          flashmoe::read_router_place(parameters));
    *router = new flashmoe_router{std::move(made)};
  });
}

void flashmoe_router_destroy(flashmoe_router* router) { delete router; }

flashmoe_status flashmoe_router_route(const flashmoe_router* router, int32_t dtype, const void* x, int64_t num_tokens,
                                      int32_t* topk_ids, float* topk_weights, void* stream) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("router", router);
    router->router.route(flashmoe::to_enum<flashmoe::DType>("dtype", dtype), {x, num_tokens}, topk_ids, topk_weights,
                         stream);
  });
}

flashmoe_status flashmoe_router_route_logits(const flashmoe_router* router, const float* logits, int64_t num_tokens,
                                             int32_t* topk_ids, float* topk_weights, void* stream) {
  return flashmoe::guarded([&] {
    flashmoe::require_pointer("router", router);
    router->router.route_logits(num_tokens, logits, topk_ids, topk_weights, stream);
  });
}

}  // extern "C"
