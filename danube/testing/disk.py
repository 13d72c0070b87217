"""A simulated disk in memory that loses, tears, flips and fails writes, driven by a seed.

:class:`SimulatedDisk` implements :class:`danube.log.Disk` for tests: no files, no threads, and all waiting goes through
Trio's clock, so it runs in virtual time under ``MockClock``. It keeps two states of each file: what the process
sees, and what the medium holds. :meth:`SimulatedDisk.crash` returns the disk after a crash:

* after a power loss, synced bytes are there; each unsynced sector is there or not, at random, and unsynced renames
  and creations are undone from some point on;
* after the death of the process alone, all written bytes are there, and a part of a write in progress.

The old disk is gone with its process: pending and later operations on it get ``EIO``.
"""

from __future__ import annotations

import errno
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Final

import trio

from danube.testing.clock import sleep

__all__ = ["SimulatedDisk"]

SECTOR: Final = 512


class _File:
    """A file, independent of its name. A write beyond its end makes it longer."""

    def __init__(self, size: int) -> None:
        self.seen = bytearray(size)
        self.held = bytearray(size)
        self.unsynced: list[tuple[int, bytes]] = []

    def apply(self, position: int, data: bytes) -> None:
        self.seen[position : position + len(data)] = data
        self.unsynced.append((position, data))

    def settle(self, count: int) -> None:
        """Write the first ``count`` unsynced writes to the medium."""
        for position, data in self.unsynced[:count]:
            self.held[position : position + len(data)] = data
        del self.unsynced[:count]

    def after_power_loss(self, random: Random) -> _File:
        found = _File(0)
        content = bytearray(self.held)
        for position, data in self.unsynced:
            _tear(content, position, data, random)
        found.seen, found.held = content, bytearray(content)
        return found

    def after_kill(self) -> _File:
        found = _File(0)
        # The page cache survives, including data that is not on the medium.
        found.seen, found.held, found.unsynced = bytearray(self.seen), bytearray(self.held), list(self.unsynced)
        return found


def _tear(content: bytearray, position: int, data: bytes, random: Random) -> None:
    """Put some sectors of a write on the medium; new sectors of a grown file may be there as zeros."""
    content.extend(bytes(max(0, position + len(data) - len(content))))
    share = random.choice((0.0, 0.5, 1.0))
    at = 0
    while at < len(data):
        step = SECTOR - (position + at) % SECTOR
        if random.random() < share:
            piece = data[at : at + step]
            content[position + at : position + at + len(piece)] = piece
        at += step


