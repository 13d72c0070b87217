"""Shared parts of publish and consume streams: opening them, reading replies, and retrying."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import anyio

from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    ConnectionLostError,
    DanubeError,
    DeadlineExceededError,
    JournalFullError,
    LimitExceededError,
    ProtocolError,
)

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.client._waits import Wait
    from danube.wire.client import Channel, ClientStream

__all__ = ["Retry", "ask", "decode_reply", "receive_reply"]

T = TypeVar("T")

_LEAVE_TIMEOUT_S = 1.0
"""How long a closed stream waits for the broker before it is reset."""


class Retry:
    """Decides when to open a stream again, and when to give up."""

    def __init__(self, pool: Pool) -> None:
        self.succeeded_once = False
        options = self._options = pool.options
        self._waits = pool.waits
        self._wait: Wait | None = None
        """While the stream is not open, or the call not answered."""
        self._backoff = options.backoff()
        self._refused_backoff = options.backoff()
        self._failing_since: float | None = None

    @contextmanager
    def opening(self, what: str) -> Iterator[None]:
        """Limit one attempt to ``request_timeout_s``."""
        limit_s = self._options.request_timeout_s
        self._begin_wait()
        with anyio.move_on_after(limit_s) as scope:
            yield
        if scope.cancelled_caught:
            raise DeadlineExceededError(f"{what}: no answer within request_timeout_s = {limit_s:g} s")

    def succeeded(self) -> None:
        """Record that the stream is open."""
        self.succeeded_once = True
        self._failing_since = None
        self._backoff.reset()
        self._end_wait()

    async def wait(self, error: DanubeError) -> bool:
        """Wait before the next attempt; return False if the caller must give up.

        An error by a limit or policy at the first opening is raised at once, because waiting would hide the reason.
        """
        if (
            not self.succeeded_once
            and isinstance(error, LimitExceededError)
            and not isinstance(error, JournalFullError)
        ):
            self._end_wait()
            return False
        now_s = anyio.current_time()
        if self._failing_since is None:
            self._failing_since = now_s
        limit_s = self._options.reconnect_timeout_s if self.succeeded_once else self._options.request_timeout_s
        delay_s = self._backoff.next_delay_s()
        if limit_s is not None and now_s + delay_s - self._failing_since > limit_s:
            self._end_wait()
            return False
        self._begin_wait().reason = error.message
        await anyio.sleep(delay_s)
        return True

    async def repeat(self, call: Callable[[], Awaitable[T]], limit_s: float | None = None) -> T:
        """Make a call that may be repeated until it succeeds, fails for good, or has failed for too long.

        Args:
            call: one attempt.
            limit_s: of all attempts together; then the error of the last one is raised.
        """
        failure: DanubeError | None = None
        self._begin_wait()
        try:
            with anyio.move_on_after(limit_s):
                while True:
                    try:
                        return await call()
                    except DanubeError as error:
                        failure = error
                        if not error.retryable or not await self.wait(error):
                            raise
            raise failure or DeadlineExceededError(f"no answer within {limit_s:g} s")
        finally:
            failure = None  # it refers to this frame
            self._end_wait()

    def _begin_wait(self) -> Wait:
        if self._wait is None:
            self._wait = self._waits.begin(anyio.current_time())
        return self._wait

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._waits.end(self._wait)
            self._wait = None

    def refused_delay_s(self) -> float:
        """Return how long to wait after a batch was refused temporarily."""
        return self._refused_backoff.next_delay_s()

    def accepted(self) -> None:
        """Record that a batch was stored: the next refusal starts from the first delay again."""
        self._refused_backoff.reset()


@asynccontextmanager
async def ask(channel: Channel, path: str) -> AsyncIterator[ClientStream]:
    """Open a stream; at the end close it and wait until the broker has closed it, too.

    A reset is avoided because the broker counts resets as a sign of abuse. Waiting ensures that a client that closes an
    exclusive consumer and opens another one does not find the subscription busy.
    """
    stream = channel.open_stream(path)
    try:
        yield stream
    finally:
        if not stream.over:
            with anyio.move_on_after(_LEAVE_TIMEOUT_S, shield=True), suppress(DanubeError):
                stream.end()
                while (message := await stream.receive()) is not None:
                    message.release()
        stream.cancel()


async def receive_reply(stream: ClientStream, decode: Callable[[bytes], T], topic: str) -> T:
    """Return the next reply of a stream.

    Raises:
        DanubeError: the error with which the broker ended the stream.
        ConnectionLostError: it ended the stream without an error, or the connection broke.
        ProtocolError: the reply does not decode.
    """
    message = await stream.receive()
    if message is None:
        raise ConnectionLostError(f"the broker ended the stream of {topic}")
    message.release()
    return decode_reply(message.data, decode, topic)


def decode_reply(data: bytes, decode: Callable[[bytes], T], topic: str) -> T:
    """Decode a reply.

    Raises:
        ProtocolError: the reply does not decode.
    """
    try:
        return decode(data)
    except UNDECODABLE as error:
        raise ProtocolError(f"a reply for {topic} does not decode: {error}") from error
