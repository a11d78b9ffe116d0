"""The page interface: `InitArgs`, `initialize`, `forward`, `finalize`, and `flashmoe.router`.

    args = flashmoe.InitArgs(data_type=flashmoe.DataType.BF16, mlp_type=flashmoe.MLPType.GATED, ...)
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(tokens, router_weights))
    flashmoe.forward(flash, flashmoe.MoEForwardArgs(...))
    flashmoe.finalize(flash)
    flashmoe.router.finalize(router)

Tensors are torch's. `flashmoe.MoE` and `flashmoe.fused_moe` do the same with less ceremony.
"""

import contextlib
import dataclasses
import enum
import re
import sys
from typing import Any, ContextManager, Optional

from . import _native, launch, tensors
from . import layer as layers
from .errors import FabricError, InvalidArgument, InvalidDType
from .group import Group


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
_PAGE_NAMES = {  # of Problem's sizes
    "hidden": "token_dim", "intermediate": "ffn_size", "max_tokens": "tokens_per_rank", "num_ranks": "ep_world",
}


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
    """GPU of this rank, by this process's numbering; None: the CPU. FP32 is computed as tf32 on a GPU."""
    stream_ptr: int = 0
    """cudaStream_t of calls that name none themselves; 0: torch's current stream."""
    ep_world: int = dataclasses.field(default_factory=lambda: launch.launched_as()[1])
    """Number of ranks; without it as the launcher says."""
    ep_rank: int = dataclasses.field(default_factory=lambda: launch.launched_as()[0])
    """This rank; without it as the launcher says."""

    @property
    def num_local_experts(self) -> int:
        return self.num_experts // self.ep_world

    @property
    def storage_dtype(self) -> str:
        """The type of tokens, weights and results in memory."""
        return _DTYPES[self.data_type]

    @property
    def place(self) -> str:
        """Where the tensors lie: "cpu", "cuda:0", ..."""
        return "cpu" if self.device_id is None else f"cuda:{self.device_id}"

    def problem(self, biases: bool = False) -> layers.Problem:
        """Raises InvalidDType for a type that is none of the enumerations'."""
        kinds = (("data_type", DataType), ("mlp_type", MLPType), ("act_type", ActivationType))
        for name, kind in kinds:
            if not isinstance(getattr(self, name), kind):
                raise InvalidDType(f"{name} ({getattr(self, name)!r}) must be one of "
                                   f"{', '.join(f'{kind.__name__}.{key}' for key in kind.__members__)}")
        dtype = _DTYPES[self.data_type]
        if self.device_id is not None and dtype == "fp32":
            dtype = "tf32"
        return layers.Problem(
            hidden=self.token_dim, intermediate=self.ffn_size, num_experts=self.num_experts, top_k=self.top_k,
            max_tokens=self.tokens_per_rank, dtype=dtype, num_ranks=self.ep_world,
            activation=_ACTIVATIONS[self.act_type], gated=self.mlp_type == MLPType.GATED, up_bias=biases,
            down_bias=biases)

    def validate(self) -> None:
        """Raises InvalidArgument with one sentence on the first rule that the layer breaks, by the names here."""
        try:
            self.problem().validate()
        except InvalidArgument as error:
            names = "|".join(rf"\b{name}\b" for name in _PAGE_NAMES)
            sentence = re.sub(names, lambda name: _PAGE_NAMES[name[0]], str(error))
            raise type(error)(sentence) from None


@dataclasses.dataclass
class MoEForwardArgs:
    """Tensors of a layer call, of the data type. E local experts, I ffn_size, H token_dim.

    Of gated experts one packed copy of up and up_v is made, and of biases one in fp32. A call whose weights lie
    elsewhere than the last one's makes the layer anew; where their values have changed, they are copied again. torch
    counts changes but those through `.data` or other libraries, and of tensors made in inference mode none: those are
    copied at every call. Changes of weights and calls that read them are the caller's to order, where streams differ.
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
    mt: Optional[MLPType] = None
    """None or InitArgs' mlp_type."""
    expert_counts: Any = None
    """Taken for compatibility; the layer counts itself."""
    stream_ptr: int = 0
    """cudaStream_t of the call; 0: InitArgs'."""


