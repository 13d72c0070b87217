"""One accepted connection of the server: reads events, writes responses, and runs the handlers of its streams.

A connection has one task, and one more for each streaming call; unary calls served by plain functions have none.
Received data becomes events, which are passed to streams. The server's poller reads real sockets
(:mod:`danube.loop.poller`), the connection's task everything else. Queued data is written at the end of the poller's
round, or in the next turn of the loop: the server calls :meth:`ServerConnection.flush` once for each connection with
queued data. A separate task is started only for a peer that reads slowly.
There are no timers here; the server's :meth:`ServerConnection.check` checks all connections at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
from h2.errors import ErrorCodes

from danube.model.errors import (
    BrokerDrainingError,
    CallRefusedError,
    ConnectionLostError,
    DanubeError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PeerBlockedError,
    PeerFloodError,
    Status,
    UnimplementedError,
    to_wire,
)
from danube.model.log_events import log_event
from danube.wire._context import Context
from danube.wire._events import (
    EndOfStream,
    Event,
    MessageReceived,
    RequestReceived,
    StreamFailed,
    StreamReset,
)
from danube.wire._figures import ConnectionKind
from danube.wire._message import Message
from danube.wire._patience import Patience
from danube.wire._server_stream import CallStream
from danube.wire._transport import PolledTransport, Transport
from danube.wire._unary_call import UnaryCall
from danube.wire.codec import MSGPACK, choose_codec
from danube.wire.connection import GrpcConnection
from danube.wire.service import Method

if TYPE_CHECKING:
    from danube.loop import Poller
    from danube.model.tls import PeerCertificate
    from danube.wire.server import Server

__all__ = ["MAX_READ_BYTES", "WRITE_PIECE_BYTES", "ServerConnection"]

MIN_READ_BYTES = 16 * 1024
MAX_READ_BYTES = 1024 * 1024
WRITE_BYTES = 512 * 1024
"""Maximum number of bytes assembled for one write; the part that the peer does not accept stays in memory.

