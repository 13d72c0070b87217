"""The file format of a stage.

All numbers are little-endian, checksums CRC32C::

    0        4         8           12               ..     +4
    +--------+---------+-----------+----------------+------+
    | "DNG1" | version | head size | StageHead      | CRC  |     the head: identifies the stage
    |        | u32 = 2 | u32       | (msgpack)      | u32, over everything before it
    +--------+---------+-----------+----------------+------+
    +-----------+---------------------------+
    | size u32  | producer's part           |     any number of times; a part closes with its own CRC,
    +-----------+---------------------------+     see danube.model.batch
    0      4        8       12        20           28      32     36
    +------+--------+-------+---------+------------+-------+------+
    | 0    | "DNGE" | parts | records | part bytes | chain | CRC  |     the end: the stage is finished
    | u32  |        | u32   | u64     | u64        | u32   | u32, over bytes 0..31
    +------+--------+-------+---------+------------+-------+------+

``part bytes`` is the sum of the parts' sizes, and ``chain`` the CRC32C of the parts' own checksums, one after the
other: so the end proves that every part is present, and in its place. A file without a valid end at its very end is an
unfinished stage, and is removed by the next start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from danube.model.batch import CRC_RESIDUE, crc32c
from danube.model.errors import CorruptBatchError
from danube.model.ids import TopicId

__all__ = [
    "END_SIZE",
    "MAX_HEAD_SIZE",
    "StageEnd",
    "StageHead",
    "chain_part",
    "cut_parts",
    "encode_end",
    "encode_head",
    "frame_part",
    "read_end",
    "read_head",
]

_MAGIC: Final = b"DNG1"
_END_MAGIC: Final = b"DNGE"
_VERSION: Final = 2
_HEAD: Final = struct.Struct("<4sII")
_END: Final = struct.Struct("<I4sIQQI")
_SIZE: Final = struct.Struct("<I")
_CRC: Final = struct.Struct("<I")

END_SIZE: Final = _END.size + _CRC.size
MAX_HEAD_SIZE: Final = 8 * 1024
"""Names are bounded, so no head is larger."""

_encode = msgspec.msgpack.Encoder().encode


class StageHead(msgspec.Struct, array_like=True, frozen=True):
    """Identifies a stage. New fields come at the end, with a default."""

    stage_id: int
    topic: str
    topic_id: TopicId
    producer: str
    batch_id: int
    attempt: str
    created_us: int
    write_id: str = ""


class StageEnd(NamedTuple):
    """Totals of a finished stage."""

    parts: int
    records: int
    part_bytes: int
    chain: int


_DECODER: Final = msgspec.msgpack.Decoder(StageHead)


def encode_head(head: StageHead) -> bytes:
    """Return the first bytes of a stage file."""
    body = _encode(head)
    data = _HEAD.pack(_MAGIC, _VERSION, len(body)) + body
    return data + _CRC.pack(crc32c(data))


def read_head(data: bytes) -> tuple[StageHead, int]:
    """Read the head at the start of ``data``, and return it with its size.

    Raises:
        CorruptBatchError: the bytes are not those of a stage.
    """
    if len(data) >= _HEAD.size:
        magic, version, size = _HEAD.unpack_from(data)
        end = _HEAD.size + size + _CRC.size
        if magic == _MAGIC and version == _VERSION and end <= len(data) and crc32c(data[:end]) == CRC_RESIDUE:
            return _DECODER.decode(data[_HEAD.size : end - _CRC.size]), end
    raise CorruptBatchError("stage: its header is damaged or incomplete")


def frame_part(part: bytes) -> tuple[bytes, bytes]:
    """Return a part as it is written, in two pieces, without copying it."""
    return _SIZE.pack(len(part)), part


def chain_part(chain: int, part: bytes) -> int:
    """Return the chain checksum extended by one part."""
    return int(google_crc32c.extend(chain, part[-4:]))


def encode_end(end: StageEnd) -> bytes:
    """Return the bytes that finish a stage."""
    data = _END.pack(0, _END_MAGIC, *end)
    return data + _CRC.pack(crc32c(data))


def read_end(data: bytes) -> StageEnd | None:
    """Decode the end of a stage; return None if ``data`` is not one."""
    if len(data) != END_SIZE or crc32c(data) != CRC_RESIDUE:
        return None
    zero, magic, *fields = _END.unpack_from(data)
    return StageEnd(*fields) if zero == 0 and magic == _END_MAGIC else None


def cut_parts(data: bytes) -> Iterator[bytes]:
    """Cut the complete parts at the beginning of ``data``. Only their sizes are read."""
    position, size = 0, len(data)
    while position + _SIZE.size <= size:
        (length,) = _SIZE.unpack_from(data, position)
        begin = position + _SIZE.size
        if not length or begin + length > size:
            return
        yield data[begin : begin + length]
        position = begin + length
