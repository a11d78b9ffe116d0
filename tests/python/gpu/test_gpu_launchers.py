"""A process a GPU, under launchers."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples/python/quickstart.py"
CHOSEN_GPUS = pathlib.Path(__file__).with_name("chosen_gpus.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python")}


def finish(processes):
    outputs = [process.communicate(timeout=120) for process in processes]
    for process, (_, error) in zip(processes, outputs):
        assert process.returncode == 0, error
    return "".join(output for output, _ in outputs)


def start(*command, **environment):
    return subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env={**ENVIRONMENT, **environment})


def torchrun(num_processes, *program):
    return finish([start("-m", "torch.distributed.run", f"--nproc_per_node={num_processes}", "--master_port=0",
                         "--standalone", *program)])


def test_one_process_by_itself():
    assert "rank 0 of 1" in finish([start(QUICKSTART, "--gpu")])


@pytest.mark.parametrize("options", [["--torch-init"], []], ids=["torch-init", "launcher"])
def test_one_process_under_torchrun(options):
    assert "rank 0 of 1" in torchrun(1, QUICKSTART, "--gpu", *options)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("options", [["--torch-init"], []], ids=["torch-init", "launcher"])
def test_two_processes_under_torchrun(options):
    output = torchrun(2, QUICKSTART, "--gpu", *options)
    assert "rank 0 of 2" in output and "rank 1 of 2" in output


@pytest.mark.multi_gpu
def test_two_processes_as_mpirun_starts_them():
    ranks = [start(QUICKSTART, "--gpu", OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2",
                   OMPI_COMM_WORLD_LOCAL_RANK=str(rank), PMIX_NAMESPACE="flashmoe-test") for rank in range(2)]
    output = finish(ranks)
    assert "rank 0 of 2" in output and "rank 1 of 2" in output


def test_processes_that_never_chose_their_gpu_are_told(is_one_sentence):  # GROUP4
    sentences = torchrun(2, CHOSEN_GPUS).splitlines()
    assert len(sentences) == 6  # of two ranks, three ways to make a group
    for sentence in sentences:
        assert sentence.startswith("ranks 0 and 1 of group") and "torch.cuda.set_device" in sentence
        assert is_one_sentence(sentence)


@pytest.mark.multi_gpu
def test_processes_that_chose_their_gpu_by_torch_share_a_layer():  # GROUP4
    assert sorted(torchrun(2, CHOSEN_GPUS, "--choose").splitlines()) == [
        "rank 0 is right on GPU 0", "rank 1 is right on GPU 1"]
