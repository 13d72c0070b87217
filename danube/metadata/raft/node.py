"""One member of a group: drives the Raft core, its log, its table and its links.

Two tasks do the work. The *driver* takes what has arrived (messages, calls, time), passes it to the core, and carries
out what the core asks for: messages at once, writes through the log, in their order and overlapping with both. The
*applier* gives committed entries to the table, on a worker thread, and answers calls and reads from there::

    calls ──▶ proposals ──▶ leader's log ──▶ committed ──▶ table ──▶ outcomes ──▶ calls
                 │               ▲
                 └── forwarded ──┘        reads ──▶ index from the leader ──▶ table at that index

Load makes the batches, no timer: commands that arrive while others are on their way form one proposal, entries that
arrive during a sync share the next one, and all reads that wait share one round of heartbeats.

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
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
import trio

from danube.log import Disk
from danube.metadata._contract import LeaseId
from danube.metadata._machine import Effects, StoreMachine
from danube.metadata._requests import lease_ended
from danube.metadata.raft.commands import Command, Revoke, SetBounds, encode_command, encode_proposal
from danube.metadata.raft.forwarding import Inbox, Outbox
from danube.metadata.raft.leases import LeaseClock
from danube.metadata.raft.links import Links
from danube.metadata.raft.messages import (
    AnyMessage,
    Forward,
    ForwardReply,
    KeepAlive,
    KeepAliveReply,
    SnapshotPiece,
    SnapshotReply,
    decode_payload,
    encode_payload,
)
from danube.metadata.raft.state import Applied, Bounds, Outcome, ReplicatedState, StateTable
from danube.metadata.raft.transfer import Receiving, Sending
from danube.metadata.raft.wal import FILE_BYTES, Wal
from danube.model.batch import crc32c
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    ClosedError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    LimitExceededError,
    UnavailableError,
)
from danube.model.limits import KIB, MIB, Limits
from danube.raft import (
    Append,
    Base,
    Conf,
    Entry,
    EntryKind,
    InstallSnapshot,
    Message,
    NodeId,
    Raft,
    Ready,
    Refusal,
    Role,
    Settings,
)
from danube.raft.messages import ReadToken

__all__ = ["Node", "NodeOptions", "Observer", "Worker", "in_thread"]

_log = logging.getLogger("danube.metadata")

_Result = TypeVar("_Result")

_PAYLOAD_BYTES: Final = 1 * MIB
"""Messages to one member are joined up to this size."""
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


class NodeOptions(NamedTuple):
    """Times and sizes of a member. Times in seconds."""

    tick_s: float = 0.05
    """The core's unit of time: a heartbeat is 3, an election 20 to 40 of them."""
    lone_tick_s: float = 0.25
    """The same for a lone member with open leases."""
    gap_s: float = 0.5
    """A loop that stood still for longer extends the leases."""
    campaign_s: float = 0.15
    """A member that hears of the leader's death waits for a random part of this before it campaigns."""
    resend_s: float = 0.5
    """What was not answered for so long is sent again."""
    call_s: float = 10.0
    """A call that is not answered for so long fails: its outcome is unknown."""
    piece_s: float = 1.0
    """A piece of a copy that is not answered for so long is sent again."""
    piece_bytes: int = 512 * KIB
    """Size of such a piece."""
    file_bytes: int = FILE_BYTES
    """Size of a file of the log."""
    proposal_bytes: int = 256 * KIB
    """Commands are joined up to this size."""
    proposals: int = 8
    """Most proposals of a member on their way."""
    cut_bytes: int = 4 * MIB
    """The log is cut when so much was written,"""
    cut_entries: int = 10_000
    """or so many entries were."""
    kept_entries: int = 5_000
    """Entries that are kept for other members in any case,"""
    most_kept_entries: int = 100_000
    """and as many at most, for slow ones;"""
    most_kept_bytes: int = 64 * MIB
    """or so many bytes."""
    settings: Settings = Settings()


class Observer(Protocol):
    """Hears of changes of the table, in the event loop and in their order."""

    def changed(self, effects: Effects) -> None:
        """Note what entries have changed. Called before their callers get their answers."""

    def replaced(self, revision: int) -> None:
        """Note that the table was replaced by a copy, at this revision."""


class _Call:
    """A call that waits for its answer."""

    __slots__ = ("data", "deadline", "done", "error", "result", "withdrawn")

    def __init__(self, data: bytes, deadline: float) -> None:
        self.data = data
        self.deadline = deadline
        self.result: Any = None
        self.error: DanubeError | None = None
        self.done = trio.Event()
        self.withdrawn = False

    def answer(self, outcome: Any) -> None:
        if isinstance(outcome, DanubeError):
            self.fail(outcome)
        else:
            self.result = outcome
            self.done.set()

    def fail(self, error: DanubeError) -> None:
        self.error = error
        self.done.set()


