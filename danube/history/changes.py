"""The rows of the catalogue of history in the metadata, and the transactions that change them. Pure.

Owners of different topics may share an object, so its row is counted by compare-and-set: a change is conditional on the
revision of the row that it was computed from. An object whose last part is removed becomes *garbage* in the same
transaction: its row goes, and a row of its own begins. A change that enters an object which has no row yet is
conditional on the absence of garbage. So an object that is to be deleted cannot come back into use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from danube.history.parts import GarbageRecord, ObjectRecord, ObjectRef, PartRecord
from danube.history.segment import SegmentPart
from danube.metadata._contract import Condition, Delete, Put
from danube.model.ids import Offset, TopicId

__all__ = [
    "GARBAGE",
    "HISTORY_KEY",
    "OBJECTS",
    "SEGMENTS",
    "STARTS",
    "CatalogueKeys",
    "HistoryRecord",
    "NewObject",
    "Plan",
    "plan_change",
    "start_key",
    "topic_of_start",
    "topic_segments",
]

HISTORY_KEY: Final = "/history"
SEGMENTS: Final = "/segments/"
OBJECTS: Final = "/objects/"
GARBAGE: Final = "/garbage/"
STARTS: Final = "/starts/"

_encode = msgspec.msgpack.encode


class HistoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the history of all brokers on one metadata store has in common."""

    incarnation: str
    """Identity of these metadata. A bucket with another one holds the history of another cluster."""


def topic_segments(topic_id: TopicId) -> str:
    """Return the prefix of a topic's parts."""
    return f"{SEGMENTS}{topic_id:016x}/"


def start_key(topic_id: TopicId) -> str:
    """Return the key of a topic's start offset."""
    return f"{STARTS}{topic_id:016x}"


def topic_of_start(key: str) -> TopicId:
    """Return the topic of such a key."""
    return TopicId(int(key.removeprefix(STARTS), 16))


def part_key(part: SegmentPart) -> str:
    """Return the key of a part."""
    return f"{topic_segments(part.topic_id)}{part.base_offset:016x}"


class CatalogueKeys:
    """The keys and records of one broker, in which a storage that is not shared has the broker's name.

    Args:
        broker: name of the broker.
        unshared: its storages that other brokers cannot reach, even if they have one of the same name.
    """

    def __init__(self, broker: str, unshared: Collection[str] = ()) -> None:
        self._suffix = f"@{broker}"
        self._unshared = frozenset(unshared)

    def stored(self, storage: str) -> str:
        """Return the name of a storage in the metadata."""
        return storage + self._suffix if storage in self._unshared else storage

    def local(self, storage: str) -> str:
        """Return the name of a storage on this broker. One that belongs to another broker keeps its full name."""
        name = storage.removesuffix(self._suffix)
        return name if name in self._unshared else storage

    def object_key(self, ref: ObjectRef) -> str:
        """Return the key of an object's row."""
        return f"{OBJECTS}{self.stored(ref.storage)}/{ref.key}"

    def garbage_key(self, ref: ObjectRef) -> str:
        """Return the key of an object that is to be deleted."""
        return f"{GARBAGE}{self.stored(ref.storage)}/{ref.key}"

    def ref(self, key: str) -> ObjectRef:
        """Return the object of a key of either kind."""
        _, _, storage, name = key.split("/", 3)
        return ObjectRef(self.local(storage), name)

    def is_elsewhere(self, record: PartRecord) -> bool:
        """Whether a decoded row is of a storage that only another broker reaches, which has lost the topic."""
        return "@" in self.local(record.storage)

    def encode_part(self, record: PartRecord) -> bytes:
        """Return the row of a part."""
        return _encode(PartRecord(self.stored(record.storage), record.object, record.part))

    def read_part(self, record: PartRecord) -> PartRecord:
        """Return a decoded row with the local name of its storage."""
        name = self.local(record.storage)
        return record if name == record.storage else PartRecord(name, record.object, record.part)


class NewObject(NamedTuple):
    """An object that gets its first row."""

    ref: ObjectRef
    size_bytes: int
    created_us: int


class Plan(NamedTuple):
    """A transaction: its operations, what it is conditional on, and the objects afterwards."""

    operations: list[Put | Delete]
    conditions: list[Condition]
    counted: dict[ObjectRef, ObjectRecord | GarbageRecord]


def plan_change(
    keys: CatalogueKeys,
    rows: Callable[[ObjectRef], tuple[ObjectRecord | None, int]],
    garbage: Callable[[ObjectRef], int],
    *,
    added: Sequence[PartRecord],
    removed: Sequence[PartRecord],
    starts: Mapping[TopicId, Offset],
    new: NewObject | None,
    broker: str,
    now_us: int,
    taint: bool,
) -> Plan:
    """Plan a change of parts and of the counts of their objects.

    Args:
        keys: of this broker.
        rows: returns the row of an object with its revision; None and 0 if it has none.
        garbage: returns the revision of an object's garbage row if this broker may take it back into use; else 0.
        added, removed: parts; an added one may replace a removed one at the same offset.
        starts: start offsets by topic.
        new: the object that added parts are in.
        broker: this broker, which has to delete what becomes garbage.
        now_us: wall clock.
        taint: whether the objects hold data that is no longer needed.
    """
    counts: dict[ObjectRef, tuple[int, int]] = {}
    for sign, records in ((-1, removed), (1, added)):
        for record in records:
            references, live_bytes = counts.get(record.ref, (0, 0))
            counts[record.ref] = references + sign, live_bytes + sign * record.part.size_bytes
    replaced = {part_key(record.part) for record in added}
    operations: list[Put | Delete] = [
        Delete(part_key(record.part)) for record in removed if part_key(record.part) not in replaced
    ]
    operations += [Put(part_key(record.part), keys.encode_part(record)) for record in added]
    conditions = [] if removed else [Condition(part_key(record.part), 0) for record in added]
    counted: dict[ObjectRef, ObjectRecord | GarbageRecord] = {}
    for ref, (references, live_bytes) in counts.items():
        found, revision = rows(ref)
        key = keys.object_key(ref)
        conditions.append(Condition(key, revision))
        if found is None:
            assert new is not None
            assert new.ref == ref, f"{ref} is not in the catalogue"
            found = ObjectRecord(new.size_bytes, 0, 0, new.created_us)
            condemned = garbage(ref)
            conditions.append(Condition(keys.garbage_key(ref), condemned))
            if condemned:
                operations.append(Delete(keys.garbage_key(ref)))
        total = ObjectRecord(
            found.size_bytes,
            found.references + references,
            found.live_bytes + live_bytes,
            found.created_us,
            found.tainted or taint,
        )
        if total.references > 0:
            counted[ref] = total
            operations.append(Put(key, _encode(total)))
        else:
            counted[ref] = waste = GarbageRecord(broker, found.size_bytes, found.created_us, now_us)
            operations += [Delete(key), Put(keys.garbage_key(ref), _encode(waste))]
    operations += [Put(start_key(topic_id), str(start).encode()) for topic_id, start in starts.items()]
    return Plan(operations, conditions, counted)
