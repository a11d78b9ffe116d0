"""Tests of the Python package; FLASHMOE_LIBRARY names the library they run on (tools/test_python.sh sets it).

plain/ needs NumPy alone, with_torch/ needs torch and transformers.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture
def on_ranks():
    """Runs work(rank) for every rank, each on a thread of its own; returns the results, or raises what one raised."""

    def run(num_ranks, work):
        with concurrent.futures.ThreadPoolExecutor(num_ranks) as pool:
            futures = [pool.submit(work, rank) for rank in range(num_ranks)]
            return [future.result(timeout=60) for future in futures]

    return run


@pytest.fixture
def is_one_sentence():
    """Whether a message reads as the project's messages do."""

    def check(message):
        return 20 < len(message) < 400 and "\n" not in message

    return check


@pytest.fixture
def run_python():
    """Runs an interpreter of its own that finds the package, with arguments; keywords are environment variables."""

    def run(*arguments, **environment):
        return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment})

    return run
