"""Where the records of TLS begin, in the bytes that a connection brings. Pure.

OpenSSL does not say how many records a piece of input had, nor how many of them carried no data (updates of keys,
empty records). Their headers are readable without the keys::

    0      type of the content   1
    1      version               2
    3      length of the rest    2, big endian
"""

from __future__ import annotations

from typing import Final

__all__ = ["Records"]

_HEADER: Final = 5


class Records:
    """Follows the records of one direction, from the beginning of one on."""

    __slots__ = ("_ahead", "_header")

    def __init__(self) -> None:
        self._ahead = 0
        """Bytes of the current record that are still to come."""
        self._header = b""
        """The beginning of a header whose end is still to come."""

    def cut(self, data: bytes, begin: int, most: int) -> tuple[int, int]:
        """Find the next records.

        Args:
            data: the next bytes.
            begin: where to begin in them: 0, or where the last cut in them was.
            most: how many records may begin before the cut; at least 1.

        Returns:
            The position of the cut, at a boundary of records or the end of the data; and how many records have begun:
            those whose header is complete.
        """
        size, begun, position = len(data), 0, begin + self._ahead
        if not position and not self._header and size >= _HEADER:
            position = _HEADER + (data[3] << 8 | data[4])
            if position == size:
                return size, 1  # most reads of small messages bring one record
            begun = 1
        elif self._header:
            missing = _HEADER - len(self._header)
            self._header += data[begin : begin + missing]
            if len(self._header) < _HEADER:
                return size, 0
            position = begin + missing + int.from_bytes(self._header[3:], "big")
            begun, self._header = 1, b""
        while begun < most and position + _HEADER <= size:
            position += _HEADER + (data[position + 3] << 8 | data[position + 4])
            begun += 1
        if position + _HEADER <= size:
            self._ahead = 0
            return position, begun
        self._ahead = max(0, position - size)
        self._header = data[position:]
        return size, begun
