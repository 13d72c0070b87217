"""JSON Schema's rules. Names of reasons are Confluent's; the requirements follow from JSON Schema's specification."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_helpers import kinds

import danube.schema.json
from danube.model.errors import InvalidSchemaError, SchemaTooLargeError
from danube.schema import Needed, Parsed, Policy, SchemaType, Source, parse
from danube.schema.json import JsonSchema, _Walk

DRAFT7 = "http://json-schema.org/draft-07/schema#"


def schema(value: Any, **needs: Any) -> Parsed:
    needed = tuple(Needed(name, json.dumps(each)) for name, each in needs.items())
    return parse(Source(SchemaType.JSON, json.dumps(value), needed))


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return opened(*required, **properties) | {"additionalProperties": False}


def opened(*required: str, **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return made | ({"required": list(required)} if required else {})


INT = {"type": "integer"}
STR = {"type": "string"}
NUM = {"type": "number"}

STRICT: list[tuple[str, Any, Any, list[str]]] = [
    ("the same", opened(a=INT), opened(a=INT), []),
    # Anything may be in a property that an open schema does not list.
    ("a property added to an open schema", opened(a=INT, b=INT), opened(a=INT),
     ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ("one that may be anything", opened(a=INT, b={}), opened(a=INT), []),
    ("a property removed from an open schema", opened(a=INT), opened(a=INT, b=INT), []),
    ("a property added to a closed schema", closed(a=INT, b=INT), closed(a=INT), []),
    ("a property removed from a closed schema", closed(a=INT), closed(a=INT, b=INT),
     ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
    ("a schema opened", opened(a=INT), closed(a=INT), []),
    ("a schema closed", closed(a=INT), opened(a=INT), ["ADDITIONAL_PROPERTIES_REMOVED"]),
    ("the rest narrowed", {"type": "object", "additionalProperties": INT},
     {"type": "object", "additionalProperties": NUM}, ["ADDITIONAL_PROPERTIES_REMOVED"]),
    ("required added", opened("a", a=INT), opened(a=INT), ["REQUIRED_ATTRIBUTE_ADDED"]),
    ("required removed", opened(a=INT), opened("a", a=INT), []),
    ("an integer becomes a number", NUM, INT, []),
    ("a number becomes an integer", INT, NUM, ["TYPE_CHANGED"]),
    ("a type added", {"type": ["integer", "null"]}, INT, []),
    ("a type removed", INT, {"type": ["integer", "null"]}, ["TYPE_NARROWED"]),
    ("another type", STR, INT, ["TYPE_CHANGED"]),
    ("anything becomes something", INT, True, ["TYPE_CHANGED"]),
    ("something becomes anything", True, INT, []),
    ("nothing becomes something", INT, False, []),
    ("something becomes nothing", False, INT, ["PROPERTY_FORBIDDEN"]),
    ("an enum grows", {"enum": ["a", "b"]}, {"enum": ["a"]}, []),
    ("an enum shrinks", {"enum": ["a"]}, {"enum": ["a", "b"]}, ["ENUM_ARRAY_NARROWED"]),
    ("an enum for a type", {"type": "string", "enum": ["a"]}, STR, ["ENUM_ARRAY_ADDED"]),
    ("a constant changes", {"const": 2}, {"const": 1}, ["ENUM_ARRAY_NARROWED"]),
    ("a minimum falls", NUM | {"minimum": 1}, NUM | {"minimum": 2}, []),
    ("a minimum rises", NUM | {"minimum": 2}, NUM | {"minimum": 1}, ["MINIMUM_INCREASED"]),
    ("a minimum comes", NUM | {"minimum": 2}, NUM, ["MINIMUM_ADDED"]),
    ("a maximum falls", NUM | {"maximum": 1}, NUM | {"maximum": 2}, ["MAXIMUM_DECREASED"]),
    ("an exclusive minimum rises", NUM | {"exclusiveMinimum": 2}, NUM | {"exclusiveMinimum": 1},
     ["EXCLUSIVE_MINIMUM_INCREASED"]),
    ("an exclusive maximum comes", NUM | {"exclusiveMaximum": 2}, NUM, ["EXCLUSIVE_MAXIMUM_ADDED"]),
    ("a factor divides", INT | {"multipleOf": 2}, INT | {"multipleOf": 4}, []),
    ("a factor does not", INT | {"multipleOf": 3}, INT | {"multipleOf": 4}, ["MULTIPLE_OF_CHANGED"]),
    ("a length comes", STR | {"maxLength": 3}, STR, ["MAX_LENGTH_ADDED"]),
    ("a length falls", STR | {"minLength": 1}, STR | {"minLength": 2}, []),
    ("a pattern comes", STR | {"pattern": "^a"}, STR, ["PATTERN_ADDED"]),
    ("a pattern changes", STR | {"pattern": "^a"}, STR | {"pattern": "^b"}, ["PATTERN_CHANGED"]),
    ("what is about other types", {"type": "string", "minimum": 1}, STR, []),
    ("items widen", {"type": "array", "items": NUM}, {"type": "array", "items": INT}, []),
    ("items narrow", {"type": "array", "items": INT}, {"type": "array", "items": NUM}, ["TYPE_CHANGED"]),
    ("items become unique", {"type": "array", "uniqueItems": True}, {"type": "array"}, ["UNIQUE_ITEMS_ADDED"]),
    ("items by place", {"type": "array", "prefixItems": [INT, STR]}, {"type": "array", "prefixItems": [INT, INT]},
     ["TYPE_CHANGED"]),
    ("more properties", {"type": "object", "minProperties": 2}, {"type": "object", "minProperties": 1},
     ["MIN_PROPERTIES_INCREASED"]),
    ("an alternative more", {"anyOf": [INT, STR]}, {"anyOf": [INT]}, []),
    ("an alternative less", {"anyOf": [INT]}, {"anyOf": [INT, STR]}, ["SUM_TYPE_NARROWED"]),
    ("alternatives for one", {"oneOf": [INT, STR]}, INT, []),
    ("one for alternatives", NUM, {"oneOf": [INT, NUM]}, []),
    ("all of more", {"allOf": [INT, {"minimum": 1}]}, INT, ["MINIMUM_ADDED"]),
    ("all of less", INT, {"allOf": [INT, {"minimum": 1}]}, []),
    ("names of properties", {"type": "object", "propertyNames": {"maxLength": 2}}, {"type": "object"},
     ["MAX_LENGTH_ADDED"]),
    ("a pattern of names comes", {"type": "object", "patternProperties": {"^a": INT}}, {"type": "object"},
     ["PATTERN_PROPERTY_ADDED"]),
    ("a property that a pattern of the writer's allows", {"type": "object", "properties": {"b": INT}},
     {"type": "object", "patternProperties": {"^b": STR}, "additionalProperties": False},
     ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ("something is ruled out", {"type": "integer", "not": {"const": 3}}, INT, ["KEYWORD_CHANGED"]),
    ("words for people", {"type": "integer", "title": "x", "default": 1}, INT | {"description": "y"}, []),
    ("through references", {"$ref": "#/$defs/a", "$defs": {"a": NUM}}, {"$ref": "#/$defs/b", "$defs": {"b": INT}}, []),
    ("through references, narrowed", {"$ref": "#/$defs/a", "$defs": {"a": INT}},
     {"$ref": "#/$defs/b", "$defs": {"b": NUM}}, ["TYPE_CHANGED"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "expected"), [case[1:] for case in STRICT], ids=[case[0] for case in STRICT]
)
def test_strictly_a_schema_means_what_it_says(reader: Any, writer: Any, expected: list[str]) -> None:
    ours, theirs = schema(reader), schema(writer)
    assert kinds(ours, theirs) == expected
    # The walk by itself is as right where it has to decide.
    assert isinstance(ours, JsonSchema)
    assert isinstance(theirs, JsonSchema)
    walk = _Walk((ours.root, {}), (theirs.root, {}), set())
    assert [reason.kind for reason in walk.compare(reader, writer, "#")] == expected


LENIENT: list[tuple[str, Any, Any, list[str]]] = [
    ("a property added", opened(a=INT, b=INT), opened(a=INT), []),
    ("a property removed", opened(a=INT), opened(a=INT, b=INT), []),
    ("removed from a closed schema", closed(a=INT), closed(a=INT, b=INT), []),
    ("a schema closed", closed(a=INT), opened(a=INT), []),
    ("a required property added", opened("b", a=INT, b=INT), opened(a=INT), ["REQUIRED_ATTRIBUTE_ADDED"]),
    ("one with a default", opened("b", a=INT, b=INT | {"default": 1}), opened(a=INT), []),
    ("a type changed", opened(a=STR), opened(a=INT), ["TYPE_CHANGED"]),
    ("a property within one", opened(a=opened(b=INT, c=INT)), opened(a=opened(b=INT)), []),
    ("a property within a definition", {"$ref": "#/$defs/A", "$defs": {"A": opened(b=INT, c=INT)}},
     {"$ref": "#/$defs/A", "$defs": {"A": opened(b=INT)}}, []),
    ("one that the rest of the writer's schema allows", opened(a=INT), {"type": "object", "additionalProperties": STR},
     ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    # Both of a pair say what may be in the object: neither is closed.
    ("all of two", {"allOf": [opened(a=INT), opened(b=STR)]}, {"allOf": [opened(a=INT), opened(b=INT)]},
     ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ("all of two by references", {"allOf": [{"$ref": "#/$defs/A"}, opened(b=STR)], "$defs": {"A": opened(a=INT)}},
     {"allOf": [{"$ref": "#/$defs/A"}, opened(b=INT)], "$defs": {"A": opened(a=INT)}},
     ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ("alternatives", {"oneOf": [opened("k", k={"const": 1}, a=INT, b=INT), opened("k", k={"const": 2})]},
     {"oneOf": [opened("k", k={"const": 1}, a=INT), opened("k", k={"const": 2})]}, []),
    ("a constant changed", opened(v={"const": 2}), opened(v={"const": 1}), ["ENUM_ARRAY_NARROWED"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "expected"), [case[1:] for case in LENIENT], ids=[case[0] for case in LENIENT]
)
def test_leniently_writers_write_what_they_list_and_readers_ignore_the_rest(
    reader: Any, writer: Any, expected: list[str]
) -> None:
    assert kinds(schema(reader), schema(writer), Policy.LENIENT) == expected


OLD = opened("name", name=STR)
UPSTREAM: list[tuple[str, Any, Any, list[str], list[str]]] = [
    # new, old; reasons against BACKWARD, against FORWARD
    ("an optional property added", opened("name", name=STR, email=STR), OLD, [], []),
    ("added without anything required", opened(name=STR, email=STR), opened(name=STR), [], []),
    ("a required property removed", opened(email=STR), OLD, ["REQUIRED_PROPERTY_REMOVED"], []),
    ("a required property added", opened("name", "email", name=STR, email=STR), OLD, [], ["REQUIRED_PROPERTY_REMOVED"]),
    ("an optional property removed", OLD, opened("name", name=STR, email=STR), [], []),
    ("an optional property that becomes required", OLD, opened(name=STR), ["REQUIRED_ATTRIBUTE_ADDED"], []),
    ("a required property that becomes optional", opened(name=STR), OLD, [], []),
    ("a constant that changes", opened(v={"const": 2}), opened(v={"const": 1}), [], []),
    ("a property's type", opened("name", name=INT), OLD, ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    ("the type", {"type": "array"}, {"type": "object"}, ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    ("anything", True, True, [], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("new", "old", "backward", "forward"), [case[1:] for case in UPSTREAM], ids=[case[0] for case in UPSTREAM]
)
def test_upstreams_rule(new: Any, old: Any, backward: list[str], forward: list[str]) -> None:
    new_schema, old_schema = schema(new), schema(old)
    assert kinds(new_schema, old_schema, Policy.UPSTREAM) == backward
    told = old_schema.refuses(new_schema, Policy.UPSTREAM, is_forward=True)
    assert [reason.kind for reason in told] == forward


def test_reasons_say_what_and_where() -> None:
    reader = schema(opened("id", id=INT, tags={"type": "array", "items": STR}))
    writer = schema(closed(id=NUM, tags={"type": "array", "items": INT}))
    assert [(reason.path, reason.text) for reason in reader.refuses(writer, Policy.STRICT)] == [
        ("#/required/id", "#: the property 'id' is required by the reader's schema and optional in the writer's"),
        ("#/properties/id/type", "#/properties/id is integer, the writer's is number"),
        ("#/properties/tags/items/type", "#/properties/tags/items is string, the writer's is integer"),
    ]


def chain(kind: Any) -> dict[str, Any]:
    node = opened(value=kind, next={"$ref": "#/$defs/node"})
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def test_recursive_json_schemas_are_compared() -> None:
    assert kinds(schema(chain(NUM)), schema(chain(INT))) == []
    (reason,) = schema(chain(INT)).refuses(schema(chain(NUM)), Policy.STRICT)
    assert reason.path == "#/properties/value/type"
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert kinds(schema(INT), schema(endless)) != []


def test_an_assumption_that_fails_is_withdrawn() -> None:
    # While A is compared with itself, B is found to be fine because A is taken to be; A is not.
    def both(kind: Any) -> dict[str, Any]:
        a = closed(b={"$ref": "#/$defs/B"}, value=kind)
        b = closed(a={"$ref": "#/$defs/A"})
        return closed(one={"$ref": "#/$defs/A"}, two={"$ref": "#/$defs/B"}) | {"$defs": {"A": a, "B": b}}

    refuted: set[tuple[str, str]] = set()
    walk = _Walk((both(INT), {}), (both(NUM), {}), refuted)
    assert walk.compare(both(INT), both(NUM), "#")
    assert walk.is_unsound
    b = {"$ref": "#/$defs/B"}
    assert walk.compare(b, b, "#") == [], "it does not know yet"
    assert _Walk((both(INT), {}), (both(NUM), {}), refuted).compare(b, b, "#") != []


def test_references_are_documents_by_their_names() -> None:
    user = opened("id", id=INT)
    order = closed(user={"$ref": "user.json"})
    one = schema(order, **{"user.json": user})
    assert kinds(one, one) == []
    wide = schema(order, **{"user.json": opened("id", id=NUM)})
    assert kinds(wide, one) == []
    assert kinds(one, wide) == ["TYPE_CHANGED"]
    named = schema(order | {"$id": "http://shop.example/order.json"}, **{"user.json": user})
    assert kinds(named, named) == []
    with pytest.raises(InvalidSchemaError, match="user"):
        schema(order)


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "http://127.0.0.1:1/x.json", "https://example.invalid/x"])
def test_nothing_is_fetched(uri: str) -> None:
    with pytest.raises(InvalidSchemaError, match="Retrieval is disabled"):
        schema({"$ref": uri})


@pytest.mark.parametrize(
    "text",
    ["", "{", "7", "[]", '"x"', "null", '{"type":"wat"}', '{"properties":[]}', '{"$ref":"#/nope"}', '{"pattern":"("}',
     '{"$schema":"http://example.invalid/x"}', '{"minLength":-1}', '{"required":"a"}'],
)  # fmt: skip
def test_documents_that_are_no_json_schema_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(Source(SchemaType.JSON, text))


def test_how_deep_it_is_is_limited() -> None:
    with pytest.raises(SchemaTooLargeError, match="max_schema_depth is 100"):
        parse(Source(SchemaType.JSON, '{"not":' * 101 + "{}" + "}" * 101))
    with pytest.raises(SchemaTooLargeError, match="max_schema_depth"):
        parse(Source(SchemaType.JSON, '{"not":' * 60_000))


def test_a_walk_through_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(danube.schema.json, "_MOST_PAIRS", 500)

    def either(leaf: Any) -> Any:
        for _ in range(8):
            leaf = {"anyOf": [leaf, leaf]}
        return leaf

    walk = _Walk((either(INT), {}), (either(NUM), {}), set())
    assert walk.compare(either(INT), either(NUM), "#")
    assert 500 < walk._pairs < 1_000


def test_texts_that_say_the_same_have_one_canonical_text() -> None:
    one = parse(Source(SchemaType.JSON, '{"type": "object", "properties": {"b": {}, "a": {"title": "x"}}}'))
    other = parse(Source(SchemaType.JSON, '{"properties":{"a":{"title":"x"},"b":{}},"type":"object"}'))
    assert one.canonical == other.canonical
    assert schema({"title": "Order"}).name == "Order"


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-04/schema#", DRAFT7,
                                   "https://json-schema.org/draft/2019-09/schema"])  # fmt: skip
def test_other_drafts_are_known_and_compared_with_one_another(draft: str) -> None:
    old = schema(closed(a=INT) | {"$schema": draft})
    assert kinds(schema(closed(a=NUM)), old) == []
    assert kinds(schema(closed(a=STR)), old) == ["TYPE_CHANGED"]
    assert kinds(old, schema(closed(a=INT, b=INT))) == ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["object", "a", "#", "#/properties/a", ".*"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "allOf", "oneOf", "anyOf", "not", "$ref", "required", "enum",
                         "const", "additionalProperties", "minimum", "a", "patternProperties", "if", "contains"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60)
@given(one=JSON, other=JSON, policy=st.sampled_from(Policy))
def test_nothing_but_a_schema_error_comes_of_any_json(one: Any, other: Any, policy: Policy) -> None:
    try:
        reader, writer = schema(one), schema(other)
    except InvalidSchemaError:
        return
    reader.refuses(writer, policy)
    assert reader.refuses(reader, Policy.STRICT) == []
