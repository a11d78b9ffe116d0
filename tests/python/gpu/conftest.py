"""Tests on a GPU, marked `gpu`; `multi_gpu` ones need two. Without them they are skipped, saying why."""

import os

import pytest
import torch

import flashmoe


def why_not(num_gpus):
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    try:
        flashmoe.Group(1, backend="cuda")
    except flashmoe.CudaError as error:
        return str(error)
    count = torch.cuda.device_count()
    return f"needs {num_gpus} GPUs, this machine shows {count}" if count < num_gpus else None


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU and a library with the CUDA backend")
    config.addinivalue_line("markers", "multi_gpu: needs two GPUs")


def pytest_collection_modifyitems(items):
    here = os.path.dirname(__file__)
    reasons = {count: why_not(count) for count in (1, 2)}
    for item in items:
        if str(item.fspath).startswith(here):
            item.add_marker(pytest.mark.gpu)
            reason = reasons[2 if item.get_closest_marker("multi_gpu") else 1]
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def tf32_is_allowed():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def from_scratch():
    """Every test has heaps of its own."""
    flashmoe.release_memory()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    flashmoe.release_memory()
