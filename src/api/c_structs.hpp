// The C interface's structs as the C++ interface's, and back.
#pragma once

#include "flashmoe/flashmoe.h"
#include "flashmoe/group.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/router.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

flashmoe_problem to_c(const Problem& problem);
flashmoe_router_config to_c(const RouterConfig& config);
flashmoe_router_parameters to_c(const RouterParameters& parameters);
flashmoe_group_options to_c(const GroupOptions& options);

/// Throw InvalidArgument for a struct that is null or of an impossible size, and for a number no enumeration has.
Problem read_problem(const flashmoe_problem* problem);
RouterConfig read_router_config(const flashmoe_router_config* config);
RouterParameters read_router_parameters(const flashmoe_router_parameters* parameters);
RouterPlace read_router_place(const flashmoe_router_parameters* parameters);
GroupOptions read_group_options(const flashmoe_group_options* options);
WeightsView read_weights(const flashmoe_weights* weights);

}  // namespace flashmoe
