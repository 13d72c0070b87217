"""Maps errors of the broker to the statuses that official clients understand.

Those clients evaluate only the number of the status. Three of them make a client retry, look the topic up, and finally
create its producer or consumer again: UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED. All others are final. So
errors that may be temporary must have one of the three, whatever their status in the native API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from danube.model.errors import DanubeError, Status, UnavailableError, UnimplementedError
from danube.wire import Context, Method

__all__ = ["RETRIED", "for_clients", "not_here", "unary"]

RETRIED: Final = frozenset({Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED})
"""The statuses after which official clients retry."""


def for_clients(error: DanubeError) -> DanubeError:
    """Return an error with the status that has the right effect on a client; its message is kept."""
    if error.retryable and error.status not in RETRIED:
        return UnavailableError(error.message)
    return error


def unary(
    path: str,
    handler: Callable[[Any, Context], Awaitable[Any]],
    request_type: Any,
    max_request_bytes: int | None = None,
) -> tuple[str, Method]:
    """Return a unary method and its path; errors of its handler are converted by :func:`for_clients`."""

    @wraps(handler)
    async def translated(request: Any, context: Context) -> Any:
        try:
            return await handler(request, context)
        except DanubeError as error:
            raise for_clients(error) from error

    method = Method(
        path=path, kind="unary", handler=translated, request_type=request_type, max_request_bytes=max_request_bytes
    )
    return path, method


def not_here(path: str, request_type: Any, why: str) -> tuple[str, Method]:
    """Return a unary method that replies UNIMPLEMENTED with a message, and its path."""

    async def refuse(_request: Any, _context: Context) -> Any:
        raise UnimplementedError(why)

    return unary(path, refuse, request_type)
