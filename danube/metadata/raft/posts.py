"""Joins the messages to each member into payloads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from danube.metadata.raft.messages import AnyMessage, Forward, encode_payload
from danube.model.limits import MIB
from danube.raft import Append, NodeId

__all__ = ["PAYLOAD_BYTES", "Posts"]

PAYLOAD_BYTES: Final = 1 * MIB
"""Messages to one member are joined up to this size."""


class Posts:
    """Messages that wait to be sent.

    Args:
        sender: this member.
    """

    def __init__(self, sender: NodeId) -> None:
        self._sender = sender
        self._waiting: dict[NodeId, list[AnyMessage]] = {}

    def add(self, to: NodeId, message: AnyMessage) -> None:
        """Add a message to a member."""
        messages = self._waiting.get(to)
        if messages is None:
            messages = self._waiting[to] = []
        messages.append(message)

    def take(self) -> Sequence[tuple[NodeId, bytes]]:
        """Return, and forget, everything as payloads, each member's in the order of its messages."""
        if not self._waiting:
            return ()
        waiting, self._waiting = self._waiting, {}
        payloads: list[tuple[NodeId, bytes]] = []
        for to, messages in waiting.items():
            first = size = 0
            for end, message in enumerate(messages, 1):
                size += _size(message)
                if size >= PAYLOAD_BYTES:
                    payloads.append((to, encode_payload(self._sender, messages[first:end])))
                    first, size = end, 0
            if first < len(messages):
                payloads.append((to, encode_payload(self._sender, messages[first:])))
        return payloads


def _size(message: AnyMessage) -> int:
    """Return about how many bytes a message has."""
    if isinstance(message, Append):
        return sum(entry.size for entry in message.entries)
    if isinstance(message, Forward):
        return sum(map(len, message.proposals))
    return 0
