"""Layers, over any library's tensors."""

import ctypes
import dataclasses
import os
import threading
from typing import Any, Literal, Optional, Sequence

from . import _native, tensors
from .errors import ForwardOnly, InvalidArgument
from .group import Group, rank_in

DType = Literal["bf16", "fp16", "tf32", "fp32", "fp64"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "identity", "swiglu_clamped"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a layer computes, for how many ranks, and within which limits.

    Experts are spread in blocks: rank r owns experts r * num_local_experts to (r + 1) * num_local_experts - 1. For
    token row x and each of its routes (expert e, weight w)

        gate = x W_gate[e]^T + b_gate[e], up = x W_up[e]^T + b_up[e]
        h = activation(gate) * up, or activation(up) when not gated
        y += w * (h W_down[e]^T + b_down[e])

    With weight_on_input, w scales x W^T (before the bias) instead of the result. "swiglu_clamped" is gpt-oss'
    min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + 1).
    """

    hidden: int
    """Row length of tokens and results, elements; a multiple of 8."""
    intermediate: int
    """Inner width of an expert, elements; a multiple of 8."""
    num_experts: int
    """All ranks' together; a multiple of num_ranks."""
    top_k: int
    """Routes a token, 1..min(num_experts, 32)."""
    max_tokens: int
    """Most tokens one rank brings to one call; the same on all ranks."""
    dtype: DType = "bf16"
    """Of tokens, weights and results; "tf32" is stored as fp32."""
    num_ranks: int = 1
    activation: Activation = "silu"
    gated: bool = True
    up_bias: bool = False
    """Biases on gate and up, fp32 [num_experts][2 * intermediate] (not gated: [intermediate])."""
    down_bias: bool = False
    """Biases on down, fp32 [num_experts][hidden]."""
    weight_on_input: bool = False
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    wire_form: Literal["auto", "counted", "lined"] = "auto"
    result_form: Literal["auto", "per_route", "pre_reduced"] = "auto"
    wave_tokens: int = 0
    """Tokens of one rank processed as a unit; 0: planned."""
    wave_ring: int = 0
    """Waves in flight per source, 1..4; 0: planned."""
    batch_invariant: bool = False
    """Fix the tile variant and per-route results, whatever the batch."""

    @property
    def num_local_experts(self) -> int:
        return self.num_experts // self.num_ranks

    @property
    def up_columns(self) -> int:
        """Rows of an expert's first matrix: gate rows first, then up rows."""
        return self.intermediate * (2 if self.gated else 1)

    def validate(self) -> None:
        """Raises InvalidArgument with one sentence on the first rule the problem breaks."""
        _native.call("flashmoe_problem_validate", ctypes.byref(self._to_native()))

    def _to_native(self) -> _native.Problem:
        native = _native.initialised(_native.Problem, "flashmoe_problem_init_sized")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _NAMES:
                value = _native.number_of(_NAMES[field.name], field.name, value)
            _native.set_number(native, field.name, value)
        return native

    @classmethod
    def _from_native(cls, native: _native.Problem) -> "Problem":
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = getattr(native, field.name)
            names = _NAMES.get(field.name)
            values[field.name] = names[value] if names else bool(value) if field.type is bool else value
        return cls(**values)


_NAMES = {
    "dtype": _native.DTYPES, "activation": _native.ACTIVATIONS, "wire_form": _native.WIRE_FORMS,
    "result_form": _native.RESULT_FORMS,
}


@dataclasses.dataclass(frozen=True)
class LayerInfo:
    """What a layer holds and how it will run."""

    engine: str
    """Who computes the tiles."""
    device: int
    """The rank's GPU; -1 on the CPU backend."""
    plan: str
    """Forms and sizes of a call of max_tokens, and why, in one sentence."""
    wire_form: str
    result_form: str
    wave_tokens: int
    lined_tokens: int
    """Most tokens of a call in lined form; 0: never."""
    wave_ring: int
    heap_bytes: int
    """Symmetric memory of one rank; layers of one geometry share it."""
    local_bytes: int
    """Scratch memory of one rank, shared like the heap."""


