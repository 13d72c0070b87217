"""What ``schema=`` takes is encoded and decoded without loss, also by the next and the previous version of a type."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.model.errors import InvalidArgumentError, InvalidSchemaError, SchemaError
from danube.schema import Examination, Level, Policy, SchemaType, Source, examine
from danube.schema.examine import Other
from danube.schema.typed import Avro, Json, Protobuf, Subject, codec_of, codec_of_source


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Code(enum.IntEnum):
    ONE = 1
    TWO = 2


class Odd(enum.Enum):
    PLUS = "+"


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    lives: int


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


class Point(TypedDict):
    x: int
    y: float


@dataclasses.dataclass
class Line:
    start: Point
    end: Point


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LONG = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
MOMENT = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=30))]))
NODES = st.recursive(
    st.builds(Node, LONG), lambda inner: st.builds(Node, LONG, st.lists(inner, max_size=3)), max_leaves=5
)

SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, LONG),
    (float, FLOAT),
    (str, TEXT),
    (bytes, st.binary(max_size=8)),
    (date, st.dates()),
    (time, st.times()),
    (datetime, MOMENT),
    (Annotated[datetime, msgspec.Meta(tz=False)], st.datetimes()),
    (timedelta, st.timedeltas(timedelta(-999), timedelta(999))),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(-(10**20), 10**20, places=9)),
    (Annotated[Decimal, msgspec.Meta(extra={"precision": 5, "scale": 2})], st.decimals(-999, 999, places=2)),
    (Color, st.sampled_from(Color)),
    (Code, st.sampled_from(Code)),
    (Odd, st.sampled_from(Odd)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal[1, "b", None], st.sampled_from([1, "b", None])),
    (Cat | Dog, st.builds(Cat, LONG) | st.builds(Dog, LONG)),
    (Node, NODES),
    (Line, st.builds(Line, *[st.builds(dict, x=LONG, y=FLOAT)] * 2)),
    (int | str | None, LONG | TEXT | st.none()),
    (bool | int | float, st.booleans() | LONG | FLOAT.filter(lambda each: not each.is_integer())),
]
"""Types, and their values."""


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type and its values."""
    kind, values = draw(st.sampled_from(SIMPLE))
    for _ in range(draw(st.integers(0, depth))):
        form = draw(st.sampled_from(["list", "dict", "int keys", "tuple", "optional"]))
        if form == "list":
            kind, values = list[kind], st.lists(values, max_size=3)
        elif form == "dict":
            kind, values = dict[str, kind], st.dictionaries(TEXT, values, max_size=3)
        elif form == "int keys":
            kind, values = dict[int, kind], st.dictionaries(LONG, values, max_size=3)
        elif form == "tuple":
            kind, values = tuple[kind, ...], st.lists(values, max_size=3).map(tuple)
        else:
            kind, values = kind | None, values | st.none()
    return kind, values


@st.composite
def versions(draw: st.DrawFn) -> tuple[type, type, Any, Any]:
    """Two versions of a type, of which the second has more fields, all with defaults; and a value of each."""
    parts = [draw(kinds()) for _ in range(draw(st.integers(1, 5)))]
    fields: list[Any] = []
    old, new = {}, {}
    kept = draw(st.integers(0, len(parts)))
    for index, (kind, values) in enumerate(parts):
        name = f"field{index}"
        new[name] = draw(values)
        if index < kept:
            fields.append((name, kind))
            old[name] = draw(values)
        else:
            default = draw(values)
            # Lists and dicts of a default are shared; msgspec takes empty ones only.
            fields.append((name, kind, default if isinstance(default, str | int | float | date | None) else None))
            if fields[-1][2] is None:
                fields[-1] = (name, kind | None, None)
    first = msgspec.defstruct("Version", fields[:kept])
    second = msgspec.defstruct("Version", fields)
    return first, second, first(**old), second(**new)


MAKERS = [pytest.param(Json, id="json"), pytest.param(Avro, id="avro")]


