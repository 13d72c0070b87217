"""What a handler may know about its call."""

from __future__ import annotations

import math

import trio

from danube.wire.codec import Codec

__all__ = ["Context"]


class Context:
    """Where a call comes from, and how long its caller waits."""

    __slots__ = ("authority", "codec", "connection_id", "deadline", "metadata", "path", "peer")

    def __init__(
        self,
        path: str,
        peer: str,
        connection_id: int,
        metadata: dict[str, str],
        deadline: float,
        codec: Codec,
        authority: str = "",
    ) -> None:
        self.path = path
        self.peer = peer
        """The other end's address, for logs."""
        self.connection_id = connection_id
        """Unique among the connections of this server, never used again."""
        self.metadata = metadata
        """The headers of the request, without HTTP/2's and gRPC's own."""
        self.deadline = deadline
        """When the caller stops waiting, on Trio's clock; infinity if never. The handler is cancelled then."""
        self.codec = codec
        self.authority = authority
        """The host and port that the caller has asked for, as it says; empty if it does not."""

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; infinity without one."""
        return math.inf if self.deadline == math.inf else max(0.0, self.deadline - trio.current_time())