@dataclasses.dataclass(frozen=True)
class CallStats:
    """What one rank's call did. Times are those of the rank's threads by actor, in microseconds."""

    wire_form: str
    result_form: str
    epoch: int
    wire_bytes: int
    """Token and result rows sent to other ranks."""
    wire_overhead_bytes: int
    kernel_launches: int
    dispatch_us: float
    subscribe_us: float
    schedule_us: float
    process_us: float
    combine_us: float
    idle_us: float
    wall_us: float


def _fields_of(kind: type, native: ctypes.Structure) -> dict[str, Any]:
    values = {}
    for field in dataclasses.fields(kind):
        value = getattr(native, field.name)
        names = _NAMES.get(field.name)
        values[field.name] = names[value] if names else value.decode() if isinstance(value, bytes) else value
    return values


class Layer:
    """One rank's end of a distributed MoE layer.

    A layer exists once on every rank of its group; the ranks create their layers in the same order. The n-th layer of a
    rank belongs with the n-th of the others; layers of one geometry share a heap.

    Args:
        problem: what it computes.
        up: this rank's first matrices [num_local_experts][up_columns][hidden], gate rows first.
        down: its second matrices [num_local_experts][hidden][intermediate].
        up_bias: fp32 [num_local_experts][up_columns], where the problem has it.
        down_bias: fp32 [num_local_experts][hidden], where the problem has it.
        group: the ranks; None: this one alone, where `up` lies, and num_ranks is 1.
        rank: which of them this is; None: this process's rank of a group of processes, else 0.
        deadline_seconds: of this layer's calls; 0: the group's.

    With the CUDA backend all tensors lie on the rank's GPU (info.device). The weights are not copied: they stay alive
    with the layer, and changes of their values are seen by later calls.

    Raises InvalidArgument (InvalidDType for a type) when the problem breaks a rule or a tensor does not fit it,
    FabricError when another rank's layer of the same number has another problem, OutOfMemory (CudaError on a
    GPU) without memory for a heap.
    """

    def __init__(self, problem: Problem, up: Any, down: Any, *, up_bias: Any = None, down_bias: Any = None,
                 group: Optional[Group] = None, rank: Optional[int] = None,
                 deadline_seconds: float = 0.0):
        self._lock = threading.Lock()
        self.problem = problem
        native_problem = problem._to_native()
        problem.validate()
        if group is None and problem.num_ranks != 1:
            raise InvalidArgument(f"num_ranks ({problem.num_ranks}) must be 1 without a group: pass group=, the one that "
                                  "the ranks share")
        self.rank = rank_in(group, rank)
        self._group = _group_beside(up) if group is None else group
        self._weights = weight_views(problem, self._group.backend, up, down, up_bias, down_bias)
        weights = _native.initialised(_native.Weights)
        for name, got in self._weights.items():
            setattr(weights, name, got.pointer)
        self._handle: Optional[_native.Handle] = _native.Handle(
            "layer_create", self._group._handle, self.rank, ctypes.byref(native_problem), ctypes.byref(weights),
            deadline_seconds)
        self._device = "cpu" if self._group.backend == "cpu" else f"cuda:{self.info.device}"

    def forward(self, x: Any, topk_weights: Any, topk_ids: Any, *, out: Any = None, max_tokens: int = 0,
                num_tokens: Any = None) -> Any:
        """Runs the layer on this rank's tokens. Collective: every rank calls, with no tokens too.

        Args:
            x: [num_tokens][hidden] of the problem's dtype; not changed.
            topk_weights: fp32 [num_tokens][top_k].
            topk_ids: int32 [num_tokens][top_k], global expert ids; -1: none. An expert may repeat.
            out: [num_tokens][hidden], written and returned, over nothing that is read; None: a new one (torch, NumPy).
            max_tokens: at least every rank's num_tokens, the same on all ranks; 0: the problem's.
            num_tokens: CUDA backend: int64 tensor of one element on the GPU, how many rows of x count (the others of
                `out` are left alone); None: all. A captured call reads it when its graph is replayed.

        On the CPU backend it blocks until the result is there. On the CUDA backend it is one launch on torch's current
        stream (the default stream for tensors of other libraries), returns at once, allocates nothing but `out`, and
        may be captured into a CUDA graph. Layer and weights must outlive the graph, and graphs of layers that share a heap
        must not run at once. No gradients.

        Raises InvalidArgument (InvalidDType) on arguments that do not fit, before anything is sent; InvalidArgument on
        a wrong id, FabricError when ranks disagree about the call or another one failed, Timeout when nobody gets on
        for the deadline: after these three the heap is dead, every later call of its layers raises (on the CUDA backend
        the first is one of these), and new layers get a new heap.
        """
        out = self._output(x, out)
        if self._device == "cpu":
            if num_tokens is not None:
                raise InvalidArgument("num_tokens is for layers on the CUDA backend: pass the rows of x that count")
            self.run(x, topk_weights, topk_ids, out, max_tokens)
            return out
        call = self._call(x, topk_weights, topk_ids, out, max_tokens)
        call.stream = tensors.stream_of(x, self._device)
        if num_tokens is not None:
            call.gpu_tokens = tensors.require(num_tokens, "num_tokens", (1,), "int64", self._device).pointer
        with self._lock:
            _native.call("flashmoe_layer_enqueue", self._open_handle(), ctypes.byref(call))
        return out

    def run(self, x: Any, topk_weights: Any, topk_ids: Any, out: Any, max_tokens: int = 0) -> CallStats:
        """forward() into `out`, which blocks on either backend and returns what the call did."""
        call = self._call(x, topk_weights, topk_ids, out, max_tokens)
        if self._device != "cpu":
            _wait_for_stream(x)
        stats = _native.initialised(_native.CallStats)
        with self._lock:
            _native.call("flashmoe_layer_forward", self._open_handle(), ctypes.byref(call), ctypes.byref(stats))
        return CallStats(**_fields_of(CallStats, stats))

    def check_calls(self) -> None:
        """Raises what a call of forward() that has finished by now ended with (CUDA backend); waits for none."""
        with self._lock:
            _native.call("flashmoe_layer_check_calls", self._open_handle())

    def _call(self, x: Any, topk_weights: Any, topk_ids: Any, out: Any, max_tokens: int) -> _native.Call:
        problem, device = self.problem, self._device
        storage = storage_dtype(problem.dtype)
        for name, tensor in (("x", x), ("topk_weights", topk_weights)):
            refuse_gradient(name, tensor)
        tokens = tensors.require(x, "x", (None, problem.hidden), storage, device)
        num_tokens = tokens.shape[0]
        routes = (num_tokens, problem.top_k)
        views = {
            "x": tokens,
            "topk_weights": tensors.require(topk_weights, "topk_weights", routes, "fp32", device),
            "topk_ids": tensors.require(topk_ids, "topk_ids", routes, "int32", device),
            "y": tensors.require(out, "out", (num_tokens, problem.hidden), storage, device),
        }
        tensors.require_writable(views["y"], "out")
        inputs = {name: got for name, got in views.items() if name != "y"}
        tensors.refuse_overlap(views["y"], "out", {**inputs, **self._weights})
        call = _native.initialised(_native.Call)
        call.num_tokens = num_tokens
        _native.set_number(call, "max_tokens", max_tokens)
        for name, got in views.items():
            setattr(call, name, got.pointer)
        return call

    @property
    def info(self) -> LayerInfo:
        info = _native.initialised(_native.LayerInfo)
        with self._lock:
            _native.call("flashmoe_layer_get_info", self._open_handle(), ctypes.byref(info))
            return LayerInfo(**_fields_of(LayerInfo, info))

    def weights_at(self) -> tuple[int, ...]:
        """Where the weights lie: up, down and, where the problem has them, up_bias and down_bias."""
        with self._lock:
            return tuple(got.pointer for got in self._weights.values())

    def forget_weights(self) -> None:
        """Lets go of the weights: from now on whoever calls the layer keeps them where they are meanwhile."""
        with self._lock:
            self._weights = {}

    def close(self) -> None:
        """Gives the layer's memory back; layers that share its heap go on. Closing again does nothing."""
        with self._lock:
            self._handle = None
            self._weights = {}

    def __reduce__(self):
        _native.refuse_copy()

    def __enter__(self) -> "Layer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open_handle(self) -> _native.Handle:
        if self._handle is None:
            raise InvalidArgument("the layer is closed: make a new one")
        return self._handle

    def _output(self, x: Any, out: Any) -> Any:
        return tensors.empty(x, "out", tuple(tensors.view(x, "x").shape)) if out is None else out


