"""Positions in a topic, in the notation of the command line: ``earliest``, ``latest``, an offset, or a time."""

from __future__ import annotations

import datetime
from typing import Final

from danube.cli._durations import parse_duration
from danube.model.errors import InvalidArgumentError
from danube.model.policies import EARLIEST, LATEST

__all__ = ["parse_position", "parse_time"]


_AGO: Final = " ago"
_MOST_DIGITS: Final = 19
"""Maximum digits of an offset, which has 64 bits."""


def parse_position(text: str) -> str | int | datetime.datetime:
    """Parse a position; a time without a zone is UTC, ``2h ago`` is before now.

    Raises:
        InvalidArgumentError: the text is not a position.
    """
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    try:
        return _moment(text)
    except ValueError:
        raise InvalidArgumentError(
            f"position {text!r} is not earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z (ISO 8601), or"
            " '2h ago'"
        ) from None


def _length(text: str) -> float:
    try:
        seconds = parse_duration(text)
        datetime.timedelta(seconds=seconds)
    except OverflowError as error:
        raise InvalidArgumentError(f"{text!r} is too long") from error
    return seconds


def parse_time(text: str) -> datetime.datetime:
    """Parse an ISO 8601 time; one without a zone is UTC.

    Raises:
        InvalidArgumentError: the text is not a time.
    """
    try:
        return _moment(text)
    except ValueError:
        raise InvalidArgumentError(f"{text!r} is not an ISO 8601 time such as 2026-01-31T12:00:00Z") from None


def _moment(text: str) -> datetime.datetime:
    ago = text.strip().removesuffix(_AGO)
    if ago != text.strip():
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=_length(ago))
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
