"""The connection to a storage server: opened on demand, and reopened after a loss.

All calls share one connection. If there is none, the first call starts to connect, the others wait for the same
result, and cancelling one of them does not affect the others. When the server drains, calls in progress keep the old
connection and the next one opens another.

The server's description is queried on every connection. It must not change: a restarted server with another backend
may guarantee less than the broker relies on.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio

from danube.model import storage_api as api
from danube.model.errors import (
    CallCancelledError,
    DanubeError,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitExceededError,
    StorageError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
    UnavailableError,
)
from danube.model.limits import Limits
from danube.wire import Channel, Connect, connect_channel

__all__ = ["RemoteConnection", "connect_remote"]


class _Attempt:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.channel: Channel | None = None
        self.error: DanubeError | None = None


class RemoteConnection:
    """A connection that is reopened when needed. Created by :func:`connect_remote`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        host: str,
        port: int,
        *,
        url: str,
        limits: Limits,
        metadata: Mapping[str, str],
        connect: Connect | None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.url = url
        """URL of the server for messages, without secrets."""
        self.metadata = metadata
        """Headers of every call, including the token."""
        self.description: api.StorageDescription | None = None
        """Description of the server's storage; None before the first connection."""
        self._nursery = nursery
        self._host = host
        self._port = port
        self._limits = limits
        self._connect = connect
        self._tls = tls
        self._attempt: _Attempt | None = None

    async def channel(self) -> Channel:
        """Return the live connection, opening it if there is none; raises :class:`StorageError`."""
        attempt = self._attempt
        if attempt is None or (attempt.channel is not None and (attempt.channel.closed or attempt.channel.draining)):
            attempt = self._attempt = _Attempt()
            self._nursery.start_soon(self._hold, attempt)
        await attempt.done.wait()
        if attempt.channel is None:
            assert attempt.error is not None
            raise self.translate(attempt.error, "connect")
        return attempt.channel

    async def _hold(self, attempt: _Attempt) -> None:
        """Connect, notify waiting calls, and keep the connection until it ends."""
        try:
            # The files are read for each connection, so that renewed certificates are used.
            tls = None if self._tls is None else await trio.to_thread.run_sync(self._tls)
            async with connect_channel(self._host, self._port, self._limits, connect=self._connect, tls=tls) as channel:
                await self._describe(channel)
                attempt.channel = channel
                attempt.done.set()
                await channel.wait_closed()
        except DanubeError as error:
            attempt.error = error
        finally:
            if self._attempt is attempt:
                self._attempt = None
            attempt.done.set()

    async def _describe(self, channel: Channel) -> None:
        found = await channel.unary(
            api.StorageMethod.DESCRIBE,
            api.Describe(),
            api.StorageDescription,
            metadata=self.metadata,
            timeout_s=self._limits.storage_attempt_timeout_s,
        )
        known = self.description
        if known is None:
            self.description = found
        elif _promises(found) != _promises(known):
            raise StorageError(
                f"the storage server has changed: it serves {found.url} {_promises(found)}, and served"
                f" {known.url} {_promises(known)} before; restart the broker if that is intended"
            )

    def translate(self, error: DanubeError, operation: str) -> DanubeError:
        """Return the storage error for an exception of a call; errors of the server's backend are unchanged."""
        kind: type[DanubeError] = StorageError
        if isinstance(error, StorageError | InvalidArgumentError):
            kind = type(error)
        elif isinstance(error, UnavailableError | CallCancelledError):
            kind = StorageUnavailableError
        elif isinstance(error, LimitExceededError):
            kind = StorageThrottledError
        elif isinstance(error, DeadlineExceededError):
            kind = StorageTimeoutError
        return kind(f"{self.url}: {operation}: {error.message}")


def _promises(description: api.StorageDescription) -> tuple[bool, bool]:
    return description.durable, description.conditional_put


@asynccontextmanager
async def connect_remote(
    host: str,
    port: int,
    *,
    url: str,
    limits: Limits | None = None,
    token: str = "",
    connect: Connect | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncIterator[RemoteConnection]:
    """Connect to a storage server and query its description; close the connection at the end of the block.

    ``connect`` opens the byte stream instead of TCP; ``tls`` returns what verifies the server (None: no TLS), and is
    called in a thread for each connection. Raises
    :class:`StorageError` if the server cannot be reached, or refuses the connection.
    """
    metadata = {"authorization": f"Bearer {token}"} if token else {}
    async with trio.open_nursery() as nursery:
        connection = RemoteConnection(
            nursery, host, port, url=url, limits=limits or Limits(), metadata=metadata, connect=connect, tls=tls
        )
        failure: Exception | None = None
        try:
            await connection.channel()
            yield connection
        except Exception as error:  # noqa: BLE001 - raised again outside the nursery, which would wrap it into a group
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
