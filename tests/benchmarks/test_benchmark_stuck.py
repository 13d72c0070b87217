"""The scenario about a consumer that sticks, made tiny."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._results import Options
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS, d1

ARMS = ["shared", "key_shared-alone"]
"""One beside a consumer that sticks and one without, one of each kind: each starts many processes."""


def test_a_consumer_that_sticks_is_measured_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ALL_SCENARIOS["d1"]
    arms = tuple(arm for arm in found.arms if arm.name in ARMS)
    monkeypatch.setitem(ALL_SCENARIOS, "d1", replace(found, arms=arms, warm_up=False))
    said: list[str] = []
    options = Options(["d1"], ["danube"], repetitions=1, scale=0.005, sync_delay_ms=0.0, seconds=0.2)
    result = run_all(options, tmp_path, said.append)
    scenario = result.scenarios[0]
    assert scenario.missing == [], said
    assert [one.system for one in scenario.measurements] == ARMS
    for measurement in scenario.measurements:
        for metric in ALL_SCENARIOS["d1"].metrics:
            summary = measurement.summary(metric)
            assert summary is not None, metric
            assert summary.median > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", d1.KINDS)
def test_the_three_stop_at_what_they_get_in_any_case(kind: str) -> None:
    assert d1._reached(kind, 400_000) <= 400_000 - d1.CREDIT
    for count in (200, 6_000, 50_000):
        assert 0 < d1._reached(kind, count) <= count - min(count // 4, d1.CREDIT)
