"""The supervisor of a client's connection: connects, notices a loss, and connects again.

All producers, consumers and calls of a client share one connection. Whoever needs it awaits :meth:`Connection.channel`
and, after a loss, awaits it again; nobody else knows about addresses or delays. When the broker stays away longer than
``reconnect_timeout_s``, everyone who waits gets :class:`ConnectionLostError`, and the supervisor rests until it is
asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio

from danube.client._tasks import copy_error
from danube.model.errors import ClosedError, ConnectionLostError, DanubeError
from danube.wire.client import Channel, connect_channel

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._options import ClientOptions
    from danube.client._url import Address

__all__ = ["Connection"]


class Connection:
    """One connection that comes back by itself."""

    def __init__(self, addresses: Sequence[Address], options: ClientOptions) -> None:
        self.options = options
        self._addresses = list(addresses)
        self._next_address = 0
        self._channel: Channel | None = None
        self._error: DanubeError | None = None
        self._closed = False
        self._changed = anyio.Event()
        self._wanted = anyio.Event()

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return self._channel is not None and not self._channel.closed

    async def channel(self) -> Channel:
        """Return the live connection; wait while it is being restored.

        Raises:
            ConnectionLostError: the broker stayed away longer than ``reconnect_timeout_s``.
            ClosedError: the client was closed.
        """
        if self._error is not None:
            self._error = None
            self._wanted.set()
        while self._channel is None or self._channel.closed:
            if self._closed:
                raise ClosedError("the client is closed; open a new one with danube.connect()")
            await self._changed.wait()
            if self._error is not None:
                raise copy_error(self._error)
        return self._channel

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Connect, and keep the connection until cancelled. ``started()`` is called at the first success.

        Raises:
            ConnectionLostError: no address answered the very first time (a wrong URL is told at once).
        """
        first = True
        try:
            while True:
                async with AsyncExitStack() as stack:
                    try:
                        channel = await (self._connect_any(stack) if first else self._connect_again(stack))
                    except ConnectionLostError as error:
                        if first:
                            raise
                        self._error = error
                        self._wanted = anyio.Event()
                        self._notify()
                        await self._wanted.wait()
                        continue
                    self._channel = channel
                    self._notify()
                    if first:
                        first = False
                        task_status.started()
                    await channel.wait_closed()
                    self._channel = None
        finally:
            self._closed = True
            self._channel = None
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _connect_again(self, stack: AsyncExitStack) -> Channel:
        options = self.options
        backoff = options.backoff()
        limit_s = options.reconnect_timeout_s
        give_up_at = None if limit_s is None else anyio.current_time() + limit_s
        while True:
            try:
                return await self._connect_any(stack)
            except ConnectionLostError as error:
                delay_s = backoff.next_delay_s()
                if give_up_at is not None and anyio.current_time() + delay_s > give_up_at:
                    raise ConnectionLostError(
                        f"the broker did not come back within reconnect_timeout_s = {limit_s:g} s; {error.message}"
                    ) from error
                await anyio.sleep(delay_s)

    async def _connect_any(self, stack: AsyncExitStack) -> Channel:
        failures: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._next_address]
            try:
                return await self._connect(stack, address)
            except (OSError, DanubeError) as error:
                reason = error.message if isinstance(error, DanubeError) else str(error) or type(error).__name__
                failures.append(f"{address}: {reason}")
                self._next_address = (self._next_address + 1) % len(self._addresses)
        raise ConnectionLostError(
            f"no connection to a broker ({'; '.join(failures)}); check the address and that the broker runs"
        )

    async def _connect(self, stack: AsyncExitStack, address: Address) -> Channel:
        connect = self.options.environment.connect
        return await stack.enter_async_context(
            connect_channel(
                address.host,
                address.port,
                self.options.limits,
                connect=None if connect is None else partial(connect, address.host, address.port),
                connect_timeout_s=self.options.connect_timeout_s,
            )
        )