def storage_dtype(dtype: str) -> str:
    """The type of the elements in memory."""
    return "fp32" if dtype == "tf32" else dtype


_WEIGHT_NAMES = ("up", "down", "up_bias", "down_bias")


def weight_views(problem: Problem, device: str, up: Any, down: Any, up_bias: Any = None, down_bias: Any = None, *,
                 names: Sequence[str] = _WEIGHT_NAMES) -> dict[str, tensors.View]:
    """The memory of a rank's weights, without the biases that are None. Raises as Layer, calling them by `names`."""
    storage, experts = storage_dtype(problem.dtype), problem.num_local_experts
    shapes = {
        "up": (up, (experts, problem.up_columns, problem.hidden), storage),
        "down": (down, (experts, problem.hidden, problem.intermediate), storage),
        "up_bias": (up_bias, (experts, problem.up_columns), "fp32"),
        "down_bias": (down_bias, (experts, problem.hidden), "fp32"),
    }
    return {
        name: tensors.require(tensor, told, shape, dtype, device)
        for (name, (tensor, shape, dtype)), told in zip(shapes.items(), (*names, *_WEIGHT_NAMES[len(names):]))
        if tensor is not None
    }


def _group_beside(tensor: Any) -> Group:
    """One rank, of the backend and GPU of a tensor; the CPU's for one that is refused later."""
    if tensor is not None and (got := tensors.view(tensor, "up")).device == "cuda":
        return Group(backend="cuda", first_device=got.device_index)
    return Group()


