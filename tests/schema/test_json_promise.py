"""Compatible schemas validate: checked with values of the writer's schema and the validator of the reader's."""

from __future__ import annotations

import copy
import json
from collections import Counter
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from danube.schema import Policy, SchemaType, Source, parse
from danube.schema.json import JsonSchema, _Walk

NAMES = "abc"
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")


def made(random: Random, depth: int = 0) -> Any:
    """A random schema in which definitions a and b may be referred to."""
    roll = random.random()
    if roll < 0.06:
        return random.random() < 0.8
    if roll < 0.14:
        return {"$ref": f"#/$defs/{random.choice('ab')}"}
    if depth < 3 and roll < 0.3:
        keyword = random.choice(("anyOf", "oneOf", "allOf"))
        return {keyword: [made(random, depth + 1) for _ in range(random.randint(1, 3))]}
    if roll < 0.38:
        return {"enum": random.sample([1, 2, "x", "yy", None, True, [], {}], random.randint(1, 3))}
    kinds = random.sample(KINDS, 2 if random.random() < 0.15 else 1)
    schema: dict[str, Any] = {"type": kinds if len(kinds) > 1 else kinds[0]}
    if depth >= 3:
        return schema
    if "object" in kinds:
        schema["properties"] = {name: made(random, depth + 1) for name in random.sample(NAMES, random.randint(0, 2))}
        if random.random() < 0.5:
            schema["required"] = random.sample(NAMES, random.randint(1, 2))
        if random.random() < 0.5:
            schema["additionalProperties"] = False if random.random() < 0.7 else made(random, depth + 1)
        if random.random() < 0.1:
            schema["patternProperties"] = {random.choice(("^a", "b")): made(random, depth + 1)}
    if "array" in kinds and random.random() < 0.8:
        schema["items"] = made(random, depth + 1)
        if random.random() < 0.3:
            schema["prefixItems"] = [made(random, depth + 1)]
    for kind, keywords in (("integer", ("minimum", "maximum", "multipleOf")), ("number", ("exclusiveMinimum",)),
                           ("string", ("minLength", "maxLength")), ("array", ("maxItems",))):  # fmt: skip
        for keyword in keywords if kind in kinds and random.random() < 0.4 else ():
            schema[keyword] = random.randint(1, 3)
    return schema


