"""Every scenario runs with Danube: tiny counts, the whole path."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._results import Options
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS


@pytest.mark.parametrize("scenario", [name for name, one in ALL_SCENARIOS.items() if one.usual])
def test_each_scenario_runs_with_danube(scenario: str, tmp_path: Path) -> None:
    said: list[str] = []
    options = Options([scenario], ["danube"], repetitions=1, scale=0.0001, sync_delay_ms=0.0)
    result = run_all(options, tmp_path, said.append)
    assert result.scenarios[0].missing == [], said
    measurement = result.scenarios[0].of("danube")
    assert measurement is not None
    for metric in ALL_SCENARIOS[scenario].metrics:
        summary = measurement.summary(metric)
        assert summary is not None
        assert summary.median > 0 or metric == "backlog_added_mb"
    assert list(tmp_path.iterdir()) == []
