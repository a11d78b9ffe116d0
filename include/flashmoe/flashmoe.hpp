// The whole C++ interface.
//
//   Group    the ranks that build layers together       group.hpp
//   Layer    one rank's end of a distributed MoE layer   layer.hpp
//   Problem  what a layer computes                       problem.hpp
//   Router   from hidden states or logits to routes      router.hpp
//   presets and Hugging Face configs                     model_config.hpp
#pragma once

#include "flashmoe/call_stats.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/layer.hpp"
#include "flashmoe/model_config.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/router.hpp"
#include "flashmoe/types.hpp"
#include "flashmoe/version.hpp"
#include "flashmoe/views.hpp"
