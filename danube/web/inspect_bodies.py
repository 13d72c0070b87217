"""JSON bodies of what is attached to topics, and of the broker seen from within. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from danube.model.ids import Offset
from danube.web.twins import Id

__all__ = ["ConsumerPage", "ConsumerRow", "Expansion", "ProducerPage", "ProducerRow", "ReaderPage", "ReaderRow"]


class _Answer(msgspec.Struct, kw_only=True):
    """Base of answers."""


class ProducerRow(_Answer, kw_only=True):
    """One producer of a plain topic or a partition: connected, or remembered for its sequence numbers."""

    topic: str
    name: str
    epoch: int
    next_sequence: int
    """The sequence number of its next message."""
    connected: bool


class ProducerPage(_Answer, kw_only=True):
    """Producers."""

    items: list[ProducerRow]
    total: int
    next: str = ""


class ReaderRow(_Answer, kw_only=True):
    """One reader: a consumer without a subscription."""

    topic: str
    name: str
    reader_id: Id
    start_offset: Offset
    position: Offset
    """The next message that it gets."""
    end_offset: Offset
    credit_messages: int
    credit_bytes: int
    delivered_messages: int


class ReaderPage(_Answer, kw_only=True):
    """Readers."""

    items: list[ReaderRow]
    total: int
    next: str = ""


class ConsumerRow(_Answer, kw_only=True):
    """One consumer of a subscription of a plain topic or a partition."""

    topic: str
    name: str
    consumer_id: Id
    active: bool
    """False: it stands by."""
    credit_messages: int
    in_flight_messages: int
    delivered_messages: int
    acked_messages: int
    credit_bytes: int
    key_filters: list[str]
    suspended: bool
    """It let a message time out and has sent no sign of life since."""


class ConsumerPage(_Answer, kw_only=True):
    """Consumers."""

    items: list[ConsumerRow]
    total: int
    next: str = ""


class Expansion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many partitions a topic is to have."""

    partitions: Annotated[int, Meta(ge=1)]
