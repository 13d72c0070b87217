"""The words of the registry: types of schemas, levels and policies of compatibility, modes."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

from danube.model.errors import InvalidArgumentError

__all__ = ["Level", "Mode", "Policy", "SchemaType", "parse_level", "parse_mode", "parse_policy", "parse_type"]


class SchemaType(Enum):
    """What language a schema is written in."""

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
    """What a new version must be compatible with; the names are those of the field.

    BACKWARD: who has the new schema reads what was written with the old one. FORWARD: who has the old schema reads what
    is written with the new one. FULL: both. The transitive levels ask for that with all live versions of the subject,
    the others with the latest.
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
        """Whether all live versions count instead of the latest."""
        return self.value.endswith("_transitive")

    @property
    def base(self) -> Level:
        """The level without "transitive": all that upstream's clients know."""
        return Level(self.value.removesuffix("_transitive"))

    @property
    def new_reads_old(self) -> bool:
        """Whether the new schema has to read what was written with an old one."""
        return self.base in (Level.BACKWARD, Level.FULL)

    @property
    def old_reads_new(self) -> bool:
        """Whether an old schema has to read what is written with the new one."""
        return self.base in (Level.FORWARD, Level.FULL)

    @property
    def title(self) -> str:
        """The name as messages and REST have it: ``FULL_TRANSITIVE``."""
        return self.name


class Policy(Enum):
    """By which rules schemas of a subject are compared. Only JSON Schema knows more than one set of rules."""

    STRICT = "strict"
    """A schema means what its specification says: properties that it does not list may have any value."""
    LENIENT = "lenient"
    """Writers write only properties that their schema lists, readers ignore those that theirs does not list."""
    UPSTREAM = "upstream"
    """Exactly what upstream compares in a JSON Schema: top-level properties, what is required, types. It contradicts
    the other two; upstream's clients rely on it."""


class Mode(Enum):
    """What may be done to a subject, or to all."""

    READWRITE = "readwrite"
    READONLY = "readonly"
    """Nothing is registered or deleted."""
    READONLY_OVERRIDE = "readonly_override"
    """For all subjects at once: readonly, whatever their own modes are."""
    IMPORT = "import"
    """Schemas come with numbers and versions of their own, from another registry, and are not compared."""


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
    """Return the type that a word names: upstream's words, and Confluent's; upper and lower case are the same.

    Raises:
        InvalidArgumentError: it names no type.
    """
    return _parse("schema type", _TYPE_WORDS, text)


def parse_level(text: str) -> Level:
    """Return the compatibility level that a word names: ``FULL_TRANSITIVE``, ``full-transitive``, ``full``.

    Raises:
        InvalidArgumentError: it names no level.
    """
    return _parse("compatibility level", {each.value: each for each in Level}, text)


def parse_policy(text: str) -> Policy:
    """Return the compatibility policy that a word names.

    Raises:
        InvalidArgumentError: it names no policy.
    """
    return _parse("compatibility policy", {each.value: each for each in Policy}, text)


def parse_mode(text: str) -> Mode:
    """Return the mode that a word names; ``read-only`` is ``readonly``.

    Raises:
        InvalidArgumentError: it names no mode.
    """
    words = {each.value: each for each in Mode}
    return _parse("mode", words, text.lower().replace("read-", "read").replace("read_", "read"))
