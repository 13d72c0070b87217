"""Pages of lists: ``limit``, ``cursor``, ``q``, ``sort``. Pure.

A cursor is the position in the sorted and filtered list as it was; items that come or go between two pages may be seen
twice or not at all, as in any list without a snapshot. It is opaque to callers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from danube.model.errors import InvalidArgumentError

__all__ = ["DEFAULT_LIMIT", "MOST", "Page", "page_of"]

DEFAULT_LIMIT: Final = 100
MOST: Final = 1_000
"""Largest ``limit``."""


class Page(msgspec.Struct):
    """A part of a list."""

    items: list[Any]
    total: int
    """Number of items that match."""
    next: str = ""
    """``cursor`` of the next page; empty: this was the last one."""


def page_of(
    items: Sequence[dict[str, Any]],
    query: Mapping[str, Any],
    *,
    name: Callable[[dict[str, Any]], str],
    fields: Sequence[str],
) -> Page:
    """Return the page of a list that a query asks for.

    Args:
        items: all of them, as JSON objects.
        query: ``q``: a text within the name, in any case. ``sort``: a field, with ``-`` before it for the reverse
            order; by default in the order of names. ``limit`` and ``cursor``.
        name: of an item, which ``q`` looks into; and the order of items that are equal otherwise.
        fields: by which the list can be sorted.

    Raises:
        InvalidArgumentError: the cursor is none of this list, or it cannot be sorted so.
    """
    wanted = str(query.get("q") or "").lower()
    found = [each for each in items if wanted in name(each).lower()] if wanted else list(items)
    found.sort(key=name)
    sort = str(query.get("sort") or "")
    field = sort.removeprefix("-")
    if field:
        if field not in fields:
            raise InvalidArgumentError(
                f"the list cannot be sorted by {ascii(field)[:80]}; use one of {', '.join(fields)}"
            )
        found.sort(key=lambda each: _sortable(each.get(field)), reverse=sort.startswith("-"))
    start = _position(str(query.get("cursor") or ""))
    limit = int(query.get("limit") or DEFAULT_LIMIT)
    end = start + limit
    return Page(found[start:end], len(found), _cursor(end) if end < len(found) else "")


def _sortable(value: Any) -> tuple[int, Any]:
    """Return what values of one field are compared by: numbers before texts; lists by their size."""
    if isinstance(value, bool | int | float):
        return 0, value
    if isinstance(value, str):
        return 1, value
    return (0, len(value)) if isinstance(value, Sequence | Mapping) else (2, 0)


def _cursor(position: int) -> str:
    return base64.urlsafe_b64encode(b"%d" % position).decode().rstrip("=")


def _position(cursor: str) -> int:
    if not cursor:
        return 0
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode("ascii")
        if len(text) > 12 or not text.isdigit():
            raise ValueError(text)
    except (ValueError, binascii.Error) as error:
        raise InvalidArgumentError("the cursor is none that this list has given; begin again without one") from error
    return int(text)
