"""Protobuf's rules: "Updating A Message Type" of its language guide; names of reasons are Confluent's."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st
from protos import HEAD, compile_proto, proto
from schema_helpers import kinds

from danube.model.errors import InvalidSchemaError, SchemaTooLargeError
from danube.schema import Needed, Policy, SchemaLimits, SchemaType, Source, parse
from danube.schema.protobuf import ProtobufSchema

PROTO2 = 'syntax = "proto2";\npackage shop;\n'


def m(fields: str, more: str = "") -> str:
    return f"message M {{ {fields} }} {more}"


INNER = "message A { int32 x = 1; } message B { int32 x = 1; }"
CASES: list[tuple[str, str, str, list[str]]] = [
    ("a field added", m("int32 a = 1; int32 b = 2;"), m("int32 a = 1;"), []),
    ("a field removed", m("int32 a = 1;"), m("int32 a = 1; int32 b = 2;"), []),
    ("a field renamed", m("int32 b = 1;"), m("int32 a = 1;"), []),
    ("a message added", m("int32 a = 1;", "message N {}"), m("int32 a = 1;"), []),
    ("a message removed", m("int32 a = 1;"), m("int32 a = 1;", "message N {}"), ["MESSAGE_REMOVED"]),
    ("a message within one removed", m("int32 a = 1;"), m("int32 a = 1; message N {}"), ["MESSAGE_REMOVED"]),
    ("an enum's constants", m("E e = 1;", "enum E { X = 0; Z = 2; }"), m("E e = 1;", "enum E { X = 0; Y = 1; }"), []),
    ("an enum is a number", m("int32 e = 1;"), m("E e = 1;", "enum E { X = 0; }"), []),
    ("bytes for a string", m("bytes a = 1;"), m("string a = 1;"), []),
    # Protobuf's guide: "as long as the bytes are valid UTF-8"; Confluent's registry lets it pass.
    ("a string for bytes", m("string a = 1;"), m("bytes a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    ("a message for a string", m("A a = 1;", INNER), m("string a = 1;", INNER), ["FIELD_KIND_CHANGED"]),
    ("another message", m("A a = 1;", INNER), m("B a = 1;", INNER), ["FIELD_NAMED_TYPE_CHANGED"]),
    ("a map for a message", m("map<string, A> a = 1;", INNER), m("repeated A a = 1;", INNER), ["FIELD_KIND_CHANGED"]),
    ("a map of more", m("map<string, int64> a = 1;"), m("map<string, int32> a = 1;"), []),
    ("a map of others", m("map<string, string> a = 1;"), m("map<string, int32> a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    ("a map renamed", m("map<string, string> b = 1;"), m("map<string, int32> a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    ("a map removed", m(""), m("map<string, int32> a = 1;"), []),
    ("a repeated number", m("repeated int32 a = 1;"), m("int32 a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("a repeated string", m("repeated string a = 1;"), m("string a = 1;"), []),
    ("an optional one", m("optional int32 a = 1;"), m("int32 a = 1;"), []),
    ("an optional one with another number", m("optional int32 a = 2;"), m("optional int32 a = 1;"), []),
    ("a oneof around one field", m("oneof o { int32 a = 1; }"), m("int32 a = 1;"), []),
    ("a oneof around two", m("oneof o { int32 a = 1; int32 b = 2; }"), m("int32 a = 1; int32 b = 2;"),
     ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
    ("a field into a oneof that was there", m("oneof o { int32 a = 1; int32 b = 2; }"),
     m("int32 a = 1; oneof o { int32 b = 2; }"), ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
    ("a new field in a oneof", m("oneof o { int32 a = 1; int32 b = 2; }"), m("oneof o { int32 a = 1; }"), []),
    ("a field out of a oneof", m("int32 a = 1; oneof o { int32 b = 2; }"),
     m("oneof o { int32 a = 1; int32 b = 2; }"), []),
    ("a field of a oneof removed", m("oneof o { int32 b = 2; }"), m("oneof o { int32 a = 1; int32 b = 2; }"),
     ["ONEOF_FIELD_REMOVED"]),
    ("a oneof removed", m(""), m("oneof o { int32 a = 1; }"), []),
    ("a message within another", m("A a = 1;", "message A { string x = 1; }"),
     m("A a = 1;", "message A { int32 x = 1; }"),
     ["FIELD_SCALAR_KIND_CHANGED"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_allowed_changes(reader: str, writer: str, expected: list[str]) -> None:
    assert kinds(proto(reader), proto(writer)) == expected


GROUPS = (
    ("int32", "int64", "uint32", "uint64", "bool"), ("sint32", "sint64"), ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"), ("float",), ("double",), ("string",),
)  # fmt: skip


def test_numbers_that_are_the_same_on_the_wire_replace_one_another() -> None:
    # One message with a field for each pair of types, so that two compilations tell all.
    pairs = [(one, other) for ours in GROUPS for theirs in GROUPS for one in ours for other in theirs]
    reader = m(" ".join(f"{one} f{n} = {n};" for n, (one, _) in enumerate(pairs, 1)))
    writer = m(" ".join(f"{other} f{n} = {n};" for n, (_, other) in enumerate(pairs, 1)))
    refused = {int(reason.path.rpartition("/")[2]) for reason in proto(reader).refuses(proto(writer), Policy.STRICT)}
    for n, (one, other) in enumerate(pairs, 1):
        assert (n not in refused) == any(one in group and other in group for group in GROUPS), (one, other)


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("required int32 a = 1;", "optional int32 a = 1;", ["REQUIRED_FIELD_ADDED"]),
        ("optional int32 a = 1;", "required int32 a = 1;", ["REQUIRED_FIELD_REMOVED"]),
        ("required int32 a = 1;", "", ["REQUIRED_FIELD_ADDED"]),
        ("", "required int32 a = 1;", ["REQUIRED_FIELD_REMOVED"]),
        ("required int64 a = 1;", "required int32 a = 1;", []),
        ("optional string a = 1;", "optional bytes a = 1;", []),
        ("required E e = 1; enum E { X = 0; Y = 1; }", "required E e = 1; enum E { X = 0; }", []),
        ("required E e = 1; enum E { X = 0; }", "required E e = 1; enum E { X = 0; Y = 1; }", ["ENUM_CONST_REMOVED"]),
        ("required E e = 1; enum E { X = 0; }", "required int32 e = 1; enum E { X = 0; }", ["ENUM_CONST_REMOVED"]),
        ("optional E e = 1; enum E { X = 0; }", "optional E e = 1; enum E { X = 0; Y = 1; }", []),
        ("optional group A = 1 { optional int32 x = 1; }", "optional group A = 1 { optional int64 x = 1; }", []),
        ("optional A a = 1; message A {}", "optional group A = 1 {}", ["FIELD_KIND_CHANGED"]),
    ],
)
def test_proto2(reader: str, writer: str, expected: list[str]) -> None:
    assert kinds(proto(m(reader), head=PROTO2), proto(m(writer), head=PROTO2)) == expected


def test_another_package_is_another_schema() -> None:
    assert kinds(proto(m(""), head='syntax = "proto3"; package other;'), proto(m(""))) == ["PACKAGE_CHANGED"]


def test_reasons_say_what_and_where() -> None:
    reader = proto(m("string id = 1; repeated int32 n = 2;"))
    writer = proto(m("int32 id = 1; int32 n = 2;", "message Gone {}"))
    assert [(reason.path, reason.text) for reason in reader.refuses(writer, Policy.STRICT)] == [
        (
            "/shop.M/1",
            "message shop.M: field 'id' (1) is string, the writer's is int32, which has another encoding",
        ),
        ("/shop.M/2", "message shop.M: field 'n' (2) is repeated in the reader's schema only"),
        ("/shop.Gone", "message shop.Gone of the writer's schema is missing"),
    ]  # fmt: skip


def descriptor(text: str, *, head: str = HEAD) -> FileDescriptorProto:
    parsed = proto(text, head=head)
    assert isinstance(parsed, ProtobufSchema)
    return FileDescriptorProto.FromString(parsed.descriptor)


def as_base64(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def test_a_text_and_its_descriptor_are_one_schema() -> None:
    text = m('int32 some_id = 1 [json_name = "other"]; map<string, A> a_b = 2; optional int32 c = 3;', INNER)
    file = descriptor(text)
    file.name = "whatever.proto"
    for field in file.message_type[0].field[1:]:
        field.ClearField("json_name")  # as another runtime may send it
    from_base64 = parse(Source(SchemaType.PROTOBUF, as_base64(file)))
    spaced = proto("// a comment\n" + text.replace(" ", "\n  "))
    assert proto(text).canonical == from_base64.canonical == spaced.canonical
    assert from_base64.name == "shop.M"
    assert proto(text.replace("other", "another")).canonical != from_base64.canonical


def test_references_are_imports_by_their_names() -> None:
    user, wide = (HEAD + f"message User {{ {kind} id = 1; }}" for kind in ("int32", "int64"))
    order = 'import "user.proto"; message Order { User user = 1; }'
    one, other = proto(order, user_proto=user), proto(order, user_proto=wide)
    assert kinds(one, other) == []
    text = proto(order, user_proto=HEAD + "message User { string id = 1; }")
    assert [reason.path for reason in text.refuses(one, Policy.STRICT)] == ["/shop.User/1"]
    with pytest.raises(InvalidSchemaError):
        proto(order)
    # The same with descriptors, where the text of a reference is one, too.
    assert isinstance(one, ProtobufSchema)
    needed = (Needed("user.proto", as_base64(descriptor("message User { int32 id = 1; }"))),)
    encoded = base64.b64encode(one.descriptor).decode()
    assert parse(Source(SchemaType.PROTOBUF, encoded, needed)).canonical == one.canonical
    with pytest.raises(InvalidSchemaError, match=r"imports 'user\.proto', but has no reference of this name"):
        parse(Source(SchemaType.PROTOBUF, encoded))


def test_the_well_known_types_need_no_reference() -> None:
    text = 'import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }'
    assert kinds(proto(text), proto(text)) == []
    assert parse(Source(SchemaType.PROTOBUF, as_base64(descriptor(text)))).canonical == proto(text).canonical


def test_a_message_can_be_named() -> None:
    assert proto(INNER).name == "shop.A"
    assert proto(INNER, message="shop.B").name == "shop.B"
    assert proto("enum E { X = 0; }").name == ""
    with pytest.raises(InvalidSchemaError, match=r"has no message 'C'; it has: shop\.A, shop\.B"):
        proto(INNER, message="C")


def test_a_text_needs_a_compiler() -> None:
    with pytest.raises(InvalidSchemaError, match=r"pip install 'danube-broker\[protobuf\]'"):
        parse(Source(SchemaType.PROTOBUF, HEAD))


def file_of(**more: Any) -> FileDescriptorProto:
    return FileDescriptorProto(name="a.proto", syntax="proto3", **more)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (file_of(message_type=[DescriptorProto(name="1")]), "invalid"),
        (file_of(message_type=[DescriptorProto(name="A"), DescriptorProto(name="A")]), "invalid"),
        (file_of(dependency=["b.proto"]), "no reference of this name"),
        (file_of(dependency=["a.proto"]), "imports itself"),
    ],
)
def test_texts_that_are_no_protobuf_schema_are_refused(file: FileDescriptorProto, why: str) -> None:
    with pytest.raises(InvalidSchemaError, match=why):
        parse(Source(SchemaType.PROTOBUF, as_base64(file)))


def test_how_deep_and_large_is_limited() -> None:
    message = DescriptorProto(name="M")
    for _ in range(40):
        message = DescriptorProto(name="M", nested_type=[message])
    text = as_base64(file_of(message_type=[message]))
    parse(Source(SchemaType.PROTOBUF, text))
    with pytest.raises(SchemaTooLargeError, match="max_schema_depth is 40 nested messages"):
        parse(Source(SchemaType.PROTOBUF, text), SchemaLimits(max_schema_depth=40))
    deep = b""
    for _ in range(20_000):
        deep = b"\x0a\x01M" + (b"\x1a" + _varint(len(deep)) + deep if deep else b"")
        if len(deep) > 100_000:
            break
    file = b"\x22" + _varint(len(deep)) + deep
    with pytest.raises(InvalidSchemaError, match="Base64, but does not contain a FileDescriptorProto"):
        parse(Source(SchemaType.PROTOBUF, base64.b64encode(file).decode()))
    big = "".join(f"int32 f{n} = {n};" for n in range(1, 400))
    with pytest.raises(SchemaTooLargeError, match="the descriptor of the schema has"):
        parse(Source(SchemaType.PROTOBUF, HEAD + m(big)), SchemaLimits(max_schema_bytes=8_000), compile_proto)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


@settings(max_examples=60)
@given(data=st.binary(max_size=60))
def test_nothing_but_a_schema_error_comes_of_any_bytes(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    try:
        parsed = parse(Source(SchemaType.PROTOBUF, text), compile_proto=lambda text, needs: b"\x0a\x00")
    except InvalidSchemaError:
        return
    assert parsed.refuses(parsed, Policy.STRICT) == []
