"""Indexes of a registry that take little memory: most schemas have one subject, and are rarely read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView

from danube.schema.records import NumberRecord, decode

__all__ = ["Carriers", "Schemas"]


class Schemas:
    """Schemas by their numbers, as the bytes of their records: these belong to the store, and are not copied."""

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def get(self, number: int) -> NumberRecord | None:
        """Return the schema with a number; None: there is none."""
        record = self._records.get(number)
        return None if record is None else _decoded(number, record)

    def put(self, number: int, record: bytes | None) -> None:
        """Set the record of a number, which decodes; None removes it."""
        if record is None:
            self._records.pop(number, None)
        else:
            self._records[number] = record

    def __contains__(self, number: int) -> bool:
        return number in self._records

    def keys(self) -> KeysView[int]:
        """Return the numbers."""
        return self._records.keys()

    def items(self) -> Iterator[tuple[int, NumberRecord]]:
        """Yield numbers and schemas."""
        return ((number, _decoded(number, record)) for number, record in self._records.items())


def _decoded(number: int, record: bytes) -> NumberRecord:
    return decode(f"of number {number}", record, NumberRecord)


class Carriers:
    """Names of subjects by the number of a schema that they have."""

    def __init__(self) -> None:
        self._names: dict[int, str | set[str]] = {}
        """One name without a set."""

    def add(self, number: int, name: str) -> None:
        """Add a subject; no-op if it is there."""
        known = self._names.setdefault(number, name)
        if isinstance(known, set):
            known.add(name)
        elif known != name:
            self._names[number] = {known, name}

    def discard(self, number: int, name: str) -> None:
        """Remove a subject; no-op if it is not there."""
        known = self._names.get(number)
        if isinstance(known, set):
            known.discard(name)
            if len(known) == 1:
                (self._names[number],) = known
        elif known == name:
            del self._names[number]

    def of(self, number: int) -> Collection[str]:
        """Return the subjects that have a schema."""
        known = self._names.get(number)
        if known is None:
            return ()
        return known if isinstance(known, set) else (known,)