class FlashHandle:
    """What initialize() returns."""

    def __init__(self, args: InitArgs):
        self.args = args
        self.routes: Any = None
        self._group = _group_of(args)
        self._layer: Optional[layers.Layer] = None
        self._weights: dict[str, Any] = {}  # Packed by Layer's names
        self._open = True

    def require_open(self) -> None:
        if not self._open:
            raise InvalidArgument("the layer is finalized: call flashmoe.initialize again")

    def layer_over(self, args: MoEForwardArgs) -> layers.Layer:
        """The layer with the weights of `args`, made when they lie elsewhere than before."""
        from .packed import Packed

        parts = _parts_of_weights(self.args, args)
        same = self._weights.keys() == parts.keys() and all(
            packed.is_of(parts[name]) for name, packed in self._weights.items())
        if self._layer is None or not same:
            _check_weights(self.args, args)
            weights = {name: Packed(part, fp32=name.endswith("bias")) for name, part in parts.items()}
            self._layer = layers.Layer(
                self.args.problem(biases="down_bias" in parts), group=self._group, rank=self.args.ep_rank,
                **{name: packed.whole for name, packed in weights.items()})
            self._weights = weights
        else:
            for name, packed in self._weights.items():
                packed.copy_changes(parts[name])
        used_here(*(packed.whole for packed in self._weights.values() if packed.copied))
        return self._layer

    def close(self) -> None:
        self.require_open()
        self._open = False
        self._layer = self.routes = None
        self._weights = {}


def _group_of(args: InitArgs) -> Group:
    if args.device_id is None:
        if args.ep_world > 1:
            raise FabricError(f"{args.ep_world} processes were started, but the CPU backend keeps all ranks in one process"
                              ": start one, or use flashmoe.Group with a thread for each rank")
        return Group(1)
    if args.ep_world == 1:
        return Group(1, backend="cuda", first_device=args.device_id)
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        group = Group.from_torch(device=args.device_id)
    else:
        group = Group.from_launcher(device=args.device_id)
    if (group.rank, group.num_ranks) != (args.ep_rank, args.ep_world):
        raise InvalidArgument(f"ep_rank and ep_world ({args.ep_rank} of {args.ep_world}) must be what the launcher says "
                              f"({group.rank} of {group.num_ranks}): leave them out")
    return group


def on_stream(init: InitArgs, stream_ptr: int) -> ContextManager[Any]:
    """Makes a call's stream torch's current one."""
    stream_ptr = stream_ptr or init.stream_ptr
    if init.device_id is None or stream_ptr == 0:
        return contextlib.nullcontext()
    import torch

    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr, device=init.device_id))


def used_here(*kept: Any) -> None:
    """Tells torch that the current stream reads tensors of this module's, which may come from another stream."""
    import torch

    for tensor in kept:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


_WEIGHTS = {  # by Layer's names
    "up": ("local_expert_up", "local_expert_up_v"), "down": ("local_expert_down",),
    "up_bias": ("local_bias_up", "local_bias_up_v"), "down_bias": ("local_bias_down",),
}
_NEEDED = ("local_expert_up", "local_expert_down")


def _parts_of_weights(init: InitArgs, args: MoEForwardArgs) -> dict[str, list[Any]]:
    """The tensors of which each of Layer's is made, without the biases where there are none."""
    if args.mt not in (None, init.mlp_type):
        raise InvalidArgument(f"mt ({args.mt!r}) must be InitArgs' mlp_type ({init.mlp_type!r}): leave it out")
    gated = init.mlp_type == MLPType.GATED
    if gated != (args.local_expert_up_v is not None):
        raise InvalidArgument("local_expert_up_v goes with MLPType.GATED: pass it there, and None for VANILLA")
    if not gated and args.local_bias_up_v is not None:
        raise InvalidArgument("local_bias_up_v goes with MLPType.GATED: pass None for VANILLA")
    biases = (args.local_bias_up, args.local_bias_down) + ((args.local_bias_up_v,) if gated else ())
    if len({bias is None for bias in biases}) != 1:
        raise InvalidArgument("the biases go together: pass all of them or none")
    parts: dict[str, list[Any]] = {}
    for layer_name, names in _WEIGHTS.items():
        for name in names:
            tensor = getattr(args, name)
            if tensor is not None or name in _NEEDED:
                require_torch(tensor, name)
                parts.setdefault(layer_name, []).append(tensor)
    return parts


def _rows_of_weights(args: MoEForwardArgs) -> dict[str, tensors.View]:
    """The weights that lie in one piece, among them all that a layer reads where they lie."""
    given = {name: getattr(args, name) for names in _WEIGHTS.values() for name in names}
    return {name: tensors.view(tensor, name) for name, tensor in given.items()
            if tensor is not None and tensor.is_contiguous()}