def refuse_gradient(name: str, tensor: Any) -> None:
    """Raises ForwardOnly for a torch tensor whose gradient is being recorded."""
    if tensors.is_torch(tensor) and tensor.requires_grad:
        import torch

        if torch.is_grad_enabled():
            raise ForwardOnly(f"{name} requires a gradient, but layers run forward only: "
                              "call under torch.no_grad() or pass a detached tensor")


def _wait_for_stream(x: Any) -> None:
    """The tensors of a call are made on torch's current stream, the layer runs on its own."""
    if tensors.is_torch(x):
        import torch

        torch.cuda.current_stream(x.device).synchronize()


def preset_names() -> list[str]:
    """Names of the published models whose layers preset() knows."""
    library = _native.library
    return [library.flashmoe_preset_name(index).decode() for index in range(library.flashmoe_num_presets())]


def preset(name: str, *, max_tokens: int, num_ranks: int = 1, dtype: DType = "bf16") -> Problem:
    """The MoE layer of a published model. Raises InvalidArgument listing the names."""
    return _model_problem("flashmoe_preset", name, num_ranks, max_tokens, dtype)


def load_config(path: str | os.PathLike, *, max_tokens: int, num_ranks: int = 1, dtype: DType = "bf16") -> Problem:
    """The MoE layer of a Hugging Face config.json, or of a directory that holds one.

    Raises InvalidArgument for a file that is missing, malformed or of a family that is not known.
    """
    return _model_problem("flashmoe_load_config", os.fspath(path), num_ranks, max_tokens, dtype)


def _model_problem(function: str, name: str, num_ranks: int, max_tokens: int, dtype: str) -> Problem:
    native = _native.initialised(_native.Problem, "flashmoe_problem_init_sized")
    _native.call(function, os.fsencode(name), _native.integer("num_ranks", num_ranks),
                 _native.integer("max_tokens", max_tokens, 64), _native.number_of(_native.DTYPES, "dtype", dtype),
                 ctypes.byref(native), None)
    return Problem._from_native(native)
