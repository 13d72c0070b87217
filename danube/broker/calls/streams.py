"""The two streams of the native protocol, as methods of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.broker.calls.consume import consume
from danube.broker.calls.publish import publish
from danube.model import api
from danube.wire import Context, Method, ServerStream, Service

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory

__all__ = ["streams"]


def streams(directory: Directory) -> Service:
    """Return Publish and Consume, for the topics of a broker."""

    async def on_publish(stream: ServerStream, context: Context) -> None:
        await publish(directory, stream, context)

    async def on_consume(stream: ServerStream, context: Context) -> None:
        await consume(directory, stream, context)

    return {
        api.Method.PUBLISH: Method(
            path=api.Method.PUBLISH,
            kind="bidi",
            handler=on_publish,
            opening=api.PublishOpen,
            max_request_bytes=directory.runtime.limits.max_batch_bytes + 64,
        ),
        api.Method.CONSUME: Method(path=api.Method.CONSUME, kind="bidi", handler=on_consume, opening=api.ConsumeOpen),
    }
