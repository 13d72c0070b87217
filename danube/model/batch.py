"""The batch: the binary format of messages on the wire, in the journal, in segments, and for consumers and Spark.

A batch is two contiguous parts, kept in separate buffers so that no records are copied to add the stamp. All
numbers are little-endian; checksums are CRC32C (RFC 3720, appendix B.4).

The stamp, 48 bytes, written by the broker::

    0        4            8          16            24            32            40      44     48
    +--------+------------+----------+-------------+-------------+-------------+-------+------+
    | "DNB1" | total size | topic id | base offset | append time | owner epoch | flags | CRC  |
    +--------+------------+----------+-------------+-------------+-------------+-------+------+
               u32, of      u64        u64           u64, us       u64           u32     u32, over
               both parts                            since epoch                         bytes 0..44

The producer's part, made by the producer and never changed afterwards::

    0         1       2             4       8         12         16         20               24
    +---------+-------+-------------+-------+---------+----------+----------+----------------+
    | version | codec | header size | flags | records | unpacked | packed   | producer epoch |
    |  u8 = 2 |  u8   | u16 = 64    | u32   |  u32    | size u32 | size u32 |  u32           |
    +---------+-------+-------------+-------+---------+----------+----------+----------------+
    24             32              40            48              56          60               64
    +--------------+---------------+-------------+---------------+-----------+----------------+--~~--+------+
    | base publish | earliest      | producer id | base sequence | schema id | schema version | rec- | CRC  |
    | time u64, us | deliver-at u64|  u64        |  u64          |  u32      |  u32           | ords |  u32 |
    +--------------+---------------+-------------+---------------+-----------+----------------+--~~--+------+

The CRC closes the part and covers everything before it. CRC32C has the property that a message followed by its own
(little-endian) checksum always has the same checksum, :data:`CRC_RESIDUE`; a reader therefore checks a whole part
with a single call and without cutting it.

How the format grows:

* A new field that readers may ignore is appended to the header, and ``header size`` grows. The records begin there, so
  a reader skips the fields that it does not know. A broker stores and forwards them; a slice (see below), which it
  builds itself, does not have them, since they may describe the records that were left out. A reader that knows more
  fields than a header has takes their defaults: every header of at least the 64 bytes drawn above is read.
* A feature that readers must understand sets one of the flags 0 to 15: a reader refuses a batch with a flag of these
  that it does not know (:class:`~danube.model.errors.UnsupportedBatchError`). Unknown flags 16 to 31 are ignored. The
  same rule holds for the flags of the stamp.
* The version changes only if the fields drawn above do. Readers refuse other versions. Version 1, of Danube 0.1, had no
  header size, flags of 16 bits, and keys as text.

The records are a msgpack array. With flag ``PAYLOADS_ONLY`` each element is a payload (msgpack ``bin``): the common
case of messages without key and attributes, which then costs no object per message on either side (measured: 100 ns
instead of 500 ns a message for encoding and decoding together). Otherwise each element is a :class:`Record`.

With flag ``COMPOSITE`` the part was built by the broker, from messages that producers have sent one at a time. Each
element is a :class:`CompositeRecord`, which names its producer; the header's producer id, epoch and base
sequence are 0, and it advances no producer's sequence.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
import lz4.block
import msgspec
import zstandard

from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    CorruptBatchError,
    InvalidArgumentError,
    MessageTooLargeError,
    UnsupportedBatchError,
)
from danube.model.ids import NO_PRODUCER, Offset, OwnerEpoch, ProducerEpoch, ProducerId, TopicId

__all__ = [
    "BATCH_MAGIC",
    "CRC_RESIDUE",
    "MAX_OFFSET",
    "MIN_PART_SIZE",
    "PART_HEADER_SIZE",
    "PART_OVERHEAD",
    "STAMP_SIZE",
    "BatchFlags",
    "BatchHeader",
    "Codec",
    "CompositeRecord",
    "Record",
    "SchemaRef",
    "Stamp",
    "check_part",
    "count_records",
    "crc32c",
    "encode_composite",
    "encode_part",
    "encode_records",
    "header_at",
    "open_raw",
    "open_records",
    "pack_part",
    "read_header",
    "read_stamp",
    "replace_header",
    "schema_id_of",
    "seal_part",
    "slice_part",
    "write_stamp",
]

BATCH_MAGIC: Final = b"DNB1"
STAMP_SIZE: Final = 48
PART_VERSION: Final = 2
MIN_HEADER_SIZE: Final = 64
"""Bytes of the smallest header of version 2, drawn above. It never changes: batches with such headers stay readable."""
MIN_PART_SIZE: Final = MIN_HEADER_SIZE + 4
"""A producer's part is larger than this."""
PART_HEADER_SIZE: Final = 64
"""Bytes of the header that this Danube writes: more than the minimum as soon as it has further fields."""
PART_OVERHEAD: Final = PART_HEADER_SIZE + 4
"""Bytes besides the records of a part that this Danube writes."""
CRC_RESIDUE: Final = 0x48674BC7
"""The CRC32C of any bytes that end with their own CRC32C."""
MAX_OFFSET: Final = 2**63 - 1

