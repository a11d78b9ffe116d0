"""Torch operators of the library, with fake implementations: they work under torch.compile, and run forward only."""

import weakref
from typing import Optional, Protocol, cast

import torch

from . import layer as layers
from . import _native, routing, tensors
from . import torch_arguments as arguments
from .errors import InvalidArgument
from .layer_pool import LayerPool

_pool = LayerPool()
_layers: "weakref.WeakValueDictionary[int, layers.Layer]" = weakref.WeakValueDictionary()
_owners: "weakref.WeakKeyDictionary[layers.Layer, weakref.ref[LayerOwner]]" = weakref.WeakKeyDictionary()


class LayerOwner(Protocol):
    """Who keeps a layer's weights."""

    def check_weights(self) -> None:
        """Raises an Error where they are not what the layer reads any more."""


def fused_moe(
    hidden_states: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    gate_up_order: Optional[arguments.GateUpOrder],
    activation: layers.Activation = "silu",
    expert_map: Optional[torch.Tensor] = None,
    apply_router_weight_on_input: bool = False,
    w13_bias: Optional[torch.Tensor] = None,
    w2_bias: Optional[torch.Tensor] = None,
    swiglu_alpha: float = 1.702,
    swiglu_limit: float = 7.0,
) -> torch.Tensor:
    """The routed experts of one rank: for each token, the weighted sum of what its experts make of it.

    Args:
        hidden_states: [num_tokens, hidden], bf16, fp16, fp32 (on a GPU tf32, see layer_dtype()) or fp64; not changed.
        w13: [num_experts, 2 * intermediate, hidden] of the same type; [num_experts, intermediate, hidden]: not gated.
        w2: [num_experts, hidden, intermediate] of the same type.
        topk_weights: [num_tokens, top_k], any floating-point type; used as fp32.
        topk_ids: [num_tokens, top_k], int8 to int64 or uint8 to uint32; -1: no expert. An expert may repeat.
        gate_up_order: where the rows of gate and up lie in w13: "gate_up" (gate first; used as it lies), "up_gate",
            "interleaved" (gate, up, gate, ...; both are copied at every call). None where the experts are not gated.
        activation: "silu", "gelu", "gelu_tanh", "relu", "relu2", "identity" or "swiglu_clamped" (gpt-oss, gated only).
        expert_map: [num_global_experts] of the same types: index of a global expert in w13 and w2, -1: another rank's.
            topk_ids are global then, and the result is this rank's part of the sum.
        apply_router_weight_on_input: the weight scales what goes into the activation instead of the result.
        w13_bias: [num_experts, 2 * intermediate] in gate_up_order; used as fp32.
        w2_bias: [num_experts, hidden]; used as fp32.
        swiglu_alpha, swiglu_limit: of swiglu_clamped.

    All tensors lie on one device, the CPU or a GPU. On a GPU the call is a launch on torch's current stream: it returns at
    once, and may be captured into a CUDA graph; graphs of calls with equal shapes must not run at once.

    Returns a contiguous tensor like hidden_states. Sums are taken in fp32, in the order of the choices.

    Raises InvalidArgument for shapes, strides, devices, orders and ids that do not fit, InvalidDType for types, and
    ForwardOnly when a gradient is asked for. On a GPU ids out of range leave the result undefined and are raised by the
    next call of that problem.
    """
    gated = arguments.check_experts(hidden_states, w13, w2, w13_bias, w2_bias, gate_up_order)
    arguments.check_routes(hidden_states, topk_weights, topk_ids)
    arguments.refuse_transforms(hidden_states, w13, w2, topk_weights, w13_bias, w2_bias)
    if gate_up_order in ("up_gate", "interleaved"):
        w13 = gate_first(w13, gate_up_order)
        w13_bias = None if w13_bias is None else gate_first(w13_bias, gate_up_order)
    arguments.require_integers("topk_ids", topk_ids)
    if expert_map is None:
        ids = topk_ids
    else:
        arguments.check_expert_map(expert_map, hidden_states)
        ids = torch.ops.flashmoe.local_ids(topk_ids.to(torch.int64), expert_map.to(torch.int64), w13.shape[0])
    return torch.ops.flashmoe.fused_moe(
        hidden_states, w13, w2, arguments.fp32("topk_weights", topk_weights), ids,
        None if w13_bias is None else arguments.fp32("w13_bias", w13_bias),
        None if w2_bias is None else arguments.fp32("w2_bias", w2_bias),
        arguments.one_of(_native.ACTIVATIONS, "activation", activation), gated,
        arguments.flag("apply_router_weight_on_input", apply_router_weight_on_input),
        arguments.real("swiglu_alpha", swiglu_alpha), arguments.real("swiglu_limit", swiglu_limit))


def release_memory() -> None:
    """Gives back the memory that fused_moe() keeps between calls: heaps of recent problems, up to 1 GiB, no weights.

    CUDA graphs that captured fused_moe() must not be replayed after that.
    """
    _pool.clear()


