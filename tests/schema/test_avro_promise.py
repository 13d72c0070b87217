"""Compatible schemas decode: checked with fastavro, and compared with the rules of Apache's library."""

from __future__ import annotations

import io
import json
from collections import Counter
from random import Random
from typing import Any

import fastavro
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro_pairs import Data, Schemas, evolved
from schema_helpers import avro, record

from danube.model.errors import InvalidSchemaError
from danube.schema import Policy


def fast(schema: Any) -> tuple[Any, dict[str, Any]]:
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)), named_schemas=named)
    return parsed, named


def read(writer: Any, reader: Any, datum: Any) -> Any:
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, writer, datum)
    payload.seek(0)
    return fastavro.schemaless_reader(payload, writer, reader)


def try_pair(seed: int, seen: Counter[str]) -> None:
    """Make a pair, ask both ways whether it is compatible, and read data if it is said to be."""
    random = Random(seed)
    first = Schemas(random).schema()
    pair = [first, evolved(random, first) if random.random() < 0.9 else Schemas(random).schema()]
    if random.random() < 0.5:
        pair.reverse()
    try:
        writer, reader = (avro(each) for each in pair)
    except InvalidSchemaError:  # an evolution that broke something, as a name that went with a field
        seen["invalid"] += 1
        return
    ours = reader.refuses(writer, Policy.STRICT)
    theirs = ReaderWriterCompatibilityChecker().get_compatibility(reader.root, writer.root)  # type: ignore[attr-defined]
    seen["yes" if not ours else "no"] += 1
    says_yes = theirs.compatibility is SchemaCompatibilityType.compatible
    if not ours:
        # Ours knows more aliases of named types, and none of these pairs has one.
        assert says_yes, (seed, pair)
        (fast_writer, named), (fast_reader, _) = fast(pair[0]), fast(pair[1])
        for _ in range(3):
            try:
                datum = Data(random, named).datum(fast_writer)
            except RecursionError:
                seen["endless"] += 1
                return
            read(fast_writer, fast_reader, datum)
            seen["read"] += 1
    elif says_yes:
        seen["stricter than the library"] += 1


def run(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            try_pair(seed, seen)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return seen


def test_data_of_compatible_avro_schemas_decodes() -> None:
    seen = run(range(600))
    assert seen["yes"] > 200, seen
    assert seen["no"] > 150, seen
    assert seen["read"] > 600, seen
    assert seen["stricter than the library"] < 10, seen


@pytest.mark.long
def test_data_of_compatible_avro_schemas_decodes_many_times() -> None:
    assert run(range(1_000, 101_000))["yes"] > 30_000


def test_defaults_and_aliases_are_read_as_declared() -> None:
    old = record(("id", "int"), ("name", "string"))
    new = record(
        ("id", "long"), {"name": "user", "type": "string", "aliases": ["name"]}, ("note", ["null", "string"], None)
    )
    assert not avro(new).refuses(avro(old), Policy.STRICT)
    found = read(fast(old)[0], fast(new)[0], {"id": 1, "name": "ada"})
    assert found == {"id": 1, "user": "ada", "note": None}
