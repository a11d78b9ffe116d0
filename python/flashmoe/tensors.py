"""Memory of other libraries' tensors, without importing those libraries.

torch tensors are read by their own attributes, everything else by the DLPack protocol (NumPy, JAX, CuPy, ...).
"""

import ctypes
import math
import sys
from typing import Any, Mapping, NamedTuple

from . import errors


_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "int32": 4}


class View(NamedTuple):
    """Where a tensor lies. Strides count elements; `owner` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "bf16", "fp32", "int32", ...
    device: str  # "cpu", "cuda", or another library's name for it
    device_index: int
    owner: Any
    read_only: bool = False  # where its library says so

    @property
    def place(self) -> str:
        """ "cpu", "cuda:0", ..."""
        return f"cuda:{self.device_index}" if self.device == "cuda" else self.device

    @property
    def num_bytes(self) -> int:
        """Of its elements, in a type that layers take."""
        return math.prod(self.shape) * _BYTES[self.dtype]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]


_DL_READ_ONLY = 1  # of flags
_DL_DTYPES = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "fp16", (2, 32): "fp32", (2, 64): "fp64", (4, 16): "bf16", (6, 8): "bool",
}
_DL_DEVICES = {1: "cpu", 2: "cuda", 3: "cuda_host"}
_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]


def is_torch(tensor: Any) -> bool:
    """Whether it is a torch tensor; torch need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of row-major order."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _view_of_torch(tensor: Any, name: str) -> View:
    layout = str(tensor.layout).removeprefix("torch.")
    if layout != "strided":
        raise errors.InvalidArgument(f"{name} is a tensor of layout {layout}, wanted a dense one: call to_dense()")
    if tensor.is_neg():
        raise errors.InvalidArgument(f"{name} is a negative view, whose memory has the other sign: call resolve_neg()")
    if tensor.is_conj():
        raise errors.InvalidArgument(f"{name} is a conjugate view, whose memory has the other sign: call resolve_conj()")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), _TORCH_DTYPES.get(dtype, dtype),
                tensor.device.type, tensor.device.index or 0, tensor)


def _dlpack_capsule(tensor: Any, name: str) -> Any:
    try:
        try:
            return tensor.__dlpack__(max_version=(1, 0))  # of which on it says what is read-only
        except TypeError:  # a library from before that
            return tensor.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        raise errors.InvalidArgument(
            f"{name} cannot be shared by DLPack ({str(error).rstrip('.')}): pass a writable plain tensor") from error


def _view_of_dlpack(tensor: Any, name: str) -> View:
    capsule = _dlpack_capsule(tensor, name)
    read_only = False
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        dl, read_only = managed.tensor, bool(managed.flags & _DL_READ_ONLY)
    else:
        dl = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(dl.shape[: dl.ndim])
    strides = tuple(dl.strides[: dl.ndim]) if dl.strides else contiguous_strides(shape)
    dtype = _DL_DTYPES.get((dl.code, dl.bits), f"type {dl.code} of {dl.bits} bits") if dl.lanes == 1 else "vectors"
    device = _DL_DEVICES.get(dl.device_type, f"device type {dl.device_type}")
    return View((dl.data or 0) + dl.byte_offset, shape, strides, dtype, device, dl.device_id, (tensor, capsule),
                read_only)


def view(tensor: Any, name: str) -> View:
    """A tensor's memory. Raises InvalidDType for an object that is no tensor, InvalidArgument for one whose memory does
    not hold its elements.
    """
    if is_torch(tensor):
        return _view_of_torch(tensor, name)
    if hasattr(tensor, "__dlpack__"):
        return _view_of_dlpack(tensor, name)
    raise errors.InvalidDType(
        f"{name} must be a torch tensor or have __dlpack__ (NumPy, JAX, ...), but is a {type(tensor).__name__}")


def require(tensor: Any, name: str, shape: tuple[int | None, ...], dtype: str, device: str) -> View:
    """The memory of a row-major tensor of that shape (None: any extent), type and device ("cpu", "cuda", "cuda:0").

    Raises InvalidDType for another type, InvalidArgument for another shape, device or order of elements.
    """
    got = view(tensor, name)
    check(got, name, shape, dtype, device)
    return got


def check(got: View, name: str, shape: tuple[int | None, ...], dtype: str, device: str) -> None:
    """Raises as require()."""
    check_form(got, name, shape, dtype, device)
    require_contiguous(got, name)


def check_form(got: View, name: str, shape: tuple[int | None, ...], dtype: str, device: str) -> None:
    """Raises as require(), whatever the order of the elements."""
    if device not in (got.device, got.place):
        raise errors.InvalidArgument(f"{name} is on {got.place}, wanted {device}: move it to where the layer runs")
    if got.dtype != dtype:
        raise errors.InvalidDType(f"{name} has dtype {got.dtype}, wanted {dtype}: convert it")
    if len(got.shape) != len(shape) or any(want not in (None, have) for want, have in zip(shape, got.shape)):
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise errors.InvalidArgument(f"{name} has shape {list(got.shape)}, wanted [{wanted}]")


def require_contiguous(got: View, name: str) -> None:
    """Raises InvalidArgument unless the elements lie in row-major order without gaps."""
    if 0 in got.shape:
        return
    wanted = contiguous_strides(got.shape)
    if any(extent > 1 and have != want for extent, have, want in zip(got.shape, got.strides, wanted)):
        raise errors.InvalidArgument(
            f"{name} has strides {list(got.strides)}, wanted {list(wanted)}: pass a contiguous tensor")


def require_writable(got: View, name: str) -> None:
    """Raises InvalidArgument for memory that its library keeps from being written."""
    if got.read_only:
        raise errors.InvalidArgument(f"{name} is read-only, and the result is written there: pass a writable tensor")


def refuse_overlap(output: View, name: str, others: Mapping[str, View]) -> None:
    """Raises InvalidArgument where a row-major output lies over one of the others, which are read meanwhile."""
    first, end = output.pointer, output.pointer + output.num_bytes
    if first == end:
        return
    for other, got in others.items():
        if got.pointer < end and first < got.pointer + got.num_bytes:
            raise errors.InvalidArgument(f"{name} must not overlap {other}: pass a tensor of its own for the result")


def stream_of(tensor: Any, device: str) -> int:
    """The stream on which calls with this tensor belong: torch's current one of its GPU; 0, the default, of others."""
    if not device.startswith("cuda") or not is_torch(tensor):
        return 0
    return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream


def empty(like: Any, name: str, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """A new tensor of `like`'s library and device, of `dtype` ("fp32" or "int32"; None: like's).

    Raises InvalidArgument for libraries other than torch and NumPy, whose tensors must be passed in.
    """
    library = type(like).__module__.partition(".")[0]
    if is_torch(like):
        torch = sys.modules["torch"]
        types = {None: like.dtype, "fp32": torch.float32, "int32": torch.int32}
        return torch.empty(shape, dtype=types[dtype], device=like.device)
    if library == "numpy":
        numpy = sys.modules["numpy"]
        return numpy.empty(shape, {None: like.dtype, "fp32": numpy.float32, "int32": numpy.int32}[dtype])
    raise errors.InvalidArgument(f"{name} cannot be allocated by {library}: pass torch's or NumPy's tensors, or, where it "
                                 "is an argument, a tensor for it")
