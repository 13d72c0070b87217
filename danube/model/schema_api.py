"""The native API of the schema registry: subjects, their versions, and the schemas themselves.

Every schema has a **number**, which the headers of batches carry: equal schemas have the same one, in all subjects. A
**version** counts within a subject, from 1; -1 is the latest one that is not deleted.

Types of schemas are the texts ``avro``, ``json_schema``, ``protobuf``, ``string``, ``bytes`` and ``number``.
Compatibility levels are ``none``, ``backward``, ``forward``, ``full``, and the last three with ``_transitive``; the
policies for JSON Schema ``strict``, ``lenient`` and ``upstream``; the modes ``readwrite``, ``readonly``,
``readonly_override`` and ``import``. In requests case does not matter, and a dash is as good as an underscore.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the end with a default.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "SUBJECTS_PAGE",
    "BindSchema",
    "CheckSchema",
    "CheckedSchema",
    "DeleteSchema",
    "DeletedVersions",
    "FindSchema",
    "GetSchema",
    "GetSchemaVersion",
    "ListSubjects",
    "NeededSchema",
    "ProposedSchema",
    "PurgeSchema",
    "RegisterSchema",
    "RegisteredSchema",
    "SchemaInfo",
    "SchemaMethod",
    "SchemaObjection",
    "SchemaReference",
    "SchemaSettings",
    "SetCompatibility",
    "SetSchemaMode",
    "ShowSubject",
    "SubjectInfo",
    "SubjectList",
    "SubjectRow",
    "VersionRow",
]

SUBJECTS_PAGE: Final = 1_000
"""Most subjects of one answer."""
_LATEST: Final = -1


class SchemaMethod:
    """Paths of the calls."""

    REGISTER: Final = "/danube.native.v1.Schemas/Register"
    GET: Final = "/danube.native.v1.Schemas/Get"
    VERSION: Final = "/danube.native.v1.Schemas/GetVersion"
    FIND: Final = "/danube.native.v1.Schemas/Find"
    SUBJECT: Final = "/danube.native.v1.Schemas/Subject"
    SUBJECTS: Final = "/danube.native.v1.Schemas/Subjects"
    CHECK: Final = "/danube.native.v1.Schemas/Check"
    DELETE: Final = "/danube.native.v1.Schemas/Delete"
    SET_MODE: Final = "/danube.native.v1.Schemas/SetMode"
    SET_COMPATIBILITY: Final = "/danube.native.v1.Schemas/SetCompatibility"
    PURGE: Final = "/danube.native.v1.Schemas/Purge"
    BIND: Final = "/danube.native.v1.Schemas/Bind"


# --- Schemas


class SchemaReference(msgspec.Struct, array_like=True, gc=False):
    """A version of another subject that a schema refers to."""

    name: str
    """By which the text refers to it: a full name in Avro, a URI in JSON Schema, an import path in protobuf."""
    subject: str
    version: int = _LATEST
    number: int = 0
    """Of the schema; in requests it is ignored."""


class ProposedSchema(msgspec.Struct, array_like=True):
    """A schema, to be registered, checked or found."""

    schema_type: str
    text: str
    """Empty for the types ``string``, ``bytes`` and ``number``."""
    references: list[SchemaReference] = []
    message: str = ""
    """Protobuf: the full name of the message type of payloads; empty: the first one of the file."""
    metadata: dict[str, str] = {}
    """Any texts; they are a part of the content: the same text with others is another schema."""
    rules: str = ""
    """A rule set of Confluent's registry as JSON, which is stored and not executed; a part of the content, too."""


class NeededSchema(msgspec.Struct, array_like=True, gc=False):
    """A schema that another one refers to, directly or not."""

    name: str
    text: str


class SchemaInfo(msgspec.Struct, array_like=True):
    """A schema. With a subject and version, if it was asked for by these; else these fields have their defaults."""

    number: int
    schema_type: str
    text: str
    """As it was first registered."""
    references: list[SchemaReference] = []
    needs: list[NeededSchema] = []
    """All schemas that it refers to, directly or not, each before those that refer to it."""
    message: str = ""
    name: str = ""
    """Full name of the record or message of payloads; empty if it has none."""
    descriptor: bytes = b""
    """Protobuf: the ``FileDescriptorProto``."""
    metadata: dict[str, str] = {}
    rules: str = ""
    guid: str = ""
    """Of the content; the same in all registries of Danube."""
    carriers: list[tuple[str, int]] = []
    """Subjects and versions with this schema, as far as the caller may see them; deleted versions are left out."""
    subject: str = ""
    subject_number: int = 0
    """By which upstream's clients name the subject."""
    version: int = 0
    created_ms: int = 0
    """Unix time in milliseconds."""
    created_by: str = ""
    description: str = ""
    tags: list[str] = []
    is_deleted: bool = False
    topics: list[str] = []
    """If it was asked for: some topics whose subject has this schema, or had it in a version that is deleted, also
    permanently; at most 100, sorted, as far as the caller may see them. Messages of others can have the number, too."""


class GetSchema(msgspec.Struct, array_like=True, gc=False):
    """Asks for a schema by its number. Answered with a SchemaInfo; SchemaNotFoundError: there is none."""

    number: int
    topics: bool = False
    """Whether to look for the topics whose messages may have this number."""


class GetSchemaVersion(msgspec.Struct, array_like=True, gc=False):
    """Asks for a version of a subject. Answered with a SchemaInfo."""

    subject: str
    version: int = _LATEST
    deleted: bool = False
    """Whether to include deleted versions."""


class FindSchema(msgspec.Struct, array_like=True):
    """Asks for the version of a subject that has the same content. Answered with a SchemaInfo.

    SchemaNotFoundError: no version has it.
    """

    subject: str
    schema: ProposedSchema
    deleted: bool = False


