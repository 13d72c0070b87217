"""Checks of arguments given by an application: each raises InvalidArgumentError and names the invalid argument.

Type hints are not enforced, and values often come from configuration files and other code. Values that pass can be
sent: numbers fit into 64 bits, times are numbers, texts are Unicode.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from danube.model.errors import InvalidArgumentError

__all__ = [
    "LARGEST",
    "LONGEST_S",
    "check_count",
    "check_list",
    "check_mapping",
    "check_offset",
    "check_seconds",
    "check_text",
    "encoded",
    "plain",
]

LARGEST: Final = 2**63 - 1
"""The largest number, and the largest offset, of all arguments."""

LONGEST_S: Final = 1e9
"""The longest time of all arguments, in seconds: 31 years."""

_encode = msgspec.msgpack.Encoder().encode
_shown = reprlib.repr  # of a value of any type and size


def check_count(name: str, value: object, least: int = 0, most: int = LARGEST) -> int:
    """Return a whole number between two bounds."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(f"{name} = {_shown(value)} is not a whole number") from None
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise InvalidArgumentError(f"{name} = {_shown(number)} must be {bound}")
    return number


def check_offset(name: str, value: object) -> int:
    """Return an offset."""
    return check_count(name, value)


def check_seconds(name: str, value: object, *, zero: bool = False, most: float = LONGEST_S, limit: str = "") -> float:
    """Return a number of seconds greater than 0 (or at least 0), and at most ``most``, which is named by ``limit``."""
    fits = isinstance(value, int | float) and (value >= 0 if zero else value > 0) and value <= most
    if not fits:  # nan is refused, too
        least = "at least" if zero else "more than"
        bound = f"{limit} = {most:g}" if limit else f"{most:g}"
        raise InvalidArgumentError(
            f"{name} = {_shown(value)} is not a number of seconds, {least} 0 and at most {bound}"
        )
    return float(value)  # type: ignore[arg-type]


def check_text(name: str, value: object) -> str:
    """Return a text that is valid Unicode; JSON and file names may contain lone surrogates."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is text (str), not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} is {_shown(value)}, which is no Unicode text: it has half a character at index {error.start}"
        ) from None
    return value


def check_list(name: str, value: object, of: str) -> list[Any]:
    """Return the members of an iterable that is neither a text nor bytes, as a list."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgumentError(f"{name} = {_shown(value)} is not a list of {of}")
    return list(value)


def check_mapping(name: str, value: object, of: str) -> dict[Any, Any]:
    """Return a mapping as a dict."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} = {_shown(value)} is not a mapping of {of}")
    return dict(value)


def plain(name: str, value: object) -> Any:
    """Return a value that consists of plain ones (numbers, texts, lists and mappings), which can be sent."""
    try:
        found = msgspec.to_builtins(value)
        _encode(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"{name} cannot be sent: {error}") from None
    return found


def encoded(message: Any) -> bytes:
    """Return the encoded bytes of a message with arguments of an application."""
    try:
        return _encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"{type(message).__name__} cannot be sent: {error}") from error
