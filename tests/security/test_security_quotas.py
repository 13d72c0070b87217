"""Quotas: what is counted, what is refused, and that a refusal names the quota."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.security.pace import Pace
from danube.security.quotas import (
    PrincipalLedger,
    PrincipalQuota,
    check_quota,
)


class TestPrincipals:
    def test_calls_are_refused_with_the_time_to_wait(self) -> None:
        ledger = PrincipalLedger("service:api", PrincipalQuota(calls_per_s=2.0), 0)
        ledger.call(0)
        ledger.call(0)
        with pytest.raises(
            LimitExceededError,
            match=r"service:api makes more calls than its quota calls_per_s, which is 2; try again in 0.5 s",
        ) as caught:
            ledger.call(0)
        assert caught.value.retryable
        with pytest.raises(LimitExceededError):
            ledger.call(0.4)  # refused calls do not count
        ledger.call(0.5)

    def test_a_rate_below_one_lets_the_first_call_pass(self) -> None:
        ledger = PrincipalLedger("service:api", PrincipalQuota(calls_per_s=0.1), 0)
        ledger.call(0)
        with pytest.raises(LimitExceededError):
            ledger.call(9.9)
        ledger.call(10)

    def test_connections_and_streams_are_counted(self) -> None:
        ledger = PrincipalLedger("service:api", PrincipalQuota(max_connections=2, max_streams=1), 0)
        assert ledger.is_idle
        ledger.connections = 1
        assert not ledger.is_idle
        ledger.check_connections()
        ledger.check_streams()
        ledger.connections, ledger.streams = 2, 1
        with pytest.raises(
            LimitExceededError, match="has 2 connections at this broker, and its quota max_connections is 2"
        ):
            ledger.check_connections()
        with pytest.raises(
            LimitExceededError, match="has 1 open streams at this broker, and its quota max_streams is 1"
        ):
            ledger.check_streams()
        ledger.connections = 0
        assert not ledger.is_idle
        ledger.change(PrincipalQuota(), 0)
        ledger.check_connections()
        ledger.check_streams()

    def test_publishing_and_consuming_have_rates_of_their_own(self) -> None:
        ledger = PrincipalLedger("service:api", PrincipalQuota(publish_bytes_per_s=100.0, consume_bytes_per_s=10.0), 0)
        ledger.published(300, 0)
        assert ledger.publish_at(0) == pytest.approx(2, abs=0.02)
        assert ledger.consume_at(0) == 0
        ledger.consumed(30, 0)
        assert ledger.consume_at(0) == pytest.approx(2.1, abs=0.02)
        assert ledger.publish_at(5) == 5


@pytest.mark.parametrize(
    "quota",
    [
        PrincipalQuota(publish_bytes_per_s=0.0),
        PrincipalQuota(publish_bytes_per_s=float("nan")),
        PrincipalQuota(calls_per_s=float("inf")),
        PrincipalQuota(max_streams=-5),
        PrincipalQuota(consume_bytes_per_s=-1.0),
    ],
)
def test_invalid_quotas_are_refused(quota: PrincipalQuota) -> None:
    with pytest.raises(InvalidArgumentError, match="must"):
        check_quota(quota)


def test_valid_quotas_are_stored_without_what_they_do_not_limit() -> None:
    quota = PrincipalQuota(max_streams=0, publish_bytes_per_s=0.5)
    check_quota(quota)
    check_quota(PrincipalQuota())
    assert msgspec.json.encode(quota) == b'{"max_streams":0,"publish_bytes_per_s":0.5}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"max_stream":1}', type=PrincipalQuota)


@given(
    per_s=st.sampled_from([0.5, 1.0, 10.0]),
    burst=st.integers(1, 5),
    steps=st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_a_pace_never_lets_more_pass_than_its_rate_and_burst(per_s: float, burst: int, steps: list[float]) -> None:
    pace, paid_at, now = Pace(per_s, burst), 0.0, 100.0
    passed: list[float] = []
    for step in steps:
        now += step
        if pace.allowed_at(paid_at) <= now:
            paid_at = pace.take(paid_at, 1, now)
            passed.append(now)
        else:
            assert len([each for each in passed if each > now - burst / per_s - 1 / per_s]) >= 1
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= (passed[last] - passed[first]) * per_s + burst + 1e-6


def test_a_pace_without_a_rate_lets_everything_pass() -> None:
    pace = Pace(0, 0)
    assert pace.allowed_at(pace.take(0, 10**9, 5)) == float("-inf")
