"""Topics of other brokers, for stages that are held here: what is asked of their owners, and answered to them.

A stage is judged by the owner of its topic when it is written, and its batches are appended by the owner when they are
committed, with the sequences of the decision. Each call opens a session of the producer and waits until its batches are
durable, so one that was not answered is sent again: the topic recognises what is stored.

The owner is looked up for each call. A topic that moves, or whose owner dies, is asked for at its next owner.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
import trio

from danube.broker.intake.checks import check_header, check_messages
from danube.broker.stages.near import FarTopic, Landed, Parts, append_parts, open_session
from danube.broker.stages.service import CHANNEL
from danube.cluster.ownership import Elsewhere, Mine
from danube.log import ProducerSession
from danube.model.batch import BatchHeader, check_part
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    CallRefusedError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import FIRST_OFFSET, NO_PRODUCER_EPOCH, Offset, ProducerId, TopicId
from danube.model.limits import MIB

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic
    from danube.model.limits import Limits
    from danube.peers import Peer, Peers

__all__ = ["DistantPlace", "DistantTopic", "Neighbours"]

_CALL_S: Final = 20.0
"""How long an owner may take. It continues with what it has begun only until then."""
_CHUNK_BYTES: Final = 4 * MIB
"""Bytes of batches in one call, unless one batch is larger."""

T = TypeVar("T")


class _Question(msgspec.Struct, array_like=True, frozen=True, tag_field="tag"):
    """Base of what is asked. New fields are added at the end, with a default."""

    topic: str
    topic_id: TopicId


class AskBounds(_Question, frozen=True, tag=0):
    """What may be staged for a topic? Answered with :class:`Bounds`."""


class Judge(_Question, frozen=True, tag=1):
    """May these batches be staged? Waits for the publish rates, and is answered with nothing."""

    headers: list[BatchHeader]
    parts: list[bytes] = []
    """The batches themselves, if the topic has a rule about schemas: it may look at payloads."""


class OpenShare(_Question, frozen=True, tag=2):
    """Where does a producer stand? Answered with :class:`Opened`."""

    producer: str


class AppendShare(_Question, frozen=True, tag=3):
    """Append batches of a decided commit. Answered with :class:`~danube.broker.stages.near.Landed`."""

    producer: str
    sequence: int
    """Of the first message."""
    parts: list[bytes]


Question = AskBounds | Judge | OpenShare | AppendShare


class Bounds(msgspec.Struct, array_like=True, frozen=True):
    """What may be staged for a topic."""

    max_message_bytes: int
    lossy: bool
    examined: bool
    """It has a rule about schemas."""


class Opened(msgspec.Struct, array_like=True, frozen=True):
    """Where a producer stands."""

    producer_id: ProducerId
    next_sequence: int
    end_offset: Offset


_encode: Final = msgspec.msgpack.encode
_QUESTION: Final = msgspec.msgpack.Decoder(Question)


class Ask(Protocol):
    """Asks the owner of one topic."""

    async def __call__(self, question: Question, kind: type[T], /) -> T:
        """Return the answer, which is of a kind."""
        ...


class DistantTopic(FarTopic):
    """A topic, or a partition, of another broker.

    Args:
        name, topic_id: which.
        ask: asks its owner.
    """

    def __init__(self, name: str, topic_id: TopicId, ask: Ask) -> None:
        self.name = name
        self.topic_id = topic_id
        self._ask = ask

    async def bounds(self) -> Bounds:
        """Return what may be staged for it.

        Raises:
            NotFoundError: it was deleted.
            UnavailableError: its owner does not answer now.
        """
        return await self._ask(AskBounds(self.name, self.topic_id), Bounds)

    async def judge(self, parts: Parts, bounds: Bounds, limits: Limits) -> None:
        """Check batches that are to be staged, and wait until its publish rates permit them.

        Args:
            parts: the batches.
            bounds: of the topic.
            limits: of this broker.

        Raises:
            DanubeError: one is not acceptable, or its owner does not answer now.
        """
        for part, header in parts:
            said = lambda: f"max_message_bytes = {bounds.max_message_bytes}"  # noqa: E731
            check_messages(bounds.max_message_bytes, said, limits, header, part)
        headers = [header for _, header in parts]
        sent = [part for part, _ in parts] if bounds.examined else []
        await self._ask(Judge(self.name, self.topic_id, headers, sent), type(None))

    async def open(self, producer: str) -> tuple[ProducerSession, Offset]:
        """Return where a producer stands, and the end of the topic."""
        found = await self._ask(OpenShare(self.name, self.topic_id, producer), Opened)
        name = f"staged/{producer}"
        session = ProducerSession(
            found.producer_id, name, NO_PRODUCER_EPOCH, found.next_sequence, exclusive=False, anonymous=True
        )
        return session, found.end_offset

    async def append(self, producer: str, sequence: int, parts: AsyncIterator[Parts]) -> Landed:
        """Append batches; see :func:`append_parts`."""
        starts: list[Offset] = []
        end, forgotten = FIRST_OFFSET, False
        async with aclosing(_chunks(parts)) as chunks:
            async for chunk, records in chunks:
                question = AppendShare(self.name, self.topic_id, producer, sequence, chunk)
                start, stop, unknown = await self._ask(question, Landed)
                sequence += records
                end, forgotten = max(end, stop), forgotten or unknown
                if start is not None:
                    starts.append(start)
        return Landed(min(starts, default=None), end, forgotten)


class DistantPlace:
    """A topic of another broker, which judges what is staged here."""

    def __init__(self, topic: DistantTopic, bounds: Bounds, limits: Limits) -> None:
        self._topic = topic
        self._limits = limits
        self.name = topic.name
        self.topic_id = topic.topic_id
        self._bounds = bounds
        self.lossy = bounds.lossy
        self.max_message_bytes = bounds.max_message_bytes

    @classmethod
    async def find(cls, topic: DistantTopic, limits: Limits) -> DistantPlace:
        """Ask the owner what may be staged.

        Raises:
            TopicNotFoundError: the topic was deleted.
            UnavailableError: the owner does not answer now.
        """
        try:
            return cls(topic, await topic.bounds(), limits)
        except NotFoundError as error:
            raise TopicNotFoundError(error.message) from error

    async def judge(self, parts: Parts) -> None:
        """Have the owner check batches, and wait until its publish rates permit them."""
        if parts:
            await self._topic.judge(parts, self._bounds, self._limits)


async def _chunks(parts: AsyncIterator[Parts]) -> AsyncGenerator[tuple[list[bytes], int], None]:
    """Group batches to calls; yield each group with the number of its messages."""
    chunk: list[bytes] = []
    size = records = 0
    async for some in parts:
        for part, header in some:
            if chunk and size + len(part) > _CHUNK_BYTES:
                yield chunk, records
                chunk, size, records = [], 0, 0
            chunk.append(part)
            size += len(part)
            records += header.record_count
    if chunk:
        yield chunk, records


class Neighbours:
    """Asks the owners of topics, and answers other brokers.

    Args:
        directory: of the topics.
        links: the links to the other brokers, and whether this one serves; None: there are none.
    """

    def __init__(self, directory: Directory, links: tuple[Peers, Callable[[], bool]] | None) -> None:
        self._directory = directory
        self._peers: Peers | None = None
        self._is_serving: Callable[[], bool] = lambda: True
        if links is not None:
            self._peers, self._is_serving = links

    async def place(self, name: str, topic_id: TopicId) -> DistantPlace:
        """Return a topic for which is staged here; raises as :meth:`DistantPlace.find`."""
        return await DistantPlace.find(self.topic(name, topic_id), self._directory.runtime.limits)

    def topic(self, name: str, topic_id: TopicId) -> DistantTopic:
        """Return a topic that another broker owns, or did a moment ago."""

        async def ask(question: Question, kind: type[T]) -> T:
            return await self._ask(name, topic_id, question, kind)

        return DistantTopic(name, topic_id, ask)

    async def _ask(self, name: str, topic_id: TopicId, question: Question, kind: type[T]) -> T:
        directory, peers = self._directory, self._peers
        owner = directory.membership.owners.owner_of(topic_id)
        if peers is None or isinstance(owner, Mine):
            raise UnavailableError(f"topic {name!r} is being moved to this broker; try again")
        if not isinstance(owner, Elsewhere):
            record, living_id = directory.catalogue.locate(name)
            if living_id != topic_id:
                raise NotFoundError(f"topic {name!r} was deleted")
            raise UnavailableError(directory.absence(name, record, topic_id).message)
        try:
            answer = await peers.call(owner.address, CHANNEL, _encode(question), _CALL_S)
        except NotOwnerError as error:
            raise UnavailableError(f"topic {name!r} is being moved: {error.message}; try again") from error
        return msgspec.msgpack.decode(answer, type=kind)

    async def answer(self, _peer: Peer, payload: bytes) -> bytes:
        """Answer another broker.

        Raises:
            CallRefusedError: this broker starts or ends.
            NotFoundError: the topic was deleted.
            NotOwnerError: another broker owns it.
            InvalidArgumentError: the question does not decode, or a batch may not be staged.
            DanubeError: it cannot be answered now.
        """
        await trio.lowlevel.checkpoint()
        if not self._is_serving():
            raise CallRefusedError("the owner of the topic starts or ends; try again")
        try:
            question = _QUESTION.decode(payload)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"a question about stages does not decode: {error}") from error
        topic = self._find(question)
        match question:
            case AskBounds():
                intake = topic.intake
                return _encode(Bounds(intake.max_message_bytes, topic.lossy, intake.schema_rule is not None))
            case Judge(headers=headers, parts=parts):
                await self._judge(topic, headers, parts)
                return _encode(None)
            case OpenShare(producer=producer):
                session = await open_session(topic, producer)
                return _encode(Opened(session.producer_id, session.next_sequence, topic.end_offset))
        session = await open_session(topic, question.producer)
        async with aclosing(_checked(question.parts)) as checked:
            return _encode(await append_parts(topic, session, question.sequence, checked))

    def _find(self, question: Question) -> Topic:
        directory = self._directory
        try:
            _, living_id = directory.catalogue.locate(question.topic)
        except InvalidArgumentError as error:
            raise NotFoundError(error.message) from error
        if living_id != question.topic_id:
            raise NotFoundError(f"topic {question.topic!r} was deleted, and created again")
        topic = directory.find(question.topic)
        topic.check_alive()
        return topic

    async def _judge(self, topic: Topic, headers: Sequence[BatchHeader], parts: Sequence[bytes]) -> None:
        intake, limits = topic.intake, self._directory.runtime.limits
        if intake.schema_rule is not None and not parts:
            raise UnavailableError(f"topic {topic.name!r} has got a rule about schemas meanwhile; stage again")
        if parts and len(parts) != len(headers):
            raise InvalidArgumentError(f"{len(headers)} batches were announced, and {len(parts)} came")
        for part, header in zip(parts, headers, strict=False):
            if check_part(part) != header:
                raise InvalidArgumentError("a batch has another header than was said")
            await intake.examine(part, header)
        sizes = [header.header_size + header.packed_size + 4 for header in headers]
        for header, size in zip(headers, sizes, strict=True):
            check_header(intake, limits, header, size)
        await intake.pay(sum(header.record_count for header in headers), sum(sizes))


async def _checked(parts: Sequence[bytes]) -> AsyncGenerator[Parts, None]:
    """Yield batches with their headers; CorruptBatchError if a checksum is wrong."""
    yield [(part, check_part(part)) for part in parts]
