"""How far the history of a topic reaches, for a broker that does not own the topic."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from danube.history.parts import PartRecord
from danube.metadata import MetadataStore, decode_record
from danube.model.ids import Offset, TopicId

__all__ = ["Sealed", "sealed_end", "sealed_range"]

_PART = msgspec.msgpack.Decoder(PartRecord)


async def sealed_end(store: MetadataStore, topic_id: TopicId) -> Offset | None:
    """Return the offset after the last sealed message of a topic; None if nothing is sealed.

    Raises:
        DataLossError: a record of its history does not decode.
        UnavailableError: the metadata do not answer.
    """
    items, _ = await store.list(f"/segments/{topic_id:016x}")
    return decode_record(items[-1], _PART.decode).part.end_offset if items else None


class Sealed(NamedTuple):
    """How far the history of a topic reaches, from a floor on."""

    end: Offset
    """The offset after the last sealed message; the floor if nothing is sealed behind it."""
    lost_from: Offset | None
    """The first sealed offset from the floor on that is in a storage of one broker only; None: others reach all."""


async def sealed_range(store: MetadataStore, topic_id: TopicId, floor: Offset) -> Sealed:
    """Return how far the history of a topic reaches, and from where on it is in a storage that is not shared.

    Args:
        store: the metadata.
        topic_id: of the topic or partition.
        floor: the end of its last declared gap, where its present owner has begun; 0: it has none.

    Raises:
        DataLossError: a record of its history does not decode.
        UnavailableError: the metadata do not answer.
    """
    items, _ = await store.list(f"/segments/{topic_id:016x}")
    records = [decode_record(item, _PART.decode) for item in items]
    bases = (record.part.base_offset for record in records if "@" in record.storage)
    lost = next((base for base in bases if base >= floor), None)
    return Sealed(max([floor, *(record.part.end_offset for record in records[-1:])]), lost)
