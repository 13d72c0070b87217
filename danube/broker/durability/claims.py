"""The claims of a broker to wals: which journals of durability ``remote`` are open, and how the others come to it.

::

    unknown ──▶ attempts, each with a longer pause ──▶ claimed: its journal runs, until the broker ends
                  │
                  └──▶ nothing to claim: no such topics there; claimed when the first one is created

Until it is known that no other broker owns topics in a bucket, no manifest is written there: nothing is sealed, merged
or deleted.

New topics of a storage go into one wal there, this broker's *home*. In a cluster it may have others, of brokers that
have died (:mod:`danube.broker.durability.adoption`), and it may lose each of them, with all topics in it: then the
journal ends, and the broker goes on. A broker that is alone ends when another process has claimed its wal.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from danube.broker.runtime.runtime import Runtime
from danube.cluster.membership import Membership
from danube.cluster.records import Wal, beginner_of
from danube.history import (
    Bucket,
    History,
    RemoteJournal,
    brokers_with_commits,
    highest_epoch,
    read_bucket,
    wal_place,
)
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    OwnerFencedError,
    StorageError,
    StorageUnavailableError,
    UnavailableError,
)
from danube.model.ids import NO_OWNER_EPOCH, BrokerId, OwnerEpoch
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["MOST_LOSSES", "Claims", "is_wal_of"]

_log = logging.getLogger("danube.remote")

_PATIENCE_S: Final = 10.0
"""How long the start of a broker waits for storages with such topics, before it serves the other topics."""
_RETRY_S: Final = 1.0
_MOST_RETRY_S: Final = 30.0
MOST_LOSSES: Final = 20
"""How often a broker of a cluster gives way when one of its wals is claimed by another one, before it ends itself."""


def is_wal_of(wal: str, broker: BrokerId) -> bool:
    """Whether a broker has begun a wal, according to its name."""
    try:
        return beginner_of(wal) == broker
    except InvalidArgumentError:
        return False


class Claims:
    """Opens the journals of wals, and retries it until their storages answer.

    Args:
        runtime, history, membership: of the broker.
        storages: by name; used for the commits only, so that they do not wait behind segments.
        has_topics: whether the metadata has topics of this broker in a wal.
        recover: claims a wal, and returns its journal with its topics recovered, before it runs; and, for the home of a
            storage, the bucket whose history is this broker's now.
        take_over: takes over that history in a storage, when the journal runs: the topics are served by then.
        claimed: called when the journal of a wal runs.
        lost: called when another broker has claimed a wal; its journal accepts nothing more.

    Attributes:
        journals: those for new topics, by storage.
        wals: all open ones.
        on_started: called when :meth:`start` has come to an end about a storage.
        has_others: whether this broker has begun other wals than its homes.
        failures: why a storage could not be claimed, by storage.
    """

    def __init__(
        self,
        runtime: Runtime,
        history: History,
        membership: Membership,
        storages: Mapping[str, Storage],
        *,
        has_topics: Callable[[Wal], bool],
        recover: Callable[[Wal, bool], Awaitable[tuple[RemoteJournal, Bucket | None]]],
        take_over: Callable[[str, Bucket], Awaitable[None]],
        claimed: Callable[[Wal], Awaitable[None]],
        lost: Callable[[Wal], None],
    ) -> None:
        self._runtime = runtime
        self._history = history
        self._membership = membership
        self._storages = storages
        self._has_topics = has_topics
        self._recover = recover
        self._take_over = take_over
        self._claimed = claimed
        self._lost = lost
        self.journals: dict[str, RemoteJournal] = {}
        self.wals: dict[Wal, RemoteJournal] = {}
        self.on_started: Callable[[], None] = lambda: None
        self.has_others = False
        self._losses: Counter[Wal] = Counter()
        self._starting: set[str] = set()
        """Storages that :meth:`start` still tries to claim."""
        self._given_up: set[str] = set()
        """Those that it tries no more: what is wrong does not pass."""
        self.failures: dict[str, DanubeError] = {}
        self._opening = {name: trio.Lock() for name in storages}
        self._unread: dict[str, None] = {}
        """Storages not read yet, which may hold topics of a lost machine that this broker replaces."""
        self._nursery: trio.Nursery
        self._wanted = {name: trio.Event() for name in storages}
        """Set by those that need a storage before its next attempt is due."""
        self._looked = {name: trio.Event() for name in storages}
        """Set, and replaced, after each attempt to open a storage."""
        for name in self._capable():
            history.manifests[name].hold(partial(self._wait_claimed, name))

    def home(self, name: str) -> Wal:
        """Return the wal of a storage in which this broker puts new topics."""
        for wal, journal in self.wals.items():
            if journal is self.journals.get(name):
                return wal
        return Wal(name, self._membership.home_wal(name))

    def place(self, wal: Wal) -> str:
        """Return the place of a wal's commits in its storage."""
        return wal_place(self._runtime.config.cluster, wal.name)

    def _capable(self) -> list[str]:
        return [name for name in self._storages if self._lacking(name) is None]

    async def start(self, tasks: trio.Nursery, journals: trio.Nursery, *, is_new: bool) -> None:
        """Claim the buckets; return when that is done, or when it takes too long (then it continues in the background).

        Args:
            tasks: for claiming in the background.
            journals: for the journals; they end last.
            is_new: whether the broker knows no topics: it may replace a lost one, see :meth:`unknown`.
        """
        self._nursery = journals
        capable = self._capable()
        if is_new:
            self._unread = dict.fromkeys(capable)
        self._starting = set(capable)
        opened = {name: trio.Event() for name in capable}
        for name, done in opened.items():
            tasks.start_soon(self._bring_up, name, done)
        with trio.move_on_after(_PATIENCE_S):
            for done in opened.values():
                await done.wait()

    async def _bring_up(self, name: str, done: trio.Event) -> None:
        pause_s = _RETRY_S
        while True:
            try:
                for wal in await self._unread_wals(name):
                    await self.open_wal(wal)
                home = self.home(name)
                if self._has_topics(home) or await highest_epoch(self._storages[name], self.place(home)):
                    await self.open(name)
                self._unread.pop(name, None)
                self._leave_start(name)
                self.release_manifests(name)
                break
            except DanubeError as error:
                if isinstance(error, OwnerFencedError) and self._membership.is_alone:
                    raise
                self.failures[name] = error
                # Retryable errors, which clients would retry, are retried here, too: the metadata may be unavailable
                # for a moment just as well as the storage.
                if not isinstance(error, StorageError) and not error.retryable:
                    _log.error(
                        "topics of durability 'remote' in storage %r cannot be served: %s",
                        name,
                        error,
                        extra=log_event("storage.not_claimed", storage=name),
                    )
                    self._given_up.add(name)
                    self._leave_start(name)
                    self.release_manifests(name)  # its other topics are sealed
                    break
                if self._has_topics(self.home(name)):
                    _log.error(
                        "topics of durability 'remote' wait for storage %r: %s",
                        name,
                        error,
                        extra=log_event("storage.claim_delayed", storage=name),
                    )
                else:
                    _log.warning(
                        "whether storage %r has topics of durability 'remote' is not known: %s",
                        name,
                        error,
                        extra=log_event("storage.claim_delayed", storage=name),
                    )
                self._note_look(name)
                with trio.move_on_after(pause_s):
                    await self._wanted[name].wait()
                self._wanted[name] = trio.Event()
                pause_s = min(2 * pause_s, _MOST_RETRY_S)
            finally:
                done.set()

    def _leave_start(self, name: str) -> None:
        self._starting.discard(name)
        self.on_started()

    def _note_look(self, name: str) -> None:
        self._looked[name].set()
        self._looked[name] = trio.Event()

    def release_manifests(self, name: str, epoch: OwnerEpoch = NO_OWNER_EPOCH) -> None:
        """Let manifests be written: a former owner is fenced, or there is none, or the storage cannot be claimed."""
        self._history.manifests[name].release(epoch)
        self._note_look(name)

    async def _wait_claimed(self, name: str) -> None:
        """Try at once to claim a storage, and wait for the result.

        Raises:
            StorageUnavailableError: it is not claimed; its manifests must not be written yet.
        """
        self._wanted[name].set()
        await self._looked[name].wait()
        if self._history.manifests[name].held:
            raise StorageUnavailableError(
                f"{self._storages[name].url}: nothing is sealed, merged or deleted there before this broker knows that"
                f" no other one owns topics of durability 'remote' in it: {self.failures.get(name)}; try again"
            )

    def unknown(self, topic: str) -> StorageUnavailableError | None:
        """Return why it is unknown whether a topic exists; until that is known, it must not be created."""
        for name in self._unread:
            why = self.failures.get(name) or "it was not read yet"
            return StorageUnavailableError(
                f"whether topic {topic!r} exists is not known: this broker is new, and storage {name!r} may hold the"
                f" topics of another one that it replaces: {why}; try again"
            )
        return None

    async def aclose(self) -> None:
        """Commit pending entries, and close the journals."""
        async with trio.open_nursery() as nursery:
            for journal in self.wals.values():
                nursery.start_soon(journal.aclose)

    async def _unread_wals(self, name: str) -> list[Wal]:
        """Return the other wals that a broker of this name has begun in a storage, if the metadata do not know them.

        That is so until the history there is taken over, also if there are other topics by now.
        """
        member, home, storage = self._membership, self.home(name), self._storages[name]
        places = await brokers_with_commits(storage, self._runtime.config.cluster)
        wals = [Wal(name, each) for each in sorted(places) if is_wal_of(each, member.me) and each != home.name]
        found = [wal for wal in wals if member.owner_of_wal(*wal) == member.me]
        self.has_others |= bool(found)
        if not found or name in self._unread:
            return found
        bucket = await read_bucket(storage, self._runtime.config.cluster)
        return found if bucket.is_foreign(self._history.catalogue.incarnation) else []

    async def open(self, name: str) -> RemoteJournal:
        """Return the journal for new topics of a storage; open it if it is not running yet.

        Opening runs to completion even if the caller is cancelled: topics that are served need a journal that runs.

        Raises:
            FailedPreconditionError: the storage cannot carry such topics.
            OwnerFencedError: another broker owns them.
            DataLossError: an object in the bucket is damaged or missing.
            StorageError: the storage cannot be reached.
            UnavailableError: the broker is shutting down.
        """
        lacking = self._lacking(name)
        if lacking is not None:
            raise lacking
        if name not in self.journals:
            await self._runtime.finish(partial(self._bring_to_life, name, None))
        if name not in self.journals:
            raise UnavailableError(f"storage {name!r} is not opened any more: the broker is shutting down")
        return self.journals[name]

    def may_open(self, wal: Wal) -> bool:
        """Whether a wal is to be opened by :meth:`open_wal`: not if :meth:`start` is about to, or has given it up.

        What is wrong with the home of a storage may be right in other wals there.
        """
        if wal.storage not in self._storages or wal.storage in self._starting:
            return False
        return wal.storage not in self._given_up or wal != self.home(wal.storage)

    async def open_wal(self, wal: Wal) -> None:
        """Open the journal of a wal if it is not running yet, and serve its topics; raises as :meth:`open`."""
        lacking = self._lacking(wal.storage)
        if lacking is not None:
            raise lacking
        if wal not in self.wals:
            await self._runtime.finish(partial(self._bring_to_life, wal.storage, wal))

    async def _bring_to_life(self, name: str, wal: Wal | None) -> None:
        """Open a wal of a storage; None: the one for new topics."""
        async with self._opening[name]:
            home = self.home(name)
            wal = home if wal is None else wal
            bucket: Bucket | None = None
            if wal not in self.wals:
                journal, bucket = await self._recover(wal, wal == home)
                self.wals[wal] = journal  # at once: from here on its loss is seen
                await self._nursery.start(self._run, wal, journal)
            elif name in self.journals:
                return  # another call has opened it in the meantime
            if wal == home and wal in self.wals:
                self.journals[name] = self.wals[wal]
                self.failures.pop(name, None)
            if bucket is not None:
                try:
                    await self._take_over(name, bucket)
                except OwnerFencedError as error:
                    if self.gives_way(wal):
                        self.lose(wal, error)  # the next attempt has a higher epoch
                    raise
        await self._claimed(wal)

    async def _run(
        self, wal: Wal, journal: RemoteJournal, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Task: run a journal until the broker ends, or until another broker has claimed the wal."""
        try:
            await journal.run(task_status=task_status)
        except OwnerFencedError as error:
            if self._membership.owner_of_wal(*wal) == self._membership.me:
                self._losses[wal] += 1
            if not self.gives_way(wal):
                raise
            _log.warning(
                "another broker has claimed wal %s of storage %r, or is about to; this one goes on without it: %s",
                wal.name,
                wal.storage,
                error,
                extra=log_event("remote.wal_lost", storage=wal.storage),
            )
            if self.wals.get(wal) is journal:
                self.lose(wal, error)

    def gives_way(self, wal: Wal) -> bool:
        """Whether this broker goes on if another one has claimed a wal: the metadata say which of them owns it.

        Not if that happens again and again although the metadata name this broker: then other metadata name another.
        """
        return not self._membership.is_alone and self._losses[wal] <= MOST_LOSSES

    def lose(self, wal: Wal, error: OwnerFencedError) -> None:
        """Use a wal no longer that another broker claims. No-op if it is not open."""
        journal = self.wals.pop(wal, None)
        if journal is None:
            return
        journal.abandon(error)
        if self.journals.get(wal.storage) is journal:
            del self.journals[wal.storage]
        self._lost(wal)

    def _lacking(self, name: str) -> FailedPreconditionError | None:
        found = self._storages[name]
        capabilities = found.capabilities
        if capabilities.durable and capabilities.conditional_put:
            return None
        why = "is not durable" if not capabilities.durable else "cannot store an object only if it is absent"
        return FailedPreconditionError(
            f"storage {name!r} ({found.url}) {why}, so it cannot carry topics of durability 'remote'; choose another"
            " storage for them"
        )
