"""Calls that every broker of a cluster answers, each for what it has in its memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from danube.client._retry import Retry
from danube.model import api

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.client._url import Address

__all__ = ["everywhere"]

T = TypeVar("T")


async def everywhere(pool: Pool, path: str, request: Any, kind: type[T]) -> list[T]:
    """Make a call to every broker of the cluster; repeat all after a connection loss.

    Raises:
        DanubeError: one of them does not answer, so the answer would not be complete.
    """
    retry = Retry(pool)
    retry.succeeded_once = True  # there was a connection: it may take reconnect_timeout_s to be restored
    return await retry.repeat(partial(_ask, pool, path, request, kind))


async def _ask(pool: Pool, path: str, request: Any, kind: type[T]) -> list[T]:
    timeout_s = pool.options.request_timeout_s
    info = await pool.attempt(api.Method.INFO, api.Empty(), api.BrokerInfo, timeout_s=timeout_s)
    known = [pool.brokers.learn(text) for text in info.brokers]
    places: list[Address | None] = [address for address in known if address is not None] or [None]
    return [await pool.ask(place, path, request, kind, timeout_s=timeout_s) for place in places]
