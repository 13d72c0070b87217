"""Samples of traffic and of the loop's lag."""

from __future__ import annotations

from danube.broker.runtime.samples import Samples, Traffic


def test_nothing_is_known_at_the_start():
    samples = Samples()
    assert samples.lag_s() is None
    assert samples.rates(5.0, 100, 100) == Traffic(0.0, 0.0)


def test_rates_are_those_of_the_last_ten_seconds():
    samples = Samples()
    for number in range(100):
        samples.add(number / 2, number * 500, 0 if number < 50 else (number - 50) * 100, 0.001)
    # The first of the last 20 samples was taken 10 s ago.
    assert samples.rates(50.0, 50_000, 5_000) == Traffic(1_000.0, 200.0)
    assert samples.rates(40.0, 0, 0) == Traffic(0.0, 0.0)


def test_the_lag_is_that_of_99_samples_in_100():
    samples = Samples()
    for number in range(1_000):
        samples.add(number / 2, 0, 0, 0.001)
    assert samples.lag_s() == 0.001
    samples.add(500.5, 0, 0, 5.0)
    assert samples.lag_s() == 0.001  # one stall
    samples.add(501.0, 0, 0, 3.0)
    assert samples.lag_s() == 3.0  # two of the last 120
