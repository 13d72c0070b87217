"""Events that a connection reports to its application: small frozen values, in the order of their causes."""

from __future__ import annotations

import msgspec

from danube.model.errors import DanubeError, Status

__all__ = [
    "ConnectionTerminated",
    "EndOfStream",
    "Event",
    "GoAwayReceived",
    "MessageReceived",
    "PingAcked",
    "RequestReceived",
    "ResponseReceived",
    "StreamFailed",
    "StreamReset",
    "TrailersReceived",
]


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of all results of :meth:`danube.wire.connection.GrpcConnection.receive`."""


class RequestReceived(Event, frozen=True):
    """Server: a peer opened a stream with a gRPC request."""

    stream_id: int
    path: str
    """``/package.Service/Method``."""
    metadata: dict[str, str]
    """Headers of the request without pseudo-headers and those of gRPC; values of a repeated name are joined by
    commas."""
    timeout_s: float | None
    """The caller's ``grpc-timeout``, or None if it has none."""
    content_type: str
    """For instance ``application/grpc+msgpack``."""
    authority: str = ""
    """The host and port of the request (``:authority``). Not verified."""
    user_agent: str = ""
    """Name and version of the client library, as it says itself."""


class ResponseReceived(Event, frozen=True):
    """Client: the response's headers arrived."""

    stream_id: int
    metadata: dict[str, str]


class MessageReceived(Event, frozen=True):
    """One complete gRPC message."""

    stream_id: int
    data: bytes
    flow_size: int
    """Credit that the application returns with ``credit`` once it has processed the message."""


class EndOfStream(Event, frozen=True):
    """Server: the peer has closed its sending side of this stream."""

    stream_id: int


class TrailersReceived(Event, frozen=True):
    """Client: the call has ended with this status, and the stream with it."""

    stream_id: int
    status: Status
    code: str
    """The Danube error code (``topic-not-found``), or an empty string when the peer sent none."""
    message: str
    metadata: dict[str, str]
    details: dict[str, str] = {}
    """The details of the error."""


class StreamReset(Event, frozen=True):
    """The peer abandoned the stream; nothing more can be sent on it."""

    stream_id: int
    code: int
    """An HTTP/2 error code (8 is CANCEL, 7 is REFUSED_STREAM)."""


class StreamFailed(Event, frozen=True):
    """Data that the peer sent on this stream is refused. Further data on it is dropped.

    A server answers with the error's status; on a client the stream has been reset already.
    """

    stream_id: int
    error: DanubeError


class PingAcked(Event, frozen=True):
    """The peer answered our PING."""

    payload: bytes


class GoAwayReceived(Event, frozen=True):
    """The peer accepts no new streams. Streams above ``last_stream_id`` are never processed."""

    last_stream_id: int
    code: int
    message: str


class ConnectionTerminated(Event, frozen=True):
    """This side ends the connection: flush ``data_to_send`` and close. Always the last event."""

    code: int
    message: str
