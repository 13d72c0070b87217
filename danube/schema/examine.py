"""The costly part of a registration: parse a schema and compare it with others.

It is a function of values that msgpack can carry, so that it may run in a process of its own: schemas come from
strangers, and the libraries that read them have seen fewer of those than they should.
"""

from __future__ import annotations

import msgspec

from danube.schema.kinds import Compile, Reason, Source, parse
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits
from danube.schema.modes import Level, Policy

__all__ = ["Examination", "Finding", "Objection", "Other", "examine"]


class Other(msgspec.Struct, frozen=True, array_like=True):
    """A version that a schema is compared with."""

    version: int
    number: int
    source: Source


class Examination(msgspec.Struct, frozen=True, array_like=True):
    """What is to be found out about a schema."""

    source: Source
    others: tuple[Other, ...]
    level: Level
    policy: Policy


class Objection(msgspec.Struct, frozen=True, array_like=True):
    """Why a schema does not go with one version, in one direction."""

    version: int
    level: Level
    """BACKWARD: the new schema does not read the version's data. FORWARD: the other way round. FULL: it is of another
    type, so neither does."""
    reason: Reason

    def __str__(self) -> str:
        return f"{self.level.title} with version {self.version}: {self.reason.text}"


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """What was found out."""

    canonical: str
    name: str
    """Full name of the record or message; empty if there is none."""
    descriptor: bytes
    """Protobuf: the ``FileDescriptorProto`` of the schema's own file. Others: empty."""
    objections: tuple[Objection, ...]
    basis: tuple[Level, Policy, tuple[tuple[int, int], ...]]
    """What the objections, or that there are none, rest on: level, policy, versions with their numbers."""


def examine(
    examination: Examination, limits: SchemaLimits = DEFAULT_LIMITS, compile_proto: Compile | None = None
) -> Finding:
    """Parse the schema, and compare it with the others as far as the level asks for it.

    Raises:
        InvalidSchemaError: the schema, or one of the others, is none.
        SchemaTooLargeError: a limit was hit; the message names it.
    """
    parsed = parse(examination.source, limits, compile_proto)
    level, policy = examination.level, examination.policy
    objections: list[Objection] = []
    for other in examination.others if level is not Level.NONE else ():
        if other.source.type is not examination.source.type:
            text = f"the schema is {examination.source.type.value}, that version is {other.source.type.value}"
            objections.append(Objection(other.version, Level.FULL, Reason("SCHEMA_TYPE_CHANGED", "/", text)))
            continue
        old = parse(other.source, limits, compile_proto)
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
