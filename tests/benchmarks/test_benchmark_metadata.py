"""The scenario about replicated metadata, made tiny."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._results import Options
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS
from benchmarks.systems import ALL_SYSTEMS


def _measure(directory: Path, monkeypatch: pytest.MonkeyPatch, systems: list[str]) -> None:
    found = ALL_SCENARIOS["c1"]
    monkeypatch.setitem(ALL_SCENARIOS, "c1", replace(found, warm_up=False))
    said: list[str] = []
    result = run_all(Options(["c1"], systems, repetitions=1, scale=0.01, sync_delay_ms=0.0), directory, said.append)
    scenario = result.scenarios[0]
    assert scenario.missing == [], said
    assert [one.system for one in scenario.measurements] == [arm.name for arm in found.arms if arm.system in systems]
    for measurement in scenario.measurements:
        for metric in found.metrics:
            summary = measurement.summary(metric)
            assert summary is not None, metric
            assert summary.median > 0
    assert list(directory.iterdir()) == []


def test_replicated_metadata_are_measured_at_the_leader_and_at_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _measure(tmp_path, monkeypatch, ["members"])


@pytest.mark.extended
def test_etcd_is_measured_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := ALL_SYSTEMS["etcd"].unavailable():
        pytest.skip(reason)
    _measure(tmp_path, monkeypatch, ["members", "etcd"])
