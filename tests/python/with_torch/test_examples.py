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
