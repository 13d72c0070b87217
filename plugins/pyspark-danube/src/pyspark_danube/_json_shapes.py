"""The Spark type of a JSON Schema, and the decoder of its payloads. Pure: no registry, no broker.

Objects with known properties are structs, those with values of one type maps, lists arrays. Everything else (unions of
several types, recursive types, anything that the schema leaves open) is a STRING with the JSON as it was written.

Payloads are not validated: a payload decodes if its values have the types of the columns. So older and newer versions
are read alike: unknown properties are skipped, and missing ones have the ``default`` of the reader's schema, else null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypedDict

import msgspec
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType

from danube.model.errors import InvalidSchemaError
from pyspark_danube._shapes import Convert, Shape, each, per_key, struct

__all__ = ["json_decoder", "json_shape"]

_MISSING: Final = object()


class _Node(NamedTuple):
    shape: Shape
    kind: Any
    """The type as which msgspec decodes it."""


def _text(value: msgspec.Raw) -> str | None:
    text = bytes(value).decode()
    return None if text.strip() == "null" else text


_RAW: Final = _Node(Shape(StringType(), _text), msgspec.Raw)
_PLAIN: Final[dict[str, _Node]] = {
    "string": _Node(Shape(StringType()), str | None),
    "integer": _Node(Shape(LongType()), int | None),
    "number": _Node(Shape(DoubleType()), float | None),
    "boolean": _Node(Shape(BooleanType()), bool | None),
}


def json_shape(schema: Any) -> Shape:
    """Return the shape of a JSON Schema.

    Raises:
        InvalidSchemaError: the default of a property does not fit its type.
    """
    return _node(schema, schema, frozenset({"#"})).shape


def json_decoder(schema: Any) -> Convert:
    """Return what decodes payloads to values of the shape; it raises msgspec.MsgspecError, ValueError.

    Raises:
        InvalidSchemaError: the default of a property does not fit its type.
    """
    node = _node(schema, schema, frozenset({"#"}))
    decode = msgspec.json.Decoder(node.kind).decode
    convert = node.shape.convert
    if convert is None:
        return decode
    return lambda payload: None if (value := decode(payload)) is None else convert(value)


def _node(schema: Any, root: Any, inside: frozenset[str]) -> _Node:
    if not isinstance(schema, Mapping):
        return _RAW
    reference = schema.get("$ref")
    if reference is not None:
        target = _target(reference, root)
        return _RAW if target is None or reference in inside else _node(target, root, inside | {reference})
    for word in ("anyOf", "oneOf"):
        if word in schema:
            there = [branch for branch in schema[word] if branch != {"type": "null"}]
            return _node(there[0], root, inside) if len(there) == 1 and "properties" not in schema else _RAW
    if "allOf" in schema:
        return _RAW
    kind = schema.get("type")
    if isinstance(kind, list):
        there = [each_ for each_ in kind if each_ != "null"]
        kind = there[0] if len(there) == 1 else "number" if set(there) == {"integer", "number"} else None
    if kind is None:
        kind = _implied(schema)
    if kind == "object":
        return _object(schema, root, inside)
    if kind == "array" and isinstance(schema.get("items"), Mapping) and "prefixItems" not in schema:
        inner = _node(schema["items"], root, inside)
        return _Node(each(inner.shape), list[inner.kind] | None)  # type: ignore[name-defined]
    return _PLAIN.get(kind, _RAW) if isinstance(kind, str) else _RAW


def _implied(schema: Mapping[str, Any]) -> str | None:
    """Return the type of a schema that does not tell it."""
    if "properties" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return "string" if values and all(isinstance(value, str) for value in values) else None


def _object(schema: Mapping[str, Any], root: Any, inside: frozenset[str]) -> _Node:
    properties = schema.get("properties")
    if not properties:
        values = schema.get("additionalProperties")
        if not isinstance(values, Mapping) or "patternProperties" in schema:
            return _RAW
        inner = _node(values, root, inside)
        return _Node(per_key(inner.shape), dict[str, inner.kind] | None)  # type: ignore[name-defined]
    nodes = {name: _node(inner, root, inside) for name, inner in properties.items()}
    made = struct([(name, node.shape) for name, node in nodes.items()])
    kind = TypedDict("Value", {name: node.kind for name, node in nodes.items()}, total=False)  # type: ignore[misc]
    defaults = {
        name: _default(name, inner["default"], nodes[name])
        for name, inner in properties.items()
        if isinstance(inner, Mapping) and inner.get("default") is not None
    }
    convert = made.convert
    if not defaults:
        return _Node(made, kind | None)

    def filled(value: Any) -> Any:
        found = value if convert is None else convert(value)
        return defaults | found

    return _Node(Shape(made.type, filled), kind | None)


def _default(name: str, value: Any, node: _Node) -> Any:
    try:
        found = msgspec.json.decode(msgspec.json.encode(value), type=node.kind)
    except msgspec.MsgspecError as error:
        raise InvalidSchemaError(f"the default of property {name!r} does not fit its type: {error}") from error
    return found if node.shape.convert is None or found is None else node.shape.convert(found)


def _target(reference: Any, root: Any) -> Any:
    """Return what a reference within the schema points to; None if it points elsewhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
