"""The token bucket: never more than the rate and a burst, and no unnecessary waits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.broker.runtime.token_bucket import BURST_S, BothBuckets, SharedBucket, TokenBucket
from danube.model import Rate

ROUNDING = 1 + 1e-9

batches = st.lists(
    st.tuples(
        st.floats(0, 5),  # pause of the producer before it
        st.integers(1, 500),
        st.integers(1, 100_000),
    ),
    min_size=1,
    max_size=40,
)
rates = st.builds(
    Rate,
    st.one_of(st.just(0.0), st.floats(0.5, 1000)),
    st.one_of(st.just(0.0), st.floats(100, 1_000_000)),
)


def run(bucket: TokenBucket, now: float, wanted: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Let batches go one after the other, each as soon as it may; return when they went."""
    gone = []
    for pause, messages, size in wanted:
        now = max(now + pause, bucket.paid_at)
        bucket.take(messages, size, now)
        gone.append((now, messages, size))
    return gone


@given(rates, batches)
@settings(deadline=None, max_examples=200)
def test_no_window_sees_more_than_the_rate_and_a_burst(rate: Rate, wanted: list[tuple[float, int, int]]) -> None:
    """The last batch of a window may overdraw; all before it are within ``rate * (length + burst)``."""
    gone = run(TokenBucket(rate, 100.0), 100.0, wanted)
    assert len(gone) == len(wanted)
    for side, limit in ((1, rate.messages_per_s), (2, rate.bytes_per_s)):
        for first, last in itertools.combinations(range(len(gone)), 2):
            before_last = sum(batch[side] for batch in gone[first:last])
            allowed = limit * (gone[last][0] - gone[first][0] + BURST_S)
            assert not limit or before_last <= allowed * ROUNDING + 1e-6


@given(rates, batches)
@settings(deadline=None, max_examples=200)
def test_no_wait_is_longer_than_the_preceding_traffic_takes(rate: Rate, wanted: list[tuple[float, int, int]]) -> None:
    """A batch waits only if a side is overdrawn, and never longer than the time in which that side earns its debt."""
    bucket = TokenBucket(rate, 0.0)
    now, model = 0.0, {1: rate.messages_per_s * BURST_S, 2: rate.bytes_per_s * BURST_S}
    limits = {1: rate.messages_per_s, 2: rate.bytes_per_s}
    for pause, *amounts in wanted:
        at = max(now + pause, bucket.paid_at)
        for side, limit in limits.items():
            if limit:
                model[side] = min(model[side] + (at - now) * limit, limit * BURST_S)
                assert model[side] >= -1e-6 * limit
        owed = any(limit and model[side] <= 1e-6 * limit for side, limit in limits.items())
        assert at == now + pause or owed, "it waited although both sides were in credit"
        bucket.take(*amounts, at)
        for side, amount in zip(limits, amounts, strict=True):
            model[side] -= amount
        now = at


def test_it_begins_full_and_works_on_credit() -> None:
    bucket = TokenBucket(Rate(messages_per_s=10), 50.0)
    assert bucket.paid_at <= 50.0
    bucket.take(10, 10**9, 50.0)
    assert bucket.paid_at == 50.0  # one second's worth at once, and bytes have no limit
    bucket.take(30, 0, 50.0)
    assert bucket.paid_at == 53.0
    bucket.take(1, 0, 53.0)
    assert bucket.paid_at == pytest.approx(53.1)


def test_the_stricter_side_counts() -> None:
    bucket = TokenBucket(Rate(messages_per_s=1000, bytes_per_s=100), 0.0)
    bucket.take(1, 300, 0.0)
    assert bucket.paid_at == 2.0


def test_another_rate_pays_the_same_debt() -> None:
    bucket = TokenBucket(Rate(messages_per_s=10), 0.0)
    bucket.take(30, 0, 0.0)
    assert bucket.paid_at == 2.0
    bucket.change(Rate(messages_per_s=100), 1.0)  # ten are still owed
    assert bucket.paid_at == pytest.approx(1.1)
    bucket.change(Rate(messages_per_s=1), 1.0)
    assert bucket.paid_at == pytest.approx(11.0)
    bucket.change(Rate(bytes_per_s=50), 1.0)
    assert bucket.paid_at <= 1.0
    bucket.take(1000, 100, 1.0)
    assert bucket.paid_at == 2.0


def test_a_pause_earns_no_more_than_the_burst() -> None:
    bucket = TokenBucket(Rate(messages_per_s=10), 0.0)
    for start in (100.0, 10_000.0):
        bucket.take(20, 0, start)
        assert bucket.paid_at == start + 1.0


def test_a_caller_that_sleeps_for_the_returned_time_is_admitted() -> None:
    """However the numbers round: under a virtual clock a second, infinitely short pause would never end."""
    bucket = TokenBucket(Rate(messages_per_s=3, bytes_per_s=7), 1e9)
    now = 1e9
    for _ in range(1000):
        now = max(now, bucket.paid_at)
        assert bucket.paid_at <= now
        bucket.take(1, 3, now)


def test_who_shares_a_bucket_looks_again_after_a_pause() -> None:
    bucket = SharedBucket(Rate(messages_per_s=100), 0.0)
    bucket.take(201, 1, 0.0)
    assert bucket.paid_at == pytest.approx(1.01)
    assert bucket.look_at(0.0) == bucket.paid_at
    assert bucket.look_at(1.0) == pytest.approx(1.05)


def test_both_buckets_must_be_paid() -> None:
    own, shared = TokenBucket(Rate(messages_per_s=10), 0.0), SharedBucket(Rate(messages_per_s=100), 0.0)
    both = BothBuckets(own, shared)
    both.take(30, 1, 0.0)
    assert (own.paid_at, shared.paid_at) == (pytest.approx(2.0), pytest.approx(-0.7))
    assert both.paid_at == both.look_at(0.0) == own.paid_at
    shared.take(470, 1, 0.0)
    assert both.paid_at == both.look_at(0.0) == shared.paid_at == pytest.approx(4.0)
    assert both.look_at(3.99) == pytest.approx(4.04)
