"""Avro schemas of Python types: Structs, dataclasses, TypedDicts and what they consist of, by msgspec's inspection.

=====================================  ================================================================================
Python                                 Avro
=====================================  ================================================================================
Struct, dataclass, TypedDict, attrs    ``record`` of the fields by their encoded names; a tag is an ``enum`` of one
``int``, ``float``, ``bool``, ``str``  ``long``, ``double``, ``boolean``, ``string``
``bytes``, ``bytearray``               ``bytes``
``X | None``                           union with ``null``, whose default is null unless the field has another one
other unions                           union, with ``long`` before ``double``
``list``, ``set``, ``tuple[X, ...]``   ``array``
``dict``                               ``map``; keys that are no text become text
Enum                                   ``enum`` if all values are names; else ``string``, or ``long`` for ints
``Literal``                            ``string``, ``long``, ``null``, or a union of them
``datetime``                           ``timestamp-micros``; with ``Meta(tz=False)``: ``local-timestamp-micros``
``date``, ``time``, ``UUID``           ``date``, ``time-micros``, ``uuid``
``Decimal``                            ``decimal`` of precision 38 and scale 9, or as given by
                                       ``Meta(extra={"precision": ..., "scale": ...})``
``timedelta``                          ``string`` (ISO 8601)
=====================================  ================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from danube.model.errors import InvalidSchemaError

__all__ = ["BUILTINS", "avro_schema"]

BUILTINS: Final = (bytes, bytearray, datetime, date, time, UUID, Decimal)
"""Types that are passed to the library for Avro as they are."""
_PRECISION: Final = 38
_SCALE: Final = 9
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EMPTY: Final = (list, dict, set, frozenset, tuple, bytearray)
"""Factories of defaults that always make the same value."""
_SIMPLE: Final[tuple[tuple[type, Any], ...]] = (
    (inspect.BoolType, "boolean"),
    (inspect.IntType, "long"),
    (inspect.FloatType, "double"),
    (inspect.StrType, "string"),
    (inspect.BytesType, "bytes"),
    (inspect.ByteArrayType, "bytes"),
    (inspect.NoneType, "null"),
    (inspect.DateType, {"type": "int", "logicalType": "date"}),
    (inspect.TimeType, {"type": "long", "logicalType": "time-micros"}),
    (inspect.UUIDType, {"type": "string", "logicalType": "uuid"}),
    (inspect.TimeDeltaType, "string"),
)
_RESERVED: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "record", "enum", "array",
                    "map", "fixed", "union", "error")  # fmt: skip
_RECORDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_LISTS: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


def avro_schema(kind: Any, *, name: str = "", namespace: str = "") -> Any:
    """Return the Avro schema of a type, as decoded JSON.

    Args:
        kind: the type.
        name: name of the record; empty: that of the class.
        namespace: of all names.

    Raises:
        InvalidSchemaError: Avro has no schema for the type or a part of it; the message names the field.
    """
    try:
        info = inspect.type_info(kind)
    except (TypeError, RecursionError) as error:
        raise InvalidSchemaError(f"{_text(kind)} has no Avro schema: {error}") from error
    return _Writer(namespace).root(info, name)


class _Writer:
    """Collects the named types of one schema."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._names: dict[str, dict[str, Any]] = {}
        """Definitions by name. Everything else refers to them by name, until the whole is written."""
        self._classes: dict[str, Any] = {}
        self._root: tuple[Any, str] = (None, "")

    def root(self, info: inspect.Type, name: str) -> Any:
        """Return the schema of the whole."""
        if name:
            if not isinstance(info, (*_RECORDS, inspect.EnumType)):
                raise InvalidSchemaError(f"name={name!r} is for types with a name, such as records")
            self._root = info.cls, name
        schema = self._written(self.of(info, ""), set())
        if self._namespace and isinstance(schema, dict) and "name" in schema:
            schema = {**schema, "namespace": self._namespace}
        elif self._namespace:
            raise InvalidSchemaError(f"namespace={self._namespace!r} is for types with a name, such as records")
        return schema

    def _written(self, schema: Any, done: set[str]) -> Any:
        """Return a schema with each named type defined where it first occurs."""
        if isinstance(schema, list):
            return [self._written(each, done) for each in schema]
        if isinstance(schema, str):
            if schema not in self._names or schema in done:
                return schema
            done.add(schema)
            schema = self._names[schema]
        schema = dict(schema)
        if "fields" in schema:
            schema["fields"] = [dict(each, type=self._written(each["type"], done)) for each in schema["fields"]]
        for key in ("items", "values"):
            if key in schema:
                schema[key] = self._written(schema[key], done)
        return schema

    def of(self, info: Any, path: str) -> Any:
        """Return the schema of a part."""
        extra: Mapping[str, Any] = {}
        while isinstance(info, inspect.Metadata):
            extra = {**(info.extra or {}), **extra}
            info = info.type
        for kind, schema in _SIMPLE:
            if isinstance(info, kind):
                if isinstance(info, inspect.TimeType) and info.tz:
                    raise self._refused(path, "times with a time zone")
                return schema
        if isinstance(info, inspect.DateTimeType):
            return {"type": "long", "logicalType": f"{'local-' if info.tz is False else ''}timestamp-micros"}
        if isinstance(info, inspect.DecimalType):
            return _decimal(extra, path)
        if isinstance(info, _RECORDS):
            return self._record(info, path)
        if isinstance(info, inspect.EnumType):
            return self._enum(info, path)
        if isinstance(info, inspect.LiteralType):
            kinds = ("null" if each is None else "long" if isinstance(each, int) else "string" for each in info.values)
            return self._union(list(dict.fromkeys(kinds)), path)
        if isinstance(info, inspect.UnionType):
            return self._union([self.of(each, path) for each in info.types], path)
        if isinstance(info, _LISTS):
            return {"type": "array", "items": self.of(info.item_type, f"{path}[]")}
        if isinstance(info, inspect.DictType):
            return {"type": "map", "values": self.of(info.value_type, f"{path}{{}}")}
        raise self._refused(path, _text(getattr(info, "cls", type(info))))

    def _record(self, info: Any, path: str) -> Any:
        if getattr(info, "array_like", False):
            raise self._refused(path, f"array_like=True of {_text(info.cls)}")
        name = self._name(info.cls, path)
        if name in self._names:
            return name
        fields: list[dict[str, Any]] = []
        self._names[name] = {"type": "record", "name": name, "fields": fields}
        if getattr(info, "tag_field", None) is not None:
            fields.append(self._tag(info, name, path))
        for field in info.fields:
            here = f"{path}.{field.encode_name}"
            self._check_name(field.encode_name, here)
            if isinstance(info, inspect.TypedDictType) and not field.required:
                raise self._refused(here, "fields that may be absent; let it be None instead")
            fields.append(self._field(field, self.of(field.type, here), here))
        return name

    def _tag(self, info: Any, name: str, path: str) -> dict[str, Any]:
        here = f"{path}.{info.tag_field}"
        self._check_name(info.tag_field, here)
        self._check_name(info.tag, here)
        kind = {"type": "enum", "name": f"{name}_{info.tag_field}", "symbols": [info.tag]}
        return {"name": info.tag_field, "type": kind}

    def _field(self, field: Any, schema: Any, path: str) -> dict[str, Any]:
        made = {"name": field.encode_name, "type": schema}
        if field.default is not msgspec.NODEFAULT:
            default = field.default
        elif field.default_factory in _EMPTY:
            default = field.default_factory()
        elif isinstance(schema, list) and "null" in schema:
            default = None
        else:
            return made
        branches = schema if isinstance(schema, list) else [schema]
        value = msgspec.to_builtins(default, builtin_types=BUILTINS, str_keys=True)
        for branch in branches:
            try:
                made["default"] = self._json(value, branch)
            except (TypeError, ValueError, AttributeError, KeyError, ArithmeticError):
                continue
            if isinstance(schema, list):
                # The default of a union belongs to its first branch.
                made["type"] = [branch, *(each for each in branches if each is not branch)]
            return made
        raise InvalidSchemaError(f"{path}: the default {default!r} does not fit the Avro type {_shown(schema)}")

    def _json(self, value: Any, schema: Any) -> Any:
        """Return a default as it is written in a schema.

        Raises:
            TypeError, ValueError, AttributeError, KeyError, ArithmeticError: it is not of this type.
        """
        if isinstance(schema, list):
            return self._json(value, schema[0])
        if isinstance(schema, str):
            schema = self._names.get(schema, {"type": schema})
        kind, logical = schema["type"], schema.get("logicalType", "")
        if kind == "record":
            return {each["name"]: self._json(value[each["name"]], each["type"]) for each in schema["fields"]}
        if kind == "array":
            return [self._json(each, schema["items"]) for each in _checked(value, list, tuple, set, frozenset)]
        if kind == "map":
            return {key: self._json(each, schema["values"]) for key, each in value.items()}
        if kind == "enum":
            return schema["symbols"][schema["symbols"].index(value)]
        if logical == "decimal":
            return _unscaled(value, schema)
        if logical == "date":
            return value.toordinal() - _EPOCH.toordinal()
        if logical == "time-micros":
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        if logical.endswith("timestamp-micros"):
            return _micros(value, is_local=logical.startswith("local"))
        if logical == "uuid":
            return str(_checked(value, UUID))
        if kind == "bytes":
            return bytes(_checked(value, bytes, bytearray)).decode("latin-1")
        if kind in ("long", "double") and isinstance(value, bool):
            raise TypeError(kind)
        if kind == "double":
            return float(_checked(value, int, float))
        return _checked(value, {"null": type(None), "boolean": bool, "long": int, "string": str}[kind])

    def _enum(self, info: inspect.EnumType, path: str) -> Any:
        values = [member.value for member in info.cls]
        if all(isinstance(each, int) for each in values):
            return "long"
        if not all(isinstance(each, str) for each in values):
            raise self._refused(path, f"the values of {_text(info.cls)}")
        if not all(_NAME.fullmatch(each) for each in values):
            return "string"
        name = self._name(info.cls, path)
        self._names[name] = {"type": "enum", "name": name, "symbols": values}
        return name

    def _union(self, branches: list[Any], path: str) -> Any:
        flat: list[Any] = []
        for branch in branches:
            flat += [each for each in (branch if isinstance(branch, list) else [branch]) if each not in flat]
        first = ("null", "boolean", "long")  # a bool is an int in Python, and an int fits a double
        flat.sort(key=lambda each: first.index(each) if isinstance(each, str) and each in first else len(first))
        kinds = [_branch_kind(each) for each in flat]
        if len(flat) == 1:
            return flat[0]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise self._refused(path, f"unions with two types that are both {kind}")
        return flat

    def _name(self, cls: Any, path: str) -> str:
        """Return the name of a class in the schema.

        Raises:
            InvalidSchemaError: it is no name in Avro, or another class has it.
        """
        root, given = self._root
        origin = getattr(cls, "__origin__", cls)
        name = given if root is cls else origin.__name__
        if origin is not cls:
            name = "_".join([name, *(getattr(each, "__name__", "") for each in cls.__args__)])
        self._check_name(name, path)
        if name in _RESERVED:
            raise InvalidSchemaError(f"{path or name}: {name} is a type of Avro's own; give the class another name")
        other = self._classes.setdefault(name, cls)
        if other != cls:
            raise InvalidSchemaError(f"{path or name}: two classes are named {name}; Avro needs different names")
        return str(name)

    @staticmethod
    def _check_name(name: Any, path: str) -> None:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise InvalidSchemaError(f"{path or name}: {name!r} is no name in Avro: letters, digits and _ only")

    @staticmethod
    def _refused(path: str, what: str) -> InvalidSchemaError:
        where = f"field {path.lstrip('.')}: " if path else ""
        return InvalidSchemaError(f"{where}Avro has no type for {what}")