@pytest.mark.parametrize("make", MAKERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_values_come_back_as_they_were(make: Any, data: st.DataObject) -> None:
    kind, values = data.draw(kinds())
    codec = codec_of(make(msgspec.defstruct("Whole", [("it", kind)])))
    value = data.draw(values)
    decoded = codec.decoder()(codec.encode(codec_value(codec, value))).it
    assert decoded == value
    assert type(decoded) is type(value)


def codec_value(codec: Any, value: Any) -> Any:
    return codec._kind(value) if hasattr(codec, "_kind") else {"it": value}


@pytest.mark.parametrize("make", MAKERS)
@given(versions())
@settings(max_examples=60, deadline=None)
def test_versions_read_each_other_and_are_compatible(make: Any, pair: tuple[type, type, Any, Any]) -> None:
    first, second, old, new = pair
    before, after = codec_of(make(first)), codec_of(make(second))
    names = first.__struct_fields__  # type: ignore[attr-defined]
    read = after.decoder(before.source)(before.encode(old))
    assert type(read) is second
    fresh = second(**{name: getattr(old, name) for name in names})
    assert read == fresh
    back = before.decoder(after.source)(after.encode(new))
    assert back == first(**{name: getattr(new, name) for name in names})
    found = examine(Examination(after.source, (Other(1, 1, before.source),), Level.FULL, Policy.LENIENT))
    assert not found.objections


@given(NODES)
@settings(max_examples=20, deadline=None)
def test_values_of_a_text_are_dicts_of_the_same_payloads(node: Node) -> None:
    for make in (Json, Avro):
        typed = codec_of(make(Node))
        plain = codec_of(make(typed.source.text))
        assert plain.source == typed.source
        assert plain.name == typed.name == "Node"
        value = plain.decoder()(typed.encode(node))
        assert value == msgspec.to_builtins(node)
        assert typed.decoder()(plain.encode(value)) == node


@pytest.mark.parametrize(
    ("kind", "values"),
    [(str, TEXT), (bytes, st.binary()), (int, st.integers()), (float, FLOAT), (list[Line], st.just([]))],
)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_plain_values_come_back_as_they_were(kind: Any, values: Any, data: st.DataObject) -> None:
    codec = codec_of(kind)
    value = data.draw(values)
    decoded = codec.decoder(codec.source)(codec.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


@dataclasses.dataclass
class Spot:
    x: int
    y: float


class Model(pydantic.BaseModel):
    number: int
    name: str = pydantic.Field(default="x", alias="theName")
    parts: list[Spot] = []
    next: Model | None = None


@given(LONG, TEXT, st.lists(st.builds(Spot, LONG, FLOAT), max_size=2))
@settings(max_examples=20, deadline=None)
def test_models_of_pydantic_come_back_as_they_were(number: int, name: str, parts: list[Spot]) -> None:
    codec = codec_of(Model)
    inner = Model(number=number, theName=name, parts=parts)
    value = Model(number=1, next=inner)
    assert codec.decoder()(codec.encode(value)) == value
    assert codec_of_source(codec.source).decoder()(codec.encode(value))["next"]["theName"] == name
    with pytest.raises(SchemaError, match=r"at `\$.next.number`"):
        codec.decoder()(b'{"number": 1, "next": {"number": "many"}}')
    with pytest.raises(SchemaError, match="expected Model, got Spot"):
        codec.encode(Spot(1, 1))
    with pytest.raises(SchemaError, match="number"):
        codec.encode(Model.model_construct(number="many"))


@given(LONG.filter(lambda each: abs(each) < 2**40), st.integers(0, 999_999_999))
@settings(max_examples=20, deadline=None)
def test_protobuf_messages_come_back_as_they_were(seconds: int, nanos: int) -> None:
    codec = codec_of(Timestamp)
    assert codec.name == codec.source.message == "google.protobuf.Timestamp"
    value = Timestamp(seconds=seconds, nanos=nanos)
    payload = codec.encode(value)
    assert codec_of(Protobuf(Timestamp)).decoder(codec.source)(payload) == value
    made = codec_of_source(codec.source).decoder()(payload)
    assert (made.seconds, made.nanos) == (seconds, nanos)
    with pytest.raises(SchemaError, match=r"expected google.protobuf.Timestamp, got StringValue"):
        codec.encode(StringValue(value="x"))
    with pytest.raises(SchemaError, match=r"is a google.protobuf.Timestamp, and the reader's message is"):
        codec_of(StringValue).decoder(codec.source)
    with pytest.raises(SchemaError, match="protobuf"):
        codec.decoder()(b"\xff")


# --- What does not fit ------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    id: int
    user: str
    total: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    lines: list[Cat] = []
    at: datetime | None = None


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Order("1", "ada"), r"\$.id"),  # type: ignore[arg-type]
        (Order(1.5, "ada"), r"\$.id"),  # type: ignore[arg-type]
        (Order(1, "ada", -1.0), r"\$.total"),
        (Order(1, "ada", lines=[Cat(1), Cat("x")]), r"\$.lines\[1\].lives"),  # type: ignore[arg-type]
        (Order(1, "ada", lines="abc"), r"\$.lines"),  # type: ignore[arg-type]
        (Order(1, None), r"\$.user"),  # type: ignore[arg-type]
        (object(), "object"),
        (Point(x=1, y=2.0), "id"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_its_field_named(make: Any, value: Any, field: str) -> None:
    with pytest.raises(SchemaError, match=f"does not fit.*{field}"):
        codec_of(make(Order)).encode(value)
    with pytest.raises(SchemaError, match=f"^value 1: .*{field}"):
        codec_of(make(Order)).encode_many([Order(1, "ada"), value])


@pytest.mark.parametrize("make", MAKERS)
def test_text_that_is_no_unicode_does_not_fit(make: Any) -> None:
    with pytest.raises(SchemaError, match=r"does not fit.*surrogates"):
        codec_of(make(Order)).encode(Order(1, "\ud800"))
    with pytest.raises(SchemaError, match="surrogate at index 1"):
        codec_of(str).encode("a\ud800")


def test_what_avro_would_write_as_something_else_does_not_fit() -> None:
    codec = codec_of(Avro(Order))
    with pytest.raises(SchemaError, match=r"Order.id is .* expected long"):
        codec.encode(Order(2**63, "ada"))
    with pytest.raises(SchemaError, match=r"\.at: 2026-01-01 00:00:00 has no time zone"):
        codec.encode(Order(1, "ada", at=datetime(2026, 1, 1)))
    local = codec_of(Avro(list[dict[str, Annotated[datetime, msgspec.Meta(tz=False)]]]))
    local._kind = None  # a value of the schema, which no type has checked
    with pytest.raises(SchemaError, match=r"\[0\]\['x'\]: .* has a time zone"):
        local.encode([{"x": datetime(2026, 1, 1, tzinfo=UTC)}])
    with pytest.raises(SchemaError, match=r"[Ss]cale"):
        codec_of(Avro(Decimal)).encode(Decimal("0.0000000001"))
    plain = codec_of(Avro(codec.source.text))
    with pytest.raises(SchemaError, match=r"Order.id is <1.5>"):
        plain.encode({"id": 1.5, "user": "ada"})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), True, "1", None])
