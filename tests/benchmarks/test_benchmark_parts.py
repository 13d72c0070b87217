"""The harness's own arithmetic: statistics, payload checks, result files, targets, reports."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._payloads import CheckError, Tally, checksum, make_payloads, sequence_of
from benchmarks._processes import Outcome
from benchmarks._render import compare, render
from benchmarks._results import (
    SCHEMA,
    Machine,
    Measurement,
    Missing,
    Options,
    Repetition,
    RunResult,
    ScenarioResult,
    load,
)
from benchmarks._run import _compare, latency_values
from benchmarks._stats import percentile, summarise
from benchmarks._targets import judge
from benchmarks.runner import choose
from benchmarks.scenarios import ALL_SCENARIOS
from benchmarks.systems import ALL_SYSTEMS

FLOATS = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)


@given(FLOATS, st.floats(0, 100))
def test_a_percentile_is_a_value_that_enough_of_the_others_do_not_exceed(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) <= len(values) * percent / 100


def test_percentiles_and_medians_of_known_values() -> None:
    values = [float(one) for one in range(1, 101)]
    assert [percentile(values, one) for one in (0, 50, 99, 100)] == [1, 50, 99, 100]
    summary = summarise([4.0, 1.0, 3.0, 2.0])
    assert (summary.median, summary.low, summary.high) == (2.5, 1.0, 4.0)
    assert summary.spread == pytest.approx(1.2)
    assert summarise([7.0]).spread == 0


@pytest.mark.parametrize("call", [lambda: percentile([], 50), lambda: percentile([1.0], 101), lambda: summarise([])])
def test_statistics_of_nothing_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"no values|percentage"):
        call()


def test_payloads_are_distinct_sized_and_numbered() -> None:
    payloads = make_payloads(5_000, 100, first=10)
    assert len(set(payloads)) == 5_000
    assert {len(one) for one in payloads} == {100}
    assert [sequence_of(one) for one in payloads] == list(range(10, 5_010))
    assert len({one[8:] for one in payloads}) > 4_000
    with pytest.raises(ValueError, match="at least 8"):
        make_payloads(1, 7)


@given(st.integers(0, 99))
def test_the_checksum_does_not_depend_on_how_the_payloads_were_batched(cut: int) -> None:
    payloads = make_payloads(99, 20)
    assert checksum(payloads[cut:], checksum(payloads[:cut])) == checksum(payloads)
    assert checksum(payloads[::-1]) != checksum(payloads)


def test_a_tally_accepts_any_order_and_nothing_twice() -> None:
    payloads = make_payloads(50, 16)
    random.Random(1).shuffle(payloads)
    tally = Tally(50)
    tally.add(payloads)
    assert tally.total == 50
    with pytest.raises(CheckError, match="twice"):
        tally.add_one(payloads[0])
    with pytest.raises(CheckError, match="never sent"):
        tally.add_one(make_payloads(1, 16, first=50)[0])


def test_lost_or_changed_messages_fail_the_run() -> None:
    sent = Outcome(started_ns=0, finished_ns=1, count=10, checksum=5)
    _compare([sent], [Outcome(started_ns=0, finished_ns=1, count=20, checksum=5)], each=2)
    with pytest.raises(CheckError, match="9 arrived instead of 10"):
        _compare([sent], [Outcome(started_ns=0, finished_ns=1, count=9, checksum=5)], each=1)
    with pytest.raises(CheckError, match="checksum"):
        _compare([sent], [Outcome(started_ns=0, finished_ns=1, count=10, checksum=6)], each=1)


def test_latencies_of_all_workers_are_pooled() -> None:
    fast = Outcome(started_ns=0, finished_ns=1, count=3, latencies_us={"x": [1.0, 2.0, 3.0]})
    slow = Outcome(started_ns=0, finished_ns=1, count=1, latencies_us={"x": [900.0]})
    assert latency_values([fast, slow], "x", "a_") == {"a_p50_us": 2.0, "a_p99_us": 900.0, "a_p999_us": 900.0}


def _measurement(system: str, **values: list[float]) -> Measurement:
    repetitions = [
        Repetition(dict(zip(values, row, strict=True)), {"broker": 1.5}, 0.5, 0.02)
        for row in zip(*values.values(), strict=True)
    ]
    return Measurement(system, f"{system} 1.0", "synced", "10 x 100 B", repetitions)


def _result(danube: list[float], jetstream: list[float], sync_delay_ms: float = 0.0) -> RunResult:
    measured = [_measurement("danube", messages_per_s=danube), _measurement("jetstream", messages_per_s=jetstream)]
    return _result_of("s1", measured, sync_delay_ms)


def _result_of(name: str, measured: list[Measurement], sync_delay_ms: float = 0.0) -> RunResult:
    scenario = ALL_SCENARIOS[name]
    return RunResult(
        SCHEMA,
        "2030-01-01T00:00:00+00:00",
        "2030-01-01T00:01:00+00:00",
        Machine("a cpu", 2, 2**34, "Linux 6", "3.11", "ext4", 40.0, 80.0),
        Options([name], list(ALL_SYSTEMS), len(measured[0].repetitions), 1.0, sync_delay_ms),
        [
            ScenarioResult(
                name,
                scenario.title,
                list(scenario.metrics),
                measured,
                [Missing("redis-benchmark", "it was not found")],
            )
        ],
    )


def test_targets_are_judged_by_medians_and_ratios() -> None:
    verdicts = judge(_result([900_000, 1_100_000, 1_200_000], [60_000, 50_000, 70_000]))
    assert [one.met for one in verdicts] == [True, False, None]
    assert verdicts[1].value == pytest.approx(1_100_000 / 60_000)
    assert "redis-benchmark" in verdicts[2].reason


def test_ratios_are_not_judged_when_only_danube_was_slowed_down() -> None:
    verdicts = judge(_result([2e6], [1.0], sync_delay_ms=6))
    assert [one.met for one in verdicts] == [True, None, None]


def test_what_tls_may_add_is_judged_by_a_difference() -> None:
    def arm(name: str, median_us: float) -> Measurement:
        return _measurement(name, paced_p50_us=[median_us], back_to_back_p50_us=[median_us])

    result = _result_of("t3", [arm("danube", 400), arm("danube, TLS", 550), arm("danube, TLS and token", 551)], 6)
    verdicts = judge(result)
    assert [(one.target.arm, one.value, one.met) for one in verdicts] == [
        ("danube, TLS", 150, True),
        ("danube, TLS", 150, True),
        ("danube, TLS and token", 151, False),
        ("danube, TLS and token", 151, False),
    ]
    assert verdicts[0].wanted == "danube, TLS: paced_p50_us <= danube + 150"


def test_result_files_are_read_back_and_foreign_ones_refused(tmp_path: Path) -> None:
    result = _result([1e6, 2e6], [1e3, 2e3])
    path = tmp_path / "result.json"
    result.save(path)
    assert load(path) == result
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(result), "schema": SCHEMA + 1}))
    with pytest.raises(ValueError, match="run the benchmark again"):
        load(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="not a benchmark result"):
        load(path)


def test_the_report_names_durability_figures_and_what_is_missing() -> None:
    report = render(_result([1_000_000, 1_100_000, 1_200_000], [60_000, 50_000, 70_000]))
    assert "**1,100,000** (1,000,000 - 1,200,000)" in report
    assert "| synced |" in report
    assert "redis-benchmark: no figures. it was not found" in report
    assert "| s1 | messages_per_s >= 20 x jetstream | 18.3 | **missed** |" in report


def test_a_comparison_says_whether_a_change_exceeds_the_spread() -> None:
    before, after = _result([100, 110, 120], [50, 60, 70]), _result([130, 140, 150], [55, 61, 80])
    lines = compare(before, after).splitlines()
    assert lines[2] == "| s1 | danube | messages_per_s | 110 | 140 | +27.3% | yes |"
    assert lines[3].endswith("| no |")


def test_choosing_keeps_the_usual_order_and_refuses_unknown_names() -> None:
    known = list(ALL_SCENARIOS)
    assert choose(["s4", "s1"], known, "scenario") == ["s1", "s4"]
    assert choose([], known, "scenario") == known
    with pytest.raises(ValueError, match="unknown scenario 's99'"):
        choose(["s99"], known, "scenario")


def test_every_target_belongs_to_its_scenario_and_compares_with_an_arm_of_it() -> None:
    for name, scenario in ALL_SCENARIOS.items():
        arms = {arm.name for arm in scenario.arms}
        for target in scenario.targets:
            assert target.scenario == name
            assert target.metric in scenario.metrics
            assert target.arm in arms
            assert not target.against or target.against in arms
