"""Scans a damaged journal range for readable batches, to name the topics and offsets that are lost.

A batch is identified by its entry header or by its stamp, which has a checksum of its own, so a flipped bit hides
neither the batch it is in nor its neighbours. If some bytes cannot be identified, the result is marked as incomplete.
The read is an action (:mod:`danube.log._actions`). Pure.
"""

from __future__ import annotations

from typing import Final

from danube.log._actions import Read, Steps
from danube.log.format import BLOCK_HEADER_SIZE, BLOCK_MAGIC, ENTRY_HEADER_SIZE, TERMINATOR, EntryType, entry_at
from danube.log.recovered import Corruption
from danube.model.batch import BATCH_MAGIC, STAMP_SIZE, Stamp, read_stamp
from danube.model.errors import CorruptBatchError
from danube.model.ids import FIRST_OFFSET, NO_TOPIC, Offset, TopicId

__all__ = ["salvage"]

_TYPES: Final = frozenset(EntryType)
_COUNT_AT: Final = STAMP_SIZE + 8
_HEAD_SIZE: Final = STAMP_SIZE + 12


def salvage(name: str, file_id: int, start: int, end: int, *, bounded: bool) -> Steps[Corruption]:
    """Describe the damaged range ``[start, end)`` of a file.

    Args:
        name, file_id: of the file.
        start, end: the range. It is smaller than a file, and read at once.
        bounded: a valid block follows at ``end``. If not, the range may end in old contents of a recycled file, whose
            batches must not be mistaken for current ones: it is read only as far as it can be parsed from its start.
    """
    data: bytes = yield Read(name, start, end - start)
    topics: dict[TopicId, tuple[Offset, Offset]] = {}
    complete = bounded
    at = 0
    while at < len(data):
        step = _step(data, at, topics)
        if step:
            at += step
            continue
        complete = False
        if not bounded:
            break
        at = _resynchronise(data, at + 1)
    return Corruption(file_id, start, end, topics, complete)


def _step(data: bytes, at: int, topics: dict[TopicId, tuple[Offset, Offset]]) -> int:
    """Parse one header or entry at ``at`` and note its contents; return its length, 0 if it cannot be parsed."""
    if data.startswith(BLOCK_MAGIC, at) or data.startswith(TERMINATOR, at):
        return BLOCK_HEADER_SIZE
    if at + ENTRY_HEADER_SIZE > len(data):
        return 0
    entry = entry_at(data, at)
    if entry.end > len(data) or entry.type not in _TYPES or entry.durability > 2:
        return _stamped(data, at, topics)
    stamp = _stamp(data, entry.start)
    if stamp is not None:  # a batch, whatever the type says
        if stamp.total_size != entry.end - entry.start:
            return _stamped(data, at, topics)
        _note(data, entry.start, stamp, topics)
    elif entry.type == EntryType.BATCH:
        if entry.topic_id == NO_TOPIC:
            return 0  # zeros, or an entry of the journal's own whose type is damaged
        # The offsets are lost, but the topic is known.
        topics.setdefault(entry.topic_id, (FIRST_OFFSET, FIRST_OFFSET))
    return entry.end - at


def _stamped(data: bytes, at: int, topics: dict[TopicId, tuple[Offset, Offset]]) -> int:
    """Parse the stamp behind a damaged entry header."""
    stamp = _stamp(data, at + ENTRY_HEADER_SIZE)
    if stamp is None:
        return 0
    _note(data, at + ENTRY_HEADER_SIZE, stamp, topics)
    return ENTRY_HEADER_SIZE + stamp.total_size


def _stamp(data: bytes, at: int) -> Stamp | None:
    try:
        return read_stamp(data[at : at + STAMP_SIZE])
    except CorruptBatchError:
        return None


def _note(data: bytes, at: int, stamp: Stamp, topics: dict[TopicId, tuple[Offset, Offset]]) -> None:
    count = int.from_bytes(data[at + _COUNT_AT : at + _HEAD_SIZE], "little")
    if not 0 < count <= stamp.total_size:  # the count is not covered by the stamp's checksum; a record has some bytes
        count = 1
    low, high = topics.get(stamp.topic_id, (FIRST_OFFSET, FIRST_OFFSET))
    low = min(low, stamp.base_offset) if high else stamp.base_offset
    topics[stamp.topic_id] = (low, max(high, stamp.base_offset + count))


def _resynchronise(data: bytes, at: int) -> int:
    """Return the next position that looks like a batch entry or a block; the end if there is none."""
    stamp = data.find(BATCH_MAGIC, at + ENTRY_HEADER_SIZE)
    block = data.find(BLOCK_MAGIC, at)
    places = [place for place in (stamp - ENTRY_HEADER_SIZE if stamp >= 0 else -1, block) if place >= 0]
    return min(places, default=len(data))
