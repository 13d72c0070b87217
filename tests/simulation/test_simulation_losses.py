"""Worlds in which machines lose metadata or a journal file: no broker starts as if nothing were missing."""

from __future__ import annotations

import pytest

from danube.broker.directory import bond
from danube.testing.simulation import draw_plan, run_world

SEED = 710002
"""Loses twice in its storm."""


def test_what_is_lost_is_noticed_and_nothing_is_touched() -> None:
    report = run_world(SEED, plan=draw_plan(SEED, duration_s=15.0))
    assert not report.violations
    assert report.faults["lost"]
    assert report.counts["mended"] == report.faults["lost"]


def test_a_broker_that_does_not_compare_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bond, "find_losses", lambda standing, record, revision: [])
    report = run_world(SEED, plan=draw_plan(SEED, duration_s=15.0))
    assert any("although it has lost" in violation for violation in report.violations)
