"""Decodes payloads into columns of the user's schema.

A format is given the requested fields, and then whole columns of payloads; it does not depend on topics. JSON is the
only one so far. Payloads whose schemas are in the registry are decoded by :mod:`pyspark_danube._values`.

A malformed payload is null in all its fields (``PERMISSIVE``; the column ``payload`` has the bytes), or ends the query
(``FAILFAST``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from danube.model.errors import ConfigurationError
from pyspark_danube._options import REGISTRY_FORMATS, nearest

if TYPE_CHECKING:
    import pyarrow.json

__all__ = ["FORMATS", "JsonFormat", "MalformedPayloadError", "PayloadDecoder", "PayloadFormat", "find_format"]


class MalformedPayloadError(ValueError):
    """A malformed payload, reported to the reader, which knows its origin."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
        """Its place in the column."""


class PayloadDecoder(Protocol):
    """Decodes payloads into given fields."""

    def columns(self, payloads: pa.Array) -> list[pa.Array]:
        """Return a column for each field, as long as ``payloads`` (binary, without nulls).

        Values may be null even where the field is not nullable.

        Raises:
            MalformedPayloadError: a payload is malformed, and the mode is ``FAILFAST``.
        """


class PayloadFormat(Protocol):
    """An encoding of payloads. Can be pickled."""

    name: str
    """As in the option ``payloadFormat``."""

    def decoder(self, fields: pa.Schema, mode: str) -> PayloadDecoder:
        """Return a decoder.

        Args:
            fields: names and Arrow types of the columns to build.
            mode: ``PERMISSIVE`` or ``FAILFAST``.

        Raises:
            ConfigurationError: the format does not support a type.
        """


class JsonFormat:
    """One JSON object in each payload; fields by name. Missing ones are null, unrequested ones are skipped."""

    name = "json"

    def decoder(self, fields: pa.Schema, mode: str) -> PayloadDecoder:
        """Return a decoder for JSON objects."""
        for field in fields:
            _check_type(field.name, field.type)
        return _JsonDecoder(fields, fail_fast=mode == "FAILFAST")


FORMATS: Final[dict[str, PayloadFormat]] = {"json": JsonFormat()}
"""The available formats, by name; ``binary`` decodes nothing."""


def find_format(name: str) -> PayloadFormat | None:
    """Return a format by its name; None for ``binary``.

    Raises:
        ConfigurationError: the format is unknown.
    """
    lowered = name.lower()
    if lowered == "binary":
        return None
    if lowered not in FORMATS:
        known = ["binary", *FORMATS, *REGISTRY_FORMATS]
        remedy = nearest(name, known) or f" there are {', '.join(known)}"
        raise ConfigurationError(f"there is no payloadFormat {name!r};{remedy}")
    return FORMATS[lowered]


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_interval(kind) or pa.types.is_duration(kind):
        remedy = "; use a STRUCT or read it as STRING" if pa.types.is_map(kind) else ""
        raise ConfigurationError(f"field {name!r}: payloadFormat=json does not support the type {kind}{remedy}")
    inner = []
    if pa.types.is_list(kind):
        inner = [(f"{name}[]", kind.value_type)]
    elif pa.types.is_struct(kind):
        inner = [(f"{name}.{field.name}", field.type) for field in kind]
    for path, part in inner:
        if pa.types.is_date(part):
            raise ConfigurationError(f"field {path!r}: payloadFormat=json supports dates only as top-level fields")
        _check_type(path, part)


