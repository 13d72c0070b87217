"""Rates between two samples of the topics and subscriptions of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from danube.cli._overview import Whole
from danube.model.api import BrokerInfo, TopicInfo

__all__ = ["SORTS", "Sample", "SubscriptionRates", "Top", "TopicRates", "make_sample", "top_of"]

SORTS: Final = ("rate", "worst", "name")
"""Orders of the rows: the busiest first; those that are not well first; by name."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted at one time."""

    time_s: float
    """On any steady clock."""
    info: BrokerInfo
    topics: Mapping[str, TopicInfo]
    subscriptions: Mapping[tuple[str, str], Whole]
    silent: tuple[str, ...] = ()
    """Brokers that did not answer."""


class TopicRates(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its rate."""

    topic: str
    in_per_s: float
    """Messages published."""
    out_per_s: float
    """Messages delivered to all its subscriptions."""
    messages: int
    """Messages that it holds."""
    stored_bytes: int
    subscriptions: int


class SubscriptionRates(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription with its rates."""

    topic: str
    subscription: str
    out_per_s: float
    """Messages delivered, those delivered again included."""
    acked_per_s: float
    """By which its unacknowledged messages below the end became fewer, those published meanwhile added."""
    backlog_messages: int
    oldest_age_s: float
    in_flight_messages: int
    consumers: int
    state: str
    well: bool


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """What `danube top` shows at one time."""

    seconds: float
    """Between the two samples."""
    in_per_s: float
    out_per_s: float
    in_bytes_per_s: float
    """Bytes that arrived at the client port of the broker that was asked."""
    out_bytes_per_s: float
    cpu: float
    """Share of one processor that the process of that broker used."""
    info: BrokerInfo
    topics: list[TopicRates]
    subscriptions: list[SubscriptionRates]
    silent: list[str] = []


def make_sample(
    time_s: float, info: BrokerInfo, topics: Iterable[TopicInfo], found: Iterable[Whole], silent: Iterable[str]
) -> Sample:
    """Make a sample of what a broker has answered."""
    return Sample(
        time_s=time_s,
        info=info,
        topics={each.topic: each for each in topics},
        subscriptions={(each.topic, each.subscription): each for each in found},
        silent=tuple(silent),
    )


def top_of(before: Sample, after: Sample, sort: str = SORTS[0]) -> Top:
    """Return the rates between two samples, in one of the orders of :data:`SORTS`.

    What was created in between has no rate yet. Where a count went back (a topic was deleted and created again, a
    subscription was moved back, a broker was restarted), the rate is 0.
    """
    seconds = max(after.time_s - before.time_s, 1e-9)
    restarted = before.info.pid != after.info.pid

    def rate(new: float, old: float) -> float:
        return max(0.0, (new - old) / seconds)

    subscriptions = []
    out: dict[str, float] = {}
    for key, whole in after.subscriptions.items():
        old = before.subscriptions.get(key, whole)
        delivered, done = (rate(count(whole), count(old)) for count in (_delivered, _acked))
        out[whole.topic] = out.get(whole.topic, 0.0) + delivered
        subscriptions.append(
            SubscriptionRates(
                topic=whole.topic,
                subscription=whole.subscription,
                out_per_s=delivered,
                acked_per_s=done,
                backlog_messages=whole.backlog_messages,
                oldest_age_s=whole.oldest_age_s,
                in_flight_messages=whole.in_flight_messages,
                consumers=whole.consumers,
                state=whole.state,
                well=whole.well,
            )
        )
    topics = [
        TopicRates(
            topic=name,
            in_per_s=rate(topic.end_offset, before.topics.get(name, topic).end_offset),
            out_per_s=out.get(name, 0.0),
            messages=topic.messages,
            stored_bytes=topic.stored_bytes,
            subscriptions=len(topic.subscriptions),
        )
        for name, topic in after.topics.items()
    ]
    new, earlier = after.info, after.info if restarted else before.info
    return Top(
        seconds=seconds,
        in_per_s=sum(each.in_per_s for each in topics),
        out_per_s=sum(each.out_per_s for each in subscriptions),
        in_bytes_per_s=rate(new.received_bytes, earlier.received_bytes),
        out_bytes_per_s=rate(new.sent_bytes, earlier.sent_bytes),
        cpu=rate(new.cpu_s, earlier.cpu_s),
        info=new,
        topics=_sorted_topics(topics, sort),
        subscriptions=_sorted_subscriptions(subscriptions, sort),
        silent=list(after.silent),
    )


def _delivered(whole: Whole) -> int:
    return sum(row.position + row.redelivered_messages for row in whole.rows)


def _acked(whole: Whole) -> int:
    return sum(row.end_offset - row.backlog_messages for row in whole.rows)


def _sorted_topics(rows: Sequence[TopicRates], sort: str) -> list[TopicRates]:
    if sort == "name":
        return sorted(rows, key=lambda each: each.topic)
    return sorted(rows, key=lambda each: (-each.in_per_s, -each.out_per_s, each.topic))


def _sorted_subscriptions(rows: Sequence[SubscriptionRates], sort: str) -> list[SubscriptionRates]:
    if sort == "name":
        return sorted(rows, key=lambda each: (each.topic, each.subscription))
    if sort == "worst":
        return sorted(
            rows,
            key=lambda each: (each.well, -each.oldest_age_s, -each.backlog_messages, each.topic, each.subscription),
        )
    return sorted(rows, key=lambda each: (-each.out_per_s, -each.backlog_messages, each.topic, each.subscription))
