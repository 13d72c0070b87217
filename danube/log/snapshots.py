"""Snapshots of topics in the journal: how a state is cut into entries, which one counts, which files they free. Pure.

The state of a topic is the effect of its entries: its end, its producers, its cursors. A *snapshot* is that state in
SNAPSHOT entries, each with one *part* of it, so that it may be larger than a commit or a file. The parts of one
snapshot have the same *generation*, a number that only rises within a journal. The payload of an entry::

    0            8         16     20      24     28          32
    +------------+---------+------+-------+------+-----------+--------~~-+
    | generation | covers  | part | parts | size | state CRC | piece ... |
    +------------+---------+------+-------+------+-----------+--------~~-+
      u64          u64       u32    u32     u32    u32         size bytes in all parts together

* ``covers``: the snapshot contains the effects of all entries of the topic up to this sequence. (When recovery copies
  entries, it gives them higher sequences. Then the snapshot covers less than it could, which is safe.)
* ``state CRC``: CRC32C of the whole state. Each part is also protected by the checksum of its block.

**Which one counts.** The complete generation with the highest number. A generation of which a part is missing (torn by
a crash, or damaged) does not count, and the one before it, with the entries behind it, still does: no file that the one
before needs is freed until the new one is complete and synced. States only grow, so an older snapshot, or an entry that
a snapshot contains already, may be applied again.

**Which files are free.** A closed file belongs to the topics that have an entry in it which no later snapshot covers.
It is free if it holds no needed batch, and each of its topics has a complete, synced snapshot in a later file. Idle
topics have no entries in later files, so their snapshots stay where they are, and a file full of them is not worth
freeing: its contents would only be written again. :func:`worth_freeing` decides that, and bounds the cost: freeing
never writes more than :data:`USUAL_SHARE` of the space that it frees. Files that are not worth freeing are therefore
at least that full of present snapshots.

::

    file 7: snapshots of 60,000 idle topics        stays: its contents would be written again
    file 8: traffic of 20 topics, sealed           goes: 20 snapshots are written to the active file
    file 9: traffic of 20 topics, not sealed       stays: its batches are needed
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from danube.model.batch import crc32c
from danube.model.errors import DataLossError
from danube.model.ids import TopicId

__all__ = [
    "PRESSED_SHARE",
    "SNAPSHOT_OVERHEAD",
    "USUAL_SHARE",
    "Assembler",
    "Snapshot",
    "SnapshotPart",
    "cut",
    "read_part",
    "uncovered",
    "worth_freeing",
]

_HEAD: Final = struct.Struct("<QQIIII")
SNAPSHOT_OVERHEAD: Final = _HEAD.size
"""Bytes of a part beside its piece of the state."""
USUAL_SHARE: Final = 0.5
"""Freeing files may write this share of the space that it frees."""
PRESSED_SHARE: Final = 0.9
"""The same while the journal has no space left: any gain counts."""
_MOST_PARTIAL: Final = 2
"""Incomplete generations of one topic that are kept; a journal has one in the making at a time."""


class SnapshotPart(NamedTuple):
    """One entry of a snapshot; the fields are drawn in the module docstring."""

    generation: int
    covers: int
    part: int
    parts: int
    size: int
    crc: int
    piece: bytes


class Snapshot(NamedTuple):
    """A complete snapshot."""

    generation: int
    covers: int
    state: bytes


def cut(state: bytes, *, generation: int, covers: int, part_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return the payloads of the entries of one snapshot, each as two buffers.

    Args:
        state: of the topic; may be empty.
        generation: higher than that of every earlier snapshot of the journal.
        covers: the snapshot contains what all entries of the topic up to this sequence say.
        part_bytes: most bytes of the state in one part.
    """
    assert part_bytes > 0
    parts = max(1, -(-len(state) // part_bytes))
    crc = crc32c(state)
    return [
        (
            _HEAD.pack(generation, covers, part, parts, len(state), crc),
            state[part * part_bytes : (part + 1) * part_bytes],
        )
        for part in range(parts)
    ]


def read_part(payload: bytes) -> SnapshotPart:
    """Read the payload of a SNAPSHOT entry.

    Raises:
        DataLossError: it was not written by :func:`cut`.
    """
    if len(payload) < _HEAD.size:
        raise DataLossError(f"a part of a snapshot has {len(payload)} bytes, fewer than its head of {_HEAD.size}")
    generation, covers, part, parts, size, crc = _HEAD.unpack_from(payload)
    piece = payload[_HEAD.size :]
    if part >= parts or len(piece) > size:
        raise DataLossError(
            f"a part of a snapshot contradicts itself: part {part} of {parts}, {len(piece)} of {size} B"
        )
    return SnapshotPart(generation, covers, part, parts, size, crc, piece)


class _Partial:
    """A generation whose parts are not all known."""

    __slots__ = ("crc", "pieces", "size")

    def __init__(self, part: SnapshotPart) -> None:
        self.size = part.size
        self.crc = part.crc
        self.pieces: list[bytes | None] = [None] * part.parts

    def fits(self, part: SnapshotPart) -> bool:
        return (part.size, part.crc, part.parts) == (self.size, self.crc, len(self.pieces))

    def state(self) -> bytes | None:
        """Return the state if all parts are known, and are those of one state."""
        pieces = [piece for piece in self.pieces if piece is not None]
        if len(pieces) < len(self.pieces):
            return None
        state = b"".join(pieces)
        return state if len(state) == self.size and crc32c(state) == self.crc else None


class Assembler:
    """Puts parts together, and finds the newest complete generation of each topic. The order of the parts is free.

    Attributes:
        generation: the highest one seen, complete or not: the next one must be higher.
        newest: by topic id: generation, ``covers`` and size of the newest complete snapshot.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.newest: dict[TopicId, tuple[int, int, int]] = {}
        self._partial: dict[TopicId, dict[int, _Partial]] = {}

    def add(self, topic_id: TopicId, payload: bytes) -> Snapshot | None:
        """Take a part; return the snapshot if it completes one that is newer than those completed before.

        Raises:
            DataLossError: the payload is no part of a snapshot.
        """
        part = read_part(payload)
        generation = part.generation
        self.generation = max(self.generation, generation)
        known = self.newest.get(topic_id)
        if known is not None and generation <= known[0]:
            return None  # superseded, or a copy
        partial: dict[int, _Partial] = {}
        if part.parts > 1:
            partial = self._partial.setdefault(topic_id, {})
        found = partial.get(generation)
        if found is None or not found.fits(part):
            found = partial[generation] = _Partial(part)
            if len(partial) > _MOST_PARTIAL:
                del partial[min(partial)]
        found.pieces[part.part] = part.piece
        state = found.state()
        if state is None:
            return None
        for older in [each for each in partial if each <= generation]:
            del partial[older]
        if not partial:
            self._partial.pop(topic_id, None)
        self.newest[topic_id] = generation, part.covers, len(state)
        return Snapshot(generation, part.covers, state)

    def forget(self, topic_id: TopicId) -> None:
        """Forget a topic: it was deleted."""
        self.newest.pop(topic_id, None)
        self._partial.pop(topic_id, None)


def worth_freeing(
    files: Sequence[tuple[int, AbstractSet[TopicId]]],
    cost: Callable[[TopicId], int],
    share: float = USUAL_SHARE,
    room: float = math.inf,
) -> list[int]:
    """Choose the files to be freed; return their indexes in ``files``.

    A snapshot is written once for all files that are freed together, so topics that are busy in every file cost less,
    the more files go. Files are added in the order of their cost, in the smallest groups that are worth their own cost:
    the space that a cheap file frees does not pay for another one.

    Args:
        files: candidates: the bytes that each one frees, and the topics that need a snapshot before.
        cost: returns the bytes of a topic's snapshot.
        share: of the freed space, the most that may be written.
        room: bytes that can be written before something is free. Further groups are left out if they do not fit; the
            first one is always chosen, because nothing cheaper can be freed.
    """
    costs: dict[TopicId, int] = {}

    def cost_of(topics: AbstractSet[TopicId]) -> int:
        total = 0
        for topic_id in topics:
            size = costs.get(topic_id)
            if size is None:
                size = costs[topic_id] = cost(topic_id)
            total += size
        return total

    own = [cost_of(topics) for _, topics in files]
    order = sorted(range(len(files)), key=own.__getitem__)
    chosen = 0
    total = 0
    spent = gain = 0  # of the group that is being collected
    union: set[TopicId] = set()
    for count, index in enumerate(order, 1):
        size, topics = files[index]
        spent += cost_of(topics - union)
        gain += size
        union |= topics
        if spent <= share * gain:
            total += spent
            if chosen and total > room:
                break
            chosen = count
            spent = gain = 0
    return sorted(order[:chosen])


def uncovered(topics: AbstractSet[TopicId], last_sequence: int, covers: Mapping[TopicId, int]) -> Iterator[TopicId]:
    """Yield the topics of a file that no complete snapshot covers up to the file's end.

    Args:
        topics: those with entries in the file.
        last_sequence: of the file.
        covers: by topic id: the sequence up to which its newest complete snapshot covers its entries.
    """
    for topic_id in topics:
        if covers.get(topic_id, 0) < last_sequence:
            yield topic_id
