"""A producer inside the broker: publishes without a connection, and waits until its batches are durable.

It is a :class:`~danube.broker.intake.senders.Sender` like the stream of a connected producer, with the same sessions
and fencing, sequences, back-pressure from the journal, and durability. One batch is in flight at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import trio

from danube.log import ProducerSession, StoredBatch
from danube.model import Durability, api
from danube.model.batch import Codec, Record, encode_part, read_header
from danube.model.errors import DanubeError

if TYPE_CHECKING:
    from danube.broker.intake.intake import Intake

__all__ = ["InternalProducer", "Target"]

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Target(Protocol):
    """A topic that an internal producer publishes to."""

    name: str
    durability: Durability
    intake: Intake


class InternalProducer:
    """Publishes to one topic or partition. Open it with :meth:`open`, and use it as a context manager.

    Args:
        topic: its target.
        session: from :meth:`danube.broker.intake.intake.Intake.open`.
        on_problem: called with the reason why a batch is not durable yet, and with None when it is.
    """

    def __init__(
        self, topic: Target, session: ProducerSession, on_problem: Callable[[DanubeError | None], None]
    ) -> None:
        self.topic = topic
        self._session = session
        self.in_flight = 0
        self._on_problem = on_problem
        self._next_sequence = session.next_sequence
        self._ended: DanubeError | None = None
        self._settled = trio.Event()
        self._error: DanubeError | None = None
        self._offset = 0

    @classmethod
    async def open(cls, topic: Target, name: str, on_problem: Callable[[DanubeError | None], None]) -> InternalProducer:
        """Open a session under its own name; raises as :meth:`danube.broker.intake.intake.Intake.open`."""
        session = await topic.intake.open(api.PublishOpen(topic.name, name, anonymous=True), internal=True)
        return cls(topic, session, on_problem)

    def __enter__(self) -> Self:
        self.topic.intake.attach(self, internal=True)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.topic.intake.detach(self)

    async def publish(self, records: Sequence[Record], publish_time_us: int, **fields: Any) -> int:
        """Publish one batch and return its base offset when it is durable.

        A topic that cannot take the batch now (full journal, unavailable storage) is retried, with pauses of 1 to
        30 seconds; the batch keeps its sequence, so it is stored once.

        Args:
            records: at least one; within the broker's limits for batches.
            publish_time_us: base of their ``publish_delta_us``.
            **fields: of :func:`danube.model.batch.encode_part`: codec and schema.

        Raises:
            DanubeError: not retryable: the topic is gone, or another producer has taken it over.
        """
        part = encode_part(
            records,
            producer_id=self._session.producer_id,
            producer_epoch=self._session.epoch,
            base_sequence=self._next_sequence,
            publish_time_us=publish_time_us,
            **{"codec": Codec.NONE, **fields},
        )
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                offset = await self._publish(part)
            except DanubeError as error:
                if self._ended is not None or not error.retryable:
                    raise self._ended or error from error
                self._on_problem(error)
            else:
                self._on_problem(None)
                self._next_sequence += len(records)
                return offset
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _publish(self, part: bytes) -> int:
        intake = self.topic.intake
        await intake.admit(len(part))
        if self._ended is not None:
            raise self._ended
        settled = self._settled = trio.Event()
        known = intake.take(self, settled, part, read_header(part))
        if known is not None:
            return known
        await settled.wait()
        if self._error is not None:
            raise type(self._error)(self._error.message)
        return self._offset

    # --- The intake's sender ---

    @property
    def session(self) -> ProducerSession:
        """The session that was opened."""
        return self._session

    def settled(self, token: object, batch: StoredBatch, error: DanubeError | None, /) -> None:
        """A batch has reached its durability, or will not, or is delayed."""
        self._error = error
        self._offset = batch.base_offset
        if token is self._settled:
            self._settled.set()

    def end(self, error: DanubeError | None, /) -> None:
        """The topic was deleted, or another session has taken over: a batch in flight may still settle."""
        self._ended = error
