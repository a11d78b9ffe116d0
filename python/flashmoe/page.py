"""The page interface: `InitArgs`, `initialize`, `forward`, `finalize`, and `flashmoe.router`.

    args = flashmoe.InitArgs(data_type=flashmoe.DataType.BF16, mlp_type=flashmoe.MLPType.GATED, ...)
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(tokens, router_weights))
    flashmoe.forward(flash, flashmoe.MoEForwardArgs(...))
    flashmoe.finalize(flash)
    flashmoe.router.finalize(router)

Tensors are torch's. `flashmoe.MoE` and `flashmoe.fused_moe` do the same with less ceremony.
"""

import dataclasses
import enum
import os
from typing import Any, Optional

from . import layer as layers
from . import tensors
from .errors import FabricError, InvalidArgument, InvalidDType
from .group import Group

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


class MLPType(enum.IntEnum):
    GATED = 0
    VANILLA = 1


class DataType(enum.IntEnum):
    BF16 = 0
    FP16 = 1
    FP32 = 2
    FP64 = 3


class ActivationType(enum.IntEnum):
    IDENTITY = 0
    SILU = 1
    GELU = 2
    RELU = 3


_DTYPES: dict[DataType, layers.DType] = {
    DataType.BF16: "bf16", DataType.FP16: "fp16", DataType.FP32: "fp32", DataType.FP64: "fp64",
}
_ACTIVATIONS: dict[ActivationType, layers.Activation] = {
    ActivationType.IDENTITY: "identity", ActivationType.SILU: "silu", ActivationType.GELU: "gelu",
    ActivationType.RELU: "relu",
}


def launched_as() -> tuple[int, int, int]:
    """(rank, number of ranks, rank on this machine) as torchrun, mpirun or srun say it; (0, 1, 0) without them."""
    for rank, num_ranks, local_rank in _RANK_VARIABLES:
        if rank in os.environ and num_ranks in os.environ:
            return int(os.environ[rank]), int(os.environ[num_ranks]), int(os.environ.get(local_rank, 0))
    return 0, 1, 0


def get_local_rank() -> int:
    """This process's place on its machine: the GPU to use."""
    return launched_as()[2]


@dataclasses.dataclass
class InitArgs:
    """What the layer computes. Sizes as in `flashmoe.Problem`."""

    data_type: DataType
    mlp_type: MLPType
    act_type: ActivationType
    tokens_per_rank: int
    token_dim: int
    ffn_size: int
    num_experts: int
    top_k: int
    device_id: Optional[int] = None
    """GPU of this rank; None: the CPU."""
    stream_ptr: int = 0
    """Of a GPU; the CPU has none."""
    ep_world: int = dataclasses.field(default_factory=lambda: launched_as()[1])
    """Number of ranks; without it as the launcher says."""
    ep_rank: int = dataclasses.field(default_factory=lambda: launched_as()[0])
    """This rank; without it as the launcher says."""

    @property
    def num_local_experts(self) -> int:
        return self.num_experts // self.ep_world

    def problem(self, biases: bool = False) -> layers.Problem:
        """Raises InvalidDType for a type that is none of the enumerations'."""
        kinds = (("data_type", DataType), ("mlp_type", MLPType), ("act_type", ActivationType))
        for name, kind in kinds:
            if not isinstance(getattr(self, name), kind):
                raise InvalidDType(f"{name} ({getattr(self, name)!r}) must be one of "
                                   f"{', '.join(f'{kind.__name__}.{key}' for key in kind.__members__)}")
        return layers.Problem(
            hidden=self.token_dim, intermediate=self.ffn_size, num_experts=self.num_experts, top_k=self.top_k,
            max_tokens=self.tokens_per_rank, dtype=_DTYPES[self.data_type], num_ranks=self.ep_world,
            activation=_ACTIVATIONS[self.act_type], gated=self.mlp_type == MLPType.GATED, up_bias=biases,
            down_bias=biases)


