"""The table of a simulated metadata member, in memory: what a crash finds of it is what SQLite would have kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from typing import TypeVar

import msgspec
import trio

from danube.metadata._contract import Event, EventBatch, KeyValue, LeaseId
from danube.metadata._memory_table import MemoryTable

__all__ = ["SimulatedTable", "inline"]

T = TypeVar("T")


class _Image(msgspec.Struct, array_like=True):
    revision: int
    compacted: int
    next_lease: int
    extra: bytes
    items: list[KeyValue]
    history: list[tuple[int, tuple[Event, ...]]]
    leases: list[tuple[LeaseId, float]]


class SimulatedTable(MemoryTable):
    """A table in memory with the durability of SQLite's ``synchronous=NORMAL``: a crash may undo the last transactions.

    Args:
        random: decides what a crash undoes.
        image: what the medium holds.
    """

    def __init__(self, random: Random, image: bytes = b"") -> None:
        super().__init__()
        self.extra = b""
        self._random = random
        self._waits = Random(1)
        self._images = [image]  # what the medium may hold after a crash; the first one is synced
        self._is_loaded = False
        self._copy = b""
        self._incoming = bytearray()
        self.fail: BaseException | None = None
        """Raised by the next transaction."""
        self.always_fails: BaseException | None = None
        """Raised by each transaction."""
        self.transactions = 0
        self.installs = 0

    def open(self) -> None:
        """Load what the medium holds."""
        self._load(self._images[-1])

    def close(self) -> None:
        """Do nothing."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See :meth:`StateTable.transaction`."""
        if self.always_fails is not None:
            raise self.always_fails
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        before = self.extra
        yield
        if self.extra != before:
            self.transactions += 1
            if self._random.random() < 0.05:
                self._images.append(self.image())

    @property
    def may_wait(self) -> bool:
        """Now one thing, now the other: both ways are taken."""
        return self._waits.random() < 0.5  # both ways are taken

    def sync(self) -> None:
        """Make everything durable."""
        self._images = [self.image()]

    def image(self) -> bytes:
        """Return everything, encoded."""
        return msgspec.msgpack.encode(
            _Image(
                self.revision,
                self.compacted,
                self.next_lease,
                self.extra,
                list(self._items.values()),
                [(batch.revision, batch.events) for batch, _ in self._history],
                self.leases(),
            )
        )

    def _load(self, image: bytes) -> None:
        MemoryTable.__init__(self)
        self._is_loaded = True
        self.extra = b""
        if not image:
            return
        found = msgspec.msgpack.decode(image, type=_Image)
        self.revision, self.compacted, self.next_lease = found.revision, found.compacted, found.next_lease
        self.extra = found.extra
        for lease, ttl_s in found.leases:
            self.add_lease(lease, ttl_s)
        for item in found.items:
            self.write(item)
        for revision, events in found.history:
            self.record(EventBatch(revision, events))

    def export(self) -> tuple[int, bytes]:
        """See :meth:`StateTable.export`."""
        self._copy = self.image()
        return len(self._copy), sha256(self._copy).digest()

    def read_copy(self, position: int, size: int) -> bytes:
        """See :meth:`StateTable.read_copy`."""
        return self._copy[position : position + size]

    def receive(self, position: int, piece: bytes) -> None:
        """See :meth:`StateTable.receive`."""
        if position == 0:
            self._incoming.clear()
        assert position == len(self._incoming)
        self._incoming += piece

    def check_received(self, size: int, digest: bytes) -> bool:
        """See :meth:`StateTable.check_received`."""
        return len(self._incoming) == size and sha256(self._incoming).digest() == digest

    def install(self) -> None:
        """See :meth:`StateTable.install`."""
        self._images = [bytes(self._incoming)]
        self._load(self._images[0])
        self.installs += 1

    def crash(self, *, power_loss: bool) -> SimulatedTable:
        """Return the table that is found after a crash."""
        present = self.image() if self._is_loaded else self._images[-1]
        image = self._random.choice(self._images) if power_loss else present
        return SimulatedTable(self._random, image)


async def inline(function: Callable[[], T]) -> T:
    """Run a function of the table: the worker of a simulated member, without a thread."""
    await trio.lowlevel.checkpoint()
    return function()
