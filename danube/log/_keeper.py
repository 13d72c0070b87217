"""Manages journal files off the hot path: prepares the next file ahead of time, and recycles files no longer needed.

It runs two tasks. One keeps two files ready. The other waits for closed files without needed batches, has snapshots of
the topics in them written, then an entry that they are free, and renames them to spares. What is prepared and what is
freed is decided by :mod:`danube.log._stock`; here are the operations on the disk, and the events.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import trio

from danube.log._admission import Admission
from danube.log._files import JournalFile
from danube.log._stock import Create, FileStock, Orders, Promote, Signal
from danube.log.disk import Disk
from danube.log.recovery import Recovery
from danube.model.ids import TopicId
from danube.model.log_events import log_event

__all__ = ["FileKeeper", "Owner"]

_log = logging.getLogger("danube.journal")


class Owner(Protocol):
    """What the keeper needs from its journal."""

    @property
    def recycles(self) -> bool:
        """Whether snapshots can be written, so that files can be freed."""
        ...

    def settled_sequence(self) -> int:
        """Return the last sequence up to which all entries have been reported."""
        ...

    def snapshot_cost(self, topic_id: TopicId, *, exact: bool = False) -> int:
        """Return how many bytes the snapshot of a topic takes; not ``exact``: as far as is known without taking it."""
        ...

    async def write_snapshots(self, topic_ids: Collection[TopicId], tombstones: Mapping[TopicId, int]) -> None:
        """Write snapshots of topics, and tombstones with their horizons; return when they are synced.

        A topic that has none stays in its files; so do all if the journal is ending.
        """
        ...

    async def write_freed(self, payload: bytes) -> bool:
        """Write a FREED entry; return whether it is durable."""
        ...

    def forget_file(self, file: JournalFile) -> None:
        """Drop all cached data of a file."""
        ...


class FileKeeper:
    """Carries out what the stock of a journal's files decides.

    Attributes:
        news: an event that is set and replaced whenever the result of :meth:`FileStock.can_roll` may have changed.
    """

    def __init__(self, disk: Disk, stock: FileStock, admission: Admission, owner: Owner) -> None:
        self._disk = disk
        self._stock = stock
        self._admission = admission
        self._owner = owner
        self.news = trio.Event()
        self._prepare_wanted = trio.Event()
        self._recycle_wanted = trio.Event()

    async def adopt(self, recovery: Recovery) -> None:
        """Take over the files that recovery produced."""
        self._stock.adopt(recovery.active, recovery.spares, recovery.next_number, recovery.identity)
        self.follow(self._stock.note_free_bytes(await self._disk.free_bytes()))

    def follow(self, orders: Orders) -> None:
        """Wake the tasks that have something to do, and write to the log."""
        signal = orders.signal
        if Signal.PREPARE in signal:
            self._prepare_wanted.set()
        if Signal.RECYCLE in signal:
            self._recycle_wanted.set()
        if Signal.NEWS in signal:
            self.announce()
        if Signal.ADMIT in signal:
            self._admission.wake()
        for level, name, text in orders.remarks:
            (_log.error if level == "error" else _log.warning)("%s", text, extra=log_event(name))

    def want_file(self) -> None:
        """Try (again) to have a file ready."""
        self._prepare_wanted.set()

    def want_recycling(self) -> None:
        """Look for files that are no longer needed."""
        self._recycle_wanted.set()

    def announce(self) -> None:
        """Wake the tasks that wait for :attr:`news`."""
        self.news.set()
        self.news = trio.Event()

    async def prepare_files(self) -> None:
        """Task: keep two files ready, the next one and the one that recovery would need."""
        stock = self._stock
        while True:
            self._prepare_wanted = trio.Event()
            self.follow(stock.note_free_bytes(await self._disk.free_bytes()))
            while (step := stock.next_preparation()) is not None:
                try:
                    await self._prepare(step)
                except OSError as error:
                    self.follow(stock.not_prepared(error))
            with trio.move_on_after(stock.retry_s):
                await self._prepare_wanted.wait()

    async def _prepare(self, step: Create | Promote) -> None:
        if isinstance(step, Create):
            await self._disk.create(step.name, step.size)
            self._stock.created(step)
            return
        with trio.CancelScope(shield=True):  # bounded: a rename; the list must follow it
            await self._disk.rename(step.spare, step.file.name)
            self._stock.promoted(step)
        await self._disk.sync_directory()
        self.follow(self._stock.prepared(step))

    async def recycle_files(self) -> None:
        """Task: turn closed files without needed data into spares."""
        owner, stock = self._owner, self._stock
        while True:
            self._recycle_wanted = trio.Event()
            leaving = stock.choose(owner.settled_sequence(), owner.snapshot_cost) if owner.recycles else None
            if leaving is not None:
                if leaving.topic_ids or leaving.tombstones:
                    await owner.write_snapshots(leaving.topic_ids, leaving.tombstones)
                for group in stock.groups(leaving.files):
                    await self._free(group)
            stock.note_settled(owner.settled_sequence())
            await self._recycle_wanted.wait()

    async def _free(self, group: Sequence[JournalFile]) -> None:
        """Write durably that files are no longer needed, and only then remove them from the log."""
        if not await self._owner.write_freed(self._stock.free(group)):
            return
        for file in group:
            with trio.CancelScope(shield=True):  # bounded: a rename; the table must follow it
                name = self._stock.retire(file)
                self._owner.forget_file(file)
                if name is None:
                    await self._disk.remove(file.name)
                    continue
                await self._disk.rename(file.name, name)
                self._stock.retired(name)
        await self._disk.sync_directory()
        self.follow(self._stock.freed())
