"""A descriptor that is written as text compiles to the same descriptor."""

from __future__ import annotations

import base64
from random import Random

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from protos import HEAD, proto
from test_protobuf_promise import file

from danube.schema import Parsed, SchemaType, Source, parse
from danube.schema.proto_text import text_of
from danube.schema.protobuf import ProtobufSchema


def printed(schema: Parsed) -> str:
    assert isinstance(schema, ProtobufSchema)
    return text_of(schema.file)


PROTO3 = (
    HEAD
    + """
import public "google/protobuf/timestamp.proto";
import "google/protobuf/empty.proto";
option java_package = "com.\\"shop";
option optimize_for = CODE_SIZE;
message Order {
  option deprecated = true;
  reserved 20, 30 to 40, 50 to max;
  reserved "gone", "away";
  int64 id = 1 [deprecated = true, jstype = JS_STRING];
  optional string note_text = 2 [json_name = "Note"];
  repeated Line lines = 3;
  map<string, Line> by_name = 4;
  map<int32, Kind> kinds = 9;
  oneof how { Card card = 5; string cash = 6; }
  google.protobuf.Timestamp at = 7;
  repeated sint32 packed = 8 [packed = false];
  message Line { double price = 1; Order again = 2; Kind kind = 3; enum Kind { Z = 0; } }
  message Card { bytes number = 1; }
}
enum Kind { option allow_alias = true; NONE = 0; SAME = 0 [deprecated = true]; LESS = -1; reserved 5 to 7, 9 to max;
  reserved "OLD"; }
service Shop { option deprecated = true; rpc Buy(Order) returns (stream google.protobuf.Empty) {
  option idempotency_level = IDEMPOTENT; } rpc Talk(stream Order) returns (stream Order); }
"""
)
PROTO2 = """syntax = "proto2";
message M {
  required string a = 1 [default = "quote \\" and \\n line \\303\\244"];
  optional bytes b = 2 [default = "\\001\\377\\"x"];
  optional float c = 3 [default = -inf];
  optional bool d = 4 [default = true];
  optional E e = 5 [default = Y];
  repeated group Group = 6 { optional int32 x = 1; optional group Inner = 2 { optional M m = 1; } }
  extensions 100 to 199, 1000 to max;
  enum E { X = 1; Y = 2; }
  extend M { optional string inside = 101; }
}
extend M { optional int32 outside = 100 [default = 7]; optional group Far = 102 { optional int32 x = 1; } }
"""
EDITION = """edition = "2023";
package e;
option features.field_presence = IMPLICIT;
message M { int32 a = 1 [features.field_presence = EXPLICIT]; repeated int32 b = 2; M c = 3; }
enum E { option features.enum_type = CLOSED; A = 1; }
"""


@pytest.mark.parametrize(
    "text", [PROTO3, PROTO2, EDITION, HEAD, 'syntax = "proto3";'], ids=["3", "2", "edition", "none", "bare"]
)
def test_written_text_compiles_to_the_original_descriptor(text: str) -> None:
    schema = proto(text, head="")
    told = printed(schema)
    assert proto(told, head="").canonical == schema.canonical, told
    assert printed(proto(told, head="")) == told


def test_imports_of_references_stay() -> None:
    user = HEAD + "message User { int32 id = 1; }"
    order = proto('import "user.proto"; message Order { User user = 1; }', user_proto=user)
    told = printed(order)
    assert 'import "user.proto";' in told
    assert proto(told, head="", user_proto=user).canonical == order.canonical


def test_random_descriptors_are_written() -> None:
    # One file of many, so that one compilation reads them all.
    random = Random(1)
    merged = FileDescriptorProto(name="a.proto", syntax="proto3", package="p")
    for number in range(60):
        each = file(random)
        if each.syntax != "proto3":
            continue
        for enum in each.enum_type:
            enum.name = f"E{number}"
            for value in enum.value:
                value.name = f"{value.name}_{number}"
        for message in each.message_type:
            message.name += str(number)
            for field in message.field:
                if field.type_name in (".M", ".N", ".E"):
                    field.type_name = f".p{field.type_name}{number}"
                elif field.type_name:
                    field.type_name = f".p.{message.name}.{field.type_name.rpartition('.')[2]}"
        merged.enum_type.extend(each.enum_type)
        merged.message_type.extend(each.message_type)
    text = base64.b64encode(merged.SerializeToString()).decode()
    schema = parse(Source(SchemaType.PROTOBUF, text))
    assert proto(printed(schema), head="").canonical == schema.canonical
