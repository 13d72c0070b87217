"""What a service consists of: methods, and what their functions get. Interfaces only; no I/O.

The server implements :class:`ServerStream` and calls the functions of each :class:`Method`. Services depend on this
module, not on the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from danube.model.errors import ConfigurationError, DanubeError
from danube.wire._context import Context
from danube.wire._message import Message
from danube.wire._unary_call import UnaryCall

__all__ = [
    "Context",
    "Handler",
    "Method",
    "ServerStream",
    "Service",
    "StreamHandler",
    "UnaryCall",
    "UnaryHandler",
    "UnaryStart",
]

T = TypeVar("T")


class ServerStream(Protocol):
    """A streaming call, as its handler on the server sees it.

    One task receives. Sending is open to all tasks of the same event loop: :meth:`send_nowait` may be called from
    another task, for instance when a commit has settled. When the peer is gone, the handler is cancelled and sent
    messages are dropped; methods do not fail for that reason.
    """

    @property
    def context(self) -> Context:
        """The context of the call."""
        ...

    @property
    def gone(self) -> bool:
        """Whether the peer has abandoned the call."""
        ...

    @property
    def send_buffered(self) -> int:
        """Bytes queued for the peer to read."""
        ...

    async def receive(self) -> Message | None:
        """Return the next message, or None after the last. A checkpoint only if it has to wait."""
        ...

    def receive_nowait(self) -> list[Message]:
        """Return all messages that have arrived and were not received yet, possibly none."""
        ...

    def decode(self, kind: type[T], data: bytes) -> T:
        """Decode a message with the call's codec; InvalidArgumentError if it is not a ``kind``."""
        ...

    async def peek(self) -> Message | None:
        """Return the next message, or None after the last, and leave it to be received. Waits if none has arrived."""
        ...

    def divert(self, sink: Callable[[Message], bool]) -> None:
        """Pass messages to a plain function as they arrive, in the connection's own turn of the loop.

        For calls with many small messages: it avoids waking the handler's task (about 10 us). The function
        returns False for a message that it cannot process without waiting; that one is queued for :meth:`receive`. An
        exception ends the call as if the handler had raised it.
        """
        ...

    def encode(self, value: Any) -> bytes:
        """Encode a message with the call's codec."""
        ...

    def send_nowait(self, data: bytes | tuple[bytes, ...]) -> bool:
        """Queue one encoded message (a tuple is one message in several buffers) and schedule sending.

        Never waits, so the caller must check :attr:`send_buffered`. Returns False, and sends nothing, if the
        call has ended or the peer is gone.
        """
        ...

    async def send(self, data: bytes | tuple[bytes, ...]) -> None:
        """Wait for room in the send buffer, then queue the message. CallCancelledError if the peer is gone."""
        ...

    async def wait_send_capacity(self, limit_bytes: int | None = None) -> None:
        """Wait until less than ``max_send_buffer_bytes`` are queued for the peer; returns at once if it is gone.

        It waits as well while its connection, or all of them, are beyond their limits.

        Args:
            limit_bytes: wait until less than this is queued; must not exceed that limit.
        """
        ...

    def crowded(self, *, whole_connection: bool = False) -> bool:
        """Send as much as possible, then return whether too much is queued for the peer to send it more.

        Args:
            whole_connection: compare with the full limit of the connection, because messages that are not sent now are
                lost.
        """
        ...

    def when_room(self, on_room: Callable[[], None], on_stall: Callable[[], None]) -> None:
        """Call ``on_room`` once there is room for this stream (see :meth:`crowded`), in a later turn.

        If ``on_room`` sends nothing, it must call :meth:`pass_room_on`. ``on_stall`` is called, possibly often, while
        the peer has accepted nothing for a second or two. No callback is called after the call has ended.
        """
        ...

    def pass_room_on(self) -> None:
        """Offer unused room of this stream to another one."""
        ...

    def outlast(self) -> None:
        """Let the connection outlive a drain: it ends when the server is cancelled.

        A handler calls this once the peer has proven that it may stay.
        """
        ...

    def abandon(self, failure: DanubeError | None) -> None:
        """Cancel the handler, and send ``failure`` to the caller; None if the caller is gone."""
        ...


UnaryHandler = Callable[[Any, Context], Awaitable[Any]]
StreamHandler = Callable[[ServerStream, Context], Awaitable[None]]
Handler = UnaryHandler | StreamHandler
UnaryStart = Callable[[Any, UnaryCall], None]
"""Takes a request and answers immediately or later: see :class:`danube.wire.UnaryCall`."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One method of a service.

    A ``unary`` method has one of these two:

    * ``handler``, ``async def handler(request, context) -> response``: runs in a task of its own and may wait;
    * ``start``, ``def start(request, call) -> None``: a plain function, called in the connection's own turn of the
      loop, for many small calls. A task per call would cost more than such a call itself.

    Streaming methods have a ``handler``, ``async def handler(stream, context) -> None``; the call succeeds when it
    returns.
    An exception of a handler or ``start`` becomes the call's status.
    """

    path: str
    """``/package.Service/Method``."""
    kind: Literal["unary", "server_stream", "bidi"]
    handler: Handler | None = None
    start: UnaryStart | None = None
    request_type: Any = bytes
    """Type of a decoded unary request. ``bytes`` with a stream means that its handler decodes."""
    response_type: Any = bytes
    opening: Any = None
    """Of a stream: type of its first message, which is judged before the handler sees it. None: it is not judged."""
    max_request_bytes: int | None = None
    """Largest request message; None: the limit ``max_request_bytes``."""
    early: bool = False
    """Whether it is served while the server refuses others because it is starting."""

    def __post_init__(self) -> None:
        if (self.handler is None) == (self.start is None) or (self.start is not None and self.kind != "unary"):
            raise ConfigurationError(
                f"method {self.path} needs either a handler or, if it is unary, a start function; give it one of them"
            )


Service = Mapping[str, Method]
"""Methods by path."""
