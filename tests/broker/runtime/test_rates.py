"""The token bucket: never more than the rate and a burst, and no unnecessary waits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.broker.runtime.token_bucket import BURST_S, BothBuckets, Share, SharedBucket, TokenBucket
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


def served(shares: list[Share], messages: list[int], until_s: float) -> tuple[list[int], int]:
    """Let shares take batches whenever they may; return the messages of each, and how often they had to look.

    The shares with the lowest index wake first, always.
    """
    took, looks = [0] * len(shares), 0
    due = dict.fromkeys(range(len(shares)), 0.0)
    while due and (now := min(due.values())) <= until_s:
        index = min(index for index, at in due.items() if at == now)
        looks += 1
        while shares[index].paid_at <= now:
            shares[index].take(messages[index], 0, now)
            took[index] += messages[index]
        due[index] = shares[index].look_at(now)
        assert due[index] > now, "it spins"
    return took, looks


@pytest.mark.parametrize("count", [1, 2, 4, 50])
def test_shares_are_served_in_turn(count: int) -> None:
    bucket = SharedBucket(Rate(messages_per_s=100), 0.0)
    took, looks = served([bucket.share() for _ in range(count)], [10] * count, 100.0)
    assert sum(took) == pytest.approx(100 * 101, rel=0.01)
    assert max(took) - min(took) <= 120, "the first may take what the bucket holds at the begin"
    assert looks <= 2 * sum(took) / 10 + 2 * count


def test_batches_of_several_sizes_leave_no_tokens_unused() -> None:
    bucket = SharedBucket(Rate(messages_per_s=1_000), 0.0)
    took, _ = served([bucket.share() for _ in range(4)], [1, 10, 100, 1_000], 200.0)
    assert sum(took) == pytest.approx(1_000 * 201, rel=0.03)
    assert min(took) > 0


def test_a_share_that_does_not_come_costs_the_others_a_pause_only() -> None:
    bucket = SharedBucket(Rate(messages_per_s=100), 0.0)
    bucket.take(210, 0, 0.0)
    for _ in range(5):
        assert bucket.share().look_at(0.0) > 0  # and it is never seen again
    took, _ = served([bucket.share() for _ in range(2)], [10, 10], 100.0)
    assert sum(took) == pytest.approx(100 * 99, rel=0.05)


def test_another_rate_voids_the_tickets() -> None:
    bucket = SharedBucket(Rate(messages_per_s=0.001), 0.0)
    bucket.take(10, 0, 0.0)
    bucket.share().take(1, 0, 0.0)
    assert [bucket.share().look_at(0.0) for _ in range(3)] == [
        pytest.approx(10_999 + 250 * place) for place in range(3)
    ]
    bucket.change(Rate(messages_per_s=1_000), 1.0)
    assert bucket.share().paid_at == pytest.approx(1.011, abs=0.001)


def test_both_buckets_must_be_paid() -> None:
    own, shared = TokenBucket(Rate(messages_per_s=10), 0.0), SharedBucket(Rate(messages_per_s=100), 0.0)
    both = BothBuckets(own, shared.share())
    both.take(30, 1, 0.0)
    assert (own.paid_at, shared.paid_at) == (pytest.approx(2.0), pytest.approx(-0.7))
    assert both.paid_at == both.look_at(0.0) == own.paid_at
    shared.share().take(470, 1, 0.0)
    assert both.paid_at == both.look_at(0.0) == shared.paid_at == pytest.approx(4.0)
    assert shared.share().look_at(0.0) > 4.0
    assert both.look_at(3.99) == pytest.approx(4.0), "its ticket comes first"
