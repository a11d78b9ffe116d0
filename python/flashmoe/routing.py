"""From router logits to (expert, weight) routes: every rule published checkpoints use."""

import ctypes
from typing import Any, Literal, Optional

from . import _native, tensors
from .errors import InvalidArgument, InvalidDType
from .layer import refuse_gradient

RouterFunction = Literal[
    "softmax_topk", "topk_softmax", "sigmoid_grouped", "sigmoid_topk", "softmax_group_limited", "sparsemixer",
]


class Router:
    """A router with its parameters.

    Args:
        num_experts: experts to choose from.
        top_k: routes a token.
        function: how logits become routes:
            "softmax_topk"           softmax over all experts, then the top_k largest (Qwen, OLMoE, Mixtral, DBRX)
            "topk_softmax"           the top_k largest logits, softmax over those (gpt-oss)
            "sigmoid_grouped"        sigmoid; selection by score + bias, groups ranked by their two best (DeepSeek-V3)
            "sigmoid_topk"           the top_k largest logits, weight sigmoid(logit) (Llama 4)
            "softmax_group_limited"  softmax; groups ranked by their best score (DeepSeek-V2)
            "sparsemixer"            top 2, each softmaxed over the experts within the jitter band (Phi-3.5-MoE)
        renormalize: divide a token's weights by their sum + 1e-20.
        scaling_factor: multiplies the weights at the end; (0, 1e6].
        num_groups, topk_groups: expert groups, and how many are kept (the grouped functions; others refuse them).
        jitter_epsilon: of sparsemixer (others refuse another than this).
        weight: [num_experts][hidden] of a floating-point type, for route(); None: the router takes logits only.
        bias: fp32 [num_experts], added to the logits.
        selection_bias: fp32 [num_experts], added to scores for selection only (sigmoid_grouped).
        device: where it runs: "cpu", "cuda:0", ...; None: where the parameters lie, without any on the CPU.

    On the CPU the parameters are copied and logits summed in fp64. On a GPU the parameters are used where they lie, and
    stay alive with the router; a call is one launch on torch's current stream, returns at once, may be captured, and
    sums logits in fp32; x and weight have one type there, bf16, fp16 or fp32, hidden is a multiple of 8, and there are
    at most 1024 experts in 32 groups.

    Ties go to the lowest expert id. A token's ids are distinct and in range and its weights finite, whatever its
    logits. Raises InvalidArgument (InvalidDType) when the configuration breaks a rule or a parameter does not go
    with it.
    """

    def __init__(self, num_experts: int, top_k: int, *, function: RouterFunction = "softmax_topk",
                 renormalize: bool = False, scaling_factor: float = 1.0, num_groups: int = 1, topk_groups: int = 1,
                 jitter_epsilon: float = 0.01, weight: Any = None, bias: Any = None, selection_bias: Any = None,
                 device: Optional[str] = None):
        self.num_experts, self.top_k = num_experts, top_k
        config = _native.initialised(_native.RouterConfig, "flashmoe_router_config_init_sized")
        config.function = _native.number_of(_native.ROUTER_FUNCTIONS, "function", function)
        settings = dict(num_experts=num_experts, top_k=top_k, renormalize=renormalize, scaling_factor=scaling_factor,
                        num_groups=num_groups, topk_groups=topk_groups, jitter_epsilon=jitter_epsilon)
        for name, value in settings.items():
            _native.set_number(config, name, value)
        _native.call("flashmoe_router_config_validate", ctypes.byref(config))

        parameters = _native.initialised(_native.RouterParameters, "flashmoe_router_parameters_init_sized")
        views = {name: tensors.view(tensor, name) for name, tensor in
                 (("weight", weight), ("bias", bias), ("selection_bias", selection_bias)) if tensor is not None}
        self._device = str(device) if device is not None else next((view.place for view in views.values()), "cpu")
        backend, _, number = self._device.partition(":")
        parameters.backend = _native.number_of(_native.BACKENDS, "device", backend)
        if not (number.isdigit() or number == ""):
            raise InvalidArgument(f"device ('{self._device}') must be \"cpu\" or \"cuda:N\": name a GPU by its number")
        parameters.device = int(number or 0)
        for name, got in views.items():
            shape, dtype = ((num_experts, None), got.dtype) if name == "weight" else ((num_experts,), "fp32")
            tensors.check(got, name, shape, dtype, self._device)
            setattr(parameters, name, got.pointer)
        if "weight" in views:
            parameters.hidden = views["weight"].shape[1]
            parameters.weight_dtype = _number_of_dtype("weight", views["weight"].dtype)
        self.hidden = parameters.hidden
        self._parameters = views if backend == "cuda" else {}
        self._handle = _native.Handle("router_create", ctypes.byref(config), ctypes.byref(parameters))

    def route(self, x: Any) -> tuple[Any, Any]:
        """(topk_weights fp32 [num_tokens][top_k], topk_ids int32 [num_tokens][top_k]) of hidden states.

        x is [num_tokens][hidden], bf16, fp16, fp32 or on the CPU fp64. A token's routes come in order of falling selection
        score.
        """
        refuse_gradient("x", x)
        if not self.hidden:
            raise InvalidArgument("a router of hidden states needs its weight: make it with weight=, or call "
                                  "route_logits()")
        got = tensors.view(x, "x")
        dtype = _number_of_dtype("x", got.dtype)
        tensors.check(got, "x", (None, self.hidden), got.dtype, self._device)
        return self._run("flashmoe_router_route", x, got, dtype, got.pointer, got.shape[0])

    def route_logits(self, logits: Any) -> tuple[Any, Any]:
        """The same of logits fp32 [num_tokens][num_experts] that somebody else computed."""
        refuse_gradient("logits", logits)
        got = tensors.require(logits, "logits", (None, self.num_experts), "fp32", self._device)
        return self._run("flashmoe_router_route_logits", logits, got, got.pointer, got.shape[0])

    def _run(self, function: str, like: Any, got: tensors.View, *arguments: int) -> tuple[Any, Any]:
        shape = (got.shape[0], self.top_k)
        weights = tensors.empty(like, "topk_weights", shape, "fp32")
        ids = tensors.empty(like, "topk_ids", shape, "int32")
        outputs = [tensors.view(ids, "topk_ids").pointer, tensors.view(weights, "topk_weights").pointer]
        _native.call(function, self._handle, *arguments, *outputs, tensors.stream_of(like, self._device))
        return weights, ids