_STAMP = struct.Struct("<4sIQQQQI")
_PART = struct.Struct("<BBHIIIIIQQQQII")  # of every header; appended fields get a struct of their own
_CRC = struct.Struct("<I")
_SCHEMA_ID: Final = 56
"""Where the header has the number of the schema."""

assert _STAMP.size == STAMP_SIZE - 4
assert _PART.size == MIN_HEADER_SIZE <= PART_HEADER_SIZE

crc32c = google_crc32c.value
"""CRC32C of a ``bytes`` object."""


class Codec(enum.IntEnum):
    """How the records of a batch are compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class BatchFlags:
    """Flags of the producer's part. Plain numbers: each operation on an ``IntFlag`` costs a microsecond."""

    PAYLOADS_ONLY: Final = 1
    """The records array holds bare payloads."""
    COMPOSITE: Final = 2
    """Built by the broker from records of several producers; producer and sequence are per record."""
    SLICE: Final = 4
    """Built by the broker from some records of a stored batch; their offsets are sent beside it."""


_MUST_UNDERSTAND: Final = 0xFFFF
_KNOWN_FLAGS: Final = BatchFlags.PAYLOADS_ONLY | BatchFlags.COMPOSITE | BatchFlags.SLICE
_UNKNOWN_FLAGS: Final = _MUST_UNDERSTAND & ~_KNOWN_FLAGS


class Record(msgspec.Struct, array_like=True, gc=False):
    """One stored message: a msgpack array. Readers accept shorter arrays; missing fields have their defaults."""

    payload: bytes
    key: bytes | None = None
    """Any bytes, usually UTF-8 (:mod:`danube.model.keys`). An empty key counts as none."""
    attributes: dict[str, str] | None = None
    publish_delta_us: int = 0
    """Publish time minus the batch's base publish time, in microseconds."""


class CompositeRecord(Record, array_like=True, gc=False):
    """One message of a composite batch. It can be decoded as a :class:`Record` if its producer is not needed."""

    producer: str = ""
    """Name of its producer."""
    producer_id: ProducerId = NO_PRODUCER
    sequence: int = 0
    """Its sequence number, assigned by the producer."""


class SchemaRef(NamedTuple):
    """Schema of messages; 0 for none."""

    schema_id: int = 0
    schema_version: int = 0


class Stamp(NamedTuple):
    """The fields that the broker adds when it appends a batch."""

    total_size: int
    topic_id: TopicId
    base_offset: Offset
    append_time_us: int
    owner_epoch: OwnerEpoch
    flags: int


class BatchHeader(NamedTuple):
    """The known fields of the header of the producer's part, in the order of the format. Make it with keywords."""

    version: int
    codec: int
    header_size: int
    """Where the records begin: at :data:`MIN_HEADER_SIZE`, or behind further fields."""
    flags: int
    record_count: int
    unpacked_size: int
    packed_size: int
    producer_epoch: ProducerEpoch
    publish_time_us: int
    deliver_at_us: int
    producer_id: ProducerId
    base_sequence: int
    schema_id: int
    schema_version: int


