"""The Trio server: accepts connections on listeners, and calls handlers.

One task accepts, one checks the timeouts of all connections, and a poller (:mod:`danube.loop.poller`) reads and writes
for all of them. A handler's exception only ends its own call, with a status.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio
from h2.errors import ErrorCodes

from danube.loop import Poller
from danube.model.errors import ConfigurationError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.wire._figures import ServerFigures
from danube.wire._server_connection import ServerConnection
from danube.wire._transport import transport_of
from danube.wire.codec import DEFAULT_CODECS, Codec
from danube.wire.service import Method, Service

if TYPE_CHECKING:
    from danube.model.tls import PeerCertificate
    from danube.wire._tls_door import TlsDoor
    from danube.wire.tls import ServerTls

__all__ = ["Server", "peer_name", "serve"]

CHECK_INTERVAL_S = 1.0
"""Interval of checking timeouts: they take effect up to this much late."""

LINGER_S = 0.5
"""Seconds between the end of a foreign client's calls and the end of its connection when the broker drains."""

log = logging.getLogger("danube.wire")


class Server:
    """Serves methods on listeners until it is cancelled or drained. Use :func:`serve`, or :meth:`run` yourself.

    Args:
        services: its methods.
        limits: of its connections and calls.
        codecs: by content subtype.
        refusal: why all calls are refused until :meth:`open`, with a CallRefusedError, except those of methods that are
            :attr:`Method.early`. None: the server is open.
        poller: reads its sockets; it must run before :meth:`run` and longer. None: the server runs one of its own.
        tls: what it presents to its clients. None: it serves without TLS. It renews itself by
            :meth:`~danube.wire.tls.ServerTls.watch`, which its owner runs.
    """

    def __init__(
        self,
        services: Iterable[Service],
        limits: Limits | None = None,
        *,
        codecs: Mapping[str, Codec] = DEFAULT_CODECS,
        refusal: str | None = None,
        poller: Poller | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.codecs = codecs
        self.methods: dict[str, Method] = {}
        self.refusal = refusal
        """Why calls are refused now; may be changed until the server is open."""
        self._add(services)
        self.http_url = ""
        """Where peers that speak HTTP/1 are sent; empty: nowhere."""
        self.draining = trio.Event()
        """Set when :meth:`drain` begins, for handlers of long streams."""
        self.detour: Callable[[Method, Mapping[str, str]], Method] | None = None
        """Chooses, by the headers of a call of a foreign client, what serves it instead of its method; None: nothing
        does. It must not raise."""
        self.linger_s = LINGER_S
        """Seconds for which :meth:`drain` keeps connections of foreign clients open after their calls have ended."""
        # A dict, because the order of a set depends on addresses, so that runs could not be reproduced.
        self._connections: dict[ServerConnection, None] = {}
        self._accepting = trio.CancelScope()
        self._next_connection_id = 1
        self._refused = 0
        """Connections refused since the last check of timeouts."""
        self.blocks: Callable[[str], bool] = lambda peer: False
        """Whether an address gets no connections; may be changed at any time."""
        self.bounds_unproven = False
        """Whether connections without a proof of who calls are bounded; see ``Limits.max_unproven_connections``."""
        self._unproven: dict[int, ServerConnection] = {}
        """By connection id, the oldest first."""
        self._blocked = 0
        """Connections of such addresses closed since the last check of timeouts."""
        self._changed = trio.Event()
        self._unflushed: list[ServerConnection] = []
        self.waiting_bytes = 0
        """Bytes queued for the peers of all connections, as last reported by each connection."""
        self.pressed = False
        """Whether they have reached ``max_send_buffer_bytes_in_all``, and have not yet fallen far below it."""
        self._crowded_bytes = min(
            self.limits.max_send_buffer_bytes,
            self.limits.max_send_buffer_bytes_per_connection,
            self.limits.max_send_buffer_bytes_in_all,
        )
        self.least_crowded_bytes = self._crowded_bytes
        """A connection with fewer queued bytes is never crowded."""
        self.received_bytes = 0
        """Bytes that arrived on all connections, those that have ended included."""
        self.sent_bytes = 0
        self.figures = ServerFigures()
        """What it counts of its calls and connections."""
        self.poller = poller or Poller()
        """Reads the sockets, if the system supports it."""
        self._owns_poller = poller is None
        self._door: TlsDoor | None = None
        if tls is not None:
            from danube.wire._tls_door import TlsDoor

            self._door = TlsDoor(tls, self.limits)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def unproven(self) -> int:
        """Open connections on which no call has proven who calls; 0 while these are not bounded."""
        return len(self._unproven)

    def connection_list(self) -> list[ServerConnection]:
        """Return the open connections, in the order of their ids."""
        return list(self._connections)

    def end_connection(self, connection_id: int, reason: str) -> bool:
        """End a connection with GOAWAY, as an operator wishes; return False if it does not exist."""
        for connection in self._connections:
            if connection.connection_id == connection_id:
                connection.end(reason, ErrorCodes.NO_ERROR)
                return True
        return False

    def open(self, services: Iterable[Service]) -> None:
        """Serve these methods, too, and no longer refuse any."""
        self._add(services)
        self.refusal = None

    def _add(self, services: Iterable[Service]) -> None:
        for service in services:
            for path, method in service.items():
                if path != method.path or path in self.methods:
                    raise ConfigurationError(f"method {method.path} is registered twice, or under the path {path}")
                self.methods[path] = method

    def message_limit(self, path: str) -> int:
        """Return the largest request message in bytes for a path."""
        method = self.methods.get(path)
        limit = method.max_request_bytes if method is not None else None
        return limit if limit is not None else self.limits.max_request_bytes

    async def run(
        self,
        listeners: Sequence[trio.abc.Listener[Any]],
        *,
        task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve; ``task_status`` is given the server once it listens.

        Returns after :meth:`drain`. Cancelling it closes listeners and connections at once.

        Raises:
            OutOfDescriptorsError: no file descriptor is left for polling sockets. The listeners remain open.
        """
        if self._owns_poller:
            self.poller.open()
        async with trio.open_nursery() as connections, trio.open_nursery() as nursery:
            if self._owns_poller:
                nursery.start_soon(self.poller.run)
            nursery.start_soon(self._check_timeouts)
            nursery.start_soon(self._accept, listeners, connections)
            task_status.started(self)
            await self.draining.wait()
            while self._connections or not self._accepting.cancel_called:
                await self._changed.wait()
            nursery.cancel_scope.cancel()

    async def _accept(self, listeners: Sequence[trio.abc.Listener[Any]], connections: trio.Nursery) -> None:
        if not listeners:
            return  # connections are passed to serve_stream()
        with self._accepting:
            await trio.serve_listeners(self.serve_stream, list(listeners), handler_nursery=connections)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection on any byte stream, until it ends; :meth:`run` must run concurrently."""
        door = self._door
        coming = 0 if door is None else door.waiting
        if len(self._connections) + coming >= self.limits.max_connections or self.draining.is_set():
            self._refused += 1
            self.figures.refuse("draining" if self.draining.is_set() else "max_connections")
            if self._refused == 1:
                self._log_refused()  # the first refusal is logged at once, later ones once per second
            await trio.aclose_forcefully(stream)
            return
        peer = peer_name(stream)
        if self.blocks(peer):
            self._blocked += 1
            self.figures.refuse("blocked")
            await trio.aclose_forcefully(stream)
            return
        transport = transport_of(stream)
        if door is None:
            connection = ServerConnection(self, transport, self._next_connection_id, peer)
        else:
            try:
                admitted = await door.admit(transport, peer)
            except Exception:
                # As below: it must end one connection only.
                log.exception(
                    "a connection of %s failed before it was admitted",
                    peer,
                    extra=log_event("connection.failed", repeating=True, peer=peer),
                )
                return
            if admitted is None:
                return
            connection = ServerConnection(
                self,
                admitted.transport,
                self._next_connection_id,
                peer,
                received=admitted.received,
                secure=admitted.secure,
                peer_certificate=admitted.certificate,
            )
        await self._serve(connection)

    async def serve_inner(
        self,
        stream: trio.abc.Stream,
        peer: str,
        *,
        secure: bool = False,
        peer_certificate: PeerCertificate | None = None,
    ) -> None:
        """Serve a stream within this process, on behalf of a peer that another server has; as :meth:`serve_stream`.

        Args:
            stream: carries plain HTTP/2, also if this server's own connections use TLS.
            peer, secure, peer_certificate: of the connection that the other server has.
        """
        if len(self._connections) >= self.limits.max_connections or self.draining.is_set():
            await trio.aclose_forcefully(stream)
            return
        await self._serve(
            ServerConnection(
                self,
                transport_of(stream),
                self._next_connection_id,
                peer,
                secure=secure,
                peer_certificate=peer_certificate,
            )
        )

    async def _serve(self, connection: ServerConnection) -> None:
        self._next_connection_id += 1
        self._connections[connection] = None
        if self.bounds_unproven:
            self._bound_unproven(connection)
        try:
            await connection.run()
        except Exception:
            # A bug here must end one connection only; serve_listeners would propagate the exception.
            log.exception(
                "connection %d of %s failed",
                connection.connection_id,
                connection.peer,
                extra=log_event(
                    "connection.failed", repeating=True, connection=connection.connection_id, peer=connection.peer
                ),
            )
        finally:
            self._connections.pop(connection, None)
            self.figures.ended(connection.kind, connection.received_bytes, connection.sent_bytes)
            self._unproven.pop(connection.connection_id, None)
            self._notify()

    def _bound_unproven(self, connection: ServerConnection) -> None:
        """Count a connection as unproven; if there are too many, the oldest of them ends."""
        self._unproven[connection.connection_id] = connection
        most = min(self.limits.max_unproven_connections, max(1, self.limits.max_connections // 2))
        if len(self._unproven) > most:
            oldest = self._unproven.pop(next(iter(self._unproven)))
            self.figures.refuse("unproven")
            oldest.end(f"{most} newer ones have not proven who calls, either (max_unproven_connections)")

    def proven(self, connection_id: int) -> None:
        """Connection: a call on it has proven who calls."""
        self._unproven.pop(connection_id, None)

    def stream_ended(self, connection: ServerConnection) -> None:
        """Connection: one of its streams has ended."""
        if self.draining.is_set():
            self._notify()

    def flush_soon(self, connection: ServerConnection) -> None:
        """Connection: schedule a flush of its queued data."""
        if not self._unflushed:
            self.poller.soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        # Data queued in one round costs one system call for each connection.
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    def waiting_changed(self, more_bytes: int) -> None:
        """Connection: the bytes queued for its peer have changed by this much."""
        self.waiting_bytes = waiting = self.waiting_bytes + more_bytes
        most = self.limits.max_send_buffer_bytes_in_all
        if not self.pressed:
            if waiting >= most:
                self.pressed, self.least_crowded_bytes = True, 1
                log.warning(
                    "%d bytes are queued for peers that do not read, and max_send_buffer_bytes_in_all is %d: peers with"
                    " queued data get no more",
                    waiting,
                    most,
                    extra=log_event("connections.unread_bytes"),
                )
        elif waiting > 2 * most:
            # Many peers may each have little data queued, so disconnect those with the most.
            worst = max(self._connections, key=lambda connection: connection.counted_bytes)
            worst.cut_off(f"more than for any other, and {waiting} for all")
        elif waiting < most - most // 4:
            self.pressed, self.least_crowded_bytes = False, self._crowded_bytes
            for connection in self._connections:
                connection.pass_room_on()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _check_timeouts(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            now = trio.current_time()
            if self._refused > 1:
                self._refused -= 1  # the first refusal was logged before
                self._log_refused()
            self._refused = 0
            if self._blocked:
                log.info("%d connections of blocked addresses were closed", self._blocked)
                self._blocked = 0
            if self._door is not None:
                self._door.look(now)
            for connection in list(self._connections):
                connection.check(now)

    def _log_refused(self) -> None:
        if self.draining.is_set():
            log.info("%d connections were refused: the broker is shutting down", self._refused)
        else:
            log.warning(
                "%d connections were refused: %d are open, and max_connections is %d",
                self._refused,
                len(self._connections),
                self.limits.max_connections,
                extra=log_event("connections.refused"),
            )

    async def drain(self, grace_s: float, settle_s: float = 0.0) -> None:
        """Stop serving without breaking a call that can still end.

        No new connections and streams are accepted; open streams have ``grace_s`` seconds to end. The others are
        cancelled and their callers get UNAVAILABLE (``broker-draining``), so that they reconnect. Unary calls that a
        plain function has begun to serve have ``settle_s`` more: they cannot be cancelled, and a caller that gets an
        error would repeat work that is done. Returns when every connection is closed; :meth:`run` returns then, too.

        Danube's own clients get GOAWAY at once. Foreign clients may treat a GOAWAY, or the end of the connection, as a
        permanent failure if it arrives together with the ends of their streams. So their streams end first. For
        :attr:`linger_s` seconds, or until they disconnect, new calls are answered with UNAVAILABLE; then they get
        GOAWAY, and the connection ends.

        Connections that are to outlast it (:meth:`ServerStream.outlast`) stay as they are, until :meth:`run` is
        cancelled.
        """
        self.draining.set()
        self._accepting.cancel()
        if self._door is not None:
            self._door.close()
        for connection in self._leaving():
            if not connection.foreign:
                connection.drain()
        with trio.move_on_after(grace_s):
            while not all(connection.idle for connection in self._leaving()):
                await self._changed.wait()
        for connection in self._leaving():
            connection.end_streams()
        leave_at = trio.current_time() + self.linger_s
        with trio.move_on_after(settle_s):
            while any(connection.serves_calls for connection in self._leaving()):
                await self._changed.wait()
        for connection in self._leaving():
            connection.drop_calls()
        # Handlers may shield work that must settle; the check of timeouts bounds the writing.
        while not all(connection.idle for connection in self._leaving()):
            await self._changed.wait()
        with trio.move_on_at(leave_at):
            while any(connection.foreign for connection in self._leaving()):
                await self._changed.wait()
        for connection in self._leaving():
            connection.drain()
            connection.close_when_written()
        while self._leaving():
            await self._changed.wait()
        self._notify()

    def _leaving(self) -> list[ServerConnection]:
        """Return the connections that end with a drain."""
        return [connection for connection in self._connections if not connection.lasting]


async def serve(
    listeners: Sequence[trio.abc.Listener[Any]],
    services: Iterable[Service],
    limits: Limits | None = None,
    *,
    codecs: Mapping[str, Codec] = DEFAULT_CODECS,
    tls: ServerTls | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``services`` on ``listeners`` until cancelled or drained. ``tls`` as of :class:`Server`.

    ``server = await nursery.start(serve, ...)`` returns the :class:`Server`, whose :meth:`Server.drain` ends it
    gracefully.
    """
    await Server(services, limits, codecs=codecs, tls=tls).run(listeners, task_status=task_status)


def peer_name(stream: trio.abc.Stream) -> str:
    """Return the address of a stream's peer, ``host:port``; of one that is no socket, the name of its type."""
    transport = getattr(stream, "transport_stream", stream)
    socket = getattr(transport, "socket", None)
    if socket is None:
        return type(stream).__name__
    try:
        name = socket.getpeername()
    except OSError:
        return "(gone)"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else (str(name) or "unix")
