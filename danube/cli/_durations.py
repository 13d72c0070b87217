"""Durations in the notation of the command line: ``45s``, ``30m``, ``12h``, ``7d``, ``2w``; never a bare number."""

from __future__ import annotations

import re
from typing import Final

from danube.model.errors import InvalidArgumentError

__all__ = ["human_duration", "parse_duration"]

_DURATION: Final = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([smhdw]?)\s*", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_duration(text: str) -> float:
    """Convert ``7d``, ``90s`` or ``1.5h`` to seconds. Only 0 needs no unit.

    Raises:
        InvalidArgumentError: the text is not a duration, or has no unit.
    """
    match = _DURATION.fullmatch(text)
    if not match:
        raise InvalidArgumentError(f"{text!r} is not a length of time; write for example 45s, 30m, 12h, 7d")
    if not match[2] and float(match[1]):
        number = text.strip()
        raise InvalidArgumentError(f"{number!r} has no unit: write {number}s for seconds, or m, h, d or w")
    return float(match[1]) * _UNITS[match[2].lower()]


def human_duration(seconds: float) -> str:
    """Format seconds with the largest unit that leaves at least 1: ``2.5h``."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:.3g}{unit}"
    return f"{seconds:.3g}s"
