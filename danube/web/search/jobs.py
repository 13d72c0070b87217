"""What broker and search process say to each other: jobs, and frames of bytes. Pure.

Over the one socket that a search process has to its broker, each frame is::

    0        4      5
    +--------+------+---------~~---+
    | length | kind | data         |     length: u32, big-endian, of the data
    +--------+------+---------~~---+

``JOB`` comes with a descriptor: a connection that speaks the native protocol, on which the broker knows the caller of
the search. So a process has the rights of the caller, and no others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from danube.model.errors import ProtocolError
from danube.model.ids import TopicId
from danube.model.secret import Secret

__all__ = ["EVENTS", "JOB", "LEFT", "STOP", "Frames", "Job", "Part", "decode_job", "encode_job", "frame"]

JOB: Final = 1
"""Broker: search."""
STOP: Final = 2
"""Broker: end the search."""
EVENTS: Final = 3
"""Process: events for the caller."""
LEFT: Final = 4
"""Process: the search is over, and it can take another one. Its data are the last events for the caller."""

_HEAD: Final = struct.Struct(">IB")
_MAX_BYTES: Final = 64 * 1024 * 1024


class Part(msgspec.Struct, array_like=True):
    """A range of one plain topic or partition that is searched."""

    topic: str
    """The plain topic or partition."""
    partition: int
    topic_id: TopicId
    start: int
    end: int
    storage_url: str = ""
    """Where its sealed messages are, if the search may read them there; empty: from the broker."""


class Job(msgspec.Struct, kw_only=True):
    """A search."""

    filter: str
    parts: list[Part]
    max_matches: int
    max_bytes: int
    """Of the reported matches."""
    max_s: float
    payload_bytes: int
    """Beyond which a payload is cut."""
    max_batch_bytes: int
    """Limit of the broker."""


class _Sent(msgspec.Struct, kw_only=True):
    """A job with what its process needs for its connection."""

    job: Job
    own: list[str]
    """Addresses of the broker itself."""
    token: str | None = None
    has_tls: bool = False
    """Other brokers are reached by TLS only, which a search process does not do."""


def encode_job(job: Job, own: list[str], token: Secret | None, has_tls: bool) -> bytes:
    """Return the data of a frame ``JOB``."""
    revealed = None if token is None else token.reveal()
    return msgspec.json.encode(_Sent(job=job, own=own, token=revealed, has_tls=has_tls))


def decode_job(data: bytes) -> tuple[Job, list[str], Secret | None, bool]:
    """Return the job, the addresses of the broker, the caller's token and whether the broker has TLS."""
    sent = msgspec.json.decode(data, type=_Sent)
    return sent.job, sent.own, None if sent.token is None else Secret(sent.token), sent.has_tls


class Frame(NamedTuple):
    """A frame as received."""

    kind: int
    data: bytes


def frame(kind: int, data: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    return _HEAD.pack(len(data), kind) + data


class Frames:
    """Takes frames out of the bytes of a stream."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes, and yield the frames that they complete.

        Raises:
            ProtocolError: a frame is larger than any can be.
        """
        self._data += data
        while len(self._data) >= _HEAD.size:
            size, kind = _HEAD.unpack_from(self._data)
            if size > _MAX_BYTES:
                raise ProtocolError(f"a frame of {size} bytes between broker and search process")
            end = _HEAD.size + size
            if len(self._data) < end:
                return
            found = Frame(kind, bytes(self._data[_HEAD.size : end]))
            del self._data[:end]
            yield found
