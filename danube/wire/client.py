"""The gRPC client: one connection with many concurrent calls, under Trio and asyncio (anyio).

A channel has a reader task, a writer task and a keep-alive task; calls run in the tasks of their callers. Everything
that calls queue in one turn of the event loop is sent in one write. A channel does not reconnect: when its
connection breaks, every call fails with ConnectionLostError, and the owner of the channel opens another one.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import anyio
import anyio.abc
import trio

from danube.model.errors import (
    CallRefusedError,
    ConnectionLostError,
    DanubeError,
    ProtocolError,
    Status,
    from_wire,
    to_wire,
)
from danube.model.limits import Limits
from danube.wire._client_stream import ClientStream
from danube.wire._events import (
    Event,
    GoAwayReceived,
    MessageReceived,
    StreamFailed,
    StreamReset,
    TrailersReceived,
)
from danube.wire._message import Message
from danube.wire._transport import Transport, transport_of
from danube.wire._waker import new_waker
from danube.wire.codec import MSGPACK, Codec
from danube.wire.connection import GrpcConnection

if TYPE_CHECKING:
    import ssl

    from danube.model.tls import PeerCertificate

__all__ = ["Authorize", "Channel", "ClientStream", "ClientTls", "Connect", "connect_channel", "connection_problem"]

T = TypeVar("T")

MIN_READ_BYTES = 16 * 1024
MAX_READ_BYTES = 1024 * 1024
WRITE_PIECE_BYTES = 256 * 1024
CLOSING_TIMEOUT_S = 1.0
LAST_STREAM_ID = 2**31 - 1 - 2 * 1024 * 1024
"""Stream id at which a connection is retired, after about 2^30 calls; a million ids are left for calls already
begun."""
_REFUSED_STREAM = 7
_INADEQUATE_SECURITY = 12

Connect = Callable[[], Awaitable[anyio.abc.ByteStream]]
"""Opens the byte stream of a channel. Tests and simulations pass their own."""


class ClientTls(Protocol):
    """TLS of a client: see :class:`danube.wire.tls.ClientFiles`."""

    def context(self) -> ssl.SSLContext:
        """Return what a new connection uses."""
        ...


Authorize: TypeAlias = Callable[[], str]
"""Returns the header ``authorization`` for one call or stream. It must not block; a DanubeError that it raises is the
error of the call."""


class Channel:
    """One connection to a broker. Created by :func:`connect_channel`."""

    def __init__(
        self, transport: Transport, authority: str, limits: Limits, codec: Codec, authorize: Authorize | None = None
    ) -> None:
        self.limits = limits
        self._authorize = authorize
        self.codec = codec
        self.protocol = GrpcConnection("client", limits, now=anyio.current_time())
        self._authority = authority
        self._content_type = f"application/grpc+{codec.subtype}"
        self._transport = transport
        self._streams: dict[int, ClientStream] = {}
        self._writable = new_waker()
        self._flushing = False
        self._unsent: bytes | memoryview = b""
        """What the transport did not accept at once; the writer sends it before all else."""
        self._established = anyio.Event()
        self._closed = anyio.Event()
        self._retired = anyio.Event()
        self._unused = anyio.Event()
        self._written = anyio.Event()
        self._error: DanubeError | None = None
        self._goaway = ""
        self._last_read = anyio.current_time()
        self._write_began = math.inf

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The verified certificate of the broker; None without TLS."""
        tls: ssl.SSLObject | None = getattr(self._transport, "tls", None)
        if tls is None:
            return None
        from danube.wire.tls import peer_certificate  # not imported without TLS

        return peer_certificate(tls)

    # -- calls

    async def unary(
        self,
        path: str,
        request: Any,
        response_type: type[T],
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_response_bytes: int | None = None,
    ) -> T:
        """Call a method with one request and return its one response.

        Raises the DanubeError of the broker's answer, DeadlineExceededError after ``timeout_s`` seconds (the
        broker has the same deadline), or ConnectionLostError. Cancelling it only resets the call.
        """
        data = self.codec.encode(request)
        stream = self.open_stream(path, timeout_s=timeout_s, metadata=metadata, max_message_bytes=max_response_bytes)
        try:
            stream.send_nowait(data)
            stream.end()
            message = await stream.receive()
            if message is None:
                raise ProtocolError(f"the broker ended {path} with success, but without a response")
            response = self.codec.decode(response_type, message.data)
            message.release()
            if await stream.receive() is not None:
                raise ProtocolError(f"the broker sent more than one response to {path}")
            return response
        finally:
            stream.cancel()

    @asynccontextmanager
    async def server_stream(
        self,
        path: str,
        request: Any,
        response_type: type[T],
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_response_bytes: int | None = None,
    ) -> AsyncGenerator[AsyncGenerator[T, None], None]:
        """Call a method that answers with a stream of messages.

        ``async with channel.server_stream(...) as responses: async for response in responses: ...``. Leaving the
        block cancels the rest of the call. Errors as in :meth:`unary`.
        """
        data = self.codec.encode(request)
        stream = self.open_stream(path, timeout_s=timeout_s, metadata=metadata, max_message_bytes=max_response_bytes)
        async with stream:
            stream.send_nowait(data)
            stream.end()
            responses = self._responses(stream, response_type)
            try:
                yield responses
            finally:
                await responses.aclose()

    async def _responses(self, stream: ClientStream, response_type: type[T]) -> AsyncGenerator[T, None]:
        while (message := await stream.receive()) is not None:
            response = self.codec.decode(response_type, message.data)
            message.release()
            yield response

    def open_stream(
        self,
        path: str,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_message_bytes: int | None = None,
    ) -> ClientStream:
        """Open a call with messages in both directions.

        Close it with ``async with``, or with :meth:`ClientStream.cancel`. ``max_message_bytes`` bounds a message of
        the response (default: the limit ``max_batch_bytes``, plus room for the fields around a batch). Raises
        ConnectionLostError, UnavailableError while the broker drains, or LimitExceededError if it accepts no more
        streams.
        """
        if self._error is not None:
            raise from_wire(*to_wire(self._error))
        limit = max_message_bytes if max_message_bytes is not None else self.limits.max_batch_bytes + 64 * 1024
        if self._authorize is not None:
            metadata = {"authorization": self._authorize(), **(metadata or {})}
        stream_id = self.protocol.send_request_headers(
            path,
            authority=self._authority,
            content_type=self._content_type,
            max_message_bytes=limit,
            metadata=metadata,
            timeout_s=timeout_s,
        )
        deadline = None if timeout_s is None else anyio.current_time() + timeout_s
        stream = self._streams[stream_id] = ClientStream(self, stream_id, path, deadline)
        if stream_id >= LAST_STREAM_ID:
            self._retired.set()
        self.wake_writer()
        return stream

    # -- state

    @property
    def closed(self) -> bool:
        """Whether the connection is lost, or about to be closed."""
        return self._error is not None

    @property
    def draining(self) -> bool:
        """Whether the broker accepts no new calls on this connection."""
        return bool(self._goaway)

    @property
    def retired(self) -> bool:
        """Whether new calls should use another connection: this one is closed, draining, or out of stream ids."""
        return self._retired.is_set()

    @property
    def busy(self) -> bool:
        """Whether a call is open."""
        return bool(self._streams)

    async def wait_retired(self) -> None:
        """Wait until :attr:`retired`."""
        await self._retired.wait()

    async def wait_unused(self) -> None:
        """Wait until no call is open, or the connection is lost."""
        while self._streams and not self.closed:
            self._unused = anyio.Event()
            await self._unused.wait()

    @property
    def error(self) -> DanubeError | None:
        """The reason why the channel is closed; None while it is open."""
        return self._error

    async def wait_closed(self) -> None:
        """Wait until the connection is lost."""
        await self._closed.wait()

    def close(self, error: DanubeError | None = None) -> None:
        """End every call, with ``error`` or as cancelled, and close the connection."""
        if self._error is None:
            self._error = error or ConnectionLostError("the channel was closed by this client")
            for stream in list(self._streams.values()):
                stream.deliver_outcome(self._error)
            self.protocol.terminate("the client is done")
            self._established.set()
            self._closed.set()
            self._retired.set()
            self.wake_writer()

    # -- called by streams

    def wake_writer(self) -> None:
        """Schedule queued data to be sent in the next turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._writable.wake()

    def flush(self) -> None:
        """Send queued data now, as far as the transport accepts it without waiting; the writer sends the rest."""
        if self._unsent or self._write_began != math.inf or self.closed:
            return  # the writer has data in hand
        try:
            data = self.protocol.data_to_send()
            sent = self._transport.send_now(data) if data else 0
        except ConnectionLostError as exc:
            self._lose(exc.message)
            return
        self._unsent = memoryview(data)[sent:]
        self._check_room()
        if self._unsent or self.protocol.wants_write:
            self.wake_writer()

    def _check_room(self) -> None:
        for stream in list(self._streams.values()):
            if stream.waits_for_room:
                stream.check_room()

    def forget(self, stream: ClientStream) -> None:
        """Stream: the call is over."""
        if self._streams.pop(stream.stream_id, None) is not None:
            self.protocol.finish(stream.stream_id)
            if not self._streams:
                self._unused.set()

    # -- tasks

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write)
            tasks.start_soon(self._keep_alive)
            await self._read()
            # The writer ends once its last data (the reason of the end) is written.
            with anyio.move_on_after(CLOSING_TIMEOUT_S):
                await self._written.wait()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        protocol = self.protocol
        receive = self._transport.receive
        size = MIN_READ_BYTES
        while not self.closed:
            try:
                data = await receive(size)
            except ConnectionLostError as exc:
                self._lose(exc.message)
                return
            if not data:
                self._lose("the broker closed the connection")
                return
            length = len(data)
            if length == size:
                if size < MAX_READ_BYTES:
                    size *= 4
            elif length * 16 < size and size > MIN_READ_BYTES:
                size //= 4
            self._last_read = anyio.current_time()
            for event in protocol.receive(data, self._last_read):
                handler = _DISPATCH.get(type(event))
                if handler is not None:
                    handler(self, event)
            if not self._established.is_set() and protocol.established:
                self._established.set()
            if protocol.terminated is not None:
                self._lose(protocol.terminated.message)
                return
            if protocol.wants_write:
                self.wake_writer()

    def _lose(self, reason: str) -> None:
        hint = f" ({self._goaway})" if self._goaway else ""
        self.close(ConnectionLostError(f"{self._authority}: {reason}{hint}"))

    async def _write(self) -> None:
        protocol = self.protocol
        transport = self._transport
        try:
            while True:
                while data := self._unsent or protocol.data_to_send():
                    self._unsent = b""
                    sent = transport.send_now(data)
                    if sent < len(data):
                        view = memoryview(data)
                        for start in range(sent, len(data), WRITE_PIECE_BYTES):
                            self._write_began = anyio.current_time()
                            await transport.send(view[start : start + WRITE_PIECE_BYTES])
                        self._write_began = math.inf
                    self._check_room()
                self._flushing = False
                if self.closed:
                    return
                await self._writable.wait()
        except ConnectionLostError as exc:
            self._lose(exc.message)
        finally:
            self._written.set()

    async def _keep_alive(self) -> None:
        limits = self.limits
        while True:
            await anyio.sleep_until(self._last_read + limits.keepalive_idle_s)
            now = anyio.current_time()
            if now - self._write_began > limits.write_timeout_s:
                await self._give_up(f"accepted no bytes for {limits.write_timeout_s} s")
                return
            if now < self._last_read + limits.keepalive_idle_s:  # a sum as above: differences may round differently
                continue
            self.protocol.ping(b"keepaliv")
            self.wake_writer()
            await anyio.sleep(limits.keepalive_timeout_s)
            if self._last_read < now:
                await self._give_up(f"did not answer a PING within {limits.keepalive_timeout_s} s")
                return

    async def _give_up(self, reason: str) -> None:
        self.close(ConnectionLostError(f"the broker at {self._authority} {reason}"))
        await self._transport.close()

    # -- events

    def _on_message(self, event: MessageReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.deliver(Message(self.protocol, self, event.stream_id, event.data, event.flow_size))

    def _on_trailers(self, event: TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            ok = event.status == Status.OK
            stream.deliver_outcome(None if ok else from_wire(event.status, event.code, event.message, event.details))

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            if event.code == _REFUSED_STREAM:
                stream.deliver_outcome(CallRefusedError(f"the broker refused the call of {stream.path}; try again"))
            else:
                # Brokers end calls with a status, so this reset comes from an intermediary, whose reasons (timeout,
                # restart, limit) and codes differ.
                stream.deliver_outcome(
                    ConnectionLostError(
                        f"{self._authority}: the call of {stream.path} was reset on its way (HTTP/2 code {event.code})"
                    )
                )

    def _on_failed(self, event: StreamFailed) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.deliver_outcome(event.error)

    def _on_goaway(self, event: GoAwayReceived) -> None:
        if event.code == _INADEQUATE_SECURITY:
            self._lose(event.message or "the broker demands TLS")
            return
        self._goaway = event.message or f"GOAWAY with code {event.code}"
        self._retired.set()


_DISPATCH: dict[type[Event], Callable[[Channel, Any], None]] = {
    MessageReceived: Channel._on_message,
    TrailersReceived: Channel._on_trailers,
    StreamReset: Channel._on_reset,
    StreamFailed: Channel._on_failed,
    GoAwayReceived: Channel._on_goaway,
}


_QUESTION: Final = "; is a broker running there?"


def _question(error: OSError) -> str:
    return "" if type(error).__module__ == "ssl" else _QUESTION


def _why(error: BaseException) -> str:
    """Return what the system says about a connection that failed, in one clause."""
    if type(error).__module__ == "ssl":
        from danube.wire.tls import tls_problem

        return tls_problem(error)  # type: ignore[arg-type]
    if isinstance(error, OSError) and error.errno is not None:
        # The numbers of other modules' errors are their own: 1 is SSL's for a failed handshake.
        is_of_system = type(error).__module__ == "builtins" and error.errno > 0
        text = os.strerror(error.errno) if is_of_system else error.strerror
        return text[:1].lower() + text[1:] if text else str(error)
    if isinstance(error, BaseExceptionGroup):
        return _why(error.exceptions[0])
    return _why(error.__cause__) if error.__cause__ is not None else str(error)


def connection_problem(error: DanubeError, authority: str) -> str:
    """Return the reason in an error of :func:`connect_channel`, for a message that names the address itself.

    Any other error is returned as its message.
    """
    return error.message.removesuffix(_QUESTION).removeprefix(f"no connection to {authority}").removeprefix(":").strip()


@asynccontextmanager
async def connect_channel(
    host: str,
    port: int,
    limits: Limits | None = None,
    *,
    connect: Connect | None = None,
    codec: Codec = MSGPACK,
    connect_timeout_s: float | None = None,
    tls: ssl.SSLContext | None = None,
    authorize: Authorize | None = None,
) -> AsyncGenerator[Channel, None]:
    """Connect to a broker, and close the connection at the end of the block.

    Args:
        host, port: of the broker.
        limits: of this side.
        connect: opens the byte stream instead of TCP to ``host`` and ``port``, which then only name the broker.
        codec: of messages.
        connect_timeout_s: for the connection, TLS included, and as much for HTTP/2 (default: the limit
            ``handshake_timeout_s``).
        tls: verifies that the broker's certificate names ``host`` (:func:`danube.wire.tls.client_context`); None:
            without TLS.
        authorize: of all calls.

    Raises:
        ConnectionLostError: there is no broker, or it does not answer in time, or TLS failed; the message says what to
            do. A later loss of the connection does not affect the block; the calls in it fail.
    """
    limits = limits or Limits()
    timeout_s = connect_timeout_s if connect_timeout_s is not None else limits.handshake_timeout_s
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    deadline = anyio.current_time() + timeout_s
    transport: Transport | None = None
    try:
        with anyio.CancelScope(deadline=deadline):
            transport = await _open(host, port, connect)
            if tls is not None:
                from danube.wire._tls_transport import secured

                transport = await secured(transport, tls, host)
    except OSError as exc:
        raise ConnectionLostError(f"no connection to {authority}: {_why(exc)}{_question(exc)}") from exc
    except ConnectionLostError as exc:
        raise ConnectionLostError(f"no connection to {authority}: {exc.message}") from exc
    if transport is None:
        raise ConnectionLostError(f"no connection to {authority} within {timeout_s} s{_QUESTION}")
    channel = Channel(transport, authority, limits, codec, authorize)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel._run)
            with anyio.CancelScope(deadline=deadline):
                await channel._established.wait()
            if not channel._established.is_set():
                channel.close(ConnectionLostError(f"{authority} did not speak HTTP/2 within {timeout_s} s"))
            failure = channel.error
            try:
                if failure is None:
                    yield channel
            except Exception as exc:  # noqa: BLE001
                # Raised again below, outside the task group, which would wrap it into an ExceptionGroup.
                failure = exc
            finally:
                channel.close()
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSING_TIMEOUT_S):
                    await channel._written.wait()
                tasks.cancel_scope.cancel()
    finally:
        await transport.close()
    if failure is not None:
        raise failure


async def _open(host: str, port: int, connect: Connect | None) -> Transport:
    if connect is not None:
        return transport_of(await connect())
    if trio.lowlevel.in_trio_run():
        return transport_of(await trio.open_tcp_stream(host, port))
    return transport_of(await anyio.connect_tcp(host, port))
