"""What a server counts of its calls and connections. Pure."""

from __future__ import annotations

from typing import Final

from danube.metrics.histogram import Histogram
from danube.model.errors import Status

__all__ = ["CallFigures", "ConnectionKind", "ServerFigures"]

_UNKNOWN: Final = "(unknown)"
"""Stands for all paths without a method: callers choose them, and each one would be remembered."""


class ConnectionKind:
    """Who is at the other end of a connection, judging by its calls."""

    NATIVE: Final = "native"
    """One of Danube's own clients; also one that has made no call yet."""
    GRPC: Final = "grpc"
    """Another gRPC client."""
    PEER: Final = "peer"
    """Another broker of the cluster."""


class CallFigures:
    """Calls of one path that have ended.

    Attributes:
        ok: those that have succeeded.
        failed: others, by their status.
        durations: from the request of a unary call to its answer, in seconds.
    """

    __slots__ = ("durations", "failed", "ok")

    def __init__(self) -> None:
        self.ok = 0
        self.failed: dict[Status, int] = {}
        self.durations = Histogram()

    def fail(self, status: Status) -> None:
        """Count a call that has failed."""
        self.failed[status] = self.failed.get(status, 0) + 1


class ServerFigures:
    """Calls and connections of one server since it was started.

    Attributes:
        calls: by path.
        refused: connections that were closed at once, by reason.
        received_bytes, sent_bytes: of connections that have ended, by their kind.
    """

    def __init__(self) -> None:
        self.calls: dict[str, CallFigures] = {}
        self.refused: dict[str, int] = {}
        self.received_bytes: dict[str, int] = {}
        self.sent_bytes: dict[str, int] = {}

    def call(self, path: str, *, known: bool = True) -> CallFigures:
        """Return the figures of a path; all that are not ``known`` share theirs."""
        path = path if known else _UNKNOWN
        found = self.calls.get(path)
        if found is None:
            found = self.calls[path] = CallFigures()
        return found

    def refuse(self, reason: str) -> None:
        """Count a connection that is closed at once."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def ended(self, kind: str, received_bytes: int, sent_bytes: int) -> None:
        """Count what a connection has received and sent that has ended."""
        self.received_bytes[kind] = self.received_bytes.get(kind, 0) + received_bytes
        self.sent_bytes[kind] = self.sent_bytes.get(kind, 0) + sent_bytes
