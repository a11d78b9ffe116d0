"""The shared library behind the package: its structs, its functions, and status codes turned into exceptions.

The structs mirror include/flashmoe/flashmoe.h, version VERSION.
"""

import ctypes
import os
import pathlib
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import NoReturn

from . import errors

VERSION = (0, 1, 0)
"""Version of the C header that this file mirrors."""

LIBRARY_VARIABLE = "FLASHMOE_LIBRARY"
"""Environment variable with the path of a libflashmoe.so to load instead of the package's own."""

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "identity", "swiglu_clamped")
WIRE_FORMS = ("auto", "counted", "lined")
RESULT_FORMS = ("auto", "per_route", "pre_reduced")
ROUTER_FUNCTIONS = (
    "softmax_topk", "topk_softmax", "sigmoid_grouped", "sigmoid_topk", "softmax_group_limited", "sparsemixer",
)
BACKENDS = ("cpu", "cuda")

_EXCEPTIONS = {
    1: errors.Error,
    2: errors.InvalidArgument,
    3: errors.CudaError,
    4: errors.FabricError,
    5: errors.Timeout,
    6: errors.OutOfMemory,
}


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("num_ranks", c_int32), ("hidden", c_int32), ("intermediate", c_int32),
        ("num_experts", c_int32), ("top_k", c_int32), ("dtype", c_int32), ("max_tokens", c_int64),
        ("activation", c_int32), ("gated", c_int32), ("up_bias", c_int32), ("down_bias", c_int32),
        ("weight_on_input", c_int32), ("batch_invariant", c_int32), ("swiglu_alpha", c_double),
        ("swiglu_limit", c_double), ("wave_tokens", c_int64), ("wave_ring", c_int32), ("wire_form", c_int32),
        ("result_form", c_int32),
    ]


class RouterConfig(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("function", c_int32), ("num_experts", c_int32), ("top_k", c_int32),
        ("renormalize", c_int32), ("scaling_factor", c_double), ("num_groups", c_int32), ("topk_groups", c_int32),
        ("jitter_epsilon", c_double),
    ]


class RouterParameters(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("hidden", c_int32), ("weight", c_void_p), ("bias", c_void_p),
        ("selection_bias", c_void_p), ("weight_dtype", c_int32), ("backend", c_int32), ("device", c_int32),
    ]


class GroupOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("backend", c_int32), ("num_dispatchers", c_int32), ("num_processors", c_int32),
        ("num_threads", c_int32), ("deadline_seconds", c_double), ("meeting_seconds", c_double),
        ("first_device", c_int32),
    ]


class Weights(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("up", c_void_p), ("down", c_void_p), ("up_bias", c_void_p), ("down_bias", c_void_p),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("num_tokens", c_int64), ("max_tokens", c_int64), ("x", c_void_p),
        ("topk_ids", c_void_p), ("topk_weights", c_void_p), ("y", c_void_p), ("stream", c_void_p),
        ("gpu_tokens", c_void_p),
    ]


class CallStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("wire_form", c_int32), ("result_form", c_int32), ("epoch", c_uint64),
        ("wire_bytes", c_uint64), ("wire_overhead_bytes", c_uint64), ("kernel_launches", c_uint64),
        ("dispatch_us", c_double), ("subscribe_us", c_double), ("schedule_us", c_double), ("process_us", c_double),
        ("combine_us", c_double), ("idle_us", c_double), ("wall_us", c_double),
    ]


class LayerInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("engine", c_char_p), ("plan", c_char_p), ("wire_form", c_int32),
        ("result_form", c_int32), ("wave_tokens", c_int64), ("lined_tokens", c_int64), ("wave_ring", c_int32),
        ("heap_bytes", c_size_t), ("local_bytes", c_size_t), ("num_heap_regions", c_size_t),
        ("device", c_int32),
    ]


