"""The Publish call: one long-lived stream for each producer, many batches in flight.

The handler performs the checks that need no records (checksum, sizes, identity, sequence), lets the topic assign
offsets and proceeds to the next batch. The commit acknowledges: :meth:`PublishStream.settled` collects
acknowledgements, and one message for each stream and commit carries them. Stream credit is returned with them, which
is how a slow disk slows down a producer without affecting other streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.intake.checks import check_batch
from danube.log import ProducerSession, StoredBatch
from danube.model import api
from danube.model.batch import BatchHeader, check_part
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    to_wire,
)
from danube.model.ids import Offset
from danube.wire import Context, Message, ServerStream

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.intake.intake import Intake
    from danube.broker.runtime.runtime import Runtime
    from danube.broker.topic.topic import Topic

__all__ = ["PublishStream", "publish"]

_REQUEST = msgspec.msgpack.Decoder(api.PublishRequest)
_encode = msgspec.msgpack.Encoder().encode


class PublishStream:
    """One open Publish stream: a producer's session on a topic, and its batches in flight."""

    __slots__ = ("_acks", "_ended", "_idle", "_intake", "_runtime", "_stream", "_waiting", "in_flight", "session")

    def __init__(self, runtime: Runtime, intake: Intake, session: ProducerSession, stream: ServerStream) -> None:
        self._runtime = runtime
        self._intake = intake
        self._stream = stream
        self._acks: list[api.AckedSequence] = []
        self._idle: trio.Event | None = None
        self._waiting = False
        self._ended = False
        self.session = session
        self.in_flight = 0

    def settled(self, message: Message, batch: StoredBatch, error: DanubeError | None) -> None:
        """A batch of this stream has reached its durability, or the journal has failed. Called in sequence order."""
        message.release()
        header = batch.header
        if error is not None:
            self._refuse(header.base_sequence, error)
        else:
            self._acknowledge(header, batch.base_offset)
        if not self.in_flight and self._idle is not None:
            self._idle.set()

    def flush(self) -> None:
        """Send the acknowledgements collected in one commit."""
        acks, self._acks = self._acks, []
        self._stream.send_nowait(_encode(api.PublishAcks(acks)))

    def end(self, error: DanubeError | None) -> None:
        """End the call: another session or connection has taken over, or the topic was deleted.

        Batches that arrive here afterwards are dropped: their producer repeats them on its new connection, or has given
        their sequences to others.
        """
        self._ended = True
        self._stream.abandon(error)

    def _acknowledge(self, header: BatchHeader, base_offset: Offset) -> None:
        if not self._acks:
            self._runtime.commits.queue(self)
        self._acks.append(api.AckedSequence(header.base_sequence, base_offset, header.record_count))

    def _refuse(self, base_sequence: int, error: BaseException) -> None:
        status, code, text, details = to_wire(error)
        self._stream.send_nowait(_encode(api.PublishRefused(base_sequence, int(status), code, text, details)))

    def take_now(self, message: Message) -> bool:
        """Take a batch if the journal has room for it; else return False and change nothing."""
        if self._waiting or self._ended:
            return False
        part = None
        rule = self._intake.schema_rule
        if rule is not None:
            part = _part(message)
            if rule.waits_for(part):
                return False
        if not self._intake.try_admit(len(message.data)):
            return False
        self._take(message, part=part)
        return True

    async def take(self, message: Message) -> None:
        """Take a batch when the journal has room for it; later batches queue behind it."""
        self._waiting = True
        try:
            rule = self._intake.schema_rule
            if rule is not None and rule.waits_for(part := _part(message)):
                await self._intake.examine(part, check_part(part))
            await self._intake.admit(len(message.data))
        except DanubeError as error:
            self._take(message, error)
        else:
            self._take(message)
        finally:
            self._waiting = False

    def _take(self, message: Message, not_admitted: DanubeError | None = None, part: bytes | None = None) -> None:
        if self._ended:
            message.release()
            return
        if part is None:
            part = _part(message)
        header = check_part(part)  # a wrong checksum ends the stream: data after it cannot be trusted
        try:
            if header.producer_id != self.session.producer_id:
                raise InvalidArgumentError(
                    f"batch of producer {header.producer_id:016x} on the stream of {self.session.producer_id:016x};"
                    " use the ids from PublishOpened"
                )
            if not self._intake.is_repeat(header):
                if not_admitted is not None:
                    raise not_admitted
                check_batch(self._intake, self._runtime.limits, header, part)
            known_offset = self._intake.take(self, message, part, header)
        except DanubeError as error:
            self._intake.note_refused(error, header.record_count)
            self._refuse(header.base_sequence, error)
            message.release()
            return
        if known_offset is not None:
            self._acknowledge(header, known_offset)
            self._runtime.commits.flush()
            message.release()

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            self._idle = trio.Event()
            await self._idle.wait()


async def publish(directory: Directory, stream: ServerStream, context: Context) -> None:
    """Handle one Publish call until the producer closes it, is fenced, or the broker drains."""
    first = await stream.receive()
    request = _decode(first)
    if not isinstance(request, api.PublishOpen):
        raise InvalidArgumentError("a Publish stream begins with PublishOpen")
    assert first is not None
    first.release()
    topic = await directory.for_producer(request)
    with directory.runtime.namespace_connections.using(topic.name, context.connection_id):
        await _take_all(directory, topic, request, stream)


async def _take_all(directory: Directory, topic: Topic, request: api.PublishOpen, stream: ServerStream) -> None:
    session = await topic.intake.open(request)
    state = PublishStream(directory.runtime, topic.intake, session, stream)
    topic.intake.attach(state)
    try:
        limits = directory.runtime.limits
        stream.send_nowait(
            _encode(
                api.PublishOpened(
                    topic.topic_id,
                    session.producer_id,
                    session.epoch,
                    session.next_sequence,
                    topic.durability,
                    limits.max_batch_bytes,
                    topic.intake.max_message_bytes,
                )
            )
        )
        # Batches are taken as they arrive, without waking this task, as long as the journal has room.
        stream.divert(state.take_now)
        while (message := await stream.receive()) is not None:
            await state.take(message)
    finally:
        # Batches that were taken are acknowledged or refused before the call ends, for whatever reason.
        with trio.move_on_after(directory.runtime.config.drain_timeout_s, shield=True):
            await state.wait_idle()
        topic.intake.detach(state)


def _part(message: Message) -> bytes:
    request = _decode(message)
    if not isinstance(request, api.PublishBatch):
        raise InvalidArgumentError("a Publish stream carries PublishOpen once, and then PublishBatch only")
    return request.part


def _decode(message: Message | None) -> api.PublishRequest:
    if message is None:
        raise InvalidArgumentError("the Publish stream ended before its first message")
    try:
        request: api.PublishRequest = _REQUEST.decode(message.data)
        return request
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"Publish: the message does not decode: {error}") from error
