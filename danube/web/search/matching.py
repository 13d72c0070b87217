"""From the tree of a filter to a predicate of messages: closures, without ``eval``. Pure.

A :class:`View` shows one message after the other to the predicate, so that no object is made for each. Its JSON is
parsed when a condition first asks for it, and not at all if the bytes of the payload rule out that the condition holds
(:mod:`danube.web.search.needles`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.web.search.filters import All, Compare, Exists, Field, Literal, Negated, Node, OneOf, Words, number_of
from danube.web.search.needles import payload_test

__all__ = ["MISSING", "Predicate", "View", "predicate_of", "text_of", "value_test"]

MISSING: Final[Any] = object()
"""The value of a field that is not there."""
_NEGATIVE: Final = frozenset({"!=", "!~"})
"""Operators that hold for a field that is not there."""
_EQUALITY: Final = frozenset({"==", "!=", "in"})
"""Operators that know ``null``."""
_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


class View:
    """One message, as conditions see it. Set its fields, then call :meth:`show` with the payload."""

    __slots__ = ("_json", "_parsed", "attributes", "key", "offset", "partition", "payload", "producer", "time")

    def __init__(self, partition: int = 0) -> None:
        self.payload = b""
        self.key: bytes | None = None
        self.attributes: dict[str, str] | None = None
        self.offset = 0
        self.partition = partition
        self.time = 0
        """When the broker stored it, microseconds since the epoch."""
        self.producer = ""
        self._parsed = False
        self._json: Any = MISSING

    def show(self, payload: bytes) -> None:
        """Show another payload."""
        self.payload = payload
        self._parsed = False

    @property
    def json(self) -> Any:
        """The parsed payload; ``MISSING`` if it is no JSON."""
        if not self._parsed:
            self._parsed = True
            try:
                self._json = _decode_json(self.payload)
            except UNDECODABLE:
                self._json = MISSING
        return self._json

    @property
    def text(self) -> Any:
        """The payload as text; ``MISSING`` if it is none."""
        return _decoded(self.payload)

    @property
    def key_text(self) -> Any:
        """The key as text, or as base64 behind ``base64:``."""
        text = _decoded(self.key)
        if text is MISSING and self.key is not None:
            return f"base64:{base64.b64encode(self.key).decode('ascii')}"
        return text


def _decoded(data: bytes | None) -> Any:
    """Return bytes as text; ``MISSING`` if there are none, or they are no text."""
    if data is None:
        return MISSING
    try:
        return data.decode()
    except UnicodeDecodeError:
        return MISSING


Predicate = Callable[[View], bool]


def predicate_of(node: Node | None) -> Predicate:
    """Return the predicate of a filter."""
    if node is None:
        return lambda _view: True
    if isinstance(node, All):
        return _all(tuple(map(predicate_of, node.parts)))
    if isinstance(node, OneOf):
        return _one_of(tuple(map(predicate_of, node.parts)))
    if isinstance(node, Negated):
        inner = predicate_of(node.inner)
        return lambda view: not inner(view)
    if isinstance(node, Words):
        return _words(node.text)
    return _condition(node)


def _all(parts: tuple[Predicate, ...]) -> Predicate:
    if len(parts) == 2:
        first, second = parts
        return lambda view: first(view) and second(view)

    def test(view: View) -> bool:
        for part in parts:  # noqa: SIM110 - twice as fast as a generator
            if not part(view):
                return False
        return True

    return test


def _one_of(parts: tuple[Predicate, ...]) -> Predicate:
    def test(view: View) -> bool:
        for part in parts:  # noqa: SIM110 - as above
            if part(view):
                return True
        return False

    return test


def _words(text: str) -> Predicate:
    wanted = text.lower()

    def test(view: View) -> bool:
        found = view.text
        if found is not MISSING and wanted in found.lower():
            return True
        key = _decoded(view.key)
        if key is not MISSING and wanted in key.lower():
            return True
        return bool(view.attributes) and any(
            wanted in name.lower() or wanted in value.lower() for name, value in (view.attributes or {}).items()
        )

    may_match = payload_test(Words(text))
    if may_match is None:
        return test
    possible = may_match
    # Without key and attributes only the payload counts.
    return lambda view: (view.key is not None or bool(view.attributes) or possible(view.payload)) and test(view)


def _condition(node: Compare | Exists) -> Predicate:
    read, test = _reader(node.field), _test(node)

    def condition(view: View) -> bool:
        return test(read(view))

    may_match = payload_test(node)
    if may_match is None:
        return condition
    possible = may_match
    return lambda view: possible(view.payload) and test(read(view))


def _test(node: Compare | Exists) -> Callable[[Any], bool]:
    if isinstance(node, Exists):
        return lambda value: value is not MISSING and value is not None and value is not False and value != ""
    return value_test(node.operator, node.values)


def _reader(field: Field) -> Callable[[View], Any]:
    kind = field.kind
    if kind == "value":
        return _json_reader(field.path)
    if kind == "header":
        (name,) = field.path
        return lambda view: MISSING if view.attributes is None else view.attributes.get(name, MISSING)
    if kind == "size":
        return lambda view: len(view.payload)
    if kind == "key":
        return lambda view: view.key_text
    if kind == "text":
        return lambda view: view.text
    return {
        "offset": lambda view: view.offset,
        "partition": lambda view: view.partition,
        "time": lambda view: view.time,
        "producer": lambda view: view.producer,
    }[kind]


def _json_reader(path: tuple[str, ...]) -> Callable[[View], Any]:
    if len(path) == 1:
        (name,) = path

        def read_one(view: View) -> Any:
            value = view.json
            return value.get(name, MISSING) if type(value) is dict else step_into(value, name)

        return read_one

    def read(view: View) -> Any:
        value = view.json
        for step in path:
            value = value.get(step, MISSING) if type(value) is dict else step_into(value, step)
            if value is MISSING:
                break
        return value

    return read


def step_into(value: Any, step: str) -> Any:
    """Return a field of an object or an item of a list; ``MISSING`` if there is none."""
    if isinstance(value, dict):
        return value.get(step, MISSING)
    if isinstance(value, list) and step.isascii() and step.isdigit() and len(step) <= 9:
        index = int(step)
        return value[index] if index < len(value) else MISSING
    return MISSING


# --- Comparisons -----------------------------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """Return a value as text: of objects and lists their JSON, of whole numbers no fraction."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return _encode_json(value).decode()


