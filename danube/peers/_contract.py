"""Links to the other brokers of a cluster, as floors that know nothing of the wire see them. Pure.

A link leads from this broker to the broker at one address (``host:port``). It carries one-way messages and calls, each
on a *channel*: a name that the floors above choose, for instance ``raft`` or ``raft-snapshot``. The bytes are opaque.
Both directions between two brokers are two links: this broker sends on its own link, and receives on the other's.

* **Messages** (:meth:`Peers.send`) may be lost, and are never repeated. Those of one channel and one link arrive in
  order, and are handled one at a time; a handler that waits stops its own channel only. The sender's queue is bounded
  (``peer_queue_messages``, ``peer_queue_bytes``); a message beyond it, or without a link, is dropped.
* **Calls** (:meth:`Peers.call`) are answered, or raise. They run concurrently, and in no order.
* **Channels do not delay each other**, except by the bytes of the socket. Send large messages (pieces of a snapshot)
  on a channel of their own, so that heartbeats pass them.

A link is up once both brokers have proven that they belong to the same cluster (:mod:`danube.peers.hello`). It is
opened by its first use, and reconnects until it is unlinked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

__all__ = ["CallHandler", "Lost", "MessageHandler", "MessageSink", "Peer", "Peers"]


class Peer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A broker as it describes itself in its hello, or this broker itself. Fields are only appended, with a default."""

    cluster: str
    """Name of the cluster."""
    identity: str
    """Identity of its data directory: random, and never changed."""
    life: int
    """Number of its start: 1, 2, ..."""
    address: str
    """``host:port`` at which other brokers reach it: where to send an answer."""
    level: int
    """Highest feature level that it supports."""
    incarnation: int = 0
    """Identity of its cluster, 64 bits; 0: it is not a member of a cluster yet."""
    required: int = 0
    """Feature level of its cluster: brokers that support less do not join. 0: it is not a member."""
    broker: int = 0
    """Its number in the cluster, according to its certificate (3 for ``b3``); 0: it has none that says so."""
    member: int | None = None
    """Its id in the Raft group, if it has one."""

    @property
    def name(self) -> str:
        """The broker as messages to people name it: ``broker b2 at b:6650``."""
        return f"broker b{self.broker} at {self.address}" if self.broker else f"the broker at {self.address}"


class Lost(msgspec.Struct, frozen=True):
    """A hint that the process at the end of a link is dead: its link broke, and its port then refused two connections.

    Only a hint: a broker that restarts at once is reported, too. A broker whose machine is unreachable is not.
    """

    address: str
    """The address of the link."""
    peer: Peer
    """The broker to which the link led."""


MessageHandler = Callable[[Peer, bytes], Awaitable[None]]
"""Handles one message of a broker. An exception is logged, and the message is dropped."""
MessageSink = Callable[[Peer, bytes], None]
"""Takes one message of a broker, without waiting. An exception is logged, and the message is dropped."""
CallHandler = Callable[[Peer, bytes], Awaitable[bytes]]
"""Answers one call of a broker. A DanubeError is raised at the caller. It is cancelled when the link ends, or the
caller's deadline passes."""


class Peers(Protocol):
    """All links of this broker, and the handlers for those of other brokers."""

    @property
    def own(self) -> Peer:
        """This broker, as it describes itself to others."""
        ...

    def identify(self, own: Peer) -> None:
        """Change how this broker describes itself, for example once it belongs to a cluster.

        All links, in both directions, are closed and opened again, without :class:`Lost`.
        """
        ...

    def require(self, level: int) -> None:
        """Refuse brokers that support less than a feature level, from the next link on."""
        ...

    def link(self, to: str) -> None:
        """Open a link to an address (``host:port``) and keep it, until :meth:`unlink`. Does nothing if there is one.

        Raises:
            ConfigurationError: the address is invalid.
            LimitExceededError: there are ``max_peers`` links.
        """
        ...

    def unlink(self, to: str) -> None:
        """Close the link to an address, without :class:`Lost`; calls on it fail. Does nothing if there is none."""
        ...

    def peer(self, to: str) -> Peer | None:
        """Return the broker at the end of a link; None while the link is down."""
        ...

    def send(self, to: str, channel: str, payload: bytes) -> bool:
        """Queue a message, and return at once: False if it was dropped, because the link is down or its queue full.

        Opens the link if there is none (see :meth:`link`); that message is dropped. It is dropped as well if there are
        links to ``max_peers`` other brokers.

        Raises:
            MessageTooLargeError: the payload is larger than ``max_peer_message_bytes``.
        """
        ...

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the handler of a channel, and return its answer. Opens the link if there is none (see :meth:`link`).

        It waits for the link while its first attempt to connect is in progress; later it fails at once while the link
        is down. Cancelling it cancels the handler.

        Raises:
            CallRefusedError: the link is down, so the call was not executed.
            DeadlineExceededError: no answer within ``timeout_s`` seconds; the call may be executed or not.
            ConnectionLostError: the link broke meanwhile; the call may be executed or not.
            MessageTooLargeError: the payload is larger than ``max_peer_message_bytes``.
            DanubeError: what the handler raised.
        """
        ...

    def on_message(self, channel: str, handler: MessageHandler, *, strangers: bool = False) -> None:
        """Handle the messages of a channel.

        Args:
            channel: its name: 1 to 40 of ``a-z 0-9 -``.
            handler: replaces the one before; one task for each broker and channel calls it.
            strangers: whether it takes messages while either broker belongs to no cluster. They are dropped otherwise.
        """
        ...

    def divert(self, channel: str, sink: MessageSink, *, strangers: bool = False) -> None:
        """Pass the messages of a channel to a plain function as they arrive, in the connection's own turn of the loop.

        For messages that are waited for: no task is woken. It takes the place of :meth:`on_message`, whose arguments it
        has.
        """
        ...

    def on_call(self, channel: str, handler: CallHandler, *, strangers: bool = False) -> None:
        """Answer the calls of a channel; arguments as in :meth:`on_message`.

        Calls are refused with PERMISSION_DENIED where messages are dropped.
        """
        ...

    def complete(self) -> None:
        """All channels of this broker have their handlers now.

        Until then, callers of an unknown channel are refused with CallRefusedError, because this broker is starting;
        from now on with UnimplementedError, because its version does not know the channel.
        """
        ...

    def on_lost(self, listener: Callable[[Lost], None]) -> None:
        """Call a plain function, which must not raise, for each :class:`Lost`: at most once each time a link breaks."""
        ...
