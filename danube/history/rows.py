"""Reads the rows of sealed parts and their objects from the metadata, for the catalogue; see its keys."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Final, NamedTuple

import msgspec
import trio

from danube.history.changes import (
    OBJECTS,
    SEGMENTS,
    STARTS,
    CatalogueKeys,
    start_key,
    topic_of_start,
    topic_segments,
)
from danube.history.parts import ObjectRef, PartRecord
from danube.metadata import KeyValue, MetadataStore, decode_record
from danube.model.errors import DanubeError
from danube.model.ids import Offset, TopicId

__all__ = ["HistoryRows", "RowsFound"]

_ROWS_PER_TURN: Final = 2_000
"""Rows that are read before other tasks get their turn."""
_PART = msgspec.msgpack.Decoder(PartRecord)


class RowsFound(NamedTuple):
    """The rows of some topics."""

    records: list[PartRecord]
    starts: dict[TopicId, Offset]
    objects: dict[ObjectRef, KeyValue | None]
    """The rows of the objects that hold the parts, without those that were known before; None: there is no row."""

    def missing(self, known: Container[ObjectRef]) -> set[ObjectRef]:
        """Return the objects of the parts that are neither known nor found."""
        return {ref for record in self.records if (ref := record.ref) not in known and ref not in self.objects}


class HistoryRows:
    """The rows in a metadata store.

    Args:
        store: the metadata store.
        keys: of the broker that reads. Parts in other brokers' storages are left out.
    """

    def __init__(self, store: MetadataStore, keys: CatalogueKeys) -> None:
        self._store = store
        self._keys = keys

    async def of_topic(self, topic_id: TopicId, known: Container[ObjectRef]) -> RowsFound:
        """Read the rows of one topic, and those of its objects that are not known.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store cannot answer.
        """
        parts: list[KeyValue] = []
        start: KeyValue | None = None
        failures: list[DanubeError] = []

        async def read_parts() -> None:
            try:
                parts.extend((await self._store.list(topic_segments(topic_id)))[0])
            except DanubeError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:  # at once, because publishers wait
            nursery.start_soon(read_parts)
            try:
                start = await self._store.get(start_key(topic_id))
            except DanubeError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        records = [record for item in parts if (record := self._read(item)) is not None]
        found = RowsFound(records, {topic_id: Offset(int(start.value))} if start is not None else {}, {})
        found.objects.update(await self.of_objects(found.missing(known)))
        return found

    async def of_topics(self, topic_ids: Collection[TopicId]) -> RowsFound:
        """Read the rows of many topics, and those of all objects that their parts are in, in three lists.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store cannot answer.
        """
        records: list[PartRecord] = []
        for count, item in enumerate((await self._store.list(SEGMENTS))[0], 1):
            record = self._read(item)
            if record is not None and record.part.topic_id in topic_ids:
                records.append(record)
            if not count % _ROWS_PER_TURN:
                await trio.lowlevel.checkpoint()
        starts = {
            topic_of_start(item.key): Offset(int(item.value))
            for item in (await self._store.list(STARTS))[0]
            if topic_of_start(item.key) in topic_ids
        }
        refs = {record.ref for record in records}
        rows = (await self._store.list(OBJECTS))[0] if refs else ()
        return RowsFound(records, starts, {ref: item for item in rows if (ref := self._keys.ref(item.key)) in refs})

    async def of_objects(self, refs: Iterable[ObjectRef]) -> dict[ObjectRef, KeyValue | None]:
        """Read the rows of objects.

        Raises:
            DanubeError: the store cannot answer.
        """
        return {ref: await self._store.get(self._keys.object_key(ref)) for ref in refs}

    def _read(self, item: KeyValue) -> PartRecord | None:
        """Decode the row of a part; None if it is in a storage of another broker."""
        record = decode_record(item, _PART.decode)
        return None if self._keys.is_elsewhere(record) else self._keys.read_part(record)
