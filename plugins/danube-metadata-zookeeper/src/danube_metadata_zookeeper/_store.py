"""The metadata store in ZooKeeper.

ZooKeeper has what the contract needs, but not in its form: versions of nodes instead of one revision, watches that tell
once that something has changed, ephemeral nodes that vanish without a trace. So the store is a log in ZooKeeper, as
:mod:`~danube_metadata_zookeeper._records` describes, that all clients of a root apply to copies of their own:

* **A change** is one ``multi``: it sets ``revision`` on the condition of its version, and appends an entry to the log.
  Requests that arrive meanwhile are committed together (:mod:`~danube_metadata_zookeeper._group`).
* **A read** is answered from the copy, after a commit that only checks ``revision`` has confirmed that it is the
  present state. ``sync`` is not enough: a leader that was replaced, and does not know it yet, answers it.
* **A watch** reads the history in memory; a watch of ``revision`` tells the store of new entries, which it reads by
  their numbers. Nothing is missed, because nothing is read in another way.
* **A lease** is a node, and its keep-alive raises the node's version (:mod:`~danube_metadata_zookeeper._leases`). A
  session of ZooKeeper would be a lease of at most 20 ticks, with a connection of its own that dies with its process,
  and its end would delete nodes at no revision of the store. So the store's session is only a connection: when it
  expires, nothing is lost.

No change is repeated: if its answer is lost, :class:`UnavailableError` is raised, and it may have been applied.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import trio

from danube.metadata import (
    Capabilities,
    Condition,
    Delete,
    HistoryPage,
    KeyValue,
    LeaseId,
    MemoryTable,
    Put,
    StoreMachine,
    TransactionResult,
    WatchedStore,
    lease_ended,
)
from danube.model.cluster_api import MetadataStanding
from danube.model.errors import (
    ClosedError,
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    UnavailableError,
)
from danube.model.limits import KIB, Limits
from danube_metadata_zookeeper._group import (
    MOST_TOGETHER,
    Group,
    Request,
    check_size,
    end_lease,
    form_group,
    grant,
    transact,
)
from danube_metadata_zookeeper._leases import GONE, LeaseClock
from danube_metadata_zookeeper._loading import check_head, found_root, load, read_entries
from danube_metadata_zookeeper._mirror import Mirror
from danube_metadata_zookeeper._nodes import Node, Nodes, Refusal, RefusedError, SetNode
from danube_metadata_zookeeper._records import Head, Paths
from danube_metadata_zookeeper._tidying import tidy

__all__ = ["LEAST_PACKET_BYTES", "ZooKeeperStore"]

_log: Final = logging.getLogger("danube.metadata.zookeeper")

LEAST_PACKET_BYTES: Final = 512 * KIB
_PACKET_OVERHEAD: Final = 16 * KIB
"""Bytes of a packet that are left for all but the entry: paths, the head, leases."""
_MOST_WAITING: Final = 10_000
"""Most requests that wait for a commit."""
_REMIND_S: Final = 0.2
"""Pause before news that could not be read are read again."""
_LOOKS_TOGETHER: Final = 64


class ZooKeeperStore(WatchedStore):
    """A metadata store below a root in ZooKeeper.

    Entering it connects, founds the root if there is none, and reads everything.

    Args:
        nodes: of ZooKeeper; this store runs and closes them.
        root: path of the node that has everything: empty for ZooKeeper's own root, or a valid key such as ``/danube``.
        limits: of requests, leases and the history.
        clock: decides when leases end.
        random: makes the id of a new root, and names.
        request_timeout_s: how long a call may wait, at most twice: for the commit that is under way, and its own.
        max_packet_bytes: ``jute.maxbuffer`` of the servers.
    """

    def __init__(
        self,
        nodes: Nodes,
        root: str,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = trio.current_time,
        random: Random | None = None,
        request_timeout_s: float = 5.0,
        max_packet_bytes: int = 1024 * KIB - 1,
    ) -> None:
        super().__init__()
        self.nodes = nodes
        self.paths = Paths(root)
        self._limits = limits if limits is not None else Limits()
        self._clock = clock
        self._random = random if random is not None else Random()
        self._request_timeout_s = request_timeout_s
        self._most_bytes = max_packet_bytes - _PACKET_OVERHEAD
        self._checks = StoreMachine(MemoryTable(), self._limits)
        self._mirror: Mirror
        self._head: Head
        self._version = 0
        self._queue: deque[Request] = deque()
        self._wanted = trio.Event()
        self._news = False
        self._reminding = False
        self._leases_changed = trio.Event()
        self._untidy = trio.Event()
        self._failure: DanubeError | None = None
        self._nursery: trio.Nursery | None = None
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """All guarantees of the contract."""
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)

    def standing(self) -> MetadataStanding:
        """The metadata are kept by ZooKeeper, whose own tools tell about its servers."""
        return MetadataStanding(engine="zookeeper", kept_by=f"ZooKeeper at {self.nodes.place}")

    @property
    def _machine(self) -> StoreMachine:
        return self._checks

    async def _history(self, prefix: str, after: int) -> HistoryPage:
        await trio.lowlevel.checkpoint()
        self._check_open()
        return StoreMachine(self._mirror.table, self._limits).history(prefix, after)

    async def _reach_present(self) -> None:
        await self._ask(Request(lambda _machine: None, is_read=True))

    # Life

    async def __aenter__(self) -> Self:
        if self._opened or self._closed:
            raise FailedPreconditionError("a metadata store can be entered only once; create a new one")
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        try:
            nursery.start_soon(self.nodes.run, name="zookeeper connection")
            await found_root(self.nodes, self.paths, self._random)
            await self._load()
            nursery.start_soon(self._run, name="zookeeper commits")
            nursery.start_soon(self._end_leases, name="zookeeper leases")
            nursery.start_soon(self._tidy, name="zookeeper log")
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
        await self.aclose()
        if self._nursery is not None and self._nursery_manager is not None:
            self._nursery.cancel_scope.cancel()
            # The body's exception must not pass through the nursery, which would wrap it in a group.
            await self._nursery_manager.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """See :meth:`MetadataStore.aclose`. Leases are not revoked."""
        if not self._closed:
            self._closed = True
            self.nodes.close()
            self._refuse_queue(ClosedError("the metadata store is closed; open it again"))
            self._wake_watches()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _check_open(self) -> None:
        super()._check_open()
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def _refuse_queue(self, error: DanubeError) -> None:
        while self._queue:
            self._queue.popleft().answer(error)

    # Calls

    async def _ask(self, request: Request) -> Any:
        """Queue a request and return its result. If cancelled, it may have been executed."""
        self._check_open()
        if len(self._queue) >= _MOST_WAITING:
            raise UnavailableError(
                f"{_MOST_WAITING} requests wait for ZooKeeper at {self.nodes.place}; try again later"
            )
        answered = trio.Event()
        request.on_answer = answered.set
        self._queue.append(request)
        self._wanted.set()
        try:
            with trio.move_on_after(2 * self._request_timeout_s):
                await answered.wait()
        finally:
            request.is_withdrawn = not request.is_answered
        if request.is_withdrawn:
            raise UnavailableError(
                f"ZooKeeper at {self.nodes.place} has not answered within {2 * self._request_timeout_s:g} s;"
                " the request may have been applied"
            )
        if request.error is not None:
            raise type(request.error)(request.error.message) from request.error
        return request.result

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`MetadataStore.get`."""
        self._check_open()
        self._checks.check_key(key)
        item: KeyValue | None = await self._ask(Request(lambda machine: machine.get(key), is_read=True))
        return item

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """See :meth:`MetadataStore.list`."""
        self._check_open()
        self._checks.check_prefix(prefix)
        found: tuple[Sequence[KeyValue], int] = await self._ask(
            Request(lambda machine: machine.scan(prefix), is_read=True)
        )
        return found

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`."""
        self._check_open()
        conditions, operations = tuple(conditions), tuple(operations)  # the caller may change its lists during the wait
        self._checks.check_transaction(conditions, operations)
        most = self._most_bytes
        size = check_size(operations, most)
        result: TransactionResult = await self._ask(
            Request(lambda machine: transact(machine, conditions, operations, most), size=lambda _machine: size)
        )
        return result

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """See :meth:`MetadataStore.grant_lease`."""
        self._check_open()
        self._checks.check_ttl(ttl_s)
        most = self._most_bytes
        lease: LeaseId = await self._ask(
            Request(lambda machine: grant(machine, ttl_s, most), size=lambda _machine: KIB)
        )
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        """See :meth:`MetadataStore.keep_alive`. One write of ZooKeeper, which does not wait for others."""
        self._check_open()
        try:
            await self.nodes.commit([SetNode(self.paths.lease(lease), b"")], f"keep-alive of lease {lease}")
        except RefusedError as error:
            raise lease_ended(lease) from error

    async def revoke(self, lease: LeaseId) -> int | None:
        """See :meth:`MetadataStore.revoke`."""
        revision: int | None = await self._ask(end_lease(lease))
        return revision

    # Commits

    async def _run(self) -> None:
        """Task: settle requests, and hear of what others have changed. The only one that changes the mirror."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self._queue:
                    await self._settle()
                    await trio.lowlevel.checkpoint()  # for callers that go on: their next request comes before news
                if self._news:
                    await self._hear()
        except DataLossError as error:
            self._failure = error
            self._refuse_queue(error)
            self._wake_watches()

    def _told(self) -> None:
        """Note that ``revision`` has changed, or the connection was lost."""
        self._news = True
        self._wanted.set()

    async def _hear(self) -> None:
        try:
            await self._catch_up()
        except DataLossError:
            raise
        except DanubeError:
            self._news = True
            if not self._reminding and self._nursery is not None:
                self._reminding = True
                self._nursery.start_soon(self._remind)

    async def _remind(self) -> None:
        await trio.sleep(_REMIND_S)
        self._reminding = False
        self._wanted.set()

    async def _settle(self) -> None:
        """Commit the requests that wait, and answer them."""
        requests = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_TOGETHER))]
        try:
            missing: set[LeaseId] = set()
            while requests:
                group = form_group(
                    self._mirror,
                    self._head,
                    self._version,
                    requests,
                    paths=self.paths,
                    limits=self._limits,
                    most_bytes=self._most_bytes,
                    missing=frozenset(missing),
                )
                self._queue.extendleft(reversed(group.left))
                requests = group.taken
                if requests and await self._commit(group, missing):
                    return
                requests = [request for request in requests if not request.is_answered]
        except DanubeError as error:
            for request in requests:
                request.answer(error)
            if isinstance(error, DataLossError):
                raise
        except trio.Cancelled:
            for request in requests:
                request.answer(ClosedError("the metadata store is closed; open it again"))
            raise

    async def _commit(self, group: Group, missing: set[LeaseId]) -> bool:
        """Commit a group and answer it; return False if it has to be formed again, from what is known now."""
        for request in group.taken:
            request.is_sent = True
        connections = self.nodes.connections
        try:
            versions = await self.nodes.commit(group.operations, "transaction")
        except RefusedError as error:
            for request in group.taken:
                request.is_sent = False
            if error.index == 0:
                await self._overtaken(group, error.why, connections)
            elif error.index in group.ends:
                lease, asker = group.ends[error.index]
                if error.why is Refusal.MISSING:
                    missing.add(lease)
                elif asker is not None:
                    asker.answer(None)  # renewed meanwhile
            else:
                raise DataLossError(
                    f"ZooKeeper's nodes below {self.paths.root or '/'} contradict each other:"
                    f" {group.operations[error.index].path}: {error.why.value}; restore them from a backup"
                ) from error
            return False
        if group.entry is not None:
            self._take(self._mirror.position + 1, group)
            self._version = versions[0]
        machine = StoreMachine(self._mirror.table, self._limits)
        for request, outcome in zip(group.taken, group.outcomes, strict=True):
            request.answer(_result(request, machine) if request.is_read else outcome)
        return True

    def _take(self, position: int, group: Group) -> None:
        assert group.entry is not None
        batches = self._mirror.apply(position, group.entry, group.size)
        self._head = Head(self._head.format, self._head.store, position, self._mirror.table.revision)
        if group.entry.granted or group.entry.ended:
            self._leases_changed.set()
        self._notice(batches)
        if self._mirror.needs_snapshot or self._mirror.needs_trimming:
            self._untidy.set()

    async def _overtaken(self, group: Group, why: Refusal, connections: int) -> None:
        """Catch up with what others have committed, and answer the reads of a refused group."""
        if why is Refusal.MISSING:
            raise DataLossError(
                f"ZooKeeper's node {self.paths.revision} is gone: the metadata were deleted; restore them from a backup"
            )
        position = self._mirror.position
        await self._catch_up()
        if self.nodes.connections != connections:
            return  # another server, which may not have seen the refusal
        if self._mirror.position == position:
            raise DataLossError(
                f"ZooKeeper's node {self.paths.revision} went back to position {position} or before: was it restored"
                " from a backup? Restart the broker"
            )
        machine = StoreMachine(self._mirror.table, self._limits)
        for request in group.taken:
            if request.is_read:
                request.answer(_result(request, machine))

    async def _catch_up(self) -> None:
        """Apply what others have committed. A server that lags behind has nothing new."""
        self._news = False
        node = await self.nodes.read(self.paths.revision, self._told)
        head = check_head(node, self.paths, self._head.store)
        assert node is not None
        if head.position > self._mirror.position:
            try:
                await self._follow(head)
            except BaseException:
                self._news = True
                raise
        if head.position == self._mirror.position:
            self._head, self._version = head, node.version

    async def _follow(self, head: Head) -> None:
        while self._mirror.position < head.position:
            for position, entry, size in await read_entries(
                self.nodes, self.paths, self._mirror.position + 1, head.position
            ):
                if entry is None:
                    # Others have deleted it: this client was away for longer than the history.
                    await self._load()
                    return
                self._notice(self._mirror.apply(position, entry, size))
                self._head = Head(head.format, head.store, position, self._mirror.table.revision)
                if entry.granted or entry.ended:
                    self._leases_changed.set()

    async def _load(self) -> None:
        """Read everything."""
        known = self._head.store if self._opened else None
        node: Node
        self._mirror, self._head, node = await load(self.nodes, self.paths, self._limits, self._told, known)
        self._version = node.version
        self._leases_changed.set()
        self._displace(self._mirror.table.revision)

    # Leases

    async def _end_leases(self) -> None:
        """Task: look at the leases, and end those whose time is up."""
        clock = LeaseClock()
        connections = self.nodes.connections
        while not self._closed and self._failure is None:
            now = self._clock()
            if self._leases_changed.is_set():
                self._leases_changed = trio.Event()
                clock.follow(self._mirror.table.leases(), now)
            if self.nodes.connections != connections:
                connections = self.nodes.connections
                clock.reset(now)
            due: list[LeaseId] = []
            while len(due) < _LOOKS_TOGETHER and (lease := clock.take(now)) is not None:
                due.append(lease)
            if not due:
                with trio.move_on_after(clock.next_look() - now):
                    await self._leases_changed.wait()
                continue
            try:
                found = await self.nodes.read_many([self.paths.lease(lease) for lease in due])
            except DanubeError:
                for lease in due:
                    clock.again(lease, self._clock())
                clock.reset(self._clock())
                continue
            for lease, node in zip(due, found, strict=True):
                version = node.version if node is not None else GONE
                if clock.seen(lease, version, now, self._clock()):
                    await self._end(lease, version if node is not None else None)

    async def _end(self, lease: LeaseId, renewals: int | None) -> None:
        try:
            await self._ask(end_lease(lease, renewals))
        except DanubeError:
            # It is looked at again in a quarter of its time; a store that was closed ends this task.
            await trio.lowlevel.checkpoint()

    # The log

    async def _tidy(self) -> None:
        """Task: write snapshots and delete entries that nothing needs, after changes of this client."""
        while True:
            await self._untidy.wait()
            self._untidy = trio.Event()
            try:
                await tidy(self.nodes, self.paths, lambda: self._mirror, self._random, self._most_bytes)
            except (UnavailableError, ClosedError, RefusedError):
                # Another client was faster, or ZooKeeper is away: the next change tries again.
                await trio.lowlevel.checkpoint()
            except DanubeError as error:
                _log.warning("the log of the metadata in ZooKeeper cannot be shortened: %s", error.message)


def _result(request: Request, machine: StoreMachine) -> Any:
    try:
        return request.work(machine)
    except DanubeError as error:
        return error
