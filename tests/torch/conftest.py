"""Where the tests find the program and the script that makes checkpoints."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="session")
def flashmoe():
    """Runs the program with arguments; returns its JSON object, or fails with what it said."""
    program = os.environ.get("FLASHMOE_PROGRAM", str(ROOT / "build/cpu/cli/flashmoe"))

    def run(*arguments):
        command = [program, *map(str, arguments), "--json"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, f"{' '.join(command)} exited with {result.returncode}: {result.stderr}"
        return json.loads(result.stdout)

    return run


@pytest.fixture(scope="session")
def fixtures_folder():
    return ROOT / "tests/fixtures/checkpoints"
