"""Quotas of namespaces: what a namespace may use at most.

A count that has reached its quota refuses what would add to it, and nothing else: what exists stays, also when a quota
is lowered. It is of the whole cluster. A rate delays, and is of each broker: brokers do not ask each other for each
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.policies import Rate, TopicPolicies, check_policy

__all__ = ["ChangeQuota", "NamespaceQuota", "QuotaMethod", "QuotaReport", "ShowQuota", "change_quota", "check_topics"]


class NamespaceQuota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a namespace may use at most; None: no quota."""

    max_topics: int | None = None
    """Plain topics and partitions in the whole cluster. More are refused."""
    publish_rate: Rate | None = None
    """All producers of all its topics at one broker together. Excess is delayed, beside the rates of each topic."""


def change_quota(quota: NamespaceQuota, changes: Mapping[str, Any]) -> NamespaceQuota:
    """Return ``quota`` with some fields changed; plain values are converted and checked, None removes one.

    Raises:
        InvalidArgumentError: an unknown name, or a value that is out of range.
    """
    try:
        changed = msgspec.convert({**msgspec.to_builtins(quota), **changes}, NamespaceQuota, strict=True)
    except msgspec.ValidationError as error:
        known = ", ".join(NamespaceQuota.__struct_fields__)
        raise InvalidArgumentError(f"quotas: {error}; known names are {known}") from error
    if changed.max_topics is not None and changed.max_topics < 0:
        raise InvalidArgumentError(f"max_topics = {changed.max_topics} must not be negative")
    check_policy(TopicPolicies(publish_rate=changed.publish_rate))
    return changed if changed.publish_rate else msgspec.structs.replace(changed, publish_rate=None)


def check_topics(namespace: str, quota: NamespaceQuota, used: int, more: int) -> None:
    """Check that a namespace may have more topics and partitions.

    Args:
        namespace: its name.
        quota: its quota.
        used: how many there are.
        more: how many are to be added; with none, nothing is refused.

    Raises:
        LimitExceededError: with them there would be more than the quota.
    """
    most = quota.max_topics
    if most is not None and more and used + more > most:
        raise LimitExceededError(
            f"namespace {namespace!r} has {used} topics and partitions, and its quota max_topics is {most}: {more} more"
            f" cannot be created; delete some, or ask an administrator to raise it"
            f" (danube namespaces quota set {namespace} max_topics=N)"
        )


class QuotaMethod:
    """Paths of the native calls."""

    SHOW: Final = "/danube.native.v1.Namespaces/ShowQuota"
    CHANGE: Final = "/danube.native.v1.Namespaces/ChangeQuota"


class ShowQuota(msgspec.Struct, array_like=True, gc=False):
    """Asks for the quota of a namespace. Answered with a QuotaReport."""

    namespace: str


class ChangeQuota(msgspec.Struct, array_like=True, gc=False):
    """Changes the quota of a namespace. Answered with the new QuotaReport."""

    namespace: str
    changes: dict[str, Any]
    """Fields of NamespaceQuota; None removes one."""


class QuotaReport(msgspec.Struct, array_like=True, gc=False):
    """The quota of a namespace, and what it uses."""

    namespace: str
    quota: NamespaceQuota
    topics: int
    """Topics and partitions that the answering broker knows of."""
