"""Header compression shortcuts: a cache of repeated header blocks, and header blocks without a dynamic table.

**Repeats.** A client that repeats a call sends the same header block again, byte for byte, since all
variable data are in the message. The meaning of a block depends on the dynamic table shared by sender and receiver; so
a block that changes this table (it inserts an entry, or resizes) has its meaning only once, and one that does not keeps
its meaning until another block changes the table. :class:`Repeats` remembers the meanings of the latter.

**Literals.** A response's headers are written as literals without indexing and as entries of the static table. Such
a block neither needs nor changes a table, so its bytes can be cached, and mixed with blocks encoded by h2::

    :status: 200                  1000 1000                        indexed, static entry 8
    content-type: VALUE           0000 1111  0001 0000  VALUE      literal without indexing, name of static entry 31
    NAME: VALUE                   0000 0000  NAME  VALUE           literal without indexing

Text is its length, as an integer with a prefix of seven bits, and its bytes, not Huffman-coded (RFC 7541, 5 and 6).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from hpack import Decoder

__all__ = ["MAX_REPEATS", "MAX_REPEAT_BYTES", "Repeats", "literals"]

T = TypeVar("T")

# At level DEBUG the library logs every header, so that the log of a broker would contain the tokens of its clients.
logging.getLogger("hpack").setLevel(logging.INFO)

MAX_REPEATS = 16
"""Header blocks remembered for one connection."""
MAX_REPEAT_BYTES = 2048
"""A longer block is not remembered: a peer must not use much more memory than the table it shares."""

_MAX_7 = 0x7F


class Repeats(Generic[T]):
    """Meanings of header blocks, valid for the present state of one decoder's table."""

    __slots__ = ("_known", "_latest", "_table", "_table_bytes", "_table_entries")

    def __init__(self, decoder: Decoder) -> None:
        self._table: Any = decoder.header_table
        self._table_bytes = self._table_entries = -1
        self._latest: object = None
        self._known: dict[bytes, T] = {}
        self.changed()

    def get(self, block: bytes) -> T | None:
        """Return the meaning of a block, if known."""
        return self._known.get(block)

    def changed(self) -> bool:
        """Check the table after a block was decoded; if the block changed it, forget everything and return True."""
        # Every insertion puts a new object in front, or empties the table; a resize changes the sizes.
        table = self._table
        entries = table.dynamic_entries
        latest = entries[0] if entries else None
        if latest is self._latest and len(entries) == self._table_entries and table.maxsize == self._table_bytes:
            return False
        self._latest = latest
        self._table_entries = len(entries)
        self._table_bytes = table.maxsize
        self._known.clear()
        return True

    def learn(self, block: bytes, meaning: T) -> None:
        """Remember the meaning of a block that was just decoded and has not :meth:`changed` the table."""
        if len(block) <= MAX_REPEAT_BYTES:
            if len(self._known) >= MAX_REPEATS:
                self._known.clear()
            self._known[block] = meaning


def literals(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block that needs no table; names must be lower-case ASCII, values printable ASCII."""
    block = bytearray()
    for name, value in headers:
        if name == ":status" and value == "200":
            block.append(0x88)
            continue
        if name == "content-type":
            block += b"\x0f\x10"
        else:
            block.append(0)
            _text(block, name)
        _text(block, value)
    return bytes(block)


def _text(block: bytearray, text: str) -> None:
    data = text.encode("ascii")
    length = len(data)
    if length < _MAX_7:
        block.append(length)
    else:
        block.append(_MAX_7)
        length -= _MAX_7
        while length > _MAX_7:
            block.append(length & _MAX_7 | 0x80)
            length >>= 7
        block.append(length)
    block += data
