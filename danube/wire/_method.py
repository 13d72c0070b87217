"""Methods of a service, and the three kinds of functions that implement them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from danube.model.errors import ConfigurationError
from danube.wire._context import Context
from danube.wire._server_stream import ServerStream
from danube.wire._unary_call import UnaryCall

__all__ = ["Handler", "Method", "Service", "StreamHandler", "UnaryHandler", "UnaryStart"]

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
    max_request_bytes: int | None = None
    """Largest request message; None: the limit ``max_request_bytes``."""

    def __post_init__(self) -> None:
        if (self.handler is None) == (self.start is None) or (self.start is not None and self.kind != "unary"):
            raise ConfigurationError(
                f"method {self.path} needs either a handler or, if it is unary, a start function; give it one of them"
            )


Service = Mapping[str, Method]
"""Methods by path."""
