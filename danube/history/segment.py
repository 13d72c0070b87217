r"""Byte format of segment objects: batches of one or many topics, with indexes and a footer to find them. Pure.

A segment is written once, whole, and never changed. It holds one *part* for each topic in it: that topic's batches,
back to back, exactly as they were published and stamped. A topic with little traffic shares objects with others; a
topic with much traffic fills objects alone. The object contains everything needed to find and verify a batch: a bucket
can be read without a database. All numbers are little-endian, all checksums CRC32C::

    +--------+--------~~---------+--------~~---------+-----+---------~~--------+----~~---+---~~---+---------+
    | header | batches of part 0 | batches of part 1 | ... | control entries   | indexes | footer | trailer |
    |  32 B  | stamp part stamp… |                   |     | (remote commits)  | 20 B*n  | msgpack|  36 B   |
    +--------+--------~~---------+--------~~---------+-----+---------~~--------+----~~---+---~~---+---------+

Header, 32 bytes::

    0            8         10     12         16            24         28     32
    +------------+---------+------+----------+-------------+----------+------+
    | "DNB-SEG\n" | version | kind | reserved | owner epoch | reserved | CRC  |
    |            |  u16    | u16  |   u32    |     u64     |   u32    |  u32 |
    +------------+---------+------+----------+-------------+----------+------+

Index, 20 bytes an entry: base offset u64, highest append time of all batches before u64 (us; 0 for the first),
position in the part u32. The first batch has an entry, then each batch that begins at least 4 KiB after the last
entry: small batches do not make large indexes.

Trailer, 36 bytes, at the very end, so that a reader can start from here with only the object's key::

    0              8               12           16              20        22     24     28           36
    +--------------+---------------+------------+---------------+---------+------+------+------------+
    | footer start | footer length | footer CRC | body CRC      | version | kind | CRC  | "DNB-END\n" |
    |  u64         |  u32          |  u32       | u32, [0,start)|  u16    | u16  | u32  |            |
    +--------------+---------------+------------+---------------+---------+------+------+------------+

This is version 2; in version 1, of Danube 0.1, batches had another header. A reader refuses other versions. Fields that
readers may ignore are added to the footer, at the end of its arrays; the reserved fields are 0.

The footer (:class:`SegmentFooter`) lists the parts with their ranges, offsets, times, producers and checksums.
"""

from __future__ import annotations

import enum
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from danube.log.cache import StoredBatch
from danube.model.batch import CRC_RESIDUE, STAMP_SIZE, Stamp, check_part, crc32c, read_stamp
from danube.model.errors import CorruptBatchError, DataLossError
from danube.model.ids import FIRST_OFFSET, Offset, OwnerEpoch, ProducerId, TopicId

__all__ = [
    "ControlEntry",
    "PartIndex",
    "SegmentBuilder",
    "SegmentFooter",
    "SegmentKind",
    "SegmentPart",
    "TRAILER_SIZE",
    "Trailer",
    "cut_batches",
    "extend_crc",
    "read_control",
    "read_footer",
    "read_header",
    "read_index",
    "read_trailer",
]

FORMAT_VERSION: Final = 2
HEADER_SIZE: Final = 32
TRAILER_SIZE: Final = 36
INDEX_ENTRY_SIZE: Final = 20
INDEX_STEP_BYTES: Final = 4096
"""A batch gets an index entry if it begins at least this far after the last indexed one."""

_HEADER_MAGIC: Final = b"DNB-SEG\n"
_TRAILER_MAGIC: Final = b"DNB-END\n"
_HEADER = struct.Struct("<8sHHIQI")
_TRAILER = struct.Struct("<QIIIHH")
_CRC = struct.Struct("<I")
_INDEX_ENTRY = struct.Struct("<QQI")

extend_crc = google_crc32c.extend
"""``extend_crc(crc, bytes)``: CRC32C over more bytes."""

assert _HEADER.size == HEADER_SIZE - 4
assert _TRAILER.size == TRAILER_SIZE - 12
assert _INDEX_ENTRY.size == INDEX_ENTRY_SIZE


class SegmentKind(enum.IntEnum):
    """The kind of an object."""

    SEGMENT = 1
    """Sealed history."""
    COMMIT = 2
    """One commit of all topics of durability ``remote``, control entries included."""


