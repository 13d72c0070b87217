"""Parses a schema and compares it with others: the expensive part of a registration.

Input and result can be encoded in msgpack, so that this can run in a separate process: schemas are untrusted, and the
libraries that parse them are not hardened against hostile input.
"""

from __future__ import annotations

import msgspec

from danube.schema.kinds import Compile, Reason, Source, parse
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits
from danube.schema.modes import Level, Policy

__all__ = ["Examination", "Finding", "Objection", "Other", "examine"]


class Other(msgspec.Struct, frozen=True, array_like=True):
    """A version to compare the schema with."""

    version: int
    number: int
    source: Source


class Examination(msgspec.Struct, frozen=True, array_like=True):
    """A schema to parse, and the versions to compare it with."""

    source: Source
    others: tuple[Other, ...]
    level: Level
    policy: Policy


class Objection(msgspec.Struct, frozen=True, array_like=True):
    """Why a schema is incompatible with one version, in one direction."""

    version: int
    level: Level
    """BACKWARD: the new schema cannot read data of the version. FORWARD: the reverse. FULL: the types differ, so
    neither schema can read data of the other."""
    reason: Reason

    def __str__(self) -> str:
        return f"{self.level.title} with version {self.version}: {self.reason.text}"


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """The result of an examination."""

    canonical: str
    name: str
    """Full name of the record or message; empty if the schema has none."""
    descriptor: bytes
    """Protobuf: the ``FileDescriptorProto`` of the schema's own file. Others: empty."""
    objections: tuple[Objection, ...]
    basis: tuple[Level, Policy, tuple[tuple[int, int], ...]]
    """What was compared: level, policy, and the versions with their schema numbers. If it has changed since,
    registering is refused."""


def examine(
    examination: Examination, limits: SchemaLimits = DEFAULT_LIMITS, compile_proto: Compile | None = None
) -> Finding:
    """Parse the schema, and compare it with the others as the level requires.

    Args:
        examination: what to do.
        limits: of the schema; the others were accepted before.
        compile_proto: compiles .proto files; None: these are refused.

    Raises:
        InvalidSchemaError: the schema, or one of the others, is invalid.
        SchemaTooLargeError: a limit was hit; the message names it.
    """
    parsed = parse(examination.source, limits, compile_proto)
    level, policy = examination.level, examination.policy
    objections: list[Objection] = []
    for other in examination.others if level is not Level.NONE else ():
        if other.source.type is not examination.source.type:
            text = f"the schema has type {examination.source.type.value}, that version {other.source.type.value}"
            objections.append(Objection(other.version, Level.FULL, Reason("SCHEMA_TYPE_CHANGED", "/", text)))
            continue
        old = parse(other.source, DEFAULT_LIMITS, compile_proto)
        if level.new_reads_old:
            objections += [Objection(other.version, Level.BACKWARD, reason) for reason in parsed.refuses(old, policy)]
        if level.old_reads_new:
            objections += [
                Objection(other.version, Level.FORWARD, reason)
                for reason in old.refuses(parsed, policy, is_forward=True)
            ]
    basis = (level, policy, tuple((other.version, other.number) for other in examination.others))
    descriptor = getattr(parsed, "descriptor", b"")
    return Finding(parsed.canonical, parsed.name, descriptor, tuple(objections), basis)
