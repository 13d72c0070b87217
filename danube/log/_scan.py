"""Sequential scan of journal files at disk speed: finds valid blocks, and the holes between them.

A scan reads a few MiB at a time, verifies each block with one checksum call, and does not parse its entries. Where
there is no valid block it reports a hole, and continues at the next block header of the same file and generation, if
any. The reads are actions (:mod:`danube.log._actions`). Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from danube.log._actions import Read, Steps
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    BLOCK_MAGIC,
    FILE_HEADER_SIZE,
    Block,
    Fault,
    find_block,
    read_block,
    read_block_header,
)
from danube.model.limits import MIB

__all__ = ["Found", "Hole", "Scanner"]

READ_BYTES: Final = 4 * MIB


class Found(NamedTuple):
    """A valid block: its position in the file, and in ``data``, a buffer that holds all of it."""

    position: int
    block: Block
    data: bytes


class Hole(NamedTuple):
    """``[start, end)`` of a file holds no valid block; ``torn_bytes``: intended length of the block begun there."""

    start: int
    end: int
    torn_bytes: int


class _Window:
    """A sliding buffer over a file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start = 0
        self.data = b""
        self.at_end = False

    def extend(self, position: int, size: int) -> Steps[None]:
        """Drop bytes before ``position`` and read on until ``size`` bytes from there are in the buffer."""
        wanted = max(READ_BYTES, size)
        keep = self.data[position - self.start :] if position < self.start + len(self.data) else b""
        more: bytes = yield Read(self._name, position + len(keep), wanted - len(keep))
        self.at_end = len(more) < wanted - len(keep)
        self.data = keep + more
        self.start = position


class Scanner:
    """Finds the valid blocks of a file and the holes between them; the clean end of the log is not reported as a hole.

    Args:
        name: of the file.
        generation: its id.
        start, end: scan only this range (default: all).
        last: the last sequence that this file is known to hold; the scan stops behind it. None: unknown, so everything
            up to the end of the file is searched for another block.
    """

    def __init__(
        self,
        name: str,
        generation: int,
        *,
        start: int = FILE_HEADER_SIZE,
        end: int | None = None,
        last: int | None = None,
    ) -> None:
        self._window = _Window(name)
        self._generation = generation
        self._position = start
        self._end = end
        self._last = last
        self._sequence = 0
        self._done = False

    def next(self) -> Steps[Found | Hole | None]:
        """Return the next block or hole, None at the end."""
        window, position = self._window, self._position
        if self._done or position == self._end:
            return None
        while (result := _read(window, position, self._generation)) is Fault.SHORT:
            if not (yield from _more(window, position, self._generation)):
                result = Fault.BAD
                break
        if isinstance(result, Block):
            if result.sequence > self._sequence:
                self._sequence = result.sequence
                self._position = position + result.length
                return Found(position, result, window.data)
            result = Fault.BAD
        if self._last is not None and self._sequence >= self._last:
            self._done = True
            return None
        torn_bytes = _begun(window.data, position - window.start, self._generation)
        found = yield from _search(window, position + 1, self._generation, self._sequence)
        if found is None:
            self._done = True
            if result is Fault.BAD or self._last is not None:
                return Hole(position, window.start + len(window.data), torn_bytes)
            return None
        self._position = found
        return Hole(position, found, torn_bytes)


def _read(window: _Window, position: int, generation: int) -> Block | Fault:
    return read_block(window.data, position - window.start, generation) if window.data else Fault.SHORT


def _more(window: _Window, position: int, generation: int) -> Steps[bool]:
    """Read the missing bytes of the block at ``position``; return whether any could be read."""
    size = BLOCK_HEADER_SIZE
    if window.data:
        block = read_block_header(window.data, position - window.start, generation)
        if isinstance(block, Block):
            size = block.length
        if window.at_end:
            return False
    have = window.start + len(window.data) - position
    yield from window.extend(position, size)
    return len(window.data) > max(have, 0)


def _search(window: _Window, position: int, generation: int, sequence: int) -> Steps[int | None]:
    """Return the position of the next block header of this generation with a higher sequence."""
    while True:
        block = find_block(window.data, position - window.start, generation)
        if block is not None:
            position = window.start + block.position
            if block.sequence > sequence:
                return position
            position += 1
            continue
        if window.at_end:
            return None
        position = max(position, window.start + len(window.data) - BLOCK_HEADER_SIZE + 1)
        yield from window.extend(position, READ_BYTES)


def _begun(data: bytes, at: int, generation: int) -> int:
    """Return the intended length of the block of this generation that starts here, 0 if none does."""
    if data[at : at + 4] == BLOCK_MAGIC and data[at + 8 : at + 16] == generation.to_bytes(8, "little"):
        return max(BLOCK_HEADER_SIZE, int.from_bytes(data[at + 4 : at + 8], "little"))
    return 0