class SegmentPart(msgspec.Struct, frozen=True, array_like=True):
    """One topic's part of an object: a half-open range of its offsets, and the location of its bytes."""

    topic_id: TopicId
    base_offset: Offset
    end_offset: Offset
    first_time_us: int
    """Append time of the first batch."""
    last_time_us: int
    """Highest append time."""
    batches: int
    start: int
    """The batches are the bytes ``[start, end)`` of the object."""
    end: int
    crc: int
    """CRC32C of the batches."""
    index_start: int
    index_count: int
    index_crc: int
    epoch: OwnerEpoch
    """Epoch of the owner that sealed it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self.end - self.start

    @property
    def index_end(self) -> int:
        """End of its index in the object."""
        return self.index_start + self.index_count * INDEX_ENTRY_SIZE


class ControlEntry(NamedTuple):
    """A journal entry that is not a batch: its type, its topic, its payload."""

    type: int
    topic_id: TopicId
    payload: bytes


class SegmentFooter(msgspec.Struct, frozen=True, array_like=True):
    """The footer of an object: its parts, and the names in them."""

    epoch: OwnerEpoch
    created_us: int
    parts: list[SegmentPart]
    names: dict[TopicId, str]
    """Topic id to the topic's name when the object was written."""
    producers: dict[ProducerId, str]
    """Producer id to name, for the producers in the object; missing if the producer's state has expired."""
    control_start: int = 0
    control_end: int = 0
    control_crc: int = 0


_FOOTER = msgspec.msgpack.Decoder(SegmentFooter)
_CONTROL = msgspec.msgpack.Decoder(list[tuple[int, TopicId, bytes]])
_NO_PART: Final = TopicId(-1)


class Trailer(NamedTuple):
    """The end of an object: location of the footer, and the checksum of everything before it."""

    footer_start: int
    footer_length: int
    footer_crc: int
    body_crc: int
    kind: SegmentKind


