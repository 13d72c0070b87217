"""A lane sends the batches of one :class:`~danube.client._outbox.Outbox` over a publish stream.

A lane exists as long as its producer; its streams are replaced. After a loss it opens the next stream, at the topic's
present owner, with the same epoch, and the outbox sends all unanswered batches again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from danube.client._checks import encoded
from danube.client._outbox import Outbox, Verdict
from danube.client._retry import Retry, ask, decode_reply, receive_reply
from danube.client._tasks import copy_error
from danube.model import api
from danube.model.errors import (
    ClosedError,
    DanubeError,
    NotOwnerError,
    OwnerFencedError,
    ProducerFencedError,
    ProtocolError,
    SequenceGapError,
    from_wire,
)

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._pool import Pool
    from danube.model.policies import Durability
    from danube.wire import Message
    from danube.wire.client import Channel, ClientStream

__all__ = ["Lane", "frame_batch"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(api.PublishReply).decode

# [1, bin32(part)] is PublishBatch in msgpack; writing its head by hand saves a copy of the part.
_BATCH_HEAD = b"\x92\x01\xc6"


def frame_batch(part: bytes) -> tuple[bytes, bytes]:
    """Return a PublishBatch message in two pieces, without copying the part."""
    return _BATCH_HEAD + len(part).to_bytes(4, "big"), part


class Lane:
    """A topic (or one partition) with its outbox and its current stream."""

    def __init__(
        self,
        pool: Pool,
        partition: int,
        open_message: api.PublishOpen,
        outbox: Outbox,
        wake: Callable[[], None],
    ) -> None:
        self.topic = open_message.topic
        self.partition = partition
        self.outbox = outbox
        self.error: DanubeError | None = None
        """Why this lane has ended permanently; None while it works."""
        self.first_sequence = 0
        """Number of records of this producer that the broker had when the lane was first opened."""
        self.durability: Durability | None = None
        self._open_message = open_message
        self._pool = pool
        self._route = pool.route(self.topic)
        self._clock_us = pool.options.environment.clock_us
        self._stream: ClientStream | None = None
        self._wake = wake

    def kick(self) -> None:
        """Send new messages of the outbox: at once if nothing is in flight, else at the end of this turn."""
        if self.outbox.idle:
            self.pump()
        else:
            self._wake()

    def pump(self) -> None:
        """Send all batches that may be sent now."""
        stream = self._stream
        if stream is None:
            return
        now_us = self._clock_us()
        while (part := self.outbox.next_part(now_us)) is not None:
            if not stream.send_nowait(frame_batch(part)):
                # The stream has ended; run() gets the reason from receive(), and the batch is sent again on the next
                # stream.
                self._detach()
                return

    def close(self, error: DanubeError) -> None:
        """Fail all unsettled messages, now and later, with ``error``."""
        if self.error is None:
            self.error = error
            self.outbox.fail(copy_error(error))

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep a stream open until cancelled; ``started()`` is called when the first one is open.

        A permanent error ends the lane: before ``started()`` it is raised, afterwards it fails all messages.
        """
        retry = Retry(self._pool)
        try:
            while True:
                try:
                    channel = await self._pool.follow(self._route)
                    await self._session(channel, retry, task_status)
                except DanubeError as error:
                    self._detach()
                    if self._route.failed(error):
                        continue
                    reopen = error.retryable or isinstance(error, SequenceGapError | ProtocolError)
                    if not reopen or not await retry.wait(error):
                        final = self._route.explained(error)
                        self.close(final)
                        if not retry.succeeded_once:
                            raise final from error.__cause__
                        return
        finally:
            self._detach()
            self.close(ClosedError(f"the producer on {self.topic} is closed"))

    def _detach(self) -> None:
        self._stream = None
        self.outbox.lost()

    async def _session(self, channel: Channel, retry: Retry, task_status: TaskStatus[None]) -> None:
        async with ask(channel, api.Method.PUBLISH) as stream:
            self._open_message.resume_epoch = self.outbox.epoch
            self._open_message.topic_id = self._route.topic_id
            with retry.opening(f"opening a producer on {self.topic}"):
                await stream.send(encoded(self._open_message))
                answer = await receive_reply(stream, _decode, self.topic)
            if not isinstance(answer, api.PublishOpened):
                raise ProtocolError(f"the broker answered PublishOpen with {type(answer).__name__}")
            self._route.served(answer.topic_id)
            self.outbox.opened(answer)
            self._stream = stream
            self.pump()
            if not retry.succeeded_once:
                self.first_sequence = answer.next_sequence
                self.durability = answer.durability
                task_status.started()
            retry.succeeded()

            def take_now(message: Message) -> bool:
                """Process acknowledgements as they arrive; leave all other replies to the task."""
                reply = decode_reply(message.data, _decode, self.topic)
                if not isinstance(reply, api.PublishAcks) or self.outbox.refuses:
                    return False  # the last reply of a series with refusals may require a pause
                message.release()
                self._acked(reply)
                retry.accepted()
                self.pump()
                return True

            stream.divert(take_now)
            try:
                while True:
                    await self._take(await receive_reply(stream, _decode, self.topic), retry)
            finally:
                stream.divert(None)

    def _acked(self, reply: api.PublishAcks) -> Verdict:
        verdict = self.outbox.acked(reply.acks)
        if verdict is Verdict.REOPEN:
            raise SequenceGapError(f"{self.topic}: broker and client disagree about the next sequence")
        return verdict

    async def _take(self, reply: api.PublishReply, retry: Retry) -> None:
        if isinstance(reply, api.PublishAcks):
            verdict = self._acked(reply)
            retry.accepted()
        elif isinstance(reply, api.PublishRefused):
            error = from_wire(reply.status, reply.code, reply.message, reply.details)
            if isinstance(error, NotOwnerError | OwnerFencedError):
                raise error  # the new owner gets all unanswered batches again
            verdict = self.outbox.refused(reply.base_sequence, error)
            if verdict is Verdict.FENCED:
                raise ProducerFencedError(reply.message)
        else:
            raise ProtocolError("the broker sent PublishOpened twice")
        if verdict is Verdict.REOPEN:
            raise SequenceGapError(f"{self.topic}: broker and client disagree about the next sequence")
        if verdict is Verdict.RETRY_LATER:
            await anyio.sleep(retry.refused_delay_s())
            self.outbox.resume()
        else:
            retry.accepted()
        self.pump()
