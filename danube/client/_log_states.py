"""Gathers the states of logs from the brokers that own them.

Without other brokers, one call asks for everything. In a cluster the names are looked up, and each owner is asked for
its own. A wait for changes is a long poll of each owner; the first one that ends is the change. The others go on: the
next call finds them again if nothing has changed there, so that a busy topic does not cancel and repeat the polls of
idle ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from danube.client._log_pages import has_news, milliseconds
from danube.client._retry import Retry
from danube.client._route import MAX_HOPS, MAX_OWNERS
from danube.client._tasks import together
from danube.model import api
from danube.model.errors import DanubeError, NotFoundError, NotOwnerError, UnavailableError
from danube.model.ids import Offset
from danube.model.query_api import GetLogStates, LogState, LogStates, QueryMethod

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.client._url import Address

__all__ = ["StateGatherer"]

MAX_LOOKUPS: Final = 16
"""Lookups at a time."""
MAX_POLLS: Final = 64
"""Long polls that go on without a caller; of more, the oldest are cancelled."""
PARTITIONS_S: Final = 15.0
"""The partitions of a topic are looked up again after this long: there may be more."""

_Place = tuple["Address | None", list[str]]


class _Members(NamedTuple):
    """What is behind a name, as of a lookup."""

    topics: list[str]
    """The topic itself, or its partitions."""
    looked_up_s: float


class _Poll:
    """A long poll of one broker, for as many callers as want the same."""

    def __init__(self) -> None:
        self.callers: set[anyio.Event] = set()
        self.scope = anyio.CancelScope()


class StateGatherer:
    """Asks the owners of logs for their states."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._members: dict[str, _Members] = {}
        self._polls: dict[object, _Poll] = {}

    async def states(
        self, names: Sequence[str], known: Mapping[str, Offset] | None, wait_s: float, version: int
    ) -> list[LogState]:
        """Return the states of plain topics, partitions, or all partitions of base names, in this order.

        Args:
            names: at most ``max_log_states`` topics and partitions.
            known: known end offsets, for a wait.
            wait_s: wait at most this long until a log extends beyond its known end, or
            version: of the names of topics, as any broker has answered it, has changed; 0: do not care.

        Raises:
            DanubeError: an owner does not answer, or refuses.
        """
        retry = Retry(self._pool)
        hops = 0
        fresh = False
        while True:
            fresh = fresh or not any(name in self._members for name in names)
            try:
                return await self._states(names, known, wait_s, version)
            except NotFoundError:
                self._forget(names)  # perhaps one was deleted and created again, with fewer partitions
                if fresh:
                    raise
            except DanubeError as error:
                if isinstance(error, UnavailableError):
                    self._forget(names)
                hops = hops + 1 if isinstance(error, NotOwnerError) else 0
                if 0 < hops <= MAX_HOPS:
                    self._pool.brokers.learn(error.details.get("address", ""))
                    self._pool.brokers.several = True
                elif not error.retryable or not await retry.wait(error):
                    raise
                else:
                    hops = 0

    async def _states(
        self, names: Sequence[str], known: Mapping[str, Offset] | None, wait_s: float, version: int
    ) -> list[LogState]:
        if not self._pool.brokers.several:
            return await self._ask((None, list(names)), known, wait_s, version)
        members, places = await self._places(names)
        states = await self._ask_all(members, places)
        if not wait_s or known is None or has_news(states, known):
            return states
        changed = anyio.Event()
        polls = [self._poll(place, known, wait_s, 0) for place in places]
        if version:
            polls.append(self._poll((None, []), {}, wait_s, version))
        for poll in polls:
            poll.callers.add(changed)
        try:
            with anyio.move_on_after(wait_s):
                await changed.wait()
        finally:
            for poll in polls:
                poll.callers.discard(changed)
        return await self._ask_all(members, places)

    # --- Places ------------------------------------------------------------------------------------------------------

    async def _places(self, names: Sequence[str]) -> tuple[list[str], list[_Place]]:
        """Return the topics and partitions behind names, and which of them to ask whom for."""
        unknown = [name for name in names if not self._is_placed(name)]
        if unknown:
            limiter = anyio.CapacityLimiter(MAX_LOOKUPS)
            await together([partial(self._look_up, name, limiter) for name in unknown])
        members = [member for name in names for member in self._members[name].topics]
        places: dict[Address | None, list[str]] = {}
        for member in members:
            owner = self._pool.brokers.owner(member)
            places.setdefault(None if owner is None else owner.address, []).append(member)
        return members, list(places.items())

    def _is_placed(self, name: str) -> bool:
        owner, found = self._pool.brokers.owner, self._members.get(name)
        if found is None or not all(owner(member) is not None for member in found.topics):
            return False
        may_have_grown = found.topics != [name] and anyio.current_time() - found.looked_up_s >= PARTITIONS_S
        return not may_have_grown

    async def _look_up(self, name: str, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            began_s = anyio.current_time()
            timeout_s = self._pool.options.request_timeout_s
            found = await self._pool.ask(
                None,
                api.Method.LOOKUP_TOPIC,
                api.LookupTopic(name, self._pool.revision),
                api.TopicPartitions,
                timeout_s=timeout_s,
            )
        self._pool.learn(found)
        if len(self._members) >= MAX_OWNERS:
            self._members.clear()
        self._members[name] = _Members(found.topics, began_s)

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            found = self._members.pop(name, None)
            for member in () if found is None else found.topics:
                owner = self._pool.brokers.owner(member)
                if owner is not None:
                    self._pool.brokers.disown(member, owner.address)

    # --- Calls -------------------------------------------------------------------------------------------------------

    async def _ask_all(self, members: Sequence[str], places: Sequence[_Place]) -> list[LogState]:
        answers = await together([partial(self._ask, place, None, 0.0, 0) for place in places])
        found = {state.name: state for states in answers for state in states}
        return [found[member] for member in members if member in found]

    async def _ask(
        self, place: _Place, known: Mapping[str, Offset] | None, wait_s: float, version: int
    ) -> list[LogState]:
        address, names = place
        request = GetLogStates(names, dict(known or {}), milliseconds(wait_s), version)
        timeout_s = self._pool.options.request_timeout_s + wait_s
        answer = await self._pool.ask(address, QueryMethod.STATE, request, LogStates, timeout_s=timeout_s)
        return answer.states

    def _poll(self, place: _Place, known: Mapping[str, Offset], wait_s: float, version: int) -> _Poll:
        """Return a long poll that is under way, or begin one."""
        address, names = place
        ends = {name: known[name] for name in names if name in known}
        key = (address, tuple(names), tuple(ends.items()), version)
        poll = self._polls.get(key)
        if poll is None:
            while len(self._polls) >= MAX_POLLS:
                self._polls.pop(next(iter(self._polls))).scope.cancel()
            poll = self._polls[key] = _Poll()
            self._pool.spawn(self._run_poll, key, poll, (address, names), ends, wait_s, version)
        return poll

    async def _run_poll(
        self, key: object, poll: _Poll, place: _Place, known: Mapping[str, Offset], wait_s: float, version: int
    ) -> None:
        try:
            with poll.scope:
                try:
                    await self._ask(place, known, wait_s, version)
                except DanubeError:
                    # The caller asks again and gets the error itself; the pause keeps it from doing so in a circle.
                    await anyio.sleep(self._pool.options.reconnect_initial_s)
        finally:
            if self._polls.get(key) is poll:
                del self._polls[key]
            for caller in poll.callers:
                caller.set()