class SegmentBuilder:
    """Builds an object. Call ``begin``, ``add`` …, ``end`` for each part; then ``control`` at most once; ``finish``.

    The bytes are collected in one buffer that is not copied again. If ``buffer`` is long enough, it is never moved
    either: a buffer that grows in steps would fragment the heap. Its bytes are overwritten,
    so a used buffer may be passed, which avoids the cost of fresh pages.
    """

    def __init__(self, kind: SegmentKind, epoch: OwnerEpoch, created_us: int, buffer: bytearray | None = None) -> None:
        self._kind = kind
        self._epoch = epoch
        self._created_us = created_us
        head = _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, kind, 0, epoch, 0)
        head += _CRC.pack(crc32c(head))
        self._data = buffer if buffer is not None else bytearray()
        self._data[:HEADER_SIZE] = head
        self._used = HEADER_SIZE
        self._body_crc = crc32c(head)
        self._parts: list[SegmentPart] = []
        self._indexes: list[bytes] = []
        self._names: dict[TopicId, str] = {}
        self._producers: dict[ProducerId, str] = {}
        self._control = (0, 0, 0)
        # The part being built.
        self._topic_id = _NO_PART
        self._part_epoch = epoch
        self._base = self._end = FIRST_OFFSET
        self._start = self._first_us = self._last_us = self._batches = self._crc = 0
        self._index: list[bytes] = []
        self._indexed_at = 0

    @property
    def size_bytes(self) -> int:
        """Number of bytes so far, without indexes and footer."""
        return self._used

    @property
    def part_count(self) -> int:
        """Number of complete parts."""
        return len(self._parts)

    def begin(self, topic_id: TopicId, name: str, epoch: OwnerEpoch | None = None) -> None:
        """Begin the part of a topic, under the epoch of its owner; None: that of the object."""
        assert self._topic_id < 0, "the last part was not ended"
        assert self._control == (0, 0, 0), "parts come before control entries"
        self._topic_id = topic_id
        self._part_epoch = self._epoch if epoch is None else epoch
        self._names[topic_id] = name
        self._start = self._used
        self._batches = self._crc = self._last_us = 0
        self._index = []

    def add(self, batch: StoredBatch) -> None:
        """Add the part's next batch; its offsets continue those of the one before."""
        position = self._used - self._start
        if not self._batches:
            self._base = batch.base_offset
            self._first_us = batch.append_time_us
        else:
            assert batch.base_offset == self._end, f"batch at {batch.base_offset} does not continue {self._end}"
        self._end = batch.end_offset
        if not self._batches or position - self._indexed_at >= INDEX_STEP_BYTES:
            self._index.append(_INDEX_ENTRY.pack(batch.base_offset, self._last_us, position))
            self._indexed_at = position
        if batch.append_time_us > self._last_us:
            self._last_us = batch.append_time_us
        self._batches += 1
        stamp, part = batch.stamp, batch.part
        self._crc = extend_crc(extend_crc(self._crc, stamp), part)
        self._append(stamp)
        self._append(part)

    def end(self, producers: dict[ProducerId, str]) -> SegmentPart:
        """End the part (of at least one batch), and record its producers' names."""
        assert self._batches, "a part holds at least one batch"
        index = b"".join(self._index)
        part = SegmentPart(
            self._topic_id,
            self._base,
            self._end,
            self._first_us,
            self._last_us,
            self._batches,
            self._start,
            self._used,
            self._crc,
            0,  # the position of the indexes is known at the end
            len(self._index),
            crc32c(index),
            self._part_epoch,
        )
        self._indexes.append(index)
        self._parts.append(part)
        self._producers.update(producers)
        self._topic_id = _NO_PART
        return part

    def abandon(self) -> None:
        """Discard the open part. Its bytes stay in the object, unreferenced."""
        self._topic_id = _NO_PART

    def control(self, entries: Sequence[ControlEntry]) -> None:
        """Add control entries, in their order."""
        assert self._topic_id < 0
        encoded = msgspec.msgpack.encode([tuple(entry) for entry in entries])
        start = self._used
        self._append(encoded)
        self._control = (start, start + len(encoded), crc32c(encoded))

    def finish(self) -> tuple[bytearray, SegmentFooter]:
        """Return the object and its footer."""
        assert self._topic_id < 0, "the last part was not ended"
        parts = []
        for part, index in zip(self._parts, self._indexes, strict=True):
            parts.append(msgspec.structs.replace(part, index_start=self._used))
            self._append(index)
        footer = SegmentFooter(self._epoch, self._created_us, parts, self._names, self._producers, *self._control)
        encoded = msgspec.msgpack.encode(footer)
        tail = _TRAILER.pack(self._used, len(encoded), crc32c(encoded), self._body_crc, FORMAT_VERSION, int(self._kind))
        self._append(encoded)
        self._append(tail + _CRC.pack(crc32c(tail)) + _TRAILER_MAGIC)
        del self._data[self._used :]
        return self._data, footer

    def _append(self, data: bytes) -> None:
        end = self._used + len(data)
        self._data[self._used : end] = data  # grows the buffer only at its end
        self._used = end
        self._body_crc = extend_crc(self._body_crc, data)


# --- Reading ---


def read_header(data: bytes, where: str) -> tuple[SegmentKind, OwnerEpoch]:
    """Return kind and owner epoch from the first 32 bytes of an object; ``where`` names it in errors.

    Raises:
        DataLossError: not a segment, damaged, or of another version.
    """
    head = data[:HEADER_SIZE]
    if len(head) < HEADER_SIZE or not head.startswith(_HEADER_MAGIC) or crc32c(head) != CRC_RESIDUE:
        raise DataLossError(f"{where}: the header of the object is damaged, or it is not a Danube segment")
    _, version, kind, _, epoch, _ = _HEADER.unpack_from(head)
    _check_version(version, where)
    return SegmentKind(kind), epoch


def read_trailer(tail: bytes, where: str) -> Trailer:
    """Read the trailer at the end of ``tail``.

    Raises:
        DataLossError: damaged, or of another version.
    """
    block = tail[-TRAILER_SIZE:]
    if (
        len(block) < TRAILER_SIZE
        or not block.endswith(_TRAILER_MAGIC)
        or crc32c(block[: _TRAILER.size + 4]) != CRC_RESIDUE
    ):
        raise DataLossError(f"{where}: the end of the object is damaged, or it is not a Danube segment")
    start, length, footer_crc, body_crc, version, kind = _TRAILER.unpack_from(block)
    _check_version(version, where)
    return Trailer(start, length, footer_crc, body_crc, SegmentKind(kind))


