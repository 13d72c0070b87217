"""The scenarios about Spark, made tiny: first arms, each with a session of its own. P2 is P1 with other sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import _spark
from benchmarks._results import Options
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS, Scenario

pytestmark = [pytest.mark.spark, pytest.mark.extended]

SCALES = {"p1": 0.001, "p3": 0.002, "p4": 0.1, "p5": 0.001, "p6": 0.002, "p7": 0.1}


@pytest.mark.parametrize("name", SCALES)
def test_each_scenario_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := _spark.unavailable():
        pytest.skip(reason)
    found = ALL_SCENARIOS[name]
    monkeypatch.setitem(ALL_SCENARIOS, name, replace(found, arms=found.arms[:1]))
    said: list[str] = []
    options = Options([name], ["danube"], repetitions=1, scale=SCALES[name], sync_delay_ms=0.0)
    result = run_all(options, tmp_path, said.append)
    scenario = result.scenarios[0]
    assert scenario.missing == [], said
    measurement = scenario.measurements[0]
    for metric in found.metrics:
        summary = measurement.summary(metric)
        assert summary is not None, metric
        assert summary.median > 0, metric
    row_bytes = measurement.summary("row_bytes")
    if row_bytes is not None:
        assert row_bytes.median == pytest.approx(_row_bytes(found), rel=0.02)
    assert list(tmp_path.iterdir()) == []


def _row_bytes(scenario: Scenario) -> int:
    return scenario.arms[0].size + _spark.ROW_OVERHEAD_BYTES


def test_without_the_packages_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spark, "find_spec", lambda _name: None)
    reason = _spark.unavailable()
    assert reason is not None
    assert "pip install --group spark" in reason
