"""How processes that a launcher started find each other, without a GPU."""


import pytest

import flashmoe
from flashmoe import launch
from flashmoe.group import rank_in

CODE = "from flashmoe import launch; print(launch.next_group_id(), launch.next_group_id())"
LAUNCHERS = {
    "torchrun": dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", TORCHELASTIC_RUN_ID="job", MASTER_PORT="29500"),
    "mpirun": dict(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="1",
                   PMIX_NAMESPACE="job"),
    "srun": dict(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2", SLURM_LOCALID="1", SLURM_JOB_ID="7", SLURM_STEP_ID="0"),
    "unknown job": dict(PMI_RANK="1", PMI_SIZE="2", MPI_LOCALRANKID="1"),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_of_one_launch_name_their_groups_alike(run_python, launcher):
    first, second = (run_python("-c", CODE, **LAUNCHERS[launcher]).stdout.split() for _ in range(2))
    assert first == second and len(set(first)) == 2
    assert all(len(name) <= 48 and name.isprintable() for name in first)


def test_another_job_has_other_names(run_python):
    names = [run_python("-c", CODE, **{**LAUNCHERS["srun"], "SLURM_STEP_ID": step}).stdout for step in "01"]
    assert names[0] != names[1]


def test_joining_without_a_gpu_is_told(monkeypatch, is_one_sentence):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name, value in LAUNCHERS["torchrun"].items():
        monkeypatch.setenv(name, value)
    assert launch.launched_as() == (1, 2, 1)
    with pytest.raises(flashmoe.CudaError, match="cuda") as caught:
        flashmoe.Group.from_launcher()
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("variables, place", [
    (dict(SLURM_JOB_ID="7", SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_LOCALID="0"), (0, 1, 0)),
    (dict(SLURM_STEP_ID="4294967290", SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0", SLURM_NTASKS="8"), (0, 1, 0)),
    (dict(SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="3", SLURM_NTASKS="8", SLURM_LOCALID="1"), (3, 4, 1)),
], ids=["sbatch", "salloc", "srun of less"])
def test_a_process_that_srun_has_not_started_is_alone(monkeypatch, variables, place):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch.launched_as() == place


@pytest.mark.parametrize("variables, message", [
    (dict(RANK="abc", WORLD_SIZE="2"), r"RANK \('abc'\)"),
    (dict(RANK="0", WORLD_SIZE=""), r"WORLD_SIZE \(''\)"),
    (dict(RANK="0", WORLD_SIZE="2", LOCAL_RANK="gpu"), r"LOCAL_RANK \('gpu'\)"),
    (dict(RANK="2", WORLD_SIZE="2"), "RANK=2, WORLD_SIZE=2"),
    (dict(RANK="-1", WORLD_SIZE="2"), "RANK=-1, WORLD_SIZE=2"),
    (dict(RANK="0", WORLD_SIZE="2", LOCAL_RANK="-1"), "LOCAL_RANK=-1"),
])
def test_an_environment_that_cannot_be_is_refused(monkeypatch, is_one_sentence, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for call in (flashmoe.get_local_rank, flashmoe.Group.from_launcher):
        with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
            call()
        assert is_one_sentence(str(caught.value))


def test_a_process_has_the_rank_it_joined_with():
    group = flashmoe.Group.__new__(flashmoe.Group)  # as join() fills it in
    group.num_ranks, group.rank = 2, 1
    assert rank_in(group, None) == rank_in(group, 1) == 1
    with pytest.raises(flashmoe.InvalidArgument, match=r"rank \(0\) must be this process's rank in the group \(1\)"):
        rank_in(group, 0)
