"""The router of the page interface (see `flashmoe.page`): `initialize`, `forward`, `finalize`."""

import dataclasses
from typing import Any

from . import tensors
from .errors import InvalidArgument, InvalidDType
from .page import FlashHandle, InitArgs, check_tokens, on_stream, require_kind, require_torch, used_here
from .routing import Router, RouterFunction


@dataclasses.dataclass
class RouterForwardArgs:
    """Tensors of one router call. The weights are transposed into a copy, which is made anew for others and where
    their values have changed, as MoEForwardArgs says.

    tokens: [tokens_per_rank][token_dim] of the data type. weights: fp32 or the data type [token_dim][num_experts].
    expert_counts: int32 [num_experts], out: tokens that chose each expert; None: not wanted.
    """

    tokens: Any
    weights: Any
    expert_counts: Any = None
    stream_ptr: int = 0
    """cudaStream_t of the call; 0: InitArgs'."""


class RouterHandle:
    """What initialize() returns."""

    def __init__(self, args: InitArgs, function: RouterFunction, renormalize: bool):
        self.args, self.function, self.renormalize = args, function, renormalize
        self.open = True
        self._weight: Any = None  # Packed

    def weight_of(self, args: RouterForwardArgs) -> Any:
        """[num_experts][token_dim]"""
        from .packed import Packed

        transposed = [args.weights.t()]
        if self._weight is None or not self._weight.is_of(transposed):
            self._weight = Packed(transposed)
        else:
            self._weight.copy_changes(transposed)
        return self._weight.whole


def initialize(args: InitArgs, *, function: RouterFunction = "softmax_topk", renormalize: bool = False) -> RouterHandle:
    """A router for the layer that `args` describes. function, renormalize: as of `flashmoe.Router`."""
    require_kind(args, "args", InitArgs, "flashmoe.InitArgs")
    Router(args.num_experts, args.top_k, function=function, renormalize=renormalize)
    return RouterHandle(dataclasses.replace(args), function, renormalize)


def forward(router_handle: RouterHandle, flash_handle: FlashHandle, args: RouterForwardArgs) -> None:
    """Routes the tokens; the next `flashmoe.forward` of flash_handle uses the routes.

    Raises InvalidArgument (InvalidDType) for tensors that do not fit, and after finalize().
    """
    require_kind(router_handle, "router_handle", RouterHandle, "what flashmoe.router.initialize returned")
    require_kind(flash_handle, "flash_handle", FlashHandle, "what flashmoe.initialize returned")
    require_kind(args, "args", RouterForwardArgs, "flashmoe.router.RouterForwardArgs")
    if not router_handle.open:
        raise InvalidArgument("the router is finalized: call flashmoe.router.initialize again")
    flash_handle.require_open()
    init = router_handle.args
    _check_goes_with(init, flash_handle.args)
    check_tokens(init, args.tokens)
    _check_parameters(init, args)
    from . import torch_ops

    with on_stream(init, args.stream_ptr):
        weight = router_handle.weight_of(args)
        used_here(weight)
        topk_weights, topk_ids = torch_ops.route(
            args.tokens.detach(), weight, init.top_k, function=router_handle.function,
            renormalize=router_handle.renormalize)
        if args.expert_counts is not None:
            args.expert_counts.zero_().index_add_(0, topk_ids.flatten(), topk_ids.new_ones(topk_ids.numel()))
    flash_handle.routes = (topk_weights, topk_ids)


def _check_goes_with(init: InitArgs, layer: InitArgs) -> None:
    for name in ("num_experts", "top_k", "token_dim", "data_type", "device_id"):
        if getattr(init, name) != getattr(layer, name):
            raise InvalidArgument(f"{name} of the router ({getattr(init, name)}) must be the layer's "
                                  f"({getattr(layer, name)}): initialize both with the same InitArgs")


def _check_parameters(init: InitArgs, args: RouterForwardArgs) -> None:
    require_torch(args.weights, "weights")
    got = tensors.view(args.weights, "weights")
    if got.dtype not in ("fp32", init.storage_dtype):
        raise InvalidDType(f"weights has dtype {got.dtype}, wanted fp32 or {init.storage_dtype}: convert it")
    tensors.check_form(got, "weights", (init.token_dim, init.num_experts), got.dtype, init.place)
    if args.expert_counts is not None:
        require_torch(args.expert_counts, "expert_counts")
        tensors.check_form(tensors.view(args.expert_counts, "expert_counts"), "expert_counts", (init.num_experts,),
                           "int32", init.place)


def finalize(router_handle: RouterHandle, stream_ptr: int = 0) -> None:
    """Lets go of the router. Raises InvalidArgument the second time."""
    require_kind(router_handle, "router_handle", RouterHandle, "what flashmoe.router.initialize returned")
    if not router_handle.open:
        raise InvalidArgument("the router is finalized already: finalize it once")
    router_handle.open = False