def write_stamp(
    part_size: int, topic_id: TopicId, base_offset: Offset, append_time_us: int, owner_epoch: OwnerEpoch
) -> bytes:
    """Return the stamp for a producer's part of ``part_size`` bytes."""
    head = _STAMP.pack(BATCH_MAGIC, STAMP_SIZE + part_size, topic_id, base_offset, append_time_us, owner_epoch, 0)
    return head + _CRC.pack(crc32c(head))


def read_stamp(data: bytes) -> Stamp:
    """Read and verify the stamp at the start of ``data``.

    Raises:
        CorruptBatchError: too short, wrong magic, or wrong checksum.
    """
    head = data[:STAMP_SIZE]
    if len(head) < STAMP_SIZE or crc32c(head) != CRC_RESIDUE:
        raise CorruptBatchError("batch stamp: the checksum does not match its bytes; the stored batch is damaged")
    fields = _STAMP.unpack_from(head)
    if fields[0] != BATCH_MAGIC:
        raise CorruptBatchError(f"batch stamp: magic {fields[0]!r} is not {BATCH_MAGIC!r}; this is not a Danube batch")
    if fields[6] & _MUST_UNDERSTAND:
        raise UnsupportedBatchError(
            f"batch stamp: flags {fields[6]:#x} name a feature that this version of Danube does not know; upgrade it"
        )
    return Stamp(*fields[1:])


def read_header(part: bytes) -> BatchHeader:
    """Read the header of a producer's part, and check that it agrees with the size of ``part``.

    The checksum is not verified here; see :func:`check_part`.

    Raises:
        UnsupportedBatchError: it is of another version, or requires a feature that this version does not know.
        CorruptBatchError: it contradicts the size of ``part``, or there are no records.
    """
    if len(part) < MIN_PART_SIZE:
        raise _too_short(part)
    fields = _PART.unpack_from(part)
    if fields[0] != PART_VERSION or fields[3] & _UNKNOWN_FLAGS:
        raise _unsupported(fields[0], fields[3])
    size = fields[2]
    if fields[6] != len(part) - size - 4 or size < MIN_HEADER_SIZE:
        raise CorruptBatchError(
            f"batch header gives {size} bytes of header and {fields[6]} of records, but the batch has {len(part) - 4}"
        )
    if not fields[4]:
        raise CorruptBatchError("batch without records; send at least one message in a batch")
    return tuple.__new__(BatchHeader, fields)


def schema_id_of(part: bytes) -> int:
    """Return the schema number in the header of a producer's part; 0 if it has none, or :func:`read_header` refuses it.

    A fraction of the time of :func:`read_header`.
    """
    if len(part) < MIN_PART_SIZE or part[0] != PART_VERSION:
        return 0
    number: int = _CRC.unpack_from(part, _SCHEMA_ID)[0]
    return number


def _too_short(part: bytes) -> CorruptBatchError:
    if part and part[0] != PART_VERSION:
        return _unsupported(part[0], 0)
    return CorruptBatchError(f"batch of {len(part)} bytes is shorter than its {MIN_PART_SIZE} bytes of header")


def _unsupported(version: int, flags: int) -> UnsupportedBatchError:
    if version != PART_VERSION:
        return UnsupportedBatchError(
            f"batch of version {version}, and its receiver reads version {PART_VERSION}; upgrade the older of the two"
        )
    return UnsupportedBatchError(
        f"batch flags {flags:#x}: {flags & _UNKNOWN_FLAGS:#x} stands for a feature that the receiver of the batch does"
        " not know; upgrade the receiver"
    )


def header_at(data: bytes, position: int) -> BatchHeader:
    """Read the header of a producer's part that begins at ``position`` of ``data``, without any check."""
    return tuple.__new__(BatchHeader, _PART.unpack_from(data, position))


