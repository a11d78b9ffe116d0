"""What a layer refuses: one sentence each, of the right class, and the layer goes on. Classes of docs/cases.md."""

import copy
import pickle
import sys

import numpy
import pytest

import flashmoe
from flashmoe import _native, tensors

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 32, 24, 4, 2
PROBLEM = dict(hidden=HIDDEN, intermediate=INTERMEDIATE, num_experts=EXPERTS, top_k=TOP_K, max_tokens=8, dtype="fp32")


@pytest.fixture
def weights():
    return dict(up=numpy.ones((EXPERTS, 2 * INTERMEDIATE, HIDDEN), numpy.float32),
                down=numpy.ones((EXPERTS, HIDDEN, INTERMEDIATE), numpy.float32))


@pytest.fixture
def call():
    return dict(x=numpy.ones((3, HIDDEN), numpy.float32), topk_weights=numpy.ones((3, TOP_K), numpy.float32),
                topk_ids=numpy.zeros((3, TOP_K), numpy.int32))


@pytest.mark.parametrize("change, message", [
    (dict(hidden=30), "hidden"),
    (dict(hidden="a"), "hidden"),
    (dict(hidden=1 << 40), "hidden"),
    (dict(num_experts=0), "num_experts"),
    (dict(top_k=5), "top_k"),
    (dict(max_tokens=0), "max_tokens"),
    (dict(dtype="fp8"), "bf16, fp16"),
    (dict(activation="swish"), "silu"),
    (dict(activation="swiglu_clamped", gated=False), "swiglu_clamped"),
    (dict(num_ranks=3), "multiple of num_ranks"),  # ETOPK1
    (dict(num_ranks=2), r"num_ranks .2. must be 1 without a group: pass group="),
    (dict(wire_form="fast"), "counted"),
])
def test_problems_that_break_a_rule(weights, is_one_sentence, change, message):
    with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
        flashmoe.Layer(flashmoe.Problem(**{**PROBLEM, **change}), **weights)
    assert is_one_sentence(str(caught.value))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name, tensor, error, message", [
    ("up", numpy.ones((EXPERTS, INTERMEDIATE, HIDDEN), numpy.float32), flashmoe.InvalidArgument, "48"),
    ("up", numpy.ones((EXPERTS, 48, HIDDEN), numpy.float64), flashmoe.InvalidDType, "fp32"),
    ("up", numpy.ones((EXPERTS, HIDDEN, 48), numpy.float32).transpose(0, 2, 1), flashmoe.InvalidArgument, "contiguous"),
    ("down", numpy.ones((EXPERTS, HIDDEN, 25), numpy.float32)[:, :, :24], flashmoe.InvalidArgument, "contiguous"),
    ("down", None, flashmoe.InvalidArgument, "down"),
    ("down", [1.0], flashmoe.InvalidDType, "list"),
    ("up_bias", numpy.ones((EXPERTS, 48), numpy.float32), flashmoe.InvalidArgument, "up_bias"),
])
def test_weights_that_do_not_fit(weights, is_one_sentence, name, tensor, error, message):  # LAYOUT1
    with pytest.raises(error, match=message) as caught:
        flashmoe.Layer(flashmoe.Problem(**PROBLEM), **{**weights, name: tensor})
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("name, tensor, error, message", [
    ("x", numpy.ones((3, HIDDEN), numpy.float16), flashmoe.InvalidDType, "fp16, wanted fp32"),
    ("x", numpy.ones((3, HIDDEN + 8), numpy.float32), flashmoe.InvalidArgument, "wanted"),
    ("x", numpy.ones((9, HIDDEN), numpy.float32), flashmoe.InvalidArgument, "shape"),
    ("x", numpy.ones((6, HIDDEN), numpy.float32)[::2], flashmoe.InvalidArgument, "strides"),
    ("x", numpy.ones(HIDDEN, numpy.float32), flashmoe.InvalidArgument, "shape"),
    ("topk_weights", numpy.ones((3, TOP_K), numpy.float64), flashmoe.InvalidDType, "fp64, wanted fp32"),
    ("topk_weights", numpy.ones((3, 1), numpy.float32), flashmoe.InvalidArgument, "shape"),
    ("topk_ids", numpy.zeros((3, TOP_K), numpy.int64), TypeError, "int64, wanted int32"),  # LAYOUT5
    ("topk_ids", numpy.zeros((3, TOP_K), numpy.uint32), TypeError, "uint32, wanted int32"),
    ("topk_ids", numpy.zeros((3, TOP_K), numpy.int16), TypeError, "int16, wanted int32"),
    ("out", numpy.ones((4, HIDDEN), numpy.float32), flashmoe.InvalidArgument, "out"),
    ("max_tokens", 9, flashmoe.InvalidArgument, "max_tokens"),
    ("max_tokens", 2, flashmoe.InvalidArgument, "num_tokens"),
    ("max_tokens", None, flashmoe.InvalidArgument, "integer"),
])
def test_calls_that_do_not_fit_leave_the_layer_alive(weights, call, is_one_sentence, name, tensor, error, message):
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights)
    expected = layer.forward(**call)
    with pytest.raises(error, match=message) as caught:
        layer.forward(**{**call, name: tensor})
    assert is_one_sentence(str(caught.value))
    assert numpy.array_equal(layer.forward(**call), expected)


