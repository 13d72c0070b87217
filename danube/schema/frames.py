"""Encodes and decodes Confluent's frame, a prefix of payloads with the schema's number, for topics bridged to Kafka.

::

    00                  magic
    4 bytes             number of the schema, most significant byte first
    protobuf only:      which message of the file the payload is: how many indexes, then each index, as zigzag varints;
                        [0], the first message of the file, is the single byte 00
    payload
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from danube.model.errors import SchemaPayloadError

__all__ = ["HEAD_BYTES", "Frame", "decode_frame", "encode_frame", "frame_number", "framed_numbers", "named_numbers"]

_MAGIC: Final = 0
HEAD_BYTES: Final = 5
"""Bytes of a frame without message indexes."""
_MOST_INDEXES: Final = 100
"""Maximum nesting depth of protobuf messages."""


class Frame(NamedTuple):
    """A decoded frame."""

    number: int
    """Number of the schema."""
    indexes: tuple[int, ...]
    """Protobuf: the index of the message in the file, then of the nested message within that one. Others: empty."""
    payload: bytes


def encode_frame(number: int, payload: bytes, indexes: tuple[int, ...] = ()) -> bytes:
    """Return a payload with a frame in front.

    Args:
        number: Number of the schema, below 2**31.
        payload: The payload.
        indexes: Protobuf: the indexes of the payload's message in its file; others: empty.
    """
    head = bytes([_MAGIC]) + number.to_bytes(HEAD_BYTES - 1, "big")
    if indexes == (0,):
        return head + b"\x00" + payload
    varints = [len(indexes), *indexes] if indexes else []
    return head + b"".join(_varint(each << 1) for each in varints) + payload


def decode_frame(data: bytes, *, is_protobuf: bool) -> Frame:
    """Decode a framed payload. Frames are never guessed; the topic must be configured to have them.

    Raises:
        SchemaPayloadError: the frame is missing or damaged.
    """
    number = frame_number(data)
    place = HEAD_BYTES
    indexes: list[int] = []
    if is_protobuf:
        count, place = _read(data, place)
        if not 0 <= count <= _MOST_INDEXES:
            raise SchemaPayloadError(
                f"the payload's Confluent frame has {count} message indexes; it must have 0 to {_MOST_INDEXES}"
            )
        for _ in range(count):
            index, place = _read(data, place)
            if index < 0:
                raise SchemaPayloadError(f"the payload's Confluent frame has the negative message index {index}")
            indexes.append(index)
        indexes = indexes or [0]
    return Frame(number, tuple(indexes), data[place:])


def frame_number(data: bytes) -> int:
    """Return the number of the schema of a framed payload.

    Raises:
        SchemaPayloadError: it has no frame.
    """
    if len(data) < HEAD_BYTES or data[0] != _MAGIC:
        raise SchemaPayloadError(
            "the payload has no Confluent frame, but its topic has schema_framing = confluent: payloads must begin with"
            " a zero byte and the four bytes of the schema number"
        )
    return int.from_bytes(data[1:HEAD_BYTES], "big")


def named_numbers(payloads: Iterable[bytes], most: int) -> list[int]:
    """Return the numbers in the frames of payloads, each once, in their order; at most ``most``.

    Payloads without a frame are skipped.
    """
    heads = dict.fromkeys(payload[:HEAD_BYTES] for payload in payloads)
    numbers = [int.from_bytes(head[1:], "big") for head in heads if len(head) == HEAD_BYTES and head[0] == _MAGIC]
    return numbers[:most]


def framed_numbers(payloads: Iterable[bytes], numbers: set[int]) -> int:
    """Add the numbers in the frames of payloads to a set; return how many have one, up to the first that has none.

    Of a frame only the magic byte and the number are looked at.
    """
    heads: set[bytes] = set()
    count = 0
    for payload in payloads:
        if len(payload) < HEAD_BYTES or payload[0] != _MAGIC:
            break
        heads.add(payload[1:HEAD_BYTES])
        count += 1
    numbers.update(int.from_bytes(head, "big") for head in heads)
    return count


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read(data: bytes, place: int) -> tuple[int, int]:
    """Return a zigzag varint and the position behind it."""
    value = 0
    for count, byte in enumerate(data[place : place + 5]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), place + count + 1
    raise SchemaPayloadError("the payload's Confluent frame has a truncated or overlong message index")