def _check_version(version: int, where: str) -> None:
    if version > FORMAT_VERSION:
        raise DataLossError(
            f"{where}: format version {version} is newer than {FORMAT_VERSION}, the newest that this version of Danube "
            "reads; upgrade Danube"
        )
    if version < FORMAT_VERSION:
        raise DataLossError(
            f"{where}: format version {version} is that of Danube 0.1, and this version reads {FORMAT_VERSION} only;"
            " read it with Danube 0.1, and give this broker another storage or cluster name"
        )


def read_footer(data: bytes, trailer: Trailer, where: str) -> SegmentFooter:
    """Decode the footer from its bytes.

    Raises:
        DataLossError: its checksum does not match.
    """
    if len(data) != trailer.footer_length or crc32c(data) != trailer.footer_crc:
        raise DataLossError(f"{where}: the footer is damaged")
    return _FOOTER.decode(data)


def read_control(data: bytes, footer: SegmentFooter, where: str) -> list[ControlEntry]:
    """Decode the control entries from the bytes ``[control_start, control_end)``.

    Raises:
        DataLossError: their checksum does not match.
    """
    if len(data) != footer.control_end - footer.control_start or crc32c(data) != footer.control_crc:
        raise DataLossError(f"{where}: the control entries are damaged")
    return [ControlEntry(*entry) for entry in _CONTROL.decode(data)]


class PartIndex:
    """Maps offsets and times of one part to positions."""

    __slots__ = ("_offsets", "_positions", "_times")

    def __init__(self, data: bytes) -> None:
        self._offsets = array("Q")
        self._times = array("Q")
        self._positions = array("L")
        for offset, time_us, position in _INDEX_ENTRY.iter_unpack(data):
            self._offsets.append(offset)
            self._times.append(time_us)
            self._positions.append(position)

    @property
    def size_bytes(self) -> int:
        """Approximate memory usage."""
        return 24 * len(self._offsets) + 400

    def find(self, offset: Offset) -> tuple[int, int]:
        """Return the position of the last indexed batch at or below an offset, and of the next indexed one.

        The latter is -1 if there is none.
        """
        at = max(0, bisect_right(self._offsets, offset) - 1)
        return self._positions[at], self._positions[at + 1] if at + 1 < len(self._positions) else -1

    def before_time(self, time_us: int) -> tuple[Offset, int]:
        """Return base offset and position of the last indexed batch before which all batches are older than a time."""
        # The first entry has time 0.
        at = max(0, bisect_left(self._times, time_us) - 1)
        return Offset(self._offsets[at]), self._positions[at]


def read_index(data: bytes, part: SegmentPart, where: str) -> PartIndex:
    """Decode the index of a part from the bytes ``[index_start, index_end)``.

    Raises:
        DataLossError: its checksum does not match.
    """
    if len(data) != part.index_count * INDEX_ENTRY_SIZE or crc32c(data) != part.index_crc:
        raise DataLossError(
            f"{where}: the index of topic {part.topic_id:016x}, offsets [{part.base_offset}, {part.end_offset}), is"
            " damaged"
        )
    return PartIndex(data)


def cut_batches(data: bytes, at: int, size: int, topic_id: TopicId) -> Iterator[tuple[StoredBatch | None, int, int]]:
    """Cut batches out of ``data[at:size]``, bytes of a part that begin with a batch, and verify them.

    Yields ``(batch, next position, 0)`` for each whole batch, and last ``(None, position, missing)``: the end position,
    and the number of bytes after ``size`` that are needed to continue (0 if it ends between two batches).

    Raises:
        CorruptBatchError: the bytes are damaged; batches yielded before are good.
    """
    while True:
        if at + STAMP_SIZE > size:
            yield None, at, (at + STAMP_SIZE - size if at < size else 0)
            return
        stamp_bytes = data[at : at + STAMP_SIZE]
        stamp: Stamp = read_stamp(stamp_bytes)
        if stamp.topic_id != topic_id or stamp.total_size <= STAMP_SIZE:
            raise CorruptBatchError("the batch is of another topic")
        end = at + stamp.total_size
        if end > size:
            yield None, at, end - size
            return
        part = data[at + STAMP_SIZE : end]
        header = check_part(part)
        base = stamp.base_offset
        at = end
        yield StoredBatch(base, base + header.record_count, stamp_bytes, part, header, stamp.append_time_us), at, 0
