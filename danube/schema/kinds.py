"""What a schema is, for code that does not care for its type: parsed, with a canonical text, comparable."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from danube.model.errors import InvalidSchemaError, SchemaTooLargeError
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits
from danube.schema.modes import Policy, SchemaType

__all__ = ["Compile", "Needed", "Parsed", "Reason", "Source", "decode_json", "encode_json", "missing", "parse"]


class Needed(msgspec.Struct, frozen=True, array_like=True):
    """A schema that another one refers to."""

    name: str
    """As the other one calls it: a full name in Avro, a URI in JSON Schema, a path of an import in protobuf."""
    text: str


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Everything that it takes to parse a schema."""

    type: SchemaType
    text: str
    needs: tuple[Needed, ...] = ()
    """The schemas that it refers to, and those that they refer to; what is needed comes before what needs it."""
    message: str = ""
    """The full name of the message that payloads are, in protobuf; empty: the first of the file."""


class Reason(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One reason why data of one schema cannot be read with another one."""

    kind: str
    """Stable, for machines: ``READER_FIELD_MISSING_DEFAULT_VALUE``."""
    path: str
    """Where in the schema: ``/fields/note``; ``/`` is all of it."""
    text: str
    """For people, complete without the other two: ``field 'note' has no default``."""


class Parsed(Protocol):
    """A schema that has been understood."""

    @property
    def type(self) -> SchemaType:
        """The language it is written in."""

    @property
    def canonical(self) -> str:
        """The same for all texts that say the same; what a schema is known by."""

    @property
    def name(self) -> str:
        """The full name of the record or message that payloads are; empty if the schema has none."""

    def refuses(self, writer: Any, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return why this schema does not read all that is written with another one of its type; empty if it does.

        Args:
            writer: The other schema.
            policy: By which rules, for types that have more than one set of them.
            is_forward: Whether the writer's schema is the newer one; only the policy UPSTREAM asks.
        """


Compile = Callable[[str, tuple[Needed, ...]], bytes]
"""Makes the ``FileDescriptorSet`` of the text of a .proto file, its own file last, and of what it imports. It runs a
compiler, so it is brought by the code that calls."""


def parse(source: Source, limits: SchemaLimits = DEFAULT_LIMITS, compile_proto: Compile | None = None) -> Parsed:
    """Return the schema of a text. The library for its type is imported now.

    Raises:
        InvalidSchemaError: it is no schema of this type, or what it refers to is not there.
        SchemaTooLargeError: a limit was hit; the message names it.
    """
    size = len(_utf8(source.text))
    if size > limits.max_schema_bytes:
        raise SchemaTooLargeError(f"the schema has {size} bytes; max_schema_bytes is {limits.max_schema_bytes}")
    if source.type is SchemaType.AVRO:
        from danube.schema import avro

        return avro.parse(source, limits)
    if source.type is SchemaType.JSON:
        from danube.schema import json

        return json.parse(source, limits)
    if source.type is SchemaType.PROTOBUF:
        from danube.schema import protobuf

        return protobuf.parse(source, limits, compile_proto)
    from danube.schema import plain

    return plain.parse(source)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidSchemaError("the schema is not Unicode text: it has half of a surrogate pair") from None


def missing(what: str, extra: str) -> InvalidSchemaError:
    """Return the error for a schema whose library is not installed."""
    return InvalidSchemaError(f"{what} is not installed where schemas are parsed: pip install 'danube-broker[{extra}]'")


_NOT_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+', re.DOTALL)


def decode_json(text: str, limits: SchemaLimits) -> Any:
    """Return what a JSON text says; how deep it may be nested is limited.

    Raises:
        InvalidSchemaError: it is not JSON.
        SchemaTooLargeError: it is nested too deeply.
    """
    depth = 0
    for each in _NOT_BRACKETS.sub("", text):
        depth += 1 if each in "[{" else -1
        if depth > limits.max_schema_depth:
            raise SchemaTooLargeError(
                f"the schema is nested too deeply: max_schema_depth is {limits.max_schema_depth} open brackets"
            )
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from error


def encode_json(value: Any) -> str:
    """Return a JSON text that is the same for the same value: keys sorted, no space."""
    return msgspec.json.encode(value, order="deterministic").decode()
