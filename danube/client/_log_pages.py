"""Answers about logs that come in pages or polls. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from danube.model.query_api import LogPart, LogState

__all__ = ["has_news", "join_parts", "milliseconds"]


def join_parts(pages: Iterable[Sequence[LogPart]]) -> list[LogPart]:
    """Return the parts of several pages as one list without overlaps.

    Parts that were merged between two pages are returned as one part; the original parts are left out.
    """
    parts: list[LogPart] = []
    for page in pages:
        for part in page:
            while parts and parts[-1].base_offset >= part.base_offset:
                parts.pop()
            parts.append(part)
    return parts


def has_news(states: Sequence[LogState], beyond: Mapping[str, int]) -> bool:
    """Whether a log has grown beyond a known end, or is not known."""
    return any(state.name not in beyond or state.end_offset > beyond[state.name] for state in states)


def milliseconds(seconds: float) -> int:
    """Return the duration of a long poll for a request; 0: do not wait."""
    # Never 0 for a wait, otherwise its last moments would be spent on repeated calls.
    return max(1, round(seconds * 1000)) if seconds > 0 else 0
