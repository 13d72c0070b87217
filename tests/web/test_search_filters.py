"""Filters of messages: what they mean, their errors, and that passing over batches never changes a result."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from danube.model.batch import Codec, Record, encode_part, encode_records, read_header, unpack_body
from danube.model.query_api import RawBatch
from danube.web.search.filters import (
    MAX_FILTER_DEPTH,
    MAX_FILTER_LENGTH,
    All,
    Compare,
    Exists,
    FilterError,
    Negated,
    Node,
    OneOf,
    Words,
    number_of,
    parse_filter,
)
from danube.web.search.needles import BatchFacts, batch_test, need_of
from danube.web.search.scanning import Bounds, Scanner, _fact_test, bounds_of

MAX_BATCH = 1 << 20
ADA = {"user": "ada", "total": 12.5, "items": [{"sku": "a-1"}], "paid": True, "note": None, "odd name": 7}


def message(value: Any = None, **fields: Any) -> Record:
    payload = fields.pop("payload", None)
    return Record(json.dumps(value).encode() if payload is None else payload, **fields)


def matches(text: str, *records: Record, base: int = 0, time_us: int = 0, partition: int = 0) -> list[int]:
    part = encode_part(list(records), producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=5)  # type: ignore[arg-type]
    scanner = Scanner(parse_filter(text), "/default/t", partition, MAX_BATCH)
    scanned, found = scanner.scan(RawBatch(base, time_us, "web-1", part), base, base + len(records))  # type: ignore[arg-type]
    assert scanned == len(records)
    return [each.offset for each in found]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('value.user == "ada"', True),
        ("value.user == ada", True),
        ("value.user = 'ada'", True),
        ('value.user == "adam"', False),
        ('value.user != "ada"', False),
        ('value.nothing != "ada"', True),
        ("value.total > 10", True),
        ("value.total > 12.5", False),
        ("value.total >= 12.5 and value.total <= 1.25e1", True),
        ('value.total == "12.5"', True),
        ("value.items[0].sku ^= a-", True),
        ("value.items.0.sku $= -1", True),
        ("value.items[1].sku == a-1", False),
        ('value.items ~ "a-1"', True),
        ('value.items ~ "[{"', True),
        ('value["odd name"] == 7', True),
        ("value.paid", True),
        ("value.paid == true", True),
        ("value.note", False),
        ("value.note == null", True),
        ('value.note == "null"', False),
        ("not value.note", True),
        ('key ^= "eu-" and header.type ~ "order"', True),
        ('key ^= "us-" or header.type ~ "order"', True),
        ('not (key ^= "eu-" and header.type ~ "order")', False),
        ('header.type ~ "ORDER"', False),
        ('header.type ~~ "ORDER"', True),
        ('header["odd name"] == "x"', True),
        ("header.none ~ x", False),
        ("header.none !~ x", True),
        ("header.count > 9", True),
        ("key in (a, eu-42, b)", True),
        ("key in (a, b)", False),
        ("value.total in (1, 12.5)", True),
        ("size > 10 and size < 1000", True),
        ("offset == 15 and partition == 3", True),
        ("offset in (1, 15)", True),
        ("offset < 15 or partition != 3", False),
        ("time >= 1970-01-01T00:00:10Z and time < '1970-01-01T00:01:00'", True),
        ("time > 10000000", False),
        ("time == 10000000", True),
        ("producer ^= web", True),
        ('text ~ "ada"', True),
        ('"ADA"', True),
        ("ADA", True),
        ("order.Created", True),
        ("nowhere", False),
        ("", True),
        ("  ", True),
    ],
)
def test_what_filters_mean(text: str, holds: bool) -> None:
    attributes = {"type": "order.created", "odd name": "x", "count": "10"}
    one = message(ADA, key=b"eu-42", attributes=attributes)
    assert matches(text, one, base=15, time_us=10_000_000, partition=3) == ([15] if holds else [])


@pytest.mark.parametrize("text", ['value.user == "ada"', 'value.user ~ "da"', "value.us", "value.user ~~ ADA"])
def test_text_that_json_writes_as_escapes_is_found(text: str) -> None:
    escaped = rb'{"\u0075ser": "\u0061da", "us": 1}'
    assert matches(text, message(payload=escaped)) == [0]


def test_payloads_that_are_no_json_and_no_text() -> None:
    some = [message(payload=each) for each in (b"plain ada", b"\xff\xfe ada", b"", b"[" * 100_000, b'{"a": 1e999}')]
    assert matches("value.a > 0", *some) == []
    assert matches("text ~ ada", *some) == [0]
    assert matches("value.a != 1", *some) == [0, 1, 2, 3, 4]
    assert matches('key == "base64:/w=="', message(1, key=b"\xff"), message(1, key=b"a")) == [0]


def test_only_the_wanted_offsets_of_a_batch_are_looked_at() -> None:
    part = encode_part([b"a", b"b", b"a"], producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=5)  # type: ignore[arg-type]
    scanner = Scanner(parse_filter("a"), "/default/t", 0, MAX_BATCH)
    batch = RawBatch(10, 7, "p", part)  # type: ignore[arg-type]
    scanned, found = scanner.scan(batch, 11, 99)
    assert (scanned, [(each.offset, each.append_time_us, each.publish_time_us) for each in found]) == (2, [(12, 7, 5)])
    assert scanner.scan(batch, 13, 99) == (0, [])


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("value.user ==", 13, "a value is missing after =="),
        ("value.user == and key", 14, "a value is missing after =="),
        ("colour == 3", 0, "'colour' is not a field"),
        ('key == "a', 7, "the text does not end"),
        ('(key == "a"', 11, "a bracket is not closed"),
        ('key == "a" key == "b"', 11, "'key' is not expected"),
        ("key == 1 and", 12, "a condition is missing at the end"),
        ("value.a..b == 1", 7, "no path into value"),
        ("value[x] == 1", 5, "no path into value"),
        ("header. == 1", 6, "no path into header"),
        ("offset > soon", 9, "'soon' is no number"),
        ("time > soon", 7, "'soon' is no time"),
        ("(partition in 1)", 14, "the values of in are missing"),
        ("partition in (1 2)", 16, "do not end"),
        ("key ^ 3", 4, "no meaning"),
        ("(" * 60 + "key == 1", MAX_FILTER_DEPTH, "nested more than 50 deep"),
        ("key == " + "1" * 5_000, MAX_FILTER_LENGTH, "5007 characters"),
        ("key in (1" + ",1" * 1_000 + ")", 2008, "more than 1000 values"),
    ],
)
def test_errors_say_where_and_what(text: str, position: int, problem: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    error = caught.value
    assert problem in error.message
    assert (error.position, error.details["position"]) == (position, str(position))
    assert "; " in error.message  # the remedy
    line, caret = error.pointed().split("\n")
    assert caret.endswith("^")
    assert len(line) <= 80


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("offset >= 10 and offset < 20 and value.a == 1", Bounds(10, 21)),
        ("offset == 10 or offset in (3, 30)", Bounds(3, 31)),
        ("offset >= 10 or value.a == 1", Bounds()),
        ("not offset >= 10", Bounds()),
        ("time >= 1970-01-01T00:00:01Z and key == a", Bounds(time_us=1_000_000)),
        ("time < 1970-01-01T00:00:01Z", Bounds()),
        ("offset > 1.5 and offset ~ 3", Bounds(1)),
        ("", Bounds()),
    ],
)
def test_bounds(text: str, bounds: Bounds) -> None:
    assert bounds_of(parse_filter(text)) == bounds


# --- Against a naive interpreter --------------------------------------------------------------------------------------

NONE: Any = object()


def naive(node: Node | None, record: Record, offset: int, partition: int, time_us: int) -> bool:
    """Return whether a message matches, by walking the tree with everything decoded."""
    if node is None:
        return True
    if isinstance(node, Negated):
        return not naive(node.inner, record, offset, partition, time_us)
    if isinstance(node, All | OneOf):
        each = [naive(part, record, offset, partition, time_us) for part in node.parts]
        return all(each) if isinstance(node, All) else any(each)
    if isinstance(node, Words):
        texts = [text_or_none(record.payload), text_or_none(record.key or None)]
        texts += [text for pair in (record.attributes or {}).items() for text in pair]
        return any(node.text.lower() in text.lower() for text in texts if text is not None)
    value = read(node, record, offset, partition, time_us)
    if isinstance(node, Exists):
        return not (value is NONE or value is None or value is False or value == "")
    if node.operator == "in":
        return value is not NONE and any(equal(value, each.text, each.bare, each.number) for each in node.values)
    (wanted,) = node.values
    if value is NONE or (value is None and node.operator not in ("==", "!=")):
        return node.operator in ("!=", "!~")
    if node.operator in ("==", "!="):
        return equal(value, wanted.text, wanted.bare, wanted.number) == (node.operator == "==")
    shown = as_text(value)
    if node.operator in ("<", "<=", ">", ">="):
        left: Any = (
            number_of(value) if isinstance(value, str) else None if isinstance(value, bool | list | dict) else value
        )
        right: Any = wanted.number
        if left is None or right is None:
            left, right = shown, wanted.text
        return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[node.operator]
    return {
        "~": wanted.text in shown,
        "!~": wanted.text not in shown,
        "~~": wanted.text.lower() in shown.lower(),
        "^=": shown.startswith(wanted.text),
        "$=": shown.endswith(wanted.text),
    }[node.operator]


def text_or_none(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def read(node: Compare | Exists, record: Record, offset: int, partition: int, time_us: int) -> Any:
    kind = node.field.kind
    if kind == "key":
        key = record.key or None
        if key is not None and text_or_none(key) is None:
            return "base64:" + base64.b64encode(key).decode()
        return NONE if key is None else key.decode()
    if kind == "header":
        return (record.attributes or {}).get(node.field.path[0], NONE)
    if kind == "text":
        text = text_or_none(record.payload)
        return NONE if text is None else text
    if kind == "value":
        try:
            value = json.loads(record.payload.decode())
        except (ValueError, RecursionError):
            return NONE
        for step in node.field.path:
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                return NONE
        return value
    return {
        "offset": offset, "partition": partition, "time": time_us, "size": len(record.payload), "producer": "web-1"
    }[kind]  # fmt: skip


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("\x7f", "\x7f")


def equal(value: Any, text: str, bare: bool, number: Any) -> bool:
    if value is None:
        return bare and text == "null"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return as_text(value) == text
    return number is not None and bool(value == number)


ALPHABET = 'ab1 eE.-\\"/:,[]{}kK\u212a\u0130é\u00dfu\n\x01'
texts = st.text(ALPHABET, max_size=5)
names = st.sampled_from(["a", "b", "ab", "a b", "1", "k", "\u212a", "u"])
scalars = st.one_of(
    texts, st.integers(-20, 20), st.sampled_from([1.5, 1000.0, 0.25, True, False, None]), st.just("1e3"), st.just("10")
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=12))
    value = draw(values)
    text = json.dumps(
        value, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    )
    if draw(st.booleans()):  # another spelling of the same
        text = text.replace("a", r"\u0061") if '"' in text else text.replace("1000.0", "1e3")
    return text.encode()


records = st.builds(
    Record,
    payloads(),
    st.none() | st.binary(max_size=3) | texts.map(str.encode),
    st.none() | st.dictionaries(names, texts, max_size=2),
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@st.composite
def conditions(draw: st.DrawFn) -> str:
    kind = draw(
        st.sampled_from(["value", "value", "value", "key", "header", "text", "words", "offset", "time", "size"])
    )
    if kind == "words":
        return quoted(draw(texts))
    field = kind
    if kind == "value":
        field += "".join(f"[{quoted(name)}]" for name in draw(st.lists(names, max_size=2)))
    elif kind == "header":
        field += f"[{quoted(draw(names))}]"
    numeric = kind in ("offset", "time", "size")
    literal = st.integers(-3, 20).map(str)
    if not numeric:
        literal |= st.sampled_from(["null", "true", "1000", "1e3", "10", "0.25"]) | texts.map(quoted)
    operator = draw(st.sampled_from(["", "==", "!=", "<", "<=", ">", ">=", "~", "!~", "~~", "^=", "$=", "in"]))
    if operator == "in":
        return f"{field} in ({', '.join(draw(st.lists(literal, min_size=1, max_size=3)))})"
    # "value" alone would be a word
    return f"{field} {operator} {draw(literal)}" if operator else f"({field})"


expressions = st.recursive(
    conditions(),
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("not {}".format, inner)
    ),
    max_leaves=4,
)


@settings(max_examples=300)
@given(expressions, st.lists(records, min_size=1, max_size=4), st.integers(0, 15), st.sampled_from(list(Codec)))
@example('value["a"] ~~ "k"', [Record('{"a": "\u212a"}'.encode())], 0, Codec.NONE)
@example('value ~ "1000"', [Record(b"[1e3]")], 0, Codec.NONE)
@example('value == "null"', [Record(b"null")], 0, Codec.NONE)
def test_the_result_is_that_of_a_naive_interpreter_and_passing_over_changes_nothing(
    text: str, some: list[Record], base: int, codec: Codec
) -> None:
    node = parse_filter(text)
    expected = [base + at for at, each in enumerate(some) if naive(node, each, base + at, 2, 7)]
    plain = all(each.key is None and each.attributes is None for each in some)
    stored = [each.payload for each in some] if plain else some
    part = encode_part(stored, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=5, codec=codec)  # type: ignore[arg-type]
    scanner = Scanner(node, "/default/t", 2, MAX_BATCH)
    _, found = scanner.scan(RawBatch(base, 7, "web-1", part), base, base + len(some))  # type: ignore[arg-type]
    assert [each.offset for each in found] == expected
    # What is said of offsets and times agrees, too.
    bounds = bounds_of(node)
    assert all(bounds.start <= offset < bounds.end for offset in expected)
    assert not expected or bounds.time_us <= 7


def test_batches_that_cannot_match_are_passed_over() -> None:
    facts = BatchFacts(0, 0, 9, 1_000)
    body = bytes(encode_records([message({"user": "ada"}, key=b"k").payload]))
    for text, may in [
        ('value.user == "ada"', True),
        ('value.user == "bob"', False),
        ('value.owner == "ada"', False),
        ('value.user != "bob"', True),
        ('value.user == "bob" or key == "k"', False),
        ('value.user == "ada" and offset > 20', False),
        ('value.user == "ada" and time > 2000', False),
        ('"ADA"', True),
        ('"BOB"', False),
        ("value.total > 3", False),
    ]:
        assert batch_test(need_of(parse_filter(text)), _fact_test)(facts, body) is may, text
    part = encode_part([b"x"], producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=5)  # type: ignore[arg-type]
    assert bytes(unpack_body(part, read_header(part), MAX_BATCH)) == b"\x91\xc4\x01x"
