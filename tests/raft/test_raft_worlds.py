"""Random worlds of the Raft core, and the mistakes planted in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from raft_simulator import run_world

_FOUND = {1759: "a leader whose group shrank to itself did not commit what it had, and refused everything as busy"}


@pytest.mark.parametrize("seed", [*range(25), *_FOUND])
def test_worlds_keep_what_raft_promises(seed: int) -> None:
    counts = run_world(seed)
    assert counts["applied"]


def test_every_planted_mistake_is_found() -> None:
    script = Path(__file__).with_name("raft_mutants.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
