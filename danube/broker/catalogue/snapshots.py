"""Snapshots in the metadata store: the state described by control entries up to a checkpoint of the journal.

Keys::

    /snapshots/topics/{topic id}                        offsets and producers
    /snapshots/cursors/{subscription id}                a cursor
    /snapshot-parts/{kind}/{id}/{generation}/{number}   a part of one that is too large for one value

A value begins with a byte that states its content::

    0   the snapshot
    1   generation and number of the parts that it is cut into (msgpack)

The parts of a generation are stored before the value that names it, and those of the one before are deleted after it.
So an interruption leaves either the old snapshot or the new one, and parts that are not named do not count.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, NamedTuple

import msgspec

from danube.metadata import Delete, MetadataStore, Put
from danube.model.errors import DataLossError
from danube.model.limits import KIB

__all__ = ["KINDS", "Snapshots"]

KINDS: Final = ("topics", "cursors")

_PART_BYTES: Final = 512 * KIB
"""Largest value; a larger snapshot is cut into parts of this size."""
_TRANSACTION_BYTES: Final = 512 * KIB
_TRANSACTION_CHANGES: Final = 100

_WHOLE: Final = b"\0"
_IN_PARTS: Final = b"\1"


class _Parts(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    count: int


class _Snapshot(NamedTuple):
    kind: str
    number: int

    @property
    def key(self) -> str:
        return f"/snapshots/{self.kind}/{self.number:016x}"

    def part_keys(self, parts: _Parts) -> list[str]:
        start = f"/snapshot-parts/{self.kind}/{self.number:016x}/{parts.generation:016x}/"
        return [f"{start}{part:08x}" for part in range(parts.count)]


_NO_PARTS: Final = _Parts(0, 0)
_DECODER: Final = msgspec.msgpack.Decoder(_Parts)


class Snapshots:
    """Snapshots of one broker. Changes are made by one task at a time for each snapshot."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._parts: dict[_Snapshot, _Parts] = {}
        """Parts of snapshots that are stored in parts, or were and may have left some."""

    async def load(self, kind: str) -> dict[int, bytes]:
        """Return the snapshots of a kind, by id.

        Raises:
            DataLossError: a part is missing.
        """
        items, _ = await self._store.list(f"/snapshots/{kind}/")
        pieces, _ = await self._store.list(f"/snapshot-parts/{kind}/")
        stored = {item.key: item.value for item in pieces}
        found: dict[int, bytes] = {}
        for item in items:
            snapshot = _Snapshot(kind, int(item.key.rpartition("/")[2], 16))
            if item.value[:1] == _WHOLE:
                found[snapshot.number] = item.value[1:]
                continue
            parts = self._parts[snapshot] = _DECODER.decode(item.value[1:])
            try:
                found[snapshot.number] = b"".join([stored[key] for key in snapshot.part_keys(parts)])
            except KeyError as error:
                raise DataLossError(
                    f"the snapshot {item.key} misses its part {error.args[0]}; restore the metadata store from a copy"
                ) from error
        return found

    async def save(self, snapshots: Sequence[tuple[str, int, bytes]]) -> None:
        """Replace snapshots, each given as (kind, id, value); many of them in one transaction."""
        operations: list[Put | Delete] = []
        former: list[tuple[_Snapshot, _Parts]] = []
        size = 0
        for kind, number, value in snapshots:
            snapshot = _Snapshot(kind, number)
            known = self._parts.get(snapshot, _NO_PARTS)
            if known.count:
                former.append((snapshot, known))
            if len(value) < _PART_BYTES:
                head = _WHOLE + value
            else:
                head = _IN_PARTS + msgspec.msgpack.encode(await self._save_parts(snapshot, known.generation + 1, value))
            if len(operations) == _TRANSACTION_CHANGES or size + len(head) > _TRANSACTION_BYTES:
                await self._store.transact((), operations)
                operations, size = [], 0
            operations.append(Put(snapshot.key, head))
            size += len(head)
        if operations:
            await self._store.transact((), operations)
        for snapshot, parts in former:
            await self._delete_parts(snapshot, parts)
            if self._parts[snapshot] is parts:  # the snapshot is complete now
                self._parts[snapshot] = _Parts(parts.generation, 0)

    async def _save_parts(self, snapshot: _Snapshot, generation: int, value: bytes) -> _Parts:
        parts = _Parts(generation, -(-len(value) // _PART_BYTES))
        # Recorded first: a generation is not used twice, even if this fails.
        self._parts[snapshot] = parts
        for number, key in enumerate(snapshot.part_keys(parts)):
            await self._store.put(key, value[number * _PART_BYTES : (number + 1) * _PART_BYTES])
        return parts

    async def _delete_parts(self, snapshot: _Snapshot, parts: _Parts) -> None:
        for key in snapshot.part_keys(parts):
            await self._store.delete(key)

    async def delete(self, kind: str, number: int) -> None:
        """Delete a snapshot, if it is there."""
        snapshot = _Snapshot(kind, number)
        await self._store.delete(snapshot.key)
        parts = self._parts.pop(snapshot, None)
        if parts is not None:
            await self._delete_parts(snapshot, parts)

    async def ids(self, kind: str) -> set[int]:
        """Return the ids of all snapshots of a kind."""
        return {int(item.key.rpartition("/")[2], 16) for item in (await self._store.list(f"/snapshots/{kind}/"))[0]}

    async def sweep(self, kind: str, alive: Container[int]) -> int:
        """Delete the snapshots of deleted objects, and parts that no snapshot names; return the number of snapshots."""
        gone = [number for number in await self.ids(kind) if number not in alive]
        for number in gone:
            await self.delete(kind, number)
        named: set[str] = set()
        for item in (await self._store.list(f"/snapshots/{kind}/"))[0]:
            if item.value[:1] == _IN_PARTS:
                snapshot = _Snapshot(kind, int(item.key.rpartition("/")[2], 16))
                named.update(snapshot.part_keys(_DECODER.decode(item.value[1:])))
        for item in (await self._store.list(f"/snapshot-parts/{kind}/"))[0]:
            if item.key not in named:
                await self._store.delete(item.key)
        return len(gone)
