"""Dead letters for a topic that another broker owns: the owner publishes them, and answers when they are durable.

Partitions of one topic have several owners, and share the topic of their dead letters. A batch of letters is one call
over the link to its owner. If the answer is lost the batch is sent again, and may be there twice, as after a crash
between the copy and the acknowledgement of the originals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from danube.broker.intake.internal_producer import InternalProducer, Target
from danube.model.batch import Codec, Record
from danube.model.errors import DanubeError

__all__ = ["ForwardedTopic", "ForwardingProducer", "SendLetters", "open_producer", "publish_letters"]


class SendLetters(msgspec.Struct, array_like=True):
    """Asks the owner of a topic to publish a batch of dead letters. New fields are added at the end, with a default."""

    topic: str
    producer: str
    """Name under which they are published."""
    publish_time_us: int
    records: list[Record]
    codec: Codec = Codec.NONE
    schema_id: int = 0
    schema_version: int = 0


class ForwardedTopic(NamedTuple):
    """A topic, or a partition, of another broker."""

    name: str
    send: Callable[[SendLetters], Awaitable[int]]
    """Has its owner publish letters, and returns the offset of the first one; raises DanubeError."""


class ForwardingProducer:
    """Publishes to a topic of another broker; used like an :class:`InternalProducer`."""

    def __init__(self, topic: ForwardedTopic, name: str) -> None:
        self._topic = topic
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Do nothing: the owner knows of one call at a time."""

    async def publish(self, records: Sequence[Record], publish_time_us: int, **fields: Any) -> int:
        """Publish one batch and return its base offset when it is durable; arguments as of :class:`InternalProducer`.

        Raises:
            DanubeError: the owner does not answer, or refuses; the batch may be stored nevertheless.
        """
        return await self._topic.send(
            SendLetters(self._topic.name, self._name, publish_time_us, list(records), **fields)
        )


async def open_producer(
    topic: Target | ForwardedTopic, name: str, on_problem: Callable[[DanubeError | None], None]
) -> InternalProducer | ForwardingProducer:
    """Return a producer for dead letters; arguments and errors as of :meth:`InternalProducer.open`."""
    if isinstance(topic, ForwardedTopic):
        return ForwardingProducer(topic, name)
    return await InternalProducer.open(topic, name, on_problem)


async def publish_letters(topic: Target, letters: SendLetters) -> int:
    """Publish a batch of another broker's letters to a topic of this one; return its base offset when it is durable.

    Raises:
        DanubeError: it cannot be published now; or another call of the same sender has taken its place.
    """
    with await InternalProducer.open(topic, letters.producer, lambda problem: None) as producer:
        return await producer.publish(
            letters.records,
            letters.publish_time_us,
            codec=letters.codec,
            schema_id=letters.schema_id,
            schema_version=letters.schema_version,
        )
