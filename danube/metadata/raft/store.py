"""The replicated metadata store: the contract of a metadata store, on any member of a group.

Every call may be made on every member. Changes return when the member that was asked has applied them, reads see every
change that was acknowledged anywhere before, and watches are served from the member's own copy of the history, so they
resume at any kept revision on any member, also across a copy that replaced the member's table.

A call that gets no answer raises UnavailableError. For a change that means: unknown, it may still be made. Nothing is
repeated inside, unless the log proves that the first attempt can never take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from types import TracebackType
from typing import Final, Self, cast

import trio

from danube.log import Disk
from danube.metadata._contract import (
    Capabilities,
    Condition,
    Delete,
    KeyValue,
    LeaseId,
    Put,
    TransactionResult,
)
from danube.metadata._machine import Effects, HistoryPage, StoreMachine
from danube.metadata._watched import WatchedStore
from danube.metadata.raft.commands import Grant, Revoke, transaction
from danube.metadata.raft.links import Links, NoLinks
from danube.metadata.raft.node import Node, Worker
from danube.metadata.raft.options import NodeOptions
from danube.metadata.raft.state import StateTable
from danube.model.cluster_api import MetadataStanding
from danube.model.errors import FailedPreconditionError
from danube.model.limits import Limits
from danube.raft import Conf, NodeId

__all__ = ["RaftStore"]

_BRIEF_REVISIONS: Final = 16
"""A watch that lacks so few revisions reads them in microseconds."""


class RaftStore(WatchedStore):
    """A member of a replicated metadata store.

    Args:
        disk: for the log; a directory of its own, locked by the caller.
        table: of this member, not open yet.
        member: the id of this member.
        first_conf: the first configuration of the group, for a member without a log. For the only member of a new
            group: ``Conf((member,))``.
        links: to the other members.
        limits: ``metadata_*`` are used. Those of the leader decide how much history is kept, and how many leases.
        random: the source of randomness: election times, and the number of this process.
        clock: a monotonic clock in seconds.
        work: runs the table's functions where they may block (default: Trio's threads).

    Entering raises DataLossError if log or table are damaged: then the member has changed nothing and takes part in
    nothing. It returns before a leader is known, except for a lone member, which leads then.
    """

    def __init__(
        self,
        disk: Disk,
        table: StateTable,
        *,
        member: NodeId,
        first_conf: Conf | None,
        links: Links | None = None,
        limits: Limits | None = None,
        random: Random,
        clock: Callable[[], float] = trio.current_time,
        work: Worker | None = None,
        options: NodeOptions = NodeOptions(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        self._limits = limits if limits is not None else Limits()
        self._member = member
        self._first_conf = first_conf
        self._checks = StoreMachine(table, self._limits)
        self.node = Node(
            disk,
            table,
            links if links is not None else NoLinks(),
            self,
            limits=self._limits,
            random=random,
            clock=clock,
            work=work,
            options=options,
        )
        """This member, for its links and its administration."""
        self._done = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """All guarantees of the contract."""
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)

    def standing(self) -> MetadataStanding:
        """What this member knows of the group; it may be the last to hear of a new leader."""
        raft = self.node.raft
        conf = raft.conf
        return MetadataStanding(
            engine="raft",
            member=raft.node_id,
            leader=raft.leader or 0,
            term=raft.term,
            committed=raft.commit,
            applied=raft.applied_index,
            voters=list(conf.voters),
            leaving=[each for each in conf.outgoing if each not in conf.voters],
            learners=list(conf.learners),
        )

    @property
    def _machine(self) -> StoreMachine:
        return self._checks

    # The observer of the node

    def changed(self, effects: Effects) -> None:
        """See :class:`~danube.metadata.raft.node.Observer`."""
        self._notice(effects.batches)

    def replaced(self, revision: int) -> None:
        """See :class:`~danube.metadata.raft.node.Observer`."""
        self._displace(revision)

    # Life

    async def __aenter__(self) -> Self:
        if self._opened or self._closed:
            raise FailedPreconditionError("a metadata store can be entered only once; create a new one")
        self._revision = await self.node.open(self._member, self._first_conf)
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        try:
            await nursery.start(self._run)
        except BaseException:
            nursery.cancel_scope.cancel()
            await manager.__aexit__(None, None, None)
            raise
        self._nursery, self._nursery_manager = nursery, manager
        self._opened = True
        return self

    async def _run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await self.node.run(task_status=task_status)
        finally:
            self._done.set()
            self._wake_watches()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):  # bounded by four short tries to hand over, one transaction and one write
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
            self.node.close()
        if self._opened:
            await self._done.wait()

    # Keys

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`MetadataStore.get`."""
        self._check_open()
        self._checks.check_key(key)
        return await self.node.read(lambda machine: machine.get(key), is_brief=True)

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """See :meth:`MetadataStore.list`."""
        self._check_open()
        self._checks.check_prefix(prefix)
        return await self.node.read(lambda machine: machine.scan(prefix))

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`."""
        self._check_open()
        self._checks.check_transaction(conditions, operations)
        return cast("TransactionResult", await self.node.execute(transaction(conditions, operations)))

    # Leases

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """See :meth:`MetadataStore.grant_lease`."""
        self._check_open()
        self._checks.check_ttl(ttl_s)
        return cast("LeaseId", await self.node.execute(Grant(ttl_s)))

    async def keep_alive(self, lease: LeaseId) -> None:
        """See :meth:`MetadataStore.keep_alive`."""
        self._check_open()
        await self.node.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> int | None:
        """See :meth:`MetadataStore.revoke`."""
        self._check_open()
        return cast("int | None", await self.node.execute(Revoke(lease)))

    # Watches

    async def _history(self, prefix: str, after: int) -> HistoryPage:
        is_brief = self._revision - after <= _BRIEF_REVISIONS
        return await self.node.read_here(lambda machine: machine.history(prefix, after), is_brief=is_brief)

    async def _reach_present(self) -> None:
        await self.node.read(lambda machine: None, is_brief=True)
