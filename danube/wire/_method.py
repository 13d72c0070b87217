"""What a service is made of: methods, and the three kinds of functions that serve them."""

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
"""Takes a request and answers now or later: see :class:`danube.wire.UnaryCall`."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One method of a service.

    A ``unary`` method has one of two:

    * ``handler``, ``async def handler(request, context) -> response``: runs in a task of its own and may wait;
    * ``start``, ``def start(request, call) -> None``: a plain function, called in the connection's own turn of the
      loop, for calls that are many and small. A task for each call costs more than such a call does.

    The others have a ``handler``, ``async def handler(stream, context) -> None``; the call ends well when it returns.
    What a handler or ``start`` raises becomes the call's status.
    """

    path: str
    """``/package.Service/Method``."""
    kind: Literal["unary", "server_stream", "bidi"]
    handler: Handler | None = None
    start: UnaryStart | None = None
    request_type: Any = bytes
    """What a unary request is decoded as. ``bytes`` with a stream means that its handler decodes."""
    response_type: Any = bytes
    max_request_bytes: int | None = None
    """Largest request message; None means the limit ``max_request_bytes``."""

    def __post_init__(self) -> None:
        if (self.handler is None) == (self.start is None) or (self.start is not None and self.kind != "unary"):
            raise ConfigurationError(
                f"method {self.path} needs either a handler or, if it is unary, a start function; give it one of them"
            )


Service = Mapping[str, Method]
"""Methods by path."""
