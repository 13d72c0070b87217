"""Topics of this broker, for stages: what may be staged for them, and how it is appended once it is committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from danube.broker.intake.checks import check_batch
from danube.broker.stages.decisions import addressed
from danube.log import ProducerSession, StoredBatch
from danube.model import api
from danube.model.batch import BatchHeader, replace_header
from danube.model.errors import DanubeError, DuplicateSequenceError, UnavailableError
from danube.model.ids import FIRST_OFFSET, Offset, TopicId
from danube.model.limits import MIB, Limits

if TYPE_CHECKING:
    from danube.broker.topic.topic import Topic

__all__ = ["FarTopic", "Landed", "NearPlace", "Parts", "Place", "append_parts", "open_session"]

_IN_FLIGHT_BYTES: Final = 16 * MIB

Parts = Sequence[tuple[bytes, BatchHeader]]
"""Staged batches with their headers."""


class Landed(NamedTuple):
    """Where staged batches are in their topic."""

    start: Offset | None
    """The lowest offset that is known; None: of none."""
    end: Offset
    """After the last of them."""
    forgotten: bool
    """Whether the offsets of the first batches are unknown, although they are stored."""


class FarTopic(ABC):
    """A topic, or a partition, of another broker; see :mod:`danube.broker.stages.distant`."""

    @abstractmethod
    async def open(self, producer: str) -> tuple[ProducerSession, Offset]:
        """Return where a producer stands, and the end of the topic.

        Raises:
            NotFoundError: it was deleted.
            UnavailableError: its owner does not answer now.
        """

    @abstractmethod
    async def append(self, producer: str, sequence: int, parts: AsyncIterator[Parts]) -> Landed:
        """Append batches; see :func:`append_parts`."""


class Place(Protocol):
    """A topic for which is staged."""

    name: str
    topic_id: TopicId
    lossy: bool
    """Whether it stores nothing, so that nothing can be staged for it."""
    max_message_bytes: int

    async def judge(self, parts: Parts, /) -> None:
        """Check batches, and wait until its publish rates permit them.

        Raises:
            DanubeError: one is not acceptable, or that cannot be said now.
        """
        ...


class NearPlace:
    """A topic of this broker."""

    def __init__(self, topic: Topic, limits: Limits) -> None:
        self._topic = topic
        self._limits = limits
        self.name = topic.name
        self.topic_id = topic.topic_id
        self.lossy = topic.lossy
        self.max_message_bytes = topic.intake.max_message_bytes

    async def judge(self, parts: Parts) -> None:
        """Check batches, and wait until its publish rates permit them."""
        intake = self._topic.intake
        for part, header in parts:
            await intake.examine(part, header)
            check_batch(intake, self._limits, header, part)
        await intake.pay(sum(header.record_count for _, header in parts), sum(len(part) for part, _ in parts))


class _Sender:
    """Publishes the share of one topic. A :class:`danube.broker.intake.senders.Sender`."""

    def __init__(self, session: ProducerSession) -> None:
        self._session = session
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.error: DanubeError | None = None
        """Why it cannot continue."""
        self.start: Offset | None = None
        self.end_offset = FIRST_OFFSET
        self.forgotten = False
        """Whether the offsets of the first batches are unknown, although the batches are stored."""
        self._changed = trio.Event()

    @property
    def session(self) -> ProducerSession:
        """The session that was opened."""
        return self._session

    def landed(self, base_offset: Offset, records: int) -> None:
        """Record that a batch is durable at this offset."""
        if self.start is None or base_offset < self.start:
            self.start = base_offset
        self.end_offset = max(self.end_offset, base_offset + records)

    def settled(self, size: int, batch: StoredBatch, error: DanubeError | None, /) -> None:
        """A batch has reached its durability, or will not, or is delayed."""
        self.in_flight_bytes -= size
        if error is None:
            self.landed(batch.base_offset, batch.header.record_count)
        else:
            self.error = self.error or error
        self._changed.set()

    def end(self, error: DanubeError | None, /) -> None:
        """Handle that the topic was deleted or has moved, or has an exclusive producer."""
        self.error = self.error or error or UnavailableError("another commit of this producer is in progress")

    async def room(self, limit: int) -> None:
        """Wait until no more than ``limit`` bytes are in flight.

        Raises:
            DanubeError: it cannot continue.
        """
        while self.in_flight_bytes > limit and self.error is None:
            self._changed = trio.Event()
            await self._changed.wait()
        if self.error is not None:
            raise type(self.error)(self.error.message)


async def open_session(topic: Topic, producer: str) -> ProducerSession:
    """Open a session of a producer of staged batches in a topic; raises as :meth:`Intake.open`."""
    request = api.PublishOpen(topic.name, f"staged/{producer}", anonymous=True)
    return await topic.intake.open(request, internal=True)


async def append_parts(topic: Topic, session: ProducerSession, sequence: int, parts: AsyncIterator[Parts]) -> Landed:
    """Append batches, or those that are missing; return when all of them are durable.

    Args:
        topic: their topic.
        session: of their producer.
        sequence: of the first message; the others follow without a gap.
        parts: the batches, which were paid for when they were staged.

    Raises:
        DanubeError: some could not be appended; the others may be.
    """
    sender, intake = _Sender(session), topic.intake
    intake.attach(sender, internal=True)
    try:
        async for some in parts:
            for part, header in some:
                await _append(topic, sender, part, addressed(header, session, sequence))
                sequence += header.record_count
        await sender.room(0)
    finally:
        intake.detach(sender)
    return Landed(sender.start, sender.end_offset, sender.forgotten)


async def _append(topic: Topic, sender: _Sender, part: bytes, header: BatchHeader) -> None:
    part, intake = replace_header(part, header), topic.intake
    await sender.room(_IN_FLIGHT_BYTES)
    await intake.admit(len(part), paid=True)
    await sender.room(_IN_FLIGHT_BYTES)  # the sender may have ended meanwhile
    try:
        sender.in_flight_bytes += len(part)
        known = intake.take(sender, len(part), part, header, paid=True)
    except DuplicateSequenceError:
        sender.in_flight_bytes -= len(part)
        sender.forgotten = True  # appended before a crash, with many others after it
    except DanubeError:
        sender.in_flight_bytes -= len(part)
        raise
    else:
        if known is not None:
            sender.in_flight_bytes -= len(part)
            sender.landed(known, header.record_count)
