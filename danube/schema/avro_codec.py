"""Codecs for Avro: payloads are single data without a container, encoded and decoded by fastavro.

The library takes defaults of a reader's schema as they are written there; :func:`_with_values` replaces them by the
values that they stand for. It writes many values that do not fit (1.5 as a ``long``), so values of types are checked
first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import msgspec

from danube.model.errors import InvalidSchemaError
from danube.schema import avro
from danube.schema.avro_types import BUILTINS, avro_schema
from danube.schema.kinds import Source, decode_json, encode_json, missing
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType
from danube.schema.value_codec import ValueCodec, misfit, undecodable

__all__ = ["AvroCodec"]

_FAILURES: Final = (ValueError, TypeError, LookupError, ArithmeticError, EOFError, AttributeError, RecursionError,
                    MemoryError)  # fmt: skip
"""What the library raises for values and payloads that do not fit; SchemaResolutionError is not among them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING: Final = object()

Check = Callable[[Any], str | None]
"""Returns where in a value something is that the library would write wrongly, and what; None if there is nothing."""


class AvroCodec(ValueCodec[Any]):
    """Values of a type, or of a schema: dicts, lists and so on."""

    def __init__(self, source: Source, kind: Any = None, *, shares_defaults: bool = False) -> None:
        """Make a codec.

        Args:
            source: the schema.
            kind: the type of values; None: what the library makes of the schema.
            shares_defaults: whether values without a type may share the lists and dicts of defaults: for callers that
                do not change them, since a copy of each value costs as much as decoding it.

        Raises:
            InvalidSchemaError: the schema is invalid, or a library is missing.
        """
        parsed = avro.parse(source, DEFAULT_LIMITS)
        self.source = source
        self.name = parsed.name
        self._canonical = parsed.canonical
        self._kind = kind
        self._shares_defaults = shares_defaults
        self._schema, self._names = _compiled(source)
        self._write, self._fits = _writing()
        self._check = _timing(self._schema, self._names, {})

    @classmethod
    def of_type(cls, kind: Any, name: str, namespace: str) -> AvroCodec:
        """Return the codec for a type, whose schema is derived from it; as :func:`avro_types.avro_schema`."""
        return cls(Source(SchemaType.AVRO, encode_json(avro_schema(kind, name=name, namespace=namespace))), kind)

    @property
    def definition(self) -> tuple[Any, Mapping[str, Any]]:
        """The schema in the form of the library, with full names, and its named types; not to be changed."""
        return self._schema, self._names

    def encode(self, value: Any) -> bytes:
        """Return the datum of a value; as :meth:`ValueCodec.encode`."""
        kind = self._kind
        data = value
        buffer = BytesIO()
        try:
            if kind is not None:
                data = msgspec.to_builtins(value, builtin_types=BUILTINS, str_keys=True)
                msgspec.convert(data, kind, builtin_types=BUILTINS, str_keys=True)
            elif not self._fits(data, self._schema, raise_errors=False, disable_tuple_notation=True):
                raise misfit(self._why(data, "no branch of the schema takes it"))
            if self._check is not None and (why := self._check(data)) is not None:
                raise misfit(why)
            self._write(buffer, self._schema, data, disable_tuple_notation=True)
        except msgspec.ValidationError as error:
            raise misfit(error) from error
        except _FAILURES as error:
            raise misfit(self._why(data, error)) from error
        return buffer.getvalue()

    def _why(self, data: Any, error: Any) -> str:
        """Return what the library's own check finds, since its errors of writing do not always name the field."""
        from fastavro.validation import ValidationError

        try:
            self._fits(data, self._schema, disable_tuple_notation=True)
        except ValidationError as found:
            return str(found.errors[0]) if found.errors else str(found)
        except _FAILURES:
            return str(error)
        return str(error)

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        import fastavro

        own, kind = self._schema, self._kind
        schema, reader = own, None
        if writer is not None and not self._is_own(writer):
            schema, _ = _compiled(writer)
            reader, names = _compiled(self.source)
            for each in (reader, *names.values()):
                _with_values(each, names)
        # Values of types are copies; of a default that is a list or a dict, others would share one object.
        shares = kind is None and reader is not None and not self._shares_defaults
        read = fastavro.schemaless_reader
        failures = (fastavro.read.SchemaResolutionError, msgspec.ValidationError, *_FAILURES)

        def decode(payload: bytes) -> Any:
            buffer = BytesIO(payload)
            try:
                value = read(buffer, schema, reader)
                if kind is not None:
                    value = msgspec.convert(value, kind, builtin_types=BUILTINS, str_keys=True)
            except failures as error:
                raise undecodable(SchemaType.AVRO, str(error) or type(error).__name__) from error
            if buffer.tell() != len(payload):
                raise undecodable(SchemaType.AVRO, f"{len(payload) - buffer.tell()} bytes follow the value")
            return copy.deepcopy(value) if shares else value

        return decode

    def _is_own(self, writer: Source) -> bool:
        if (writer.text, writer.needs) == (self.source.text, self.source.needs):
            return True
        return avro.parse(writer, DEFAULT_LIMITS).canonical == self._canonical

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return AvroCodec(source, self._kind, shares_defaults=self._shares_defaults)


def _writing() -> tuple[Any, Any]:
    """Return what writes a value, and what checks it."""
    import fastavro

    return fastavro.schemaless_writer, fastavro.validate