@pytest.mark.parametrize("name", ["x", "topk_weights", "topk_ids", "up", "down"])
def test_an_output_over_what_is_read_is_refused(weights, call, is_one_sentence, name):
    memory = numpy.zeros(1 << 14, numpy.float32)
    read = {**weights, **call}[name]
    start = call["x"].size // 2  # so that the first half of `out` is free
    lies = memory[start:start + read.size].view(read.dtype).reshape(read.shape)
    lies[:] = read
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **{**weights, **({name: lies} if name in weights else {})})
    given = {**call, **({name: lies} if name in call else {})}
    expected = layer.forward(**given)
    with pytest.raises(flashmoe.InvalidArgument, match=f"^out must not overlap {name}: ") as caught:
        layer.forward(**given, out=memory[:call["x"].size].reshape(call["x"].shape))
    assert is_one_sentence(str(caught.value)) and numpy.array_equal(lies, read)
    beside = memory[start + read.size:][:call["x"].size].reshape(call["x"].shape)
    assert numpy.array_equal(layer.forward(**given, out=beside), expected)


def test_too_many_tokens_are_refused(weights):
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights)
    many = dict(x=numpy.ones((9, HIDDEN), numpy.float32), topk_weights=numpy.ones((9, TOP_K), numpy.float32),
                topk_ids=numpy.zeros((9, TOP_K), numpy.int32))
    with pytest.raises(flashmoe.InvalidArgument, match="max_tokens"):
        layer.forward(**many)


@pytest.mark.parametrize("expert", [EXPERTS, -2, 2**31 - 1])
def test_ids_out_of_range_end_the_heap(weights, call, is_one_sentence, expert):
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights)
    good = layer.forward(**call)
    bad = call["topk_ids"].copy()
    bad[1, 1] = expert
    with pytest.raises(flashmoe.InvalidArgument, match=str(expert)) as caught:
        layer.forward(**{**call, "topk_ids": bad})
    assert is_one_sentence(str(caught.value))
    with pytest.raises(flashmoe.Timeout):
        layer.forward(**call)
    assert numpy.array_equal(flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights).forward(**call), good)


@pytest.mark.parametrize("options, message", [
    (dict(num_ranks=0), "num_ranks"), (dict(num_ranks=65), "num_ranks"), (dict(num_ranks="2"), "num_ranks"),
    (dict(num_ranks=2**32 + 1), "num_ranks"), (dict(backend="gpu"), "cpu, cuda"),
    (dict(deadline_seconds=0), "deadline"),
    (dict(num_processors=65), "num_processors"), (dict(num_threads=-1), "num_threads"),
])
def test_groups_that_cannot_be(is_one_sentence, options, message):
    with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
        flashmoe.Group(**options)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_outside_the_group(weights, rank):
    with pytest.raises(flashmoe.InvalidArgument, match="rank"):
        flashmoe.Layer(flashmoe.Problem(**{**PROBLEM, "num_experts": 8, "num_ranks": 2}), **weights,
                       group=flashmoe.Group(2), rank=rank)


def test_a_group_of_another_kind(weights, is_one_sentence):
    with pytest.raises(flashmoe.InvalidDType, match="group must be a flashmoe.Group, but is a int: make one") as caught:
        flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights, group=3)
    assert is_one_sentence(str(caught.value))


def test_no_gpu_is_said():
    try:
        flashmoe.Group(backend="cuda")
    except flashmoe.CudaError as error:
        assert "cpu" in str(error)
    else:
        pytest.skip("this machine has a GPU")


def test_read_only_arrays_are_read_and_never_written(weights, call, is_one_sentence, tmp_path):
    expected = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights).forward(**call)
    for name, array in weights.items():
        numpy.save(tmp_path / name, array)
    weights = {name: numpy.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in weights}
    for array in call.values():
        array.flags.writeable = False
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights)
    assert numpy.array_equal(layer.forward(**call), expected)
    out = numpy.full_like(call["x"], 9)
    out.flags.writeable = False
    with pytest.raises(flashmoe.InvalidArgument, match="out is read-only") as caught:
        layer.forward(**call, out=out)
    assert is_one_sentence(str(caught.value)) and (out == 9).all()
    logits = numpy.ones((3, EXPERTS), numpy.float32)
    logits.flags.writeable = False
    assert flashmoe.route(logits, TOP_K)[1].shape == (3, TOP_K)