# Functions by name: result (None: void), arguments. `status` results become exceptions in call().
_HANDLE, _OUT = c_void_p, POINTER(c_void_p)
_FUNCTIONS = {
    "flashmoe_last_error": (c_char_p, []),
    "flashmoe_version": (c_char_p, []),
    "flashmoe_check_version": ("status", [ctypes.c_int] * 3),
    "flashmoe_problem_init_sized": (None, [POINTER(Problem), c_size_t]),
    "flashmoe_problem_validate": ("status", [POINTER(Problem)]),
    "flashmoe_router_config_init_sized": (None, [POINTER(RouterConfig), c_size_t]),
    "flashmoe_router_config_validate": ("status", [POINTER(RouterConfig)]),
    "flashmoe_router_parameters_init_sized": (None, [POINTER(RouterParameters), c_size_t]),
    "flashmoe_router_create": ("status", [POINTER(RouterConfig), POINTER(RouterParameters), _OUT]),
    "flashmoe_router_destroy": (None, [_HANDLE]),
    "flashmoe_router_route": ("status", [_HANDLE, c_int32, c_void_p, c_int64, c_void_p, c_void_p, c_void_p]),
    "flashmoe_router_route_logits": ("status", [_HANDLE, c_void_p, c_int64, c_void_p, c_void_p, c_void_p]),
    "flashmoe_num_presets": (c_size_t, []),
    "flashmoe_preset_name": (c_char_p, [c_size_t]),
    "flashmoe_preset": (
        "status", [c_char_p, c_int32, c_int64, c_int32, POINTER(Problem), POINTER(RouterConfig)]),
    "flashmoe_load_config": (
        "status", [c_char_p, c_int32, c_int64, c_int32, POINTER(Problem), POINTER(RouterConfig)]),
    "flashmoe_group_options_init_sized": (None, [POINTER(GroupOptions), c_size_t]),
    "flashmoe_group_create_local": ("status", [c_int32, POINTER(GroupOptions), _OUT]),
    "flashmoe_group_join": ("status", [c_char_p, c_int32, c_int32, c_int32, POINTER(GroupOptions), _OUT]),
    "flashmoe_group_destroy": (None, [_HANDLE]),
    "flashmoe_layer_create": (
        "status", [_HANDLE, c_int32, POINTER(Problem), POINTER(Weights), c_double, _OUT]),
    "flashmoe_layer_destroy": (None, [_HANDLE]),
    "flashmoe_layer_forward": ("status", [_HANDLE, POINTER(Call), POINTER(CallStats)]),
    "flashmoe_layer_enqueue": ("status", [_HANDLE, POINTER(Call)]),
    "flashmoe_layer_check_calls": ("status", [_HANDLE]),
    "flashmoe_layer_get_info": ("status", [_HANDLE, POINTER(LayerInfo)]),
}


def _library_path() -> pathlib.Path:
    named = os.environ.get(LIBRARY_VARIABLE)
    return pathlib.Path(named) if named else pathlib.Path(__file__).parent / "lib" / "libflashmoe.so"


def _load() -> ctypes.CDLL:
    path = _library_path()
    if not path.exists():
        raise ImportError(
            f"{path} is missing: install the package with pip, or set {LIBRARY_VARIABLE} to a libflashmoe.so")
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = ctypes.c_int if result == "status" else result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{path} is no libflashmoe.so that this package can use ({error}): install both anew") from error
    return library


def check(status: int) -> None:
    """Raises the exception of a status that is not 0, with the library's sentence."""
    if status != 0:
        raise _EXCEPTIONS.get(status, errors.Error)(library.flashmoe_last_error().decode(errors="replace"))


def call(name: str, *arguments) -> None:
    """Calls a function that returns a status. Other Python threads run meanwhile."""
    try:
        status = getattr(library, name)(*arguments)
    except ctypes.ArgumentError as error:
        raise errors.InvalidDType(f"{name} was given an argument of a wrong type: {error}") from error
    check(status)


def integer(name: str, value, bits: int = 32) -> int:
    """`value` as it is, or InvalidArgument for what is no integer of that many bits."""
    if not hasattr(value, "__index__"):
        raise errors.InvalidDType(f"{name} ({value!r}) must be an integer")
    if not -(1 << (bits - 1)) <= value.__index__() < 1 << (bits - 1):
        raise errors.InvalidArgument(f"{name} ({value}) does not fit into {bits} bits")
    return value.__index__()


def set_number(struct: ctypes.Structure, name: str, value) -> None:
    """Sets a member of a struct, or InvalidArgument for a value that is no number or does not fit."""
    kind = next(field[1] for field in struct._fields_ if field[0] == name)
    if kind is not c_double:
        value = integer(name, value, 8 * ctypes.sizeof(kind))
    try:
        setattr(struct, name, value)
    except TypeError as error:
        raise errors.InvalidDType(f"{name} ({value!r}) must be a number") from error


class Handle:
    """What a create function made, destroyed with this object. Shared by copies of its owner, never copied itself."""

    def __init__(self, name: str, *arguments):
        self._as_parameter_ = c_void_p()
        call(f"flashmoe_{name}", *arguments, byref(self._as_parameter_))
        self._destroy = getattr(library, f"flashmoe_{name.partition('_')[0]}_destroy")

    def __del__(self):
        if self._as_parameter_:
            self._destroy(self._as_parameter_)

    def __reduce__(self):
        refuse_copy()


def refuse_copy() -> NoReturn:
    """Raises TypeError: what copying and pickling end with."""
    raise TypeError("flashmoe's groups, layers and routers cannot be copied or pickled: make new ones")


def initialised(struct_type, init_function: str | None = None):
    """A struct with its size and every default set."""
    struct = struct_type()
    if init_function is None:
        struct.struct_size = ctypes.sizeof(struct)
    else:
        getattr(library, init_function)(byref(struct), ctypes.sizeof(struct))
    return struct


def number_of(names: tuple[str, ...], what: str, name: str) -> int:
    """The constant of a name, or InvalidArgument listing the names."""
    if name not in names:
        raise errors.InvalidArgument(f"{what} ({name!r}) must be one of {', '.join(names)}")
    return names.index(name)


library = _load()
try:
    call("flashmoe_check_version", *VERSION)
except errors.InvalidArgument as mismatch:
    raise ImportError(f"{_library_path()} does not go with this package: {mismatch}") from mismatch