def test_what_is_no_number_does_not_fit(value: Any) -> None:
    with pytest.raises(SchemaError, match="does not fit"):
        codec_of(float).encode(value)
    with pytest.raises(SchemaError, match="does not fit"):
        codec_of(int).encode(1.5)


# --- What does not decode ---------------------------------------------------------------------------------------------

CODECS = [codec_of(each) for each in (Order, Avro(Order), Timestamp, int, str, Model, Json('{"type": "object"}'))]


def fault(codec: Any, payload: bytes) -> str | None:
    try:
        codec.decoder()(payload)
    except SchemaError as error:
        return error.message
    return None


@pytest.mark.parametrize("codec", CODECS, ids=lambda each: f"{type(each).__name__}")
@given(st.binary(max_size=64))
@settings(max_examples=60, deadline=None)
def test_any_bytes_decode_or_are_a_schema_error(codec: Any, payload: bytes) -> None:
    why = fault(codec, payload)
    assert why is None or why.startswith(f"the payload cannot be decoded ({codec.source.type.value}): ")


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_damaged_datum_decodes_or_is_a_schema_error(data: st.DataObject) -> None:
    codec = codec_of(Avro(Node))
    payload = bytearray(codec.encode(data.draw(NODES)))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    why = fault(codec, bytes(payload))
    assert why is None or "cannot be decoded (avro)" in why


