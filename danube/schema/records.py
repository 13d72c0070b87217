"""What the registry keeps in the metadata store: keys, and values as msgpack arrays that grow at their ends.

::

    /schemas/config            Settings of all subjects
    /schemas/next              Counter, of subjects and schemas alike
    /schemas/numbers/{n}       NumberRecord: a schema
    /schemas/hashes/{sha256}   Counter's number n of the schema with this content
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
    """As the text calls it: a full name in Avro, a URI in JSON Schema, a path of an import in protobuf."""
    subject: str
    version: int


class StoredReference(msgspec.Struct, frozen=True, array_like=True):
    """A reference, and the number of the schema that it led to: that stays when the version is deleted."""

    name: str
    subject: str
    version: int
    number: int


class NumberRecord(msgspec.Struct, frozen=True, array_like=True):
    """A schema. It never changes."""

    type: SchemaType
    text: str
    """As it was registered first."""
    hash: bytes
    """SHA-256 of everything that makes it this schema."""
    references: tuple[StoredReference, ...] = ()
    message: str = ""
    """Protobuf: the full name of the message that payloads are, if it was said; empty: the first of the file."""
    name: str = ""
    """Full name of the record or message."""
    descriptor: bytes = b""
    """Protobuf: the ``FileDescriptorProto``."""
    metadata: dict[str, str] = {}
    rules: str = ""
    """A rule set of Confluent's, as JSON; it is kept and not run."""


class VersionRecord(msgspec.Struct, frozen=True, array_like=True):
    """A version of a subject."""

    version: int
    number: int
    """Of the schema."""
    created_ms: int = 0
    """Unix time in milliseconds."""
    created_by: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    is_deleted: bool = False
    """Deleted and still to be found by number, until it is deleted permanently."""


class SubjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """A subject. It stays for ever, so that no number of a version comes again."""

    number: int = 0
    """What upstream's clients know all its versions by; 0 before the first version."""
    versions: tuple[VersionRecord, ...] = ()
    """In their order, without those that are permanently deleted."""
    next_version: int = 1
    level: Level | None = None
    policy: Policy | None = None
    mode: Mode | None = None


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """What holds for subjects that have no setting of their own."""

    level: Level | None = None
    policy: Policy | None = None
    mode: Mode | None = None


_Record = TypeVar("_Record", NumberRecord, SubjectRecord, Settings, int)


def encode(record: NumberRecord | SubjectRecord | Settings | int) -> bytes:
    """Return the value of a key."""
    return msgspec.msgpack.encode(record)


def decode(key: str, value: bytes, kind: type[_Record]) -> _Record:
    """Return what the value of a key says.

    Raises:
        DataLossError: it is nothing that :func:`encode` wrote.
    """
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise DataLossError(f"the metadata key {key} is damaged: {error}") from error
