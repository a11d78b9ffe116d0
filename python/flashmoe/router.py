"""The router of the page interface (see `flashmoe.page`): `initialize`, `forward`, `finalize`."""

import dataclasses
from typing import Any

from . import tensors
from .errors import InvalidArgument, InvalidDType
from .page import FlashHandle, InitArgs, on_stream, used_here
from .routing import Router, RouterFunction


@dataclasses.dataclass
class RouterForwardArgs:
    """Tensors of one router call. The weights are transposed when they are first used: use one RouterForwardArgs for all
    calls with the same ones.

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
        self._weight: Any = None
        self._weight_of: Any = None

    def weight_of(self, args: RouterForwardArgs) -> Any:
        """[num_experts][token_dim]"""
        if self._weight is None or self._weight_of is not args:
            self._weight, self._weight_of = args.weights.detach().t().contiguous(), args
        return self._weight


def initialize(args: InitArgs, *, function: RouterFunction = "softmax_topk", renormalize: bool = False) -> RouterHandle:
    """A router for the layer that `args` describes. function, renormalize: as of `flashmoe.Router`."""
    Router(args.num_experts, args.top_k, function=function, renormalize=renormalize)
    return RouterHandle(args, function, renormalize)


def forward(router_handle: RouterHandle, flash_handle: FlashHandle, args: RouterForwardArgs) -> None:
    """Routes the tokens; the next `flashmoe.forward` of flash_handle uses the routes.

    Raises InvalidArgument (InvalidDType) for tensors that do not fit, and after finalize().
    """
    if not router_handle.open:
        raise InvalidArgument("the router is finalized: call flashmoe.router.initialize again")
    flash_handle.require_open()
    init = router_handle.args
    if not all(tensors.is_torch(tensor) for tensor in (args.tokens, args.weights)):
        raise InvalidDType("tokens and weights of the router must be torch tensors")
    if tuple(args.weights.shape) != (init.token_dim, init.num_experts):
        raise InvalidArgument(f"weights of the router has shape {list(args.weights.shape)}, wanted "
                              f"[{init.token_dim}, {init.num_experts}]")
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


def finalize(router_handle: RouterHandle, stream_ptr: int = 0) -> None:
    """Lets go of the router. Raises InvalidArgument the second time."""
    if not router_handle.open:
        raise InvalidArgument("the router is finalized already: finalize it once")
    router_handle.open = False
