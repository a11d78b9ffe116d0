"""Which GPU the library is asked for, without one."""

import ctypes

import numpy
import pytest

import flashmoe
from flashmoe import _native, tensors
from flashmoe.layer_pool import LayerPool


@pytest.fixture
def asked_for(monkeypatch):
    """What the library is asked to make by a call, which ends there: function and arguments."""

    class Asked(Exception):
        pass

    def handle(*arguments):
        raise Asked(*arguments)

    monkeypatch.setattr(_native, "Handle", handle)

    def ask(call):
        with pytest.raises(Asked) as caught:
            call()
        return caught.value.args

    return ask


class OnGpu:
    """An array that says it lies on a GPU."""

    def __init__(self, shape, device):
        self.array, self.device = numpy.zeros(shape, numpy.float16), device

    def __dlpack__(self):
        capsule = self.array.__dlpack__()
        tensor = tensors._DLTensor.from_address(tensors._capsule_pointer(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = 2, self.device  # kDLCUDA
        return capsule


def options_of(arguments):
    """The C struct among the arguments, the last one."""
    assert isinstance(arguments[-1], type(ctypes.byref(ctypes.c_int())))
    return arguments[-1]._obj


def test_a_layer_runs_where_its_weights_lie(asked_for):  # GROUP3
    problem = flashmoe.Problem(32, 24, 4, 2, 8, dtype="fp16")
    function, *arguments = asked_for(lambda: flashmoe.Layer(problem, OnGpu((4, 48, 32), 1), OnGpu((4, 32, 24), 1)))
    options = options_of(arguments)
    assert function == "group_create_local"
    assert (_native.BACKENDS[options.backend], options.first_device) == ("cuda", 1)


def test_calls_that_bring_their_weights_run_where_they_lie(asked_for):  # GROUP3
    problem = flashmoe.Problem(32, 24, 4, 2, 8, dtype="fp16")
    function, *arguments = asked_for(lambda: LayerPool().run(
        problem, "cuda:1", OnGpu((4, 48, 32), 1), OnGpu((4, 32, 24), 1), lambda layer: None))
    options = options_of(arguments)
    assert function == "group_create_local"
    assert (_native.BACKENDS[options.backend], options.first_device) == ("cuda", 1)


def test_a_router_runs_where_its_weight_lies(asked_for):  # GROUP3
    function, *arguments = asked_for(lambda: flashmoe.Router(4, 2, weight=OnGpu((4, 32), 1)))
    parameters = options_of(arguments)
    assert function == "router_create"
    assert (_native.BACKENDS[parameters.backend], parameters.device) == ("cuda", 1)


@pytest.mark.parametrize("given, wanted", [(None, 1), (3, 3)])
def test_a_launched_rank_takes_the_gpu_of_its_local_rank(monkeypatch, asked_for, given, wanted):  # GROUP4
    for name, value in dict(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1").items():
        monkeypatch.setenv(name, value)
    function, _, *place, _ = asked_for(lambda: flashmoe.Group.from_launcher(device=given))
    assert (function, place) == ("group_join", [5, 8, wanted])
