"""Quotas of principals: what is counted, what is refused, and that a refusal names the quota."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_helpers import service

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.quotas import PrincipalQuota, change_principal_quota, check_principal_quota
from danube.security.pace import Pace
from danube.security.quotas import PrincipalUsage
from danube.security.roles import Principal, PrincipalType

API, OTHER = service("api"), Principal(PrincipalType.USER, "api")


class TestUsage:
    def test_calls_are_refused_with_the_time_to_wait(self) -> None:
        usage = PrincipalUsage({"service:api": PrincipalQuota(calls_per_s=2.0)})
        usage.call(API, 100)
        usage.call(API, 100)
        with pytest.raises(
            LimitExceededError,
            match=r"service:api makes more calls than its quota calls_per_s = 2; try again in 0.5 s, .*"
            r"danube principals quota set service:api calls_per_s=N",
        ) as caught:
            usage.call(API, 100)
        assert caught.value.retryable
        usage.call(OTHER, 100)
        with pytest.raises(LimitExceededError):
            usage.call(API, 100.4)  # refused calls do not count
        usage.call(API, 100.5)

    def test_a_changed_rate_applies_at_once(self) -> None:
        quotas = {"service:api": PrincipalQuota(calls_per_s=1.0)}
        usage = PrincipalUsage(quotas)
        usage.call(API, 100)
        quotas["service:api"] = PrincipalQuota(calls_per_s=3.0)
        for _ in range(3):
            usage.call(API, 100)
        with pytest.raises(LimitExceededError):
            usage.call(API, 100)
        quotas["service:api"] = PrincipalQuota(max_streams=1)
        usage.call(API, 100)
        del quotas["service:api"]
        for _ in range(10):
            usage.call(API, 100)
        quotas["service:api"] = PrincipalQuota(calls_per_s=1.0)
        usage.call(API, 100)
        with pytest.raises(LimitExceededError):
            usage.call(API, 100)

    def test_nothing_is_kept_of_principals_without_a_quota(self) -> None:
        quotas = {f"service:s{number}": PrincipalQuota(calls_per_s=1.0) for number in range(100)}
        usage = PrincipalUsage(quotas)
        for subject in quotas:
            usage.call(service(subject.removeprefix("service:")), 100)
        for number in range(90):
            del quotas[f"service:s{number}"]
        usage.call(service("s95"), 200)
        assert len(usage._calls) == 10

    def test_streams_are_counted_before_there_is_a_quota(self) -> None:
        quotas: dict[str, PrincipalQuota] = {}
        usage = PrincipalUsage(quotas)
        with usage.stream(API), usage.stream(API):
            quotas["service:api"] = PrincipalQuota(max_streams=2)
            with (
                pytest.raises(
                    LimitExceededError, match="has 2 open streams at this broker, and its quota max_streams is 2"
                ),
                usage.stream(API),
            ):
                pass
            with usage.stream(OTHER):
                pass
        with usage.stream(API):
            pass
        assert not usage._streams


def test_bytes_are_delayed_until_all_of_them_are_paid() -> None:
    quotas = {"service:api": PrincipalQuota(publish_bytes_per_s=100.0)}
    usage = PrincipalUsage(quotas)
    flow = usage.publishing(API)
    assert usage.publishing(API) is flow
    assert usage.consuming(API) is not flow
    assert flow.pause_s(50) == 0
    flow.take(300, 50)
    assert flow.pause_s(50) == pytest.approx(2, abs=0.02)
    assert flow.pause_s(51) == pytest.approx(1, abs=0.02)
    assert usage.publishing(OTHER).pause_s(50) == 0
    assert usage.consuming(API).pause_s(50) == 0
    quotas["service:api"] = PrincipalQuota(publish_bytes_per_s=10.0)
    assert flow.pause_s(51) == 0, "a debt at another rate is forgiven"
    flow.take(30, 51)
    del flow
    assert usage.publishing(API).pause_s(51) == pytest.approx(2.1, abs=0.02), "calls come and go, the debt stays"
    del quotas["service:api"]
    flow = usage.publishing(API)
    assert flow.pause_s(51) == 0
    flow.take(10**9, 51)
    assert flow.pause_s(51) == 0
    del flow
    assert not usage._flows


@pytest.mark.parametrize(
    "changes",
    [
        {"max_streams": -1},
        {"calls_per_s": 0.9},
        {"calls_per_s": float("inf")},
        {"calls_per_s": float("nan")},
        {"calls_per_s": "5"},
        {"publish_bytes_per_s": 0},
        {"consume_bytes_per_s": -1},
        {"publish": 1},
    ],
)
def test_invalid_quotas_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        change_principal_quota(PrincipalQuota(), changes)


def test_valid_quotas_are_stored_without_what_they_do_not_limit() -> None:
    quota = change_principal_quota(PrincipalQuota(calls_per_s=5.0), {"max_streams": 0, "calls_per_s": None})
    check_principal_quota(PrincipalQuota())
    assert msgspec.json.encode(quota) == b'{"max_streams":0}'
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
