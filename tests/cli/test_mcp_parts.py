"""The pure parts of ``danube mcp``: inputs and their schemas, and answers of bounded size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cli._mcp import inputs
from danube.cli._mcp.outputs import encoded, fitted
from danube.cli._mcp.tools import TOOLS
from danube.model.errors import InvalidArgumentError


def test_every_tool_describes_its_input_without_references():
    for tool in TOOLS:
        schema = inputs.schema_of(tool.input)
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert "$ref" not in json.dumps(schema)
        assert all("description" in json.dumps(each) for each in schema["properties"].values()), tool.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing required field `topic`"),
        ({"topic": ""}, "length >= 1"),
        ({"topic": "t", "limit": "3"}, "Expected `int`, got `str` - at `limit`"),
        ({"topic": "t", "last": 0}, "Expected `int` >= 1"),
        ({"topic": "t", "what": 1}, "unknown field `what`"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(InvalidArgumentError, match="parameters of this tool: topic, last, start") as caught:
        inputs.checked(inputs.ReadInput, arguments)
    assert said in caught.value.message


rows = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=3), max_size=40)


@given(st.dictionaries(st.sampled_from("abc"), rows | st.text(max_size=2_000) | st.integers()), rows)
def test_answers_are_cut_to_their_size_and_say_so(result, more):
    before = json.dumps(result)
    found = fitted({**result, "nested": {"more": more}}, 1_500)
    assert json.dumps(result) == before, "the result itself is not changed"
    assert len(encoded(found)) <= 1_500 + 200
    omitted = found.get("omitted", {})
    for name, value in {**result, "nested.more": more}.items():
        kept = found["nested"]["more"] if name == "nested.more" else found[name]
        if isinstance(value, list):
            assert kept == value[: len(kept)]
            assert omitted.get(name, 0) == len(value) - len(kept)
    assert ("hint" in found) is bool(omitted)


def test_a_long_text_is_cut_at_last():
    found = fitted({"text": "x" * 10_000, "other": "y"}, 1_000)
    assert found["other"] == "y"
    assert found["text"].endswith("x ...")
    assert len(encoded(found)) <= 1_000
