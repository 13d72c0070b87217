"""Worlds from seeds: nothing may be that must not be, and a seed is the same world every time, everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from itertools import pairwise

import pytest

from danube.testing.simulation import draw_plan, run_world
from danube.testing.simulation._scheduler import check_trio
from danube.testing.simulation.fresh import fresh_base, fresh_seeds, present_base
from danube.testing.simulation.runner import run_many
from danube.testing.simulation.storm import FAULTS, SLOW_FAULTS

pytestmark = pytest.mark.timeout(1800)  # two cores take two minutes, alone; more worlds take eight

SEEDS = range(36)
MORE_SEEDS = range(36, 320)
"""Longer searches: ``python -m danube.testing.simulation --minutes 60 --jobs 2``."""

STORM_S = 12.0
"""Virtual seconds with faults in each of these worlds."""

HABITS = {
    "acked-up-to",
    "acked-one",
    "taken-one",
    "confirmed-one",
    "change-topic",
    "change-policy",
    "seek",
    "churn",
    "read",
}
"""What applications do now and then, as the trace says it."""

FRESH_MINUTES = 1.0
"""Real ones, of both cores; ``tox -e long`` runs an hour of them."""


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.long)])
def test_worlds(seeds: range) -> None:
    """On two cores; each world has a watchdog of real time."""
    summary = run_many(seeds, jobs=2, duration_s=STORM_S, watchdog_s=120.0)
    print("\n".join(summary.lines()))  # noqa: T201 - what the proof consists of
    assert not summary.troubles, "\n".join(trouble.told() for trouble in summary.troubles)
    assert summary.worlds == len(seeds)
    assert summary.published
    assert summary.acknowledged
    assert summary.checked
    assert {*FAULTS, *SLOW_FAULTS} <= set(summary.faults), "a kind of fault was never injected"
    assert set(summary.events) >= HABITS, "something was never done"


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_worlds_that_were_never_run_before() -> None:
    """A seed that fails here belongs into a test that stays."""
    base = present_base()
    print(f"fresh seeds from {base} on")  # noqa: T201 - what has to be known to repeat it
    summary = run_many(fresh_seeds(base, FRESH_MINUTES), jobs=2, watchdog_s=300.0)
    print("\n".join(summary.lines()))  # noqa: T201 - what the proof consists of
    assert not summary.troubles, "\n".join(trouble.told() for trouble in summary.troubles)
    assert summary.worlds


def test_fresh_seeds_are_others_on_another_day_and_with_another_commit() -> None:
    bases = [
        fresh_base(date(2026, 11, day), commit)
        for day in (22, 23)
        for commit in ("", "3b9af2c1d0e4", "3b9af2c1d0e5c7a1f0")
    ]
    assert len(set(bases)) == len(bases)
    assert min(later - former for former, later in pairwise(sorted(bases))) >= 100_000
    assert str(bases[0]).startswith("20261122")
    assert list(fresh_seeds(7, 0.0)) == []
    assert next(fresh_seeds(7, 1.0)) == 7


def test_a_world_that_hangs_is_found() -> None:
    summary = run_many([1], jobs=1, watchdog_s=0.01, duration_s=2.0)
    assert [trouble.seed for trouble in summary.troubles] == [1]
    assert "Timeout" in summary.troubles[0].what[0]
    assert "python -m danube.testing.simulation --seed 1 --duration 2" in summary.troubles[0].told()


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
