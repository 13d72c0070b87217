"""Checks of arguments given by an application: each raises InvalidArgumentError and names the invalid argument.

Type hints are not enforced, and values often come from configuration files and other code. Values that pass can be
sent: numbers fit into 64 bits, times are numbers, texts are Unicode.
"""

from __future__ import annotations

import enum
import operator
import reprlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from danube.model.errors import InvalidArgumentError
from danube.model.policies import EARLIEST, LATEST, Durability

__all__ = [
    "LARGEST",
    "LONGEST_S",
    "as_durability",
    "check_count",
    "check_list",
    "check_mapping",
    "check_offset",
    "check_seconds",
    "check_text",
    "choice",
    "encoded",
    "plain",
    "start_position",
]

E = TypeVar("E", bound=enum.Enum)

LARGEST: Final = 2**63 - 1
"""The largest number, and the largest offset, of all arguments."""

LONGEST_S: Final = 1e9
"""The longest time of all arguments, in seconds: 31 years."""

_encode = msgspec.msgpack.Encoder().encode
_shown = reprlib.repr  # shortens values of any type and size


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
            f"{name} is {_shown(value)}, which is not valid Unicode: it has a lone surrogate at index {error.start}"
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
    """Convert a value to numbers, texts, lists and mappings, which can be sent."""
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


def start_position(start: str | int | datetime) -> tuple[str | int, int]:
    """Return ``(position, time_us)`` for ``"earliest"``, ``"latest"``, an offset, or a date with a time zone.

    Raises:
        InvalidArgumentError: anything else.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgumentError(f"start {start} has no time zone; use datetime(..., tzinfo=timezone.utc)")
        return LATEST, max(1, round(start.timestamp() * 1_000_000))
    if isinstance(start, str) and start in (EARLIEST, LATEST):
        return start, 0
    if type(start) is int and start >= 0:
        return check_offset("start", start), 0
    raise InvalidArgumentError(f"start {reprlib.repr(start)} is not 'earliest', 'latest', an offset >= 0 or a datetime")


def as_durability(name: Durability | str | None) -> Durability | None:
    """Return the durability of that name; None stays None.

    Raises:
        InvalidArgumentError: there is no such durability.
    """
    return None if name is None else choice(Durability, "durability", name)


def choice(kind: type[E], option: str, value: E | str) -> E:
    """Return the member of ``kind`` for ``value``.

    Raises:
        InvalidArgumentError: the value is invalid.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(one.value) for one in kind)
        raise InvalidArgumentError(f"{option} {reprlib.repr(value)} is unknown; known are {known}") from None
