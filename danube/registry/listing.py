"""Handlers that list subjects, versions and schemas. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from danube.registry.answers import entry_object
from danube.registry.errors import RegistryError
from danube.registry.requests import Call
from danube.schema.book import Book, Entry

__all__ = ["schemas", "subjects", "versions"]

MOST_NAMES: Final = 20_000
"""Most items of a list of names or numbers."""
MOST_SCHEMAS: Final = 1_000
"""Most items of a list of schemas."""
MOST_TEXT_BYTES: Final = 8 * 1024 * 1024
"""Most characters of the texts of a list of schemas."""


def subjects(book: Book, call: Call) -> Any:
    """``GET /subjects``."""
    found = book.subjects(
        call.prefix, deleted=call.flag("deleted"), only_deleted=call.flag("deletedOnly", "deleted_only")
    )
    return _page(call, [name for name in found if call.visible(name)], MOST_NAMES)


def versions(book: Book, call: Call) -> Any:
    """``GET /subjects/{subject}/versions``."""
    found = book.versions(
        call.subject, deleted=call.flag("deleted"), only_deleted=call.flag("deletedOnly", "deleted_only")
    )
    return _page(call, found, MOST_NAMES)


def schemas(book: Book, call: Call) -> Any:
    """``GET /schemas``: versions of all subjects, ordered by subject and version."""
    start = call.count("offset", 0)
    most = min(call.count("limit", MOST_SCHEMAS), MOST_SCHEMAS)
    found: list[Any] = []
    size = 0
    for entry in islice(_entries(book, call), start, start + most):
        size += len(entry.schema.text)
        if size > MOST_TEXT_BYTES:
            raise RegistryError(
                422,
                422,
                f"the texts of these schemas have more than {MOST_TEXT_BYTES} characters; use a smaller limit than"
                f" {most}, and offset",
            )
        found.append(entry_object(book, entry))
    return found


def _entries(book: Book, call: Call) -> Iterator[Entry]:
    deleted, latest = call.flag("deleted"), call.flag("latestOnly")
    for name in book.subjects(call.prefix, deleted=deleted):
        if not call.visible(name):
            continue
        numbers = book.versions(name, deleted=deleted)
        for version in numbers[-1:] if latest else numbers:
            yield book.entry(name, version, deleted=deleted)


def _page(call: Call, found: list[Any], most: int) -> list[Any]:
    start = call.count("offset", 0)
    return found[start : start + min(call.count("limit", most), most)]
