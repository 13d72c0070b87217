"""Unary methods whose errors official clients understand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from danube.compat.errors import for_clients
from danube.model.errors import DanubeError, UnimplementedError
from danube.wire.service import Context, Method

__all__ = ["not_here", "unary"]


def unary(
    path: str,
    handler: Callable[[Any, Context], Awaitable[Any]],
    request_type: Any,
    max_request_bytes: int | None = None,
    *,
    early: bool = False,
) -> tuple[str, Method]:
    """Return a unary method and its path; errors of its handler are converted for official clients.

    Args:
        path, handler, request_type, max_request_bytes, early: of the :class:`Method`.
    """

    @wraps(handler)
    async def translated(request: Any, context: Context) -> Any:
        try:
            return await handler(request, context)
        except DanubeError as error:
            raise for_clients(error) from error

    method = Method(
        path=path,
        kind="unary",
        handler=translated,
        request_type=request_type,
        max_request_bytes=max_request_bytes,
        early=early,
    )
    return path, method


def not_here(path: str, request_type: Any, why: str) -> tuple[str, Method]:
    """Return a unary method that replies UNIMPLEMENTED with a message, and its path."""

    async def refuse(_request: Any, _context: Context) -> Any:
        raise UnimplementedError(why)

    return unary(path, refuse, request_type)
