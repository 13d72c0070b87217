"""The common interface of parsed schemas of all types, and parsing by type."""

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
    """The name by which the other schema refers to it: a full name in Avro, a URI in JSON Schema, an import path in
    protobuf."""
    text: str


class Source(msgspec.Struct, frozen=True, array_like=True):
    """The text of a schema, and everything else that is needed to parse it."""

    type: SchemaType
    text: str
    needs: tuple[Needed, ...] = ()
    """All directly and indirectly referenced schemas, each before the schemas that refer to it."""
    message: str = ""
    """Protobuf: the full name of the message type of payloads; empty: the first one of the file."""


class Reason(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One reason why data of one schema cannot be read with another one."""

    kind: str
    """Stable, for machines: ``READER_FIELD_MISSING_DEFAULT_VALUE``."""
    path: str
    """Location in the schema, for example ``/fields/note``; ``/`` is the whole schema."""
    text: str
    """Text for people, complete without the other fields: ``field 'note' has no default``."""


class Parsed(Protocol):
    """A parsed schema."""

    @property
    def type(self) -> SchemaType:
        """Type of the schema."""

    @property
    def canonical(self) -> str:
        """Canonical text: equal for all texts with the same meaning. It identifies the schema."""

    @property
    def name(self) -> str:
        """The full name of the record or message type of payloads; empty if the schema has none."""

    def refuses(self, writer: Any, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return the reasons why this schema cannot read data of another one of its type; empty if it can.

        Args:
            writer: The other schema.
            policy: The rules of the comparison, for types with several sets of rules.
            is_forward: Whether the writer's schema is the newer one; used by the policy UPSTREAM only.
        """


Compile = Callable[[str, tuple[Needed, ...]], bytes]
"""Compiles the text of a .proto file and its imports into a ``FileDescriptorSet``, with the file itself last. The
caller provides it, because it runs a compiler."""


def parse(source: Source, limits: SchemaLimits = DEFAULT_LIMITS, compile_proto: Compile | None = None) -> Parsed:
    """Parse a schema. Imports the library for its type.

    Raises:
        InvalidSchemaError: the text is not a schema of this type, or a reference has no target.
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
        raise InvalidSchemaError("the schema is not Unicode text: it contains a lone surrogate") from None


def missing(what: str, extra: str) -> InvalidSchemaError:
    """Return the error for a schema whose library is not installed."""
    return InvalidSchemaError(
        f"{what} is not installed, but needed to parse the schema: pip install 'danube-broker[{extra}]'"
    )


_NOT_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+', re.DOTALL)


def decode_json(text: str, limits: SchemaLimits) -> Any:
    """Decode a JSON text, with limited nesting depth.

    Raises:
        InvalidSchemaError: it is not JSON.
        SchemaTooLargeError: it is nested too deeply.
    """
    depth = 0
    for each in _NOT_BRACKETS.sub("", text):
        depth += 1 if each in "[{" else -1
        if depth > limits.max_schema_depth:
            raise SchemaTooLargeError(
                f"the schema is nested too deeply: max_schema_depth is {limits.max_schema_depth} brackets"
            )
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from error


def encode_json(value: Any) -> str:
    """Return the JSON text of a value in a canonical form: sorted keys, no spaces."""
    return msgspec.json.encode(value, order="deterministic").decode()