def value_test(operator: str, values: tuple[Literal, ...]) -> Callable[[Any], bool]:
    """Return the test of a field's value; see :mod:`danube.web.search.filters` for the operators."""
    if operator == "in":
        equals = tuple(map(_equal, values))
        return lambda value: value is not MISSING and any(equal(value) for equal in equals)
    test = _TESTS[operator](values[0])
    negative = operator in _NEGATIVE
    knows_null = operator in _EQUALITY

    def compare(value: Any) -> bool:
        if value is MISSING or (value is None and not knows_null):
            return negative
        return test(value)

    return compare


def _equal(wanted: Literal) -> Callable[[Any], bool]:
    text, number = wanted.text, wanted.number
    is_null = wanted.bare and text == "null"

    def equal(value: Any) -> bool:
        kind = type(value)
        if kind is str:
            return bool(value == text)
        if kind is int or kind is float:
            return number is not None and bool(value == number)
        if value is None:
            return is_null
        return text_of(value) == text

    return equal


def _unequal(wanted: Literal) -> Callable[[Any], bool]:
    equal = _equal(wanted)
    return lambda value: not equal(value)


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[Literal], Callable[[Any], bool]]:
    def make(wanted: Literal) -> Callable[[Any], bool]:
        text, number = wanted.text, wanted.number

        def test(value: Any) -> bool:
            if number is not None:
                kind = type(value)
                if kind is int or kind is float:
                    return holds(value, number)
                if kind is str and (read := number_of(value)) is not None:
                    return holds(read, number)
            return holds(text_of(value), text)

        return test

    return make


def _contains(wanted: Literal) -> Callable[[Any], bool]:
    text = wanted.text
    return lambda value: text in text_of(value)


def _contains_not(wanted: Literal) -> Callable[[Any], bool]:
    text = wanted.text
    return lambda value: text not in text_of(value)


def _contains_in_any_case(wanted: Literal) -> Callable[[Any], bool]:
    text = wanted.text.lower()
    return lambda value: text in text_of(value).lower()


def _begins(wanted: Literal) -> Callable[[Any], bool]:
    text = wanted.text
    return lambda value: text_of(value).startswith(text)


def _ends(wanted: Literal) -> Callable[[Any], bool]:
    text = wanted.text
    return lambda value: text_of(value).endswith(text)


_TESTS: Final[dict[str, Callable[[Literal], Callable[[Any], bool]]]] = {
    "==": _equal,
    "!=": _unequal,
    "<": _ordered(lambda left, right: bool(left < right)),
    "<=": _ordered(lambda left, right: bool(left <= right)),
    ">": _ordered(lambda left, right: bool(left > right)),
    ">=": _ordered(lambda left, right: bool(left >= right)),
    "~": _contains,
    "~~": _contains_in_any_case,
    "!~": _contains_not,
    "^=": _begins,
    "$=": _ends,
}
