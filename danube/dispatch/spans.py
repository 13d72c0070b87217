"""Inputs and outputs of subscription machines as plain values: batches, deliveries, states, explanations.

Offsets count messages of one topic; ranges are half-open. A *flat* list ``[start, end, start, end, ...]`` is the form
of ranges on the wire and in the journal, so the machines use it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

__all__ = [
    "ACKNOWLEDGED",
    "DELAYED",
    "IN_FLIGHT",
    "POISONED",
    "UNDELIVERED",
    "WAITING",
    "ConsumerState",
    "Delivery",
    "Description",
    "Explanation",
    "Gap",
    "Place",
    "Poisoned",
    "ReadRequest",
    "Span",
]


class Span(NamedTuple):
    """One batch of the log, as seen by dispatch."""

    base_offset: int
    end_offset: int
    """First offset after the batch."""
    size_bytes: int
    """Byte credit that delivering the whole batch costs."""
    token: Any = None
    """The owner's own object; returned in deliveries, never inspected or stored."""
    keys: Sequence[bytes] | None = None
    """Effective key of each record (key-shared only; None means that all have the empty key)."""
    due: float = 0.0
    """No message of it is delivered before this time (monotonic seconds)."""


class ReadRequest(NamedTuple):
    """The machine needs the batch that holds ``offset``."""

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
    """Number of offsets in ``ranges``: the message credit used."""
    size_bytes: int
    """The byte credit used (for a slice its share of the batch, rounded up)."""


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
    """Number of deliveries."""
    failures: int
    """Number of refusals and timeouts."""
    reason: str
    """Reason of the last failure."""


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
    """Messages delivered to it and not settled."""
    delivered_messages: int
    """Since it joined, redeliveries included."""
    acked_messages: int
    """Acknowledged while they were in flight at this consumer."""
    suspended: bool = False
    """It let a message time out and has sent no sign of life since; other consumers take precedence."""
    key_filters: tuple[str, ...] = ()
    delivered_bytes: int = 0
    """Bytes of the delivered messages, as credit counts them."""


class Description(msgspec.Struct, frozen=True):
    """State of a subscription in numbers."""

    floor: int
    """All offsets below it are acknowledged."""
    position: int
    """Next new offset to be delivered."""
    generation: int
    """Number of seeks."""
    backlog_messages: int
    """Unacknowledged messages up to the end of the log."""
    in_flight_messages: int
    waiting_messages: int
    """Messages to be redelivered, or read and held back until the owner of their key may get them."""
    acked_ranges: int
    """Number of acknowledged ranges above the floor."""
    redelivered_messages: int
    """Deliveries beyond the first, since the machine was built."""
    dropped_messages: int
    """Lost to slow or missing consumers (lossy topics), or given up under the poison policy ``drop``."""
    consumers: list[ConsumerState]
    delayed_messages: int = 0
    """Not delivered yet because they are not due."""
    poisoned_messages: int = 0
    """Failed too often and still stored: they block, or wait to be copied to the dead-letter topic."""


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
    """... and for how many seconds."""
    next_retry_s: float | None = None
    """Seconds until the next delayed redelivery; 0 or less if one is due."""


# --- Where one message is ---

ACKNOWLEDGED: Final = "acknowledged"
IN_FLIGHT: Final = "in-flight"
WAITING: Final = "waiting"
"""It was read, and goes out when there is a consumer with credit, its pause is over, or it is its key's turn."""
DELAYED: Final = "delayed"
"""Its publisher has set a delivery time, which is not there yet."""
POISONED: Final = "poisoned"
"""It has failed too often: it blocks, or waits to be copied to the dead-letter topic."""
UNDELIVERED: Final = "undelivered"
"""Its turn has not come."""


class Place(NamedTuple):
    """Where one message of a subscription is. Times are monotonic seconds."""

    state: str
    consumer: str = ""
    """In flight: the name of the consumer that has it."""
    since: float | None = None
    """In flight: when it was delivered."""
    deadline: float | None = None
    """In flight: when it times out; infinite if it does not."""
    due: float | None = None
    """Waiting or delayed: when it may be delivered; None: now."""
    attempt: int = 0
    """In flight: the number of this delivery. Waiting and poisoned: the number of deliveries so far."""
    failures: int = 0
    """Refusals and timeouts so far."""
    reason: str = ""
    """Of the last failure."""
