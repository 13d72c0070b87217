"""Byte format of journal files: encodes and parses file headers, commit blocks and entries. Pure.

All numbers are little-endian; checksums are CRC32C. A journal file has a fixed size, begins with a header and goes on
as a run of commit blocks without gaps between them::

    0            4096
    +-------------+---------+---------+-----+---------+------------+---------~~-+
    | file header | block s | s + 1   | ... | s + n   | 48 x zero  | anything   |
    +-------------+---------+---------+-----+---------+------------+---------~~-+

The file header is stored twice, at 0 and at 2048, so that one damaged copy costs nothing::

    0        4         8      16               24             32          40       44      48
    +--------+---------+------+----------------+--------------+-----------+--------+-------+--
    | "DNJF" | version | file | first sequence | resume after | watermark | count  | flags | ...
    +--------+---------+------+----------------+--------------+-----------+--------+-------+--
               u32 = 4   u64    u64              u64            u64         u32      u32

        48          56         64         72        2044  2048
      --+-----------+----------+----------+--~~--+-----+
    ... | file size | identity | metadata | live | CRC |
      --+-----------+----------+----------+--~~--+-----+
          u64         u64        u64        u64s   u32

* A file id is never used twice; when a file is recycled it gets a new one. It is the *generation* of its blocks.
* ``file size``: a file that is shorter than this has been cut.
* ``identity`` names the journal, and is stored in the metadata, too; 0: bound to no metadata. ``metadata`` is the
  highest metadata revision known to be durable when the header was written; :data:`EntryType.METADATA` entries
  record later ones. Metadata of an earlier revision have lost changes.
* ``resume after`` is the last sequence in older files that counts. Usually it is first sequence - 1; after a recovery,
  sequences that were cut off lie between the two.
* ``live`` are the ids and last sequences (u64, u64) of all older files that are still needed. A later
  :data:`EntryType.FREED` entry removes ids. A listed file that is missing or ends too early is reported; an older file
  that is not listed is void. Flag 1: there were more than 123 of them, and the
  oldest did not fit. Flag 2: this file counts only if a newer one lists it (recovery writes several files, if it
  must, and the last one makes all of them count).

Formats 1 and 2 belong to Danube 0.1, whose batches have another header; journals of format 3 had their snapshots in the
metadata. A journal of another format is refused. TAKEOVER entries came later and need no other format: no broker that
does not know them starts in a cluster whose feature level allows moves.

A commit block holds the entries of one write::

    0        4        8            16         24          32        36         40         44      48
    +--------+--------+------------+----------+-----------+---------+----------+----------+-------+----------~~-+
    | "DNJB" | length | generation | sequence | watermark | entries | reserved | body CRC | CRC   | entries ... |
    +--------+--------+------------+----------+-----------+---------+----------+----------+-------+----------~~-+
               u32, of  u64          u64        u64         u32       u32 = 0    u32, over  u32, over
               all                                                               entries    bytes 0..44

* The watermark is the last sequence known to be synced when the block was written: a bad block at or below the highest
  watermark is corruption, one above it is a write that a crash cut short.
* Blocks of another generation are old contents of a recycled file. They, and zeros, end the log. 48 zero
  bytes follow each block and are overwritten by the next one, so that a clean end is always recognised.

An entry is 16 bytes and its payload::

    0      1            2          4        8          16
    +------+------------+----------+--------+----------+-----------~~-+
    | type | durability | reserved | length | topic id | payload ...  |
    +------+------------+----------+--------+----------+-----------~~-+
      u8     u8           u16 = 0    u32, of  u64
                                     payload

The payload of a BATCH is the stamp and the producer's part, that of a SNAPSHOT is drawn in
:mod:`danube.log.snapshots`. A TOMBSTONE has none: its topic was deleted, and all entries of the topic before it are
void. A TAKEOVER (u64 move, u64 first offset, u64 epoch) begins a copy of its topic that another broker sends: all
entries of the topic before it are void, too, and those behind it count only if the metadata confirm the move. No entry
type equals the first byte of a block ("D"), so a reader that starts at any entry can walk on through the following
blocks.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c

from danube.model.batch import CRC_RESIDUE, crc32c
from danube.model.errors import DataDirectoryError, InternalError
from danube.model.ids import FIRST_OFFSET, Offset, TopicId
from danube.model.policies import Durability

__all__ = [
    "BLOCK_HEADER_SIZE",
    "BLOCK_MAGIC",
    "ENTRY_HEADER_SIZE",
    "FILE_HEADER_SIZE",
    "METADATA_ENTRY",
    "TAKEOVER_ENTRY",
    "TERMINATOR",
    "Block",
    "Ending",
    "Entry",
    "EntryType",
    "Fault",
    "FileHeader",
    "RawEntry",
    "block_size",
    "encode_block",
    "encode_block_header",
    "encode_file_header",
    "entry_at",
    "find_block",
    "parse_blocks",
    "parse_entries",
    "read_block",
    "read_block_header",
    "read_file_header",
]

FILE_MAGIC: Final = b"DNJF"
BLOCK_MAGIC: Final = b"DNJB"
FORMAT_VERSION: Final = 4
FILE_HEADER_SIZE: Final = 4096
BLOCK_HEADER_SIZE: Final = 48
ENTRY_HEADER_SIZE: Final = 16
TERMINATOR: Final = bytes(BLOCK_HEADER_SIZE)

_HALF: Final = FILE_HEADER_SIZE // 2
_FILE: Final = struct.Struct("<4sIQQQQIIQQQ")
_LIVE: Final = struct.Struct("<QQ")
_MAX_LIVE: Final = (_HALF - 4 - _FILE.size) // _LIVE.size
_OLDER_OMITTED: Final = 1
_PRELUDE: Final = 2
_BLOCK: Final = struct.Struct("<4sIQQQIII")
_ENTRY: Final = struct.Struct("<BBHIQ")
_CRC: Final = struct.Struct("<I")

assert _BLOCK.size == BLOCK_HEADER_SIZE - 4
assert _ENTRY.size == ENTRY_HEADER_SIZE

# Buffers up to this size are joined before they are written: a copy of a few KiB costs less than one more buffer.
_JOIN_BELOW: Final = 4096


class EntryType(enum.IntEnum):
    """What an entry holds."""

    BATCH = 1
    CURSOR = 2
    PRODUCER = 3
    TOPIC = 4
    FREED = 6  # 5 was never written
    """Written by the journal itself: the ids of files that are no longer needed (u64s). The last bytes of a file are
    kept for such entries."""
    DAMAGE = 7
    """Written by the journal itself: a corrupt range found by recovery (``danube.log.recovery``)."""
    METADATA = 8
    """Written by the journal itself: its identity, and a metadata revision that was already durable (u64s)."""
    SNAPSHOT = 9
    """Written by the journal itself: a part of the state of a topic (``danube.log.snapshots``)."""
    TOMBSTONE = 10
    """Written by the journal itself: the topic was deleted."""
    TAKEOVER = 12
    """Begins the copy of a topic that moves to this broker, and voids what the journal held of it before."""
    RAFT = 11  # of the metadata log; begins with the offset (u64) up to which its topic must be released to free it


METADATA_ENTRY: Final = struct.Struct("<QQ")
"""The payload of a METADATA entry."""
TAKEOVER_ENTRY: Final = struct.Struct("<QQQ")
"""The payload of a TAKEOVER entry: the id of the move, the first offset that is copied, and the epoch of the new
owner."""

DURABILITY_CODES: Final = {Durability.NONE: 0, Durability.OS: 1, Durability.DISK: 2}
DURABILITIES: Final = {code: durability for durability, code in DURABILITY_CODES.items()}


class Entry:
    """One item to be journalled, on its way from ``submit`` to ``on_commit``.

    Attributes:
        type, topic_id, durability: the kind of entry, its topic, and when it counts as settled.
        buffers: the payload, in pieces that are never joined; all must be ``bytes``.
        owner: any object that the submitter needs when the entry settles.
        end_offset: for a BATCH: the offset behind its last record (decides when its file is free).
        size: bytes of the payload (counted if not given).
        file, position, sequence: where it was written (file id, position of its entry header, commit sequence); -1
        before.
        batch: the stored batch, if the entry comes from a ``TopicLog``.
    """

    __slots__ = (
        "batch",
        "buffers",
        "durability",
        "end_offset",
        "file",
        "owner",
        "position",
        "sequence",
        "size",
        "topic_id",
        "type",
    )

    def __init__(
        self,
        type: EntryType,  # noqa: A002 - the name of the field in the format
        topic_id: TopicId,
        durability: Durability,
        buffers: Sequence[bytes],
        owner: object = None,
        *,
        end_offset: Offset = FIRST_OFFSET,
        batch: object = None,
        size: int = -1,
    ) -> None:
        self.type = type
        self.topic_id = topic_id
        self.durability = durability
        self.buffers = buffers
        self.owner = owner
        self.end_offset = end_offset
        self.batch = batch
        self.size = size if size >= 0 else sum(map(len, buffers))
        self.file = -1
        self.position = -1
        self.sequence = -1


class FileHeader(NamedTuple):
    """The header of a journal file. ``live``: id and last sequence of each older file.

    ``complete`` is false if older files had to be left out of ``live``. A ``prelude`` counts only if it is listed.
    ``file_size`` is 0 if it is not known.
    """

    file_id: int
    first_sequence: int
    resume_after: int
    watermark: int
    live: tuple[tuple[int, int], ...]
    complete: bool
    prelude: bool
    file_size: int = 0
    identity: int = 0
    metadata: int = 0


class Block(NamedTuple):
    """A commit block with a verified header. Its entries are in ``[position + 48, position + length)``."""

    position: int
    length: int
    generation: int
    sequence: int
    watermark: int
    entry_count: int
    body_crc: int


class RawEntry(NamedTuple):
    """An entry inside a buffer: its header, and the positions of header and payload in the buffer."""

    type: int
    durability: int
    topic_id: TopicId
    position: int
    start: int
    end: int


class Fault(enum.Enum):
    """Why there is no block at a position."""

    END = "end"
    """Zeros: the log ends here."""
    FOREIGN = "foreign"
    """A complete block header of another generation: old contents of a recycled file."""
    SHORT = "short"
    """The buffer ends before the block does."""
    BAD = "bad"
    """Neither a block nor an end: torn by a crash, corrupt, or the middle of old contents."""


class Ending(NamedTuple):
    """Where and why :func:`parse_blocks` stopped."""

    position: int
    fault: Fault


def encode_file_header(
    file_id: int,
    first_sequence: int,
    resume_after: int,
    watermark: int,
    live: Sequence[tuple[int, int]],
    *,
    file_size: int,
    identity: int,
    metadata: int,
    prelude: bool = False,
) -> bytes:
    """Return both copies of a journal file header; the arguments are the fields drawn in the module docstring."""
    flags = _PRELUDE if prelude else 0
    if len(live) > _MAX_LIVE:
        live = live[-_MAX_LIVE:]
        flags |= _OLDER_OMITTED
    head = _FILE.pack(
        FILE_MAGIC,
        FORMAT_VERSION,
        file_id,
        first_sequence,
        resume_after,
        watermark,
        len(live),
        flags,
        file_size,
        identity,
        metadata,
    )
    copy = b"".join((head, *(_LIVE.pack(*pair) for pair in live))).ljust(_HALF - 4, b"\0")
    copy += _CRC.pack(crc32c(copy))
    return copy + copy


def read_file_header(data: bytes, file_id: int) -> FileHeader | None:
    """Return the header at the start of ``data``, or None if no copy is intact and belongs to this file.

    Raises:
        DataDirectoryError: it is of another format.
    """
    for start in (0, _HALF):
        copy = data[start : start + _HALF]
        if len(copy) < _HALF or crc32c(copy) != CRC_RESIDUE:
            continue
        magic, version, found, first, resume, watermark, count, flags, *rest = _FILE.unpack_from(copy)
        if magic != FILE_MAGIC or found != file_id:
            continue
        if version != FORMAT_VERSION:
            raise DataDirectoryError(
                f"journal file {file_id} has format {version}{' (Danube 0.1)' if version < 3 else ''}, and this Danube"
                f" reads format {FORMAT_VERSION} only; nothing was changed: start the Danube that wrote it, or set"
                " data_directory to a new one"
            )
        if count > _MAX_LIVE:
            continue
        older = tuple(_LIVE.unpack_from(copy, _FILE.size + index * _LIVE.size) for index in range(count))
        return FileHeader(
            found,
            first,
            resume,
            watermark,
            older,
            not flags & _OLDER_OMITTED,
            bool(flags & _PRELUDE),
            *rest,
        )
    return None


def encode_block(
    entries: Iterable[Entry], *, file_id: int, position: int, sequence: int, watermark: int
) -> tuple[list[bytes], int]:
    """Frame ``entries`` as one block and set the position of each of them.

    Args:
        entries: in submit order. Their ``file``, ``position`` and ``sequence`` are set.
        file_id: generation of the file.
        position: where the block will be written.
        sequence: of this commit.
        watermark: last sequence known to be synced.

    Returns:
        The buffers to be written one after the other (large payloads are not copied; the terminator is included), and
        the block's length (without terminator).
    """
    out: list[bytes] = [b""]
    small: list[bytes] = []
    pack = _ENTRY.pack
    codes = DURABILITY_CODES
    where = position + BLOCK_HEADER_SIZE
    crc = 0
    count = 0
    extend = google_crc32c.extend
    for entry in entries:
        entry.file = file_id
        entry.position = where
        entry.sequence = sequence
        size = entry.size
        small.append(pack(entry.type, codes[entry.durability], 0, size, entry.topic_id))
        if size < _JOIN_BELOW:
            small += entry.buffers
        else:
            for buffer in entry.buffers:
                if len(buffer) < _JOIN_BELOW:
                    small.append(buffer)
                    continue
                joined = b"".join(small)
                small.clear()
                crc = extend(extend(crc, joined), buffer)
                out.append(joined)
                out.append(buffer)
        where += ENTRY_HEADER_SIZE + size
        count += 1
    joined = b"".join(small)
    crc = extend(crc, joined)
    out.append(joined)
    out.append(TERMINATOR)
    length = where - position
    out[0] = encode_block_header(length, file_id, sequence, watermark, count, crc)
    return out, length


def encode_block_header(length: int, file_id: int, sequence: int, watermark: int, count: int, body_crc: int) -> bytes:
    """Return a block header. A block moves to another file by getting a new one; its body stays as it is."""
    head = _BLOCK.pack(BLOCK_MAGIC, length, file_id, sequence, watermark, count, 0, body_crc)
    return head + _CRC.pack(crc32c(head))


def block_size(entries: Iterable[Entry]) -> int:
    """Return the length of the block that :func:`encode_block` would return, without terminator."""
    return BLOCK_HEADER_SIZE + sum(ENTRY_HEADER_SIZE + entry.size for entry in entries)


def read_block_header(data: bytes, position: int, generation: int) -> Block | Fault:
    """Read and verify the block header at ``position`` of ``data``; the body is not checked."""
    head = data[position : position + BLOCK_HEADER_SIZE]
    if len(head) < BLOCK_HEADER_SIZE:
        return Fault.SHORT
    if head == TERMINATOR:
        return Fault.END
    if crc32c(head) != CRC_RESIDUE:
        return Fault.BAD
    magic, length, found, sequence, watermark, count, reserved, body_crc = _BLOCK.unpack_from(head)
    if magic != BLOCK_MAGIC or reserved or length < BLOCK_HEADER_SIZE:
        return Fault.BAD
    if found != generation:
        return Fault.FOREIGN
    return Block(position, length, found, sequence, watermark, count, body_crc)


def read_block(data: bytes, position: int, generation: int) -> Block | Fault:
    """Read the block at ``position`` of ``data`` and verify all of it."""
    block = read_block_header(data, position, generation)
    if isinstance(block, Fault):
        return block
    if position + block.length > len(data):
        return Fault.SHORT
    if crc32c(data[position + BLOCK_HEADER_SIZE : position + block.length]) != block.body_crc:
        return Fault.BAD
    return block


def parse_entries(data: bytes, block: Block) -> Iterator[RawEntry]:
    """Yield the entries of a verified block of ``data``.

    Raises:
        InternalError: the entries do not fill their block: it was never written by :func:`encode_block`.
    """
    position = block.position + BLOCK_HEADER_SIZE
    end = block.position + block.length
    unpack = _ENTRY.unpack_from
    for _ in range(block.entry_count):
        kind, durability, _reserved, size, topic_id = unpack(data, position)
        start = position + ENTRY_HEADER_SIZE
        yield RawEntry(kind, durability, topic_id, position, start, start + size)
        position = start + size
    if position != end:
        raise InternalError(f"journal block {block.sequence}: its entries end at {position} instead of {end}")


def entry_at(data: bytes, position: int) -> RawEntry:
    """Read the entry header at ``position`` of ``data``, unverified."""
    kind, durability, _reserved, size, topic_id = _ENTRY.unpack_from(data, position)
    start = position + ENTRY_HEADER_SIZE
    return RawEntry(kind, durability, topic_id, position, start, start + size)


def parse_blocks(data: bytes, generation: int, position: int = 0) -> Iterator[Block | Ending]:
    """Yield the verified blocks of ``data`` from ``position`` on, and finally the :class:`Ending`."""
    while True:
        block = read_block(data, position, generation)
        if isinstance(block, Fault):
            yield Ending(position, block)
            return
        yield block
        position += block.length


def find_block(data: bytes, start: int, generation: int) -> Block | None:
    """Return the first block header of this generation at or after ``start``; its body is not checked."""
    while (start := data.find(BLOCK_MAGIC, start)) >= 0:
        block = read_block_header(data, start, generation)
        if isinstance(block, Block):
            return block
        start += 1
    return None
