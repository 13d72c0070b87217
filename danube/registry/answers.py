"""Schemas and versions as JSON objects of Confluent's interface. Pure."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

from danube.model.errors import InvalidArgumentError
from danube.registry.errors import RegistryError
from danube.schema.book import Book, Entry
from danube.schema.kinds import decode_json
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType
from danube.schema.records import NumberRecord

__all__ = ["entry_object", "schema_object", "schema_text", "type_name"]

_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\s]*")
_FORMATS: Final = {
    SchemaType.AVRO: ("", "default"),
    SchemaType.JSON: ("", "default"),
    SchemaType.PROTOBUF: ("", "default", "serialized"),
}


def type_name(kind: SchemaType) -> str:
    """Return the name of a type: ``AVRO``, ``JSON``, ``PROTOBUF``; of schemas without text ``STRING`` and so on."""
    return "JSON" if kind is SchemaType.JSON else kind.name


def schema_text(record: NumberRecord, form: str = "") -> str:
    """Return the text of a schema.

    Args:
        record: the schema.
        form: ``serialized``: a protobuf schema as a descriptor in Base64; empty or ``default``: as its author wrote
            it, and the text of a .proto file if it was registered as a descriptor.

    Raises:
        RegistryError: 422: there is no such form of this type.
    """
    known = _FORMATS.get(record.type, ("", "default"))
    if form not in known:
        listed = ", ".join(each for each in known if each)
        raise RegistryError(
            422,
            422,
            f"a schema of type {type_name(record.type)} has no format {ascii(form)[:80]}; use one of: {listed}",
        )
    if record.type is not SchemaType.PROTOBUF:
        return record.text
    if form == "serialized":
        return base64.b64encode(record.descriptor).decode()
    if _BASE64.fullmatch(record.text) is None:
        return record.text
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # only registries with such schemas need it

    from danube.schema.proto_text import text_of

    return text_of(FileDescriptorProto.FromString(record.descriptor))


def schema_object(record: NumberRecord, form: str = "") -> dict[str, Any]:
    """Return a schema: its text, and its type unless that is Avro; references, metadata and rules if it has some."""
    found: dict[str, Any] = {"schema": schema_text(record, form)}
    if record.type is not SchemaType.AVRO:
        found["schemaType"] = type_name(record.type)
    if record.references:
        found["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in record.references
        ]
    kept = _kept(record.rules)
    metadata: dict[str, Any] = {name: kept[name] for name in ("tags", "sensitive") if name in kept}
    if record.metadata:
        metadata["properties"] = dict(record.metadata)
    if metadata:
        found["metadata"] = metadata
    if "ruleSet" in kept:
        found["ruleSet"] = kept["ruleSet"]
    return found


def _kept(rules: str) -> dict[str, Any]:
    """Return what is kept for clients: rule set, tags, sensitive tags; other clients store a bare rule set."""
    try:
        found = decode_json(rules, DEFAULT_LIMITS) if rules else {}
    except InvalidArgumentError:
        return {}  # of another client, which keeps something else there
    if not isinstance(found, dict) or not found:
        return {}
    return found if found.keys() <= {"ruleSet", "tags", "sensitive"} else {"ruleSet": found}


def entry_object(book: Book, entry: Entry, form: str = "") -> dict[str, Any]:
    """Return a version of a subject, with its schema."""
    return {
        "subject": entry.subject,
        "version": entry.version.version,
        "id": entry.number,
        "guid": book.guid(entry.number),
        **schema_object(entry.schema, form),
    }
