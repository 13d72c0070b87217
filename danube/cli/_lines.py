"""The messages of ``danube produce``: lines of a file or of standard input, or texts from the command line.

A line is a message, without its newline; a newline at the end of the input starts no further message. Lines are
processed in large blocks, because all later steps cost per block, not per line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError

__all__ = ["BLOCK_BYTES", "KeyField", "repeat_texts", "split_blocks"]

BLOCK_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes read at once."""

_REPEAT_RECORDS = 10_000


def split_blocks(descriptor: int, block_bytes: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Yield the lines of a file or pipe in blocks; a read of a pipe returns the available data, without delay.

    Raises:
        OSError: the file cannot be read.
    """
    pieces: list[bytes] = []  # of a line that continues in the next block
    while block := os.read(descriptor, block_bytes):
        lines = block.split(b"\n")
        rest = lines.pop()
        if lines:
            if pieces:
                lines[0] = b"".join((*pieces, lines[0]))
                pieces = []
            yield lines
        if rest:
            pieces.append(rest)
    if pieces:
        yield [b"".join(pieces)]


def repeat_texts(texts: Sequence[bytes], count: int) -> Iterator[list[bytes]]:
    """Yield ``count`` messages by repeating the given texts in turn."""
    whole_rounds = max(1, _REPEAT_RECORDS // len(texts))
    block = list(texts) * whole_rounds
    while count > 0:
        yield block[:count]
        count -= len(block)


class KeyField:
    """Extracts the key of a message from a field of its JSON object."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Decoding into a Struct of one field skips all the others without creating objects for them.
        holder = msgspec.defstruct("Line", [("key", str | int | float | bool | None, None)], rename={"key": name})
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(holder)

    def keys(self, lines: Sequence[bytes], first_line: int) -> list[str | None]:
        """Return the key of each line; None where the field is missing or null. Numbers are converted to text.

        Args:
            lines: one JSON object each.
            first_line: number of the first of them, for error messages.

        Raises:
            InvalidArgumentError: a line is not a JSON object, or the field is an object or an array.
        """
        decode = self._decoder.decode
        keys: list[str | None] = []
        try:
            for line in lines:
                key = decode(line).key
                keys.append(key if key is None or key.__class__ is str else _as_text(key))
        except UNDECODABLE as error:
            raise InvalidArgumentError(
                f"line {first_line + len(keys)}: cannot take the key from field {self._name!r}: {error}"
            ) from error
        return keys


def _as_text(key: float | bool) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)
