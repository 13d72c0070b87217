"""The call context passed to handlers: peer, metadata, deadline. Pure."""

from __future__ import annotations

from collections.abc import Callable

from danube.model.tls import PeerCertificate
from danube.wire.codec import Codec

__all__ = ["Context"]


class Context:
    """Origin of a call, and the deadline of its caller."""

    __slots__ = (
        "authority",
        "codec",
        "connection_id",
        "deadline",
        "metadata",
        "on_proven",
        "path",
        "peer",
        "peer_certificate",
        "secure",
    )

    def __init__(
        self,
        path: str,
        peer: str,
        connection_id: int,
        metadata: dict[str, str],
        deadline: float,
        codec: Codec,
        authority: str = "",
        *,
        secure: bool = False,
        peer_certificate: PeerCertificate | None = None,
        on_proven: Callable[[object], None] = lambda caller: None,
    ) -> None:
        self.path = path
        self.peer = peer
        """Address of the peer, for logs."""
        self.connection_id = connection_id
        """Unique among the connections of this server, never reused."""
        self.metadata = metadata
        """The headers of the request, without those of HTTP/2 and gRPC."""
        self.deadline = deadline
        """Deadline of the caller on Trio's clock, at which the handler is cancelled; infinity if there is none."""
        self.codec = codec
        self.authority = authority
        """The host and port of the request (``:authority``); empty if not given. Not verified."""
        self.secure = secure
        """Whether the connection uses TLS."""
        self.peer_certificate = peer_certificate
        """The verified certificate of the peer; None without one."""
        self.on_proven = on_proven
        """To be called with who calls once a call has proven it: the peer of the connection is not unknown any more."""
