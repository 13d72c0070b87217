"""Runs client calls for a command, and converts their results to plain data."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from danube.cli._connecting import find_target

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["run_with_client", "to_plain"]

T = TypeVar("T")

_ADMIN_RECONNECT_S = 5.0
"""Commands that only query or change something give up after this long, since a person waits at the prompt."""


def run_with_client(
    work: Callable[[Client], Awaitable[T]],
    url: str | None,
    context: str | None,
    reconnect_timeout_s: float | None = _ADMIN_RECONNECT_S,
) -> T:
    """Connect, run ``work(client)`` under Trio, disconnect, return the result; say what it waits for meanwhile.

    Args:
        work: an async function of a connected client.
        url: ``--url`` of the command, or None.
        context: ``--context`` of the command, or None.
        reconnect_timeout_s: how long to wait for a lost connection; None means forever.
    """
    import trio

    from danube.cli._nearest import with_nearest
    from danube.cli._waiting import WaitWatch
    from danube.model.errors import SubscriptionNotFoundError, TopicNotFoundError

    target = find_target(url, context)

    async def main() -> T:
        watch = WaitWatch(f"no connection to {target.url} yet")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            async with target.connect(reconnect_timeout_s=reconnect_timeout_s) as client:
                watch.client = client
                try:
                    result = await work(client)
                except (TopicNotFoundError, SubscriptionNotFoundError) as error:
                    raise await with_nearest(client, error) from error
            nursery.cancel_scope.cancel()
        return result

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def to_plain(value: Any) -> Any:
    """Convert API messages (which encode as arrays) to dicts, so that JSON output has field names."""
    if isinstance(value, msgspec.Struct):
        return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, enum.StrEnum):
        return value.value
    return value