def count_records(part: bytes) -> int:
    """Return the number of records in the header of a part, which was checked before."""
    return int.from_bytes(part[8:12], "little")


def check_part(part: bytes) -> BatchHeader:
    """Verify the checksum of a producer's part and return its header.

    Raises:
        CorruptBatchError: the bytes differ from those that the producer encoded.
    """
    if crc32c(part) != CRC_RESIDUE:
        raise CorruptBatchError(f"batch of {len(part)} bytes: the checksum does not match; send the batch again")
    return read_header(part)


def seal_part(header: BatchHeader, rest: bytes) -> bytes:
    """Build a producer's part from its header and the bytes behind it, and append the checksum.

    Args:
        header: the known fields.
        rest: further fields of the header (``header.header_size`` counts them), and the packed records.
    """
    return _seal(_PART.pack(*header), rest)


def replace_header(part: bytes, header: BatchHeader) -> bytes:
    """Return a producer's part with other known fields in its header; further fields and records stay as they are."""
    return _seal(_PART.pack(*header), part[MIN_HEADER_SIZE:-4])


def _seal(head: bytes, rest: bytes) -> bytes:
    return b"".join((head, rest, _CRC.pack(google_crc32c.extend(crc32c(head), rest))))


_ENCODER = msgspec.msgpack.Encoder()
_PAYLOADS = msgspec.msgpack.Decoder(list[bytes])
_RECORDS = msgspec.msgpack.Decoder(list[Record])
_COMPOSITE = msgspec.msgpack.Decoder(list[CompositeRecord])
_RAWS = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode_part(
    records: Sequence[bytes] | Sequence[Record],
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    base_sequence: int,
    publish_time_us: int,
    codec: Codec = Codec.NONE,
    schema_id: int = 0,
    schema_version: int = 0,
    deliver_at_us: int = 0,
) -> bytes:
    """Encode a producer's part from bare payloads (all ``bytes``) or from :class:`Record` objects.

    Raises:
        InvalidArgumentError: no records, or a mixture of the two kinds.
    """
    kinds = set(map(type, records))
    plain = kinds == {bytes}
    if plain or kinds == {Record}:
        pass
    elif not kinds:
        raise InvalidArgumentError("a batch needs at least one message")
    else:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidArgumentError(
            f"a batch holds either bytes or Records, not {names}; encode payloads to bytes first"
        )
    return pack_part(
        _ENCODER.encode(records),
        len(records),
        plain=plain,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        publish_time_us=publish_time_us,
        codec=codec,
        schema_id=schema_id,
        schema_version=schema_version,
        deliver_at_us=deliver_at_us,
    )


def encode_composite(
    records: Sequence[CompositeRecord], *, publish_time_us: int, schema_id: int = 0, schema_version: int = 0
) -> bytes:
    """Encode the part of a composite batch.

    Args:
        records: at least one.
        publish_time_us: base of their ``publish_delta_us``.
        schema_id, schema_version: schema of all of them.
    """
    body = _ENCODER.encode(records)
    size = len(body)
    return _seal(
        _PART.pack(
            PART_VERSION,
            Codec.NONE,
            PART_HEADER_SIZE,
            BatchFlags.COMPOSITE,
            len(records),
            size,
            size,
            0,
            publish_time_us,
            0,
            0,
            0,
            schema_id,
            schema_version,
        ),
        body,
    )


def encode_records(records: Sequence[bytes] | Sequence[Record]) -> bytes:
    """Encode only the records array, for :func:`pack_part`; all records must be of one kind."""
    return _ENCODER.encode(records)


def pack_part(
    body: bytes,
    record_count: int,
    *,
    plain: bool,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    base_sequence: int,
    publish_time_us: int,
    codec: Codec = Codec.NONE,
    schema_id: int = 0,
    schema_version: int = 0,
    deliver_at_us: int = 0,
) -> bytes:
    """Build a producer's part from an encoded records array; ``plain``: it contains bare payloads."""
    unpacked_size = len(body)
    if codec:
        body = _pack(codec, body)
    return _seal(
        _PART.pack(
            PART_VERSION,
            codec,
            PART_HEADER_SIZE,
            BatchFlags.PAYLOADS_ONLY if plain else 0,
            record_count,
            unpacked_size,
            len(body),
            producer_epoch,
            publish_time_us,
            deliver_at_us,
            producer_id,
            base_sequence,
            schema_id,
            schema_version,
        ),
        body,
    )


