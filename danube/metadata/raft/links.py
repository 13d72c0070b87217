"""What a member needs from its links to the others, and how it gets that from the links between brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from danube.raft import NodeId

__all__ = ["CHANNEL", "COPY_CHANNEL", "Links", "NoLinks", "PeerLinks"]

CHANNEL: Final = "raft"
"""Channel of everything but copies of tables."""
COPY_CHANNEL: Final = "raft-copy"
"""Channel of pieces of copies: heartbeats do not wait behind them."""


class Links(Protocol):
    """Sends payloads to other members.

    Payloads may be lost, repeated, delayed and reordered; each arrives whole or not at all. What arrives here is passed
    to :meth:`~danube.metadata.raft.node.Node.deliver`; a member that cannot be reached *and* whose port refuses
    connections is reported with :meth:`~danube.metadata.raft.node.Node.refused`.
    """

    def send(self, to: NodeId, payload: bytes, *, bulk: bool = False) -> None:
        """Send a payload, or drop it if there is no connection or its queue is full. Never waits, never raises.

        Args:
            to: the member.
            payload: about 2 MiB at most.
            bulk: whether other payloads need not wait for this one.
        """


class NoLinks:
    """The links of a member that is alone."""

    def send(self, to: NodeId, payload: bytes, *, bulk: bool = False) -> None:
        """Drop the payload."""


class _Member(Protocol):
    def deliver(self, payload: bytes) -> None: ...

    def refused(self, node: NodeId) -> None: ...


class _Peers(Protocol):
    """The part of the links between brokers that is used here."""

    def send(self, to: str, channel: str, payload: bytes) -> bool: ...

    def divert(self, channel: str, sink: Callable[[Any, bytes], None]) -> None: ...

    def on_lost(self, listener: Callable[[Any], None]) -> None: ...


class PeerLinks:
    """Sends over the links between brokers.

    Args:
        peers: the links of this broker.
        address: returns ``host:port`` of a member's broker, None if it is not known.
        heard: called for each broker from which a message has arrived, before it is passed on; must not raise.
    """

    def __init__(
        self,
        peers: _Peers,
        address: Callable[[NodeId], str | None],
        heard: Callable[[Any], None] = lambda peer: None,
    ) -> None:
        self._peers = peers
        self._address = address
        self._heard = heard
        self._member: _Member | None = None
        peers.divert(CHANNEL, self._arrived)
        peers.divert(COPY_CHANNEL, self._arrived)
        peers.on_lost(self._lost)

    def connect(self, member: _Member) -> None:
        """Pass to a member what arrives for it."""
        self._member = member

    def send(self, to: NodeId, payload: bytes, *, bulk: bool = False) -> None:
        """See :meth:`Links.send`."""
        address = self._address(to)
        if address is not None:
            self._peers.send(address, COPY_CHANNEL if bulk else CHANNEL, payload)

    def _arrived(self, peer: Any, payload: bytes) -> None:
        self._heard(peer)
        if self._member is not None:
            self._member.deliver(payload)

    def _lost(self, lost: Any) -> None:
        member: int | None = lost.peer.member
        if member is not None and self._member is not None:
            self._member.refused(NodeId(member))
