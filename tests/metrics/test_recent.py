"""Quantiles of the last minute, from histograms that count since the start."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.runtime.publish_figures import Durations, Latencies
from danube.metrics.histogram import DURATION_BOUNDS_S, Histogram, Recent, quantile


@given(st.lists(st.floats(0, 20), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_in_the_bucket_of_its_observation(values: list[float], share: float) -> None:
    histogram = Histogram()
    for each in values:
        histogram.observe(each)
    found = quantile(histogram.bounds, histogram.counts, share)
    true = sorted(values)[max(0, -(-int(share * 100) * len(values) // 100) - 1)]
    bounds = [0.0, *DURATION_BOUNDS_S]
    bucket = next((number for number, bound in enumerate(DURATION_BOUNDS_S) if true <= bound), None)
    if bucket is None:
        assert found == DURATION_BOUNDS_S[-1]
    else:
        assert bounds[bucket] <= found <= bounds[bucket + 1]


def test_without_observations_there_is_no_quantile() -> None:
    assert quantile(DURATION_BOUNDS_S, Histogram().counts, 0.99) == -1


def test_only_the_last_minute_counts() -> None:
    histogram, recent = Histogram(), Recent()
    for _ in range(1000):
        histogram.observe(5.0)
    for second in range(0, 70, 10):
        assert recent.is_due(second)
        recent.keep(histogram.counts, second)
        assert not recent.is_due(second + 9)
    assert recent.quantiles(histogram.counts, 0.5, 0.99) == [-1, -1], "long ago"
    for _ in range(100):
        histogram.observe(0.0002)
    p50, p99 = recent.quantiles(histogram.counts, 0.5, 0.99)
    assert 0.0001 <= p50 <= p99 <= 0.00025
    for second in range(70, 140, 10):
        recent.keep(histogram.counts, second)
    assert recent.quantiles(histogram.counts, 0.99) == [-1]


def test_before_a_minute_is_over_all_counts() -> None:
    histogram = Histogram()
    histogram.observe(0.004)
    assert Recent().quantiles(histogram.counts, 0.99) == [pytest.approx(0.005, rel=0.5)]


def test_durabilities_count_together_and_new_ones_as_well() -> None:
    by_durability: dict[str, Histogram] = {}
    syncs = Histogram()
    latencies = Latencies(by_durability.values, lambda: syncs)
    assert latencies.publishes() == Durations(-1, -1)
    latencies.beat(0.0)
    for name, seconds in (("os", 0.0002), ("disk", 0.02)):
        by_durability[name] = Histogram()
        for _ in range(100):
            by_durability[name].observe(seconds * random.uniform(0.9, 1.0))
    syncs.observe(0.003)
    latencies.beat(5.0)
    publishes = latencies.publishes()
    assert 0.0001 <= publishes.p50_s <= 0.00025
    assert 0.01 <= publishes.p99_s <= 0.025
    assert 0.0025 <= latencies.syncs().p50_s <= 0.005
    for second in range(10, 90, 10):
        latencies.beat(second)
    assert latencies.publishes() == Durations(-1, -1)
    assert latencies.syncs() == Durations(-1, -1)
