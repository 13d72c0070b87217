"""What a member needs from its links to the others."""

from __future__ import annotations

from typing import Protocol

from danube.raft import NodeId

__all__ = ["Links", "NoLinks"]


class Links(Protocol):
    """Sends payloads to other members.

    Payloads may be lost, repeated, delayed and reordered; each arrives whole or not at all. What arrives here is passed
    to :meth:`~danube.metadata.raft.node.Node.deliver`; a member that cannot be reached *and* whose port refuses
    connections is reported with :meth:`~danube.metadata.raft.node.Node.refused`.
    """

    def send(self, to: NodeId, payload: bytes) -> None:
        """Send a payload, or drop it if there is no connection or its queue is full. Never waits, never raises."""


class NoLinks:
    """The links of a member that is alone."""

    def send(self, to: NodeId, payload: bytes) -> None:
        """Drop the payload."""
