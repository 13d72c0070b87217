"""Messages of one channel of a link, in both directions. Pure.

A channel is a stream of its own (:data:`CHANNEL`) on the connection whose hello has succeeded (:data:`LINK`), so HTTP/2
bounds what each channel has in flight, and streams take turns on the socket: a channel whose handler is slow delays no
other one. Every message of such a stream is one of these, as a msgpack array that begins with its tag::

    initiator -> acceptor     [0, payload]                       a message
                              [1, number, timeout ms, payload]   a call
                              [2, number]                        the caller of this call has gone
    acceptor -> initiator     [0, number, payload]               the answer to a call
                              [1, number, status, code, text, details]
                                                                 its failure, see danube.model.errors.WireError

Fields are only appended, with a default.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError, ProtocolError

__all__ = [
    "CHANNEL",
    "CHANNEL_HEADER",
    "FRAME_OVERHEAD",
    "LINK",
    "LINK_HEADER",
    "Answer",
    "Ask",
    "Cancel",
    "Failure",
    "Note",
    "check_channel",
    "decode_reply",
    "decode_request",
    "encode",
]

LINK: Final = "/danube.Peers/Link"
"""The stream of the hello. The link is up as long as this stream is open."""
CHANNEL: Final = "/danube.Peers/Channel"
"""The stream of one channel."""
LINK_HEADER: Final = "danube-link"
"""Metadata of a channel's stream: the token of the link."""
CHANNEL_HEADER: Final = "danube-channel"
"""Metadata of a channel's stream: the name of the channel."""
FRAME_OVERHEAD: Final = 64
"""More bytes than a frame has besides its payload."""

_NAME: Final = re.compile(r"[a-z0-9-]{1,40}")


class Note(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """A one-way message."""

    payload: bytes


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A call."""

    number: int
    """Unique among the calls of this stream."""
    timeout_ms: int
    """Time that the caller waits, without the time on the way."""
    payload: bytes


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The caller no longer waits for an answer."""

    number: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The answer to a call."""

    number: int
    payload: bytes


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """The failure of a call."""

    number: int
    status: int
    code: str
    text: str
    details: dict[str, str] = {}


encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Note | Ask | Cancel)
_replies = msgspec.msgpack.Decoder(Answer | Failure)


def decode_request(data: bytes) -> Note | Ask | Cancel:
    """Decode a message of the initiator; ProtocolError if it is invalid."""
    frame: Note | Ask | Cancel = _decoded(_requests, data)
    return frame


def decode_reply(data: bytes) -> Answer | Failure:
    """Decode a message of the acceptor; ProtocolError if it is invalid."""
    frame: Answer | Failure = _decoded(_replies, data)
    return frame


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise ProtocolError(f"a message of {len(data)} bytes is not one between brokers: {error}") from error


def check_channel(name: str) -> None:
    """Raise InvalidArgumentError for an invalid name of a channel."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"the channel {name!r} is not 1 to 40 of a-z, 0-9 and '-'; choose another name")
