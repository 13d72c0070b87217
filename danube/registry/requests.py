"""What a request says: its subject, version, flags and body. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError, InvalidSchemaError
from danube.registry.errors import RegistryError
from danube.schema.book import LATEST, Proposal
from danube.schema.kinds import decode_json
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType
from danube.schema.records import Reference

__all__ = ["Call", "MediaTypes", "SchemaBody", "unprefixed"]

MediaTypes: Final = frozenset(
    (
        "application/vnd.schemaregistry.v1+json",
        "application/vnd.schemaregistry+json",
        "application/json",
        "application/octet-stream",
    )
)
"""Types of bodies. A browser sends none of these for the page of another site without asking first."""

_MOST: Final = 2**31 - 1
_TYPES: Final = {"AVRO": SchemaType.AVRO, "JSON": SchemaType.JSON, "PROTOBUF": SchemaType.PROTOBUF}
_TRUE: Final = ("true", "True", "TRUE", "1")
_OWN_CONTEXT: Final = ":.:"
"""A prefix of subjects in Confluent's registry: the default context, which is the only one here."""
_ANY_CONTEXT: Final = ":*:"

T = TypeVar("T")


class ReferenceBody(msgspec.Struct, frozen=True):
    """A reference to another schema."""

    name: str
    subject: str
    version: int = LATEST


class MetadataBody(msgspec.Struct, frozen=True):
    """Metadata of a schema."""

    properties: dict[str, str] | None = None
    tags: dict[str, list[str]] | None = None
    sensitive: list[str] | None = None


class SchemaBody(msgspec.Struct, frozen=True):
    """A schema to register, check or look up. Unknown fields are ignored."""

    schema: str | None = None
    schemaType: str | None = None  # noqa: N815 - the name on the wire
    references: list[ReferenceBody] | None = None
    metadata: MetadataBody | None = None
    ruleSet: dict[str, Any] | None = None  # noqa: N815
    id: int | None = None
    version: int | None = None

    @property
    def number(self) -> int | None:
        """The number that the schema shall have; None: any. Clients send 0 or -1 for any."""
        return self.id if self.id is not None and self.id > 0 else None

    @property
    def wanted_version(self) -> int | None:
        """The version that the schema shall get; None: the next one."""
        return self.version if self.version is not None and self.version > 0 else None


class Call:
    """One request, matched with a route.

    Args:
        path: parameters of its path, decoded.
        query: parameters of its query; unknown ones are ignored.
        body: its body.
        cluster: the name of the cluster.
        visible: whether the caller may read a subject.
    """

    __slots__ = ("_query", "_version", "body", "cluster", "path", "visible")

    def __init__(
        self,
        path: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes = b"",
        *,
        cluster: str = "",
        visible: Callable[[str], bool] = lambda subject: True,
    ) -> None:
        self.path = path
        self.body = body
        self.cluster = cluster
        self.visible = visible
        self._query = query
        self._version: int | None = None

    # --- The path

    @property
    def subject(self) -> str:
        """The subject in the path."""
        return unprefixed(self.path["subject"])

    @property
    def subject_or_all(self) -> str | None:
        """The subject in the path; None: the request is about the whole registry."""
        return self.subject if "subject" in self.path else None

    @property
    def version(self) -> int:
        """The version in the path, from 1, or :data:`~danube.schema.book.LATEST`.

        Raises:
            RegistryError: 42202: it is neither.
        """
        if self._version is not None:
            return self._version
        text = self.path["version"]
        if text in ("latest", "-1"):
            return LATEST
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _MOST):
            raise RegistryError(
                422, 42202, f"the version {ascii(text)[:80]} is not a number from 1 to {_MOST}, 'latest' or -1"
            )
        return int(text)

    def settle_version(self, version: int) -> None:
        """Have :attr:`version` stay this one, if the request is carried out again when another one is the latest."""
        self._version = version

    @property
    def number(self) -> int:
        """The number of a schema in the path.

        Raises:
            RegistryError: 404: it is no number.
        """
        text = self.path["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise RegistryError(404, 404, f"the id {ascii(text)[:80]} is not a number")
        return int(text)

    # --- The query

    def text(self, name: str) -> str:
        """Return a parameter of the query; empty if it is not given."""
        return self._query.get(name, "")

    def flag(self, *names: str) -> bool:
        """Return whether one of these parameters is ``true``, ``True`` or ``1``."""
        return any(self._query.get(name) in _TRUE for name in names)

    def count(self, name: str, default: int) -> int:
        """Return a parameter that is a number from 0 on.

        Raises:
            RegistryError: 422: it is something else; -1 stands for the default.
        """
        text = self._query.get(name, "")
        if text in ("", "-1"):
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise RegistryError(422, 422, f"the parameter {name} = {ascii(text)[:80]} is not a number from 0 on, or -1")
        return int(text)

    @property
    def prefix(self) -> str:
        """The beginning of subjects in ``?subjectPrefix=``."""
        text = self.text("subjectPrefix")
        return text.removeprefix(_ANY_CONTEXT) if text.startswith(_ANY_CONTEXT) else unprefixed(text)

    # --- The body

    def decoded(self, kind: type[T]) -> T:
        """Return the body as a value.

        Raises:
            RegistryError: 400: it is not that.
        """
        try:
            return msgspec.json.decode(self.body, type=kind)
        except UNDECODABLE as error:
            text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise RegistryError(400, 400, f"the body of the request is not the expected JSON: {text}") from error

    def proposal(self, body: SchemaBody) -> Proposal:
        """Return the schema in a body, for the subject in the path.

        Raises:
            InvalidSchemaError: there is none, its type is unknown, or it refers to a subject that the caller may not
                read.
        """
        kind = _TYPES.get((body.schemaType or "AVRO").upper())
        if kind is None:
            raise InvalidSchemaError(
                f"the schema type {ascii(body.schemaType)[:80]} is unknown; use one of: {', '.join(_TYPES)}"
            )
        if not body.schema:
            raise InvalidSchemaError("the schema is empty; send its text as the field 'schema'")
        references = tuple(
            Reference(each.name, unprefixed(each.subject), each.version) for each in body.references or ()
        )
        for each in references:
            if not self.visible(each.subject):
                raise InvalidSchemaError(
                    f"reference {each.name!r} has no target: subject {each.subject!r} does not exist"
                )
        metadata = body.metadata or MetadataBody()
        return Proposal(
            subject=self.subject,
            type=kind,
            text=body.schema,
            references=references,
            metadata=metadata.properties or {},
            rules=_rules(body, metadata),
        )


def _rules(body: SchemaBody, metadata: MetadataBody) -> str:
    """Return everything that is kept for clients, but has no meaning here, as JSON; empty if there is none."""
    kept: dict[str, Any] = {}
    if body.ruleSet:
        kept["ruleSet"] = body.ruleSet
    if metadata.tags:
        kept["tags"] = metadata.tags
    if metadata.sensitive:
        kept["sensitive"] = sorted(metadata.sensitive)
    if not kept:
        return ""
    try:
        text = msgspec.json.encode(kept, order="deterministic").decode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"the rule set cannot be stored: {error}") from error
    decode_json(text, DEFAULT_LIMITS)  # refuses what is nested so deeply that it could not be sent back
    return text


def unprefixed(subject: str) -> str:
    """Return a subject without the prefix of the default context."""
    return subject.removeprefix(_OWN_CONTEXT)
