"""Quotas: what a namespace, or a principal, may use at most.

A count that has reached its quota refuses what would add to it, and nothing else: what exists stays, also when a quota
is lowered. That of a namespace is of the whole cluster. A rate is of each broker, as brokers do not ask each other for
each batch: rates of bytes delay, the rate of calls refuses. What a principal uses is counted by each broker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.policies import Rate, TopicPolicies, check_policy

__all__ = [
    "ChangeQuota",
    "NamespaceQuota",
    "PrincipalQuota",
    "QuotaMethod",
    "QuotaReport",
    "ShowQuota",
    "change_principal_quota",
    "change_quota",
    "check_principal_quota",
    "check_subjects",
    "check_topics",
]


_Quota = TypeVar("_Quota", bound=msgspec.Struct)


class NamespaceQuota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a namespace may use at most; None: no quota."""

    max_topics: int | None = None
    """Plain topics and partitions in the whole cluster. More are refused."""
    publish_rate: Rate | None = None
    """All producers of all its topics at one broker together. Excess is delayed, beside the rates of each topic."""
    dispatch_rate: Rate | None = None
    """All consumers and readers of all its topics at one broker together. Excess is delayed, beside the rates of each
    subscription; topics that store nothing are not counted."""
    max_stored_bytes: int | None = None
    """Messages of all its topics at one broker, in the journal and in the storage. Publishing more is refused until
    retention or deletion has made room."""
    max_connections: int | None = None
    """Connections to one broker on which producers, consumers, readers or staged writes use its topics. Streams on one
    more are refused. Producers of official clients have no stream, and are not counted."""
    max_subjects: int | None = None
    """Subjects of the schema registry in the whole cluster whose names begin with ``/namespace/``, until they are
    deleted permanently. More are refused."""


class PrincipalQuota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a user or a service may use at most, at each broker; None: no quota."""

    max_streams: int | None = None
    """Open streams: producers and consumers of native clients, consumers of official ones. More are refused."""
    calls_per_s: float | None = None
    """Unary calls; those of a second without any may be made at once. More are refused. At least 1."""
    publish_bytes_per_s: float | None = None
    """What all its producers send. Excess is delayed. At least 1."""
    consume_bytes_per_s: float | None = None
    """What all its consumers and readers are sent. Excess is delayed; of topics that store nothing it is lost. At least
    1."""


def change_quota(quota: NamespaceQuota, changes: Mapping[str, Any]) -> NamespaceQuota:
    """Return ``quota`` with some fields changed; plain values are converted and checked, None removes one.

    Raises:
        InvalidArgumentError: an unknown name, or a value that is out of range.
    """
    changed = _changed(quota, changes)
    for name in ("max_topics", "max_stored_bytes", "max_connections", "max_subjects"):
        value = getattr(changed, name)
        if value is not None and value < 0:
            raise InvalidArgumentError(f"{name} = {value} must not be negative")
    publish, dispatch = changed.publish_rate, changed.dispatch_rate
    check_policy(TopicPolicies(publish_rate=publish, dispatch_rate=dispatch))
    return msgspec.structs.replace(changed, publish_rate=publish or None, dispatch_rate=dispatch or None)


def change_principal_quota(quota: PrincipalQuota, changes: Mapping[str, Any]) -> PrincipalQuota:
    """Return ``quota`` with some fields changed; raises as :func:`change_quota`."""
    changed = _changed(quota, changes)
    check_principal_quota(changed)
    return changed


def check_principal_quota(quota: PrincipalQuota) -> None:
    """Raise InvalidArgumentError if a value is out of range."""
    if quota.max_streams is not None and quota.max_streams < 0:
        raise InvalidArgumentError(f"max_streams = {quota.max_streams} must not be negative")
    for name in ("calls_per_s", "publish_bytes_per_s", "consume_bytes_per_s"):
        value = getattr(quota, name)
        if value is not None and not 1 <= value < math.inf:
            # Fewer calls would lock the last administrator out.
            raise InvalidArgumentError(f"{name} = {value:g} must be at least 1 and finite")


def _changed(quota: _Quota, changes: Mapping[str, Any]) -> _Quota:
    try:
        return msgspec.convert({**msgspec.to_builtins(quota), **changes}, type(quota), strict=True)
    except msgspec.ValidationError as error:
        known = ", ".join(quota.__struct_fields__)
        raise InvalidArgumentError(f"quotas: {error}; known names are {known}") from error


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


def check_subjects(namespace: str, most: int | None, used: int) -> None:
    """Check that a namespace may have one more subject of the schema registry.

    Args:
        namespace: its name.
        most: its quota; None: it has none.
        used: how many there are.

    Raises:
        LimitExceededError: it has as many as it may.
    """
    if most is not None and used >= most:
        raise LimitExceededError(
            f"namespace {namespace!r} has {used} subjects of schemas, and its quota max_subjects is {most}: another one"
            f" cannot be created; delete some permanently, or ask an administrator to raise it"
            f" (danube namespaces quota set {namespace} max_subjects=N)"
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
    stored_bytes: int = 0
    """What the answering broker stores for its own topics of the namespace."""
    connections: int = 0
    """Connections to the answering broker that use topics of the namespace."""
    subjects: int = 0
    """Subjects of the schema registry that the answering broker knows of."""
