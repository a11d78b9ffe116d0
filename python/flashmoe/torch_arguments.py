"""What arguments of the torch functions must be, and what the operators take them as."""

import contextlib
from typing import Any, Iterator, Literal, Optional

import torch

from . import layer as layers
from . import _native
from .errors import ForwardOnly, InvalidArgument, InvalidDType

GateUpOrder = Literal["gate_up", "up_gate", "interleaved"]

DTYPES: dict[torch.dtype, layers.DType] = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
}
# uint64's largest would be -1, no expert, as int64.
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32)
_GATE_UP_ORDERS = ("gate_up", "up_gate", "interleaved")
MOST_TOP_K = 32  # of a layer


def layer_dtype(dtype: torch.dtype, backend: str, name: str) -> layers.DType:
    """A layer's type for tensors of a torch type. fp32 on a GPU runs as tf32, where torch's own products may.

    Raises InvalidDType for another type, and for fp32 on a GPU while torch's products are exact.
    """
    if dtype not in DTYPES:
        raise InvalidDType(f"{name} is {dtype}, wanted bf16, fp16, fp32 or fp64: convert it")
    if dtype != torch.float32 or backend == "cpu":
        return DTYPES[dtype]
    if torch.get_float32_matmul_precision() == "highest":
        raise InvalidDType("fp32 on a GPU is computed as tf32, which torch's precision (highest) rules out: call "
                           'torch.set_float32_matmul_precision("high"), or convert to bf16, fp16 or fp64')
    return "tf32"


def require_torch(tensor: Any, name: str) -> None:
    """Raises InvalidDType for what is no torch tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidDType(f"{name} must be a torch tensor, but is a {type(tensor).__name__}")


def require_float(tensor: torch.Tensor, name: str) -> None:
    """Raises InvalidDType for a type that layers do not take."""
    if tensor.dtype not in DTYPES:
        raise InvalidDType(f"{name} has dtype {tensor.dtype}, wanted bf16, fp16, fp32 or fp64: convert it")


def one_of(names: tuple[str, ...], what: str, name: Any) -> str:
    """The library's own string for one of `names`. Raises InvalidArgument listing them."""
    return names[_native.number_of(names, what, name)]


def _whole(name: str, value: Any) -> int:
    return value if isinstance(value, int) else _native.integer(name, value)


def real(name: str, value: Any) -> float:
    """A number as a float, one that torch.compile traces, too. Raises InvalidDType for what is none."""
    if isinstance(value, (float, int, torch.SymFloat, torch.SymInt)):
        return value * 1.0
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise InvalidDType(f"{name} ({value!r}) must be a number")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Raises InvalidDType for what is neither True nor False."""
    if value not in (True, False):
        raise InvalidDType(f"{name} ({value!r}) must be True or False")
    return bool(value)


def fp32(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Row-major fp32. Raises InvalidDType for other than floating-point numbers."""
    if not tensor.is_floating_point():
        raise InvalidDType(f"{name} has dtype {tensor.dtype}, wanted a floating-point type: convert it")
    return tensor.to(torch.float32).contiguous()


def require_integers(name: str, tensor: torch.Tensor) -> None:
    """Raises InvalidDType for another type."""
    if tensor.dtype not in _INTEGERS:
        raise InvalidDType(f"{name} has dtype {tensor.dtype}, wanted int8 to int64 or uint8 to uint32: convert it")


def int32_ids(name: str, ids: torch.Tensor) -> torch.Tensor:
    """Row-major int32; values that do not fit stay out of range. Raises InvalidDType for other than integers."""
    require_integers(name, ids)
    if ids.dtype in (torch.int64, torch.uint32):
        limits = torch.iinfo(torch.int32)
        ids = ids.to(torch.int64).clamp(limits.min, limits.max)
    return ids.to(torch.int32).contiguous()


