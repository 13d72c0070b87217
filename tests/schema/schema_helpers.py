"""Short names for tests of schemas, and a store that keeps a book's records."""

from __future__ import annotations

import json
from typing import Any

from danube.model.errors import MetadataConflictError
from danube.schema import (
    Book,
    Change,
    Finding,
    Level,
    Needed,
    Parsed,
    Policy,
    Proposal,
    Registered,
    SchemaLimits,
    SchemaType,
    Source,
    examine,
    parse,
)

LIMITS = SchemaLimits()


def text_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def avro(schema: Any, *needs: Any) -> Parsed:
    """An Avro schema from what JSON says; a bare word is the name of a type."""
    needed = tuple(Needed(f"r{index}", json.dumps(each)) for index, each in enumerate(needs))
    return parse(Source(SchemaType.AVRO, json.dumps(schema), needed))


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """An Avro record with fields ``(name, type)`` or ``(name, type, default)``, or as they are."""
    made = [
        each if isinstance(each, dict) else dict(zip(("name", "type", "default"), each, strict=False))
        for each in fields
    ]
    return {"type": "record", "name": name, "fields": made, **more}


def kinds(reader: Parsed, writer: Parsed, policy: Policy = Policy.STRICT) -> list[str]:
    """Why the reader does not read what the writer writes, in one word each."""
    return [reason.kind for reason in reader.refuses(writer, policy)]


class Registry:
    """A store with revisions, and two books over it, of which the second may be behind."""

    def __init__(self, limits: SchemaLimits = LIMITS) -> None:
        self.limits = limits
        self.keys: dict[str, tuple[bytes, int]] = {}
        self.history: list[tuple[str, bytes | None, int]] = []
        self.revision = 0
        self.book = Book(limits)
        self.late = Book(limits)
        self._late_until = 0

    def commit(self, change: Change) -> None:
        """Write a change, or raise what the broker's store raises."""
        for key, revision in change.conditions:
            if self.keys.get(key, (b"", 0))[1] != revision:
                raise MetadataConflictError(key)
        if change.is_empty:
            return
        self.revision += 1
        for key, value in change.puts:
            self.keys[key] = (value, self.revision)
            self._tell(key, value)
        for key in change.deletes:
            del self.keys[key]
            self._tell(key, None)

    def _tell(self, key: str, value: bytes | None) -> None:
        self.history.append((key, value, self.revision))
        self.book.apply(key, value, self.revision)

    def catch_up(self) -> None:
        for event in self.history[self._late_until :]:
            self.late.apply(*event)
        self._late_until = len(self.history)

    def listed(self) -> Book:
        """A book of what the store has now, as a broker that starts makes it."""
        book = Book(self.limits)
        for key, (value, revision) in sorted(self.keys.items()):
            book.apply(key, value, revision)
        return book

    def examined(self, proposal: Proposal, level: Level | None = None) -> Finding:
        return examine(self.book.examination(proposal, level), self.limits)

    def register(self, subject: str, schema: Any, kind: SchemaType = SchemaType.AVRO, **more: Any) -> Registered:
        names = ("references", "message", "metadata", "rules")
        said = {name: more.pop(name) for name in names if name in more}
        proposal = Proposal(subject=subject, type=kind, text=text_of(schema), **said)
        finding = self.examined(proposal)
        registered = self.book.register(proposal, finding, now_ms=more.pop("now_ms", 7), **more)
        self.commit(registered.change)
        return registered

    def proposal(self, subject: str, schema: Any, kind: SchemaType = SchemaType.AVRO, **more: Any) -> Proposal:
        return Proposal(subject=subject, type=kind, text=text_of(schema), **more)
