"""Packs batches of topics into objects, which are then ready to be stored. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import Final, NamedTuple, Protocol

from danube.history.parts import ObjectRef
from danube.history.segment import SegmentBuilder, SegmentFooter, SegmentKind, extend_crc
from danube.log.cache import StoredBatch
from danube.model.ids import OwnerEpoch, ProducerId, TopicId
from danube.model.limits import KIB

__all__ = [
    "BuiltObject",
    "Named",
    "Origin",
    "Packer",
    "build",
    "number_of_key",
    "object_origin",
    "schema_key",
    "schema_prefix",
    "segment_prefix",
]

_CRC_BYTES: Final = 256 * KIB
"""Bytes that are checksummed at a time: fits into a processor's cache, and bounds the time per step."""
_NAME = re.compile(r".*/([0-9a-f]{16})-(b[0-9]+)\.([0-9a-f]+)-[0-9a-f]{16}\.seg")

_NUMBER = re.compile("[1-9][0-9]{0,9}")


class Origin(NamedTuple):
    """Where a segment comes from."""

    created_us: int
    broker: str
    life: int
    """Of the broker."""


class BuiltObject(NamedTuple):
    """An object that is ready to be stored."""

    key: str
    data: bytearray
    crc: int
    """CRC32C of the whole object."""
    created_us: int
    footer: SegmentFooter
    schemas: frozenset[int] = frozenset()
    """Numbers of the schemas that its batches carry."""

    def ref(self, storage: str) -> ObjectRef:
        """Return its reference in a storage."""
        return ObjectRef(storage, self.key)


def segment_prefix(cluster: str) -> str:
    """Return the key prefix of a cluster's segments."""
    return f"segments/{cluster}/"


def cluster_of_key(key: str) -> str:
    """Return the cluster to which a segment belongs, from its key."""
    return key.split("/")[1]


def schema_prefix(cluster: str) -> str:
    """Return the key prefix of the schemas of a cluster's history; see :mod:`danube.schema.objects`."""
    return f"schemas/{cluster}/"


def schema_key(cluster: str, number: int) -> str:
    """Return the key of a schema."""
    return f"{schema_prefix(cluster)}{number}"


def number_of_key(cluster: str, key: str) -> int | None:
    """Return the number of a schema from the key of its object; None for other objects."""
    found = _NUMBER.fullmatch(key.removeprefix(schema_prefix(cluster)))
    return int(found[0]) if found else None


def object_origin(key: str) -> Origin | None:
    """Return the origin of a segment from its key; None for other keys."""
    found = _NAME.fullmatch(key)
    return Origin(int(found[1], 16), found[2], int(found[3], 16)) if found else None


def build(key: str, builder: SegmentBuilder, created_us: int, schemas: Set[int] = frozenset()) -> BuiltObject:
    """Finish an object, whose batches carry the numbers of these schemas."""
    data, footer = builder.finish()
    return BuiltObject(key, data, crc_of(data), created_us, footer, frozenset(schemas))


def crc_of(data: bytearray) -> int:
    """Return the CRC32C of a large buffer without copying it as a whole."""
    crc = 0
    with memoryview(data) as view:
        for at in range(0, len(view), _CRC_BYTES):
            crc = extend_crc(crc, bytes(view[at : at + _CRC_BYTES]))
    return crc


class Named(Protocol):
    """A topic, as far as objects describe it."""

    @property
    def topic_id(self) -> TopicId:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def producer_name(self, producer_id: ProducerId) -> str:
        """Return the name of a producer."""
        ...


class Packer:
    """Fills one object: a part for each topic, and a further part after each gap in the topic's offsets.

    Args:
        key: of the object.
        life: of the broker that writes it.
        created_us: microseconds since the epoch.
        buffer: for its bytes.
        epoch_of: returns the epoch under which the broker owns a topic.
    """

    def __init__(
        self,
        key: str,
        life: int,
        created_us: int,
        buffer: bytearray,
        epoch_of: Callable[[TopicId], OwnerEpoch],
    ) -> None:
        self._key = key
        self._epoch_of = epoch_of
        self._created_us = created_us
        self._builder = SegmentBuilder(SegmentKind.SEGMENT, OwnerEpoch(life), created_us, buffer)
        self._topic: Named | None = None
        self._next_offset = -1
        self._producers: set[ProducerId] = set()
        self._schemas: set[int] = set()

    @property
    def size_bytes(self) -> int:
        """Number of bytes so far."""
        return self._builder.size_bytes

    @property
    def part_count(self) -> int:
        """Number of complete parts."""
        return self._builder.part_count

    def add(self, topic: Named, batch: StoredBatch) -> None:
        """Add the next batch.

        Raises:
            NotOwnerError: the topic does not belong to this broker any more.
        """
        if topic is not self._topic or batch.base_offset != self._next_offset:
            self._end_part()
            self._topic = topic
            self._builder.begin(topic.topic_id, topic.name, self._epoch_of(topic.topic_id))
        self._builder.add(batch)
        self._producers.add(batch.header.producer_id)
        if batch.header.schema_id:
            self._schemas.add(batch.header.schema_id)
        self._next_offset = batch.end_offset

    def _end_part(self) -> None:
        if self._topic is not None:
            self._producers.discard(0)  # composite batches: their records have the names
            self._builder.end({number: self._topic.producer_name(number) for number in self._producers})
            self._topic = None
            self._producers = set()

    def finish(self) -> BuiltObject:
        """Finish the object."""
        self._end_part()
        return build(self._key, self._builder, self._created_us, self._schemas)
