"""The supervisor of a client's connection: connects, detects a loss, and reconnects.

All producers, consumers and calls of a client share one connection. They await :meth:`Connection.channel` and, after a
loss, await it again; addresses and delays are known only here. When the broker stays unreachable for longer than
``reconnect_timeout_s``, all waiting callers get :class:`ConnectionLostError`, and the supervisor pauses until the next
call.

A connection may also be *retired*: a proxy has sent GOAWAY after so many calls or so much time, or the stream ids are
used up. Open streams then continue on it until they end, and new ones use a replacement connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from danube.client._tasks import copy_error
from danube.model.errors import CallRefusedError, ClosedError, ConnectionLostError, DanubeError
from danube.wire.client import Channel, connect_channel

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

    from danube.client._options import ClientOptions
    from danube.client._url import Address

__all__ = ["Connection"]

T = TypeVar("T")


class Connection:
    """One connection that is restored automatically."""

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
        """Return the connection for new calls; wait while it is being restored.

        Raises:
            ConnectionLostError: the broker was unreachable for longer than ``reconnect_timeout_s``.
            ClosedError: the client was closed.
        """
        if self._error is not None:
            self._error = None
            self._wanted.set()
        while self._channel is None or self._channel.retired:
            if self._closed:
                raise ClosedError("the client is closed; open a new one with danube.connect()")
            await self._changed.wait()
            if self._error is not None:
                raise copy_error(self._error)
        return self._channel

    async def unary(self, path: str, request: Any, kind: type[T], *, timeout_s: float | None) -> T:
        """Make a call, and repeat it if it certainly was not executed: the broker refused it unprocessed.

        Args:
            path, request, kind: as in :meth:`danube.wire.client.Channel.unary`.
            timeout_s: of each attempt; calls that are refused repeatedly fail after ``request_timeout_s``.

        Raises:
            DanubeError: the broker's error, or the reason why there was no reply.
        """
        options = self.options
        give_up_at = anyio.current_time() + options.request_timeout_s
        backoff = options.backoff()
        while True:
            channel = await self.channel()
            try:
                return await channel.unary(path, request, kind, timeout_s=timeout_s)
            except CallRefusedError:
                delay_s = backoff.next_delay_s()
                if anyio.current_time() + delay_s > give_up_at:
                    raise
            await anyio.sleep(delay_s)

    async def attempt(self, path: str, request: Any, kind: type[T], *, timeout_s: float | None) -> T:
        """Make a call once; arguments and errors as of :meth:`unary`."""
        channel = await self.channel()
        return await channel.unary(path, request, kind, timeout_s=timeout_s)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Connect, and maintain the connection until cancelled. ``started()`` is called at the first success.

        Raises:
            ConnectionLostError: no address answered the first time (a wrong URL is reported at once).
        """
        failure: ConnectionLostError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                try:
                    channel = await self._connect_any(tasks)
                except ConnectionLostError as error:
                    failure = error  # raised without its exception group
                else:
                    task_status.started()
                    await self._keep_connected(channel, tasks)
        finally:
            self._closed = True
            self._channel = None
            self._notify()
        if failure is not None:
            raise failure

    async def _keep_connected(self, channel: Channel, tasks: TaskGroup) -> None:
        while True:
            opened_at = anyio.current_time()
            self._channel = channel
            self._notify()
            await channel.wait_retired()
            self._channel = None
            # Do not replace a short-lived connection at once: a proxy that retires every connection would be flooded.
            lasted_s = anyio.current_time() - opened_at
            await anyio.sleep(max(0.0, self.options.reconnect_initial_s - lasted_s))
            while True:
                try:
                    channel = await self._connect_again(tasks)
                    break
                except ConnectionLostError as error:
                    self._error = error
                    self._wanted = anyio.Event()
                    self._notify()
                    await self._wanted.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _connect_again(self, tasks: TaskGroup) -> Channel:
        options = self.options
        backoff = options.backoff()
        limit_s = options.reconnect_timeout_s
        give_up_at = None if limit_s is None else anyio.current_time() + limit_s
        while True:
            try:
                return await self._connect_any(tasks)
            except ConnectionLostError as error:
                delay_s = backoff.next_delay_s()
                if give_up_at is not None and anyio.current_time() + delay_s > give_up_at:
                    raise ConnectionLostError(
                        f"the broker did not come back within reconnect_timeout_s = {limit_s:g} s; {error.message}"
                    ) from error
                await anyio.sleep(delay_s)

    async def _connect_any(self, tasks: TaskGroup) -> Channel:
        failures: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._next_address]
            found = await tasks.start(self._hold, address)
            if isinstance(found, Channel):
                return found
            failures.append(f"{address}: {found}")
            self._next_address = (self._next_address + 1) % len(self._addresses)
        raise ConnectionLostError(
            f"no connection to a broker ({'; '.join(failures)}); check the address and that the broker runs"
        )

    async def _hold(self, address: Address, *, task_status: TaskStatus[Channel | str]) -> None:
        """Open a connection and keep it open until it is unusable; ``started()`` gets the connection, or the error."""
        connect = self.options.environment.connect
        opened = False
        try:
            async with connect_channel(
                address.host,
                address.port,
                self.options.limits,
                connect=None if connect is None else partial(connect, address.host, address.port),
                connect_timeout_s=self.options.connect_timeout_s,
            ) as channel:
                opened = True
                task_status.started(channel)
                await channel.wait_retired()
                await channel.wait_unused()
        except (OSError, DanubeError) as error:
            if opened:
                raise
            task_status.started(error.message if isinstance(error, DanubeError) else str(error) or type(error).__name__)
