"""The storage API: messages between a ``remote://`` backend and a storage server, and the paths of their calls.

All messages are msgspec Structs, encoded as msgpack arrays. The bytes of objects are sent beside them as messages
without an envelope, in pieces of at most :data:`PIECE_BYTES`: the gRPC frame gives their length.

``Put`` (bidirectional); a small object is part of the first message::

    client: PutObject               PutObject, then pieces of size_bytes in all
    server: Done                    Admitted, then Done        Admitted: there is memory for it, send

A client sends no bytes of a large object before the server has memory for it. Otherwise waiting bytes would fill the
window of the connection, which earlier puts need to finish.

``Get`` (one request, stream)::

    client: GetObject               server: ObjectBytes, then pieces

``GetRanges`` answers in the same way, with all ranges one after the other. The other calls are unary. Every request
names a ``space``: the path of the client's URL, a folder of its own among the keys of the server's backend.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "PIECE_BYTES",
    "SMALL_OBJECT_BYTES",
    "AbandonUploads",
    "Admitted",
    "Count",
    "DeleteObjects",
    "Describe",
    "Done",
    "GetObject",
    "GetRanges",
    "HeadObject",
    "ListObjects",
    "Object",
    "ObjectBytes",
    "ObjectPage",
    "PutObject",
    "PutReply",
    "StorageDescription",
    "StorageMethod",
]

PIECE_BYTES: Final = 1024 * 1024
"""Most bytes of an object in one message."""
SMALL_OBJECT_BYTES: Final = 64 * 1024
"""An object up to this size is put with one message."""


class StorageMethod:
    """Paths of the calls."""

    PUT: Final = "/danube.storage.v1.Storage/Put"
    GET: Final = "/danube.storage.v1.Storage/Get"
    GET_RANGES: Final = "/danube.storage.v1.Storage/GetRanges"
    HEAD: Final = "/danube.storage.v1.Storage/Head"
    LIST: Final = "/danube.storage.v1.Storage/List"
    DELETE: Final = "/danube.storage.v1.Storage/Delete"
    ABANDON_UPLOADS: Final = "/danube.storage.v1.Storage/AbandonUploads"
    DESCRIBE: Final = "/danube.storage.v1.Storage/Describe"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of plain messages."""


class _Tagged(_Message, tag_field="tag"):
    """Base of messages that travel in a union."""


class Describe(_Message):
    """Asks for a description of the server's storage."""


class StorageDescription(_Message):
    """A server's storage and its guarantees (see ``StorageCapabilities``)."""

    url: str
    """The backend's URL, without secrets."""
    durable: bool
    conditional_put: bool
    max_object_bytes: int
    version: str
    mounted: bool = False


class PutObject(_Message):
    """Stores an object."""

    space: str
    key: str
    size_bytes: int
    if_absent: bool = False
    data: bytes = b""
    """The whole object, if it is small; otherwise its bytes follow."""


class Admitted(_Tagged, tag=0):
    """Answer to PutObject of a large object: the client may send it."""


class Done(_Tagged, tag=1):
    """The operation has succeeded."""


PutReply = Admitted | Done


class GetObject(_Message):
    """Asks for the bytes ``[start, end)`` of an object; up to its end if ``end`` is None."""

    space: str
    key: str
    start: int = 0
    end: int | None = None


class GetRanges(_Message):
    """Asks for several ranges of an object: ``[start, end, start, end, ...]``."""

    space: str
    key: str
    ranges: list[int]


class ObjectBytes(_Message):
    """The number of bytes that follow, in pieces."""

    size_bytes: int


class HeadObject(_Message):
    """Asks for the metadata of an object."""

    space: str
    key: str


class Object(_Message):
    """One object; its key is relative to the space."""

    key: str
    size_bytes: int
    modified_us: int


class ListObjects(_Message):
    """Asks for a page of a listing."""

    space: str
    prefix: str = ""
    start_after: str = ""
    limit: int = 1000


class ObjectPage(_Message):
    """Answer to ListObjects, sorted by key."""

    objects: list[Object]
    more: bool


class DeleteObjects(_Message):
    """Deletes objects; missing ones are ignored."""

    space: str
    keys: list[str]


class AbandonUploads(_Message):
    """Removes remains of interrupted uploads that are older than a given age."""

    space: str
    prefix: str
    older_than_s: float


class Count(_Message):
    """Number of affected objects."""

    count: int