@contextlib.contextmanager
def ids_told_as_given(ids: torch.Tensor, num_experts: int) -> Iterator[None]:
    """Around a call that is given int32_ids(): an id that int32 does not hold is named as it is, on the CPU."""
    try:
        yield
    except InvalidArgument:
        if ids.is_cuda:
            raise
        changed = (int32_ids("topk_ids", ids) != ids.to(torch.int64)).nonzero()
        if changed.shape[0] == 0:
            raise
        token, choice = changed[0].tolist()
        raise InvalidArgument(f"topk_ids[{token}][{choice}] is {int(ids[token, choice])}, wanted -1 (masked) or "
                              f"0..{num_experts - 1}: check that the ids are global expert ids of this layer") from None


def check_expert_map(expert_map: torch.Tensor, hidden_states: torch.Tensor) -> None:
    """Raises InvalidArgument (InvalidDType) for what maps no experts."""
    require_torch(expert_map, "expert_map")
    if expert_map.device != hidden_states.device:
        raise InvalidArgument(f"expert_map is on {expert_map.device}, wanted {hidden_states.device} as hidden_states: "
                              "move one")
    require_integers("expert_map", expert_map)
    if expert_map.dim() != 1 or expert_map.numel() == 0:
        raise InvalidArgument(f"expert_map has shape {list(expert_map.shape)}, wanted [num_global_experts]")