def gate_first(tensor: torch.Tensor, order: arguments.GateUpOrder) -> torch.Tensor:
    """Rows (dimension 1) of gate and up in the order "gate_up"; a copy unless they are so already."""
    if order == "gate_up":
        return tensor
    half = tensor.shape[1] // 2
    if order == "up_gate":
        return torch.cat([tensor[:, half:], tensor[:, :half]], dim=1)
    pairs = tensor.reshape(tensor.shape[0], half, 2, *tensor.shape[2:])
    return torch.cat([pairs[:, :, 0], pairs[:, :, 1]], dim=1)


def route_logits(logits: torch.Tensor, top_k: int, *, function: str, renormalize: bool, scaling_factor: float,
                 num_groups: int, topk_groups: int, jitter_epsilon: float,
                 selection_bias: Optional[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """routing.route() of torch tensors."""
    arguments.refuse_transforms(logits)
    if logits.dim() != 2:
        raise InvalidArgument(f"logits has shape {list(logits.shape)}, wanted [num_tokens, num_experts]")
    return torch.ops.flashmoe.route_logits(
        arguments.fp32("logits", logits),
        None if selection_bias is None else arguments.fp32("selection_bias", selection_bias),
        *arguments.router_settings(
            top_k, function, renormalize, scaling_factor, num_groups, topk_groups, jitter_epsilon))


def route(hidden_states: torch.Tensor, weight: torch.Tensor, top_k: int, *, bias: Optional[torch.Tensor] = None,
          selection_bias: Optional[torch.Tensor] = None, function: str = "softmax_topk", renormalize: bool = False,
          scaling_factor: float = 1.0, num_groups: int = 1, topk_groups: int = 1,
          jitter_epsilon: float = 0.01) -> tuple[torch.Tensor, torch.Tensor]:
    """Router.route() of hidden states [num_tokens, hidden], as an operator. On a GPU, where x and weight have different
    types, both are converted to the wider one. Biases are used as fp32."""
    arguments.require_torch(hidden_states, "hidden_states")
    if hidden_states.dim() != 2 or hidden_states.shape[1] != weight.shape[1]:
        raise InvalidArgument(f"hidden_states has shape {list(hidden_states.shape)}, wanted [num_tokens, "
                              f"{weight.shape[1]}] as the router's weight")
    arguments.require_float(hidden_states, "hidden_states")
    if weight.device != hidden_states.device:
        raise InvalidArgument(f"hidden_states is on {hidden_states.device}, wanted {weight.device} as the router's "
                              "weight: move one")
    arguments.refuse_transforms(hidden_states, weight)
    bias = None if bias is None else arguments.fp32("bias", bias)
    selection_bias = None if selection_bias is None else arguments.fp32("selection_bias", selection_bias)
    return torch.ops.flashmoe.route(
        hidden_states, weight, bias, selection_bias,
        *arguments.router_settings(
            top_k, function, renormalize, scaling_factor, num_groups, topk_groups, jitter_epsilon))


def register_layer(layer: layers.Layer, owner: Optional[LayerOwner] = None) -> torch.Tensor:
    """The number by which run_layer() knows the layer, as long as somebody holds it.

    A tensor of no dimensions, so that torch.compile takes it as an input and not as part of the code. owner: is asked
    to check the weights before each call, in compiled code, too; it is not kept alive.
    """
    _layers[id(layer)] = layer
    if owner is not None:
        _owners[layer] = weakref.ref(owner)
    return torch.tensor(id(layer), device="cpu")


def run_layer(number: torch.Tensor, hidden_states: torch.Tensor, topk_weights: torch.Tensor,
              topk_ids: torch.Tensor) -> torch.Tensor:
    """Layer.forward() as an operator. Raises what the layer's owner raises, too."""
    arguments.refuse_transforms(hidden_states, topk_weights)
    arguments.require_integers("topk_ids", topk_ids)
    return torch.ops.flashmoe.layer_forward(
        hidden_states, arguments.fp32("topk_weights", topk_weights), topk_ids, number)


# ---- The operators ----


@torch.library.custom_op("flashmoe::fused_moe", mutates_args=())
def _fused_moe(
    hidden_states: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
    topk_ids: torch.Tensor, w13_bias: Optional[torch.Tensor], w2_bias: Optional[torch.Tensor], activation: str,
    gated: bool, weight_on_input: bool, swiglu_alpha: float, swiglu_limit: float,
) -> torch.Tensor:
    place = tensors.view(hidden_states, "hidden_states").place
    for name, given in (("hidden_states", hidden_states), ("w13", w13), ("w2", w2)):
        tensors.require_contiguous(tensors.view(given, name), name)  # by the name that it has here
    dtype = arguments.layer_dtype(hidden_states.dtype, place, "dtype of hidden_states")
    output = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    num_tokens, hidden = hidden_states.shape
    if num_tokens == 0 or topk_ids.shape[-1] == 0:
        return output.zero_()
    weights, ids = arguments.fewer_routes(topk_weights, arguments.int32_ids("topk_ids", topk_ids),
                                          min(w13.shape[0], arguments.MOST_TOP_K))
    problem = layers.Problem(
        hidden=hidden, intermediate=w2.shape[2], num_experts=w13.shape[0], top_k=ids.shape[-1],
        max_tokens=1 << (num_tokens - 1).bit_length(), dtype=dtype,
        activation=cast(layers.Activation, activation), gated=gated, up_bias=w13_bias is not None,
        down_bias=w2_bias is not None, weight_on_input=weight_on_input, swiglu_alpha=swiglu_alpha,
        swiglu_limit=swiglu_limit)
    captured = place != "cpu" and torch.cuda.is_current_stream_capturing()
    with arguments.ids_told_as_given(topk_ids, problem.num_experts):
        return _pool.run(
            problem, place, w13, w2,
            lambda layer: layer.forward(hidden_states.detach(), weights.detach(), ids, out=output),
            up_bias=w13_bias, down_bias=w2_bias, captured=captured)


@_fused_moe.register_fake
def _(hidden_states, w13, w2, topk_weights, topk_ids, *_):
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@torch.library.custom_op("flashmoe::local_ids", mutates_args=())
def _local_ids(ids: torch.Tensor, expert_map: torch.Tensor, num_experts: int) -> torch.Tensor:
    return arguments.local_ids(ids, expert_map, num_experts)


@_local_ids.register_fake
def _(ids, *_):
    return torch.empty_like(ids, dtype=torch.int32, memory_format=torch.contiguous_format)


@torch.library.custom_op("flashmoe::layer_forward", mutates_args=())
def _layer_forward(hidden_states: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
                   number: torch.Tensor) -> torch.Tensor:
    layer = _layers.get(int(number))
    if layer is None:
        raise InvalidArgument("the layer of this operator is gone: keep its module alive")
    owner = _owners[layer]() if layer in _owners else None
    if owner is not None:
        owner.check_weights()
    problem = layer.problem
    tensors.require(hidden_states, "hidden_states", (None, problem.hidden), layers.storage_dtype(problem.dtype),
                    topk_weights.device.type)
    ids = arguments.int32_ids("topk_ids", topk_ids)
    with arguments.ids_told_as_given(topk_ids, problem.num_experts):
        return layer.forward(hidden_states.detach(), topk_weights.detach(), ids)


@_layer_forward.register_fake
def _(hidden_states, topk_weights, topk_ids, number):
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@torch.library.custom_op("flashmoe::route_logits", mutates_args=())
def _route_logits(logits: torch.Tensor, selection_bias: Optional[torch.Tensor], top_k: int, function: str,
                  renormalize: bool, scaling_factor: float, num_groups: int, topk_groups: int,
                  jitter_epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    router = routing.Router(
        logits.shape[1], top_k, function=cast(routing.RouterFunction, function), renormalize=renormalize,
        scaling_factor=scaling_factor, num_groups=num_groups, topk_groups=topk_groups, jitter_epsilon=jitter_epsilon,
        selection_bias=selection_bias, device=tensors.view(logits, "logits").place)
    return router.route_logits(logits.detach())


@torch.library.custom_op("flashmoe::route", mutates_args=())
def _route(hidden_states: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor],
           selection_bias: Optional[torch.Tensor], top_k: int, function: str, renormalize: bool, scaling_factor: float,
           num_groups: int, topk_groups: int, jitter_epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    tensors.require_contiguous(tensors.view(hidden_states, "hidden_states"), "hidden_states")
    if hidden_states.device.type == "cuda":
        wide = torch.promote_types(hidden_states.dtype, weight.dtype)
        wide = torch.float32 if wide == torch.float64 else wide
        hidden_states, weight = hidden_states.to(wide), weight.to(wide)
    router = routing.Router(
        weight.shape[0], top_k, function=cast(routing.RouterFunction, function), renormalize=renormalize,
        scaling_factor=scaling_factor, num_groups=num_groups, topk_groups=topk_groups, jitter_epsilon=jitter_epsilon,
        weight=weight, bias=bias, selection_bias=selection_bias)
    return router.route(hidden_states.detach())


def _fake_routes(tokens: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (tokens.shape[0], top_k)
    return tokens.new_empty(shape, dtype=torch.float32), tokens.new_empty(shape, dtype=torch.int32)


@_route_logits.register_fake
def _(logits, selection_bias, top_k, *_):
    return _fake_routes(logits, top_k)


@_route.register_fake
def _(hidden_states, weight, bias, selection_bias, top_k, *_):
    return _fake_routes(hidden_states, top_k)


for _operator in (_fused_moe, _layer_forward, _route_logits, _route):
    _operator.register_autograd(arguments.refuse_backward)
