"""Worlds from seeds: nothing may be that must not be, and a seed is the same world every time, everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from danube.testing.simulation import draw_plan, run_world
from danube.testing.simulation._scheduler import check_trio
from danube.testing.simulation.runner import run_many
from danube.testing.simulation.storm import FAULTS

pytestmark = pytest.mark.timeout(300)

SEEDS = range(200)
"""Longer searches: ``python -m tests.simulation --seeds 0-99999 --jobs 2``."""

STORM_S = 12.0
"""Virtual seconds with faults in each of these worlds."""


def test_worlds() -> None:
    """On two cores; each world has a watchdog of real time."""
    summary = run_many(SEEDS, jobs=2, duration_s=STORM_S, watchdog_s=120.0)
    print("\n".join(summary.lines()))  # noqa: T201 - what the proof consists of
    assert not summary.troubles, "\n".join(f"seed {seed}: {'; '.join(what)}" for seed, what in summary.troubles)
    assert summary.worlds == len(SEEDS)
    assert summary.published
    assert summary.acknowledged
    assert summary.checked
    assert set(FAULTS) <= set(summary.faults), "a kind of fault was never injected"


def test_a_world_that_hangs_is_found() -> None:
    summary = run_many([1], jobs=1, watchdog_s=0.01)
    assert [trouble.seed for trouble in summary.troubles] == [1]
    assert "Timeout" in summary.troubles[0].what[0]


def test_trio_can_be_seeded() -> None:
    """Guards the private switch: a Trio that has moved it fails here, and says so."""
    check_trio()


def run_in_process(seed: int, hash_seed: str) -> dict[str, object]:
    """Run a world in a new process that was started with another hash seed: the command sees to its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "danube.testing.simulation", "--seed", str(seed), "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report: dict[str, object] = json.loads(ended.stdout)
    return report


def test_a_seed_is_one_world_in_every_process() -> None:
    """The meta-test: two processes tell the same story line by line. It notices lost determinism the day it happens."""
    first, second = run_in_process(14, "1"), run_in_process(14, "2")
    assert first == second


def test_another_seed_is_another_world() -> None:
    digests = {run_world(seed, plan=draw_plan(seed, duration_s=1.0)).digest for seed in (20, 21)}
    assert len(digests) == 2
