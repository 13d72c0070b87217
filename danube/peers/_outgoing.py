"""The link from this broker to another one: connects, says hello, sends, and connects again when it breaks."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from msgspec.structs import replace

from danube.model.addresses import parse_address
from danube.model.errors import (
    CallRefusedError,
    ConnectionLostError,
    DanubeError,
    DeadlineExceededError,
    LimitExceededError,
    PeerRefusedError,
    UnavailableError,
    UnimplementedError,
)
from danube.model.log_events import log_event
from danube.peers._attempts import Attempts
from danube.peers._contract import Lost, Peer
from danube.peers._outlet import Outlet
from danube.peers._shared import Shared
from danube.peers.frames import CHANNEL, CHANNEL_HEADER, FRAME_OVERHEAD, LINK, LINK_HEADER, check_channel
from danube.peers.hello import MAX_HELLO_BYTES, Initiator, Linked, judge_certificate, may_connect
from danube.wire import Channel, ClientStream, connect_channel, connection_problem

__all__ = ["Connect", "OutgoingLink", "connect_tcp"]

Connect = Callable[[str, int], Awaitable[Any]]
"""Opens a byte stream (of Trio or anyio) to a host and port; OSError if that fails. The seam of the network."""

_log = logging.getLogger("danube.peers")

_MOST_SAID_FAILURES = 8
"""Reasons that the log tells for one outage of a link; one whose reasons change all the time must not fill it."""


async def connect_tcp(host: str, port: int, timeout_s: float) -> trio.SocketStream:
    """Connect to the first of a host's addresses that answers.

    Only connecting is limited, to ``timeout_s`` seconds an address. Finding the addresses of a name is not: it may take
    a thread, and the threads of attempts that were given up would accumulate.

    Raises:
        OSError: none of them answers; ConnectionRefusedError if all refuse.
    """
    failures: list[OSError] = []
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a valid name of a host: {error}") from error
    for family, kind, protocol, _, address in found:
        connection = trio.socket.socket(family, kind, protocol)
        try:
            with trio.fail_after(timeout_s):
                await connection.connect(address)
            return trio.SocketStream(connection)
        except trio.TooSlowError:
            connection.close()
            failures.append(TimeoutError(f"no answer within {timeout_s:g} s (peer_connect_timeout_s)"))
        except OSError as error:
            connection.close()
            failures.append(error)
        except BaseException:
            connection.close()
            raise
    # A refused port is a sign that no process is there, but only if no other address may lead to one.
    failures.sort(key=lambda failure: isinstance(failure, ConnectionRefusedError))
    raise failures[0]


class _Up:
    """A link that is up."""

    def __init__(self, channel: Channel, linked: Linked, nursery: trio.Nursery) -> None:
        self.channel = channel
        self.peer = linked.peer
        self.token = linked.token
        self.nursery = nursery
        self.outlets: dict[str, Outlet] = {}
        self.complained: set[str] = set()
        """Channels whose refusal was logged."""


class OutgoingLink:
    """A link to the broker at one address.

    Args:
        to: the address.
        shared: see :class:`~danube.peers._shared.Shared`.
        connect: opens connections.
        lost: is told that the broker may be dead.
    """

    def __init__(self, to: str, shared: Shared, connect: Connect, lost: Callable[[Lost], None]) -> None:
        self.to = to
        self._host, self._port = parse_address(to)
        self._shared = shared
        self._open_stream = connect
        self._lost = lost
        limits = shared.limits
        self._link_limits = replace(
            limits,
            keepalive_idle_s=limits.peer_keepalive_idle_s,
            keepalive_timeout_s=limits.peer_keepalive_timeout_s,
        )
        self._attempts = Attempts(limits.peer_reconnect_max_s, limits.peer_loss_window_s)
        self._up: _Up | None = None
        self._last_peer: Peer | None = None
        self._failure: DanubeError | None = None
        """Why the last attempt failed; None while the first attempt, or the first since the link broke, runs."""
        self._said_failures: set[str] = set()
        """What the log says of this outage: each reason once."""
        self._said_linked = False
        """Whether the log says that it is up."""
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._closed = False

    @property
    def peer(self) -> Peer | None:
        """The broker at the end; None while the link is down."""
        return None if self._up is None else self._up.peer

    # -- life

    async def run(self) -> None:
        """Keep the link up, until :meth:`close` or a cancellation."""
        while not self._closed:
            self._scope = scope = trio.CancelScope()
            with scope:
                await trio.sleep_until(await self._attempt())
            if scope.cancelled_caught and not self._closed:  # by restart()
                self._attempts.closed()
                self._failure = None

    def restart(self) -> None:
        """Close the link, and open it again at once."""
        self._up = None
        self._scope.cancel()

    def close(self) -> None:
        """Close the link permanently."""
        self._closed = True
        self._up = None
        self._failure = CallRefusedError(f"the link to {self.to} was closed")
        self._notify()
        self._scope.cancel()

    async def _attempt(self) -> float:
        """Open the link, and keep it up as long as possible; return when to try again."""
        shared, attempts = self._shared, self._attempts
        limits = shared.limits
        began = trio.current_time()
        pause_s: float | None = None
        try:
            may_connect(shared.own, shared.secret, self.to)
            async with connect_channel(
                self._host,
                self._port,
                self._link_limits,
                connect=self._connect,
                connect_timeout_s=limits.handshake_timeout_s,
                tls=shared.tls(),
            ) as channel:
                reason = await self._live(channel)
            began = trio.current_time()
            attempts.broke(began)
            if reason is not None:
                self._said_linked = False
                _log.info("the link to %s broke: %s", self.to, reason)
            return began + attempts.next_pause_s(began)
        except (PeerRefusedError, UnimplementedError) as error:
            failure: DanubeError = error
            if isinstance(error, UnimplementedError):
                failure = PeerRefusedError(f"the broker at {self.to} takes no links: it was not started with --peers")
            shared.log_refusal("the link to", self._host, self.to, failure)
            pause_s = limits.peer_refused_pause_s
            attempts.answered()
        except DanubeError as error:
            failure = error
            self._note_refused_port(error)
        self._log_failure(connection_problem(failure, self.to))
        self._failure = failure
        self._notify()
        return began + (attempts.next_pause_s(trio.current_time()) if pause_s is None else pause_s)

    def _log_failure(self, problem: str) -> None:
        """Log a problem that this outage has not had: first nothing listens, say, and then the certificate is wrong."""
        self._said_linked = False
        said = self._said_failures
        if problem in said or len(said) == _MOST_SAID_FAILURES:
            return
        said.add(problem)
        _log.warning("no link to %s, retrying: %s", self.to, problem, extra=log_event("peers.no_link", address=self.to))

    def _note_refused_port(self, error: DanubeError) -> None:
        peer, attempts = self._last_peer, self._attempts
        if not isinstance(error.__cause__, ConnectionRefusedError):
            attempts.failed()
        elif attempts.refused(trio.current_time()) and peer is not None:
            _log.warning(
                "%s may be dead: its link broke, and its port refuses connections",
                peer.name,
                extra=log_event("peers.link_broken", broker=peer.name),
            )
            self._lost(Lost(self.to, peer))

    async def _connect(self) -> Any:
        return await self._open_stream(self._host, self._port)

    async def _live(self, channel: Channel) -> str | None:
        """Say hello, keep the link up, and return why it broke; None: the other broker wants it opened again."""
        shared, limits = self._shared, self._shared.limits
        async with channel.open_stream(LINK, max_message_bytes=MAX_HELLO_BYTES) as stream:
            linked, certificate = None, channel.peer_certificate
            with trio.move_on_after(limits.handshake_timeout_s):
                linked = await self._hello(stream)
            if linked is None:
                raise ConnectionLostError(
                    f"{self.to} did not finish the hello within {limits.handshake_timeout_s} s (handshake_timeout_s)"
                )
            refusal = judge_certificate(linked.peer, certificate)
            if refusal:
                raise PeerRefusedError(refusal)
            async with trio.open_nursery() as nursery:
                self._up = _Up(channel, linked, nursery)
                self._last_peer = linked.peer
                self._attempts.linked(trio.current_time())
                self._failure = None
                self._said_failures.clear()
                self._notify()
                if not self._said_linked:
                    self._said_linked = True
                    _log.info("linked to %s", linked.peer.name)
                try:
                    await shared.until_expired(stream.receive, linked.peer, certificate)
                    return "it was closed there"
                except CallRefusedError:
                    return None
                except DanubeError as error:
                    return error.message
                finally:
                    self._up = None
                    nursery.cancel_scope.cancel()

    async def _hello(self, stream: ClientStream) -> Linked:
        shared = self._shared
        initiator = Initiator(shared.own, shared.secret, shared.nonce(), self.to, shared.lives)
        stream.send_nowait(initiator.greet())
        stream.send_nowait(initiator.prove(await self._answer(stream)))
        return initiator.finish(await self._answer(stream))

    async def _answer(self, stream: ClientStream) -> bytes:
        message = await stream.receive()
        if message is None:
            raise ConnectionLostError(f"{self.to} closed the link during the hello")
        message.release()
        return message.data

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # -- use

    def send(self, channel: str, payload: bytes) -> bool:
        """See :meth:`danube.peers.Peers.send`."""
        up = self._up
        if up is None:
            return False
        try:
            return self._outlet(up, channel).send(payload)
        except UnavailableError:
            return False  # the connection has just ended

    async def call(self, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """See :meth:`danube.peers.Peers.call`."""
        with trio.move_on_after(timeout_s) as patience:
            while (up := self._up) is None:
                if self._failure is not None:
                    problem = connection_problem(self._failure, self.to)
                    raise CallRefusedError(f"there is no link to the broker at {self.to}: {problem}")
                await self._changed.wait()
            return await self._outlet(up, channel).call(payload, patience.deadline)
        raise DeadlineExceededError(
            f"{self.to} did not answer a call on the channel {channel!r} within {timeout_s:g} s; try again"
        )

    def _outlet(self, up: _Up, name: str) -> Outlet:
        outlet = up.outlets.get(name)
        if outlet is None or outlet.over:
            check_channel(name)
            limits = self._shared.limits
            if outlet is None and len(up.outlets) >= limits.max_peer_channels:
                raise LimitExceededError(
                    f"the link to {self.to} has {len(up.outlets)} channels, and max_peer_channels is"
                    f" {limits.max_peer_channels}; use fewer channels, or raise it"
                )
            stream = up.channel.open_stream(
                CHANNEL,
                metadata={LINK_HEADER: up.token, CHANNEL_HEADER: name},
                max_message_bytes=limits.max_peer_message_bytes + FRAME_OVERHEAD,
            )
            outlet = up.outlets[name] = Outlet(name, stream, limits)
            up.nursery.start_soon(outlet.run, lambda error: self._channel_ended(up, name, error))
        return outlet

    def _channel_ended(self, up: _Up, name: str, error: DanubeError) -> None:
        ended_with_link = isinstance(error, ConnectionLostError | CallRefusedError)
        if up is self._up and not up.channel.closed and name not in up.complained and not ended_with_link:
            up.complained.add(name)
            _log.warning(
                "%s ended the channel %r: %s",
                up.peer.name,
                name,
                error,
                extra=log_event("peers.channel_ended", repeating=True, broker=up.peer.name, channel=name),
            )