def _check_weights(init: InitArgs, args: MoEForwardArgs) -> None:
    """Raises InvalidArgument (InvalidDType) where one does not fit the layer, by the name that it has in `args`."""
    experts, inner, outer = init.num_local_experts, init.ffn_size, init.token_dim
    shapes = {
        "local_expert_up": (experts, inner, outer), "local_expert_up_v": (experts, inner, outer),
        "local_expert_down": (experts, outer, inner), "local_bias_up": (experts, inner),
        "local_bias_up_v": (experts, inner), "local_bias_down": (experts, outer),
    }
    for names in _WEIGHTS.values():
        given = [name for name in names if getattr(args, name) is not None]
        for name in given:
            tensor = getattr(args, name)
            got = tensors.view(tensor, name)
            is_bias = name.startswith("local_bias")
            if is_bias and not tensor.is_floating_point():
                raise InvalidDType(f"{name} has dtype {got.dtype}, wanted a floating-point type: convert it")
            tensors.check_form(got, name, shapes[name], got.dtype if is_bias else init.storage_dtype, init.place)
            if not is_bias and len(given) == 1:
                tensors.require_contiguous(got, name)  # used as it lies


def check_tokens(init: InitArgs, tokens: Any) -> None:
    """Raises InvalidArgument (InvalidDType) unless they are rows that the layer takes."""
    require_torch(tokens, "tokens")
    tensors.require(tokens, "tokens", (None, init.token_dim), init.storage_dtype, init.place)
    if tokens.shape[0] > init.tokens_per_rank:
        raise InvalidArgument(f"tokens has shape {list(tokens.shape)}, wanted at most tokens_per_rank "
                              f"({init.tokens_per_rank}) rows: initialize with more, or split the batch")


def require_torch(tensor: Any, name: str) -> None:
    if not tensors.is_torch(tensor):
        raise InvalidDType(f"{name} must be a torch tensor, but is a {type(tensor).__name__}")


def require_kind(value: Any, name: str, kind: type, wanted: str) -> None:
    """Raises InvalidDType for an argument of another class."""
    if not isinstance(value, kind):
        raise InvalidDType(f"{name} is a {type(value).__name__}, wanted {wanted}")


def initialize(args: InitArgs) -> FlashHandle:
    """A layer on this rank. Several handles are independent of each other, and of later changes of `args`.

    On GPUs it is collective over the processes of torch.distributed where that is initialised, else over those that
    torchrun, mpirun or srun has started. Raises InvalidArgument when the sizes break a rule, CudaError without a usable
    GPU, FabricError and Timeout as Group.join(), and FabricError for several processes on the CPU.
    """
    require_kind(args, "args", InitArgs, "flashmoe.InitArgs")
    args = dataclasses.replace(args)
    args.validate()
    if not 0 <= _native.integer("ep_rank", args.ep_rank) < args.ep_world:
        raise InvalidArgument(f"ep_rank ({args.ep_rank}) must be in 0..{args.ep_world - 1}, below ep_world: leave both "
                              "out where a launcher has started the processes")
    if args.device_id is not None:
        _native.integer("device_id", args.device_id)
    return FlashHandle(args)


def forward(flash_handle: FlashHandle, args: MoEForwardArgs) -> None:
    """Dispatch, experts and combine of the tokens that router.forward() routed, into args.moe_out.

    On a GPU it is launched on the call's stream and returns at once; the first call with new weights makes a layer, which
    is collective.

    Raises InvalidArgument (InvalidDType) for tensors that do not fit, without routes, and after finalize().
    """
    require_kind(flash_handle, "flash_handle", FlashHandle, "what flashmoe.initialize returned")
    require_kind(args, "args", MoEForwardArgs, "flashmoe.MoEForwardArgs")
    flash_handle.require_open()
    if flash_handle.routes is None:
        raise InvalidArgument("the layer has no routes: call flashmoe.router.forward first")
    init = flash_handle.args
    check_tokens(init, args.tokens)
    layers.refuse_gradient("tokens", args.tokens)
    topk_weights, topk_ids = flash_handle.routes
    if topk_ids.shape[0] != args.tokens.shape[0]:
        raise InvalidArgument(f"tokens has shape {list(args.tokens.shape)}, wanted the {topk_ids.shape[0]} rows that "
                              "flashmoe.router.forward has routed: route these tokens first")
    require_torch(args.moe_out, "moe_out")
    output = tensors.require(args.moe_out, "moe_out", tuple(args.tokens.shape), init.storage_dtype, init.place)
    tensors.refuse_overlap(output, "moe_out", {"tokens": tensors.view(args.tokens, "tokens")})
    with on_stream(init, args.stream_ptr):
        used_here(topk_weights, topk_ids)
        layer = flash_handle.layer_over(args)
        tensors.refuse_overlap(output, "moe_out", _rows_of_weights(args))
        layer.forward(args.tokens, topk_weights, topk_ids, out=args.moe_out)


def finalize(flash_handle: FlashHandle, stream_ptr: int = 0) -> None:
    """Lets go of the layer; others go on. Raises InvalidArgument the second time."""
    require_kind(flash_handle, "flash_handle", FlashHandle, "what flashmoe.initialize returned")
    flash_handle.close()