@dataclasses.dataclass
class MoEForwardArgs:
    """Tensors of a layer call, of the data type. E local experts, I ffn_size, H token_dim.

    The weights are packed when they are first used (one copy of up and up_v). Use one MoEForwardArgs for all calls with
    the same weights.
    """

    tokens: Any
    """[num_tokens][H]"""
    local_expert_up: Any
    """[E][I][H]; what the activation is applied to"""
    local_expert_down: Any
    """[E][H][I]"""
    moe_out: Any
    """[num_tokens][H], out"""
    local_expert_up_v: Any = None
    """[E][I][H]; what multiplies the activation (gated)"""
    local_bias_up: Any = None
    """[E][I]"""
    local_bias_up_v: Any = None
    """[E][I]"""
    local_bias_down: Any = None
    """[E][H]"""
    mt: MLPType = MLPType.GATED
    expert_counts: Any = None
    """Taken for compatibility; the layer counts itself."""
    stream_ptr: int = 0


class FlashHandle:
    """What initialize() returns."""

    def __init__(self, args: InitArgs):
        self.args = args
        self.routes: Any = None
        self._group = Group(args.ep_world, backend="cpu")
        self._layer: Optional[layers.Layer] = None
        self._weights_of: Any = None
        self._open = True

    def require_open(self) -> None:
        if not self._open:
            raise InvalidArgument("the layer is finalized: call flashmoe.initialize again")

    def layer_over(self, args: MoEForwardArgs) -> layers.Layer:
        """The layer with the weights of `args`, made when they are others than before."""
        if self._layer is None or self._weights_of is not args:
            self._layer, self._weights_of = _make_layer(self.args, args, self._group), args
        return self._layer

    def close(self) -> None:
        self.require_open()
        self._open = False
        self._layer = self._weights_of = self.routes = None


def _make_layer(init: InitArgs, args: MoEForwardArgs, group: Group) -> layers.Layer:
    import torch

    gated = init.mlp_type == MLPType.GATED
    if gated != (args.local_expert_up_v is not None):
        raise InvalidArgument("local_expert_up_v goes with MLPType.GATED: pass it there, and None for VANILLA")
    biases = (args.local_bias_up, args.local_bias_down) + ((args.local_bias_up_v,) if gated else ())
    if len({bias is None for bias in biases}) != 1:
        raise InvalidArgument("the biases go together: pass all of them or none")
    with torch.no_grad():
        up, up_bias = args.local_expert_up, args.local_bias_up
        if gated:
            up = torch.cat([up, args.local_expert_up_v], dim=1)
            up_bias = None if up_bias is None else torch.cat([up_bias, args.local_bias_up_v], dim=1)
        down_bias = args.local_bias_down
        return layers.Layer(
            init.problem(biases=up_bias is not None), up, args.local_expert_down, group=group, rank=init.ep_rank,
            up_bias=None if up_bias is None else up_bias.float(),
            down_bias=None if down_bias is None else down_bias.float())


def initialize(args: InitArgs) -> FlashHandle:
    """A layer on this rank. Several handles are independent of each other.

    Raises InvalidArgument when the sizes break a rule, FabricError when there are several processes.
    """
    if args.device_id is not None:
        raise InvalidArgument(f"device_id ({args.device_id}) must be None: this interface runs on the CPU so far; use "
                              "flashmoe.fused_moe or flashmoe.Layer on a GPU")
    args.problem().validate()
    if args.ep_world > 1:
        raise FabricError(f"{args.ep_world} processes were started, but the CPU backend keeps all ranks in one process"
                          ": start one, or use flashmoe.Group with a thread for each rank")
    return FlashHandle(args)


def forward(flash_handle: FlashHandle, args: MoEForwardArgs) -> None:
    """Dispatch, experts and combine of the tokens that router.forward() routed, into args.moe_out.

    Raises InvalidArgument (InvalidDType) for tensors that do not fit, without routes, and after finalize().
    """
    flash_handle.require_open()
    if flash_handle.routes is None:
        raise InvalidArgument("the layer has no routes: call flashmoe.router.forward first")
    if not tensors.is_torch(args.tokens):
        raise InvalidDType(f"tokens must be a torch tensor, but is a {type(args.tokens).__name__}")
    topk_weights, topk_ids = flash_handle.routes
    flash_handle.layer_over(args).run(args.tokens, topk_weights, topk_ids, args.moe_out)


def finalize(flash_handle: FlashHandle, stream_ptr: int = 0) -> None:
    """Lets go of the layer; others go on. Raises InvalidArgument the second time."""
    flash_handle.close()
