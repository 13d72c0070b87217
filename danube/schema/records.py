"""Records of the registry in the metadata store: msgpack arrays to whose ends new fields are added.

::

    /schemas/config            Settings of all subjects
    /schemas/next              The next number; subjects and schemas share the counter
    /schemas/numbers/{n}       NumberRecord: a schema
    /schemas/hashes/{sha256}   The number of the schema with this content
    /schemas/subjects/{s}      SubjectRecord; s is percent-encoded, "/" included
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from danube.model.errors import DataLossError
from danube.schema.modes import Level, Mode, Policy, SchemaType

__all__ = [
    "CONFIG",
    "HASHES",
    "NEXT",
    "NUMBERS",
    "PREFIX",
    "SUBJECTS",
    "NumberRecord",
    "Reference",
    "Settings",
    "StoredReference",
    "SubjectRecord",
    "VersionRecord",
    "decode",
    "encode",
]

PREFIX: Final = "/schemas"
CONFIG: Final = "/schemas/config"
NEXT: Final = "/schemas/next"
NUMBERS: Final = "/schemas/numbers/"
HASHES: Final = "/schemas/hashes/"
SUBJECTS: Final = "/schemas/subjects/"


class Reference(msgspec.Struct, frozen=True, array_like=True):
    """A schema that another one refers to, as its author wrote it."""

    name: str
    """The name that the text uses: a full name in Avro, a URI in JSON Schema, an import path in protobuf."""
    subject: str
    version: int


class StoredReference(msgspec.Struct, frozen=True, array_like=True):
    """A reference with the number of its target, which remains valid when the version is deleted."""

    name: str
    subject: str
    version: int
    number: int


class NumberRecord(msgspec.Struct, frozen=True, array_like=True):
    """A schema; immutable."""

    type: SchemaType
    text: str
    """The text, as it was first registered."""
    hash: bytes
    """SHA-256 of everything that identifies the schema (:func:`danube.schema.book.content_hash`)."""
    references: tuple[StoredReference, ...] = ()
    message: str = ""
    """Protobuf: the full name of the message type of payloads, if given; empty: the first one of the file."""
    name: str = ""
    """Full name of the record or message."""
    descriptor: bytes = b""
    """Protobuf: the ``FileDescriptorProto``."""
    metadata: dict[str, str] = {}
    rules: str = ""
    """A Confluent rule set as JSON; stored, but not executed."""


class VersionRecord(msgspec.Struct, frozen=True, array_like=True):
    """A version of a subject."""

    version: int
    number: int
    """Number of the schema."""
    created_ms: int = 0
    """Unix time in milliseconds."""
    created_by: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    is_deleted: bool = False
    """Deleted, but not permanently: the version can still be read by its number."""


class SubjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """A subject. The record is never removed, so that version numbers are not reused."""

    number: int = 0
    """Number by which upstream's clients name the subject; 0 before the first version."""
    versions: tuple[VersionRecord, ...] = ()
    """Versions in order, without permanently deleted ones."""
    next_version: int = 1
    level: Level | None = None
    policy: Policy | None = None
    mode: Mode | None = None
    former: tuple[int, ...] = ()
    """Numbers of the schemas of permanently deleted versions, which messages may still have; the newest 1,000."""


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of the registry: defaults for subjects without their own."""

    level: Level | None = None
    policy: Policy | None = None
    mode: Mode | None = None


_Record = TypeVar("_Record", NumberRecord, SubjectRecord, Settings, int)


def encode(record: NumberRecord | SubjectRecord | Settings | int) -> bytes:
    """Return a record as the value of its key."""
    return msgspec.msgpack.encode(record)


def decode(key: str, value: bytes, kind: type[_Record]) -> _Record:
    """Return the record in the value of a key.

    Raises:
        DataLossError: the value is damaged.
    """
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise DataLossError(f"the metadata key {key} is damaged: {error}") from error
