"""Avro's rules, one by one. "Resolution" is the specification's chapter "Schema Resolution" (1.12)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_helpers import LIMITS, avro, kinds, record

from danube.model.errors import InvalidSchemaError, SchemaTooLargeError
from danube.schema import Needed, Policy, SchemaLimits, SchemaType, Source, parse

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_are_promoted_as_resolution_lists_and_not_otherwise(reader: str, writer: str) -> None:
    found = kinds(avro(reader), avro(writer))
    assert found == ([] if reader == writer or (writer, reader) in PROMOTED else ["TYPE_MISMATCH"])


CASES: list[tuple[str, Any, Any, list[str]]] = [
    # Resolution: "if the writer's record contains a field with a name not present in the reader's record, the
    # writer's value for that field is ignored"
    ("a field that the reader lacks", record(), record(("a", "int")), []),
    # "if the reader's record schema has a field that contains a default value, and writer's schema does not have a
    # field with the same name, then the reader should use the default value"
    ("a field that the writer lacks, with a default", record(("a", "int", 1)), record(), []),
    ("with null as its default", record(("a", ["null", "int"], None)), record(), []),
    # "... and has no default value, ... an error is signalled"
    ("without one", record(("a", "int")), record(), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("nullable without one", record(("a", ["null", "int"])), record(), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("an enum's default is none of a field", record(("a", ENUM | {"default": "A"})), record(),
     ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    # "the ordering of fields may be different: fields are matched by name"
    ("another order", record(("a", "int"), ("b", "string")), record(("b", "string"), ("a", "int")), []),
    ("a field's type", record(("a", "int")), record(("a", "long")), ["TYPE_MISMATCH"]),
    ("a field's type, promoted", record(("a", "long")), record(("a", "int")), []),
    # "both schemas are records with the same (unqualified) name"
    ("another name", record(name="S"), record(name="R"), ["NAME_MISMATCH"]),
    ("another namespace", record(name="b.R"), record(name="a.R"), []),
    # "A named type may have alternate names: aliases"; without a namespace they are in that of the type.
    ("an alias", record(name="S", aliases=["R"]), record(name="R"), []),
    ("an alias in its type's namespace", record(name="a.S", aliases=["R"]), record(name="a.R"), []),
    ("an alias in another one", record(name="a.S", aliases=["R"]), record(name="b.R"), ["NAME_MISMATCH"]),
    ("an alias of a field", record({"name": "b", "type": "int", "aliases": ["a"]}), record(("a", "int")), []),
    ("an alias whose name another field has", record(("a", "int"), {"name": "b", "type": "int", "aliases": ["a"]}),
     record(("a", "int")), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("an alias that two fields have", record({"name": "b", "type": "int", "aliases": ["a"]},
     {"name": "c", "type": "int", "aliases": ["a"]}), record(("a", "int")), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    # "if the writer's symbol is not present in the reader's enum and the reader has a default value, then that value
    # is used, otherwise an error is signalled"
    ("an enum with more symbols", ENUM | {"symbols": ["A", "B", "C"]}, ENUM, []),
    ("with fewer", ENUM | {"symbols": ["A"]}, ENUM, ["MISSING_ENUM_SYMBOLS"]),
    ("with fewer and a default", ENUM | {"symbols": ["A"], "default": "A"}, ENUM, []),
    ("with another name", ENUM | {"name": "E2"}, ENUM, ["NAME_MISMATCH"]),
    # "both schemas are fixed whose sizes and (unqualified) names match"
    ("fixed of another size", FIXED | {"size": 5}, FIXED, ["FIXED_SIZE_MISMATCH"]),
    ("fixed of another name", FIXED | {"name": "G"}, FIXED, ["NAME_MISMATCH"]),
    ("fixed is not bytes", "bytes", FIXED, ["TYPE_MISMATCH"]),
    # "This resolution algorithm is applied recursively to the reader's and writer's array item schemas"; maps alike
    ("arrays", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
    ("arrays of less", {"type": "array", "items": "int"}, {"type": "array", "items": "long"}, ["TYPE_MISMATCH"]),
    ("maps", {"type": "map", "values": "long"}, {"type": "map", "values": "int"}, []),
    ("maps of less", {"type": "map", "values": "int"}, {"type": "map", "values": "long"}, ["TYPE_MISMATCH"]),
    ("a map is no array", {"type": "map", "values": "int"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH"]),
    # "if reader's is a union, but writer's is not"
    ("a union for one of it", ["null", "int"], "int", []),
    ("a union for what is promoted", ["null", "long"], "int", []),
    ("a union without it", ["null", "int"], "string", ["MISSING_UNION_BRANCH"]),
    # "if writer's is a union, but reader's is not": all that may come must be read, which is stricter than an error
    # for the one value that does come
    ("one for a union", "long", ["int", "long"], []),
    ("one for a union with null", "int", ["null", "int"], ["TYPE_MISMATCH"]),
    # "if both are unions"
    ("a union with more", ["null", "int", "string"], ["int", "null"], []),
    ("a union with less", ["null", "int"], ["null", "int", "boolean"], ["MISSING_UNION_BRANCH"]),
    ("a union's record", ["null", record(("a", "int"))], ["null", record(("a", "string"))], ["TYPE_MISMATCH"]),
    ("two records of one name", [record(name="a.R"), record(("x", "int"), name="b.R")], record(name="a.R"),
     ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    # Logical types: resolution compares the underlying types.
    ("a logical type", {"type": "long", "logicalType": "timestamp-millis"}, "long", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_resolution(reader: Any, writer: Any, expected: list[str]) -> None:
    assert kinds(avro(reader), avro(writer)) == expected


def test_reasons_say_what_and_where() -> None:
    reader = avro(record(("id", "int"), ("note", "string"), ("e", ENUM), ("f", FIXED), ("u", ["null", "int"])))
    writer = avro(record(("id", "long"), ("e", ENUM | {"symbols": ["C", "A"]}), ("f", FIXED | {"size": 2}),
                         ("u", ["null", "string"])))  # fmt: skip
    assert [(reason.path, reason.text) for reason in reader.refuses(writer, Policy.STRICT)] == [
        ("/fields/id", "/fields/id is int, the writer's is long"),
        ("/fields/note", "field 'note' has no default, and the writer has no such field"),
        ("/fields/e/symbols", "enum E lacks the writer's symbols 'C' and has no default"),
        ("/fields/f/size", "fixed F has 4 bytes, the writer's has 2"),
        ("/fields/u", "/fields/u may be string, which the reader's union [null, int] lacks"),
    ]


def test_recursive_avro_schemas_are_compared() -> None:
    def chain(kind: str) -> Any:
        return record(("value", kind), ("next", ["null", "R"], None))

    assert kinds(avro(chain("long")), avro(chain("int"))) == []
    (reason,) = avro(chain("int")).refuses(avro(chain("long")), Policy.STRICT)
    assert reason.path == "/fields/value"


def test_mutually_recursive_records_are_reported_once() -> None:
    def schema(kind: str) -> Any:
        inner = record(("r", ["null", "R"]), name="S")
        outer = record(("s", ["null", inner]), ("value", kind))
        return record(("one", ["null", outer]), ("two", ["null", "S"]), name="Top")

    found = avro(schema("int")).refuses(avro(schema("string")), Policy.STRICT)
    assert [reason.path for reason in found] == ["/fields/one/fields/value"]
    assert kinds(avro(schema("long")), avro(schema("int"))) == []


@pytest.mark.parametrize(
    ("field", "is_fine"),
    [
        (("a", "int", 1), True), (("a", "int", 1.5), False), (("a", "int", 2**31), False), (("a", "int", True), False),
        (("a", "long", 2**31), True), (("a", "long", 2**63), False), (("a", "float", 1), True),
        (("a", "double", "x"), False), (("a", "boolean", 0), False), (("a", "boolean", False), True),
        (("a", "null", None), True), (("a", "null", 0), False), (("a", "string", "x"), True),
        (("a", "string", 1), False),
        (("a", "bytes", "\u00ff"), True), (("a", "bytes", "\u0100"), False), (("a", FIXED, "abcd"), True),
        (("a", FIXED, "abc"), False), (("a", ENUM, "A"), True), (("a", ENUM, "Z"), False),
        (("a", ["null", "int"], None), True), (("a", ["null", "int"], 1), True), (("a", ["null", "int"], "x"), False),
        (("a", {"type": "array", "items": "int"}, [1]), True), (("a", {"type": "array", "items": "int"}, ["x"]), False),
        (("a", {"type": "map", "values": "int"}, {"x": 1}), True),
        (("a", {"type": "map", "values": "int"}, {"x": "y"}), False),
        (("a", record(("b", "int"), ("c", "int", 2), name="S"), {"b": 1}), True),
        (("a", record(("b", "int"), name="S"), {}), False),
    ],
)  # fmt: skip
def test_defaults_are_of_their_types(field: Any, is_fine: bool) -> None:
    if is_fine:
        avro(record(field))
    else:
        with pytest.raises(InvalidSchemaError, match=r"/fields/a: the default .* is not a value of type"):
            avro(record(field))


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "{}", "[]", "7", "null", '"uuid"', '{"type":"array"}', '["int","int"]', '[["int"]]', '["Q"]',
        '{"type":"record","name":"1","fields":[]}', '{"type":"record","fields":[]}', '{"type":"record","name":"R"}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"enum","name":"E","symbols":["A","A"]}', '{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
        '{"type":"fixed","name":"F","size":-1}', '{"type":"fixed","name":"F","size":true}', '"\\ud800"',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
    ],
)  # fmt: skip
def test_texts_that_are_no_avro_schema_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(Source(SchemaType.AVRO, text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["record", "enum", "fixed", "array", "map", "int", "a.B", "", "R"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default",
                                       "namespace", "aliases", "logicalType", "order", "doc"]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60)
@given(value=JSON)
def test_nothing_but_a_schema_error_comes_of_any_json(value: Any) -> None:
    try:
        parsed = parse(Source(SchemaType.AVRO, json.dumps(value)))
    except InvalidSchemaError:
        return
    assert parsed.refuses(parsed, Policy.STRICT) == []


def test_how_deep_and_large_is_limited() -> None:
    deep: Any = "int"
    for _ in range(101):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaTooLargeError, match="max_schema_depth is 100"):
        avro(deep)
    avro(deep["items"])
    with pytest.raises(SchemaTooLargeError, match="max_schema_depth"):
        parse(Source(SchemaType.AVRO, '["' + "[" * 100_000 + '"]' + "[" * 100_000))
    with pytest.raises(SchemaTooLargeError, match="has 101 bytes; max_schema_bytes is 100"):
        parse(Source(SchemaType.AVRO, " " * 101), SchemaLimits(max_schema_bytes=100))
    assert parse(Source(SchemaType.AVRO, '{"type":"string","doc":"[[[\\"[["}'), LIMITS).name == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"type": "string"}', '"string"'),
        ('{"type":"record","name":"R","namespace":"a","fields":[]}', '{"fields":[],"name":"a.R","type":"record"}'),
        ('{"type":"record","name":"a.R","aliases":["S"],"fields":[]}',
         '{"type":"record","name":"a.R","aliases":["a.S"],"fields":[]}'),
        ('{"type":"record","name":"a.R","fields":[{"name":"x","type":["null","R"]}]}',
         '{"type":"record","name":"a.R","fields":[{"name":"x","type":[{"type":"null"},"a.R"]}]}'),
    ],
)  # fmt: skip
def test_texts_that_say_the_same_have_one_canonical_text(one: str, other: str) -> None:
    assert parse(Source(SchemaType.AVRO, one)).canonical == parse(Source(SchemaType.AVRO, other)).canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"string"', '"bytes"'), ('{"type":"string","doc":"x"}', '"string"'),
        ('{"type":"record","name":"R","fields":[]}', '{"type":"record","name":"a.R","fields":[]}'),
        ('{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}',
         '{"type":"record","name":"R","fields":[{"name":"x","type":"int","default":1}]}'),
        ('{"type":"record","name":"R","fields":[{"name":"x","type":"int"},{"name":"y","type":"int"}]}',
         '{"type":"record","name":"R","fields":[{"name":"y","type":"int"},{"name":"x","type":"int"}]}'),
    ],
)  # fmt: skip
def test_texts_that_do_not_have_two(one: str, other: str) -> None:
    assert parse(Source(SchemaType.AVRO, one)).canonical != parse(Source(SchemaType.AVRO, other)).canonical


def test_a_canonical_text_is_a_schema_and_its_own_canonical_text() -> None:
    inner = record(("x", ["null", "a.b.R"]), name="S", namespace="")
    schema = avro(record(("s", inner), ("t", "string"), name="R", namespace="a.b", doc="d", aliases=["T"]))
    again = parse(Source(SchemaType.AVRO, schema.canonical))
    assert again.canonical == schema.canonical
    assert (schema.name, again.name) == ("a.b.R", "a.b.R")
    assert again.refuses(schema, Policy.STRICT) == []


def test_references_are_types_by_their_names() -> None:
    user = record(("id", "long"), name="shop.User")
    order = record(("user", "shop.User"), ("buyers", {"type": "array", "items": "shop.User"}), name="shop.Order")
    schema = avro(order, user)
    assert kinds(schema, schema) == []
    narrow = avro(order, record(("id", "int"), name="shop.User"))
    assert kinds(schema, narrow) == []
    assert kinds(narrow, schema) == ["TYPE_MISMATCH"], "once, though it is used twice"
    with pytest.raises(InvalidSchemaError, match=r"shop\.User"):
        avro(order)
    with pytest.raises(InvalidSchemaError, match="its reference 'r0'"):
        avro(order, {"type": "record"})
    twice = (Needed("one", json.dumps(user)), Needed("two", json.dumps(user)))
    assert parse(Source(SchemaType.AVRO, json.dumps(order), twice)).canonical == schema.canonical
