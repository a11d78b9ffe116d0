"""How processes that a launcher started find each other, without a GPU."""

import pytest

import flashmoe
from flashmoe import launch

CODE = "from flashmoe import launch; print(launch.next_group_id(), launch.next_group_id())"
LAUNCHERS = {
    "torchrun": dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", TORCHELASTIC_RUN_ID="job", MASTER_PORT="29500"),
    "mpirun": dict(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="1",
                   PMIX_NAMESPACE="job"),
    "srun": dict(SLURM_PROCID="1", SLURM_NTASKS="2", SLURM_LOCALID="1", SLURM_JOB_ID="7", SLURM_STEP_ID="0"),
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