def test_errors_of_decoding_name_the_field_and_what_follows_a_value() -> None:
    with pytest.raises(SchemaError, match=r"Expected `str`, got `int` - at `\$.user`"):
        codec_of(Order).decoder()(b'{"id": 1, "user": 2}')
    with pytest.raises(SchemaError, match="2 bytes follow the value"):
        codec_of(Avro(int)).decoder()(b"\x02\x02\x02")
    with pytest.raises(SchemaError, match=r"is not of type .string. - at `\$.a\[1\]`"):
        codec_of(Json('{"properties": {"a": {"items": {"type": "string"}}}}')).decoder()(b'{"a": ["x", 1]}')


def test_a_schema_of_another_type_decodes_nothing() -> None:
    with pytest.raises(
        SchemaError, match="written with a schema of type avro, and the reader's schema is of type json"
    ):
        codec_of(Order).decoder(codec_of(Avro(Order)).source)


def test_an_incompatible_writer_is_a_schema_error_of_each_payload() -> None:
    other = codec_of(Avro('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'))
    decode = codec_of(Avro(Order)).decoder(other.source)
    with pytest.raises(SchemaError, match="mismatch"):
        decode(other.encode({"id": "x"}))


# --- Schemas ----------------------------------------------------------------------------------------------------------


class Rich(msgspec.Struct, rename="camel"):
    """All kinds of defaults."""

    first_one: int
    none: int | None
    raw: bytes = b"\x00\xff"
    day: date = date(1969, 12, 31)
    clock: time = time(1, 2, 3, 4)
    moment: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    amount: Decimal = Decimal("-1.5")
    key: uuid.UUID = uuid.UUID(int=7)
    color: Color = Color.BLUE
    code: Code = Code.TWO
    either: int | str | None = "x"
    words: list[str] = []
    counts: dict[str, int] = {}
    made: str = msgspec.field(default_factory=lambda: "made")


def test_defaults_of_all_types_are_in_the_avro_schema_and_are_read() -> None:
    codec = codec_of(Avro(Rich, name="R", namespace="shop"))
    assert codec.name == "shop.R"
    fields = {each["name"]: each for each in msgspec.json.decode(codec.source.text)["fields"]}
    assert "default" not in fields["firstOne"]
    assert "default" not in fields["made"]  # its factory may make another one each time
    assert fields["none"]["default"] is None
    assert fields["either"] == {"name": "either", "type": ["string", "null", "long"], "default": "x"}
    assert (fields["day"]["default"], fields["raw"]["default"]) == (-1, "\x00\xff")
    old = '{"type": "record", "name": "R", "namespace": "shop", "fields": [%s]}'
    writer = codec_of(Avro(old % '{"name": "firstOne", "type": "int"}, {"name": "made", "type": "string"}'))
    read = codec.decoder(writer.source)(writer.encode({"firstOne": 1, "made": "then"}))
    assert read == Rich(1, None, made="then")
    plain = codec_of(Avro(codec.source.text)).decoder(writer.source)
    payload = writer.encode({"firstOne": 1, "made": ""})
    one, other = plain(payload), plain(payload)
    one["words"].append("x")
    assert other["words"] == []
    assert (one["moment"], one["amount"], one["raw"]) == (Rich(1, 1).moment, Decimal("-1.5"), b"\x00\xff")