def _branch_kind(schema: Any) -> str:
    """Return what distinguishes a branch of a union: its name, or its type."""
    return schema if isinstance(schema, str) else str(schema["type"])


def _checked(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(type(value))
    return value


def _decimal(extra: Mapping[str, Any], path: str) -> dict[str, Any]:
    precision, scale = extra.get("precision", _PRECISION), extra.get("scale", _SCALE)
    if not (type(precision) is type(scale) is int and 0 <= scale <= precision and precision > 0):
        raise InvalidSchemaError(
            f"field {path.lstrip('.')}: a decimal needs 0 <= scale <= precision, got precision {precision} and scale"
            f" {scale}"
        )
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _unscaled(value: Any, schema: Mapping[str, Any]) -> str:
    """Return the default of a decimal: its unscaled value in two's complement, each byte as a character."""
    unscaled = _checked(value, Decimal).scaleb(schema["scale"])
    if unscaled != unscaled.to_integral_value() or len(unscaled.as_tuple().digits) > schema["precision"]:
        raise ValueError
    number = int(unscaled)
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True).decode("latin-1")


def _micros(value: Any, *, is_local: bool) -> int:
    if (_checked(value, datetime).tzinfo is None) is not is_local:
        raise ValueError
    passed = value.replace(tzinfo=UTC) - _EPOCH if is_local else value - _EPOCH
    return int((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds)


def _shown(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()[:100]


def _text(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
