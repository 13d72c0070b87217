"""Places in a topic, as people write them: ``earliest``, ``latest``, an offset, or a time."""

from __future__ import annotations

import datetime

from danube.model.errors import InvalidArgumentError
from danube.model.policies import EARLIEST, LATEST

__all__ = ["parse_position"]


def parse_position(text: str) -> str | int | datetime.datetime:
    """Read a position; a time without a zone is UTC.

    Raises:
        InvalidArgumentError: it is none of the four.
    """
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(
            f"position {text!r} is not earliest, latest, an offset, or an ISO 8601 time such as 2026-01-31T12:00:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
