"""Schemas of the types without a text: string, bytes, number."""

from __future__ import annotations

from dataclasses import dataclass

from danube.schema.kinds import Reason, Source
from danube.schema.modes import Policy, SchemaType

__all__ = ["PlainSchema", "parse"]


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """A schema of one of the types without a text."""

    type: SchemaType

    @property
    def canonical(self) -> str:
        """Empty: all schemas of the type are equal."""
        return ""

    @property
    def name(self) -> str:
        """Empty."""
        return ""

    def refuses(self, writer: PlainSchema, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return no reasons: schemas of the same type are equal."""
        assert writer.type is self.type
        return []


def parse(source: Source) -> PlainSchema:
    """Return the schema. The text is ignored: upstream's clients may send any."""
    return PlainSchema(source.type)