def local_ids(ids: torch.Tensor, expert_map: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Where the experts of global ids lie among num_experts, -1: nowhere; int32 of ids and a map of int64.

    On the CPU raises InvalidArgument for ids and entries out of range. On a GPU, where that would wait for it, the
    layer refuses them.
    """
    last = expert_map.shape[0] - 1
    known = (ids >= 0) & (ids <= last)
    if not ids.is_cuda:
        _check_mapped(ids, known | (ids == -1), expert_map, num_experts)
    refused = torch.where(ids < 0, ids, ids.clamp(min=num_experts))
    return int32_ids("topk_ids", torch.where(known, expert_map[ids.clamp(0, last)], refused))


def _check_mapped(ids: torch.Tensor, right: torch.Tensor, expert_map: torch.Tensor, num_experts: int) -> None:
    length = expert_map.shape[0]
    if not right.all():
        token, choice = (~right).nonzero()[0].tolist()
        raise InvalidArgument(f"topk_ids[{token}][{choice}] is {int(ids[token, choice])}, wanted -1 (masked) or "
                              f"0..{length - 1}, as expert_map has {length} entries: pass global ids and a map of all "
                              "experts")
    wrong = (expert_map < -1) | (expert_map >= num_experts)
    if wrong.any():
        expert = int(wrong.nonzero()[0])
        raise InvalidArgument(f"expert_map[{expert}] is {int(expert_map[expert])}, wanted -1 (another rank's) or "
                              f"0..{num_experts - 1}, as w13 has {num_experts} experts")


def fewer_routes(topk_weights: torch.Tensor, topk_ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """At most `most` routes a token, where the others have no expert anyway; the order of the rest is kept."""
    if topk_ids.shape[1] <= most:
        return topk_weights, topk_ids
    if topk_ids.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InvalidArgument(f"topk_ids has {topk_ids.shape[1]} routes a token, and a captured call takes at most "
                              f"{most}, as many as there are experts here: leave out those of other ranks before")
    order = (topk_ids == -1).to(torch.int8).argsort(dim=1, stable=True)
    ids, weights = topk_ids.gather(1, order), topk_weights.gather(1, order)
    if (ids[:, most:] != -1).any():
        raise InvalidArgument(f"topk_ids has tokens with more than {most} routes: a rank takes as many as it has "
                              f"experts, at most {MOST_TOP_K}")
    return weights[:, :most].contiguous(), ids[:, :most].contiguous()


def check_experts(hidden_states, w13, w2, w13_bias, w2_bias, gate_up_order) -> bool:
    """Whether the experts are gated. Raises InvalidArgument (InvalidDType) for tensors that do not go together."""
    require_torch(hidden_states, "hidden_states")
    require_float(hidden_states, "hidden_states")
    for name, tensor, dims in (("hidden_states", hidden_states, 2), ("w13", w13, 3), ("w2", w2, 3)):
        require_torch(tensor, name)
        if tensor.dim() != dims:
            raise InvalidArgument(f"{name} has shape {list(tensor.shape)}, wanted {dims} dimensions")
        if tensor.device != hidden_states.device:
            raise InvalidArgument(f"{name} is on {tensor.device}, wanted {hidden_states.device} as hidden_states: "
                                  "move one")
        if tensor.dtype != hidden_states.dtype:
            raise InvalidDType(f"{name} has dtype {tensor.dtype}, wanted {hidden_states.dtype} as hidden_states: "
                               "convert one")
    experts, columns, hidden = w13.shape
    if experts == 0:
        raise InvalidArgument(f"w13 has shape {list(w13.shape)}, which holds no experts: pass one or more")
    intermediate = w2.shape[2]
    if w2.shape[:2] != (experts, hidden) or columns not in (intermediate, 2 * intermediate):
        raise InvalidArgument(
            f"w13 {list(w13.shape)} and w2 {list(w2.shape)} do not go together: wanted [E, 2 * I, H] (not gated: "
            "[E, I, H]) and [E, H, I]")
    if hidden_states.shape[1] != hidden:
        raise InvalidArgument(f"hidden_states has shape {list(hidden_states.shape)}, wanted [num_tokens, {hidden}] as "
                              "w13 has")
    for name, bias, size in (("w13_bias", w13_bias, columns), ("w2_bias", w2_bias, hidden)):
        if bias is None:
            continue
        require_torch(bias, name)
        if bias.device != hidden_states.device:
            raise InvalidArgument(f"{name} is on {bias.device}, wanted {hidden_states.device} as hidden_states: "
                                  "move one")
        if bias.shape != (experts, size):
            raise InvalidArgument(f"{name} has shape {list(bias.shape)}, wanted [{experts}, {size}]")
    gated = columns == 2 * intermediate
    if gated and gate_up_order not in _GATE_UP_ORDERS:
        raise InvalidArgument(f"gate_up_order ({gate_up_order!r}) must be one of {', '.join(_GATE_UP_ORDERS)}: "
                              "say how w13 was packed")
    if not gated and gate_up_order is not None:
        raise InvalidArgument(f"gate_up_order ({gate_up_order!r}) must be None for experts that are not gated: w13 "
                              f"{list(w13.shape)} has one row for each of w2's columns")
    return gated


def check_routes(hidden_states, topk_weights, topk_ids) -> None:
    """Raises InvalidArgument (InvalidDType) unless they are routes of the tokens."""
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        require_torch(tensor, name)
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if tensor.device != hidden_states.device:
            raise InvalidArgument(f"{name} is on {tensor.device}, wanted {hidden_states.device} as hidden_states: "
                                  "move one")
        if tensor.dim() != 2 or tensor.shape[0] != hidden_states.shape[0]:
            raise InvalidArgument(f"{name} has shape {list(tensor.shape)}, wanted [{hidden_states.shape[0]}, top_k]")
    if topk_weights.shape != topk_ids.shape:
        raise InvalidArgument(f"topk_ids has shape {list(topk_ids.shape)}, wanted {list(topk_weights.shape)} as "
                              "topk_weights")


def router_settings(top_k: Any, function: Any, renormalize: Any, scaling_factor: Any, num_groups: Any,
                    topk_groups: Any, jitter_epsilon: Any) -> tuple[Any, ...]:
    """As the operators take them. Raises InvalidArgument (InvalidDType) for what no router takes."""
    return (_whole("top_k", top_k), one_of(_native.ROUTER_FUNCTIONS, "function", function),
            flag("renormalize", renormalize), real("scaling_factor", scaling_factor),
            _whole("num_groups", num_groups), _whole("topk_groups", topk_groups),
            real("jitter_epsilon", jitter_epsilon))


def refuse_transforms(*given: Optional[torch.Tensor]) -> None:
    """Raises ForwardOnly inside of torch.func's grad(), jvp() and the like."""
    if torch.compiler.is_compiling():
        return
    if any(tensor is not None and torch._C._functorch.is_gradtrackingtensor(tensor) for tensor in given):
        refuse_backward()


def refuse_backward(*_: Any) -> None:
    """Raises ForwardOnly: what autograd calls for a gradient."""
    raise ForwardOnly("flashmoe layers run forward only: call them under torch.no_grad(), or detach their result")
