"""Base of the metadata stores of one broker: runs a :class:`~danube.metadata._machine.StoreMachine`, and adds leases.

A store executes calls on its machine (:meth:`LocalStore._call`); only this method differs between these
stores. The base has the state that is not data: the deadlines of leases and the positions of watches.

Leases. Deadlines are stored here, on the injected clock; the machine only executes the end of a lease. A lease is
removed from the table of deadlines before its end is passed to the machine, so :meth:`keep_alive` either renews the
lease for its full time, or fails because the lease has ended: there is no state in between.

Watches are in :mod:`danube.metadata._watched`.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, TypeVar

import trio

from danube.metadata._contract import (
    Condition,
    Delete,
    KeyValue,
    LeaseId,
    Put,
    TransactionResult,
)
from danube.metadata._machine import HistoryPage, StoreMachine
from danube.metadata._requests import lease_ended
from danube.metadata._watched import WatchedStore
from danube.model.errors import ClosedError, DanubeError, FailedPreconditionError
from danube.model.limits import Limits

__all__ = ["Clock", "LocalStore"]

Clock = Callable[[], float]
"""Seconds on a clock that never goes back; only differences count."""

_Result = TypeVar("_Result")

_EXPIRY_RETRY_S = 1.0
"""Pause before a failed end of a lease (because of a full disk, say) is retried."""


class LocalStore(WatchedStore):
    """Base of the stores whose machine runs in this process."""

    def __init__(self, *, limits: Limits | None = None, clock: Clock = trio.current_time) -> None:
        super().__init__()
        self._limits = limits if limits is not None else Limits()
        self._clock = clock
        self._deadlines: dict[LeaseId, float] = {}
        self._ttls: dict[LeaseId, float] = {}
        self._expiry: list[tuple[float, LeaseId]] = []  # heap; entries are hints, the deadlines decide
        self._expiry_changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None

    # Implemented by each store

    @abstractmethod
    async def _call(self, work: Callable[[StoreMachine], _Result]) -> _Result:
        """Run ``work`` with the machine, store its changes as the capabilities promise, :meth:`_publish`, return.

        A cancelled call may or may not have been executed; if it was, it is published.
        """

    @abstractmethod
    async def _open(self, nursery: trio.Nursery) -> list[tuple[LeaseId, float]]:
        """Open the store's resources, set ``_revision``, start tasks, and return the active leases."""

    @abstractmethod
    async def _shut(self) -> None:
        """Settle or fail the calls in progress and close the store's resources."""

    def _publish(self) -> None:
        """Pass the effects of the machine's calls to watches and leases. Called in the order of the calls."""
        effects = self._machine.take_effects()
        self._notice(effects.batches)
        now = self._clock() if effects.granted else 0.0
        for lease, ttl_s in effects.granted:
            self._arm(lease, ttl_s, now)
        for lease in effects.revoked:
            self._disarm(lease)

    async def _history(self, prefix: str, after: int) -> HistoryPage:
        return await self._call(lambda machine: machine.history(prefix, after))

    # Life

    async def __aenter__(self) -> Self:
        if self._opened or self._closed:
            raise FailedPreconditionError("a metadata store can be entered only once; create a new one")
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        try:
            now = self._clock()
            for lease, ttl_s in await self._open(nursery):
                self._arm(lease, ttl_s, now)
            nursery.start_soon(self._expire_leases, name="metadata leases")
        except BaseException:
            nursery.cancel_scope.cancel()
            await manager.__aexit__(None, None, None)
            raise
        self._nursery, self._nursery_manager = nursery, manager
        self._opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):  # bounded by the one transaction that may be under way
            await self.aclose()
        if self._nursery is not None and self._nursery_manager is not None:
            self._nursery.cancel_scope.cancel()
            # The body's exception must not pass through the nursery, which would wrap it in a group.
            await self._nursery_manager.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """See :meth:`MetadataStore.aclose`."""
        if not self._closed:
            self._closed = True
            self._wake_watches()
        await self._shut()

    # Keys

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`MetadataStore.get`."""
        self._check_open()
        self._machine.check_key(key)
        return await self._call(lambda machine: machine.get(key))

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """See :meth:`MetadataStore.list`."""
        self._check_open()
        self._machine.check_prefix(prefix)
        return await self._call(lambda machine: machine.scan(prefix))

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`."""
        self._check_open()
        conditions, operations = tuple(conditions), tuple(operations)  # the caller may change its lists during the wait
        self._machine.check_transaction(conditions, operations)
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None and operation.lease not in self._deadlines:
                raise lease_ended(operation.lease)
        return await self._call(lambda machine: machine.transact(conditions, operations))

    # Leases

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """See :meth:`MetadataStore.grant_lease`."""
        self._check_open()
        self._machine.check_ttl(ttl_s)
        return await self._call(lambda machine: machine.grant(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> None:
        """See :meth:`MetadataStore.keep_alive`."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._deadlines.get(lease, -math.inf) <= self._clock():
            raise lease_ended(lease)
        self._deadlines[lease] = self._clock() + self._ttls[lease]

    async def revoke(self, lease: LeaseId) -> int | None:
        """See :meth:`MetadataStore.revoke`."""
        self._check_open()
        return await self._call(lambda machine: machine.revoke(lease))

    def _arm(self, lease: LeaseId, ttl_s: float, now: float) -> None:
        self._ttls[lease] = ttl_s
        self._deadlines[lease] = now + ttl_s
        heapq.heappush(self._expiry, (now + ttl_s, lease))
        self._expiry_changed.set()

    def _disarm(self, lease: LeaseId) -> None:
        self._ttls.pop(lease, None)
        self._deadlines.pop(lease, None)

    async def _expire_leases(self) -> None:
        """End leases whose deadline has passed. An entry of the heap may be outdated and is checked when it is due."""
        while not self._closed:
            self._expiry_changed = trio.Event()
            now = self._clock()
            while self._expiry and self._expiry[0][0] <= now:
                _, lease = heapq.heappop(self._expiry)
                if lease not in self._ttls:
                    continue  # revoked
                deadline = self._deadlines.get(lease, now)
                if deadline > now:
                    heapq.heappush(self._expiry, (deadline, lease))  # kept alive
                    continue
                self._deadlines.pop(lease, None)  # from here on keep_alive and put are refused
                try:
                    await self._call(lambda machine, lease=lease: machine.revoke(lease))  # type: ignore[misc]
                except ClosedError:
                    return
                except DanubeError:
                    heapq.heappush(self._expiry, (now + _EXPIRY_RETRY_S, lease))
            with trio.move_on_after(self._expiry[0][0] - self._clock() if self._expiry else math.inf):
                await self._expiry_changed.wait()
