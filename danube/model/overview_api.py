"""The native API of overviews: the subscriptions of all topics, and everything that is not well at the brokers.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the end with a default. Any
broker answers for the whole cluster; it asks the others, and names those that do not answer. Callers see what they may
describe.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.ids import Offset, TopicId
from danube.model.policies import LATEST, SubscriptionType

__all__ = [
    "ABSENT_PATIENCE_S",
    "MAX_OVERVIEW_ROWS",
    "PATIENCE_S",
    "UNKNOWN_AGE",
    "FindDeliveries",
    "Finding",
    "FindingList",
    "GetFindings",
    "MessageDeliveries",
    "MessageDelivery",
    "OverviewMethod",
    "OverviewSubscriptions",
    "PlanSeek",
    "SeekPlan",
    "SeekPlans",
    "SkipMessages",
    "Skipped",
    "SubscriptionOverview",
    "SubscriptionRow",
]

MAX_OVERVIEW_ROWS: Final = 1_000
"""Most subscriptions of one answer."""
PATIENCE_S: Final = 60.0
"""Default of ``patience_s``."""
ABSENT_PATIENCE_S: Final = 3_600.0
"""Default of ``absent_patience_s``: a service may be away for so long; for jobs that run once a day it is longer."""
UNKNOWN_AGE: Final = -1.0
"""An age that the broker does not know."""


class OverviewMethod:
    """Paths of the calls."""

    SUBSCRIPTIONS: Final = "/danube.native.v1.Subscriptions/Overview"
    PLAN_SEEK: Final = "/danube.native.v1.Subscriptions/PlanSeek"
    SKIP: Final = "/danube.native.v1.Subscriptions/Skip"
    DELIVERIES: Final = "/danube.native.v1.Subscriptions/Deliveries"
    FINDINGS: Final = "/danube.native.v1.Broker/Findings"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


# --- Subscriptions ---------------------------------------------------------------------------------------------------


class OverviewSubscriptions(_Message, kw_only=True):
    """Asks for the subscriptions of many topics, a page of them. Answered with SubscriptionOverview."""

    namespace: str = ""
    """Only of topics in it; empty: of all."""
    topic: str = ""
    """Only of this topic: a plain one, a partition, or all partitions of a base name; empty: of all."""
    after: tuple[str, str] = ("", "")
    """Topic and subscription after which the page begins."""
    limit: int = MAX_OVERVIEW_ROWS
    """Most rows that are looked at, from 1 to :data:`MAX_OVERVIEW_ROWS`; the caller may see fewer of them."""
    unwell_only: bool = False
    """Leave out the rows that are well."""
    patience_s: float = PATIENCE_S
    """Subscriptions with work in progress count as well until their oldest unacknowledged message is older."""
    absent_patience_s: float = ABSENT_PATIENCE_S
    """The same for subscriptions without a consumer: of a job that runs every night none is connected in the day."""


class SubscriptionRow(_Message, kw_only=True):
    """One subscription of one topic or partition, in short."""

    topic: str
    subscription: str
    type: SubscriptionType
    state: str
    """One word, as in :class:`danube.model.api.Explanation`."""
    sentence: str
    """The same for a person."""
    well: bool
    """Whether it needs no attention."""
    backlog_messages: int
    """Unacknowledged messages up to the end of the topic."""
    oldest_age_s: float = UNKNOWN_AGE
    """Age of the oldest unacknowledged message; 0 without a backlog. Of messages that are not in the broker's cache it
    is estimated from the times around them."""
    consumers: int = 0
    """Connected ones."""
    in_flight_messages: int = 0
    waiting_messages: int = 0
    delayed_messages: int = 0
    poisoned_messages: int = 0
    dead_lettered_messages: int = 0
    redelivered_messages: int = 0
    """Deliveries beyond the first, since the broker was started."""
    floor: Offset = Offset(0)
    position: Offset = Offset(0)
    end_offset: Offset = Offset(0)
    broker: str = ""
    """The broker that serves it: ``b1``."""
    dead_letter_topic: str = ""
    """Where its poison messages are copied to; empty: they are not."""


class SubscriptionOverview(_Message, kw_only=True):
    """Answer to OverviewSubscriptions, in the order of topics and subscriptions."""

    subscriptions: list[SubscriptionRow]
    next: tuple[str, str] | None = None
    """``after`` of the next page; None: this was the last one."""
    silent: list[str] = []
    """Brokers that are away or did not answer: their subscriptions are missing."""


# --- Seeks -----------------------------------------------------------------------------------------------------------


class PlanSeek(_Message, kw_only=True):
    """Asks what a seek of a subscription would do, without doing it. Answered with SeekPlans.

    A plan is no promise: messages may be acknowledged or appended before the seek.
    """

    topic: str
    subscription: str
    position: str | int = LATEST
    """As in :class:`danube.model.api.SeekSubscription`, if ``by`` is 0."""
    time_us: int = 0
    by: int = 0
    """Below 0: so many messages back from the first unacknowledged one. Above 0: forward over so many unacknowledged
    ones. In each partition."""


class SeekPlan(_Message, kw_only=True):
    """What a seek would do to a subscription of a topic or partition."""

    topic: str
    floor: Offset
    """All messages below it are acknowledged now."""
    target: Offset
    """Where the subscription would continue."""
    end_offset: Offset
    skipped_messages: int
    """Messages that would count as acknowledged without being processed."""
    repeated_messages: int
    """Acknowledged messages that would be delivered again."""
    generation: int = 0
    """Changes with every move of the subscription; see :class:`SkipMessages`."""


class SeekPlans(_Message):
    """Answer to PlanSeek, one row for each partition."""

    plans: list[SeekPlan]


# --- Skipping --------------------------------------------------------------------------------------------------------


class SkipMessages(_Message, kw_only=True):
    """Acknowledges all unacknowledged messages below an offset, in the place of a consumer. Answered with Skipped.

    Other than a seek it makes no message come again. Repeating the request does nothing more.
    """

    topic: str
    """A plain topic or one partition: each has offsets of its own."""
    subscription: str
    below: Offset
    """:attr:`SeekPlan.target`, for instance."""
    generation: int
    """:attr:`SeekPlan.generation`: if the subscription was moved since, nothing is skipped."""
    topic_ids: list[TopicId] = []
    """As of :class:`~danube.model.api.SeekSubscription`."""


class Skipped(_Message, kw_only=True):
    """Answer to SkipMessages, once it is durable."""

    topic: str
    skipped_messages: int
    """Fewer than planned if consumers have acknowledged some in the meantime."""
    floor: Offset
    """All messages below it are acknowledged now."""


# --- Who has a message -----------------------------------------------------------------------------------------------


class FindDeliveries(_Message, kw_only=True):
    """Asks where a message is in each subscription of its topic. Answered with MessageDeliveries."""

    topic: str
    """A plain topic or one partition."""
    offset: Offset


class MessageDelivery(_Message, kw_only=True):
    """Where a message is in one subscription, at the moment of the answer."""

    topic: str
    subscription: str
    state: str
    """One word: acknowledged (or skipped), in-flight, waiting, delayed, poisoned, dead-lettered (known for copies since
    the start of the broker), before-start, undelivered."""
    sentence: str
    """The same for a person."""
    consumer: str = ""
    """That has it in flight."""
    since_s: float | None = None
    """Seconds for which it has been in flight."""
    timeout_in_s: float | None = None
    """Seconds until it counts as failed if it is not acknowledged; None: it does not time out."""
    due_in_s: float | None = None
    """Seconds until it may be delivered (waiting or delayed)."""
    attempt: int = 0
    """In flight: the number of this delivery; else the number of deliveries that are known."""
    failures: int = 0
    """Refusals and timeouts so far."""
    reason: str = ""
    """Of the last failure."""
    dead_letter_topic: str = ""
    """Where it was copied to, or is to be copied to."""


class MessageDeliveries(_Message, kw_only=True):
    """Answer to FindDeliveries: a row for each subscription that the caller may describe, in the order of names."""

    topic: str
    offset: Offset
    deliveries: list[MessageDelivery]


# --- Findings --------------------------------------------------------------------------------------------------------


class GetFindings(_Message):
    """Asks for everything about brokers, topics and storages that is not well. Answered with FindingList."""


class Finding(_Message, kw_only=True):
    """Something that is not well."""

    broker: str
    """Who says so: ``b1``."""
    kind: str
    """One word: topic-stopped, topic-unavailable, storage-failing, sealing-failing, journal-nearly-full,
    publish-held, stranded, loop-lag, connections-nearly-full, certificate-expires, ..."""
    subject: str
    """What it is about: the name of a topic, of a storage, or of the broker."""
    sentence: str
    """What is not well."""
    remedy: str = ""
    """What to do, often a command; empty if waiting is all there is."""
    topic: str = ""
    """The topic, if it is about one: callers that may not describe it do not see it."""


class FindingList(_Message, kw_only=True):
    """Answer to GetFindings."""

    findings: list[Finding]
    more: int = 0
    """Further ones, left out."""
    silent: list[str] = []
    """Brokers that are away or did not answer."""
