"""A distributed Mixture-of-Experts layer: dispatch, expert FFN and combine as one protocol.

With torch: `MoE` (a module), `fused_moe` (a function), `route`; `integrations.transformers.patch(model)`.
With any library's tensors (DLPack): `Layer`, `Group`, `Router`.
The page interface: `InitArgs`, `initialize`, `forward`, `finalize`, `router`.

torch is imported when something that needs it is used.
"""

from typing import TYPE_CHECKING

from . import _native, router
from .errors import (
    CudaError, Error, FabricError, ForwardOnly, InvalidArgument, InvalidDType, OutOfMemory, Timeout,
)
from .group import Group
from .layer import CallStats, Layer, LayerInfo, Problem, load_config, preset, preset_names
from .launch import get_local_rank
from .page import ActivationType, DataType, InitArgs, MLPType, MoEForwardArgs, finalize, forward, initialize
from .routing import Router, route

if TYPE_CHECKING:
    from .module import MoE
    from .torch_ops import fused_moe, release_memory

__version__ = _native.library.flashmoe_version().decode()

_NEED_TORCH = {"MoE": "module", "fused_moe": "torch_ops", "release_memory": "torch_ops"}

__all__ = [
    "ActivationType", "CallStats", "CudaError", "DataType", "Error", "FabricError", "ForwardOnly", "Group", "InitArgs",
    "InvalidArgument", "InvalidDType", "Layer", "LayerInfo", "MLPType", "MoE", "MoEForwardArgs", "OutOfMemory",
    "Problem", "Router", "Timeout", "finalize", "forward", "fused_moe", "get_local_rank", "initialize", "load_config",
    "preset", "preset_names", "release_memory", "route", "router",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "integrations"})


def __getattr__(name: str):
    import importlib

    if name == "integrations":
        return importlib.import_module(".integrations", __name__)
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'flashmoe' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module("." + _NEED_TORCH[name], __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"flashmoe.{name} needs torch, which is not installed: pip install torch") from error
    globals()[name] = value
    return value
