"""The scenarios about clusters of real brokers, made tiny."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._results import Options
from benchmarks.runner import run_all
from benchmarks.scenarios import ALL_SCENARIOS
from benchmarks.systems import ALL_SYSTEMS


def _measure(directory: Path, name: str, system: str, metrics: tuple[str, ...]) -> None:
    said: list[str] = []
    options = Options([name], [system], repetitions=1, scale=0.01, sync_delay_ms=0.0)
    scenario = run_all(options, directory, said.append).scenarios[0]
    assert scenario.missing == [], said
    (measurement,) = scenario.measurements
    for metric in metrics:
        summary = measurement.summary(metric)
        assert summary is not None, metric
        assert summary.median > 0, metric
    assert list(directory.iterdir()) == []


@pytest.mark.extended
def test_brokers_take_over_from_one_that_is_killed_or_paused(tmp_path: Path) -> None:
    _measure(tmp_path, "c2", "cluster", ALL_SCENARIOS["c2"].metrics)


@pytest.mark.extended
def test_failover_of_etcd_is_measured_beside(tmp_path: Path) -> None:
    if reason := ALL_SYSTEMS["etcd"].unavailable():
        pytest.skip(reason)
    _measure(tmp_path, "c2", "etcd", ("killed_write_p50_s", "paused_write_p50_s"))


@pytest.mark.extended
def test_topics_are_created_in_a_cluster_and_their_view_is_weighed(tmp_path: Path) -> None:
    # What 200 topics add to a broker's memory may be too little to be seen.
    metrics = set(ALL_SCENARIOS["c3"].metrics) - {"added_mb"}
    _measure(tmp_path, "c3", "cluster", tuple(sorted(metrics)))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["c4", "c5", "c7"])
def test_topics_move_are_drained_and_fail_over(tmp_path: Path, name: str) -> None:
    _measure(tmp_path, name, "cluster", ALL_SCENARIOS[name].metrics)


@pytest.mark.long  # tests/cluster/test_rolling_restart.py does the same in each run
def test_brokers_are_restarted_one_by_one_under_load(tmp_path: Path) -> None:
    # Errors and repeated deliveries are none if all is well.
    metrics = set(ALL_SCENARIOS["c6"].metrics) - {"errors", "repeated"}
    _measure(tmp_path, "c6", "cluster", tuple(sorted(metrics)))
