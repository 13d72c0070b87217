"""The protobuf schema of a DataFrame: that of the subject, with fields for the columns that it lacks. Pure.

A DataFrame has no field numbers. So the subject's latest version says which message is written, and a field keeps its
number as long as it keeps its name; a new one gets the number after all that any version has used in its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from danube.model.errors import ConfigurationError
from pyspark_danube._values import VALUE

__all__ = ["grown", "used_numbers"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMESTAMP_FILE: Final = "google/protobuf/timestamp.proto"
_TIMESTAMP: Final = ".google.protobuf.Timestamp"
_LIBRARYS_NUMBERS: Final = range(19_000, 20_000)
"""Numbers that protobuf keeps for itself."""
_F = FieldDescriptorProto
_SCALARS: Final[dict[type[DataType], FieldDescriptorProto.Type.ValueType]] = {
    BooleanType: _F.TYPE_BOOL,
    ByteType: _F.TYPE_INT32,
    ShortType: _F.TYPE_INT32,
    IntegerType: _F.TYPE_INT32,
    LongType: _F.TYPE_INT64,
    FloatType: _F.TYPE_FLOAT,
    DoubleType: _F.TYPE_DOUBLE,
    StringType: _F.TYPE_STRING,
    CharType: _F.TYPE_STRING,
    VarcharType: _F.TYPE_STRING,
    BinaryType: _F.TYPE_BYTES,
}


def grown(
    kind: DataType, file: FileDescriptorProto | None, message: str, used: Mapping[str, int] | None = None
) -> FileDescriptorProto | None:
    """Return the file with a field for each column; None if it has all.

    Args:
        kind: type of the column ``value``.
        file: of the subject's latest version; it is not changed. None: there is none, a file is made.
        message: full name of the message that is written.
        used: the highest number that other versions have used, by full names of messages.

    Raises:
        ConfigurationError: a type or the name of a column has no counterpart in protobuf.
    """
    if not isinstance(kind, StructType):
        raise ConfigurationError(
            f"payloadFormat=protobuf writes messages, and {VALUE!r} is {kind.simpleString()}; select a struct, for"
            f" example df.selectExpr('struct(*) AS {VALUE}')"
        )
    made = FileDescriptorProto(syntax="proto3")
    if file is None:
        made.message_type.add(name=message)
    else:
        made.CopyFrom(file)
    before = made.SerializeToString(deterministic=True)
    _Growing(made, used or {}).grow(message, kind, VALUE)
    if file is not None and made.SerializeToString(deterministic=True) == before:
        return None
    return made


def used_numbers(files: Iterable[FileDescriptorProto]) -> dict[str, int]:
    """Return the highest number of a field that files use, by full names of messages."""
    found: dict[str, int] = {}
    for file in files:
        for name, message in _messages(file):
            found[name] = max(found.get(name, 0), _highest(message))
    return found


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    prefix = f"{file.package}." if file.package else ""
    waiting = [(prefix + each.name, each) for each in file.message_type]
    while waiting:
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{each.name}", each) for each in message.nested_type]


def _highest(message: DescriptorProto) -> int:
    """Return the highest number that a message uses or reserves; ends of ranges are after their last number."""
    ends = [each.end - 1 for each in (*message.reserved_range, *message.extension_range)]
    # "reserved 5 to max" and the like leave no numbers after them: what is below is free.
    numbers: list[int] = [field.number for field in message.field] + [end for end in ends if end < 1 << 28]
    return max(numbers, default=0)


class _Growing:
    def __init__(self, file: FileDescriptorProto, used: Mapping[str, int]) -> None:
        self._file = file
        self._used = used
        self._known = dict(_messages(file))

    def grow(self, name: str, kind: StructType, path: str) -> None:
        """Add the fields for columns that a message of the file lacks, and those that messages in it lack."""
        message = self._known.get(name)
        if message is None:
            return  # of another file: the encoder reports what it lacks
        fields = {field.name: field for field in message.field}
        for column in kind:
            where = f"{path}.{column.name}"
            known = fields.get(column.name)
            if known is None:
                self._add(name, message, column.name, column.dataType, where)
            elif known.type == _F.TYPE_MESSAGE:
                self._within(known.type_name.removeprefix("."), column.dataType, where)

    def _within(self, name: str, kind: DataType, path: str) -> None:
        if isinstance(kind, MapType):
            entry = self._known.get(name)
            if entry is None or not entry.options.map_entry or entry.field[1].type != _F.TYPE_MESSAGE:
                return
            name, kind = entry.field[1].type_name.removeprefix("."), kind.valueType
        elif isinstance(kind, ArrayType):
            kind = kind.elementType
        if isinstance(kind, StructType):
            self.grow(name, kind, path)

    def _add(self, owner: str, message: DescriptorProto, name: str, kind: DataType, path: str) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"the column {path!r} has no valid name for protobuf (letters, digits and _); rename it, for example"
                f" `{name}` AS {re.sub('[^A-Za-z0-9_]', '_', name)}"
            )
        if name in message.reserved_name:
            raise ConfigurationError(
                f"the column {path!r} has a name that the message {owner} has reserved, for a field that it had;"
                " rename it"
            )
        number = max(_highest(message), self._used.get(owner, 0)) + 1
        if number in _LIBRARYS_NUMBERS:
            number = _LIBRARYS_NUMBERS.stop
        field = message.field.add(name=name, number=number, label=_F.LABEL_OPTIONAL)
        if isinstance(kind, MapType):
            self._set_map(owner, message, field, kind, path)
            return
        if isinstance(kind, ArrayType):
            field.label = _F.LABEL_REPEATED
            kind = kind.elementType
            path += "[]"
        self._set_type(owner, message, field, kind, path, _camel(name))
        is_scalar = field.label == _F.LABEL_OPTIONAL and field.type != _F.TYPE_MESSAGE
        if is_scalar and self._file.syntax == "proto3":
            # So that null differs from 0; the library wants a "oneof" of its own for each, after all others.
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")

    def _set_type(
        self, owner: str, message: DescriptorProto, field: FieldDescriptorProto, kind: DataType, path: str, name: str
    ) -> None:
        """Set the type of a field; a struct becomes a message of this name within the owner."""
        if isinstance(kind, StructType):
            field.type = _F.TYPE_MESSAGE
            inner = self._nested(owner, message, name)
            field.type_name = f".{inner}"
            self.grow(inner, kind, path)
        elif isinstance(kind, TimestampType):
            field.type = _F.TYPE_MESSAGE
            field.type_name = _TIMESTAMP
            if _TIMESTAMP_FILE not in self._file.dependency:
                self._file.dependency.append(_TIMESTAMP_FILE)
        elif (found := _SCALARS.get(type(kind))) is not None:
            field.type = found
        else:
            remedy = (
                "wrap it in a STRUCT" if isinstance(kind, ArrayType | MapType) else "cast it, for example to STRING"
            )
            raise ConfigurationError(
                f"payloadFormat=protobuf does not support {path!r} of type {kind.simpleString()} in a field that is"
                f" added to the schema; {remedy}"
            )

    def _set_map(
        self, owner: str, message: DescriptorProto, field: FieldDescriptorProto, kind: MapType, path: str
    ) -> None:
        if not isinstance(kind.keyType, StringType | IntegerType | LongType):
            raise ConfigurationError(
                f"payloadFormat=protobuf does not support the keys of {path!r}, of type {kind.keyType.simpleString()};"
                " cast them to STRING, INT or BIGINT"
            )
        entry = self._nested(owner, message, f"{_camel(field.name)}Entry", is_entry=True)
        made = self._known[entry]
        made.options.map_entry = True
        key = made.field.add(name="key", number=1, label=_F.LABEL_OPTIONAL)
        self._set_type(entry, made, key, kind.keyType, path, "")
        value = made.field.add(name="value", number=2, label=_F.LABEL_OPTIONAL)
        # A message of the values is beside the entry, which has nothing but key and value.
        self._set_type(owner, message, value, kind.valueType, f"{path}[]", _camel(field.name))
        field.label = _F.LABEL_REPEATED
        field.type = _F.TYPE_MESSAGE
        field.type_name = f".{entry}"

    def _nested(self, owner: str, message: DescriptorProto, name: str, *, is_entry: bool = False) -> str:
        """Add a message within another one, and return its full name."""
        taken = {each.name for each in (*message.nested_type, *message.enum_type)}
        while not is_entry and name in taken:
            name += "_"
        made = message.nested_type.add(name=name)
        full = f"{owner}.{name}"
        self._known[full] = made
        return full


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Field"
