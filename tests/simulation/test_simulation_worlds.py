"""Worlds from seeds: nothing may be that must not be, and a seed is the same world every time, everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from danube.testing.simulation import draw_plan, run_world
from danube.testing.simulation._scheduler import check_trio

SEEDS = range(10)
"""Longer searches: ``python -m danube.testing.simulation --minutes 60``."""


@pytest.mark.parametrize("seed", SEEDS)
def test_world(seed: int) -> None:
    report = run_world(seed, plan=draw_plan(seed, duration_s=10.0))
    assert not report.violations, "\n".join(report.violations)
    assert report.published
    assert report.acknowledged
    assert report.delivered
    assert report.audited


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
