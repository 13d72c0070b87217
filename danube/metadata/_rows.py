"""How the rows of a mirror are kept in memory: as objects, or packed, for tables with very many rows. Pure.

Packed rows take a third of the memory: a row is one entry of one dict. Its key is a compact form of the name, and its
value the encoded record behind its revision. Reading a row decodes it, which takes about a microsecond::

    row    1 byte: n    n bytes: revision, little endian    the record, as in the store
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from danube.metadata._contract import KeyValue

__all__ = ["HexNames", "Names", "PackedRows", "PlainRows", "Rows", "TextNames", "released"]

T = TypeVar("T")
Key = bytes | int


_ITEMS_AT_A_TIME: Final = 1_000
_encode_items = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(list[KeyValue]).decode


def released(items: Sequence[KeyValue]) -> Iterator[KeyValue]:
    """Empty a list of items, and yield them.

    A list of all rows takes more memory than the rows. If it were released one by one, objects that stay would be
    created in its gaps, and none of its memory could be used for anything else. So it is encoded first.
    """
    if len(items) <= _ITEMS_AT_A_TIME or not isinstance(items, list):
        yield from items
        return
    parts = [_encode_items(items[begin : begin + _ITEMS_AT_A_TIME]) for begin in range(0, len(items), _ITEMS_AT_A_TIME)]
    items.clear()  # the caller may still hold the list
    parts.reverse()
    while parts:
        yield from _decode_items(parts.pop())


class Rows(ABC, Generic[T]):
    """Rows by name, each with its revision.

    Attributes:
        values: the rows as a mapping; always the same object.
    """

    values: Mapping[str, T]

    @abstractmethod
    def revision(self, name: str) -> int:
        """Return the revision of a row, 0 if there is none."""

    @abstractmethod
    def put(self, name: str, value: T, revision: int) -> None:
        """Create or replace a row."""

    @abstractmethod
    def remove(self, name: str) -> T:
        """Remove a row that exists, and return it."""

    @abstractmethod
    def every(self) -> Iterator[tuple[str, T, int]]:
        """Yield names, values and revisions."""

    @abstractmethod
    def batches(self, size: int) -> Iterator[list[tuple[str, T, int]]]:
        """Yield lists of so many of :meth:`every`. Between them rows may change: each is yielded as it is then."""

    @abstractmethod
    def revisions(self) -> Iterator[tuple[str, int]]:
        """Yield names and revisions."""


class PlainRows(Rows[T]):
    """Rows as objects: for tables that are read often."""

    __slots__ = ("_revisions", "_values", "values")

    def __init__(self) -> None:
        self._values: dict[str, T] = {}
        self._revisions: dict[str, int] = {}
        self.values = self._values

    def revision(self, name: str) -> int:
        """See :meth:`Rows.revision`."""
        return self._revisions.get(name, 0)

    def put(self, name: str, value: T, revision: int) -> None:
        """See :meth:`Rows.put`."""
        self._values[name] = value
        self._revisions[name] = revision

    def remove(self, name: str) -> T:
        """See :meth:`Rows.remove`."""
        del self._revisions[name]
        return self._values.pop(name)

    def every(self) -> Iterator[tuple[str, T, int]]:
        """See :meth:`Rows.every`."""
        for name, value in self._values.items():
            yield name, value, self._revisions[name]

    def batches(self, size: int) -> Iterator[list[tuple[str, T, int]]]:
        """See :meth:`Rows.batches`."""
        names = list(self._values)
        for begin in range(0, len(names), size):
            some = names[begin : begin + size]
            yield [(name, self._values[name], self._revisions[name]) for name in some if name in self._values]

    def revisions(self) -> Iterator[tuple[str, int]]:
        """See :meth:`Rows.revisions`."""
        yield from self._revisions.items()


class Names(ABC):
    """A compact form of the names of rows."""

    @abstractmethod
    def pack(self, name: str) -> Key | None:
        """Return the compact form of a name; None if no row can have this name."""

    @abstractmethod
    def unpack(self, key: Key) -> str:
        """Return the name."""


class TextNames(Names):
    """Any names, as UTF-8."""

    def pack(self, name: str) -> Key | None:
        """See :meth:`Names.pack`."""
        return name.encode()

    def unpack(self, key: Key) -> str:
        """See :meth:`Names.unpack`."""
        assert isinstance(key, bytes)
        return key.decode()


class HexNames(Names):
    """Numbers with a fixed number of hexadecimal digits, in lower case.

    Args:
        digits: of each name. A row with another name cannot be kept.
    """

    def __init__(self, digits: int) -> None:
        self._digits: Final = digits

    def pack(self, name: str) -> Key | None:
        """See :meth:`Names.pack`."""
        try:
            number = int(name, 16)
        except ValueError:
            return None
        return number if self.unpack(number) == name else None

    def unpack(self, key: Key) -> str:
        """See :meth:`Names.unpack`."""
        assert isinstance(key, int)
        return f"{key:0{self._digits}x}"


class PackedRows(Rows[T]):
    """Rows as bytes; see the module.

    Args:
        names: the compact form of their names.
        encode, decode: of their values.
    """

    __slots__ = ("_decode", "_encode", "_names", "_rows", "values")

    def __init__(self, names: Names, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._names = names
        self._encode = encode
        self._decode = decode
        self._rows: dict[Key, bytes] = {}
        self.values = _Values(self._rows, names, self._value)

    def _value(self, row: bytes) -> T:
        return self._decode(row[row[0] + 1 :])

    def revision(self, name: str) -> int:
        """See :meth:`Rows.revision`."""
        key = self._names.pack(name)
        row = self._rows.get(key) if key is not None else None
        return _revision(row) if row is not None else 0

    def put(self, name: str, value: T, revision: int) -> None:
        """See :meth:`Rows.put`.

        Raises:
            ValueError: the name has no compact form.
        """
        key = self._names.pack(name)
        if key is None:
            raise ValueError(f"{name!r} is not a name of such a row")
        size = (revision.bit_length() + 7) // 8
        self._rows[key] = bytes((size,)) + revision.to_bytes(size, "little") + self._encode(value)

    def remove(self, name: str) -> T:
        """See :meth:`Rows.remove`."""
        key = self._names.pack(name)
        if key is None:
            raise KeyError(name)
        return self._value(self._rows.pop(key))

    def every(self) -> Iterator[tuple[str, T, int]]:
        """See :meth:`Rows.every`."""
        for key, row in self._rows.items():
            yield self._names.unpack(key), self._value(row), _revision(row)

    def batches(self, size: int) -> Iterator[list[tuple[str, T, int]]]:
        """See :meth:`Rows.batches`."""
        keys = list(self._rows)
        for begin in range(0, len(keys), size):
            some = [(key, self._rows.get(key)) for key in keys[begin : begin + size]]
            yield [(self._names.unpack(key), self._value(row), _revision(row)) for key, row in some if row is not None]

    def revisions(self) -> Iterator[tuple[str, int]]:
        """See :meth:`Rows.revisions`."""
        for key, row in self._rows.items():
            yield self._names.unpack(key), _revision(row)


def _revision(row: bytes) -> int:
    return int.from_bytes(row[1 : row[0] + 1], "little")


class _Values(Mapping[str, T]):
    """The values of packed rows."""

    __slots__ = ("_names", "_rows", "_value")

    def __init__(self, rows: Mapping[Key, bytes], names: Names, value: Callable[[bytes], T]) -> None:
        self._rows = rows
        self._names = names
        self._value = value

    def __getitem__(self, name: str) -> T:
        key = self._names.pack(name)
        row = self._rows.get(key) if key is not None else None
        if row is None:
            raise KeyError(name)
        return self._value(row)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        key = self._names.pack(name)
        return key is not None and key in self._rows

    def __iter__(self) -> Iterator[str]:
        return map(self._names.unpack, self._rows)

    def __len__(self) -> int:
        return len(self._rows)
