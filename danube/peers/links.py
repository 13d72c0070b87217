"""All links of a broker: to others, over the network, and of others to this one, over the server of its own port.

::

    async with open_peers(own, secret, limits) as peers:
        peers.on_message("raft", take)
        await nursery.start(serve, listeners, [peers.service(), ...], limits)
        peers.send("b:6650", "raft", payload)

Links of one direction are connections of their own: this broker's link to another one is not used by the other one to
send. So each side decides by itself when to connect, and the loss of one direction is noticed by the side that sends.

At the end of the block all links are closed, in both directions, and no task or handler of theirs runs any more.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from danube.model.errors import ClosedError, LimitExceededError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.peers._contract import CallHandler, Lost, MessageHandler, MessageSink, Peer
from danube.peers._incoming import Handlers, IncomingLinks
from danube.peers._outgoing import Connect, OutgoingLink, connect_tcp
from danube.peers._outlet import check_size
from danube.peers._shared import Shared
from danube.peers.frames import check_channel
from danube.wire import Service

if TYPE_CHECKING:
    import ssl

__all__ = ["Connect", "WirePeers", "open_peers"]

_log = logging.getLogger("danube.peers")

CLOSING_TIMEOUT_S = 1.0
"""Time limit for handlers that shield themselves from the end of the links."""


class WirePeers:
    """Links over :mod:`danube.wire`: a :class:`danube.peers.Peers`. Use :func:`open_peers`."""

    def __init__(self, shared: Shared, connect: Connect, nursery: trio.Nursery) -> None:
        self._shared = shared
        self._connect = connect
        self._nursery = nursery
        self._links: dict[str, OutgoingLink] = {}
        self._handlers = Handlers()
        self._incoming = IncomingLinks(shared, self._handlers)
        self._listeners: list[Callable[[Lost], None]] = []
        self._closed = False
        self._is_full = False
        """Whether the log says that there are as many links as there may be."""

    def service(self) -> Service:
        """Return the methods for the server of the broker's port."""
        return self._incoming.service()

    @property
    def own(self) -> Peer:
        """See :attr:`danube.peers.Peers.own`."""
        return self._shared.own

    @property
    def incoming(self) -> list[Peer]:
        """The brokers that have links to this one."""
        return self._incoming.peers

    def identify(self, own: Peer) -> None:
        """See :meth:`danube.peers.Peers.identify`."""
        self._shared.own = own
        self._incoming.reopen_all(f"{own.name} has changed; open the link again")
        for link in self._links.values():
            link.restart()

    def require(self, level: int) -> None:
        """See :meth:`danube.peers.Peers.require`."""
        self._shared.own = msgspec.structs.replace(self._shared.own, required=level)

    # -- links to others

    def link(self, to: str) -> None:
        """See :meth:`danube.peers.Peers.link`."""
        self._link(to)

    def unlink(self, to: str) -> None:
        """See :meth:`danube.peers.Peers.unlink`."""
        link = self._links.pop(to, None)
        if link is not None:
            link.close()

    @property
    def links(self) -> Collection[str]:
        """The addresses to which links are kept, up or down."""
        return self._links.keys()

    def peer(self, to: str) -> Peer | None:
        """See :meth:`danube.peers.Peers.peer`."""
        link = self._links.get(to)
        return None if link is None else link.peer

    def send(self, to: str, channel: str, payload: bytes) -> bool:
        """See :meth:`danube.peers.Peers.send`."""
        check_size(payload, channel, self._shared.limits)
        if self._closed:
            return False
        try:
            link = self._link(to)
        except LimitExceededError as error:
            if not self._is_full:
                self._is_full = True
                _log.error(
                    "messages to the broker at %s are dropped: %s", to, error, extra=log_event("peers.links_full")
                )
            return False
        return link.send(channel, payload)

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """See :meth:`danube.peers.Peers.call`."""
        check_size(payload, channel, self._shared.limits)
        return await self._link(to).call(channel, payload, timeout_s)

    def _link(self, to: str) -> OutgoingLink:
        link = self._links.get(to)
        if link is None:
            if self._closed:
                raise ClosedError("the links of this broker are closed")
            most = self._shared.limits.max_peers
            if len(self._links) >= most:
                raise LimitExceededError(
                    f"there are links to {most} brokers, which is max_peers; raise it to link to {to}, too"
                )
            link = self._links[to] = OutgoingLink(to, self._shared, self._connect, self._lost)
            self._nursery.start_soon(link.run)
        return link

    # -- handlers

    def on_message(self, channel: str, handler: MessageHandler, *, strangers: bool = False) -> None:
        """See :meth:`danube.peers.Peers.on_message`."""
        check_channel(channel)
        self._handlers.on_message(channel, handler, strangers=strangers)

    def divert(self, channel: str, sink: MessageSink, *, strangers: bool = False) -> None:
        """See :meth:`danube.peers.Peers.divert`."""
        check_channel(channel)
        self._handlers.divert(channel, sink, strangers=strangers)

    def on_call(self, channel: str, handler: CallHandler, *, strangers: bool = False) -> None:
        """See :meth:`danube.peers.Peers.on_call`."""
        check_channel(channel)
        self._handlers.on_call(channel, handler, strangers=strangers)

    def complete(self) -> None:
        """See :meth:`danube.peers.Peers.complete`."""
        self._handlers.complete = True

    def on_lost(self, listener: Callable[[Lost], None]) -> None:
        """See :meth:`danube.peers.Peers.on_lost`."""
        self._listeners.append(listener)

    def _lost(self, lost: Lost) -> None:
        for listener in self._listeners:
            listener(lost)

    async def aclose(self) -> None:
        """Close all links, and wait until no handler runs, for at most ``CLOSING_TIMEOUT_S`` if cancelled."""
        self._closed = True
        for link in self._links.values():
            link.close()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_TIMEOUT_S):
            await self._incoming.close()


@asynccontextmanager
async def open_peers(
    own: Peer,
    secret: bytes | None,
    limits: Limits | None = None,
    *,
    connect: Connect | None = None,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    wall_s: Callable[[], float] = time.time,
    tls: Callable[[], ssl.SSLContext | None] | None = None,
) -> AsyncGenerator[WirePeers, None]:
    """Open the links of a broker, and close them at the end of the block.

    Args:
        own: this broker, as it describes itself to others.
        secret: of the cluster (:func:`danube.peers.secret.read_secret`); None: only brokers on this machine are linked,
            in both directions.
        limits: of the broker.
        connect: opens connections, instead of TCP.
        random_bytes: makes the nonces of hellos; must be unpredictable.
        wall_s: returns the Unix time in seconds; a link ends when the certificate of the other broker has expired.
        tls: returns, for each new link to a broker, what verifies its certificate; None: the link is opened without
            TLS. The proofs of the hello are needed in either case.
    """
    limits = limits or Limits()
    shared = Shared(own, secret, limits, random_bytes, wall_s, tls)

    async def connect_by_tcp(host: str, port: int) -> Any:
        return await connect_tcp(host, port, limits.peer_connect_timeout_s)

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        peers = WirePeers(shared, connect or connect_by_tcp, nursery)
        try:
            yield peers
        except Exception as error:  # noqa: BLE001 - raised again below: the nursery would wrap it into a group
            failure = error
        finally:
            await peers.aclose()  # ends all tasks of the nursery
    if failure is not None:
        raise failure
