"""One member of a group: the loops around :class:`~danube.metadata.raft.replica.Replica`, which decides everything.

Two tasks do the work. The *driver* gives what has arrived (messages, calls, time) to the replica, and carries out what
it asks for: messages at once, writes through the log, in their order and overlapping with both. It gives committed
entries to the table, and answers calls and reads from there, as long as that takes microseconds. The *applier* does the
same on a worker thread with what may take longer, or wait for the disk::

    calls ──▶ proposals ──▶ leader's log ──▶ committed ──▶ table ──▶ outcomes ──▶ calls
                 │               ▲
                 └── forwarded ──┘        reads ──▶ index from the leader ──▶ table at that index

Load makes the batches, no timer: commands that arrive while others are on their way form one proposal, entries that
arrive during a sync share the next one, and all reads that wait share one round of heartbeats. Callers that were
answered run before the next turn, so that the message with their next command tells of the commit as well.

Any member takes any call. Commands go to the leader (:mod:`danube.metadata.raft.forwarding`), and are answered by the
member that was asked, once its own table has them: so a caller sees its own changes there. Reads ask the leader for an
index, and read the member's own table when it has come so far. Keep-alives are answered by the leader after it has
confirmed its leadership.

A member that is its group's only one leads at once, needs no ticks while no lease is open, and writes nothing while it
is idle.

Ends. A failed sync of the log, or an error of the table, ends the member (R24): all calls raise that error, and nothing
is sent any more. The process should exit.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, Protocol, TypeVar, cast

import trio

from danube.log import Disk
from danube.metadata._contract import LeaseId
from danube.metadata._machine import Effects, StoreMachine
from danube.metadata.raft.calls import Call, Read, again
from danube.metadata.raft.commands import Command, encode_command, may_compare
from danube.metadata.raft.cutting import is_cut_due
from danube.metadata.raft.links import Links
from danube.metadata.raft.messages import (
    AddLearner,
    MembersRequest,
    Promote,
    Remove,
    SetMembers,
    encode_payload,
)
from danube.metadata.raft.options import NodeOptions
from danube.metadata.raft.replica import Replica
from danube.metadata.raft.start import Start, first_base, start_of
from danube.metadata.raft.state import Applied, Bounds, Outcome, ReplicatedState, StateTable
from danube.metadata.raft.transfer import Copy, Step
from danube.metadata.raft.wal import Wal
from danube.model.errors import (
    ClosedError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    InternalError,
    LimitExceededError,
    OutOfDescriptorsError,
)
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.raft import Base, Conf, Entry, NodeId, Raft

__all__ = ["Node", "Observer", "Worker", "in_thread"]

_log = logging.getLogger("danube.metadata")

_Result = TypeVar("_Result")

_INBOX_PAYLOADS: Final = 1_000
"""Most payloads that wait to be processed; further ones are lost."""
_FULL_RETRY_S: Final = 1.0


class Worker(Protocol):
    """Runs functions of the table, one at a time, where they may block."""

    async def __call__(self, function: Callable[[], _Result]) -> _Result:
        """Run a function; not interrupted by cancellation."""


def in_thread() -> Worker:
    """Return a worker that uses Trio's threads."""
    limiter = trio.CapacityLimiter(1)

    async def work(function: Callable[[], _Result]) -> _Result:
        return await trio.to_thread.run_sync(function, limiter=limiter)

    return work


class Observer(Protocol):
    """Hears of changes of the table, in the event loop and in their order."""

    def changed(self, effects: Effects) -> None:
        """Note what entries have changed. Called before their callers get their answers."""

    def replaced(self, revision: int) -> None:
        """Note that the table was replaced by a copy, at this revision."""


