"""Runs request handlers that are plain functions in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from danube.client import _message, _requests
from danube.client.sync._messages import Message, message_of
from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.client._payloads import BytesLike
    from danube.client.sync._loop import Loop

__all__ = ["Handler", "in_thread"]

Handler = Callable[[Message], "BytesLike"]
"""Receives a request (payload, key, attributes, ...) and returns the payload of the reply."""


def in_thread(handler: Handler, loop: Loop) -> _requests.Handler:
    """Return an asynchronous handler that calls ``handler`` in a thread of its own.

    Python cannot stop a thread: a call that is cancelled ends when the handler has returned.

    Raises:
        InvalidArgumentError: ``handler`` is not a function.
    """
    if not callable(handler):
        raise InvalidArgumentError(f"handler is a function, not {type(handler).__name__}")

    async def handle(request: _message.Message) -> BytesLike:
        # The responder limits the number of concurrent handlers.
        unlimited = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(handler, message_of(request, loop), limiter=unlimited)

    return handle
