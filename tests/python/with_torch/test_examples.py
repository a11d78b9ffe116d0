"""The examples run; the quickstart under the launchers, too."""

import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_run(run_python, name):
    result = run_python(EXAMPLES / name)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_the_quickstart_runs_under_torchrun(run_python):
    result = run_python("-m", "torch.distributed.run", "--nproc_per_node=1", "--master_port=0", "--standalone",
                        EXAMPLES / "quickstart.py", "--torch-init")
    assert result.returncode == 0, result.stderr
    assert "rank 0 of 1" in result.stdout


@pytest.mark.parametrize("launcher", [
    dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1"),
    dict(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="0"),
    dict(SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_LOCALID="0"),
], ids=["torchrun", "mpirun", "srun"])
def test_several_processes_on_the_cpu_are_refused(run_python, launcher):  # INIT8
    result = run_python(EXAMPLES / "quickstart.py", **launcher)
    assert result.returncode == 1
    assert "FabricError" in result.stderr.splitlines()[-1] and "one process" in result.stderr.splitlines()[-1]
