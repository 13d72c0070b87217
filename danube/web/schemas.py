"""Handlers of the schema registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from danube.model import schema_api
from danube.model.errors import InvalidArgumentError
from danube.model.schema_api import SchemaMethod
from danube.web.administration import Handler
from danube.web.caller import ApiCall
from danube.web.twins import as_native

__all__ = ["HANDLERS"]


async def list_subjects(call: ApiCall) -> Any:
    """Return a page of subjects."""
    values = call.values
    request = schema_api.ListSubjects(values["prefix"] or "", values["after"] or "", values["deleted"])
    return await call.native(SchemaMethod.SUBJECTS, request)


async def show_subject(call: ApiCall) -> Any:
    """Return a subject."""
    request = schema_api.ShowSubject(call.path["subject"], call.values["deleted"])
    return await call.native(SchemaMethod.SUBJECT, request)


async def change_subject(call: ApiCall) -> Any:
    """Change settings of a subject; return it."""
    subject, wanted = call.path["subject"], call.body
    if wanted.level is not None or wanted.json_policy is not None:
        request = schema_api.SetCompatibility(subject, wanted.level, wanted.json_policy)
        await call.native(SchemaMethod.SET_COMPATIBILITY, request)
    if wanted.mode is not None:
        await call.native(SchemaMethod.SET_MODE, schema_api.SetSchemaMode(subject, wanted.mode))
    return await call.native(SchemaMethod.SUBJECT, schema_api.ShowSubject(subject, True))


async def register_schema(call: ApiCall) -> Any:
    """Register a schema."""
    proposed = as_native(call.body.schema, schema_api.ProposedSchema)
    request = schema_api.RegisterSchema(call.path["subject"], proposed, call.body.description, call.body.tags)
    return await call.native(SchemaMethod.REGISTER, request)


async def check_schema(call: ApiCall) -> Any:
    """Compare a schema."""
    proposed = as_native(call.body.schema, schema_api.ProposedSchema)
    request = schema_api.CheckSchema(call.path["subject"], proposed, call.body.version, call.body.level)
    return await call.native(SchemaMethod.CHECK, request)


async def show_schema(call: ApiCall) -> Any:
    """Return a version."""
    request = schema_api.GetSchemaVersion(call.path["subject"], _version(call), call.values["deleted"])
    return await call.native(SchemaMethod.VERSION, request)


async def delete_subject(call: ApiCall) -> Any:
    """Delete all versions of a subject."""
    request = schema_api.DeleteSchema(call.path["subject"], 0, call.values["permanent"])
    return await call.native(SchemaMethod.DELETE, request)


async def delete_schema(call: ApiCall) -> Any:
    """Delete a version."""
    request = schema_api.DeleteSchema(call.path["subject"], _version(call), call.values["permanent"])
    return await call.native(SchemaMethod.DELETE, request)


def _version(call: ApiCall) -> int:
    """Return the version in the path.

    Raises:
        InvalidArgumentError: it is none; 0, which means all of them elsewhere, is none either.
    """
    text = call.path["version"]
    if text == "-1":
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise InvalidArgumentError(
            f"version {text[:20]!r} is no version; give a number from 1 on, or -1 for the latest"
        )
    return int(text)


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler
    for handler in (
        list_subjects,
        show_subject,
        change_subject,
        delete_subject,
        register_schema,
        check_schema,
        show_schema,
        delete_schema,
    )
}
