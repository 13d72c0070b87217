"""How far the history of a topic reaches, for a broker that does not own the topic."""

from __future__ import annotations

import msgspec

from danube.history.parts import PartRecord
from danube.metadata import MetadataStore, decode_record
from danube.model.ids import Offset, TopicId

__all__ = ["sealed_end"]

_PART = msgspec.msgpack.Decoder(PartRecord)


async def sealed_end(store: MetadataStore, topic_id: TopicId) -> Offset | None:
    """Return the offset after the last sealed message of a topic; None if nothing is sealed.

    Raises:
        DataLossError: a record of its history does not decode.
        UnavailableError: the metadata do not answer.
    """
    items, _ = await store.list(f"/segments/{topic_id:016x}")
    return decode_record(items[-1], _PART.decode).part.end_offset if items else None
