r"""Schemas as objects beside the history whose batches carry them: their bytes, and what is made of them. Pure.

The bytes of an object (numbers little-endian)::

    0             8         10         12            16     20
    +-------------+---------+----------+-------------+------+-------~~-------+
    | "DNB-SCH\n" | version | reserved | body length | CRC  | body (msgpack) |
    |             |  u16    |   u16    |    u32      |  u32 | SchemaObject   |
    +-------------+---------+----------+-------------+------+-------~~-------+

The CRC32C is over everything else: the 16 bytes before it, and the body. An object is written once, with the subjects
that had the schema at that time. So what happened to the subjects later is not in the bucket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from danube.model.batch import crc32c
from danube.model.errors import DataLossError, FailedPreconditionError, SchemaNotFoundError
from danube.model.limits import KIB
from danube.schema.book import Book
from danube.schema.kinds import Source
from danube.schema.modes import Level, Policy
from danube.schema.records import NUMBERS, NumberRecord, SubjectRecord, VersionRecord, encode

__all__ = [
    "Recovered",
    "SchemaObject",
    "SubjectNote",
    "conflicts",
    "decodable_of",
    "decode_object",
    "encode_object",
    "objects_of",
    "recovered",
]

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"DNB-SCH\n"
_HEAD = struct.Struct("<8sHHI")
_CRC = struct.Struct("<I")
_BODY_START: Final = _HEAD.size + _CRC.size
_MOST_LISTED: Final = 5
_NOTES_BYTES: Final = 64 * KIB
"""Of the subjects in one object; subjects beyond that are left out."""


class SubjectNote(msgspec.Struct, frozen=True, array_like=True):
    """A subject that had the schema when the object was written."""

    subject: str
    number: int
    """Number of the subject."""
    versions: tuple[VersionRecord, ...]
    """The versions that have the schema."""
    level: Level | None = None
    policy: Policy | None = None


class SchemaObject(msgspec.Struct, frozen=True, array_like=True):
    """The body of an object: a schema, with its number."""

    number: int
    schema: NumberRecord
    subjects: tuple[SubjectNote, ...] = ()


_BODY = msgspec.msgpack.Decoder(SchemaObject)


def encode_object(content: SchemaObject) -> bytes:
    """Return the bytes of an object."""
    body = msgspec.msgpack.encode(content)
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, 0, len(body))
    return head + _CRC.pack(crc32c(head + body)) + body


def decode_object(data: bytes, where: str) -> SchemaObject:
    """Decode an object; ``where`` names it in errors.

    Raises:
        DataLossError: damaged.
        FailedPreconditionError: written by a newer version.
    """
    if len(data) < _BODY_START or not data.startswith(_MAGIC):
        raise DataLossError(f"{where}: this is not a schema of Danube, or its header is damaged")
    _, version, _, length = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    body = data[_BODY_START:]
    if len(body) != length or crc32c(data[: _HEAD.size] + body) != crc:
        raise DataLossError(f"{where}: the schema is damaged")
    if version > FORMAT_VERSION:
        raise FailedPreconditionError(
            f"{where}: format version {version} is newer than {FORMAT_VERSION}, the newest that this version of Danube"
            " reads; upgrade Danube"
        )
    try:
        return _BODY.decode(body)
    except msgspec.DecodeError as error:
        raise DataLossError(f"{where}: the schema does not decode: {error}") from error


# --- From a registry to objects


def objects_of(book: Book, numbers: Iterable[int]) -> dict[int, SchemaObject]:
    """Return the objects of schemas and of all schemas that they refer to, the latter first.

    Numbers that the registry does not have are left out: publishers may put any number into their batches.
    """
    found: dict[int, SchemaObject] = {}
    seen: set[int] = set()
    waiting = book.known(numbers)[::-1]
    while waiting:
        number = waiting[-1]
        schema = book.schema(number)
        if number in seen:
            waiting.pop()
            found.setdefault(number, SchemaObject(number, schema, _notes(book, number)))
            continue
        seen.add(number)
        waiting += book.known(each.number for each in schema.references if each.number not in seen)
    return found


def _notes(book: Book, number: int) -> tuple[SubjectNote, ...]:
    notes: list[SubjectNote] = []
    left = _NOTES_BYTES
    for name, record in book.carrying(number).items():
        versions = tuple(each for each in record.versions if each.number == number)
        note = SubjectNote(name, record.number, versions, record.level, record.policy)
        left -= len(msgspec.msgpack.encode(note))
        if left < 0:
            break
        notes.append(note)
    return tuple(notes)


# --- From objects to a registry


class Recovered(NamedTuple):
    """What objects say of a registry that is lost."""

    numbers: dict[int, NumberRecord]
    """Schemas by number, in order."""
    subjects: dict[str, SubjectRecord]
    """Subjects by name, with the versions whose schemas were found."""
    following: int
    """A number above all of these."""


def recovered(objects: Iterable[SchemaObject]) -> Recovered:
    """Combine objects. Of settings of a subject that differ, those beside its newest version count."""
    found = sorted(objects, key=lambda each: each.number)
    numbers = {each.number: each.schema for each in found}
    notes: dict[str, list[SubjectNote]] = {}
    for each in found:
        for note in each.subjects:
            notes.setdefault(note.subject, []).append(note)
    subjects = {name: _subject(of_it) for name, of_it in sorted(notes.items())}
    highest = max([*numbers, *(record.number for record in subjects.values())], default=0)
    return Recovered(numbers, subjects, highest + 1)


def _subject(notes: list[SubjectNote]) -> SubjectRecord:
    newest = max(notes, key=lambda note: max((each.version for each in note.versions), default=0))
    versions = {each.version: each for note in notes for each in note.versions}
    return SubjectRecord(
        newest.number,
        tuple(versions[version] for version in sorted(versions)),
        max(versions, default=0) + 1,
        newest.level,
        newest.policy,
    )


def conflicts(book: Book, numbers: Mapping[int, NumberRecord]) -> str:
    """Return which of the recovered numbers mean something else in a registry; empty: none does."""
    found: list[str] = []
    for number, record in numbers.items():
        owners = book.owners(number)
        if not owners:
            continue
        try:
            if book.schema(number).hash == record.hash:
                continue
        except SchemaNotFoundError:
            found.append(f"{number} is the number of subject {owners[0]!r} here")
            continue
        known = f" of {owners[0]!r}" if owners[0] else ""
        found.append(f"{number} is another schema{known} here")
    more = f", and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    return "; ".join(found[:_MOST_LISTED]) + more


def decodable_of(number: int, objects: Mapping[int, SchemaObject]) -> Source:
    """Return a schema in the form with which payloads are decoded, from its object and those of all its references.

    Raises:
        SchemaNotFoundError: one of the objects is missing.
        SchemaTooLargeError: it refers to more than a schema may.
    """
    book = Book()
    for each, content in objects.items():
        book.apply(f"{NUMBERS}{each}", encode(content.schema), 1)
    return book.decodable(number)