class _JsonDecoder:
    """Parses a column at once, as lines; if that fails, in halves until each malformed payload is isolated.

    A column counts as parsed only if each payload begins and ends as an object does and there are as many objects as
    payloads: otherwise two objects in one payload could hide an empty payload.
    """

    def __init__(self, fields: pa.Schema, *, fail_fast: bool) -> None:
        self._kinds: list[pa.DataType] = fields.types
        # A missing value of a non-nullable field would make the whole column fail. The caller checks for
        # disallowed nulls.
        self._schema = pa.schema([field.with_type(_loosened(field.type)).with_nullable(True) for field in fields])
        self._fail_fast = fail_fast
        # Arrow reads a date as a number of days; JSON has 2013-01-31.
        written = pa.schema(
            [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in self._schema]
        )
        self._options = _parse_options(written)
        self._written = written
        finer = _with_times(written, lambda kind: pa.timestamp("ns", kind.tz))
        self._finer_options = None if finer == written else _parse_options(finer)
        """For times with more than six digits of a second, written by other software: they are truncated."""
        self._text_options = _parse_options(_with_times(written, lambda kind: pa.string()))
        """For any number of digits, and years outside the range of nanoseconds."""

    def columns(self, payloads: pa.Array) -> list[pa.Array]:
        """Return a column for each field."""
        rows = payloads.to_pylist()
        tables: list[pa.Table] = []
        self._parse(rows, 0, tables)
        table = pa.concat_tables(tables)
        return [_fitted(_one_array(column), kind) for column, kind in zip(table.columns, self._kinds, strict=True)]

    def _parse(self, rows: list[bytes], first: int, tables: list[pa.Table]) -> None:
        try:
            tables.append(self._parse_all(rows))
        except ValueError as error:  # Arrow's errors of content are ValueErrors, too
            if len(rows) > 1:
                middle = len(rows) // 2
                self._parse(rows[:middle], first, tables)
                self._parse(rows[middle:], first + middle, tables)
            elif self._fail_fast:
                raise MalformedPayloadError(first, str(error)) from error
            else:
                tables.append(pa.table([pa.nulls(1, field.type) for field in self._schema], schema=self._schema))

    def _parse_all(self, rows: list[bytes]) -> pa.Table:
        for row in rows:
            if row[:1] != b"{" or row[-1:] != b"}":
                stripped = row.strip(b" \t\r\n")
                if stripped[:1] != b"{" or stripped[-1:] != b"}":
                    raise ValueError("it is not a JSON object")
        text = b"\n".join(rows)
        try:
            table = _read(text, self._options)
        except ValueError:
            # Not in nanoseconds from the start: those reach from 1677 to 2262 only.
            if self._finer_options is None:
                raise
            try:
                table = _read(text, self._finer_options)
            except ValueError:
                found = _read(text, self._text_options).select(self._written.names)
                arrays = [
                    _cut_times(_one_array(column), field.type)
                    for column, field in zip(found.columns, self._written, strict=True)
                ]
                table = pa.Table.from_arrays(arrays, schema=self._written)
        if table.num_rows != len(rows):
            raise ValueError("it is not one JSON object")
        # Not "safe", which would refuse to truncate nanoseconds. Other values have their types already, or are text.
        return table.select(self._schema.names).cast(self._schema, safe=False)


def _with_times(schema: pa.Schema, change: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """Return a schema with another type for each of its times, inner ones too."""

    def changed(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(kind):
            return change(kind)
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(changed(kind.value_type)))
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(changed(field.type)) for field in kind])
        return kind

    return pa.schema([field.with_type(changed(field.type)) for field in schema])


def _loosened(kind: pa.DataType) -> pa.DataType:
    """Return a type whose inner values may all be null."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_loosened(kind.value_type)).with_nullable(True))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_loosened(field.type)).with_nullable(True) for field in kind])
    return kind


def _fitted(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array as a type that differs only in which inner values may be null, without checking values."""
    if found.type == kind:
        return found
    if pa.types.is_list(kind):
        values = _fitted(found.values, kind.value_type)
        return pa.ListArray.from_arrays(found.offsets, values, type=kind, mask=found.is_null())
    inner = [_fitted(found.field(index), field.type) for index, field in enumerate(kind)]
    return pa.StructArray.from_arrays(inner, fields=list(kind), mask=found.is_null())


_FINER = re.compile(r"(\.[0-9]{6})[0-9]+")
_SIX: Final = r"\1"
_OF_TIMES = re.compile(r"[-+0-9T:.Z ]*")


def _cut_times(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array whose times, including nested ones, are texts, to its final type.

    Raises:
        ValueError: a text is not a valid time.
    """
    if found.type == kind:
        return found
    if pa.types.is_list(kind):
        values = _cut_times(found.values, kind.value_type)
        return pa.ListArray.from_arrays(found.offsets, values, type=kind, mask=found.is_null())
    if pa.types.is_struct(kind):
        inner = [_cut_times(found.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=found.is_null())
    lines = []
    for text in found.to_pylist():
        if text is not None and not _OF_TIMES.fullmatch(text):
            raise ValueError(f"{text!r} is not a time")
        # Parse it as JSON again, because Arrow accepts other forms of times there than elsewhere.
        value = "null" if text is None else f'"{_FINER.sub(_SIX, text)}"'
        lines.append(f'{{"t":{value}}}')
    table = _read("\n".join(lines).encode(), _parse_options(pa.schema([("t", kind)])))
    return _one_array(table.column(0)) if lines else pa.array([], kind)


def _parse_options(schema: pa.Schema) -> pyarrow.json.ParseOptions:
    from pyarrow import json

    return json.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore")


def _read(text: bytes, options: pyarrow.json.ParseOptions) -> pa.Table:
    from pyarrow import json

    reading = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return json.read_json(pa.BufferReader(text), read_options=reading, parse_options=options)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