A multiple of ``WRITE_PIECE_BYTES``, so that no small rest is left for a write of its own."""
WRITE_PIECE_BYTES = 256 * 1024
"""A large write is split into pieces of this size, so that progress of a slow reader is noticed."""
HARD_FACTOR = 4
"""A connection with this many times ``max_send_buffer_bytes_per_connection`` queued is closed at once."""
_MAX_AGENT_CHARS = 100
"""Of a longer name of a client library, the start is kept."""

log = logging.getLogger("danube.wire")


class ServerConnection:
    """The I/O shell of one connection. Created and driven by :class:`danube.wire.server.Server`.

    Args:
        server: its server.
        transport: of its bytes; the connection owns it.
        connection_id: unique among the connections of the server.
        peer: address of the peer, for logs.
        received: bytes that were read already.
        secure: whether the transport is TLS.
        peer_certificate: the verified certificate of the peer, if it has presented one.
    """

    __slots__ = (
        "_backlog",
        "_calls",
        "_closed",
        "_closing",
        "_counted",
        "_flushing",
        "_nursery",
        "_patience",
        "_read_size",
        "_received",
        "_streams",
        "_transport",
        "_waiters",
        "agent",
        "caller",
        "connection_id",
        "foreign",
        "lasting",
        "limits",
        "peer",
        "peer_certificate",
        "protocol",
        "received_bytes",
        "secure",
        "sent_bytes",
        "server",
        "since",
    )

    def __init__(
        self,
        server: Server,
        transport: Transport,
        connection_id: int,
        peer: str,
        *,
        received: bytes = b"",
        secure: bool = False,
        peer_certificate: PeerCertificate | None = None,
    ) -> None:
        self.server = server
        self.limits = server.limits
        self.connection_id = connection_id
        self.foreign = False
        """Whether the peer is not one of Danube's own clients, judging by its calls. Such peers get more time when the
        broker drains."""
        self.lasting = False
        """Whether a method that outlives a drain was called."""
        self.agent = ""
        """Name and version of the peer's library, as its first call with one says."""
        self.caller: object = None
        """Who made the last call whose caller was proven; None: nobody yet."""
        self.peer = peer
        self.received_bytes = 0
        self.sent_bytes = 0
        self.secure = secure
        self.peer_certificate = peer_certificate
        self._received = received
        self.since = now = trio.current_time()
        """When it was accepted, on Trio's clock."""
        self.protocol = GrpcConnection("server", server.limits, now=now, message_limit=server.message_limit)
        self.protocol.http_url = server.http_url
        self._transport = transport
        self._streams: dict[int, CallStream] = {}
        self._calls: dict[int, UnaryCall] = {}
        self._nursery: trio.Nursery | None = None
        self._backlog: memoryview | None = None
        self._waiters: dict[CallStream, int] = {}
        """Streams that wait for room, with the number of queued bytes that they wait for, in order of arrival."""
        self._counted = 0
        """The number of queued bytes that are included in the server's count."""
        self._flushing = False
        self._closing = False
        self._closed = False
        self._patience = Patience(server.limits, now)
        self._read_size = MIN_READ_BYTES

    def __repr__(self) -> str:
        return f"<ServerConnection {self.connection_id} {self.peer} streams={len(self._streams) + len(self._calls)}>"

    @property
    def idle(self) -> bool:
        """Whether no stream is open."""
        return not self._streams and not self._calls

    @property
    def open_streams(self) -> int:
        """Open streams, and unary calls in progress."""
        return len(self._streams) + len(self._calls)

    @property
    def kind(self) -> str:
        """Who is at the other end; see :class:`danube.wire._figures.ConnectionKind`."""
        if self.lasting:
            return ConnectionKind.PEER
        return ConnectionKind.GRPC if self.foreign else ConnectionKind.NATIVE

    @property
    def stream_paths(self) -> list[str]:
        """The paths of its open streams."""
        methods = self.server.methods
        paths = [stream.context.path for stream in self._streams.values()]
        return [path for path in paths if methods[path].kind != "unary"]

    # -- bytes

    async def run(self) -> None:
        """Serve the connection until either side ends it. Stream handlers are cancelled then."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._read()
                # Pending protocol data (such as the reason of the end) is written before the tasks are cancelled.
                self.close_when_written()
                for stream in self._streams.values():
                    stream.abandon(None)
                # flush() ends this task by cancelling it. A nursery that closes earlier would refuse the task that
                # writes a backlog.
                await trio.sleep_forever()
        finally:
            self._closed = True
            for call in list(self._calls.values()):
                call.drop(None)
            self._waiters.clear()
            self.server.waiting_changed(-self._counted)
            self._counted = 0
            await self._transport.close()

    async def _read(self) -> None:
        poller, transport = self.server.poller, self._transport
        received, self._received = self._received, b""
        if received and not self._take(received):
            return
        if poller.polls and isinstance(transport, PolledTransport):
            await self._read_by_poller(poller, transport)
            return
        receive = transport.receive
        while True:
            try:
                data = await receive(self._read_size)
            except PeerFloodError as error:
                self.end(error.message)
                return
            except ConnectionLostError:
                return
            if not data or not self._take(data):
                return

    async def _read_by_poller(self, poller: Poller, transport: PolledTransport) -> None:
        """Let the server's poller read, until the end of the data."""
        if transport.is_over:
            return
        fd, over = transport.fd, trio.Event()
        failure: list[Exception] = []

        def on_readable() -> None:
            try:
                data = transport.receive_now(self._read_size)
                if data is None or (data and self._take(data) and not transport.is_over):
                    return
            except PeerFloodError as error:
                self.end(error.message)
            except ConnectionLostError:
                pass  # treated like the end of the data
            except Exception as error:  # noqa: BLE001 - a bug costs this connection: its own task raises it
                failure.append(error)
            poller.remove(fd)
            over.set()

        poller.add(fd, on_readable)
        try:
            await over.wait()
        finally:
            poller.remove(fd)
        if failure:
            raise failure[0]

    def _take(self, data: bytes) -> bool:
        """Handle received data; False after the end."""
        protocol = self.protocol
        length, size = len(data), self._read_size
        # Busy senders get large reads, others only small buffers.
        if length == size:
            if size < MAX_READ_BYTES:
                self._read_size = size * 4
        elif length * 16 < size and size > MIN_READ_BYTES:
            self._read_size = size // 4
        now = self._patience.last_read = trio.current_time()
        self.server.received_bytes += length
        self.received_bytes += length
        for event in protocol.receive(data, now):
            handler = _DISPATCH.get(type(event))
            if handler is not None:
                handler(self, event)
        if protocol.wants_write:
            self.wake_writer()
        if protocol.terminated is None:
            return True
        reason = protocol.terminated.message
        log.info(
            "connection %d of %s ends: %s",
            self.connection_id,
            self.peer,
            reason,
            extra=log_event("connection.ended", repeating=True, peer=self.peer, reason=reason),
        )
        return False

    def wake_writer(self) -> None:
        """Schedule queued data to be sent at the end of the poller's round, or in the next turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self.server.flush_soon(self)

    def flush(self) -> None:
        """Send all queued data; a task handles the part that the transport does not accept at once."""
        self._flushing = False
        if self._closed or self._nursery is None or self._nursery.cancel_scope.cancel_called:
            return  # the connection is closing
        protocol = self.protocol
        while self._backlog is None and (data := protocol.data_to_send(WRITE_BYTES)):
            try:
                sent = self._transport.send_now(data)
            except ConnectionLostError:
                self._nursery.cancel_scope.cancel()
                return
            length = len(data)
            self.server.sent_bytes += length  # what the transport has not accepted follows soon
            self.sent_bytes += length
            if sent < len(data):
                self._backlog = memoryview(data)[sent:]
                self._patience.write_began = trio.current_time()
                self._nursery.start_soon(self._write_backlog)
        if self._waiters:
            self._check_room()
        waiting = self.waiting_bytes
        if waiting != self._counted:
            self._count(waiting)
        if self._closing and self._backlog is None:
            self._nursery.cancel_scope.cancel()

    async def _write_backlog(self) -> None:
        """Write the data that :meth:`flush` could not write, until the peer has accepted all of it."""
        data = self._backlog
        assert data is not None
        assert self._nursery is not None
        try:
            while data:
                while data:
                    self._patience.write_began = trio.current_time()
                    await self._transport.send(data[:WRITE_PIECE_BYTES])
                    self._backlog = data = data[WRITE_PIECE_BYTES:]
                self._check_room()
                self._backlog = data = memoryview(self.protocol.data_to_send(WRITE_BYTES))
                self.server.sent_bytes += len(data)
                self.sent_bytes += len(data)
                self._count(self.waiting_bytes)
        except ConnectionLostError:
            self._nursery.cancel_scope.cancel()
            return
        self._backlog = None
        self._patience.write_began = math.inf
        if self._closing:
            self._nursery.cancel_scope.cancel()

    # -- data queued for the peer

    @property
    def waiting_bytes(self) -> int:
        """Bytes queued for the peer."""
        backlog = self._backlog
        waiting = self.protocol.waiting_bytes
        return waiting if backlog is None else waiting + len(backlog)

    def full(self) -> bool:
        """Whether no stream of this connection should send more, regardless of its own queue.

        True when the queued bytes have reached ``max_send_buffer_bytes_per_connection``, or those of all connections
        ``max_send_buffer_bytes_in_all``; in the latter case each stream may have data in flight only once.
        """
        waiting = self.waiting_bytes
        return waiting >= self.limits.max_send_buffer_bytes_per_connection or (waiting > 0 and self.server.pressed)

    def wait_for_room(self, stream: CallStream, level: int) -> None:
        """Notify a stream, once, when at most ``level`` bytes are queued for it and the connection is not full."""
        self._waiters[stream] = level

    def pass_room_on(self) -> None:
        """Notify waiting streams if there is room."""
        if self._waiters and not self._closed:
            self._check_room()

    def _check_room(self) -> None:
        # Notify only as many streams as may have room; unused room is passed on to the next ones.
        if self.full():
            return
        limits, waiters = self.limits, self._waiters
        room = limits.max_send_buffer_bytes_per_connection - self.waiting_bytes
        woken = 1 if self.server.pressed else 1 + room // limits.max_send_buffer_bytes
        buffered = self.protocol.send_buffered
        for stream, level in list(waiters.items()):
            if buffered(stream.stream_id) <= level:
                del waiters[stream]
                stream.room_made()
                woken -= 1
                if not woken:
                    return

    def _count(self, waiting: int) -> None:
        """Update the server's count of queued bytes, and close the connection if it exceeds all limits."""
        self.server.waiting_changed(waiting - self._counted)
        self._counted = waiting
        most = self.limits.max_send_buffer_bytes_per_connection
        if waiting > HARD_FACTOR * most and not self._closing:
            self.cut_off(f"more than {HARD_FACTOR} times max_send_buffer_bytes_per_connection = {most}")

    def cut_off(self, why: str) -> None:
        """Disconnect a peer that requests more data than it reads, unless it is disconnected already."""
        if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
            self._cut(f"{self.waiting_bytes} bytes are queued for it, {why}; it requests more than it reads")

    @property
    def counted_bytes(self) -> int:
        """Bytes queued for the peer, as counted by the server; 0 once it is disconnected."""
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            return 0
        return self._counted

    def _check_progress(self, now: float) -> None:
        """Disconnect a peer whose queued bytes exceed the limit and that has accepted none for ``write_timeout_s``."""
        waiting = self.waiting_bytes
        self._count(waiting)
        if self._patience.moves(self.protocol.framed_bytes):
            return
        for stream in list(self._waiters):
            stream.stalled()
        if self._patience.is_stuck(now, full=self.full()):
            self.cut_off(f"and it accepted none for {self.limits.write_timeout_s} s (write_timeout_s)")

    def close_when_written(self) -> None:
        """Close when all queued data is written; a peer that does not read gets a short time."""
        self._closing = True
        self._patience.write_began = trio.current_time()
        self.wake_writer()

    def prove(self, caller: object = None) -> None:
        """Note that a call has proven who the peer is; ``str(caller)`` names it."""
        self.caller = caller
        self.server.proven(self.connection_id)

    def end(self, reason: str, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        """End the connection with GOAWAY; by default because of what the peer does."""
        if self.protocol.terminated is None:
            log.info("connection %d of %s ends: %s", self.connection_id, self.peer, reason)
            self.protocol.terminate(reason, code)
            self.close_when_written()

    def check(self, now: float) -> None:
        """Enforce every timeout of the connection; the server calls this about once a second."""
        if self._counted or self._waiters:
            self._check_progress(now)
        for call in [call for call in self._calls.values() if call.deadline <= now]:
            call.expire()
        patience, established, in_block = self._patience, self.protocol.established, self.protocol.in_header_block
        why = patience.lost(now, closing=self._closing, established=established, in_header_block=in_block)
        if why is not None:
            self._cut(why)
        elif patience.pings(now, established=established, in_header_block=in_block):
            self.protocol.ping(b"keepaliv")
            self.wake_writer()

    def _cut(self, reason: str) -> None:
        """Cancel the connection and log why, once: its handlers may take a while to end."""
        if self._nursery is None or not self._nursery.cancel_scope.cancel_called:
            log.info("connection %d of %s is cut: %s", self.connection_id, self.peer, reason)
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def broken(self, what: str) -> None:
        """Log the exception being handled, and close this connection only."""
        log.exception(
            "connection %d of %s: %s",
            self.connection_id,
            self.peer,
            what,
            extra=log_event("connection.failed", repeating=True, connection=self.connection_id, peer=self.peer),
        )
        self._cut(what)

    def drain(self) -> None:
        """Announce that no new streams are accepted."""
        self.protocol.goaway("the broker is shutting down; reconnect")
        self.wake_writer()

    def end_streams(self) -> None:
        """Cancel running handlers, and calls not yet served. Their callers get an error that makes them reconnect."""
        error = BrokerDrainingError("the broker is shutting down; reconnect")
        for stream in self._streams.values():
            stream.abandon(error)
        for call in list(self._calls.values()):
            if not call.started:
                call.drop(error)

    @property
    def serves_calls(self) -> bool:
        """Whether there are unary calls to be answered."""
        return bool(self._calls)

    def drop_calls(self) -> None:
        """Fail unanswered unary calls. Their callers get an error that makes them reconnect."""
        error = BrokerDrainingError("the broker is shutting down; reconnect")
        for call in list(self._calls.values()):
            call.drop(error)

    # -- events

    def _on_request(self, event: RequestReceived) -> None:
        assert self._nursery is not None
        stream_id = event.stream_id
        method = self.server.methods.get(event.path)
        try:
            codec = choose_codec(event.content_type, self.server.codecs)
            if event.user_agent and not self.agent:
                self.agent = event.user_agent[:_MAX_AGENT_CHARS]
            if codec is not MSGPACK:
                self.foreign = True
                if self.server.draining.is_set():
                    raise BrokerDrainingError("the broker is shutting down; reconnect")
            refusal = self.server.refusal
            if refusal is not None and (method is None or not method.early):
                raise CallRefusedError(refusal)
            if method is None:
                raise UnimplementedError(f"method {event.path} does not exist on this port")
            if self.server.detour is not None and codec is not MSGPACK:
                method = self.server.detour(method, event.metadata)
        except DanubeError as exc:
            status, code, message, details = to_wire(exc)
            self.server.figures.call(event.path, known=method is not None).fail(status)
            self.protocol.send_trailers(
                stream_id, status, message, code, content_type=event.content_type, details=details
            )
            self.protocol.finish(stream_id)
            return
        deadline = math.inf if event.timeout_s is None else self._patience.last_read + event.timeout_s
        if method.start is not None:
            self._calls[stream_id] = UnaryCall(self, event, method, codec, deadline, self._patience.last_read)
            return
        context = Context(
            event.path,
            self.peer,
            self.connection_id,
            event.metadata,
            deadline,
            codec,
            event.authority,
            secure=self.secure,
            peer_certificate=self.peer_certificate,
            on_proven=self.prove,
        )
        stream = CallStream(self, stream_id, context)
        self._streams[stream_id] = stream
        self._nursery.start_soon(self._serve, stream, method, event.content_type)

    def _on_message(self, event: MessageReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.deliver(Message(self.protocol, self, event.stream_id, event.data, event.flow_size))
            return
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.deliver(event.data)

    def _on_end(self, event: EndOfStream) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.deliver_end()
            return
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.deliver_end(self._patience.last_read)

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._streams.get(event.stream_id) or self._calls.get(event.stream_id)
        if stream is not None:
            stream.abandon(None)

    def _on_failed(self, event: StreamFailed) -> None:
        stream = self._streams.get(event.stream_id) or self._calls.get(event.stream_id)
        if stream is not None:
            stream.abandon(event.error)

    def call_answered(self, stream_id: int) -> None:
        """Free the slot of a unary call that is answered or dropped."""
        call = self._calls.pop(stream_id)
        figures = self.server.figures.call(call.path)
        if call.status is Status.OK:
            figures.ok += 1
        else:
            figures.fail(call.status)
        figures.durations.observe(trio.current_time() - call.began)
        protocol = self.protocol
        protocol.finish(stream_id)
        if protocol.wants_write:
            self.wake_writer()
        self.server.stream_ended(self)

    # -- streams

    async def _serve(self, stream: CallStream, method: Method, content_type: str) -> None:
        assert method.handler is not None
        error: DanubeError | None = None
        settled = False
        scope = stream.scope
        began = self._patience.last_read
        scope.deadline = stream.context.deadline
        try:
            try:
                with scope:
                    if method.kind == "unary":
                        await self._serve_unary(stream, method, content_type)
                    else:
                        self.protocol.send_response_headers(stream.stream_id, content_type)
                        await method.handler(stream, stream.context)
            except Exception as exc:
                # Even a bug in a handler fails only its own call, not the connection or the broker.
                error = _own_error(exc)
                if error is None:
                    log.exception(
                        "the handler of %s failed",
                        method.path,
                        extra=log_event("call.failed", repeating=True, method=method.path),
                    )
                    error = InternalError(to_wire(exc).message)
            if scope.cancelled_caught and error is None:
                error = DeadlineExceededError(
                    f"{method.path} was not answered within the caller's deadline; try again with a longer one"
                )
            error = stream.failure or error
            settled = True
        finally:
            # Also if the whole connection is cancelled, and no peer is left to notify: the slot is freed only now.
            self._finish(stream, error, tell=settled and not stream.gone)
            figures = self.server.figures.call(method.path)
            if method.kind == "unary":
                figures.durations.observe(trio.current_time() - began)
            if stream.gone or not settled:
                figures.fail(Status.CANCELLED)
            elif error is not None:
                figures.fail(to_wire(error)[0])
            else:
                figures.ok += 1

    async def _serve_unary(self, stream: CallStream, method: Method, content_type: str) -> None:
        message = await stream.receive()
        if message is None:
            raise InvalidArgumentError(f"a call of {method.path} requires one request message, but has none")
        context = stream.context
        request = context.codec.decode(method.request_type, message.data)
        assert method.handler is not None
        response = await method.handler(request, context)
        self.protocol.send_response_headers(stream.stream_id, content_type)
        self.protocol.send_message(stream.stream_id, context.codec.encode(response))

    def _finish(self, stream: CallStream, error: DanubeError | None, *, tell: bool) -> None:
        protocol = self.protocol
        stream_id = stream.stream_id
        self._streams.pop(stream_id, None)
        self._waiters.pop(stream, None)
        if tell:
            if error is None:
                protocol.send_trailers(stream_id, Status.OK)
            else:
                status, code, message, details = to_wire(error)
                protocol.send_trailers(stream_id, status, message, code, details=details)
        protocol.finish(stream_id)
        if isinstance(error, PeerBlockedError):
            self.end(error.message)
        if protocol.wants_write:
            self.wake_writer()
        self.pass_room_on()
        self.server.stream_ended(self)


def _own_error(exc: Exception) -> DanubeError | None:
    # A nursery in a handler wraps exceptions into groups; if all are DanubeErrors, report the first one.
    if isinstance(exc, ExceptionGroup):
        errors = [_own_error(child) for child in exc.exceptions]
        return errors[0] if None not in errors else None
    return exc if isinstance(exc, DanubeError) else None


_DISPATCH: dict[type[Event], Callable[[ServerConnection, Any], None]] = {
    RequestReceived: ServerConnection._on_request,
    MessageReceived: ServerConnection._on_message,
    EndOfStream: ServerConnection._on_end,
    StreamReset: ServerConnection._on_reset,
    StreamFailed: ServerConnection._on_failed,
}