class Node:
    """A member of a group. See the module; :meth:`run` must be running for anything else.

    Args:
        disk: for the log; a directory of its own.
        table: of this member.
        links: to the other members.
        observer: hears of changes.
        limits: ``metadata_*`` are used.
        random: the source of randomness.
        clock: a monotonic clock in seconds.
        work: runs the table's functions.
    """

    def __init__(
        self,
        disk: Disk,
        table: StateTable,
        links: Links,
        observer: Observer,
        *,
        limits: Limits,
        random: Random,
        clock: Callable[[], float] = trio.current_time,
        work: Worker | None = None,
        options: NodeOptions = NodeOptions(),  # noqa: B008 - immutable
    ) -> None:
        self._table = table
        self._links = links
        self._observer = observer
        self._limits = limits
        self._random = random
        self._clock = clock
        self._work = work or in_thread()
        self._options = options
        self._wal = Wal(disk, self._was_written, file_bytes=options.file_bytes, clock=clock)
        self._life = random.getrandbits(63)
        self._replica: Replica
        self._state: ReplicatedState
        self._start: Start
        self._is_open = False
        self._has_applied = False
        self._failure: DanubeError | None = None
        self._ended = trio.Event()
        self._nursery: trio.Nursery

        self._news = trio.Event()
        self._pause = trio.CancelScope()
        self._pause_ends = math.inf
        self._payloads: deque[bytes] = deque()
        self._apply_news = trio.Event()
        self._piece_news = trio.Event()
        self._led_by_another = trio.Event()
        self._table_lock = trio.Lock()
        self._last_cut = 0
        self._is_cutting = False

    # --- Life

    async def open(self, member: NodeId, first_conf: Conf | None) -> int:
        """Read log and table; return the table's revision. To be called once, before :meth:`run`.

        Args:
            member: the id of this member.
            first_conf: for a member without a log: the first configuration of its group.

        Raises:
            DataLossError: log or table are damaged, or do not belong together.
            FailedPreconditionError: the log belongs to another member, or there is none and no configuration was given.
            DanubeError: the disk cannot be used.
        """
        contents = await self._wal.recover()
        base = first_base(member, contents, first_conf)
        await self._work(self._table.open)
        try:
            self._state = ReplicatedState(self._table, self._limits, base.conf)
            self._state.load()
            mark = self._state.mark
            start = self._start = start_of(contents, base, mark)
            leases = await self._work(self._table.leases)
        except BaseException:
            await self._work(self._table.close)
            raise
        self._replica = Replica(
            Raft(
                member,
                start.base,
                hard=start.hard,
                entries=start.entries,
                applied=mark.index,
                chance=self._random.randrange,
                settings=self._options.settings,
            ),
            life=self._life,
            leases=leases,
            bounds=Bounds.of(self._limits),
            options=self._options,
            chance=self._random.random,
        )
        self._last_cut = mark.index
        self._is_open = True
        return self._table.revision

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until :meth:`close`, or cancellation. An error ends the member and is kept in :attr:`failure`.

        Raises:
            DanubeError: the member could not even begin.
        """
        has_begun = False
        try:
            async with trio.open_nursery() as outer:
                await outer.start(self._wal.run)
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._settle_start()
                    nursery.start_soon(self._drive)
                    nursery.start_soon(self._keep_time)
                    nursery.start_soon(self._apply_loop)
                    nursery.start_soon(self._receive_loop)
                    has_begun = True
                    task_status.started()
                    await self._ended.wait()
                    if self._failure is None:
                        await self._hand_over()
                    nursery.cancel_scope.cancel()
                await self._wal.aclose()
        except* DanubeError as group:
            self._fail(_first(group))
        finally:
            self._fail(ClosedError("the metadata store was closed before the call was done"))
            with trio.CancelScope(shield=True):  # bounded: one transaction and a close
                async with self._table_lock:
                    await self._work(self._table.close)
        if not has_begun and self._failure is not None:
            raise self._failure

    async def _settle_start(self) -> None:
        """Bring the log in step with what :meth:`open` has found."""
        start = self._start
        if start.hard is None:
            await self._wal.begin(self.member, start.base)
            return
        self._wal.release()
        if start.repair is not None:
            if start.repair.base is not None:
                await self._wal.end_install(start.repair.base)
            else:
                await self._wal.begin_install(0)  # the copy is received again

    def close(self) -> None:
        """End :meth:`run`: another member takes over if this one leads; calls in progress fail with ClosedError."""
        self._ended.set()

    def _fail(self, error: DanubeError) -> None:
        """End with an error: all calls raise it from now on."""
        if self._failure is None:
            self._failure = error
            if not isinstance(error, ClosedError):
                _log.critical("the metadata member has stopped: %s", error, extra=log_event("metadata.stopped"))
        self._replica.fail(self._failure)
        self._ended.set()
        self._led_by_another.set()

    @property
    def failure(self) -> DanubeError | None:
        """What has ended the member."""
        return self._failure

    def exclude(self, error: DanubeError) -> None:
        """End the member, which does not belong to the group any more: all calls raise this error."""
        self._fail(error)

    async def wait_ended(self) -> None:
        """Wait until the member has failed, or is being closed."""
        await self._ended.wait()

    # --- What it is

    @property
    def member(self) -> NodeId:
        """The id of this member."""
        return self._replica.member

    @property
    def raft(self) -> Raft:
        """The core, to look at."""
        return self._replica.raft

    @property
    def machine(self) -> StoreMachine:
        """For its ``check_`` methods."""
        return self._state.machine

    @property
    def is_alone(self) -> bool:
        """Whether this is the only member."""
        return self._replica.is_alone

    # --- Calls

    async def execute(self, command: Command) -> Outcome:
        """Have a command applied; return its outcome once this member's table has it.

        Raises:
            UnavailableError: not answered in time; it may still be applied, unless the message says otherwise.
            DanubeError: the command was refused, and has changed nothing; or this member has failed.
        """
        data = encode_command(command)
        return cast("Outcome", await self._call(lambda replica, now: replica.execute(data, now)))

    async def read(self, work: Callable[[StoreMachine], _Result], *, is_brief: bool = False) -> _Result:
        """Run a function on the table when it has everything that was acknowledged before.

        Args:
            work: the function; it may run on a worker thread.
            is_brief: whether it takes microseconds, as reading one key does.

        Raises:
            UnavailableError: no leader has confirmed that in time.
        """
        return cast("_Result", await self._call(lambda replica, now: replica.read(work, now, is_brief=is_brief)))

    async def read_here(self, work: Callable[[StoreMachine], _Result], *, is_brief: bool = False) -> _Result:
        """Run a function on the table as it is; arguments as in :meth:`read`."""
        return cast("_Result", await self._call(lambda replica, now: replica.read_here(work, now, is_brief=is_brief)))

    async def keep_alive(self, lease: LeaseId) -> None:
        """Renew a lease.

        Raises:
            NotFoundError: it has ended.
            UnavailableError: not answered in time; it may have been renewed.
        """
        await self._call(lambda replica, now: replica.keep_alive(lease, now))

    async def _call(self, begin: Callable[[Replica, float], Call]) -> Any:
        if self._failure is not None:
            await trio.lowlevel.checkpoint()
            raise again(self._failure)
        call = begin(self._replica, self._clock())
        answered = trio.Event()
        call.on_answer = answered.set
        self._wake()
        try:
            await answered.wait()
        finally:
            call.is_withdrawn = True
        if call.error is not None:
            raise call.error
        return call.result

    def deliver(self, payload: bytes) -> None:
        """Take a payload from a link. Never waits; if too many wait, it is lost."""
        if len(self._payloads) < _INBOX_PAYLOADS:
            self._payloads.append(payload)
            self._wake()

    def refused(self, node: NodeId) -> None:
        """Note that the link to a member broke, and that its port refuses connections: its process is dead (R5)."""
        if self._is_open and self._failure is None:
            self._replica.refused(node, self._clock())
            self._wake()

    # --- Members

    async def change_members(
        self, voters: Sequence[NodeId], learners: Sequence[NodeId] = (), *, instead_of: Conf | None = None
    ) -> Conf:
        """Change the members of the group; return them when the change is complete. May be asked at any member.

        Args:
            voters, learners: all members from now on.
            instead_of: those that they were worked out from; None: no matter which members there are.

        Raises:
            UnavailableError: another change is in progress, the members are not ``instead_of`` any more, or no answer
                came, perhaps because the leader has ended: look, and try again. The message says if the change may
                still happen.
            InvalidArgumentError: the members are invalid.
        """
        return await self._change(SetMembers(tuple(voters), tuple(learners), instead_of))

    async def add_learner(self, member: NodeId) -> Conf:
        """Add a member that receives the log and has no vote; as :meth:`change_members`."""
        return await self._change(AddLearner(member))

    async def promote(self, member: NodeId) -> Conf:
        """Make a learner a voter; as :meth:`change_members`.

        Raises:
            FailedPreconditionError: it is no learner, or too far behind the log.
        """
        return await self._change(Promote(member))

    async def remove(self, member: NodeId) -> Conf:
        """Remove a member; as :meth:`change_members`."""
        return await self._change(Remove(member))

    async def _change(self, request: MembersRequest) -> Conf:
        return cast("Conf", await self._call(lambda replica, now: replica.change_members(request, now)))

    def transfer(self, to: NodeId) -> bool:
        """Ask another voter to lead; False if this member does not lead, or that one has no vote."""
        done = self.raft.transfer(to)
        self._wake()
        return done

    async def _hand_over(self) -> None:
        """Have another voter lead before this member stops: then the group need not miss it first (R21)."""
        options = self._options
        self._led_by_another = trio.Event()
        for successor in self._replica.successors():
            self.transfer(successor)
            with trio.move_on_after(2 * options.settings.heartbeat_ticks * options.tick_s):
                await self._led_by_another.wait()
                return

    # --- The driver

    def _wake(self) -> None:
        self._news.set()

    def _was_written(self, number: int) -> None:
        self._replica.written(number)
        self._news.set()

    async def _drive(self) -> None:
        replica = self._replica
        replica.begin(self._clock())
        while True:
            await self._turn()
            if replica.has_begun_write and replica.is_applicable:
                await _let_others_run()  # the log, whose write overlaps with the table's
            if self._apply_at_once():
                await _let_others_run()  # callers whose calls were answered
            elif self._news.is_set():
                await trio.lowlevel.checkpoint()
            else:
                self._set_pause(math.inf if replica.is_idle else replica.next_turn)
                await self._news.wait()

    def _set_pause(self, end: float) -> None:
        """Have a turn made at a time although nothing has arrived."""
        if end != self._pause_ends:
            self._pause_ends = end
            self._pause.deadline = trio.current_time() + max(0.0, end - self._clock())

    async def _keep_time(self) -> None:
        """Wake the driver at the end of each pause."""
        while True:
            self._wake()
            self._pause, self._pause_ends = trio.CancelScope(), math.inf
            with self._pause:
                await trio.sleep_forever()

    async def _turn(self) -> None:
        """Take everything that has arrived, and carry out what the replica asks for."""
        replica = self._replica
        self._news = trio.Event()
        payloads, self._payloads = self._payloads, deque()
        replica.begin_turn(self._clock(), payloads)
        if replica.has_pieces:
            self._piece_news.set()
        while (work := replica.next_work()) is not None:
            if work.ready is not None:
                replica.writing(work.ready, pending=self._wal.write(work.ready))
            if work.copy is not None:
                self._nursery.start_soon(self._install, work.copy)
            for node in work.copies:
                self._nursery.start_soon(self._send_copy, node)
        for node in replica.take_copies():
            self._nursery.start_soon(self._send_copy, node)
        for to, payload in replica.end_turn():
            self._links.send(to, payload)
        if replica.has_successor:
            self._led_by_another.set()

    # --- The applier

    def _apply_at_once(self) -> bool:
        """Apply and answer what takes microseconds, and leave the rest to the applier; return whether a turn is due."""
        replica = self._replica
        if not replica.is_applicable:
            return False
        if self._table_lock.locked() or self._table.may_wait:
            self._apply_news.set()
            return False
        batch = replica.next_batch(self._state.mark.index)
        reads = batch.reads
        is_done = self._are_brief(batch.entries) and self._are_brief_reads(reads)
        if is_done and batch.entries:
            try:
                applied, effects = self._state.apply(batch.entries)
            except LimitExceededError:
                is_done = False
            else:
                self._was_applied(applied, effects)
        if not is_done:
            replica.put_back(batch)
            self._apply_news.set()
            return False
        if reads:
            self._run_reads(reads)
            for read in reads:
                read.finish()
        return replica.confirmed(batch.due, self._clock()) or bool(batch.entries)

    async def _apply_loop(self) -> None:
        replica = self._replica
        while True:
            self._apply_news = trio.Event()
            async with self._table_lock:
                # Taken only now: an installed copy moves the mark, and makes entries before it void.
                batch = replica.next_batch(self._state.mark.index)
                if batch.entries:
                    await self._apply(batch.entries)
                reads = batch.reads
                if reads:
                    await self._on_table(partial(self._run_reads, reads), is_brief=self._are_brief_reads(reads))
                    for read in reads:
                        read.finish()
                if replica.confirmed(batch.due, self._clock()):
                    self._wake()
            if not replica.has_entries and not self._apply_news.is_set():
                await self._apply_news.wait()

    async def _on_table(self, function: Callable[[], _Result], *, is_brief: bool) -> _Result:
        """Run a function of the table: a brief one in the event loop, unless it may wait for the disk."""
        if is_brief and not self._table.may_wait:
            return function()
        return await self._work(function)

    def _are_brief(self, entries: Sequence[Entry]) -> bool:
        size = sum(entry.size for entry in entries)
        return size <= self._options.brief_bytes and not any(may_compare(entry.data) for entry in entries)

    def _are_brief_reads(self, reads: Sequence[Read]) -> bool:
        return len(reads) <= self._options.brief_reads and all(read.is_brief for read in reads)

    async def _apply(self, entries: Sequence[Entry]) -> None:
        is_brief = self._are_brief(entries)
        begun = self._clock()
        while True:
            try:
                applied, effects = await self._on_table(lambda: self._state.apply(entries), is_brief=is_brief)
            except LimitExceededError as error:
                is_start = not self._has_applied and isinstance(error, OutOfDescriptorsError)
                if is_start and self._clock() - begun >= self._options.start_descriptor_wait_s:
                    raise  # nothing is served yet: the start ends as if opening the table had failed so
                # It is committed, so it must be applied: wait for space. A leader that waits answers no keep-alive.
                _log.error(
                    "the metadata cannot be written; trying again in %g s: %s",
                    _FULL_RETRY_S,
                    error,
                    extra=log_event("metadata.not_writable"),
                )
                if self.raft.is_leader:
                    await self._hand_over()
                await trio.sleep(_FULL_RETRY_S)
            else:
                break
        self._has_applied = True
        self._was_applied(applied, effects)
        self._wake()

    def _was_applied(self, applied: Sequence[Applied], effects: Effects) -> None:
        self._observer.changed(effects)
        self._replica.applied(applied, effects, self._state.mark.bounds, self._clock())
        self._maybe_cut()

    def _run_reads(self, reads: list[Read]) -> None:
        """Run reads; perhaps on the worker thread."""
        with self._table.transaction():
            for read in reads:
                if read.is_withdrawn:
                    continue
                try:
                    read.result = read.work(self._state.machine)
                except (DataLossError, DataDirectoryError):
                    raise
                except DanubeError as error:
                    read.error = error

    # --- Cutting the log

    def _maybe_cut(self) -> None:
        entries = self._state.mark.index - self._last_cut
        if not self._is_cutting and is_cut_due(self._options, entries=entries, size=self._wal.bytes_since_cut):
            self._is_cutting = True
            self._nursery.start_soon(self._cut)

    async def _cut(self) -> None:
        """Drop the part of the log that the table holds durably, and that no other member is likely to need."""
        try:
            async with self._table_lock:
                await self._work(self._table.sync)
                index = self._replica.cut_index(self._state.mark.index)
                base = self.raft.snapshot_at(index)
                self._last_cut = self._state.mark.index
                if base is None or index <= self.raft.log.base_index:
                    self._wal.bytes_since_cut = 0
                    return
                await self._wal.cut(base)
                self.raft.compact(index)
        finally:
            self._is_cutting = False

    # --- Copies of the table

    async def _send_copy(self, to: NodeId) -> None:
        """Send a copy of the table, piece by piece; give up if it does not arrive."""
        raft, options, outgoing = self.raft, self._options, self._replica.outgoing
        term = raft.term
        try:
            copy = await self._make_copy()
            sending = outgoing.begin(to, copy)
            while not sending.is_done and raft.is_leader and raft.term == term:
                position = sending.position
                async with self._table_lock:
                    if not outgoing.is_present(copy):
                        raft.snapshot_failed(to)  # another member's copy has replaced it
                        return
                    content = await self._work(partial(self._table.read_copy, position, options.piece_bytes))
                news = trio.Event()
                sending.on_news = news.set
                message = sending.piece(term, position, content)
                self._links.send(to, encode_payload(self.member, (message,)), bulk=True)
                with trio.move_on_after(options.piece_s):
                    await news.wait()
                match sending.step(position):
                    case Step.NEXT:
                        raft.snapshot_progress(to)
                    case Step.GIVE_UP:
                        raft.snapshot_failed(to)
                        self._wake()
                        return
        finally:
            outgoing.end(to)

    async def _make_copy(self) -> Copy:
        """Return a copy that the log continues; make one if there is none."""
        async with self._table_lock:
            outgoing = self._replica.outgoing
            copy = outgoing.usable(self.raft.log.base_index)
            if copy is None:
                size, digest = await self._work(self._table.export)
                copy = outgoing.copy = Copy(self._state.mark.base, size, digest)
        return copy

    async def _receive_loop(self) -> None:
        """Write the pieces of a copy."""
        replica = self._replica
        while True:
            if not replica.has_pieces:
                self._piece_news = trio.Event()
                await self._piece_news.wait()
                continue
            piece = replica.next_piece()
            if piece is None:
                continue
            receiving, message = piece.receiving, piece.message
            async with self._table_lock:
                if receiving.expects(message.position):
                    await self._work(partial(self._table.receive, message.position, message.piece))
                    receiving.took(len(message.piece))
                check = partial(self._table.check_received, message.size, message.digest)
                whole = receiving.is_complete and await self._work(check)
                if whole and replica.is_replaceable(message.base):
                    await self._replace(message.base)
            replica.received(piece, whole=whole)
            self._wake()

    async def _replace(self, base: Base) -> None:
        """Replace the table by a copy of the past, and apply again what follows; the table's lock is held.

        A crash in between leaves a table that the log continues.
        """
        before = self._table.revision
        await self._work(self._table.install)
        self._state.load()
        entries = self._replica.entries_behind(base)
        if entries:
            await self._work(lambda: self._state.apply(entries))
        await self._work(self._table.sync)
        assert self._state.mark.index == self.raft.applied_index
        self._replica.replaced(await self._work(self._table.leases))
        if self._table.revision != before:
            self._observer.replaced(self._table.revision)

    async def _install(self, base: Base) -> None:
        """Replace the table by the copy that was received, and the log by its base."""
        async with self._table_lock:
            self._replica.installing()
            await self._wal.begin_install(base.index)
            await self._work(self._table.install)
            self._state.load()
            if (self._state.mark.index, self._state.mark.term) != (base.index, base.term):
                raise InternalError(
                    f"the copy of the metadata should be at entry {base.index}, and is at {self._state.mark.index}"
                )
            await self._wal.end_install(base)
            self._replica.installed(await self._work(self._table.leases))
            self._last_cut = base.index
            self._observer.replaced(self._table.revision)
            self._apply_news.set()
            self._wake()


async def _let_others_run() -> None:
    """Return when all tasks that were ready to run have run: the order within a pass of the scheduler is random."""
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()


def _first(group: BaseExceptionGroup[DanubeError]) -> DanubeError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, DanubeError)
    return error
