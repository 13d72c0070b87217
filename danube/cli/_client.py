"""Runs client calls for a command, and converts their results to plain data."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from danube.cli._context import resolve_url

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
    """Connect, run ``work(client)`` under Trio, disconnect, return the result.

    Args:
        work: an async function of a connected client.
        url: ``--url`` of the command, or None.
        context: ``--context`` of the command, or None.
        reconnect_timeout_s: how long to wait for a lost connection; None means forever.
    """
    import trio

    import danube

    address = resolve_url(url, context)

    async def main() -> T:
        async with danube.connect(address, reconnect_timeout_s=reconnect_timeout_s) as client:
            return await work(client)

    return trio.run(main)


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