# --- Registering and checking


class RegisterSchema(msgspec.Struct, array_like=True):
    """Registers a schema as a version of a subject, which need not exist. Answered with a RegisteredSchema.

    Content that the subject has already is not registered again.
    """

    subject: str
    schema: ProposedSchema
    description: str = ""
    tags: list[str] = []
    number: int = 0
    """Only in mode ``import``: the number of the schema."""
    version: int = 0
    """Only in mode ``import``: the version; 0: the next one."""


class RegisteredSchema(msgspec.Struct, array_like=True, gc=False):
    """A registered schema."""

    number: int
    version: int
    subject_number: int
    is_new: bool
    """Whether this call has created the version."""


class CheckSchema(msgspec.Struct, array_like=True):
    """Asks whether a schema is compatible with a subject. Answered with a CheckedSchema."""

    subject: str
    schema: ProposedSchema
    version: int = 0
    """Compare with this version only; 0: with those that the level names; there need be none."""
    level: str = ""
    """Instead of that of the subject; empty: that one."""


class SchemaObjection(msgspec.Struct, array_like=True, gc=False):
    """Why a schema is not compatible with a version."""

    version: int
    level: str
    """``backward``: the schema cannot read data of the version; ``forward``: the reverse; ``full``: neither."""
    kind: str
    """For programs, such as ``READER_FIELD_MISSING_DEFAULT_VALUE``."""
    path: str
    """Location in the schema."""
    text: str
    """For people."""


class CheckedSchema(msgspec.Struct, array_like=True):
    """The result of a check."""

    is_compatible: bool
    level: str
    versions: list[int]
    """With which it was compared."""
    objections: list[SchemaObjection] = []


# --- Subjects


class SchemaSettings(msgspec.Struct, array_like=True, gc=False):
    """Settings of a subject, or of the registry; those that are empty are inherited, or the defaults."""

    level: str = ""
    json_policy: str = ""
    mode: str = ""


class ListSubjects(msgspec.Struct, array_like=True, gc=False):
    """Asks for subjects that the caller may see. Answered with a SubjectList."""

    prefix: str = ""
    after: str = ""
    """Only those whose names follow this one."""
    deleted: bool = False
    """Include those whose versions are all deleted."""


class SubjectRow(msgspec.Struct, array_like=True, gc=False):
    """A subject in a list."""

    subject: str
    number: int
    """By which upstream's clients name it."""
    schema_type: str
    """Of the latest version."""
    version: int
    """The latest one."""
    versions: int
    """Number of versions that are not deleted; 0: the subject is deleted."""
    level: str
    """In effect."""
    mode: str
    """In effect."""


class SubjectList(msgspec.Struct, array_like=True):
    """A page of subjects, sorted by name."""

    subjects: list[SubjectRow]
    more: bool = False
    """Whether others follow; ask again ``after`` the last one."""


class ShowSubject(msgspec.Struct, array_like=True, gc=False):
    """Asks for a subject; an empty one: for the settings of the registry. Answered with a SubjectInfo."""

    subject: str = ""
    deleted: bool = False
    """Include deleted versions."""


class VersionRow(msgspec.Struct, array_like=True):
    """A version of a subject."""

    version: int
    number: int
    schema_type: str
    created_ms: int = 0
    created_by: str = ""
    description: str = ""
    tags: list[str] = []
    is_deleted: bool = False
    referrers: list[int] = []
    """Numbers of schemas that refer to it."""


class SubjectInfo(msgspec.Struct, array_like=True):
    """A subject, or the registry."""

    subject: str
    number: int
    versions: list[VersionRow]
    """In order; none of the registry, and of a subject that has settings only."""
    own: SchemaSettings
    """What is set for it."""
    effective: SchemaSettings
    """What is in effect; nothing in it is empty."""
    topics: list[str] = []
    """Some topics with this subject that the caller may see, sorted; at most 100."""


class DeleteSchema(msgspec.Struct, array_like=True, gc=False):
    """Deletes a version of a subject, or all of them. Answered with DeletedVersions.

    Deleted versions are still found by the numbers of their schemas. Permanent deletion comes second: version numbers
    are never used again, and schemas stay until they are purged.
    """

    subject: str
    version: int = 0
    """0: all of them; -1: the latest one."""
    permanent: bool = False


class DeletedVersions(msgspec.Struct, array_like=True, gc=False):
    """The versions that a call has deleted."""

    versions: list[int]


class PurgeSchema(msgspec.Struct, array_like=True, gc=False):
    """Removes a schema that no version has. Batches with its number can no longer be decoded. Answered with Done."""

    number: int


class BindSchema(msgspec.Struct, array_like=True, gc=False):
    """Gives a topic the subject of the schemas of its messages. Answered with Done.

    Whether batches must name one of its schemas is the policy ``schema_validation``.
    """

    topic: str
    """Plain or partitioned."""
    schema_subject: str
    """Empty: it has none any more."""


class SetSchemaMode(msgspec.Struct, array_like=True, gc=False):
    """Sets the mode of a subject, or of the registry. Answered with Done."""

    subject: str
    """Empty: the registry."""
    mode: str
    """Empty: remove that of its own."""
    force: bool = False
    """Change to ``import`` although there are versions."""


class SetCompatibility(msgspec.Struct, array_like=True, gc=False):
    """Sets level and policy of a subject, or of the registry. Answered with Done."""

    subject: str
    """Empty: the registry."""
    level: str | None = None
    """Empty: remove that of its own; None: leave it as it is."""
    json_policy: str | None = None
    """As ``level``."""
