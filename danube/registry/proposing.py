"""Handlers of schemas that clients send: to register, look up and check them. Pure.

Each has two parts, because the broker has schemas parsed elsewhere: what is asked of it, and the answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from danube.model.errors import SchemaNotFoundError
from danube.registry.answers import entry_object
from danube.registry.requests import Call, SchemaBody
from danube.schema.book import Book, Entry, Proposal, Registered
from danube.schema.examine import Finding

__all__ = ["Registration", "checked", "found", "registered", "to_check", "to_find", "to_register"]


class Registration(NamedTuple):
    """What is to be registered."""

    proposal: Proposal
    number: int | None
    """The number that the schema shall have; None: any."""
    version: int | None
    """The version that it shall get; None: the next one."""


def to_register(call: Call) -> Registration:
    """``POST /subjects/{subject}/versions``."""
    body = call.decoded(SchemaBody)
    return Registration(call.proposal(body), body.number, body.wanted_version)


def registered(book: Book, call: Call, result: Registered) -> Any:
    """Return the answer to a registration, without the schema: clients keep what they have sent themselves.

    Confluent's Python client would take the text of a protobuf schema for the descriptor that it has sent.
    """
    answer: dict[str, Any] = {"subject": call.subject, "version": result.version, "id": result.number}
    if (call.subject, result.version) in book.carriers(result.number, deleted=True):
        answer["guid"] = book.guid(result.number)
    return answer


def to_find(call: Call) -> tuple[Proposal, bool]:
    """``POST /subjects/{subject}``: the schema, and whether deleted versions count."""
    return call.proposal(call.decoded(SchemaBody)), call.flag("deleted")


def found(book: Book, call: Call, entry: Entry | None) -> Any:
    """Return the version with the same content.

    Raises:
        SchemaNotFoundError: there is none.
    """
    if entry is None:
        raise SchemaNotFoundError(f"no version of subject {call.subject!r} has this schema")
    return entry_object(book, entry, call.text("format"))


def to_check(call: Call) -> tuple[Proposal, int | None]:
    """``POST /compatibility/subjects/{subject}/versions[/{version}]``: the schema, and what it is compared with.

    That is one version; None: those that the level of the subject names.
    """
    return call.proposal(call.decoded(SchemaBody)), call.version if "version" in call.path else None


def checked(call: Call, finding: Finding) -> Any:
    """Return whether the schema is compatible, and with ``?verbose`` why not."""
    answer: dict[str, Any] = {"is_compatible": not finding.objections}
    if call.flag("verbose"):
        answer["messages"] = [str(each) for each in finding.objections]
    return answer
