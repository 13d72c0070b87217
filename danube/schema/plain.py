"""Schemas without a text: strings, bytes, numbers."""

from __future__ import annotations

from dataclasses import dataclass

from danube.schema.kinds import Reason, Source
from danube.schema.modes import Policy, SchemaType

__all__ = ["PlainSchema", "parse"]


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """One of three schemas."""

    type: SchemaType

    @property
    def canonical(self) -> str:
        """Empty: the type says it all."""
        return ""

    @property
    def name(self) -> str:
        """Empty."""
        return ""

    def refuses(self, writer: PlainSchema, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return nothing: a schema of the same type is the same schema."""
        assert writer.type is self.type
        return []


def parse(source: Source) -> PlainSchema:
    """Return the schema. A text is not looked at: upstream's clients send what they like there."""
    return PlainSchema(source.type)