def test_a_subject_of_another_version_pins_the_writers_schema() -> None:
    class Old(msgspec.Struct):
        id: int
        user: str

    for make in (Json, Avro):
        old, new = codec_of(make(Old, name="Order")), codec_of(make(Order))
        pinned = new.pinned(old.source)
        assert pinned.source == old.source
        payload = pinned.encode(Order(1, "ada", 2.0))
        assert old.decoder()(payload) == Old(1, "ada")
        assert new.decoder(pinned.source)(payload).user == "ada"
        assert pinned.pinned(new.source).encode(Order(1, "ada")) == new.encode(Order(1, "ada"))
    with pytest.raises(SchemaError, match="of type string, and the values need one of type json_schema"):
        codec_of(Old).pinned(codec_of(str).source)
    strict = codec_of(Json('{"properties": {"id": {"maximum": 5}}}'))
    with pytest.raises(SchemaError, match=r"at `\$.id`"):
        codec_of(Old).pinned(strict.source).encode(Old(6, "ada"))


class Pair(NamedTuple):
    a: int
    b: str


class Listed(msgspec.Struct, array_like=True):
    a: int


class Partial(TypedDict, total=False):
    a: int


class Renamed(msgspec.Struct):
    a: int = msgspec.field(name="a-b")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Pair, "no type for Pair"),
        (Listed, "array_like=True of Listed"),
        (Partial, "field a: Avro has no type for fields that may be absent"),
        (Renamed, "'a-b' is no name in Avro"),
        (Any, "no type for AnyType"),
        (int | datetime, "two types that are both long"),
        (tuple[int, str], "no type for TupleType"),
        (Annotated[Decimal, msgspec.Meta(extra={"precision": 2, "scale": 3})], "0 <= scale <= precision"),
        (msgspec.defstruct("long", []), "long is a type of Avro's own"),
        (msgspec.defstruct("A", [("x", msgspec.defstruct("A", []))]), "two classes are named A"),
    ],
)
def test_types_that_avro_has_not_are_refused_with_the_field(kind: Any, why: str) -> None:
    with pytest.raises(InvalidSchemaError, match=why):
        codec_of(Avro(kind))


class Unknown:
    pass


def test_what_is_no_schema_is_refused() -> None:
    for schema, why in (
        (Unknown, "Unknown has no JSON Schema"),
        ("{}", "needs its type"),
        (Protobuf(Order), "takes a generated message class"),
        (Avro("{"), "not JSON"),
        (Json("[]"), "must be an object"),
        (Avro(int, name="x"), "types with a name"),
        (Avro(int, namespace="x"), "types with a name"),
    ):
        with pytest.raises(InvalidSchemaError, match=why):
            codec_of(schema)
    with pytest.raises(InvalidArgumentError, match="has its own"):
        Avro("{}", name="x")  # type: ignore[call-overload]
    for arguments, why in (
        ({"version": 0}, "from 1"),
        ({"version": "newest"}, "'latest'"),
        ({"version": 1, "min_version": 1}, "either"),
        ({"min_version": -1}, "min_version"),
        ({"schema": Subject("y")}, "another Subject"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            Subject("x", **arguments)  # type: ignore[arg-type]


def test_many_references_stay_references_and_a_union_of_tags_is_closed() -> None:
    kind: Any = int
    for index in range(15):
        kind = msgspec.defstruct(f"Level{index}", [("a", kind), ("b", kind)])
    text = codec_of(kind).source.text
    assert len(text) < 20_000
    assert msgspec.json.decode(text)["title"] == "Level14"
    pets = msgspec.json.decode(codec_of(msgspec.defstruct("Pets", [("one", Cat | Dog)])).source.text)
    assert pets["properties"]["one"].keys() == {"anyOf"}


def test_plain_types_have_no_text() -> None:
    for kind, wanted in ((str, SchemaType.STRING), (bytes, SchemaType.BYTES), (int, SchemaType.NUMBER)):
        codec = codec_of(kind)
        assert codec.source == Source(wanted, "")
        assert codec.pinned(codec.source) is codec
        assert codec_of_source(codec.source).encode(codec.decoder()(b"1")) in (b"1", b"1.0")