def _number_of_dtype(name: str, dtype: str) -> int:
    if dtype not in ("bf16", "fp16", "fp32", "fp64"):
        raise InvalidDType(f"{name} has dtype {dtype}, wanted bf16, fp16, fp32 or fp64: convert it")
    return _native.DTYPES.index(dtype)


def route(logits: Any, top_k: int, *, function: RouterFunction = "softmax_topk", renormalize: bool = False,
          scaling_factor: float = 1.0, num_groups: int = 1, topk_groups: int = 1, jitter_epsilon: float = 0.01,
          selection_bias: Any = None) -> tuple[Any, Any]:
    """(topk_weights, topk_ids) of router logits, by any published model's rule; see Router for the arguments.

    logits is [num_tokens][num_experts]: fp32 (NumPy), or any floating-point type (torch; converted to fp32).
    topk_weights is fp32, topk_ids int32, both [num_tokens][top_k].
    """
    settings: dict[str, Any] = dict(
        function=function, renormalize=renormalize, scaling_factor=scaling_factor, num_groups=num_groups,
        topk_groups=topk_groups, jitter_epsilon=jitter_epsilon)
    if tensors.is_torch(logits):
        from . import torch_ops

        return torch_ops.route_logits(logits, top_k, selection_bias=selection_bias, **settings)
    got = tensors.view(logits, "logits")
    if len(got.shape) != 2:
        raise InvalidArgument(f"logits has shape {list(got.shape)}, wanted [num_tokens, num_experts]")
    router = Router(got.shape[1], top_k, selection_bias=selection_bias, device=got.place, **settings)
    return router.route_logits(logits)
