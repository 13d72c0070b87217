"""Aborted writes: refuses stages that tasks of an aborted job open or finish later.

A driver that gives a job up does not wait for its tasks. A task that is still running would open or finish a stage
after the abort, and that stage would never be named again. So an abort names the write, and the write is stored::

    /stages/aborted/{quoted producer}/{batch id}/{write id}     AbortedWrite

The records are bounded in time and number (``aborted_write_expiry_s``, ``max_aborted_writes``); a stage that is created
after that expires like any other. They are in the metadata store, to survive a restart: a task that waits for the
broker stages as soon as the broker is available.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
import trio

from danube.metadata import MetadataStore
from danube.model.limits import Limits

__all__ = ["AbortedWrite", "AbortedWrites", "Write"]

_PREFIX: Final = "/stages/aborted/"

_encode = msgspec.msgpack.Encoder().encode


class Write(NamedTuple):
    """One attempt of a job to write a batch."""

    producer: str
    batch_id: int
    write_id: str


class AbortedWrite(msgspec.Struct, array_like=True, frozen=True):
    """The value of a key; the key names the write."""

    time_us: int
    """When it was last aborted."""


_DECODER: Final = msgspec.msgpack.Decoder(AbortedWrite)


class AbortedWrites:
    """The aborted writes of a broker.

    Args:
        store: the metadata store.
        limits: ``max_aborted_writes`` and ``aborted_write_expiry_s``.
        clock_us: microseconds since the epoch.
    """

    def __init__(self, store: MetadataStore, limits: Limits, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._limits = limits
        self._clock_us = clock_us
        self._times: dict[Write, int] = {}
        """When each of them was aborted, the oldest first."""
        self._forgotten: dict[Write, None] = {}
        """Removed writes whose keys are still in the store."""
        self._lock = trio.Lock()
        """Serializes changes of the store: a write aborted during the deletion of its key is stored after it."""

    def __contains__(self, write: Write) -> bool:
        return write in self._times

    def __len__(self) -> int:
        return len(self._times)

    async def load(self) -> None:
        """Load the stored writes."""
        found = [(_write(item.key), _DECODER.decode(item.value)) for item in (await self._store.list(_PREFIX))[0]]
        self._times = {write: value.time_us for write, value in sorted(found, key=lambda each: each[1].time_us)}

    async def remember(self, write: Write) -> None:
        """Refuse stages of a write from now on; return when that survives a restart.

        Raises:
            DanubeError: it may not survive a restart; the call has to be repeated.
        """
        self._times.pop(write, None)
        self._forgotten.pop(write, None)
        time_us = self._times[write] = self._clock_us()
        while len(self._times) > self._limits.max_aborted_writes:
            self._forget(next(iter(self._times)))
        async with self._lock:
            await self._store.put(_key(write), _encode(AbortedWrite(time_us)))
        await self._clean()

    async def expire(self) -> None:
        """Remove expired writes.

        Raises:
            DanubeError: the metadata cannot be written now; the next call continues.
        """
        before_us = self._clock_us() - int(self._limits.aborted_write_expiry_s * 1e6)
        for write in [write for write, time_us in self._times.items() if time_us < before_us]:
            self._forget(write)
        await self._clean()

    def _forget(self, write: Write) -> None:
        del self._times[write]
        self._forgotten[write] = None

    async def _clean(self) -> None:
        async with self._lock:
            while self._forgotten:
                write = next(iter(self._forgotten))
                await self._store.delete(_key(write))
                self._forgotten.pop(write, None)


def _key(write: Write) -> str:
    return f"{_PREFIX}{quote(write.producer, safe='')}/{write.batch_id}/{write.write_id}"


def _write(key: str) -> Write:
    producer, batch_id, write_id = key.removeprefix(_PREFIX).split("/")
    return Write(unquote(producer), int(batch_id), write_id)
