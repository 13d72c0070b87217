"""What the schema registry is asked and answers: proposals, versions, changes; and the identity of a schema."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec

from danube.model.errors import (
    SchemaSettingNotFoundError,
    SubjectNotFoundError,
)
from danube.schema.modes import SchemaType
from danube.schema.records import (
    HASHES,
    NumberRecord,
    Reference,
    StoredReference,
    SubjectRecord,
    VersionRecord,
)

__all__ = [
    "LARGEST_NUMBER",
    "LARGEST_VERSION",
    "LATEST",
    "MOST_FORMER",
    "MOST_LISTED",
    "NEW_SUBJECT",
    "Change",
    "Entry",
    "Proposal",
    "Registered",
    "content_hash",
    "guid_of",
    "hash_key",
    "no_subject",
    "not_set",
]

LATEST: Final = -1
"""In place of a version: the latest live version of the subject."""

LARGEST_NUMBER: Final = 2**31 - 1
"""The highest schema number: clients of Confluent's registry use 31 bits."""
LARGEST_VERSION: Final = 2**31 - 1
_GUIDS: Final = uuid.UUID("6f0d1c4e-3b0a-5a55-9c1b-2f6b8f7d9a11")
MOST_LISTED: Final = 5
"""Maximum number of items of a list in an error message."""
MOST_FORMER: Final = 1_000
"""Most numbers that a subject remembers of its permanently deleted versions."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A schema to register, check or look up."""

    subject: str
    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    """Versions may be :data:`LATEST`."""
    message: str = ""
    metadata: Mapping[str, str] = {}
    rules: str = ""


class Change(msgspec.Struct, frozen=True):
    """A transaction of the metadata store: all writes are applied if all conditions hold, otherwise none."""

    conditions: tuple[tuple[str, int], ...] = ()
    """Keys and their required modification revisions; 0: the key must not exist."""
    puts: tuple[tuple[str, bytes], ...] = ()
    deletes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.puts and not self.deletes


class Entry(msgspec.Struct, frozen=True):
    """A version of a subject, with its schema."""

    subject: str
    subject_number: int
    version: VersionRecord
    schema: NumberRecord

    @property
    def number(self) -> int:
        """Of the schema."""
        return self.version.number

    @property
    def fingerprint(self) -> str:
        """The fingerprint shown to upstream's clients."""
        return self.schema.type.value if self.schema.type.is_plain else f"sha256:{self.schema.hash.hex()}"


class Registered(msgspec.Struct, frozen=True):
    """The result of a registration, and the change that stores it."""

    number: int
    version: int
    subject_number: int
    is_new: bool
    """Whether a version is created. If not, there is nothing to write."""
    change: Change


def content_hash(proposal: Proposal, references: tuple[StoredReference, ...], canonical: str) -> bytes:
    """Return the hash that identifies a schema: equal for texts with the same meaning and the same references."""
    identity = (
        proposal.type.value,
        canonical,
        sorted((each.name, each.number) for each in references),
        proposal.message,
        sorted(proposal.metadata.items()),
        proposal.rules,
    )
    return hashlib.sha256(msgspec.msgpack.encode(identity)).digest()


def hash_key(digest: bytes) -> str:
    """Return the key that leads from a hash to the number of its schema."""
    return HASHES + digest.hex()


NEW_SUBJECT: Final = SubjectRecord()


def guid_of(digest: bytes) -> str:
    """Return the GUID of a schema with a hash."""
    return str(uuid.uuid5(_GUIDS, digest.hex()))


def no_subject(subject: str) -> SubjectNotFoundError:
    """Return the error for a subject without versions."""
    return SubjectNotFoundError(f"subject {subject!r} does not exist, or all its versions are deleted")


def not_set(what: str, subject: str | None) -> SchemaSettingNotFoundError:
    """Return the error for a setting that a subject, or the registry, does not have."""
    return SchemaSettingNotFoundError(
        f"{'the registry' if subject is None else f'subject {subject!r}'} has no {what} of its own"
    )
