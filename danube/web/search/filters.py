"""The language of filters: from text to a tree. Pure.

::

    value.user == "ada" and value.total > 10
    key ^= "eu-" and (header.type ~ "order" or not value.items[0].sku)
    partition in (1, 2) and time >= 2026-01-31T12:00
    timeout

============================  ==========================================================================================
``key`` ``text``              the key; the payload as text (of UTF-8)
``value`` ``value.PATH``      the payload, or a part of it, as JSON: ``value.a.b``, ``value.list[0]``, ``value["a b"]``
``header.NAME``               an attribute: ``header.type``, ``header["odd name"]``
``offset`` ``partition``      where the message is
``time``                      when the broker stored it (ISO 8601, UTC without a zone), or microseconds since the epoch
``size`` ``producer``         bytes of its payload; the name of its producer
============================  ==========================================================================================

``==`` ``!=`` ``<`` ``<=`` ``>`` ``>=`` compare numbers, or else text; ``~`` contains, ``~~`` contains in any case,
``!~`` does not contain, ``^=`` begins with, ``$=`` ends with, ``in (a, b)``. A field without an operator asks whether
it is there and neither ``false``, ``null`` nor empty. A text alone is looked for in key, attributes and payload, in any
case; so are words without any field or operator. A field that is not there is unequal to everything.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple, NoReturn

from danube.model.errors import InvalidArgumentError

__all__ = [
    "MAX_FILTER_DEPTH",
    "MAX_FILTER_LENGTH",
    "All",
    "Compare",
    "Exists",
    "Field",
    "FilterError",
    "Literal",
    "Negated",
    "Node",
    "OneOf",
    "Words",
    "parse_filter",
]

MAX_FILTER_LENGTH: Final = 4_096
"""Characters of a filter."""
MAX_FILTER_DEPTH: Final = 50
"""Brackets and ``not`` within each other."""
_MAX_VALUES: Final = 1_000
"""Values of one ``in``."""


class FilterError(InvalidArgumentError):
    """A filter cannot be read.

    Args:
        text: the filter.
        position: of the character at which it stops making sense, from 0.
        problem: what is wrong there.
        remedy: what to write.
    """

    code = "invalid-filter"

    def __init__(self, text: str, position: int, problem: str, remedy: str) -> None:
        super().__init__(
            f"filter, character {position + 1}: {problem}; {remedy}", {"position": str(position), "problem": problem}
        )
        self.text = text
        self.position = position

    def pointed(self) -> str:
        """Return the part of the filter around the error, and below it a caret."""
        start = max(0, self.position - 60)
        piece = "".join(each if each.isprintable() else " " for each in self.text[start : self.position + 20])
        return f"{piece}\n{' ' * (self.position - start)}^"


class Field(NamedTuple):
    """What a condition looks at."""

    kind: str
    """``key``, ``text``, ``value``, ``header``, ``offset``, ``partition``, ``time``, ``size`` or ``producer``."""
    path: tuple[str, ...] = ()
    """Steps into the JSON value, or the name of the header."""


class Literal(NamedTuple):
    """A value that a field is compared with."""

    text: str
    bare: bool = False
    """It was written without quotation marks."""
    number: int | float | None = None
    """Its value, if it reads as a finite number (of ``time``, as microseconds)."""


class Compare(NamedTuple):
    """A condition on a field; of several values (``in``) one must be equal."""

    field: Field
    operator: str
    values: tuple[Literal, ...]


class Exists(NamedTuple):
    """The field is there, and neither false, null nor empty."""

    field: Field


class Words(NamedTuple):
    """A text in key, attributes or payload, in any case."""

    text: str


class Negated(NamedTuple):
    """``not``."""

    inner: Node


class All(NamedTuple):
    """``and``."""

    parts: tuple[Node, ...]


class OneOf(NamedTuple):
    """``or``."""

    parts: tuple[Node, ...]


Node = Compare | Exists | Words | Negated | All | OneOf


# --- Tokens ----------------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    """``text``, ``field``, ``word``, ``operator``, ``bracket``, ``comma`` or ``end``."""
    text: str
    at: int
    field: Field | None = None


_SPACE: Final = re.compile(r"\s*")
_TEXT: Final = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_OPERATOR: Final = re.compile(r"==|!=|<=|>=|\^=|\$=|!~|~~|~|<|>|=")
_WORD: Final = re.compile(r"[^\s()=!<>~^$\"',]+")
_FIELD: Final = re.compile(r"(?:headers?(?=[.\[])|value(?=[.\[]))")
_STEP: Final = re.compile(r"\.([^\s()=!<>~^$\"',.\[\]]+)|\[(\d{1,9})\]|\[\s*(\"(?:[^\"\\]|\\.)*\")\s*\]", re.DOTALL)
_NAME: Final = re.compile(r"\.([^\s()=!<>~^$\"',\[\]]+)|\[\s*(\"(?:[^\"\\]|\\.)*\")\s*\]", re.DOTALL)
_SIMPLE: Final = {
    "key": "key",
    "text": "text",
    "payload": "text",
    "value": "value",
    "producer": "producer",
    "partition": "partition",
    "offset": "offset",
    "size": "size",
    "time": "time",
}
_FIELDS: Final = "fields are key, header.NAME, text, value.PATH, partition, offset, time, size and producer"
_KEYWORDS: Final = frozenset({"and", "or", "not", "in"})


def _unquoted(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[1:-1], flags=re.DOTALL)


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[_Token] = []
        at = self._skip(0)
        while at < len(text):
            at = self._skip(self._take(at))
        self.found.append(_Token("end", "", len(text)))

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def _take(self, at: int) -> int:
        text, first = self.text, self.text[at]
        if first in "()":
            self.found.append(_Token("bracket", first, at))
            return at + 1
        if first == ",":
            self.found.append(_Token("comma", first, at))
            return at + 1
        if first in "\"'":
            quoted = _TEXT.match(text, at)
            if quoted is None:
                raise FilterError(text, at, "the text does not end", f"close it with {first}")
            self.found.append(_Token("text", _unquoted(quoted[0]), at))
            return quoted.end()
        operator = _OPERATOR.match(text, at)
        if operator is not None:
            self.found.append(_Token("operator", "==" if operator[0] == "=" else operator[0], at))
            return operator.end()
        if (field := _FIELD.match(text, at)) is not None:
            return self._path(at, field[0].rstrip("s"), field.end())
        word = _WORD.match(text, at)
        if word is None:
            raise FilterError(text, at, f"{first!a} has no meaning here", "put text in quotation marks")
        kind = _SIMPLE.get(word[0])
        self.found.append(_Token("word", word[0], at, Field(kind) if kind else None))
        return word.end()

    def _path(self, at: int, kind: str, begin: int) -> int:
        """Take the path behind ``value`` or ``header``."""
        text, steps, end = self.text, list[str](), begin
        step = _STEP if kind == "value" else _NAME
        while (found := step.match(text, end)) is not None:
            quoted = found[found.lastindex or 1]
            steps.append(_unquoted(quoted) if found.lastindex == len(found.groups()) else quoted)
            end = found.end()
            if kind == "header":
                break
        if not steps or (end < len(text) and text[end] in ".[]"):
            raise FilterError(text, end, f"this is no path into {kind}", f'write {kind}.name or {kind}["any name"]')
        self.found.append(_Token("field", text[at:end], at, Field(kind, tuple(steps))))
        return end


# --- Parser ----------------------------------------------------------------------------------------------------------


def parse_filter(text: str) -> Node | None:
    """Parse a filter; None if it is empty, so that everything matches.

    Raises:
        FilterError: it cannot be read, is longer than ``MAX_FILTER_LENGTH`` or deeper than ``MAX_FILTER_DEPTH``.
    """
    if len(text) > MAX_FILTER_LENGTH:
        raise FilterError(text, MAX_FILTER_LENGTH, f"it has {len(text)} characters", f"use at most {MAX_FILTER_LENGTH}")
    if not text.strip():
        return None
    tokens = _Tokens(text).found
    if all(each.kind == "word" for each in tokens[:-1]):
        return Words(text.strip())
    return _Parser(text, tokens).parse()


class _Parser:
    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _fail(self, problem: str, remedy: str, at: int | None = None) -> NoReturn:
        raise FilterError(self._text, self._token.at if at is None else at, problem, remedy)

    def _is(self, kind: str, text: str) -> bool:
        """Whether the next token is this one, which is then taken."""
        token = self._token
        found = token.kind == kind and (token.text.lower() if kind == "word" else token.text) == text
        self._at += found
        return found

    def parse(self) -> Node:
        found = self._either()
        if self._token.kind != "end":
            self._fail(f"{_shown(self._token)} is not expected", "join conditions with and, or")
        return found

    def _either(self) -> Node:
        parts = [self._both()]
        while self._is("word", "or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else OneOf(tuple(parts))

    def _both(self) -> Node:
        parts = [self._single()]
        while self._is("word", "and"):
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _single(self) -> Node:
        begin = self._token.at
        self._depth += 1
        if self._depth > MAX_FILTER_DEPTH:
            self._fail(f"it is nested more than {MAX_FILTER_DEPTH} deep", "use fewer brackets")
        if self._is("word", "not"):
            found: Node = Negated(self._single())
        elif self._is("bracket", "("):
            found = self._either()
            if not self._is("bracket", ")"):
                self._fail("a bracket is not closed", f"close the one at character {begin + 1} with )")
        else:
            found = self._condition()
        self._depth -= 1
        return found

    def _condition(self) -> Node:
        token = self._token
        if token.kind == "text":
            self._at += 1
            return Words(token.text)
        if token.field is None:
            if token.kind == "end":
                self._fail("a condition is missing at the end", 'write one such as key == "42"')
            self._fail(f"{_shown(token)} is not a field", _FIELDS)
        self._at += 1
        if self._is("word", "in"):
            return Compare(token.field, "in", self._list(token.field))
        if self._token.kind != "operator":
            return Exists(token.field)
        operator = self._token.text
        self._at += 1
        return Compare(token.field, operator, (self._literal(token.field, operator),))

    def _list(self, field: Field) -> tuple[Literal, ...]:
        if not self._is("bracket", "("):
            self._fail("the values of in are missing", "write in (1, 2)")
        values = [self._literal(field, "in")]
        while self._is("comma", ","):
            if len(values) >= _MAX_VALUES:
                self._fail(f"in has more than {_MAX_VALUES} values", "use fewer")
            values.append(self._literal(field, "in"))
        if not self._is("bracket", ")"):
            self._fail("the values of in do not end", "separate them with commas, and close the bracket")
        return tuple(values)

    def _literal(self, field: Field, operator: str) -> Literal:
        token = self._token
        bare = token.kind in ("word", "field")
        if token.kind != "text" and (not bare or token.text.lower() in _KEYWORDS):
            self._fail(f"a value is missing after {operator}", 'write a number, or a text such as "ada"')
        self._at += 1
        number = number_of(token.text)
        if field.kind == "time" and operator in ("==", "!=", "<", "<=", ">", ">=", "in") and number is None:
            number = _moment(token.text)
            if number is None:
                self._fail(
                    f"{ascii(token.text)[:40]} is no time", "write one such as 2026-01-31T12:00:00Z", at=token.at
                )
        if field.kind in ("offset", "partition", "size") and number is None:
            self._fail(f"{_shown(token)} is no number", f"compare {field.kind} with one", at=token.at)
        return Literal(token.text, bare, number)


_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def number_of(text: str) -> int | float | None:
    """Return the number that a text reads as; None if it reads as none, or as one out of range."""
    text = text.strip(" \t\r\n")
    if len(text) > 100 or _NUMBER.fullmatch(text) is None:
        return None
    if text.lstrip("+-").isdigit():
        return int(text)
    number = float(text)
    return number if abs(number) != float("inf") else None


def _moment(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return None


def _shown(token: _Token) -> str:
    return "the end" if token.kind == "end" else ascii(token.text)[:60]
