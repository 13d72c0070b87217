"""What the owner of a topic sends to the broker that it moves to: calls of the channel :data:`CHANNEL`. Pure.

Messages are msgpack arrays with a tag; new fields are added at the end and have a default. The calls of one move are
made one after the other. Each is answered with :class:`Taken`, or raises why the target cannot take the topic.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError
from danube.model.ids import FIRST_OFFSET, Offset, OwnerEpoch, TopicId

__all__ = ["CHANNEL", "Append", "Call", "Finish", "Open", "State", "Taken", "decode_answer", "decode_call", "encode"]

CHANNEL: Final = "move"
"""The channel of these calls between brokers."""


class _Tagged(msgspec.Struct, array_like=True, tag_field="tag"):
    """Base of the messages; the first element of the array is the tag."""


class Open(_Tagged, tag=0):
    """Asks whether the target can take a topic, and begins an empty copy; an earlier one is removed."""

    topic_id: TopicId
    move: int
    topic: str
    """Name of the plain topic or the partition."""
    epoch: OwnerEpoch
    """Of the new owner."""
    first_offset: Offset = FIRST_OFFSET
    """Of the batches that are copied."""
    journal_bytes: int = 0
    """How many bytes are copied, as far as is known."""


class Append(_Tagged, tag=1):
    """Appends batches to the copy; answered when they have the durability of the topic. Not of ``remote`` topics."""

    topic_id: TopicId
    move: int
    batches: list[tuple[bytes, bytes]]
    """Stamps, unchanged, and parts of the producers."""


class State(_Tagged, tag=2):
    """A piece of the state of the topic; the pieces are joined, and that of Finish is the last one."""

    topic_id: TopicId
    move: int
    piece: bytes


class Finish(_Tagged, tag=3):
    """The last batches and the last piece of the state. Answered when all is synced, and the topic can be served."""

    topic_id: TopicId
    move: int
    end_offset: Offset
    batches: list[tuple[bytes, bytes]] = []
    piece: bytes = b""


class Taken(_Tagged, tag=0):
    """Answer to all of them."""

    end_offset: Offset = FIRST_OFFSET
    """Behind the last batch of the copy."""
    wal: str = ""
    """Durability ``remote``: the wal with the state; see :class:`~danube.cluster.records.Assignment`."""


Call = Open | Append | State | Finish

encode = msgspec.msgpack.Encoder().encode
_CALL: Final[msgspec.msgpack.Decoder[Call]] = msgspec.msgpack.Decoder(Call)
_TAKEN: Final = msgspec.msgpack.Decoder(Taken)


def decode_call(payload: bytes) -> Call:
    """Decode a call.

    Raises:
        InvalidArgumentError: it is none that this version knows.
    """
    try:
        return _CALL.decode(payload)
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"this version of Danube does not know this step of a move ({error})") from error


def decode_answer(payload: bytes) -> Taken:
    """Decode an answer.

    Raises:
        InvalidArgumentError: this version does not understand it.
    """
    try:
        return _TAKEN.decode(payload)
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"the target of a move answers what nothing here understands ({error})") from error