def parts(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [part for each in schema for part in parts(each)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(part for each in schema.values() for part in parts(each))]


def evolved(random: Random, schema: Any) -> Any:
    """The schema with one to three changes."""
    schema = copy.deepcopy(schema)
    for _ in range(random.randint(1, 3)):
        candidates = [part for part in parts(schema) if "type" in part or "anyOf" in part or "enum" in part]
        if not candidates:
            break
        part = random.choice(candidates)
        roll = random.random()
        if roll < 0.15 and "type" in part:
            part["type"] = random.choice(KINDS)
            continue
        if roll < 0.25:
            part["required"] = [random.choice(NAMES)]
            continue
        if roll < 0.35:
            part["additionalProperties"] = random.random() < 0.5
            continue
        if isinstance(part.get("properties"), dict) and roll < 0.5:
            name = random.choice(NAMES)
            if name in part["properties"] and roll < 0.2:
                del part["properties"][name]
            else:
                part["properties"].setdefault(name, made(random, 2))
        elif isinstance(part.get("required"), list) and roll < 0.7:
            del part["required"]
        elif isinstance(part.get("anyOf"), list):
            part["anyOf"].append(made(random, 2))
        elif isinstance(part.get("enum"), list):
            part["enum"] = [*part["enum"], "new"]
        elif part.get("type") == "integer":
            part["type"] = "number"
        else:
            for keyword in ("minimum", "minLength", "multipleOf", "maxItems"):
                if keyword in part and isinstance(part[keyword], int):
                    part[keyword] = random.randint(1, 3)
    return schema


def value(random: Random, schema: Any, defs: Any, depth: int = 0) -> Any:
    """A value that is likely to be one of the schema."""
    if random.random() < 0.05 or depth > 6 or not isinstance(schema, dict):
        return random.choice([None, True, 0, 1, 2, 2.5, "", "x", "yy", [], {}, [1], {"a": 1}, {"b": "x", "c": None}])
    if "$ref" in schema:
        return value(random, defs[schema["$ref"][-1]], defs, depth + 1)
    if "enum" in schema:
        return random.choice(schema["enum"])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return value(random, random.choice(schema[keyword]), defs, depth + 1)
    kind = schema["type"] if isinstance(schema["type"], str) else random.choice(schema["type"])
    if kind == "object":
        names = {name for name in schema.get("properties", ()) if random.random() < 0.7} | set(
            schema.get("required", ())
        )
        if random.random() < 0.3:
            names.add(random.choice(NAMES))
        listed = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        return {name: value(random, listed.get(name, rest), defs, depth + 1) for name in sorted(names)}
    if kind == "array":
        first = [value(random, each, defs, depth + 1) for each in schema.get("prefixItems", ())]
        return first + [value(random, schema.get("items", True), defs, depth + 1) for _ in range(random.randint(0, 2))]
    if kind == "string":
        return random.choice(("", "x", "yy", "zzz"))
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "null":
        return None
    return random.randint(0, 6) if kind == "integer" or random.random() < 0.5 else random.choice((0.5, 2.5, 7.25))


def try_pair(seed: int, seen: Counter[str]) -> None:
    random = Random(seed)
    defs = {"a": made(random, 2), "b": made(random, 1)}
    defs["a"] = {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}, "c": defs["a"]}}
    if isinstance(defs["b"], dict) and "$ref" in defs["b"]:
        defs["b"] = {"type": "integer"}
    root = made(random) if random.random() < 0.9 else {"$ref": "#/$defs/a"}
    writer = (root if isinstance(root, dict) else {"type": "array", "items": root}) | {"$defs": defs}
    reader = evolved(random, writer)
    if random.random() < 0.3:
        other = made(random)
        reader = (other if isinstance(other, dict) else {}) | {"$defs": reader["$defs"]}
    ours, theirs = (parse(Source(SchemaType.JSON, json.dumps(each))) for each in (reader, writer))
    assert isinstance(ours, JsonSchema)
    reasons = ours.refuses(theirs, Policy.STRICT)
    walk = _Walk((reader, {}), (writer, {}), set())
    walk_says_yes = not walk.compare(reader, writer, "#") and not walk.is_unsound
    seen["yes" if not reasons else "no"] += 1
    if walk_says_yes:
        seen["the walk says yes"] += 1
    if reasons and not walk_says_yes:
        return
    writers, readers = (jsonschema_rs.validator_for(each, offline=True) for each in (writer, reader))
    for _ in range(6):
        each = value(random, writer, defs)
        if writers.is_valid(each):
            seen["valid"] += 1
            assert readers.is_valid(each), (reader, writer, each, walk_says_yes)


def run(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            try_pair(seed, seen)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return seen


def test_documents_of_compatible_json_schemas_are_valid() -> None:
    seen = run(range(600))
    assert seen["yes"] > 150, seen
    assert seen["no"] > 100, seen
    assert seen["the walk says yes"] > 100, seen
    assert seen["valid"] > 500, seen


def test_a_definition_that_refers_to_itself_at_once_proves_nothing() -> None:
    looping = {"allOf": [{"type": ["number", "null"]}, {"$ref": "#/$defs/b"}]}
    writer = {"$ref": "#/$defs/b", "$defs": {"b": looping}}
    reader = {"allOf": [{"type": "string"}], "$defs": {"b": looping}}
    ours, theirs = (parse(Source(SchemaType.JSON, json.dumps(each))) for each in (reader, writer))
    assert isinstance(ours, JsonSchema)
    assert ours.refuses(theirs, Policy.STRICT)
    assert not ours.refuses(ours, Policy.STRICT)
    # A recursion that goes into the value is proven as ever.
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": {"type": "integer"}}
    wider = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": {"type": "number"}}
    old, new = (parse(Source(SchemaType.JSON, json.dumps(each))) for each in (tree, wider))
    assert isinstance(new, JsonSchema)
    assert not new.refuses(old, Policy.STRICT)


@pytest.mark.long
def test_documents_of_compatible_json_schemas_are_valid_many_times() -> None:
    assert run(range(1_000, 101_000))["yes"] > 15_000