class _Group:
    """The calls of one proposal; without calls, the end of a lease."""

    __slots__ = ("calls", "data", "number")

    def __init__(self, number: int, data: bytes, calls: list[_Call]) -> None:
        self.number = number
        self.data = data
        self.calls = calls


class _Read(_Call):
    """A linearizable read."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[StoreMachine], Any], deadline: float) -> None:
        super().__init__(b"", deadline)
        self.work = work


class _Renewal(_Call):
    """A keep-alive."""

    __slots__ = ("lease",)

    def __init__(self, lease: LeaseId, deadline: float) -> None:
        super().__init__(b"", deadline)
        self.lease = lease


class _Asked(msgspec.Struct, frozen=True):
    """A keep-alive of a member, at the leader."""

    sender: NodeId
    token: int
    leases: tuple[LeaseId, ...]
    doubtful: tuple[LeaseId, ...]
    """Not renewed at receipt: the log decides."""
    index: int
    """End of the log at receipt."""


class _Due(msgspec.Struct, frozen=True):
    """Leases whose time is up, at the leader."""

    leases: tuple[LeaseId, ...]


_Confirmed = list[_Read] | _Asked | _Due
"""What waits for a confirmation by the leader."""


class _Written(NamedTuple):
    ready: Ready
    pending: bool


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
        self._raft: Raft
        self._state: ReplicatedState
        self._life = random.getrandbits(63)
        self._is_new = False
        self._failure: DanubeError | None = None
        self._closing = False
        self._ended = trio.Event()
        self._news = trio.Event()
        self._nursery: trio.Nursery

        # Calls
        self._commands: deque[_Call] = deque()
        self._outbox: Outbox[_Group] = Outbox()
        self._inbox = Inbox()
        self._groups: dict[int, _Group] = {}
        self._numbers = 0
        self._sent_to: tuple[int, NodeId | None] = (0, None)
        self._sent_number = 0
        self._resend_at = math.inf
        self._open: deque[_Call] = deque()
        self._reads: list[_Read] = []
        self._renewals: list[_Renewal] = []
        self._tokens = 0
        self._asked: dict[int, tuple[float, _Confirmed]] = {}
        """Rounds of reads by token, and when they were asked for."""
        self._renewing: dict[int, tuple[float, list[_Renewal]]] = {}

        # Work
        self._payloads: deque[bytes] = deque()
        self._posts: dict[NodeId, list[AnyMessage]] = {}
        self._being_written: deque[_Written] = deque()
        self._written_number = 0
        self._to_apply: deque[Entry] = deque()
        self._to_read: deque[tuple[int, _Confirmed]] = deque()
        self._apply_news = trio.Event()
        self._table_lock = trio.Lock()
        self._leases: dict[LeaseId, float] = {}
        self._lease_clock = LeaseClock()
        self._tick_at = math.inf
        self._looked_at = 0.0
        self._campaign_at = math.inf
        self._last_cut = 0
        self._cutting = False
        self._sending: dict[NodeId, Sending] = {}
        self._copy: tuple[Base, int, bytes] | None = None
        self._receiving: Receiving | None = None
        self._pieces: deque[tuple[NodeId, SnapshotPiece]] = deque()
        self._piece_news = trio.Event()
        self._conf_news = trio.Event()

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
        self._is_new = contents is None
        if contents is None:
            if first_conf is None:
                raise FailedPreconditionError(
                    "this metadata member has no log and was given no first configuration; form or join a cluster"
                )
            base = Base(0, 0, first_conf)
        else:
            base = contents.standing.base
            if contents.standing.member != member:
                raise FailedPreconditionError(
                    f"the metadata log belongs to member {contents.standing.member}, not to {member}"
                )
        await self._work(self._table.open)
        try:
            self._state = ReplicatedState(self._table, self._limits, base.conf)
            self._state.load()
            mark = self._state.mark
            entries = contents.entries if contents is not None else ()
            if contents is not None and contents.standing.installing == mark.index > 0:
                base, entries = mark.base, ()
            if not _fits(mark.index, mark.term, base, entries):
                raise DataLossError(
                    f"the metadata table is at entry {mark.index} of term {mark.term}, which does not fit to the log of"
                    f" entries {base.index} to {base.index + len(entries)}: one of the two has lost something."
                    " Restore the metadata from a backup, or let this broker join again as a new member"
                )
            self._leases = dict(await self._work(self._table.leases))
        except BaseException:
            await self._work(self._table.close)
            raise
        self._raft = Raft(
            member,
            base,
            hard=contents.standing.hard if contents is not None else None,
            entries=entries,
            applied=mark.index,
            chance=self._random.randrange,
            settings=self._options.settings,
        )
        self._last_cut = mark.index
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
                    nursery.start_soon(self._apply_loop)
                    nursery.start_soon(self._receive_loop)
                    has_begun = True
                    task_status.started()
                    await self._ended.wait()
                    nursery.cancel_scope.cancel()
                await self._wal.aclose()
        except* DanubeError as group:
            self._fail(_first(group))
        finally:
            self._closing = True
            self._fail(ClosedError("the metadata store was closed before the call was done"))
            with trio.CancelScope(shield=True):  # bounded: one transaction and a close
                async with self._table_lock:
                    await self._work(self._table.close)
        if not has_begun and self._failure is not None:
            raise self._failure

    async def _settle_start(self) -> None:
        """Bring the log in step with what :meth:`open` has found."""
        mark = self._state.mark
        if self._is_new:
            await self._wal.begin(self._raft.node_id, mark.base)
            return
        standing = self._wal.standing
        self._wal.release()
        if standing.installing:
            if standing.installing == mark.index:
                await self._wal.end_install(mark.base)
            else:
                await self._wal.begin_install(0)  # the copy was not installed, and is received again

    def close(self) -> None:
        """End :meth:`run`, which fails calls in progress with ClosedError."""
        self._closing = True
        self._ended.set()

    def _fail(self, error: DanubeError) -> None:
        """End with an error: all calls raise it from now on."""
        if self._failure is None:
            self._failure = error
            if not isinstance(error, ClosedError):
                _log.critical("the metadata member has stopped: %s", error)
        failure = self._failure
        for call in [*self._open, *self._commands]:
            if not call.done.is_set():
                call.fail(_again(failure))
        self._open.clear()
        self._commands.clear()
        self._ended.set()
        self._conf_news.set()

    @property
    def failure(self) -> DanubeError | None:
        """What has ended the member."""
        return self._failure

    # --- What it is

    @property
    def member(self) -> NodeId:
        """The id of this member."""
        return self._raft.node_id

    @property
    def raft(self) -> Raft:
        """The core, to look at."""
        return self._raft

    @property
    def machine(self) -> StoreMachine:
        """For its ``check_`` methods."""
        return self._state.machine

    @property
    def is_alone(self) -> bool:
        """Whether this is the only member."""
        return self._raft.conf.members == {self._raft.node_id}

    # --- Calls

    async def execute(self, command: Command) -> Outcome:
        """Have a command applied; return its outcome once this member's table has it.

        Raises:
            UnavailableError: not answered in time; it may still be applied, unless the message says otherwise.
            DanubeError: the command was refused, and has changed nothing; or this member has failed.
        """
        call = _Call(encode_command(command), self._clock() + self._options.call_s)
        self._commands.append(call)
        return cast("Outcome", await self._answer(call))

    async def read(self, work: Callable[[StoreMachine], _Result]) -> _Result:
        """Run a function on the table, on a worker thread, when it has everything that was acknowledged before.

        Raises:
            UnavailableError: no leader has confirmed that in time.
        """
        call = _Read(work, self._clock() + self._options.call_s)
        self._reads.append(call)
        return cast("_Result", await self._answer(call))

    async def read_here(self, work: Callable[[StoreMachine], _Result]) -> _Result:
        """Run a function on the table as it is."""
        call = _Read(work, self._clock() + self._options.call_s)
        self._to_read.append((0, [call]))
        self._apply_news.set()
        return cast("_Result", await self._answer(call))

    async def keep_alive(self, lease: LeaseId) -> None:
        """Renew a lease.

        Raises:
            NotFoundError: it has ended.
            UnavailableError: not answered in time; it may have been renewed.
        """
        call = _Renewal(lease, self._clock() + self._options.call_s)
        self._renewals.append(call)
        await self._answer(call)

    async def _answer(self, call: _Call) -> Any:
        if self._failure is not None:
            call.fail(_again(self._failure))
        else:
            waiting = self._open
            while waiting and waiting[0].done.is_set():
                waiting.popleft()
            waiting.append(call)
            self._wake()
        try:
            await call.done.wait()
        finally:
            call.withdrawn = True
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
        if self._failure is None:
            self._raft.leader_lost(node, campaign=False)
            self._campaign_at = self._clock() + self._random.random() * self._options.campaign_s
            self._wake()

    # --- Members

    async def change_members(self, voters: Sequence[NodeId], learners: Sequence[NodeId] = ()) -> Conf:
        """Change the members of the group; return when the change is complete.

        Raises:
            FailedPreconditionError: this member does not lead; the message names the leader.
            UnavailableError: another change is in progress, or the leadership was lost meanwhile: look, and try again.
            InvalidArgumentError: the members are invalid.
        """
        raft = self._raft
        self._need_leader()
        try:
            index = raft.propose_conf(voters, learners)
        except ValueError as error:
            raise InvalidArgumentError(f"these metadata members are not possible: {error}") from error
        if isinstance(index, Refusal):
            raise UnavailableError(f"the metadata members cannot be changed now: {index.value}; try again")
        self._wake()
        term = raft.term
        wanted = (tuple(sorted(set(voters))), tuple(sorted(set(learners))))
        with trio.move_on_after(self._options.call_s):
            while True:
                conf = raft.conf
                if raft.commit >= index and not conf.is_joint and (conf.voters, conf.learners) == wanted:
                    return conf
                if self._failure is not None:
                    raise _again(self._failure)
                if raft.term != term or not raft.is_leader:
                    break
                await self._conf_news.wait()
        raise UnavailableError(
            "the change of the metadata members was not confirmed; it may still happen: look at them, and try again"
        )

    async def add_learner(self, member: NodeId) -> Conf:
        """Add a member that receives the log and has no vote; as :meth:`change_members`."""
        conf = self._raft.conf
        return await self.change_members(conf.voters, [*conf.learners, member])

    async def promote(self, member: NodeId) -> Conf:
        """Make a learner a voter; as :meth:`change_members`.

        Raises:
            FailedPreconditionError: it is no learner, or too far behind the log.
        """
        conf = self._raft.conf
        self._need_leader()
        if member not in conf.learners:
            raise FailedPreconditionError(f"metadata member {member} is not a learner; add it as one first")
        behind = self._raft.log.last_index - self._raft.matches().get(member, 0)
        if behind > _MOST_BEHIND:
            raise FailedPreconditionError(
                f"metadata member {member} is {behind} entries behind; it is promoted at {_MOST_BEHIND} or less"
            )
        return await self.change_members([*conf.voters, member], [each for each in conf.learners if each != member])

    async def remove(self, member: NodeId) -> Conf:
        """Remove a member; as :meth:`change_members`."""
        conf = self._raft.conf
        return await self.change_members(
            [each for each in conf.voters if each != member], [each for each in conf.learners if each != member]
        )

    def transfer(self, to: NodeId) -> bool:
        """Ask another voter to lead; False if this member does not lead, or that one has no vote."""
        done = self._raft.transfer(to)
        self._wake()
        return done

    def _need_leader(self) -> None:
        if not self._raft.is_leader:
            leader = self._raft.leader
            raise FailedPreconditionError(
                f"metadata member {self.member} does not lead its group; "
                + (f"member {leader} does" if leader is not None else "no leader is known; wait for an election")
            )

    # --- The driver

    def _wake(self) -> None:
        self._news.set()

    def _was_written(self, number: int) -> None:
        self._written_number = number
        self._news.set()

    async def _drive(self) -> None:
        self._looked_at = self._clock()
        self._tick_at = self._looked_at + self._tick_s
        while True:
            await self._turn()
            if self._news.is_set():
                await trio.lowlevel.checkpoint()
            elif self._being_alone_idle:
                await self._news.wait()
            else:
                with trio.move_on_after(max(0.0, self._next_time() - self._clock())):
                    await self._news.wait()

    async def _turn(self) -> None:
        """Take everything that has arrived, and carry out what the core asks for."""
        raft = self._raft
        self._news = trio.Event()
        self._take_time(self._clock())
        while self._payloads:
            self._take_payload(self._payloads.popleft())
        self._follow_term()
        self._take_commands()
        self._take_reads()
        self._take_renewals()
        self._settle_written()
        while raft.has_ready:
            ready = raft.ready()
            self._post_all(ready.messages)
            if ready.snapshot is not None:
                await self._install(ready.snapshot)
            self._being_written.append(_Written(ready, self._wal.write(ready)))
            if ready.committed:
                self._to_apply += ready.committed
                self._apply_news.set()
            for token, index in ready.reads:
                self._confirm(token, index)
            for token in ready.lost_reads:
                self._lose(token)
            for node in ready.need_snapshot:
                self._send_copy(node)
            self._settle_written()
        self._follow_term()
        self._flush()

    def _settle_written(self) -> None:
        waiting = self._being_written
        while waiting and (not waiting[0].pending or waiting[0].ready.number <= self._written_number):
            self._post_all(self._raft.persisted(waiting.popleft().ready))

    # Time

    @property
    def _being_alone_idle(self) -> bool:
        """Whether no timer is needed: a lone leader without leases has nothing to wait for."""
        return self._raft.is_leader and self.is_alone and self._lease_clock.is_empty

    @property
    def _tick_s(self) -> float:
        return self._options.lone_tick_s if self.is_alone else self._options.tick_s

    def _next_time(self) -> float:
        return min(
            self._tick_at, self._campaign_at, self._lease_clock.next_look() if self._lease_clock.term else math.inf
        )

    def _take_time(self, now: float) -> None:
        """Let the time pass: one tick at most, however long this loop stood still."""
        raft = self._raft
        looked_at, self._looked_at = self._looked_at, now
        if self._being_alone_idle:
            self._tick_at = now + self._tick_s
        elif now >= self._tick_at:
            if now - self._tick_at > self._options.gap_s:
                self._lease_clock.postpone(now - looked_at)
            self._tick_at += self._tick_s
            if self._tick_at <= now:
                self._tick_at = now + self._tick_s
            raft.tick()
            self._check_calls(now)
        if now >= self._campaign_at:
            self._campaign_at = math.inf
            raft.campaign_if_lost()
        if not raft.is_leader and self.is_alone and self.member in raft.conf.voters:
            self._lead_alone()
        if self._lease_clock.term:
            due = self._lease_clock.due(now)
            if due:
                self._ask(_Due(tuple(due)))

    def _lead_alone(self) -> None:
        """Campaign at once: there is no other member whose election could be disturbed."""
        raft = self._raft
        for _ in range(2 * self._options.settings.election_ticks):
            if raft.role is not Role.FOLLOWER or raft.applied_index < raft.commit:
                return  # asked again when everything is applied
            raft.tick()

    def _check_calls(self, now: float) -> None:
        """Send again what was not answered, and give up what was not answered for long."""
        waiting = self._open
        while waiting and (waiting[0].done.is_set() or waiting[0].deadline <= now):
            call = waiting.popleft()
            if not call.done.is_set():
                call.fail(self._too_late(call))
        before = now - self._options.resend_s
        for token, (since, what) in list(self._asked.items()):
            if since <= before:
                del self._asked[token]
                if isinstance(what, list):
                    self._reads += what
        for token, (since, renewals) in list(self._renewing.items()):
            if since <= before:
                del self._renewing[token]
                self._renewals += renewals
        if now >= self._resend_at:
            self._sent_number = 0

    def _too_late(self, call: _Call) -> UnavailableError:
        after = f"within {self._options.call_s} s"
        if self._raft.leader is None:
            after += ", and no leader is known: a majority of the metadata members is needed"
        if isinstance(call, _Read | _Renewal):
            return UnavailableError(f"the metadata did not answer {after}; try again")
        if call in self._commands:
            return UnavailableError(f"the metadata did not take the change {after}; it was not made, try again")
        return UnavailableError(
            f"the metadata did not answer {after}; whether the change was or will be made is unknown, read it back"
        )

    # Messages

    def _post_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._post(message.to, message)

    def _post(self, to: NodeId, message: AnyMessage) -> None:
        posts = self._posts.get(to)
        if posts is None:
            posts = self._posts[to] = []
        posts.append(message)

    def _flush(self) -> None:
        if not self._posts:
            return
        posts, self._posts = self._posts, {}
        for to, messages in posts.items():
            first = size = 0
            for end, message in enumerate(messages, 1):
                size += _size(message)
                if size >= _PAYLOAD_BYTES:
                    self._links.send(to, encode_payload(self.member, messages[first:end]))
                    first, size = end, 0
            if first < len(messages):
                self._links.send(to, encode_payload(self.member, messages[first:]))

    def _take_payload(self, payload: bytes) -> None:
        try:
            sender, messages = decode_payload(payload)
        except UNDECODABLE as error:
            _log.warning("a metadata message does not decode and is ignored: %s", error)
            return
        raft = self._raft
        for message in messages:
            match message:
                case Forward():
                    self._take_forward(sender, message)
                case ForwardReply():
                    if message.life == self._life:
                        self._outbox.confirmed(message.term, message.taken)
                case KeepAlive():
                    self._take_keep_alive(sender, message)
                case KeepAliveReply():
                    self._take_renewed(message)
                case SnapshotPiece():
                    self._pieces.append((sender, message))
                    self._piece_news.set()
                case SnapshotReply():
                    self._take_snapshot_reply(sender, message)
                case _:
                    if message.to == self.member:
                        raft.step(message)

    # Commands

    def _follow_term(self) -> None:
        """Adapt to a change of term or leader."""
        raft = self._raft
        now = (raft.term, raft.leader)
        if self._lease_clock.term and not (raft.is_leader and raft.term == self._lease_clock.term):
            self._lease_clock.follow()
        if now == self._sent_to:
            return
        self._sent_to = now
        self._sent_number = 0
        self._outbox.enter(raft.term)
        if raft.is_leader:
            self._inbox.enter(raft.term)
        if raft.leader is not None:
            for what in self._asked.values():
                if isinstance(what[1], list):
                    self._reads += what[1]
            self._asked.clear()
            for _, renewals in self._renewing.values():
                self._renewals += renewals
            self._renewing.clear()
        self._conf_news.set()
        self._conf_news = trio.Event()

    def _new_group(self, calls: list[_Call], commands: list[bytes]) -> None:
        self._numbers += 1
        data = encode_proposal(self.member, self._life, self._numbers, commands)
        group = self._groups[self._numbers] = _Group(self._numbers, data, calls)
        self._outbox.add(data, group)

    def _take_commands(self) -> None:
        """Form proposals of the commands that wait, and bring them to the leader."""
        raft, options = self._raft, self._options
        if raft.leader is None:
            return
        while self._commands and len(self._outbox) < options.proposals:
            calls: list[_Call] = []
            size = 0
            while self._commands and (not calls or size + len(self._commands[0].data) <= options.proposal_bytes):
                call = self._commands.popleft()
                if not call.withdrawn and not call.done.is_set():
                    size += len(call.data)
                    calls.append(call)
            if calls:
                self._new_group(calls, [call.data for call in calls])
        if not self._outbox.unconfirmed:
            return
        first, proposals = self._outbox.to_send(after=self._sent_number)
        if not proposals:
            return
        if raft.is_leader:
            self._take_forward(self.member, Forward(raft.term, self._life, first, tuple(proposals)))
        else:
            self._post(raft.leader, Forward(raft.term, self._life, first, tuple(proposals)))
            self._sent_number = first + len(proposals) - 1
            self._resend_at = self._clock() + options.resend_s

    def _take_forward(self, sender: NodeId, message: Forward) -> None:
        raft = self._raft
        if not raft.is_leader or message.term != raft.term:
            return
        self._inbox.enter(raft.term)
        count = 0
        for data in self._inbox.news(sender, message.life, message.first, message.proposals):
            if isinstance(raft.propose(data), Refusal):
                break  # it is sent again
            count += 1
        taken = self._inbox.took(sender, message.life, count)
        if sender == self.member:
            self._outbox.confirmed(raft.term, taken)
        else:
            self._post(sender, ForwardReply(raft.term, message.life, taken))

    def _take_applied(self, applied: Sequence[Applied], effects: Effects) -> None:
        """Publish what entries have changed, and answer their callers."""
        now = self._clock()
        for lease, ttl_s in effects.granted:
            self._leases[lease] = ttl_s
            self._lease_clock.granted(lease, ttl_s, now)
        for lease in effects.revoked:
            self._leases.pop(lease, None)
            self._lease_clock.ended(lease)
        self._observer.changed(effects)
        conf_changed = False
        for entry in applied:
            conf_changed = conf_changed or entry.kind is EntryKind.CONF
            proposal = entry.proposal
            if proposal is None or proposal.life != self._life or proposal.member != self.member:
                continue
            group = self._groups.pop(proposal.number, None)
            if group is not None:
                self._outbox.appeared(group)
                for call, outcome in zip(group.calls, entry.outcomes, strict=False):
                    call.answer(outcome)
        last = applied[-1]
        raft = self._raft
        raft.applied(last.index)
        for group in self._outbox.void(last.term):
            self._again(group)
        if raft.is_leader and last.term == raft.term != self._lease_clock.term:
            self._begin_to_lead(now)
        if conf_changed:
            self._conf_news.set()
            self._conf_news = trio.Event()
        self._maybe_cut()
        self._wake()

    def _again(self, group: _Group) -> None:
        """Queue the commands of a proposal that was certainly not applied."""
        del self._groups[group.number]
        self._commands.extendleft(reversed([call for call in group.calls if not call.withdrawn]))

    def _begin_to_lead(self, now: float) -> None:
        """Take over the leases: an entry of this member's own term is applied."""
        self._lease_clock.lead(self._raft.term, self._leases, now)
        bounds = Bounds.of(self._limits)
        if self._state.mark.bounds != bounds:
            command = SetBounds(bounds.history_revisions, bounds.history_bytes, bounds.leases)
            self._new_group([], [encode_command(command)])

    # Reads

    def _take_reads(self) -> None:
        if not self._reads or self._raft.leader is None:
            return
        reads, self._reads = self._reads, []
        waiting = [read for read in reads if not read.withdrawn and not read.done.is_set()]
        if waiting:
            self._ask(waiting)

    def _ask(self, what: _Confirmed) -> None:
        self._tokens += 1
        self._asked[self._tokens] = (self._clock(), what)
        if not self._raft.read_index(ReadToken(self._tokens)):
            self._lose(self._tokens)

    def _confirm(self, token: int, index: int) -> None:
        found = self._asked.pop(token, None)
        if found is None:
            return
        what = found[1]
        if isinstance(what, _Asked):
            index = max(index, what.index)
        self._to_read.append((index, what))
        self._apply_news.set()

    def _lose(self, token: int) -> None:
        found = self._asked.pop(token, None)
        if found is not None and isinstance(found[1], list):
            self._reads += found[1]

    # Leases

    def _take_renewals(self) -> None:
        raft = self._raft
        if not self._renewals or raft.leader is None:
            return
        renewals, self._renewals = self._renewals, []
        renewals = [each for each in renewals if not each.withdrawn and not each.done.is_set()]
        if not renewals:
            return
        self._tokens += 1
        self._renewing[self._tokens] = (self._clock(), renewals)
        message = KeepAlive(raft.term, self._tokens, tuple(dict.fromkeys(each.lease for each in renewals)))
        if raft.is_leader:
            self._take_keep_alive(self.member, message)
        else:
            self._post(raft.leader, message)

    def _take_keep_alive(self, sender: NodeId, message: KeepAlive) -> None:
        """Renew leases at once, and answer when the leadership is confirmed: another leader may have ended them."""
        raft = self._raft
        if not raft.is_leader or self._lease_clock.term != raft.term:
            return  # asked again
        now = self._clock()
        doubtful = tuple(lease for lease in message.leases if not self._lease_clock.keep_alive(lease, now))
        self._ask(_Asked(sender, message.token, message.leases, doubtful, raft.log.last_index))

    def _answer_keep_alive(self, asked: _Asked) -> None:
        raft = self._raft
        if not raft.is_leader or self._lease_clock.term != raft.term:
            return
        now = self._clock()
        ended = tuple(lease for lease in asked.leases if lease not in self._leases)
        for lease in asked.doubtful:
            if lease in self._leases and not self._lease_clock.keep_alive(lease, now):
                return  # its end is proposed, and not decided: the sender asks again
        reply = KeepAliveReply(raft.term, asked.token, ended)
        if asked.sender == self.member:
            self._take_renewed(reply)
        else:
            self._post(asked.sender, reply)
            self._wake()

    def _end_leases(self, due: _Due) -> None:
        """Propose the end of leases whose time is up: this member still leads, and was not asked to renew them."""
        raft = self._raft
        now = self._clock()
        if raft.is_leader and self._lease_clock.term == raft.term == self._outbox.term:
            for lease in due.leases:
                if self._lease_clock.end(lease, now):
                    self._new_group([], [encode_command(Revoke(lease))])
            self._wake()

    def _take_renewed(self, message: KeepAliveReply) -> None:
        found = self._renewing.pop(message.token, None)
        if found is None:
            return
        for call in found[1]:
            if call.lease in message.ended:
                call.fail(lease_ended(call.lease))
            else:
                call.answer(None)

    # --- The applier

    async def _apply_loop(self) -> None:
        raft = self._raft
        while True:
            self._apply_news = trio.Event()
            async with self._table_lock:
                # Read only now: an installed copy moves the mark, and makes entries before it void.
                entries: list[Entry] = []
                while self._to_apply and len(entries) < raft.settings.max_apply_entries:
                    entries.append(self._to_apply.popleft())
                upto = entries[-1].index if entries else self._state.mark.index
                due: list[_Confirmed] = []
                later: deque[tuple[int, _Confirmed]] = deque()
                while self._to_read:
                    item = self._to_read.popleft()
                    if item[0] <= upto:
                        due.append(item[1])
                    else:
                        later.append(item)
                self._to_read = later
                if entries:
                    await self._apply(entries)
                reads = [read for group in due if isinstance(group, list) for read in group]
                if reads:
                    await self._work(partial(self._run_reads, reads))
                    for read in reads:
                        read.done.set()
                for group in due:
                    if isinstance(group, _Asked):
                        self._answer_keep_alive(group)
                    elif isinstance(group, _Due):
                        self._end_leases(group)
            if not self._to_apply and not self._apply_news.is_set():
                await self._apply_news.wait()

    async def _apply(self, entries: list[Entry]) -> None:
        while True:
            try:
                applied, effects = await self._work(lambda: self._state.apply(entries))
            except LimitExceededError as error:
                # It is committed, so it must be applied: wait for space.
                _log.error("the metadata cannot be written; trying again in %g s: %s", _FULL_RETRY_S, error)
                await trio.sleep(_FULL_RETRY_S)
            else:
                break
        self._take_applied(applied, effects)

    def _run_reads(self, reads: list[_Read]) -> None:
        """Run reads, on the worker thread."""
        with self._table.transaction():
            for read in reads:
                if read.withdrawn:
                    continue
                try:
                    read.result = read.work(self._state.machine)
                except (DataLossError, DataDirectoryError):
                    raise
                except DanubeError as error:
                    read.error = error

    # --- Cutting the log

    def _maybe_cut(self) -> None:
        options = self._options
        since = self._state.mark.index - self._last_cut
        if not self._cutting and (since >= options.cut_entries or self._wal.bytes_since_cut >= options.cut_bytes):
            self._cutting = True
            self._nursery.start_soon(self._cut)

    async def _cut(self) -> None:
        """Drop the part of the log that the table holds durably, and that no other member is likely to need."""
        try:
            async with self._table_lock:
                await self._work(self._table.sync)
                index = self._cut_index(self._state.mark.index)
                base = self._raft.snapshot_at(index)
                self._last_cut = self._state.mark.index
                if base is None or index <= self._raft.log.base_index:
                    self._wal.bytes_since_cut = 0
                    return
                await self._wal.cut(base)
                self._raft.compact(index)
        finally:
            self._cutting = False

    def _cut_index(self, applied: int) -> int:
        """Return up to which entry the log is not needed any more."""
        raft, options = self._raft, self._options
        if self.is_alone:
            return applied
        wanted = max(raft.log.base_index, applied - options.kept_entries)
        if raft.is_leader:
            wanted = min(wanted, *(match for node, match in raft.matches().items() if node != self.member))
        for sending in self._sending.values():
            wanted = min(wanted, sending.base.index)
        least = max(raft.log.base_index, applied - options.most_kept_entries)
        size = 0
        for entry in reversed(raft.log.between(least + 1, applied + 1)):
            size += entry.size
            if size > options.most_kept_bytes:
                least = entry.index
                break
        return max(wanted, least, raft.log.base_index)

    # --- Copies of the table

    def _send_copy(self, to: NodeId) -> None:
        if to not in self._sending:
            self._nursery.start_soon(self._send_copy_to, to)

    async def _send_copy_to(self, to: NodeId) -> None:
        """Send a copy of the table, piece by piece; give up if it does not arrive."""
        raft, options = self._raft, self._options
        term = raft.term
        try:
            base, size, digest = await self._make_copy()
            sending = self._sending[to] = Sending(base, size, digest)
            while not sending.is_done and raft.is_leader and raft.term == term:
                position = sending.position
                async with self._table_lock:
                    if self._copy is None or self._copy[2] != digest:
                        raft.snapshot_failed(to)  # another member's copy has replaced it
                        return
                    piece = await self._work(partial(self._table.read_copy, position, options.piece_bytes))
                news = sending.news = trio.Event()
                message = SnapshotPiece(term, base, size, digest, position, piece, crc32c(piece))
                self._links.send(to, encode_payload(self.member, (message,)), bulk=True)
                with trio.move_on_after(options.piece_s):
                    await news.wait()
                if sending.position == position and not sending.is_done:
                    sending.tries += 1
                    if sending.tries > _MOST_TRIES:
                        raft.snapshot_failed(to)
                        self._wake()
                        return
                else:
                    sending.tries = 0
                    raft.snapshot_progress(to)
        finally:
            self._sending.pop(to, None)

    async def _make_copy(self) -> tuple[Base, int, bytes]:
        """Return a copy that the log continues; make one if there is none."""
        async with self._table_lock:
            copy = self._copy
            if copy is None or copy[0].index < self._raft.log.base_index or not self._sending:
                self._copy = None
                size, digest = await self._work(self._table.export)
                copy = self._copy = (self._state.mark.base, size, digest)
        return copy

    def _take_snapshot_reply(self, sender: NodeId, message: SnapshotReply) -> None:
        sending = self._sending.get(sender)
        if sending is not None and message.term == self._raft.term:
            sending.arrived(message.index, message.digest, message.position)

    async def _receive_loop(self) -> None:
        """Write the pieces of a copy, and have it installed when it is complete."""
        raft = self._raft
        while True:
            if not self._pieces:
                self._piece_news = trio.Event()
                await self._piece_news.wait()
                continue
            sender, message = self._pieces.popleft()
            if message.term != raft.term or raft.is_leader or message.base.index <= raft.commit:
                continue
            if crc32c(message.piece) != message.crc:
                continue  # it is sent again
            receiving = self._receiving
            if receiving is None or not receiving.is_of(message.base.index, message.digest):
                receiving = self._receiving = Receiving(message.base, message.size, message.digest)
            async with self._table_lock:
                if receiving.expects(message.position):
                    await self._work(partial(self._table.receive, message.position, message.piece))
                    receiving.took(len(message.piece))
                check = partial(self._table.check_received, message.size, message.digest)
                whole = receiving.is_complete and await self._work(check)
            if receiving.is_complete and not whole:
                receiving.restart()
            self._post(sender, SnapshotReply(raft.term, message.base.index, message.digest, receiving.position))
            if whole and message.term == raft.term and not raft.is_leader:
                base = message.base
                raft.step(InstallSnapshot(self.member, sender, message.term, base.index, base.term, base.conf))
            self._wake()

    async def _install(self, base: Base) -> None:
        """Replace the table by the copy that was received, and the log by its base."""
        async with self._table_lock:
            self._to_apply.clear()
            await self._wal.begin_install(base.index)
            await self._work(self._table.install)
            self._state.load()
            if (self._state.mark.index, self._state.mark.term) != (base.index, base.term):
                raise InternalError(
                    f"the copy of the metadata should be at entry {base.index}, and is at {self._state.mark.index}"
                )
            await self._wal.end_install(base)
            self._leases = dict(await self._work(self._table.leases))
            self._last_cut = base.index
            self._receiving = None
            self._observer.replaced(self._table.revision)
            self._apply_news.set()


_MOST_BEHIND: Final = 100
"""Entries that a learner may lack when it is promoted."""
_MOST_TRIES: Final = 10
"""A piece of a copy is sent so many times without an answer."""


def _fits(index: int, term: int, base: Base, entries: Sequence[Entry]) -> bool:
    """Return whether a table at this entry continues, or is continued by, a log."""
    if index == base.index:
        return index == 0 or term == base.term
    position = index - base.index - 1
    return 0 <= position < len(entries) and entries[position].term == term


def _size(message: AnyMessage) -> int:
    """Return about how many bytes a message has."""
    if isinstance(message, Append):
        return sum(entry.size for entry in message.entries)
    if isinstance(message, Forward):
        return sum(map(len, message.proposals))
    return 0


def _again(error: DanubeError) -> DanubeError:
    """Return a new exception of the same kind: one object raised in many tasks would collect all their tracebacks."""
    return type(error)(error.message)


def _first(group: BaseExceptionGroup[DanubeError]) -> DanubeError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, DanubeError)
    return error
