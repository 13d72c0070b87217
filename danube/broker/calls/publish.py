"""The Publish call: one long-lived stream for each producer, many batches in flight.

The handler checks what needs no records (checksum, sizes, identity, sequence), lets the topic assign offsets and goes
on with the next batch. Acknowledgements are made by the commit: :meth:`PublishStream.settled` gathers them, and one
message for each stream and commit takes them back. Stream credit returns with them, which is how a slow disk slows a
producer down, and nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from danube.log import ProducerSession, StoredBatch
from danube.model import api
from danube.model.batch import PART_OVERHEAD, BatchFlags, BatchHeader, Codec, check_part, open_raw
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    MessageTooLargeError,
    to_wire,
)
from danube.wire import Context, Message, ServerStream

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.intake.intake import Intake
    from danube.model.limits import Limits

__all__ = ["PublishStream", "check_batch", "publish"]

_REQUEST = msgspec.msgpack.Decoder(api.PublishRequest)
_encode = msgspec.msgpack.Encoder().encode
_RESERVED_FLAGS = ~int(BatchFlags.PAYLOADS_ONLY)  # of the number: ~ of an IntFlag leaves out bits that have no name
_LAST_CODEC = max(Codec)


class PublishStream:
    """One open Publish stream: a producer's session on a topic, and what it has in flight."""

    __slots__ = ("_acks", "_broker", "_idle", "_intake", "_stream", "_waiting", "in_flight", "session")

    def __init__(self, broker: Broker, intake: Intake, session: ProducerSession, stream: ServerStream) -> None:
        self._broker = broker
        self._intake = intake
        self._stream = stream
        self._acks: list[api.AckedSequence] = []
        self._idle: trio.Event | None = None
        self._waiting = False
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
        """Send the acknowledgements that one commit has gathered."""
        acks, self._acks = self._acks, []
        self._stream.send_nowait(_encode(api.PublishAcks(acks)))

    def end(self, error: DanubeError | None) -> None:
        """End the call: a newer session has taken over, or the topic is gone."""
        self._stream.abandon(error)

    def _acknowledge(self, header: BatchHeader, base_offset: int) -> None:
        if not self._acks:
            self._broker.to_flush.append(self)
        self._acks.append(api.AckedSequence(header.base_sequence, base_offset, header.record_count))

    def _refuse(self, base_sequence: int, error: BaseException) -> None:
        status, code, text = to_wire(error)
        self._stream.send_nowait(_encode(api.PublishRefused(base_sequence, int(status), code, text)))

    def take_now(self, message: Message) -> bool:
        """Take a batch if the journal has room for it, else say False and change nothing."""
        if self._waiting or not self._intake.try_admit(len(message.data)):
            return False
        self._take(message)
        return True

    async def take(self, message: Message) -> None:
        """Take a batch when the journal has room for it; what arrives meanwhile queues behind it."""
        self._waiting = True
        try:
            await self._intake.admit(len(message.data))
        except DanubeError as error:
            self._refuse(check_part(_part(message)).base_sequence, error)
            message.release()
        else:
            self._take(message)
        finally:
            self._waiting = False

    def _take(self, message: Message) -> None:
        part = _part(message)
        header = check_part(part)  # a wrong checksum ends the stream: nothing that follows it can be trusted
        try:
            if header.producer_id != self.session.producer_id:
                raise InvalidArgumentError(
                    f"batch of producer {header.producer_id:016x} on the stream of {self.session.producer_id:016x};"
                    " use the ids that PublishOpened gave"
                )
            check_batch(self._intake, self._broker.config.limits, header, part)
            known_offset = self._intake.take(self, message, part, header)
        except DanubeError as error:
            self._refuse(header.base_sequence, error)
            message.release()
            return
        if known_offset is not None:
            self._acknowledge(header, known_offset)
            self._broker.flush()
            message.release()

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            self._idle = trio.Event()
            await self._idle.wait()


def check_batch(intake: Intake, limits: Limits, header: BatchHeader, part: bytes) -> None:
    """Refuse a batch that its topic does not take, whoever sends it.

    Args:
        intake: of the topic.
        limits: of the broker.
        header, part: the batch; its checksum is right.

    Raises:
        DanubeError: it says what is wrong with the batch.
    """
    if len(part) > limits.max_batch_bytes or header.unpacked_size > limits.max_batch_bytes:
        raise MessageTooLargeError(
            f"batch of {len(part)} bytes ({header.unpacked_size} unpacked) is larger than"
            f" max_batch_bytes = {limits.max_batch_bytes}; send smaller batches"
        )
    if header.record_count > limits.max_batch_records:
        raise LimitExceededError(
            f"batch of {header.record_count} messages is larger than max_batch_records = {limits.max_batch_records}"
        )
    if header.unpacked_size > intake.max_message_bytes:
        _check_messages(intake, limits, header, part)
    if header.deliver_at_us:
        intake.check_delivery_time(header.deliver_at_us)
    if header.flags & _RESERVED_FLAGS:
        raise InvalidArgumentError(f"batch flags {header.flags:#x} are reserved for the broker")
    if header.codec > _LAST_CODEC:
        raise InvalidArgumentError(f"batch codec {header.codec} is unknown; known are none, lz4 and zstd")


def _check_messages(intake: Intake, limits: Limits, header: BatchHeader, part: bytes) -> None:
    """Look at each message of a batch that is large enough to hold one that is too large."""
    largest = header.unpacked_size
    if header.record_count > 1:
        largest = max(map(len, open_raw(part, header, limits.max_batch_bytes)))
    if largest > intake.max_message_bytes + PART_OVERHEAD:
        raise MessageTooLargeError(
            f"message of about {largest} bytes is larger than {intake.said_max_message_bytes()}; split it, or"
            " raise that"
        )


async def publish(broker: Broker, stream: ServerStream, context: Context) -> None:
    """Handle one Publish call until the producer closes it, is fenced, or the broker drains."""
    first = await stream.receive()
    request = _decode(first)
    if not isinstance(request, api.PublishOpen):
        raise InvalidArgumentError("a Publish stream begins with PublishOpen")
    assert first is not None
    first.release()
    topic = await broker.topic_for_producer(request)
    session = await topic.intake.open(request)
    state = PublishStream(broker, topic.intake, session, stream)
    topic.intake.attach(state)
    try:
        limits = broker.config.limits
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
        # What was taken is acknowledged, or refused, before the call ends, whatever ends it.
        with trio.move_on_after(broker.config.drain_timeout_s, shield=True):
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
