r"""The format language of ``danube consume --format``, in the manner of kcat and rpk.

    %t topic      %p partition   %o offset         %k key          %v payload
    %T publish time (ISO 8601)   %a attributes (JSON)              %n delivery attempt
    %P producer   %S payload size in bytes         %% a percent sign
    \n \t \r \0 \\ and \xHH are the usual characters; \c at the very end means "no newline"

Each message is followed by a newline, unless the format itself ends in ``\n``, ``\0`` or ``\c``. Payloads and keys come
out as the bytes they are; a missing key is empty.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from danube.model.errors import InvalidArgumentError

__all__ = ["Formatter", "Shown", "compile_format", "iso_time"]


class Shown(Protocol):
    """The fields of a message that a format uses."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key_bytes(self) -> bytes | None: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def attributes(self) -> Any: ...
    @property
    def publish_time_us(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def producer(self) -> str: ...


Formatter = Callable[[Shown], bytes]
"""Converts a message to the bytes to print, newline included."""


def iso_time(time_us: int) -> str:
    """Format microseconds since the epoch as ``2026-01-31T12:00:00.000000Z``."""
    seconds, rest_us = divmod(time_us, 1_000_000)
    return f"{_iso_second(seconds)}.{rest_us:06d}Z"


@functools.lru_cache(maxsize=256)
def _iso_second(seconds: int) -> str:
    # Messages arrive in the order of their times: formatting a date for each would dominate the cost.
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


_FIELDS: Final[dict[str, Formatter]] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "k": lambda message: message.key_bytes or b"",
    "v": lambda message: message.payload,
    "T": lambda message: iso_time(message.publish_time_us).encode(),
    "a": lambda message: msgspec.json.encode(message.attributes or {}),
    "n": lambda message: b"%d" % message.attempt,
    "P": lambda message: message.producer.encode(),
    "S": lambda message: b"%d" % len(message.payload),
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def compile_format(text: str) -> Formatter:
    r"""Compile a format once, so that each message costs a few calls and one join.

    Raises:
        InvalidArgumentError: unknown or incomplete ``%`` or ``\\`` sequence.
    """
    pieces: list[bytes | Formatter] = []
    newline = True
    position = 0
    while position < len(text):
        character = text[position]
        sequence = text[position : position + 2]
        newline = True
        if character == "%":
            pieces.append(_field(sequence, text))
        elif sequence == "\\x":
            sequence = text[position : position + 4]
            pieces.append(_hexadecimal(sequence, text))
        elif sequence == "\\c" and position + 2 == len(text):
            newline = False
        elif character == "\\":
            pieces.append(_escape(sequence, text))
            newline = sequence not in ("\\n", "\\0")
        else:
            sequence = character
            pieces.append(character.encode("utf-8", "surrogateescape"))
            newline = character != "\n"
        position += len(sequence)
    if newline:
        pieces.append(b"\n")
    return _join(_merge_literals(pieces))


def _field(sequence: str, text: str) -> bytes | Formatter:
    if sequence == "%%":
        return b"%"
    if sequence[1:] not in _FIELDS:
        known = " ".join(f"%{letter}" for letter in _FIELDS)
        raise InvalidArgumentError(f"format {text!r}: {sequence!r} means nothing; known are {known} and %%")
    return _FIELDS[sequence[1:]]


def _escape(sequence: str, text: str) -> bytes:
    if sequence[1:] not in _ESCAPES:
        raise InvalidArgumentError(
            f"format {text!r}: {sequence!r} means nothing; known are \\n \\t \\r \\0 \\\\ \\xHH, and \\c at the end"
        )
    return _ESCAPES[sequence[1:]]


def _hexadecimal(sequence: str, text: str) -> bytes:
    digits = sequence[2:]
    if len(digits) != 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise InvalidArgumentError(f"format {text!r}: {sequence!r} needs two hexadecimal digits after \\x")
    return bytes.fromhex(digits)


def _merge_literals(pieces: list[bytes | Formatter]) -> list[bytes | Formatter]:
    merged: list[bytes | Formatter] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _join(pieces: list[bytes | Formatter]) -> Formatter:
    def show(message: Shown) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(message) for piece in pieces])

    return show
