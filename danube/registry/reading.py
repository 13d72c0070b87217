"""Handlers that show one subject, version or schema. Pure."""

from __future__ import annotations

from typing import Any, Final

from danube.model.errors import SchemaNotFoundError
from danube.model.version import __version__
from danube.registry.answers import entry_object, schema_object, schema_text
from danube.registry.errors import RegistryError
from danube.registry.requests import Call
from danube.schema.book import Book
from danube.schema.records import NumberRecord

__all__ = [
    "associations",
    "by_guid",
    "by_metadata",
    "by_number",
    "carriers",
    "cluster_id",
    "contexts",
    "ids_of_guid",
    "nothing",
    "one_version",
    "referrers",
    "subjects_of_number",
    "text_of_number",
    "text_of_version",
    "types",
    "version_of_server",
]

SPOKEN_VERSION: Final = "7.9.0"
"""The release of Confluent's registry whose interface this is; clients derive features from it."""


def nothing(book: Book, call: Call) -> Any:
    """``GET /``."""
    return {}


def types(book: Book, call: Call) -> Any:
    """``GET /schemas/types``."""
    return ["JSON", "PROTOBUF", "AVRO"]


def contexts(book: Book, call: Call) -> Any:
    """``GET /contexts``: there is the default context only."""
    return ["."]


def cluster_id(book: Book, call: Call) -> Any:
    """``GET /v1/metadata/id``."""
    clusters = {"kafka-cluster": call.cluster, "schema-registry-cluster": call.cluster}
    return {"id": "", "scope": {"path": [], "clusters": clusters}}


def version_of_server(book: Book, call: Call) -> Any:
    """``GET /v1/metadata/version``."""
    return {"version": SPOKEN_VERSION, "commitId": f"danube-{__version__}"}


def associations(book: Book, call: Call) -> Any:
    """``GET /associations/resources/…``: there are none, so that clients name subjects themselves."""
    return []


# ---------------------------------------------------------------------------------------------------------------------
# Versions of a subject


def one_version(book: Book, call: Call) -> Any:
    """``GET /subjects/{subject}/versions/{version}``."""
    entry = book.entry(call.subject, call.version, deleted=call.flag("deleted"))
    return entry_object(book, entry, call.text("format"))


def text_of_version(book: Book, call: Call) -> Any:
    """``GET /subjects/{subject}/versions/{version}/schema``."""
    entry = book.entry(call.subject, call.version, deleted=call.flag("deleted"))
    return schema_text(entry.schema, call.text("format"))


def referrers(book: Book, call: Call) -> Any:
    """``GET /subjects/{subject}/versions/{version}/referencedby``."""
    return [number for number in book.referrers(call.subject, call.version) if _is_visible(book, call, number)]


def by_metadata(book: Book, call: Call) -> Any:
    """``GET /subjects/{subject}/metadata?key=…&value=…``."""
    key, value = call.text("key"), call.text("value")
    if not key:
        raise RegistryError(422, 422, "the parameters key and value are missing; they say which metadata to look for")
    return entry_object(book, book.by_metadata(call.subject, {key: value}), call.text("format"))


# ---------------------------------------------------------------------------------------------------------------------
# Schemas


def by_number(book: Book, call: Call) -> Any:
    """``GET /schemas/ids/{id}``."""
    number = call.number
    record = _visible(book, call, number)
    found = {**schema_object(record, call.text("format")), "guid": book.guid(number)}
    if call.flag("fetchMaxId"):
        found["maxId"] = book.latest_number
    return found


def text_of_number(book: Book, call: Call) -> Any:
    """``GET /schemas/ids/{id}/schema``."""
    return schema_text(_visible(book, call, call.number), call.text("format"))


def subjects_of_number(book: Book, call: Call) -> Any:
    """``GET /schemas/ids/{id}/subjects``."""
    return sorted({subject for subject, _ in _carriers(book, call)})


def carriers(book: Book, call: Call) -> Any:
    """``GET /schemas/ids/{id}/versions``."""
    return [{"subject": subject, "version": version} for subject, version in _carriers(book, call)]


def by_guid(book: Book, call: Call) -> Any:
    """``GET /schemas/guids/{guid}``."""
    number = book.number_of_guid(call.path["guid"])
    return {**schema_object(_visible(book, call, number), call.text("format")), "guid": book.guid(number)}


def ids_of_guid(book: Book, call: Call) -> Any:
    """``GET /schemas/guids/{guid}/ids``."""
    number = book.number_of_guid(call.path["guid"])
    _visible(book, call, number)
    return [{"context": ".", "id": number}]


def _carriers(book: Book, call: Call) -> list[tuple[str, int]]:
    number = call.number
    _visible(book, call, number)
    wanted = call.text("subject")
    return [
        (subject, version)
        for subject, version in book.carriers(number, deleted=call.flag("deleted"))
        if call.visible(subject) and wanted in ("", subject)
    ]


def _visible(book: Book, call: Call, number: int) -> NumberRecord:
    """Return a schema that the caller may read: one that a subject has which it may read.

    Raises:
        SchemaNotFoundError: there is no such schema, as far as the caller may know.
    """
    record = book.schema(number)
    if not _is_visible(book, call, number):
        raise SchemaNotFoundError(f"there is no schema with the number {number}")
    return record


def _is_visible(book: Book, call: Call, number: int) -> bool:
    """Return whether the caller may read a schema: it may read one of the subjects that have, or had, the schema.

    A schema that no subject has any more, and those that others refer to, can be read by all that may read anything:
    clients need them to decode messages, and nothing tells any more to whom they belong.
    """
    found = book.carriers(number, deleted=True)
    return not found or any(call.visible(subject) for subject, _ in found)
