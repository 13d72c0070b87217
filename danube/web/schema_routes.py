"""Routes of the schema registry; a part of the one table. Pure.

Confluent's REST interface (:mod:`danube.registry`) is for clients that know it. These are the native calls: the names,
errors and rights of the rest of the API.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from danube.model import schema_api
from danube.model.schema_api import SchemaMethod
from danube.web.route import API, Parameter, Route
from danube.web.twins import twin

__all__ = ["SCHEMA_ROUTES", "Registration", "SchemaCheck", "SchemaChanges"]

_Proposed: Any = twin(schema_api.ProposedSchema)
_SUBJECT: Final = f"{API}/schemas/{{subject}}"
_VERSION: Final = f"{_SUBJECT}/versions/{{version}}"
_DELETED: Final = Parameter("deleted", bool, "Include what is deleted, but not for good.", False)
_PERMANENT: Final = Parameter("permanent", bool, "For good: what was deleted before. Numbers never come again.", False)


class Registration(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema to be registered."""

    schema: _Proposed
    description: str = ""
    tags: list[str] = []


class SchemaCheck(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema to be compared."""

    schema: _Proposed
    version: Annotated[int, msgspec.Meta(ge=0)] = 0
    """With this version only; 0: with those that the level names."""
    level: str = ""
    """Instead of that of the subject."""


class SchemaChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a subject; what is left out stays as it is, and an empty text takes away what is set."""

    level: str | None = None
    """``none``, ``backward``, ``forward``, ``full``, and the last three with ``_transitive``."""
    json_policy: str | None = None
    """``strict``, ``lenient`` or ``upstream``."""
    mode: str | None = None
    """``readwrite``, ``readonly``, ``readonly_override`` or ``import``."""


SCHEMA_ROUTES: Final = (
    Route(
        "GET",
        f"{API}/schemas",
        "list_subjects",
        "Subjects of the schema registry, in the order of their names.",
        (SchemaMethod.SUBJECTS,),
        (
            Parameter("prefix", str, "Only those whose names begin with it."),
            Parameter("after", str, "The name after which the page begins."),
            _DELETED,
        ),
        answer=twin(schema_api.SubjectList),
    ),
    Route(
        "GET",
        _SUBJECT,
        "show_subject",
        "A subject: its versions, settings and topics.",
        (SchemaMethod.SUBJECT,),
        (_DELETED,),
        answer=twin(schema_api.SubjectInfo),
    ),
    Route(
        "PATCH",
        _SUBJECT,
        "change_subject",
        "Change level, policy or mode of a subject; an empty text takes away its own.",
        (SchemaMethod.SET_COMPATIBILITY, SchemaMethod.SET_MODE, SchemaMethod.SUBJECT),
        body=SchemaChanges,
        answer=twin(schema_api.SubjectInfo),
    ),
    Route(
        "DELETE",
        _SUBJECT,
        "delete_subject",
        "Delete all versions of a subject; their schemas are still found by number.",
        (SchemaMethod.DELETE,),
        (_PERMANENT,),
        answer=twin(schema_api.DeletedVersions),
    ),
    Route(
        "POST",
        f"{_SUBJECT}/versions",
        "register_schema",
        "Register a schema as a version of a subject, which need not exist.",
        (SchemaMethod.REGISTER,),
        body=Registration,
        answer=twin(schema_api.RegisteredSchema),
    ),
    Route(
        "POST",
        f"{_SUBJECT}:check",
        "check_schema",
        "Compare a schema with the versions of a subject.",
        (SchemaMethod.CHECK,),
        body=SchemaCheck,
        answer=twin(schema_api.CheckedSchema),
    ),
    Route(
        "GET",
        _VERSION,
        "show_schema",
        "A version of a subject with its schema; -1 is the latest.",
        (SchemaMethod.VERSION,),
        (_DELETED,),
        answer=twin(schema_api.SchemaInfo),
    ),
    Route(
        "DELETE",
        _VERSION,
        "delete_schema",
        "Delete a version of a subject; -1 is the latest.",
        (SchemaMethod.DELETE,),
        (_PERMANENT,),
        answer=twin(schema_api.DeletedVersions),
    ),
)
"""Of the schema registry."""
