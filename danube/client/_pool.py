"""The connections of a client, one for each broker that it uses: opened on demand, restored, and closed when unused.

All producers, consumers and calls of a client share the pool. Calls about a topic go to its owner
(:meth:`Pool.follow`); all others go to any broker (:meth:`Pool.channel`): the *home* connection, which begins at a seed
and moves to another known broker when its own is lost. Losing one connection does not affect the streams on others.

Home is restored in the background. When no broker has been reachable for ``reconnect_timeout_s``, all waiting callers
get :class:`ConnectionLostError`, and the pool pauses until the next call. A connection to an owner is opened when it is
needed, with one attempt; its callers decide where to ask next.

A connection may also be *retired*: a proxy has sent GOAWAY after so many calls or so much time, or the stream ids are
used up. Open streams then continue on it until they end, and new ones use a replacement connection.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from danube.client._route import MAX_LEARNT_BROKERS, Brokers, Owner, Route
from danube.client._tasks import copy_error
from danube.client._waits import Wait, Waits
from danube.model.errors import CallRefusedError, ClosedError, ConnectionLostError, DanubeError, DeadlineExceededError
from danube.wire.client import Channel, connect_channel, connection_problem

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

    from danube.client._options import ClientOptions
    from danube.client._url import Address
    from danube.model.api import TopicPartitions

__all__ = ["UNUSED_S", "Pool"]

T = TypeVar("T")

UNUSED_S: Final = 60.0
"""A connection without calls for this long, and at most for twice as long, is closed; the home connection stays."""

_CLOSED: Final = "the client is closed; open a new one with danube.connect()"

_LEAST_S: Final = 0.001
_GRACE_S: Final = 0.05
"""The last attempt ends by its own deadline, whose error says more, if it has begun."""

_MAX_REPORTED: Final = 8
"""Brokers that the error about an unreachable cluster names."""


class _Line:
    """One connection to an address, while it is being opened and used."""

    __slots__ = ("address", "channel", "dialled", "failure", "not_before_s", "opened_at_s", "used_at_s")

    def __init__(self, address: Address, not_before_s: float) -> None:
        self.address = address
        self.channel: Channel | None = None
        self.dialled = anyio.Event()
        self.failure: ConnectionLostError | None = None
        self.not_before_s = not_before_s
        self.opened_at_s = self.used_at_s = 0.0

    @property
    def live(self) -> bool:
        """Whether it takes new calls."""
        return self.channel is not None and not self.channel.retired


class Pool:
    """Connections to the brokers of a cluster."""

    def __init__(self, seeds: Sequence[Address], options: ClientOptions) -> None:
        self.options = options
        self.brokers = Brokers(seeds)
        self.waits = Waits()
        self.revision = 0
        """The highest revision of the metadata in a reply to a change: brokers must know it for lookups."""
        self._lines: dict[Address, _Line] = {}
        """The current line of each address; retired ones are not here."""
        self._home: _Line | None = None
        self._first = seeds[0]
        """The broker with which the search for a new home begins."""
        self._error: DanubeError | None = None
        self._closed = False
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._tasks: TaskGroup

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return any(line.channel is not None and not line.channel.closed for line in self._lines.values())

    # --- Choosing a connection ---------------------------------------------------------------------------------------

    async def channel(self) -> Channel:
        """Return a connection for calls that any broker answers; wait while there is none.

        Raises:
            ConnectionLostError: no broker was reachable for longer than ``reconnect_timeout_s``.
            ClosedError: the client was closed.
        """
        line = await self._at_home()
        assert line.channel is not None
        return line.channel

    async def follow(self, route: Route) -> Channel:
        """Return a connection to the broker that a route leads to next, and tell the route which one it is.

        Raises:
            ConnectionLostError: this broker does not answer; or it may be any, and none does.
            ClosedError: the client was closed.
        """
        address = route.address
        if address is None and route.turn:
            around = self.brokers.addresses(self._first)
            address = around[route.turn % len(around)]
        if address is None or (self._home is not None and address == self._home.address and self._home.live):
            route.asking(None)
            line = await self._at_home()
        else:
            route.asking(address)
            line = await self._dial(address)
        route.asking(line.address)
        assert line.channel is not None
        return line.channel

    def route(self, topic: str = "") -> Route:
        """Return a new route to a plain topic or partition, or to any broker."""
        return Route(self.brokers, topic)

    def learn(self, answer: TopicPartitions) -> None:
        """Remember the owners and brokers in the answer to a lookup."""
        for address in answer.brokers:
            self.brokers.learn(address)
        if answer.owners:
            self.brokers.several = True
        for topic, owner in zip(answer.topics, answer.owners, strict=False):
            at = self.brokers.learn(owner.address)
            known = self.brokers.owner(topic)
            if at is not None and (known is None or owner.epoch >= known.epoch):
                self.brokers.own(topic, Owner(at, owner.epoch))
        for topic, topic_id in zip(answer.topics, answer.topic_ids, strict=False):
            self.brokers.identify(topic, topic_id)

    def changed(self, revision: int) -> None:
        """Ask brokers from now on only for topics as of a revision of the metadata, or later."""
        self.revision = max(self.revision, revision)

    # --- Unary calls -------------------------------------------------------------------------------------------------

    async def unary(
        self, path: str, request: Any, kind: type[T], *, timeout_s: float | None, route: Route | None = None
    ) -> T:
        """Make a call, and repeat it if it certainly was not executed.

        That is: it was refused unprocessed, or by another broker than the topic's owner, or it was not even sent.

        Args:
            path, request, kind: as in :meth:`danube.wire.client.Channel.unary`.
            timeout_s: of all attempts together, waiting for a connection included; None: an attempt may take any time.
                Calls that are refused repeatedly fail after ``request_timeout_s`` in any case.
            route: to the topic that it is about; None: any broker can answer.

        Raises:
            DeadlineExceededError: there was no answer within ``timeout_s``, nor an error that says more.
            DanubeError: the broker's error, or the reason why there was no reply.
        """
        options = self.options
        give_up_at = anyio.current_time() + options.request_timeout_s
        backoff = options.backoff()
        route = route or self.route()
        with self._within(timeout_s, path) as (wait, left_s):
            while True:
                sent = False
                try:
                    channel = await self.follow(route)
                    sent, wait.asked = True, route.asked
                    answer = await channel.unary(path, request, kind, timeout_s=left_s())
                except DanubeError as error:
                    wait.reason = error.message
                    if route.failed(error):
                        continue
                    unsent = not sent and isinstance(error, ConnectionLostError) and route.asked is not None
                    executed = not isinstance(error, CallRefusedError) and not unsent
                    delay_s = backoff.next_delay_s()
                    if executed or anyio.current_time() + delay_s > give_up_at:
                        raise route.explained(error) from error.__cause__
                else:
                    route.answered()
                    return answer
                await anyio.sleep(delay_s)

    async def attempt(
        self, path: str, request: Any, kind: type[T], *, timeout_s: float | None, route: Route | None = None
    ) -> T:
        """Make a call once, apart from redirects; arguments and errors as of :meth:`unary`."""
        route = route or self.route()
        with self._within(timeout_s, path) as (wait, left_s):
            while True:
                try:
                    channel = await self.follow(route)
                    wait.asked = route.asked
                    answer = await channel.unary(path, request, kind, timeout_s=left_s())
                except DanubeError as error:
                    wait.reason = error.message
                    if not route.failed(error):
                        raise route.explained(error) from error.__cause__
                else:
                    route.answered()
                    return answer

    @contextmanager
    def _within(self, limit_s: float | None, path: str) -> Iterator[tuple[Wait, Callable[[], float | None]]]:
        """Limit all attempts of a call; yield its wait, and a function that returns the seconds that are left."""
        now_s = anyio.current_time()
        wait = self.waits.begin(now_s)
        give_up_at = None if limit_s is None else now_s + limit_s

        def left_s() -> float | None:
            return None if give_up_at is None else max(give_up_at - anyio.current_time(), _LEAST_S)

        try:
            with anyio.move_on_after(None if limit_s is None else limit_s + _GRACE_S) as scope:
                yield wait, left_s
        finally:
            self.waits.end(wait)
        if scope.cancelled_caught:
            raise DeadlineExceededError(f"{path}: no answer within {limit_s:g} s; {wait}")

    async def ask(self, address: Address | None, path: str, request: Any, kind: type[T], *, timeout_s: float) -> T:
        """Make a call once, to one broker (None: any), and follow no redirect; errors as of :meth:`unary`."""
        line = await (self._at_home() if address is None else self._dial(address))
        assert line.channel is not None
        return await line.channel.unary(path, request, kind, timeout_s=timeout_s)

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run work in the background until the client is closed; it handles its own errors."""
        self._check_open()
        self._tasks.start_soon(work, *args)

    # --- Connections -------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Connect, and maintain the connections until cancelled. ``started()`` is called at the first success.

        Raises:
            ConnectionLostError: no seed answered the first time (a wrong URL is reported at once).
        """
        failure: ConnectionLostError | None = None
        try:
            async with anyio.create_task_group() as self._tasks:
                try:
                    home = await self._dial_any()
                except ConnectionLostError as error:
                    failure = error  # raised without its exception group
                else:
                    task_status.started()
                    await self._keep_home(home)
        finally:
            self._closed = True
            self._home = None
            self._lines.clear()
            self._notify()
        if failure is not None:
            raise failure

    async def _at_home(self) -> _Line:
        if self._error is not None:
            self._error = None
            self._wanted.set()
        while self._home is None or not self._home.live:
            self._check_open()
            await self._changed.wait()
            if self._error is not None:
                raise copy_error(self._error)
        return self._home

    async def _keep_home(self, home: _Line) -> None:
        while True:
            self._home, self._first = home, home.address
            self._notify()
            assert home.channel is not None
            await home.channel.wait_retired()
            self._home = None
            home.used_at_s = anyio.current_time()
            while True:
                try:
                    home = await self._dial_again()
                    break
                except ConnectionLostError as error:
                    self._error = error
                    self._wanted = anyio.Event()
                    self._notify()
                    await self._wanted.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(_CLOSED)

    async def _dial_again(self) -> _Line:
        options = self.options
        backoff = options.backoff()
        limit_s = options.reconnect_timeout_s
        give_up_at = None if limit_s is None else anyio.current_time() + limit_s
        wait = self.waits.begin(anyio.current_time())
        try:
            while True:
                try:
                    return await self._dial_any()
                except ConnectionLostError as error:
                    wait.reason = error.message
                    delay_s = backoff.next_delay_s()
                    if give_up_at is not None and anyio.current_time() + delay_s > give_up_at:
                        raise ConnectionLostError(
                            f"no broker came back within reconnect_timeout_s = {limit_s:g} s; {error.message}"
                        ) from error
                    await anyio.sleep(delay_s)
        finally:
            self.waits.end(wait)

    async def _dial_any(self) -> _Line:
        """Return a connection that is open already, or else one to the first known broker that answers."""
        for line in self._lines.values():
            if line.live:
                return line
        failures: list[str] = []
        for address in self.brokers.addresses(self._first):
            try:
                return await self._dial(address)
            except ConnectionLostError as error:
                failures.append(f"{address}: {connection_problem(error, str(address))}")
        if len(failures) > _MAX_REPORTED:
            failures[_MAX_REPORTED:] = [f"and {len(failures) - _MAX_REPORTED} others"]
        raise ConnectionLostError(
            f"no connection to a broker ({'; '.join(failures)}); check the address and that the broker runs"
        )

    async def _dial(self, address: Address) -> _Line:
        """Return the connection to an address; open it if there is none."""
        self._check_open()
        now_s = anyio.current_time()
        line = self._lines.get(address)
        if line is None or (line.channel is not None and line.channel.retired) or self._may_try_again(line, now_s):
            # Do not replace a short-lived connection at once: a proxy that retires every connection would be flooded.
            opened_at_s = line.opened_at_s if line is not None and line.channel is not None else -1e9
            self._drop_dead_lines()
            line = self._lines[address] = _Line(address, opened_at_s + self.options.reconnect_initial_s)
            self._tasks.start_soon(self._hold, line)
        if line.channel is None:
            await line.dialled.wait()
        if line.failure is not None:
            raise copy_error(line.failure)
        if line.channel is None:
            raise ClosedError(_CLOSED)
        line.used_at_s = anyio.current_time()
        return line

    def _drop_dead_lines(self) -> None:
        if len(self._lines) > MAX_LEARNT_BROKERS:
            dead = [address for address, line in self._lines.items() if line.dialled.is_set() and not line.live]
            for address in dead:
                del self._lines[address]

    def _may_try_again(self, line: _Line, now_s: float) -> bool:
        """Whether an attempt has failed so long ago that callers who retry independently may cause another one."""
        return line.failure is not None and now_s >= line.opened_at_s + self.options.reconnect_initial_s / 2

    async def _hold(self, line: _Line) -> None:
        """Open a connection, and keep it open until it is unusable, or unused for a while."""
        options, address = self.options, line.address
        connect, credentials = options.environment.connect, options.credentials
        try:
            if not options.may_prove(address.host):
                raise ConnectionLostError(
                    f"{address} is another machine, and credentials are not sent there without TLS; use danube+tls://"
                )
            await anyio.sleep(max(0.0, line.not_before_s - anyio.current_time()))
            async with connect_channel(
                address.host,
                address.port,
                options.limits,
                connect=None if connect is None else partial(connect, address.host, address.port),
                connect_timeout_s=options.connect_timeout_s,
                tls=None if options.tls is None else options.tls.context(),
                authorize=credentials.authorization if credentials else None,
            ) as channel:
                line.opened_at_s = line.used_at_s = anyio.current_time()
                line.channel = channel
                self.brokers.answered(address)
                line.dialled.set()
                await self._until_unused(line, channel)
                if self._lines.get(address) is line and not channel.retired:
                    del self._lines[address]
        except (OSError, DanubeError) as error:
            if line.channel is not None:
                raise
            text = error.message if isinstance(error, DanubeError) else str(error) or type(error).__name__
            line.failure = ConnectionLostError(text)
            line.opened_at_s = anyio.current_time()
            self.brokers.failed(address)
        finally:
            line.dialled.set()

    async def _until_unused(self, line: _Line, channel: Channel) -> None:
        while not channel.retired:
            with anyio.move_on_after(UNUSED_S):
                await channel.wait_retired()
                await channel.wait_unused()
                return
            now_s = anyio.current_time()
            if channel.busy or line is self._home:
                line.used_at_s = now_s
            elif now_s - line.used_at_s >= UNUSED_S:
                return
        await channel.wait_unused()
