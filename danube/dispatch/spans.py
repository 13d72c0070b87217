"""What goes into a subscription's state machine and what comes out of it: plain values.

Offsets count messages of one topic; ranges are half-open. A *flat* list ``[start, end, start, end, ...]`` is how ranges
travel on the wire and in the journal, so the machines take and give them in this form too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

__all__ = ["ConsumerState", "Delivery", "Description", "Explanation", "Gap", "Poisoned", "ReadRequest", "Span"]


class Span(NamedTuple):
    """One batch of the log, as far as dispatch needs to know it."""

    base_offset: int
    end_offset: int
    """First offset after the batch."""
    size_bytes: int
    """What delivering the whole batch costs in byte credit."""
    token: Any = None
    """The owner's own object; handed back in deliveries, never looked at, never kept."""
    keys: Sequence[str] | None = None
    """Effective key of each record (key-shared only; None means that all have the key ``""``)."""
    due: float = 0.0
    """Nothing of it is delivered before this time (monotonic seconds)."""


class ReadRequest(NamedTuple):
    """The machine wants to see the batch that holds ``offset``."""

    offset: int
    redelivery: bool
    """False: this is the next new offset, which may not be written yet."""


class Delivery(NamedTuple):
    """Messages for one consumer, all of one batch."""

    consumer_id: int
    token: Any
    base_offset: int
    """Base offset of the batch."""
    ranges: list[int]
    """Flat list of the offsets to deliver, in order; never empty."""
    attempt: int
    """1 for the first delivery. More than 1 means that it may be a repeat."""
    whole: bool
    """True if ``ranges`` is the complete batch."""
    messages: int
    """Number of offsets in ``ranges``: the message credit that was used."""
    size_bytes: int
    """The byte credit that was used (for a slice its share of the batch, rounded up)."""


class Gap(NamedTuple):
    """Messages between ``start`` and ``end`` were dropped and will not reach this consumer (lossy topics only)."""

    consumer_id: int
    start: int
    end: int


class Poisoned(NamedTuple):
    """Messages that failed too often and are set aside until they are copied to the dead-letter topic."""

    start: int
    end: int
    attempt: int
    """How often they were delivered."""
    failures: int
    """How often they were refused or timed out."""
    reason: str
    """What was said about the last failure."""


class ConsumerState(msgspec.Struct, frozen=True):
    """One connected consumer."""

    consumer_id: int
    name: str
    active: bool
    """False for a failover consumer that stands by."""
    credit_messages: int
    """May be negative: an exclusive consumer gets a batch whole while it has any credit."""
    credit_bytes: int
    in_flight_messages: int
    """Delivered to it and not settled."""
    delivered_messages: int
    """Since it joined, redeliveries included."""
    acked_messages: int
    """Acknowledged while they were in flight at this consumer."""
    suspended: bool = False
    """It let a message time out and has said nothing since; others go before it."""
    key_filters: tuple[str, ...] = ()


class Description(msgspec.Struct, frozen=True):
    """A subscription in numbers."""

    floor: int
    """Everything below is acknowledged."""
    position: int
    """Next new offset to be delivered."""
    generation: int
    """Counts the seeks."""
    backlog_messages: int
    """Not acknowledged, up to the end of the log."""
    in_flight_messages: int
    waiting_messages: int
    """To be delivered again, or read and held back until the owner of their key may have them."""
    acked_ranges: int
    """Acknowledged ranges above the floor."""
    redelivered_messages: int
    """Deliveries beyond the first, since the machine was built."""
    dropped_messages: int
    """Lost to slow or missing consumers (lossy topics), or given up under the poison policy ``drop``."""
    consumers: list[ConsumerState]
    delayed_messages: int = 0
    """Not delivered yet because they are not due."""
    poisoned_messages: int = 0
    """Failed too often, and still there: they block, or wait to be copied to the dead-letter topic."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a subscription moves, or why it does not."""

    state: str
    """One of ``moving``, ``caught-up``, ``no-consumer``, ``no-credit``, ``waiting-for-acks``, ``window-full``,
    ``waiting-for-retry``, ``waiting-for-delivery-time``, ``blocked``, ``dead-lettering``, ``no-matching-consumer``."""
    sentence: str
    """The same for a person, with names and numbers."""
    description: Description
    oldest_start: int | None = None
    """The unacknowledged range in flight with the lowest offset, if there is one ..."""
    oldest_end: int | None = None
    oldest_consumer: str | None = None
    """... the consumer that has it ..."""
    oldest_age_s: float | None = None
    """... and since how many seconds."""
    next_retry_s: float | None = None
    """Seconds until the next delayed redelivery; 0 or less if one is due."""