def _compiled(source: Source) -> tuple[Any, dict[str, Any]]:
    """Return a schema in the form of the library, and its named types."""
    try:
        import fastavro
    except ImportError:
        raise missing("fastavro", "avro") from None
    names: dict[str, Any] = {}
    try:
        for each in source.needs:
            fastavro.parse_schema(decode_json(each.text, DEFAULT_LIMITS), named_schemas=names)
        return fastavro.parse_schema(decode_json(source.text, DEFAULT_LIMITS), named_schemas=names), names
    except (fastavro.schema.SchemaParseException, *_FAILURES) as error:
        raise InvalidSchemaError(f"the Avro schema cannot be used: {error}") from error


# ---------------------------------------------------------------------------------------------------------------------
# Defaults


def _with_values(schema: Any, names: dict[str, Any]) -> None:
    """Replace the defaults of a record, and of the records in it, by the values that they stand for."""
    if isinstance(schema, list):
        for branch in schema:
            _with_values(branch, names)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if "default" in field and not field.get("__danube_value", False):
                field["default"] = _value(field["default"], field["type"], names)
                field["__danube_value"] = True
            _with_values(field["type"], names)
        for key in ("items", "values"):
            _with_values(schema.get(key), names)


def _value(default: Any, schema: Any, names: dict[str, Any]) -> Any:
    """Return the value that a default stands for, as the library would decode it."""
    if isinstance(schema, list):
        return _value(default, schema[0], names)
    if isinstance(schema, str):
        schema = names.get(schema, {"type": schema})
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind == "record":
        return {
            each["name"]: (
                _value(default[each["name"]], each["type"], names)
                if each["name"] in default
                else each["default"]
                if each.get("__danube_value", False)
                else _value(each["default"], each["type"], names)
            )
            for each in schema["fields"]
        }
    if kind == "array":
        return [_value(each, schema["items"], names) for each in default]
    if kind == "map":
        return {key: _value(each, schema["values"], names) for key, each in default.items()}
    if kind in ("bytes", "fixed"):
        raw = default.encode("latin-1")
        if logical == "decimal":
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-schema.get("scale", 0))
        return raw
    if logical == "date":
        return date.fromordinal(_EPOCH.toordinal() + default)
    if logical in ("time-millis", "time-micros"):
        passed = timedelta(**{"milliseconds" if logical.endswith("millis") else "microseconds": default})
        return (datetime.min + passed).time()
    if logical.endswith(("timestamp-millis", "timestamp-micros")):
        moment = _EPOCH + timedelta(**{"milliseconds" if logical.endswith("millis") else "microseconds": default})
        return moment.replace(tzinfo=None) if logical.startswith("local") else moment
    return UUID(default) if logical == "uuid" else float(default) if kind in ("float", "double") else default


# ---------------------------------------------------------------------------------------------------------------------
# Times


def _timing(schema: Any, names: dict[str, Any], known: dict[str, Check]) -> Check | None:
    """Return a check of the times in values: of a naive one, the library would write the machine's local time.

    None if the schema has none.
    """
    if isinstance(schema, list):
        checks = [each for branch in schema if (each := _timing(branch, names, known)) is not None]
        return _any_of(checks) if checks else None
    if isinstance(schema, str):
        if schema not in names:
            return None
        schema = names[schema]
    logical = schema.get("logicalType", "")
    if logical.endswith(("timestamp-millis", "timestamp-micros")):
        return _local if logical.startswith("local") else _zoned
    if logical in ("time-millis", "time-micros"):
        return _plain_time
    kind = schema["type"]
    if kind == "record":
        return _record_check(schema, names, known)
    if kind in ("array", "map"):
        inner = _timing(schema["items" if kind == "array" else "values"], names, known)
        return None if inner is None else _list_check(inner) if kind == "array" else _map_check(inner)
    return None


def _record_check(schema: Any, names: dict[str, Any], known: dict[str, Check]) -> Check | None:
    name = schema["name"]
    if name not in known:
        checks: list[tuple[str, Check]] = []

        def check(value: Any) -> str | None:
            if isinstance(value, dict):
                for field, inner in checks:
                    if (why := inner(value.get(field))) is not None:
                        return f".{field}{why}" if why[0] in ".[{:" else why
            return None

        known[name] = check
        for field in schema["fields"]:
            inner = _timing(field["type"], names, known)
            if inner is not None:
                checks.append((field["name"], inner))
        return check if checks else None
    return known[name]


def _any_of(checks: list[Check]) -> Check:
    return lambda value: next((why for each in checks if (why := each(value)) is not None), None)


def _list_check(inner: Check) -> Check:
    def check(value: Any) -> str | None:
        for index, each in enumerate(value if isinstance(value, list | tuple) else ()):
            if (why := inner(each)) is not None:
                return f"[{index}]{why}"
        return None

    return check


def _map_check(inner: Check) -> Check:
    def check(value: Any) -> str | None:
        for key, each in value.items() if isinstance(value, dict) else ():
            if (why := inner(each)) is not None:
                return f"[{key!r}]{why}"
        return None

    return check


def _zoned(value: Any) -> str | None:
    if isinstance(value, datetime) and value.tzinfo is None:
        return f": {value} has no time zone"
    return None


def _local(value: Any) -> str | None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f": {value} has a time zone, and the schema is for local times"
    return None


def _plain_time(value: Any) -> str | None:
    if isinstance(value, time) and value.tzinfo is not None:
        return f": {value} has a time zone, which Avro's times have not"
    return None
