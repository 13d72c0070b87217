"""Enumerations of the registry: schema types, compatibility levels and policies, modes."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

from danube.model.errors import InvalidArgumentError

__all__ = ["Level", "Mode", "Policy", "SchemaType", "parse_level", "parse_mode", "parse_policy", "parse_type"]


class SchemaType(Enum):
    """Types of schemas."""

    AVRO = "avro"
    JSON = "json_schema"
    PROTOBUF = "protobuf"
    STRING = "string"
    """UTF-8 text; the schema has no text of its own."""
    BYTES = "bytes"
    """Anything; the schema has no text of its own."""
    NUMBER = "number"
    """An integer or a floating-point number; the schema has no text of its own."""

    @property
    def is_plain(self) -> bool:
        """Whether schemas of this type have no text."""
        return self in (SchemaType.STRING, SchemaType.BYTES, SchemaType.NUMBER)


class Level(Enum):
    """Compatibility levels: which older versions a new version must be compatible with, and in which direction.

    BACKWARD: the new schema can read data of the old one. FORWARD: the old schema can read data of the new one. FULL:
    both. The transitive levels require that for all live versions of the subject, the others for the latest one.
    """

    NONE = "none"
    BACKWARD = "backward"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD = "forward"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL = "full"
    FULL_TRANSITIVE = "full_transitive"

    @property
    def is_transitive(self) -> bool:
        """Whether a new version is compared with all live versions instead of the latest one."""
        return self.value.endswith("_transitive")

    @property
    def base(self) -> Level:
        """The level without "transitive", for upstream's clients, which know no transitive levels."""
        return Level(self.value.removesuffix("_transitive"))

    @property
    def new_reads_old(self) -> bool:
        """Whether the new schema must be able to read data of the old one."""
        return self.base in (Level.BACKWARD, Level.FULL)

    @property
    def old_reads_new(self) -> bool:
        """Whether the old schema must be able to read data of the new one."""
        return self.base in (Level.FORWARD, Level.FULL)

    @property
    def title(self) -> str:
        """The name in messages and in REST: ``FULL_TRANSITIVE``."""
        return self.name


class Policy(Enum):
    """Rules for comparing the schemas of a subject. They differ for JSON Schema only."""

    STRICT = "strict"
    """As the specification of JSON Schema defines: unlisted properties may have any value."""
    LENIENT = "lenient"
    """Writers are assumed to write only listed properties, and readers to ignore unlisted ones."""
    UPSTREAM = "upstream"
    """The rules of upstream's registry, on which its clients rely: top-level properties, required properties, types.
    They contradict the other two policies."""


class Mode(Enum):
    """Changes permitted to a subject, or to the whole registry."""

    READWRITE = "readwrite"
    READONLY = "readonly"
    """Registering and deleting are refused."""
    READONLY_OVERRIDE = "readonly_override"
    """Of the registry: all subjects are read-only, regardless of their own modes."""
    IMPORT = "import"
    """Schemas are registered with given numbers and versions, from another registry, without compatibility checks."""


_TYPE_WORDS: Final = {each.value: each for each in SchemaType} | {
    "json": SchemaType.JSON,
    "proto": SchemaType.PROTOBUF,
    "int64": SchemaType.NUMBER,
    "int": SchemaType.NUMBER,
    "float": SchemaType.NUMBER,
    "double": SchemaType.NUMBER,
}

_Word = TypeVar("_Word", SchemaType, Level, Policy, Mode)


def _parse(what: str, words: dict[str, _Word], text: str) -> _Word:
    found = words.get(text.strip().lower().replace("-", "_"))
    if found is None:
        raise InvalidArgumentError(f"unknown {what} {text!r}; use one of: {', '.join(words)}")
    return found


def parse_type(text: str) -> SchemaType:
    """Return the schema type with a name, as used by upstream or Confluent, ignoring case.

    Raises:
        InvalidArgumentError: the name is unknown.
    """
    return _parse("schema type", _TYPE_WORDS, text)


def parse_level(text: str) -> Level:
    """Return the compatibility level with a name, such as ``FULL_TRANSITIVE``, ``full-transitive`` or ``full``.

    Raises:
        InvalidArgumentError: the name is unknown.
    """
    return _parse("compatibility level", {each.value: each for each in Level}, text)


def parse_policy(text: str) -> Policy:
    """Return the compatibility policy with a name.

    Raises:
        InvalidArgumentError: the name is unknown.
    """
    return _parse("compatibility policy", {each.value: each for each in Policy}, text)


def parse_mode(text: str) -> Mode:
    """Return the mode with a name; ``read-only`` is the same as ``readonly``.

    Raises:
        InvalidArgumentError: the name is unknown.
    """
    words = {each.value: each for each in Mode}
    return _parse("mode", words, text.lower().replace("read-", "read").replace("read_", "read"))
