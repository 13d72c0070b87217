"""The table of routes as a document of OpenAPI 3.1. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from danube.http._problem import PROBLEM_TYPE, Problem
from danube.model.version import __version__
from danube.web.routes import EVENTS, JSON, NDJSON, ROUTES, Parameter, Route

__all__ = ["openapi"]

_REF: Final = "#/components/schemas/{name}"
_DESCRIPTION: Final = (
    "Everything that a Danube broker does for its clients, over HTTP/1.1. Ids of 64 bits are texts of digits; times are"
    " microseconds since the epoch; payloads and keys that are no text are in base64. Errors are RFC 9457."
)


def openapi(routes: Iterable[Route] = ROUTES) -> dict[str, Any]:
    """Return the document."""
    rows = list(routes)
    kinds = [
        Problem,
        *(kind for route in rows for kind in (route.body, route.answer, route.dry_answer) if kind is not None),
    ]
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = {repr(kind): schema for kind, schema in zip(kinds, found, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in rows:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Danube",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token or an API key."},
                "basic": {"type": "http", "scheme": "basic", "description": "Any name, with an API key as password."},
            },
        },
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.names
    ]
    parameters += [_parameter(each) for each in route.parameters]
    if route.matched:
        parameters.append(
            {
                "name": "If-Match",
                "in": "header",
                "required": not any(each.name == "dry_run" for each in route.parameters),
                "description": "The `topic_id` of the topic, in quotation marks; 428 without it (except with dry_run),"
                " 412 if it differs.",
                "schema": {"type": "string"},
            }
        )
    found: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [_tag(route)],
        "parameters": parameters,
        "responses": {
            str(route.status): _answer(route, schemas),
            **_dry(route, schemas),
            "default": {
                "description": "An error.",
                "content": {PROBLEM_TYPE: {"schema": schemas[repr(Problem)]}},
            },
        },
    }
    if route.body is not None:
        found["requestBody"] = {
            "required": not route.optional_body,
            "content": {
                each: {"schema": schemas[repr(route.body)] if each == JSON else {"type": "string"}}
                for each in route.body_types
            },
        }
        if NDJSON in route.body_types:
            found["requestBody"]["content"][NDJSON]["schema"]["description"] = "A PublishedMessage on each line."
    if route.calls:
        found["x-danube-calls"] = list(route.calls)
    return found


def _tag(route: Route) -> str:
    """Return the part of the API that a route belongs to."""
    segments = [each.partition(":")[0] for each in route.segments[2:] if not each.startswith("{")]
    if not segments or not route.template.startswith("/api/"):
        return "health"
    for tag in ("messages", "subscriptions", "policies"):
        if tag in segments:
            return tag
    return segments[0]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": {int: "integer", bool: "boolean"}.get(parameter.kind, "string")}
    if parameter.kind is int:
        schema |= {"minimum": parameter.least, "maximum": parameter.most}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "header" if parameter.header else "query",
        "required": parameter.required,
        "description": parameter.summary,
        "schema": schema,
    }


def _dry(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.dry_answer is None:
        return {}
    content = {JSON: {"schema": schemas[repr(route.dry_answer)]}}
    return {"200": {"description": "With dry_run: what would happen.", "content": content}}


def _answer(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.status == 204:
        return {"description": "Done."}
    content: dict[str, Any] = {}
    for each in route.answer_types:
        if each == JSON:
            content[each] = {"schema": schemas[repr(route.answer)]}
        else:
            content[each] = {"schema": {"type": "string"}}
            if each == EVENTS:
                content[each]["schema"]["description"] = "A stream of server-sent events."
    return {"description": "The answer.", "content": content}
