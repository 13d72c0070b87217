"""Maps errors of the broker to the statuses that official clients understand.

These clients evaluate only the status code. After UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED they retry,
look the topic up, and finally create their producer or consumer again; all other codes are final. So a possibly
temporary error must have one of these three codes, regardless of its status in the native API.
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
    """Return an error with the same message, and the status with the right effect on a client."""
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
