"""The HTTP server: accepts connections on listeners, bounds them, and ends them when it drains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.http._connection import HttpConnection
from danube.http._dialect import PLAIN, Dialect
from danube.http._messages import Handler
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.wire._transport import transport_of
from danube.wire.server import peer_name

if TYPE_CHECKING:
    from danube.wire._tls_door import TlsDoor
    from danube.wire.tls import ServerTls

__all__ = ["HttpServer"]

_CHECK_INTERVAL_S: Final = 1.0
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

log = logging.getLogger("danube.http")


class HttpServer:
    """Serves HTTP/1.1 on listeners until it is cancelled or drained.

    Args:
        handler: answers the requests.
        limits: of connections and requests; their names begin with ``http_``, or are those of all servers.
        tls: what it presents; None: it serves without TLS. Whoever owns it renews it.
        wall_s: returns the Unix time in seconds, for the header ``Date``; None: it is left out.
        headers: of each answer, also of those that the server gives itself.
        dialect: how targets are read, and problems worded.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits | None = None,
        *,
        tls: ServerTls | None = None,
        wall_s: Callable[[], float] | None = None,
        headers: Sequence[tuple[str, str]] = (),
        dialect: Dialect = PLAIN,
    ) -> None:
        self.handler = handler
        self.dialect = dialect
        self.limits = limits or Limits()
        self.blocks: Callable[[str], bool] = lambda peer: False
        """Whether an address gets no connections; may be changed at any time."""
        self.draining = False
        """Whether connections end after the request that they are serving."""
        self.event_streams = 0
        """Open streams of events."""
        self.received_bytes = 0
        """Bytes of HTTP that arrived on all connections, those that have ended included."""
        self.sent_bytes = 0
        self._headers = tuple(headers)
        self._wall_s = wall_s
        # A dict, because the order of a set depends on addresses, so that runs could not be reproduced.
        self._connections: dict[HttpConnection, None] = {}
        self._accepting = trio.CancelScope()
        self._changed = trio.Event()
        self._next_connection_id = 1
        self._refused = 0
        self._door: TlsDoor | None = None
        if tls is not None:
            from danube.wire._tls_door import TlsDoor

            self._door = TlsDoor(tls, self.limits, for_http=True)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def common_headers(self) -> Sequence[tuple[str, str]]:
        """Return the headers of each answer."""
        if self._wall_s is None:
            return self._headers
        return (*self._headers, ("Date", http_date(self._wall_s())))

    async def run(
        self,
        listeners: Sequence[trio.abc.Listener[Any]],
        *,
        task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve; ``task_status`` is given the server once it listens.

        Returns after :meth:`drain`. Cancelling it closes listeners and connections at once.
        """
        async with trio.open_nursery() as connections, trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._accept, listeners, connections)
            task_status.started(self)
            while not self._accepting.cancel_called or self._connections:
                await self._changed.wait()
            nursery.cancel_scope.cancel()

    async def _accept(self, listeners: Sequence[trio.abc.Listener[Any]], connections: trio.Nursery) -> None:
        with self._accepting:
            await trio.serve_listeners(self.serve_stream, list(listeners), handler_nursery=connections)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection on any byte stream, until it ends; :meth:`run` must run concurrently."""
        peer = peer_name(stream)
        if self._accepting.cancel_called or self.blocks(peer) or not self._make_room():
            await trio.aclose_forcefully(stream)
            return
        transport = transport_of(stream)
        received, secure, certificate = b"", False, None
        if self._door is not None:
            try:
                admitted = await self._door.admit(transport, peer)
            except Exception:
                # It must end itself only.
                log.exception(
                    "a connection of %s failed before it was admitted",
                    peer,
                    extra=log_event("http.connection_failed", repeating=True, peer=peer),
                )
                return
            if admitted is None:
                return
            transport, received, secure, certificate = admitted
        connection = HttpConnection(
            self,
            transport,
            self._next_connection_id,
            peer,
            received=received,
            secure=secure,
            peer_certificate=certificate,
        )
        self._next_connection_id += 1
        self._connections[connection] = None
        try:
            await connection.run()
        except Exception:
            # It must end itself only.
            log.exception(
                "connection %d of %s failed",
                connection.connection_id,
                peer,
                extra=log_event("http.connection_failed", repeating=True, peer=peer),
            )
        finally:
            del self._connections[connection]
            self._notify()

    def _make_room(self) -> bool:
        """Return whether there is room for one more connection; the oldest one without a request may have to go."""
        coming = 0 if self._door is None else self._door.waiting
        most = self.limits.http_max_connections
        if len(self._connections) + coming < most:
            return True
        oldest = next((each for each in self._connections if not each.busy and not each.scope.cancel_called), None)
        if oldest is not None:
            oldest.scope.cancel()
            return len(self._connections) + coming < most + max(1, most // 4)
        self._refused += 1
        if self._refused == 1:
            self._log_refused()
        return False

    def _log_refused(self) -> None:
        most = self.limits.http_max_connections
        log.warning(
            "%d HTTP connections were refused: http_max_connections is %d",
            self._refused,
            most,
            extra=log_event("http.refused"),
        )

    async def _look(self) -> None:
        while True:
            await trio.sleep(_CHECK_INTERVAL_S)
            if self._refused > 1:
                self._refused -= 1  # the first one was logged before
                self._log_refused()
            self._refused = 0
            if self._door is not None:
                self._door.look(trio.current_time())

    def begin_drain(self) -> None:
        """End streamed answers and idle connections; the others end after the request that they are serving.

        New connections are accepted until :meth:`drain`, so that the health of a broker that drains can be asked for.
        """
        self.draining = True
        for connection in list(self._connections):
            if connection.streaming is not None:
                connection.streaming.cancel()
            elif not connection.busy:
                connection.scope.cancel()

    async def drain(self, settle_s: float) -> None:
        """Stop serving: no new connections; requests have ``settle_s`` seconds to end. :meth:`run` returns then."""
        self.begin_drain()
        self._accepting.cancel()
        if self._door is not None:
            self._door.close()
        self._notify()
        with trio.move_on_after(settle_s):
            while self._connections:
                await self._changed.wait()
        for connection in list(self._connections):
            connection.scope.cancel()
        while self._connections:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def http_date(unix_s: float) -> str:
    """Return a time as HTTP writes it: ``Thu, 26 Nov 2026 10:51:14 GMT``, whatever the locale is."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    return (
        f"{_DAYS[moment.weekday()]}, {moment.day:02} {_MONTHS[moment.month - 1]} {moment.year:04}"
        f" {moment.hour:02}:{moment.minute:02}:{moment.second:02} GMT"
    )