class SimulatedDisk:
    """A disk with injected faults; see the module.

    Args:
        random: the only source of randomness.
        write_delay_s, sync_delay_s, read_delay_s: upper bounds of the time of an operation, in (virtual) seconds. May
            be changed at any time.
        capacity: bytes that fit on it; creating beyond it is ``ENOSPC``. May be changed at any time.
        growing: whether writes may make files longer, as those of staging do (:class:`danube.broker.stages.StageDisk`).
    """

    def __init__(
        self,
        random: Random,
        *,
        write_delay_s: float = 0.0002,
        sync_delay_s: float = 0.002,
        read_delay_s: float = 0.0002,
        capacity: float = math.inf,
        growing: bool = False,
    ) -> None:
        self._random = random
        self.write_delay_s = write_delay_s
        self.sync_delay_s = sync_delay_s
        self.read_delay_s = read_delay_s
        self.capacity = capacity
        self.growing = growing
        self.no_descriptors = False
        """Whether no file descriptor is left: files of this process that are open already can be used, no others."""
        self.syncs = 0
        self.writes = 0
        self._names: dict[str, _File] = {}
        # The directory on the medium, and its changes since.
        self._held_names: dict[str, _File] = {}
        self._unsynced_names: list[dict[str, _File]] = []
        self._faults: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._turn = trio.Event()
        self._turn.set()
        self._under_way: list[tuple[_File, int, bytes]] = []
        self._gone = False
        self._open: set[str] = set()
        """Names of files that the process has open; it closes none itself."""

    # --- Faults ---

    def fail(self, operation: str, error: int, *, after: int = 0) -> None:
        """Fail a call with an errno: ``write``, ``sync``, ``read``, ``create`` or ``rename``, ``after`` more calls.

        A failed sync loses the data that it should have written, while reads still return it (as on Linux).
        """
        self._faults[operation].append((self._calls[operation] + after + 1, error))

    def flip(self, name: str, position: int, mask: int = 1) -> None:
        """Flip bits of one byte, on the medium and in the page cache."""
        file = self._names[name]
        file.seen[position] ^= mask
        file.held[position] ^= mask

    def lose(self, name: str) -> bytes:
        """Remove a file, from the page cache and from the medium; return its contents."""
        lost = bytes(self._names[name].seen)
        for names in (self._names, self._held_names, *self._unsynced_names):
            names.pop(name, None)
        return lost

    def put_back(self, name: str, content: bytes) -> None:
        """Restore a file, in the page cache and on the medium."""
        file = _File(len(content))
        file.seen[:] = file.held[:] = content
        for names in (self._names, self._held_names, *self._unsynced_names):
            names[name] = file

    def content(self, name: str) -> bytearray:
        """Return a file as seen by a process; changes to the result change the file."""
        return self._names[name].seen

    def held(self, name: str) -> bytes:
        """Return a file as held by the medium."""
        return bytes(self._names[name].held)

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return bool(self._under_way)

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self._names)

    def close_all(self) -> None:
        """Close all files, as the end of a process does; the next process has to open them again."""
        self._open.clear()

    def crash(self, *, power_loss: bool) -> SimulatedDisk:
        """Crash this disk and return the one found afterwards."""
        random = self._random
        for file, position, data in self._under_way:
            # A part of a write in progress may be there.
            file.apply(position, data[: random.randrange(len(data) + 1)])
        heir = SimulatedDisk(
            random,
            write_delay_s=self.write_delay_s,
            sync_delay_s=self.sync_delay_s,
            read_delay_s=self.read_delay_s,
            capacity=self.capacity,
            growing=self.growing,
        )
        heir.no_descriptors = self.no_descriptors
        if power_loss:
            states = [self._held_names, *self._unsynced_names]
            names = states[random.randrange(len(states))]
            heir._names = {name: file.after_power_loss(random) for name, file in names.items()}
            heir._held_names = dict(heir._names)
        else:
            files = {id(file): file.after_kill() for file in (*self._names.values(), *self._held_names.values())}
            for state in self._unsynced_names:
                files.update({id(file): file.after_kill() for file in state.values() if id(file) not in files})
            heir._held_names = {name: files[id(file)] for name, file in self._held_names.items()}
            heir._unsynced_names = [
                {name: files[id(file)] for name, file in state.items()} for state in self._unsynced_names
            ]
            # The last state of the directory itself, so that the next process can sync what this one has not.
            heir._names = [heir._held_names, *heir._unsynced_names][-1]
        self._gone = True
        return heir

    def _call(self, operation: str) -> None:
        self._calls[operation] += 1
        for fault in self._faults[operation]:
            if fault[0] == self._calls[operation]:
                raise _error(fault[1])

    async def _pass(self, delay_s: float) -> None:
        """Wait; raise if the disk crashed in the meantime."""
        await sleep(self._random.random() * delay_s)
        if self._gone:
            raise _error(errno.EIO)

    def _find(self, name: str) -> _File:
        file = self._names.get(name)
        if file is None:
            raise _error(errno.ENOENT)
        return file

    def _opened(self, name: str) -> None:
        """Open a file unless it is open."""
        if name not in self._open:
            self._need_descriptor()
            self._open.add(name)

    def _need_descriptor(self) -> None:
        if self.no_descriptors:
            raise _error(errno.EMFILE)

    def _used(self) -> int:
        return sum(len(file.seen) for file in self._names.values())

    # --- The Disk contract ---

    async def list(self) -> dict[str, int]:
        """See :meth:`danube.log.Disk.list`."""
        await self._pass(self.read_delay_s)
        self._need_descriptor()
        return {name: len(file.seen) for name, file in sorted(self._names.items())}

    async def create(self, name: str, size: int) -> None:
        """See :meth:`danube.log.Disk.create`."""
        self._call("create")
        await self._pass(self.sync_delay_s)
        self._need_descriptor()
        if self._used() + size > self.capacity:
            raise _error(errno.ENOSPC)
        assert name not in self._names
        self._open.add(name)
        self._change({**self._names, name: _File(size)})

    async def rename(self, old: str, new: str) -> None:
        """See :meth:`danube.log.Disk.rename`."""
        self._call("rename")
        assert new not in self._names
        self._opened(old)
        self._open.remove(old)
        self._open.add(new)
        names = dict(self._names)
        names[new] = names.pop(old)
        self._change(names)
        await self._pass(self.write_delay_s)

    async def remove(self, name: str) -> None:
        """See :meth:`danube.log.Disk.remove`."""
        self._find(name)
        self._open.discard(name)
        names = dict(self._names)
        del names[name]
        self._change(names)
        await self._pass(self.write_delay_s)

    def _change(self, names: dict[str, _File]) -> None:
        self._names = names
        self._unsynced_names.append(names)

    async def sync_directory(self) -> None:
        """See :meth:`danube.log.Disk.sync_directory`."""
        now = self._names
        await self._pass(self.sync_delay_s)
        for index, names in enumerate(self._unsynced_names):
            if names is now:  # if not, a later sync has ended before
                self._held_names = now
                del self._unsynced_names[: index + 1]
                break

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """See :meth:`danube.log.Disk.write`."""
        file = self._find(name)
        self._opened(name)
        data = b"".join(buffers)
        grows = position + len(data) - len(file.seen)
        assert grows <= 0 or (self.growing and position <= len(file.seen)), "a journal file never grows"
        before, mine = self._turn, trio.Event()
        self._turn = mine
        with trio.CancelScope(shield=True):  # bounded: by the delays
            if not before.is_set():
                await before.wait()
            job = (file, position, data)
            self._under_way.append(job)
            try:
                await self._pass(self.write_delay_s)
                self._call("write")
            finally:
                self._under_way.remove(job)
                mine.set()
            if grows > 0 and self._used() + grows > self.capacity:
                raise _error(errno.ENOSPC)
            if data:
                file.apply(position, data)
            self.writes += 1
            if sync:
                count = len(file.unsynced)
                await self._pass(self.sync_delay_s)
                self.syncs += 1
                try:
                    self._call("sync")
                except OSError:
                    del file.unsynced[:count]
                    raise
                file.settle(count)
            else:
                await trio.lowlevel.checkpoint()

    async def read(self, name: str, position: int, size: int) -> bytes:
        """See :meth:`danube.log.Disk.read`."""
        self._call("read")
        file = self._find(name)
        self._opened(name)
        await self._pass(self.read_delay_s)
        return bytes(file.seen[position : position + size])

    async def free_bytes(self) -> int:
        """See :meth:`danube.log.Disk.free_bytes`."""
        await trio.lowlevel.checkpoint()
        left = self.capacity - self._used()
        return int(max(0, min(left, 2**62)))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
