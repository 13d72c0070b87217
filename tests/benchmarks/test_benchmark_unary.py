"""The scenario about unary calls, made tiny."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._results import Options
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS, _h2load


@pytest.mark.extended  # h2load is a Debian package
def test_unary_calls_are_measured_beside_an_echo(tmp_path: Path) -> None:
    if reason := _h2load.unavailable():
        pytest.skip(reason)
    said: list[str] = []
    options = Options(["u1"], ["danube", "grpc-aio"], repetitions=1, scale=0.002, sync_delay_ms=0.0)
    result = run_all(options, tmp_path, said.append)
    scenario = result.scenarios[0]
    assert scenario.missing == [], said
    assert [one.system for one in scenario.measurements] == ["danube", "danube, token", "grpc-aio"]
    for measurement in scenario.measurements:
        for metric in ALL_SCENARIOS["u1"].metrics:
            summary = measurement.summary(metric)
            assert summary is not None, metric
            assert summary.median > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended  # h2load is a Debian package
def test_the_registry_is_measured(tmp_path: Path) -> None:
    if reason := _h2load.unavailable():
        pytest.skip(reason)
    said: list[str] = []
    options = Options(["u2"], ["danube"], repetitions=1, scale=0.01, sync_delay_ms=0.0)
    (scenario,) = run_all(options, tmp_path, said.append).scenarios
    assert scenario.missing == [], said
    for metric in ALL_SCENARIOS["u2"].metrics:
        summary = scenario.measurements[0].summary(metric)
        assert summary is not None, metric
        assert summary.median > 0
    assert list(tmp_path.iterdir()) == []


def test_without_the_program_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options = Options(["u1"], ["danube", "grpc-aio"], repetitions=1, scale=0.002, sync_delay_ms=0.0)
    result = run_all(options, tmp_path, lambda _text: None)
    assert ["nghttp2-client" in one.reason for one in result.scenarios[0].missing] == [True] * 3
