"""Quotas of namespaces: their changes, what is refused, and that a refusal names the quota."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from danube.model import Rate, TopicPolicies
from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.quotas import NamespaceQuota, change_quota, check_subjects, check_topics
from danube.model.records import NamespaceRecord


def test_more_than_the_quota_is_refused_and_nothing_else() -> None:
    quota = NamespaceQuota(max_topics=3)
    check_topics("shop", quota, 1, 2)
    check_topics("shop", quota, 5, 0)
    check_topics("shop", NamespaceQuota(), 10**9, 10**9)
    with pytest.raises(LimitExceededError, match=r"'shop' has 2 .* quota max_topics is 3: 2 more .*quota set shop"):
        check_topics("shop", quota, 2, 2)
    with pytest.raises(LimitExceededError):
        check_topics("shop", NamespaceQuota(max_topics=0), 0, 1)


@pytest.mark.parametrize(
    "changes",
    [{"max_topics": -1}, {"max_topics": "many"}, {"max_topics": 1.5}, {"topics": 1}],
)
def test_invalid_changes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="max_topics"):
        change_quota(NamespaceQuota(), changes)


@pytest.mark.parametrize("name", ["max_topics", "max_stored_bytes", "max_connections", "max_subjects"])
def test_counts_are_not_negative(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} = -1 must not be negative"):
        change_quota(NamespaceQuota(), {name: -1})
    assert getattr(change_quota(NamespaceQuota(), {name: 0}), name) == 0


@pytest.mark.parametrize("rate", [{"bytes_per_s": -1}, {"bytes_per_s": float("inf")}, {"per_s": 1}])
def test_invalid_rates_are_refused(rate: dict[str, Any]) -> None:
    for name in ("publish_rate", "dispatch_rate"):
        with pytest.raises(InvalidArgumentError, match=name):
            change_quota(NamespaceQuota(), {name: rate})


def test_a_rate_without_limits_is_none() -> None:
    quota = change_quota(NamespaceQuota(max_topics=1), {"publish_rate": {"bytes_per_s": 5}})
    assert quota.publish_rate == Rate(bytes_per_s=5)
    assert change_quota(quota, {"publish_rate": {}}) == NamespaceQuota(max_topics=1)
    quota = change_quota(NamespaceQuota(max_topics=1), {"dispatch_rate": {"messages_per_s": 5}})
    assert quota == NamespaceQuota(max_topics=1, dispatch_rate=Rate(messages_per_s=5))
    assert change_quota(quota, {"dispatch_rate": {}}) == NamespaceQuota(max_topics=1)


def test_none_removes_a_quota() -> None:
    quota = change_quota(NamespaceQuota(), {"max_topics": 5})
    assert change_quota(quota, {}) == quota == NamespaceQuota(max_topics=5)
    assert change_quota(quota, {"max_topics": None}) == NamespaceQuota()


def test_records_without_a_quota_are_read() -> None:
    former = msgspec.msgpack.encode([7, TopicPolicies(max_producers=1)])
    assert msgspec.msgpack.decode(former, type=NamespaceRecord) == NamespaceRecord(7, TopicPolicies(max_producers=1))


def test_a_namespace_has_no_more_subjects_than_its_quota():
    check_subjects("shop", 2, 1)
    check_subjects("shop", None, 10**9)
    with pytest.raises(LimitExceededError, match=r"'shop' has 2 subjects .* quota max_subjects is 2: .*quota set shop"):
        check_subjects("shop", 2, 2)