class OldArray:
    """An array of a library whose __dlpack__ knows no versions."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()


def test_libraries_of_the_first_dlpack_serve(weights, call, is_one_sentence):
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **{name: OldArray(array) for name, array in weights.items()})
    out = numpy.empty_like(call["x"])
    layer.forward(**{name: OldArray(array) for name, array in call.items()}, out=OldArray(out))
    assert numpy.array_equal(out, flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights).forward(**call))
    call["x"].flags.writeable = False
    with pytest.raises(flashmoe.InvalidArgument, match="x cannot be shared") as caught:
        layer.forward(**{**call, "x": OldArray(call["x"])}, out=out)
    assert is_one_sentence(str(caught.value))


def test_handles_are_not_copied(weights):
    layer = flashmoe.Layer(flashmoe.Problem(**PROBLEM), **weights)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(flashmoe.Group())
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="flashmoe's groups, layers and routers cannot be copied or pickled"):
            make(layer)


def test_every_name_of_the_package_is_listed(run_python):
    result = run_python("-c", "import flashmoe, sys; print(*dir(flashmoe), *dir(flashmoe.integrations)); "
                        "assert 'torch' not in sys.modules")
    assert result.returncode == 0, result.stderr
    assert {*flashmoe.__all__, "integrations", "transformers", "__version__"} <= set(result.stdout.split())


def test_a_library_of_another_version_is_refused(monkeypatch, is_one_sentence):
    monkeypatch.setattr(_native, "VERSION", (0, 99, 0))
    with pytest.raises(flashmoe.InvalidArgument, match=r"0\.99\.0") as caught:
        _native.call("flashmoe_check_version", *_native.VERSION)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("make, message", [
    (lambda path: None, "is missing"),
    (lambda path: path.write_text("no library"), "no libflashmoe.so"),
])
def test_a_library_that_cannot_be_loaded_is_an_import_error(tmp_path, run_python, make, message):  # INIT3
    path = tmp_path / "libflashmoe.so"
    make(path)
    result = run_python("-c", "import flashmoe", FLASHMOE_LIBRARY=str(path))
    assert result.returncode == 1
    assert "ImportError" in result.stderr and message in result.stderr.splitlines()[-1]


def test_the_package_says_what_needs_torch(monkeypatch):
    for name in ("flashmoe.module", "flashmoe.torch_ops"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(vars(flashmoe), "MoE", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(ImportError, match="pip install torch"):
        flashmoe.MoE
    with pytest.raises(AttributeError, match="no attribute"):
        flashmoe.Moe


def test_dlpack_tensors_are_read_as_they_lie():
    array = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)[:, 2:]
    got = tensors.view(array, "array")
    assert (got.shape, got.strides, got.dtype, got.device) == ((4, 4), (6, 1), "fp32", "cpu")
    assert got.pointer == array.ctypes.data


@pytest.mark.parametrize("place, message", [
    (("", 0, 1, 0), "group_id"), (("job", 2, 2, 0), "rank"), (("job", 0, 0, 0), "num_ranks"),
    (("job", "0", 1, 0), "rank"), (("job", 0, 1, 1 << 33), "device"),
])
def test_groups_of_processes_that_cannot_be(is_one_sentence, place, message):
    with pytest.raises(flashmoe.Error, match=f"{message}|GPU|CUDA") as caught:
        flashmoe.Group.join(*place, meeting_seconds=0.1)
    assert is_one_sentence(str(caught.value))
    assert isinstance(caught.value, (flashmoe.InvalidArgument, flashmoe.CudaError))


def test_an_mpi_communicator_becomes_a_group():
    class Communicator:  # of mpi4py, as far as it is used
        def bcast(self, value, root):
            return value

        def Get_rank(self):
            return 0

        def Get_size(self):
            return 0

    with pytest.raises((flashmoe.InvalidArgument, flashmoe.CudaError)):
        flashmoe.Group.from_mpi(Communicator(), device=0, meeting_seconds=0.1)


def test_what_is_no_communicator_is_told(is_one_sentence):
    with pytest.raises(flashmoe.InvalidDType, match="communicator is a NoneType") as caught:
        flashmoe.Group.from_mpi(None, device=0)
    assert is_one_sentence(str(caught.value))