def _pack(codec: Codec, body: bytes) -> bytes:
    if codec is Codec.LZ4:
        return bytes(lz4.block.compress(body, store_size=False))
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(body)


def unpack_body(part: bytes, header: BatchHeader, max_unpacked_bytes: int) -> bytes | memoryview:
    """Return the unpacked records array of a part, never more than ``max_unpacked_bytes``."""
    body = memoryview(part)[header.header_size : -4]
    if header.codec == Codec.NONE:
        if header.unpacked_size != len(body):
            raise CorruptBatchError("batch header: an uncompressed batch has two different sizes")
        return body
    if header.unpacked_size > max_unpacked_bytes:
        raise MessageTooLargeError(
            f"batch unpacks to {header.unpacked_size} bytes, more than max_batch_bytes = {max_unpacked_bytes}"
        )
    try:
        if header.codec == Codec.LZ4:
            unpacked = lz4.block.decompress(body, uncompressed_size=header.unpacked_size)
        elif header.codec == Codec.ZSTD:
            # The size in the frame header is not trusted: the reader stops after the bounded size.
            with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                unpacked = reader.read(header.unpacked_size + 1)
        else:
            raise CorruptBatchError(f"batch codec {header.codec} is unknown; known are none, lz4 and zstd")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
        raise CorruptBatchError(f"batch does not decompress: {error}") from error
    if len(unpacked) != header.unpacked_size:
        raise CorruptBatchError(
            f"batch unpacks to {len(unpacked)} bytes instead of the {header.unpacked_size} in its header"
        )
    return bytes(unpacked)


def open_records(part: bytes, header: BatchHeader, max_unpacked_bytes: int) -> list[bytes] | list[Record]:
    """Decode the records of a checked part: payloads if ``PAYLOADS_ONLY`` is set, else :class:`Record` objects.

    Those of a composite batch are :class:`CompositeRecord` objects.

    Raises:
        CorruptBatchError: the records do not decode, or their number is not the header's.
    """
    flags = header.flags
    decoder: Any = _PAYLOADS if flags & BatchFlags.PAYLOADS_ONLY else _RECORDS
    if flags & BatchFlags.COMPOSITE:
        decoder = _COMPOSITE
    return _decode(decoder, part, header, max_unpacked_bytes)


def open_raw(part: bytes, header: BatchHeader, max_unpacked_bytes: int) -> list[msgspec.Raw]:
    """Split the records of a checked part into raw msgpack, without building an object per field."""
    return _decode(_RAWS, part, header, max_unpacked_bytes)


def _decode(decoder: Any, part: bytes, header: BatchHeader, max_unpacked_bytes: int) -> list[Any]:
    try:
        records: list[Any] = decoder.decode(unpack_body(part, header, max_unpacked_bytes))
    except UNDECODABLE as error:
        raise CorruptBatchError(f"batch records do not decode: {error}") from error
    if len(records) != header.record_count:
        raise CorruptBatchError(f"batch header gives {header.record_count} records, but the batch has {len(records)}")
    return records


def slice_part(header: BatchHeader, raws: Iterable[msgspec.Raw]) -> bytes:
    """Build a separate part, uncompressed and with its own checksum, from some records of a stored batch.

    It has only the fields and flags of the header that are known here.
    """
    chosen = list(raws)
    body = _ENCODER.encode(chosen)
    return seal_part(
        header._replace(
            codec=Codec.NONE,
            header_size=PART_HEADER_SIZE,
            flags=header.flags & _KNOWN_FLAGS | BatchFlags.SLICE,
            record_count=len(chosen),
            unpacked_size=len(body),
            packed_size=len(body),
        ),
        body,
    )
