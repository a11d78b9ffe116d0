"""The Python side of the C interface says what include/flashmoe/flashmoe.h says."""

import ctypes
import inspect
import pathlib
import re

import pytest

import flashmoe
from flashmoe import _native

ROOT = pathlib.Path(__file__).resolve().parents[3]
HEADER = re.sub(r"/\*.*?\*/", "", (ROOT / "include/flashmoe/flashmoe.h").read_text(), flags=re.DOTALL)
C_TYPES = {
    "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double, "const char*": ctypes.c_char_p,
}
STRUCTS = [kind for _, kind in inspect.getmembers(_native, inspect.isclass) if issubclass(kind, ctypes.Structure)]
CONSTANTS = {
    "DTYPES": "FLASHMOE_BF16", "ACTIVATIONS": "FLASHMOE_SILU", "WIRE_FORMS": "FLASHMOE_WIRE_AUTOMATIC",
    "RESULT_FORMS": "FLASHMOE_RESULT_AUTOMATIC", "ROUTER_FUNCTIONS": "FLASHMOE_ROUTER_SOFTMAX_TOPK",
    "BACKENDS": "FLASHMOE_BACKEND_CPU",
}


def c_name(kind):
    return "flashmoe_" + re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


@pytest.mark.parametrize("kind", STRUCTS, ids=c_name)
def test_structs_are_the_header_s(kind):
    """The header may have grown at the end: the library takes the shorter struct."""
    body = re.search(rf"typedef struct {c_name(kind)} {{(.*?)}}", HEADER, flags=re.DOTALL).group(1)
    members = re.findall(r"(const \w+\*|\w+\*|\w+) (\w+);", body)
    assert len(members) >= len(kind._fields_)
    for (c_type, name), field in zip(members, kind._fields_):
        wanted = C_TYPES.get(c_type, ctypes.c_void_p if c_type.endswith("*") else None)
        assert (name, wanted) == field


@pytest.mark.parametrize("names", CONSTANTS)
def test_names_are_in_the_order_of_the_header_s_constants(names):
    first = CONSTANTS[names]
    enumerators = re.search(rf"enum {{\s*({first} = 0.*?)}}", HEADER, flags=re.DOTALL).group(1)
    values = [int(value) for value in re.findall(r"= (\d+)", enumerators)]
    assert values == list(range(len(getattr(_native, names))))


def test_functions_are_the_header_s():
    declared = set(re.findall(r"FLASHMOE_API [\w *]+?\b(flashmoe_\w+)\(", HEADER))
    assert set(_native._FUNCTIONS) <= declared


def test_versions_agree():
    version = re.search(r"project\(flashmoe VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert ".".join(map(str, _native.VERSION)) == version == flashmoe.__version__


@pytest.mark.parametrize("name", _native.ACTIVATIONS + _native.DTYPES)
def test_names_are_the_library_s(name):
    """The library's own sentences use them."""
    field = "activation" if name in _native.ACTIVATIONS else "dtype"
    problem = flashmoe.Problem(**{**dict(hidden=8, intermediate=8, num_experts=1, top_k=1, max_tokens=1), field: name})
    problem.validate()
    assert getattr(flashmoe.Problem._from_native(problem._to_native()), field) == name


def test_defaults_are_the_library_s():
    defaults = _native.initialised(_native.Problem, "flashmoe_problem_init_sized")
    assert defaults.struct_size == ctypes.sizeof(_native.Problem)
    problem = flashmoe.Problem(8, 8, 1, 1, 1)._to_native()
    for name, _ in _native.Problem._fields_:
        if name not in ("hidden", "intermediate", "num_experts", "top_k", "max_tokens"):
            assert getattr(problem, name) == getattr(defaults, name), name
    options = _native.initialised(_native.GroupOptions, "flashmoe_group_options_init_sized")
    for function in (flashmoe.Group.__init__, flashmoe.Group.join):
        for parameter in inspect.signature(function).parameters.values():
            if parameter.default is not inspect.Parameter.empty and hasattr(options, parameter.name):
                if parameter.name != "backend":
                    assert parameter.default == getattr(options, parameter.name), parameter.name
