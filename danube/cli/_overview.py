"""Subscriptions of all topics as a person wants to see them: partitions put together, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from danube.cli._durations import human_duration
from danube.model.names import split_partition
from danube.model.overview_api import Finding, SubscriptionRow

__all__ = ["Problem", "Whole", "absent", "problems", "remedy_of", "sentence_of", "wholes", "with_age", "worst_first"]

REMEDIES: Final = {
    "no-consumer": "start a consumer, or give the messages up: danube subscriptions seek {topic} {subscription} latest",
    "no-credit": "a consumer holds messages that it does not acknowledge: see danube subscriptions describe {topic}"
    " {subscription}",
    "waiting-for-acks": "see who has the messages: danube subscriptions describe {topic} {subscription}",
    "window-full": "see who has the messages: danube subscriptions describe {topic} {subscription}",
    "blocked": "acknowledge or skip the message, or change the policy: danube subscriptions policy {topic}"
    " {subscription} --poison dead_letter",
    "no-matching-consumer": "start a consumer whose key filters match, or set: danube subscriptions policy {topic}"
    " {subscription} --unmatched skip",
    "rate-limited": "see the rates: danube policies show {topic}",
    "waiting-for-storage": "danube storage status",
    "dead-lettering": "danube topics describe {topic}",
    "moving": "start more consumers, or wait",
    "failed": "restore the data, or move the subscription behind the damage: danube subscriptions seek",
}
"""What to do about a subscription that is not well, by its state."""


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription of a topic, all partitions together."""

    topic: str
    subscription: str
    partitions: int
    """0 for a plain topic."""
    type: str
    state: str
    """Of the worst partition."""
    sentence: str
    well: bool
    backlog_messages: int
    oldest_age_s: float
    """The highest of all partitions; negative: not known."""
    consumers: int
    in_flight_messages: int
    waiting_messages: int
    delayed_messages: int
    poisoned_messages: int
    dead_lettered_messages: int
    rows: tuple[SubscriptionRow, ...]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not well, in the form in which it is shown."""

    kind: str
    subject: str
    """``/default/orders billing``, the name of a topic or a storage, or a broker."""
    sentence: str
    remedy: str = ""
    topic: str = ""
    subscription: str = ""
    broker: str = ""


def wholes(rows: Iterable[SubscriptionRow]) -> list[Whole]:
    """Put the partitions of each subscription together."""
    groups: dict[tuple[str, str], list[SubscriptionRow]] = {}
    for row in rows:
        split = split_partition(row.topic)
        groups.setdefault((split[0] if split else row.topic, row.subscription), []).append(row)
    return [_whole(topic, name, group) for (topic, name), group in groups.items()]


def _whole(topic: str, subscription: str, rows: list[SubscriptionRow]) -> Whole:
    worst = min(rows, key=_badness)
    return Whole(
        topic=topic,
        subscription=subscription,
        partitions=0 if rows[0].topic == topic else len(rows),
        type=str(rows[0].type.value),
        state=worst.state,
        sentence=sentence_of(rows, worst),
        well=all(row.well for row in rows),
        backlog_messages=sum(row.backlog_messages for row in rows),
        oldest_age_s=max(row.oldest_age_s for row in rows),
        consumers=max(row.consumers for row in rows),
        in_flight_messages=sum(row.in_flight_messages for row in rows),
        waiting_messages=sum(row.waiting_messages for row in rows),
        delayed_messages=sum(row.delayed_messages for row in rows),
        poisoned_messages=sum(row.poisoned_messages for row in rows),
        dead_lettered_messages=sum(row.dead_lettered_messages for row in rows),
        rows=tuple(rows),
    )


def sentence_of(rows: Sequence[SubscriptionRow], worst: SubscriptionRow) -> str:
    """Return one sentence for the partitions of a subscription: that of the worst one, and how many are like it."""
    if len(rows) == 1:
        return worst.sentence
    same = [row for row in rows if row.state == worst.state and row.well == worst.well]
    if worst.state == "no-consumer":
        return f"no consumer is connected; {_messages(sum(row.backlog_messages for row in same))} in the backlog"
    if worst.state == "caught-up" and len(same) == len(rows):
        return worst.sentence
    others = len(same) - 1
    number = (split_partition(worst.topic) or ("", 0))[1]
    likewise = f" (and {others} more of {len(rows)} partitions)" if others else f" (of {len(rows)} partitions)"
    return f"partition {number}: {worst.sentence}{likewise}"


def with_age(whole: Whole) -> str:
    """Return the sentence of a subscription, and how old its oldest message is."""
    if whole.backlog_messages <= 0 or whole.oldest_age_s <= 0:
        return whole.sentence
    return f"{whole.sentence}; the oldest is {human_duration(whole.oldest_age_s)} old"


def remedy_of(state: str, topic: str, subscription: str) -> str:
    """Return what to do about a subscription that is not well; empty if that is not known."""
    return REMEDIES.get(state, "").format(topic=topic, subscription=subscription)


def worst_first(found: Iterable[Whole]) -> list[Whole]:
    """Sort: those that are not well first, then by age of the oldest message, backlog and name."""
    return sorted(
        found, key=lambda each: (each.well, -each.oldest_age_s, -each.backlog_messages, each.topic, each.subscription)
    )


def absent(found: Iterable[Whole]) -> list[Whole]:
    """Return subscriptions that are well though messages wait and no consumer is connected, the worst first."""
    return worst_first(each for each in found if each.well and each.state == "no-consumer" and each.backlog_messages)


def _badness(row: SubscriptionRow) -> tuple[bool, float, int, str]:
    return row.well, -row.oldest_age_s, -row.backlog_messages, row.topic


def problems(found: Iterable[Whole], findings: Iterable[Finding], warnings: Iterable[str] = ()) -> list[Problem]:
    """Return what is not well, in the order in which it is shown: the brokers first, then subscriptions.

    Args:
        found: subscriptions, those that are well included.
        findings: about brokers, topics and storages.
        warnings: about the cluster.
    """
    rows = [Problem(kind="cluster", subject="cluster", sentence=warning) for warning in warnings]
    rows += [
        Problem(
            kind=each.kind,
            subject=each.subject,
            sentence=each.sentence,
            remedy=each.remedy,
            topic=each.topic,
            broker=each.broker,
        )
        for each in findings
    ]
    rows += [
        Problem(
            kind=each.state,
            subject=f"{each.topic} {each.subscription}",
            sentence=with_age(each),
            remedy=remedy_of(each.state, each.topic, each.subscription),
            topic=each.topic,
            subscription=each.subscription,
        )
        for each in worst_first(found)
        if not each.well
    ]
    return rows


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
