"""Groups of torch.distributed processes on a machine without a GPU: every rank is told, and nothing hangs."""

import concurrent.futures
import socket

import pytest
import torch
import torch.distributed as distributed

import flashmoe

CODE = """
import torch, torch.distributed as distributed
import flashmoe
distributed.init_process_group("gloo")
pairs = [distributed.new_group([0, 1])]
try:
    flashmoe.Group.from_torch({group}, meeting_seconds=5)
except flashmoe.Error as error:
    print(type(error).__name__, error)
distributed.destroy_process_group()
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("group", ["None", "pairs[0]"])
def test_ranks_without_gpus_are_told(run_python, group):  # INIT8, GROUP
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank(index):
        return run_python("-c", CODE.format(group=group), RANK=str(index), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(port))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for result in pool.map(rank, range(2)):
            assert result.returncode == 0, result.stderr
            assert result.stdout.startswith("FabricError the 2 processes"), result.stdout


@pytest.mark.parametrize("given, wanted", [(None, 1), (3, 3)])
def test_a_rank_takes_the_gpu_that_torch_has_chosen(monkeypatch, given, wanted):  # GROUP4
    joined = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(flashmoe.Group, "join", lambda *place, **options: joined.append(place[1:]))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        flashmoe.Group.from_torch(device=given)
    finally:
        distributed.destroy_process_group()
    assert joined == [(0, 1, wanted)]


def test_a_group_of_torch_needs_its_initialisation(is_one_sentence):
    with pytest.raises(flashmoe.InvalidArgument, match="torch.distributed is not initialised") as caught:
        flashmoe.Group.from_torch()
    assert is_one_sentence(str(caught.value))
