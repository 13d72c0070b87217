"""Handlers that delete versions and subjects. Pure."""

from __future__ import annotations

from typing import Any

from danube.model.errors import SchemaNotDeletedError
from danube.registry.errors import RegistryError
from danube.registry.requests import Call
from danube.schema.book import Book, Change

__all__ = ["delete_subject", "delete_version"]


def delete_subject(book: Book, call: Call) -> tuple[Any, Change]:
    """``DELETE /subjects/{subject}``; the answer are the deleted versions.

    Raises:
        RegistryError: 40405: it is live, and is to be deleted permanently.
    """
    try:
        return book.delete_subject(call.subject, permanent=call.flag("permanent"))
    except SchemaNotDeletedError as error:
        raise RegistryError(404, 40405, error.message) from error


def delete_version(book: Book, call: Call) -> tuple[Any, Change]:
    """``DELETE /subjects/{subject}/versions/{version}``; the answer is its number.

    Raises:
        RegistryError: 40407: it is live, and is to be deleted permanently.
    """
    try:
        version, change = book.delete_version(call.subject, call.version, permanent=call.flag("permanent"))
    except SchemaNotDeletedError as error:
        raise RegistryError(404, 40407, error.message) from error
    call.settle_version(version)
    return version, change
