"""Options of consumers and readers: where they start, how far they read ahead, what they let through. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from danube.client._checks import check_count, check_list, check_mapping, check_text, plain, start_position
from danube.model.errors import InvalidArgumentError
from danube.model.limits import Limits
from danube.model.policies import EARLIEST, SubscriptionPolicy, SubscriptionType, change_policy

__all__ = [
    "READ_AHEAD",
    "Start",
    "check_credit",
    "checked_filters",
    "default_credit",
    "policy_fields",
    "start_positions",
]

Start = str | int | datetime | Mapping[int, str | int | datetime]
"""Start of a reader: ``"earliest"``, ``"latest"``, an offset, a date with a time zone, or one of these for each
partition; a partition that is not named begins at the earliest message."""
READ_AHEAD = 200_000
"""Default read-ahead in messages of a consumer or reader that is alone in reading a topic in order."""
SHARED_READ_AHEAD = 2_000
"""Default read-ahead in messages of a consumer that shares the work with others."""


def default_credit(kind: SubscriptionType) -> int:
    """Return the default read-ahead of a consumer, in messages."""
    return READ_AHEAD if kind.traits.has_active else SHARED_READ_AHEAD


def check_credit(messages: int, size_bytes: int) -> None:
    """Check the read-ahead of a consumer or reader."""
    check_count("credit_messages", messages, 1)
    check_count("credit_bytes", size_bytes, 1)


def checked_filters(filters: Sequence[str], kind: SubscriptionType, limits: Limits) -> list[str]:
    """Return the key filters of a consumer, checked."""
    filters = check_list("key_filters", filters, "texts, for example ['eu-*', 'us-?']")
    for one in filters:
        if not check_text("a key filter", one):
            raise InvalidArgumentError("a key filter cannot be empty; '*' lets every key through")
    if filters and not kind.traits.wants_keys:
        raise InvalidArgumentError(f"key_filters are for key_shared subscriptions only, not for {kind.value}")
    if len(filters) > limits.max_key_filters:
        raise InvalidArgumentError(
            f"{len(filters)} key_filters are more than max_key_filters = {limits.max_key_filters}; join some with '*'"
        )
    for one in filters:
        if len(one) > limits.max_key_filter_chars:
            raise InvalidArgumentError(
                f"a key filter of {len(one)} characters is longer than max_key_filter_chars ="
                f" {limits.max_key_filter_chars}"
            )
    return filters


def policy_fields(policy: SubscriptionPolicy | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a subscription's initial policy that differ from the broker's default."""
    if policy is None:
        return {}
    if not isinstance(policy, SubscriptionPolicy):
        policy = check_mapping("policy", policy, "fields of a SubscriptionPolicy")
    fields: dict[str, Any] = plain("policy", policy)
    change_policy(SubscriptionPolicy(), fields)  # reports invalid fields without a request to the broker
    return fields


def start_positions(start: Start, partitions: int) -> list[tuple[str | int, int]]:
    """Return ``(position, time_us)`` for each partition.

    Raises:
        InvalidArgumentError: an invalid position, or a partition that does not exist.
    """
    if not isinstance(start, Mapping):
        return [start_position(start)] * partitions
    unknown = sorted(set(start) - set(range(partitions)), key=str)
    if unknown:
        raise InvalidArgumentError(
            f"start names partition {unknown[0]!r}, but the topic has {partitions}, counted from 0 (a plain topic is 0)"
        )
    return [start_position(start.get(index, EARLIEST)) for index in range(partitions)]
