"""Numbers in sentences for people."""

from __future__ import annotations

from typing import Final

__all__ = ["spoken_count", "spoken_duration"]

_UNITS: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))


def spoken_duration(seconds: float) -> str:
    """Format a length of time: ``0.3 s``, ``12 s``, ``4 min``, ``2.5 h``, ``3 days``."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def spoken_count(count: int, thing: str, things: str = "") -> str:
    """Return ``1 topic``, ``1,234 topics``; ``things`` is the plural if it is not formed with an s."""
    return f"1 {thing}" if count == 1 else f"{count:,} {things or thing + 's'}"
