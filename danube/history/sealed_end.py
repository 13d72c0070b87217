"""How far the history of a topic reaches, for a broker that does not own the topic."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from danube.history.parts import PartRecord
from danube.metadata import MetadataStore, decode_record
from danube.model.ids import FIRST_OFFSET, Offset, TopicId

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
    """How far the history of a topic reaches."""

    end: Offset
    """The offset after the last sealed message; 0: nothing is sealed."""
    lost_from: Offset | None
    """The first sealed offset in a storage that only one broker reaches; None: others reach all of it."""


async def sealed_range(store: MetadataStore, topic_id: TopicId) -> Sealed:
    """Return how far the history of a topic reaches, and from where on it is in a storage that is not shared.

    Raises:
        DataLossError: a record of its history does not decode.
        UnavailableError: the metadata do not answer.
    """
    items, _ = await store.list(f"/segments/{topic_id:016x}")
    records = [decode_record(item, _PART.decode) for item in items]
    lost = next((record.part.base_offset for record in records if "@" in record.storage), None)
    return Sealed(records[-1].part.end_offset if records else FIRST_OFFSET, lost)
