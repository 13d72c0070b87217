"""The embedded metadata store: durable, for one broker, in one SQLite file.

The event loop never touches the file. Calls are queued; one task takes all queued calls, passes them to a worker
thread, and runs them as one SQLite transaction with one sync (group commit without a timer: load
itself makes the groups). Calls are executed in the order in which they were made, including reads, which makes the
store linearizable. Calls are answered and watches notified only when the transaction is on disk.

A cancelled call that is still queued has no effect; one that was passed to the thread is executed. The caller cannot
distinguish the two; the store stays usable in both cases.

Failures and their effects:

* The disk is full, or no file descriptor is left: the transaction is rolled back, its calls raise LimitExceededError
  or OutOfDescriptorsError, later ones may succeed.
* A row does not match its checksum, or SQLite finds its file malformed: its calls raise DataLossError.
* Anything else that SQLite reports about the file, a failed sync above all: its calls raise DataDirectoryError.

After the last two the store is broken: every later call raises the same error. After a failed sync the contents of
the disk are unknown until a restart reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import msgspec
import trio

from danube.metadata._contract import Capabilities, LeaseId, MetadataStore
from danube.metadata._local import Clock, LocalStore
from danube.metadata._machine import StoreMachine
from danube.metadata._plugins import MetadataPlugin, Surroundings
from danube.metadata._sqlite import SqliteTable
from danube.model.errors import (
    ClosedError,
    ConfigurationError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    InternalError,
    LimitExceededError,
)
from danube.model.limits import Limits

__all__ = ["EmbeddedConfig", "EmbeddedPlugin", "EmbeddedStore"]

_Result = TypeVar("_Result")

_GROUP_CALLS = 1_000
"""Most calls in one transaction: bounds how long the first one waits for the last."""


class _Job:
    """One queued call."""

    __slots__ = ("done", "error", "result", "withdrawn", "work")

    def __init__(self, work: Callable[[StoreMachine], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: Exception | None = None
        self.done = trio.Event()
        self.withdrawn = False


class EmbeddedStore(LocalStore):
    """A durable metadata store in ``directory/metadata.db``.

    The directory is created if it is missing. One process may have the store open. Opening raises
    :class:`DataDirectoryError` if the file is in use, cannot be read or written, or has a newer format, and
    :class:`DataLossError` if it is damaged.
    """

    def __init__(
        self, directory: Path | str, *, limits: Limits | None = None, clock: Clock = trio.current_time
    ) -> None:
        super().__init__(limits=limits, clock=clock)
        self._table = SqliteTable(Path(directory))
        self._state = StoreMachine(self._table, self._limits)
        self._queue: deque[_Job] = deque()
        self._work_arrived = trio.Event()
        self._settled = trio.Event()
        self._broken: DanubeError | None = None
        self._limiter = trio.CapacityLimiter(1)

    @property
    def capabilities(self) -> Capabilities:
        """All guarantees of the contract."""
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)

    @property
    def _machine(self) -> StoreMachine:
        return self._state

    async def _open(self, nursery: trio.Nursery) -> list[tuple[LeaseId, float]]:
        # Not abandoned when cancelled: nothing would close a half-open database.
        await trio.to_thread.run_sync(self._table.open, limiter=self._limiter)
        try:
            leases = await trio.to_thread.run_sync(self._table.leases, limiter=self._limiter)
        except BaseException:
            self._table.close()
            raise
        self._revision = self._table.revision
        nursery.start_soon(self._commit_loop, name="metadata commits")
        return leases

    async def _shut(self) -> None:
        if self._opened:
            self._work_arrived.set()
            await self._settled.wait()

    async def _call(self, work: Callable[[StoreMachine], _Result]) -> _Result:
        self._check_open()
        if self._broken is not None:
            await trio.lowlevel.checkpoint()
            raise _again(self._broken)
        job = _Job(work)
        self._queue.append(job)
        self._work_arrived.set()
        try:
            await job.done.wait()
        finally:
            job.withdrawn = True  # has no effect once the job was passed to the thread
        if job.error is not None:
            raise job.error
        return cast("_Result", job.result)

    async def _commit_loop(self) -> None:
        """Run queued calls in one transaction at a time and answer them, until the store is closed."""
        # A transaction in progress is short and its outcome must be known, so nothing here is cancelled. The loop ends
        # when the store is closed, which is the first step of leaving the store.
        with trio.CancelScope(shield=True):
            try:
                while not self._closed:
                    if not self._queue:
                        self._work_arrived = trio.Event()
                        await self._work_arrived.wait()
                        continue
                    group: list[_Job] = []
                    while self._queue and len(group) < _GROUP_CALLS:
                        job = self._queue.popleft()
                        if not job.withdrawn:
                            group.append(job)
                    if group:
                        await self._commit(group)
            finally:
                closed = ClosedError("the metadata store was closed before the call was done")
                for job in self._queue:
                    job.error = closed
                    job.done.set()
                self._queue.clear()
                await trio.to_thread.run_sync(self._table.close, limiter=self._limiter)
                self._settled.set()

    async def _commit(self, group: list[_Job]) -> None:
        failure: DanubeError | None = InternalError(
            "the metadata store has stopped because of a bug; see the broker's log"
        )
        try:
            outcome = self._broken
            if outcome is None:
                outcome = await trio.to_thread.run_sync(self._execute, group, limiter=self._limiter)
            if outcome is None:
                self._publish()
            else:
                self._state.take_effects()  # discard the effects of the rolled back transaction
                if not isinstance(outcome, LimitExceededError):
                    self._broken = outcome
            failure = outcome
        finally:  # always answer all waiting calls
            for job in group:
                if failure is not None:
                    job.error = _again(failure)
                job.done.set()

    def _execute(self, group: list[_Job]) -> DanubeError | None:
        """Run a group of calls in one transaction, on the worker thread; return the error if it fails as a whole."""
        try:
            with self._table.transaction():
                for job in group:
                    try:
                        job.result = job.work(self._state)
                    except (DataLossError, DataDirectoryError):
                        raise  # an error of the file, not of this call
                    except DanubeError as error:
                        if not self._table.is_open:
                            raise  # the file could not be opened for writing: an error of the file, too
                        job.error = error  # refused without a change
        except DanubeError as error:
            return error
        return None


def _again(error: DanubeError) -> DanubeError:
    """Return a new exception of the same kind: one object raised in many tasks would collect all their tracebacks."""
    return type(error)(error.message)


class EmbeddedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedded store has no options; the URL's path says where it is."""


class EmbeddedPlugin(MetadataPlugin[EmbeddedConfig]):
    """``embedded://``: metadata in the broker's data directory; ``embedded:///a/directory``: in that one."""

    name: ClassVar[str] = "embedded"
    summary: ClassVar[str] = "durable, for one broker, in its data directory"
    config: ClassVar[type[EmbeddedConfig]] = EmbeddedConfig

    @asynccontextmanager
    async def open(self, config: EmbeddedConfig, surroundings: Surroundings) -> AsyncIterator[MetadataStore]:
        """Open the store, and create it if it is missing."""
        if surroundings.location:
            raise ConfigurationError(
                f"metadata URL embedded://{surroundings.location}{surroundings.path} names a host;"
                f" for a directory write three slashes: embedded:///{surroundings.location}{surroundings.path}"
            )
        directory = Path(surroundings.path) if surroundings.path else surroundings.data_directory
        if directory is None:
            raise ConfigurationError("the metadata engine 'embedded' needs a directory: write embedded:///a/directory")
        async with EmbeddedStore(directory, limits=surroundings.limits, clock=surroundings.clock) as store:
            yield store
