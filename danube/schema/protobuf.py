"""Protobuf schemas: parsed into descriptors, which are compared by the full names of messages and the field numbers.

The text of a schema is a .proto file, or a ``FileDescriptorProto`` in Base64, which some clients of Confluent's
registry send. For .proto files the caller provides a compiler.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from danube.model.errors import InvalidSchemaError, SchemaTooLargeError
from danube.schema.kinds import Compile, Needed, Reason, Source, missing
from danube.schema.limits import SchemaLimits
from danube.schema.modes import Policy, SchemaType

__all__ = ["ProtobufSchema", "default_json_name", "parse", "proto_text_of"]

_WELL_KNOWN: Final = ("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
                      "timestamp", "type", "wrappers")  # fmt: skip
_OWN_NAME: Final = "schema.proto"
"""Name of a file whose descriptor has none."""

_F: Final = FieldDescriptorProto
_GROUPS: Final = (
    (_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM),
    (_F.TYPE_SINT32, _F.TYPE_SINT64),
    (_F.TYPE_STRING, _F.TYPE_BYTES),
    (_F.TYPE_FIXED32, _F.TYPE_SFIXED32),
    (_F.TYPE_FIXED64, _F.TYPE_SFIXED64),
    (_F.TYPE_FLOAT,),
    (_F.TYPE_DOUBLE,),
)
"""Groups of types with the same encoding (protobuf documentation, "Updating A Message Type")."""
_GROUP_OF: Final = {kind: index for index, kinds in enumerate(_GROUPS) for kind in kinds}
_TYPE_NAMES: Final = {value: name.removeprefix("TYPE_").lower() for name, value in _F.Type.items()}


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A parsed protobuf schema."""

    file: FileDescriptorProto
    """The descriptor, with full names of types and without source positions."""
    messages: Mapping[str, DescriptorProto]
    """Messages by full name, including those of imported files."""
    own: tuple[str, ...]
    """Full names of the messages in the file itself."""
    is_checked_utf8: frozenset[str]
    """Messages whose strings must be UTF-8: those of all files except proto2."""
    closed_enums: Mapping[str, frozenset[int]]
    """Numbers of proto2 enums, by full name. A value with another number counts as absent."""
    canonical: str
    """The descriptor in Base64, without the file name and derived names."""
    name: str
    """The full name of the message type of payloads; empty if the file has no messages."""
    pool: Any = dataclasses.field(compare=False, repr=False)
    """A ``DescriptorPool`` of the library, with the file and its imports."""

    @property
    def type(self) -> SchemaType:
        """Protobuf."""
        return SchemaType.PROTOBUF

    @property
    def descriptor(self) -> bytes:
        """The ``FileDescriptorProto``."""
        return bytes(self.file.SerializeToString(deterministic=True))

    def kind(self, field: FieldDescriptorProto) -> str:
        """Return the kind of a field: ``scalar``, ``message``, ``group`` or ``map``."""
        if field.type == _F.TYPE_GROUP:
            return "group"
        if field.type != _F.TYPE_MESSAGE:
            return "scalar"
        inner = self.messages.get(field.type_name.removeprefix("."))
        return "map" if inner is not None and inner.options.map_entry else "message"

    def refuses(self, writer: ProtobufSchema, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return the reasons why this schema cannot read data of another one. All policies are the same."""
        return list(dict.fromkeys(_compare(self, writer)))


# ---------------------------------------------------------------------------------------------------------------------
# Parsing


def parse(source: Source, limits: SchemaLimits, compile_proto: Compile | None) -> ProtobufSchema:
    """Parse a .proto file or a descriptor.

    Raises:
        InvalidSchemaError: the text is invalid, an import is missing, the file has no message with the given name, or
            there is no compiler for a .proto file.
        SchemaTooLargeError: a limit was hit; the message names it.
    """
    files: dict[str, FileDescriptorProto] = {}
    before: list[Needed] = []
    for each in source.needs:
        needed = _described(each.text, tuple(before), limits, compile_proto)
        needed.name = each.name
        files[each.name] = needed
        before.append(each)
    own = _described(source.text, source.needs, limits, compile_proto)
    own.name = own.name or _OWN_NAME
    if own.name in files:
        own.name = _OWN_NAME
    files[own.name] = own
    pool, built = _built(own.name, files)
    own = built[own.name]
    messages: dict[str, DescriptorProto] = {}
    checked: set[str] = set()
    closed: dict[str, frozenset[int]] = {}
    for file in built.values():
        inside = dict(_all_messages(file.message_type, file.package))
        messages |= inside
        if file.syntax not in ("", "proto2"):
            checked |= inside.keys()
        else:
            scopes = [(file.package, file.enum_type), *((name, message.enum_type) for name, message in inside.items())]
            closed |= {
                _full(scope, enum.name): frozenset(value.number for value in enum.value)
                for scope, enums in scopes
                for enum in enums
            }
    names = tuple(name for name, _ in _all_messages(own.message_type, own.package))
    payload = source.message or (_full(own.package, own.message_type[0].name) if own.message_type else "")
    if source.message and source.message not in names:
        raise InvalidSchemaError(
            f"the protobuf schema has no message {source.message!r}; it has: {', '.join(names[:10]) or 'none'}"
        )
    return ProtobufSchema(own, messages, names, frozenset(checked), closed, _canonical(own), payload, pool)


def _described(
    text: str, needs: tuple[Needed, ...], limits: SchemaLimits, compile_proto: Compile | None
) -> FileDescriptorProto:
    """Return the descriptor of a schema in either form."""
    raw = _from_base64(text)
    if raw is None:
        if compile_proto is None:
            raise missing("a compiler for .proto files", "protobuf")
        described = FileDescriptorSet.FromString(compile_proto(text, needs))
        file = described.file[-1]
    else:
        try:
            file = FileDescriptorProto.FromString(raw)
        except DecodeError as error:
            raise InvalidSchemaError(
                f"the protobuf schema is Base64, but does not contain a FileDescriptorProto: {error}"
            ) from error
    if file.ByteSize() > limits.max_schema_bytes:
        raise SchemaTooLargeError(
            f"the descriptor of the schema has {file.ByteSize()} bytes; max_schema_bytes is {limits.max_schema_bytes}"
        )
    if _depth(file.message_type) > limits.max_schema_depth:
        raise SchemaTooLargeError(
            f"the schema is nested too deeply: max_schema_depth is {limits.max_schema_depth} nested messages"
        )
    file.ClearField("source_code_info")
    return file


def proto_text_of(text: str) -> str:
    """Return a schema in either form as a .proto file.

    Raises:
        InvalidSchemaError: it is Base64, and not of a descriptor.
    """
    raw = _from_base64(text)
    if raw is None:
        return text
    from danube.schema.proto_text import text_of

    try:
        return text_of(FileDescriptorProto.FromString(raw))
    except DecodeError as error:
        raise InvalidSchemaError(f"a referenced schema is Base64, but contains no descriptor: {error}") from error


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def _depth(messages: Any) -> int:
    deepest = 0
    level = list(messages)
    while level:
        deepest += 1
        level = [inner for message in level for inner in message.nested_type]
    return deepest


def _built(name: str, files: Mapping[str, FileDescriptorProto]) -> tuple[Any, dict[str, FileDescriptorProto]]:
    """Return a descriptor pool with a file and its imports, and these as it resolved them, with full names of types.

    The latter without protobuf's own files, which do not change.
    """
    pool = DescriptorPool()
    added: list[str] = []

    def add(wanted: str, importing: tuple[str, ...]) -> None:
        if wanted in added:
            return
        if wanted in importing:
            raise InvalidSchemaError(f"the protobuf schema is invalid: {wanted!r} imports itself")
        file = files.get(wanted) or _well_known(wanted)
        if file is None:
            raise InvalidSchemaError(
                f"the protobuf schema imports {wanted!r}, but has no reference of this name; add one"
            )
        for dependency in file.dependency:
            add(dependency, (*importing, wanted))
        added.append(wanted)
        pool.AddSerializedFile(file.SerializeToString())

    found: dict[str, FileDescriptorProto] = {}
    try:
        add(name, ())
        for each in added:
            if each in files:
                found[each] = FileDescriptorProto()
                pool.FindFileByName(each).CopyToProto(found[each])
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidSchemaError(f"the protobuf schema is invalid: {error}") from error
    return pool, found


def _well_known(name: str) -> FileDescriptorProto | None:
    short = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if short not in _WELL_KNOWN or name != f"google/protobuf/{short}.proto":
        return None
    found = FileDescriptorProto()
    importlib.import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR.CopyToProto(found)
    return found


def _full(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _all_messages(messages: Any, scope: str) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        name = _full(scope, message.name)
        yield name, message
        yield from _all_messages(message.nested_type, name)


def _canonical(file: FileDescriptorProto) -> str:
    pure = FileDescriptorProto()
    pure.CopyFrom(file)
    pure.ClearField("name")
    for _, message in list(_all_messages(pure.message_type, "")):
        for field in (*message.field, *message.extension):
            if field.extendee or field.json_name == default_json_name(field.name):
                field.ClearField("json_name")
    for field in pure.extension:
        field.ClearField("json_name")
    for message in pure.message_type:
        _put_in_order(message)
    return base64.b64encode(pure.SerializeToString(deterministic=True)).decode()


def _put_in_order(message: DescriptorProto) -> None:
    """Sort fields, oneofs and map entries, whose order has no meaning."""
    names = [oneof.name for oneof in message.oneof_decl]
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    order = sorted(range(len(names)), key=lambda index: (index in synthetic, names[index]))
    places = {old: new for new, old in enumerate(order)}
    oneofs = [message.oneof_decl[index] for index in order]
    fields = sorted(message.field, key=lambda field: field.number)
    for field in fields:
        if field.HasField("oneof_index"):
            field.oneof_index = places[field.oneof_index]
    entries = sorted((each for each in message.nested_type if each.options.map_entry), key=lambda each: each.name)
    others = [each for each in message.nested_type if not each.options.map_entry]
    for each in others:
        _put_in_order(each)
    ordered = DescriptorProto(field=fields, oneof_decl=oneofs, nested_type=[*others, *entries])
    for name in ("field", "oneof_decl", "nested_type"):
        message.ClearField(name)
    message.MergeFrom(ordered)


def default_json_name(name: str) -> str:
    """Return the default JSON name of a field."""
    made: list[str] = []
    is_upper = False
    for character in name:
        if character == "_":
            is_upper = True
        else:
            made.append(character.upper() if is_upper and character.islower() else character)
            is_upper = False
    return "".join(made)


# ---------------------------------------------------------------------------------------------------------------------
# Rules


def _compare(reader: ProtobufSchema, writer: ProtobufSchema) -> Iterator[Reason]:
    if reader.file.package != writer.file.package:
        text = f"the package is {reader.file.package!r}, the writer's is {writer.file.package!r}"
        yield Reason("PACKAGE_CHANGED", "/", text)
        return
    waiting = list(writer.own)
    seen = set(waiting)
    while waiting:
        name = waiting.pop(0)
        ours, theirs = reader.messages.get(name), writer.messages[name]
        # Imported messages are compared if these messages refer to them.
        for field in theirs.field:
            inner = field.type_name.removeprefix(".")
            if inner in writer.messages and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
        if theirs.options.map_entry:
            continue  # compared together with its field
        if ours is None:
            yield Reason("MESSAGE_REMOVED", f"/{name}", f"message {name} of the writer's schema is missing")
        else:
            yield from _Pair(name, reader, writer).compare(ours, theirs)


def _is_required(field: FieldDescriptorProto) -> bool:
    features = field.options.features
    return bool(field.label == _F.LABEL_REQUIRED or features.field_presence == features.LEGACY_REQUIRED)


class _Pair:
    """Compares one message of a reader's and a writer's schema."""

    def __init__(self, name: str, reader: ProtobufSchema, writer: ProtobufSchema) -> None:
        self._name = name
        self._reader = reader
        self._writer = writer

    def compare(self, ours: DescriptorProto, theirs: DescriptorProto) -> Iterator[Reason]:
        our_fields = {field.number: field for field in ours.field}
        their_fields = {field.number: field for field in theirs.field}
        for number in sorted(our_fields.keys() | their_fields.keys()):
            one, other = our_fields.get(number), their_fields.get(number)
            path = f"/{self._name}/{number}"
            if one is not None and other is not None:
                yield from self._fields(path, one, other)
                continue
            alone = one or other
            assert alone is not None
            if _is_required(alone):
                kind, whose = ("ADDED", "writer's") if one is not None else ("REMOVED", "reader's")
                text = (
                    f"message {self._name}: the required field {alone.name!r} ({number}) is not in the {whose} schema"
                )
                yield Reason(f"REQUIRED_FIELD_{kind}", path, text)
        yield from _compare_oneofs(self._name, ours, theirs)

    def _fields(self, path: str, one: FieldDescriptorProto, other: FieldDescriptorProto) -> Iterator[Reason]:
        what = f"message {self._name}: field {one.name!r} ({one.number})"
        kind, their_kind = self._reader.kind(one), self._writer.kind(other)
        differ = f"{what} is {_type_text(one, kind)}, the writer's is {_type_text(other, their_kind)}"
        if kind != their_kind:
            yield Reason("FIELD_KIND_CHANGED", path, differ)
            return
        if kind == "map":
            entries = (
                schema.messages[field.type_name.removeprefix(".")]
                for schema, field in ((self._reader, one), (self._writer, other))
            )
            yield from self.compare(*entries)
        elif kind != "scalar":
            if one.type_name != other.type_name:
                yield Reason("FIELD_NAMED_TYPE_CHANGED", path, differ)
        elif _GROUP_OF[one.type] != _GROUP_OF[other.type]:
            yield Reason("FIELD_SCALAR_KIND_CHANGED", path, differ + ", which has another encoding")
        elif one.type == _F.TYPE_STRING != other.type and self._name in self._reader.is_checked_utf8:
            # Confluent's registry accepts this, but protobuf rejects the whole message if a string is not UTF-8.
            yield Reason("FIELD_SCALAR_KIND_CHANGED", path, differ + ", which may hold other bytes than UTF-8")
        elif one.type == _F.TYPE_ENUM and _is_required(one):
            # An unknown number counts as absent, which is an error for a required field.
            known = self._reader.closed_enums.get(one.type_name.removeprefix("."))
            written = self._writer.closed_enums.get(other.type_name.removeprefix("."))
            if known is not None and (written is None or not written <= known):
                text = f"{what} is required, and its enum lacks numbers of the writer's enum"
                yield Reason("ENUM_CONST_REMOVED", path, text)
        if _is_required(one) != _is_required(other):
            change, whose = ("ADDED", "reader's") if _is_required(one) else ("REMOVED", "writer's")
            yield Reason(f"REQUIRED_FIELD_{change}", path, f"{what} is required in the {whose} schema only")
        repeated = [field.label == _F.LABEL_REPEATED for field in (one, other)]
        if repeated[0] != repeated[1] and kind == "scalar" and one.type not in (_F.TYPE_STRING, _F.TYPE_BYTES):
            whose = "reader's" if repeated[0] else "writer's"
            yield Reason("FIELD_NUMERIC_LABEL_CHANGED", path, f"{what} is repeated in the {whose} schema only")


def _type_text(field: FieldDescriptorProto, kind: str) -> str:
    if kind == "map":
        return "a map"
    if kind != "scalar" or field.type == _F.TYPE_ENUM:
        return f"{'enum' if kind == 'scalar' else kind} {field.type_name.removeprefix('.')}"
    return str(_TYPE_NAMES[field.type])


def _oneofs(message: DescriptorProto) -> dict[int, str]:
    """Return the oneofs of fields by field number, without the synthetic oneofs of "optional" fields."""
    return {
        field.number: message.oneof_decl[field.oneof_index].name
        for field in message.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }


def _compare_oneofs(name: str, ours: DescriptorProto, theirs: DescriptorProto) -> Iterator[Reason]:
    our_oneofs, their_oneofs = _oneofs(ours), _oneofs(theirs)
    our_numbers = {field.number for field in ours.field}
    their_numbers = {field.number for field in theirs.field}
    for number, oneof in their_oneofs.items():
        if number not in our_numbers and oneof in our_oneofs.values():
            text = f"message {name}: field {number} of the oneof {oneof!r} is not in the reader's schema"
            yield Reason("ONEOF_FIELD_REMOVED", f"/{name}/{oneof}/{number}", text)
    moved = Counter(
        oneof for number, oneof in our_oneofs.items() if number in their_numbers and number not in their_oneofs
    )
    for oneof, count in moved.items():
        # A single field may move into a oneof of its own. Fields that could be set together must not share a oneof.
        if count > 1 or oneof in their_oneofs.values():
            text = f"message {name}: {count} field(s) of the writer's schema moved into the oneof {oneof!r}"
            yield Reason("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"/{name}/{oneof}", text)
