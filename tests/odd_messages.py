"""Messages for raw peers, made from what msgspec knows of structs: plausible ones, odd ones, and bytes of neither kind.

A method or a field that is added to an API is covered by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from danube.model.errors import DanubeError, Status

NUMBERS = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 5, 1000, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [-1e300, -1.0, -0.0, 5e-324, 1e-9, 0.5, 1e9, 1e18, 1e300, math.nan, math.inf, -math.inf]
TEXTS = [
    "",
    "x",
    "\x00",
    "a b",
    "\u00fc",
    "u\u0308",
    "\u200b",
    "\U0010ffff",
    "/",
    "//",
    "/default/",
    "../..",
    "x" * 300,
]

DEEP = b"\x91" * 3000 + b"\xc0"
"""So many arrays, one in the other."""
RAWS = [
    msgspec.Raw(b"\xa2\xff\xfe"),  # a text that is no UTF-8
    msgspec.Raw(DEEP),
    msgspec.Raw(b"\xd4\x05\x00"),  # an unknown extension
    msgspec.Raw(b"\xd6\xff\x00\x00\x00\x00"),  # a time
    msgspec.Raw(b"\xdd\xff\xff\xff\xff"),  # 2^32 - 1 elements, and none of them
    msgspec.Raw(b"\xdb\xff\xff\xff\xff"),
    msgspec.Raw(b"\xc1"),  # a byte that means nothing
]
OTHERS: list[Any] = [None, True, b"", b"\x00" * 60, "x" * 70_000, [], [0], [[]], {}, {"": 0}, {1: 2}]


class OddMessages:
    """Makes messages of one API.

    Args:
        valid: what a field has when it is not its turn, by name; all others are of their type.
        words: texts that mean something in some field.
        data: strategy for bytes.
        names: keys of maps whose values may be anything; ``inner`` those of the maps in there.
    """

    def __init__(
        self,
        valid: Mapping[str, list[Any]],
        words: Sequence[str],
        data: st.SearchStrategy[bytes],
        names: Sequence[str] = ("x",),
        inner: Sequence[str] = ("x",),
    ) -> None:
        self._valid = valid
        self._words = [*words, *TEXTS]
        self._data = data
        self._names = names
        self._inner = inner
        self._anything: st.SearchStrategy[Any] = (
            st.sampled_from([*NUMBERS, *FLOATS, *self._words, *OTHERS])
            | st.integers(-(2**63), 2**64 - 1)
            | st.text(max_size=4)
        )

    def plausible(self, kind: inspect.Type) -> st.SearchStrategy[Any]:
        """Return values of a type, extremes among them."""
        match kind:
            case inspect.UnionType(types):
                return st.one_of([self.plausible(each) for each in types])
            case inspect.BoolType():
                return st.booleans()
            case inspect.IntType():
                return st.sampled_from(NUMBERS)
            case inspect.FloatType():
                return st.sampled_from([*FLOATS, *NUMBERS])
            case inspect.StrType():
                return st.sampled_from(self._words)
            case inspect.BytesType():
                return self._data
            case inspect.NoneType():
                return st.none()
            case inspect.EnumType(cls):
                return st.sampled_from([each.value for each in cls])
            case inspect.ListType(item):
                return st.lists(self.plausible(item), max_size=3)
            case inspect.TupleType(items):
                return st.tuples(*map(self.plausible, items))
            case inspect.DictType(key, value):
                names = st.sampled_from(self._names) if isinstance(value, inspect.AnyType) else self.plausible(key)
                return st.dictionaries(names, self.plausible(value), max_size=2)
            case inspect.AnyType():
                return self._anything | st.dictionaries(st.sampled_from(self._inner), self._anything, max_size=2)
            case inspect.StructType():
                return self.structs(kind)
        raise AssertionError(f"make up values of {kind}")

    def structs(self, kind: inspect.StructType) -> st.SearchStrategy[Any]:
        """Return messages as plain values; some fields are odd, and often none is."""
        return st.composite(lambda draw: self._struct(draw, kind))()

    def encoded(self, values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
        """Return the bytes of messages, sometimes cut, with a tail, or of something else."""
        return st.composite(lambda draw: self._encoded(draw, values))()

    def conversations(self, union: Any) -> st.SearchStrategy[list[bytes]]:
        """Return openings, mostly such as are in order, with what follows them."""
        return st.composite(lambda draw: self._conversation(draw, union))()

    def _struct(self, draw: st.DrawFn, kind: inspect.StructType) -> Any:
        odd = draw(st.sets(st.integers(0, max(0, len(kind.fields) - 1)), max_size=2))
        values: dict[str, Any] = {}
        for index, field in enumerate(kind.fields):
            if index in odd:
                values[field.encode_name] = draw(self.plausible(field.type) | self._anything)
            elif field.name in self._valid:
                values[field.encode_name] = draw(st.sampled_from(self._valid[field.name]))
            elif field.required:
                values[field.encode_name] = draw(self.plausible(field.type))
            else:
                values[field.encode_name] = default(field)
        if not kind.array_like:
            return values
        found = list(values.values())
        if kind.tag is not None:
            found.insert(0, kind.tag)
        match draw(st.sampled_from("====-+")):  # mostly as many elements as there are fields
            case "-" if found:
                found = found[: draw(st.integers(0, len(found) - 1))]
            case "+":
                found += draw(st.lists(self._anything, min_size=1, max_size=2))
        return found

    def _encoded(self, draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
        data = msgspec.msgpack.encode(draw(values))
        match draw(st.sampled_from("========<>?")):
            case "<":
                return data[: draw(st.integers(0, len(data)))]
            case ">":
                return data + draw(st.binary(min_size=1, max_size=3))
            case "?":
                return msgspec.msgpack.encode(draw(self._anything))
        return data

    def _conversation(self, draw: st.DrawFn, union: Any) -> list[bytes]:
        opening, *following = inspect.type_info(union).types
        usual = self.structs(opening)
        first = draw(st.sampled_from("=====?"))
        messages = [draw(self.encoded(usual if first == "=" else self.plausible(inspect.type_info(union))))]
        later = st.one_of([self.encoded(self.structs(each)) for each in following])
        return messages + draw(st.lists(later, max_size=5))

    def spoilt(self, kind: inspect.StructType) -> Iterator[bytes]:
        """Yield messages with each value that means nothing in the place of each field, and behind them all."""
        usual = [self.usual_value(field) for field in kind.fields]
        head = [] if kind.tag is None else [kind.tag]
        for index in range(len(usual) + 1):
            for raw in RAWS:
                yield msgspec.msgpack.encode([*head, *usual[:index], raw, *usual[index + 1 :]])

    def usual_value(self, field: inspect.Field) -> Any:
        if field.name in self._valid:
            return self._valid[field.name][0]
        return 0 if field.required else default(field)


def default(field: inspect.Field) -> Any:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.to_builtins(value)


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return examples; they are gathered first, so that one broker serves for all of them."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def gather(example: Any) -> None:
        found.append(example)

    gather()
    return found


def acceptable(error: DanubeError) -> bool:
    """Whether a peer can make something of an error: it is no bug, and it says what is wrong."""
    return error.status not in (Status.INTERNAL, Status.UNKNOWN) and bool(error.message)
