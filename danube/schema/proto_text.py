"""Writes a protobuf descriptor as the text of a .proto file, for clients that request the text of such a schema.

The text compiles to the same descriptor, except for names that the compiler generates. Extension options (custom
options) are omitted: their names are unknown without their definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.text_encoding import CEscape

from danube.schema.protobuf import default_json_name

__all__ = ["text_of"]

_F: Final = FieldDescriptorProto
_TYPES: Final = {value: name.removeprefix("TYPE_").lower() for name, value in _F.Type.items()}
_MOST_FIELD: Final = 2**29
_MOST_ENUM: Final = 2**31 - 1
_EDITIONS: Final = {998: "proto2", 999: "proto3", 1000: "2023", 1001: "2024"}


def text_of(file: FileDescriptorProto) -> str:
    """Return the .proto text of a file with full names of types, as :func:`danube.schema.protobuf.parse` returns it."""
    lines: list[str] = []
    if file.syntax == "editions":
        lines.append(f'edition = "{_EDITIONS.get(file.edition, str(file.edition))}";')
    else:
        lines.append(f'syntax = "{file.syntax or "proto2"}";')
    if file.package:
        lines.append(f"package {file.package};")
    for index, name in enumerate(file.dependency):
        kind = "public " if index in file.public_dependency else "weak " if index in file.weak_dependency else ""
        lines.append(f"import {kind}{_quoted(name)};")
    lines += [f"option {option};" for option in _options(file.options)]
    has_labels = file.syntax in ("", "proto2")
    for enum in file.enum_type:
        lines += _enum(enum)
    scope = f".{file.package}." if file.package else "."
    by_fields = {each.type_name for each in file.extension if each.type == _F.TYPE_GROUP}
    for message in file.message_type:
        if scope + message.name not in by_fields:
            lines += _message(message, scope, has_labels)
    lines += _extensions(file.extension, file.message_type, scope, has_labels)
    for service in file.service:
        lines += _service(service)
    return "\n".join(lines) + "\n"


def _indented(lines: Iterator[str] | list[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _quoted(text: str | bytes) -> str:
    return f'"{CEscape(text, as_utf8=False)}"'


def _options(options: Any) -> Iterator[str]:
    """Return the options that are set and defined by protobuf itself, including features."""
    for field, value in options.ListFields():
        if field.is_extension or field.name in ("map_entry", "uninterpreted_option"):
            continue
        if field.message_type is not None:
            yield from (f"{field.name}.{inner}" for inner in _options(value)) if not field.is_repeated else ()
            continue
        for each in value if field.is_repeated else (value,):
            yield f"{field.name} = {_value(field, each)}"


def _value(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str | bytes) else str(value)


def _message(message: DescriptorProto, scope: str, has_labels: bool) -> Iterator[str]:
    yield f"message {message.name} {{"
    yield from _indented(_inside(message, scope, has_labels))
    yield "}"


def _inside(message: DescriptorProto, scope: str, has_labels: bool) -> Iterator[str]:
    own = f"{scope}{message.name}."
    for option in _options(message.options):
        yield f"option {option};"
    # Messages that fields define: groups and map entries.
    nested = {f"{own}{each.name}": each for each in message.nested_type}
    by_fields = {name for name, each in nested.items() if each.options.map_entry}
    by_fields |= {each.type_name for each in (*message.field, *message.extension) if each.type == _F.TYPE_GROUP}
    for enum in message.enum_type:
        yield from _enum(enum)
    # The order of messages is significant: frames name a message by its index.
    waiting = list(nested)
    done: set[int] = set()
    for field in message.field:
        if field.type == _F.TYPE_GROUP and field.type_name in waiting:
            before = waiting[: waiting.index(field.type_name)]
            yield from _messages([name for name in before if name not in by_fields], nested, own, has_labels)
            del waiting[: len(before) + 1]
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield from _field(field, nested, own, has_labels)
        elif field.oneof_index not in done:
            done.add(field.oneof_index)
            oneof = message.oneof_decl[field.oneof_index]
            yield f"oneof {oneof.name} {{"
            yield from _indented([f"option {option};" for option in _options(oneof.options)])
            for each in message.field:
                if each.HasField("oneof_index") and each.oneof_index == field.oneof_index:
                    yield from _indented(_field(each, nested, own, has_labels, is_in_oneof=True))
            yield "}"
    yield from _messages([name for name in waiting if name not in by_fields], nested, own, has_labels)
    for extended in message.extension_range:
        yield f"extensions {_range(extended.start, extended.end - 1, _MOST_FIELD - 1)};"
    for reserved in message.reserved_range:
        yield f"reserved {_range(reserved.start, reserved.end - 1, _MOST_FIELD - 1)};"
    for name in message.reserved_name:
        yield f"reserved {_quoted(name)};"
    yield from _extensions(message.extension, message.nested_type, own, has_labels)


def _messages(names: list[str], nested: dict[str, DescriptorProto], own: str, has_labels: bool) -> Iterator[str]:
    for name in names:
        yield from _message(nested[name], own, has_labels)


def _extensions(fields: Any, messages: Any, scope: str, has_labels: bool) -> Iterator[str]:
    nested = {each.name: each for each in messages}
    for field in fields:
        groups = {field.type_name: nested[field.type_name.rpartition(".")[2]]} if field.type == _F.TYPE_GROUP else {}
        yield f"extend {field.extendee} {{"
        yield from _indented(_field(field, groups, scope, has_labels))
        yield "}"


def _field(
    field: FieldDescriptorProto,
    nested: dict[str, DescriptorProto],
    own: str,
    has_labels: bool,
    *,
    is_in_oneof: bool = False,
) -> Iterator[str]:
    label = "" if is_in_oneof else _label(field, has_labels)
    inner = nested.get(field.type_name)
    options = list(_options(field.options))
    if field.HasField("default_value"):
        options.insert(0, f"default = {_default(field)}")
    if field.json_name not in ("", default_json_name(field.name)) and not field.extendee:
        options.append(f"json_name = {_quoted(field.json_name)}")
    end = f" = {field.number}" + (f" [{', '.join(options)}]" if options else "")
    if field.type == _F.TYPE_GROUP and inner is not None:
        yield f"{label}group {inner.name}{end} {{"
        yield from _indented(_inside(inner, own, has_labels))
        yield "}"
    elif inner is not None and inner.options.map_entry:
        key, value = inner.field
        yield f"map<{_type(key)}, {_type(value)}> {field.name}{end};"
    else:
        yield f"{label}{_type(field)} {field.name}{end};"


def _label(field: FieldDescriptorProto, has_labels: bool) -> str:
    if field.label == _F.LABEL_REPEATED:
        return "repeated "
    if field.label == _F.LABEL_REQUIRED and has_labels:
        return "required "
    return "optional " if field.proto3_optional or has_labels else ""


def _type(field: FieldDescriptorProto) -> str:
    return str(field.type_name or _TYPES[field.type])


def _default(field: FieldDescriptorProto) -> str:
    if field.type == _F.TYPE_STRING:
        return _quoted(str(field.default_value))
    # For bytes, the descriptor contains the escaped text.
    return f'"{field.default_value}"' if field.type == _F.TYPE_BYTES else str(field.default_value)


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from _indented([f"option {option};" for option in _options(enum.options)])
    for value in enum.value:
        options = ", ".join(_options(value.options))
        yield f"  {value.name} = {value.number}" + (f" [{options}];" if options else ";")
    for reserved in enum.reserved_range:
        yield f"  reserved {_range(reserved.start, reserved.end, _MOST_ENUM)};"
    for name in enum.reserved_name:
        yield f"  reserved {_quoted(name)};"
    yield "}"


def _range(start: int, end: int, most: int) -> str:
    if end >= most:
        return f"{start} to max"
    return str(start) if start == end else f"{start} to {end}"


def _service(service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from _indented([f"option {option};" for option in _options(service.options)])
    for method in service.method:
        sent, answered = ("stream " if each else "" for each in (method.client_streaming, method.server_streaming))
        head = f"  rpc {method.name}({sent}{method.input_type}) returns ({answered}{method.output_type})"
        options = [f"option {option};" for option in _options(method.options)]
        yield head + (f" {{ {' '.join(options)} }}" if options else ";")
    yield "}"
