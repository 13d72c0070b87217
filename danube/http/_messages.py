"""Requests and responses as handlers see them. Interfaces and values only; no I/O."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from danube.http._target import Target
from danube.model.tls import PeerCertificate

__all__ = ["Body", "Handler", "Request", "Response", "Stream", "TextSink"]


class Body(Protocol):
    """The body of a request, which is read when it is wanted."""

    async def read(self, most_bytes: int | None = None) -> bytes:
        """Return the whole body.

        Args:
            most_bytes: refuse a larger one; None: the limit ``http_max_body_bytes``.

        Raises:
            MessageTooLargeError: it is larger.
        """
        ...

    def chunks(self, most_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives; arguments and errors as of :meth:`read`."""
        ...


class Request:
    """One request.

    Attributes:
        method: ``GET``; a HEAD request arrives as GET.
        target: what it asks for.
        headers: by name in lower case; those that came twice are joined by commas.
        body: read by the handler, or dropped.
        peer: address of the caller, ``host:port``.
        connection_id: unique among the connections of this server.
        secure: whether it came over TLS.
        peer_certificate: the verified certificate of the caller; None without one.
    """

    __slots__ = (
        "_extend",
        "body",
        "connection_id",
        "headers",
        "method",
        "peer",
        "peer_certificate",
        "secure",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: Target,
        headers: Mapping[str, str],
        body: Body,
        *,
        peer: str,
        connection_id: int = 0,
        secure: bool = False,
        peer_certificate: PeerCertificate | None = None,
        extend: Callable[[float | None], None] = lambda seconds: None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.peer = peer
        self.connection_id = connection_id
        self.secure = secure
        self.peer_certificate = peer_certificate
        self._extend = extend

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the query."""
        return self.target.query

    @property
    def host(self) -> str:
        """The header ``Host``; empty without one."""
        return self.headers.get("host", "")

    def extend(self, seconds: float | None) -> None:
        """Let the request take this long from now on, instead of ``http_request_timeout_s``; None: any time."""
        self._extend(seconds)


class TextSink(Protocol):
    """Where a streamed answer goes."""

    async def send(self, data: bytes) -> None:
        """Send a piece, and wait until the caller has taken most of it.

        The stream ends, by a cancellation, when the caller is gone or accepts nothing for ``write_timeout_s``.
        """
        ...


Stream = Callable[[TextSink], Awaitable[None]]
"""Produces the body of an answer piece by piece. It is cancelled when the caller is gone, or the server drains."""


class Response:
    """One answer.

    Args:
        status: of HTTP.
        body: all of it; or a function that produces it.
        content_type: of the body; empty: there is none.
        headers: further ones.
        events: the body is a stream of server-sent events: comments keep it alive, and ``http_max_sse`` bounds it.
        close: end the connection after it.
    """

    __slots__ = ("body", "close", "content_type", "events", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: bytes | Stream = b"",
        *,
        content_type: str = "",
        headers: Sequence[tuple[str, str]] = (),
        events: bool = False,
        close: bool = False,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.events = events
        self.close = close


Handler = Callable[[Request], Awaitable[Response]]
"""Answers requests. Its exceptions become problems: see :func:`danube.http.problem`."""
