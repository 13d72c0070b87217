r"""What the bytes of a message must contain so that a filter can match: batches without it are not decoded. Pure.

A *need* is a tree of :class:`Needle` and :class:`Fact`. It is derived from a filter so that a message which matches
always satisfies it; None means that nothing is known. What makes it correct:

* A text in a JSON string is written as itself, except for quotation marks, backslashes and controls, or as ``\uXXXX``.
  So a needle is the longest run of other characters of the wanted text, and bytes with ``\u`` satisfy every needle.
* A number may be written in many ways (``1e3``). So a run of nothing but the characters of numbers is no needle.
* ``~`` on an object or a list looks at its JSON without spaces, so a run has no character of JSON's structure.
* Conditions that hold for a field that is not there (``!=``, ``!~``, ``not``) need nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from danube.web.search.filters import All, Compare, Exists, Literal, Node, OneOf, Words

__all__ = [
    "ESCAPE",
    "AllNeeds",
    "BatchFacts",
    "Fact",
    "Need",
    "Needle",
    "OneNeed",
    "batch_test",
    "guard_of",
    "need_of",
    "payload_test",
]


class Needle(NamedTuple):
    """Bytes that must be in the records."""

    data: bytes
    escapable: bool
    """It is of JSON text, which can write it in another way."""
    lower: bool = False
    """In any case; ``data`` is in lower case."""


class Fact(NamedTuple):
    """A condition on what is known of a whole batch."""

    node: Compare


class AllNeeds(NamedTuple):
    """Each of them."""

    parts: tuple[Need, ...]


class OneNeed(NamedTuple):
    """At least one of them."""

    parts: tuple[Need, ...]


Need = Needle | Fact | AllNeeds | OneNeed


class BatchFacts(NamedTuple):
    """What is known of a batch before it is decoded."""

    partition: int
    first: int
    """Offset of its first message."""
    last: int
    """Offset of its last message."""
    time: int
    """When the broker stored it."""


ESCAPE: Final = b"\\u"
"""Begins a character that JSON writes by its code."""
_RUN: Final = re.compile(r"[^\"\\/{}\[\]:,\x00-\x1f\x7f]+")
_NUMBERS: Final = frozenset("0123456789+-.eE")
_FACTS: Final = frozenset({"partition", "offset", "time"})
_NEGATIVE: Final = frozenset({"!=", "!~"})
_KELVIN: Final = {b"k": "\u212a".encode(), b"i": "\u0130".encode()}
"""Characters that are not ASCII and whose lower case begins with an ASCII letter."""


def need_of(node: Node | None) -> Need | None:
    """Return what a message that matches needs; None if nothing is known."""
    if isinstance(node, All):
        parts = [need for part in node.parts if (need := need_of(part)) is not None]
        return _joined(AllNeeds, parts)
    if isinstance(node, OneOf):
        each = [need_of(part) for part in node.parts]
        return None if None in each else OneNeed(tuple(need for need in each if need is not None))
    if isinstance(node, Words):
        return _plain(node.text, lower=True)
    if isinstance(node, Compare):
        if node.field.kind in _FACTS:
            return Fact(node)
        return _record_need(node)
    if isinstance(node, Exists):
        return _field_need(node)
    return None


def _joined(kind: type[AllNeeds], parts: list[Need]) -> Need | None:
    return None if not parts else parts[0] if len(parts) == 1 else kind(tuple(parts))


def _record_need(node: Compare) -> Need | None:
    """Return the need of a condition on what is in a record."""
    kind, operator = node.field.kind, node.operator
    if operator in _NEGATIVE:
        return None
    if kind == "value":
        return _value_need(node)
    parts: list[Need] = []
    if kind == "header" and (name := _plain(node.field.path[0])) is not None:
        parts.append(name)
    if kind in ("header", "text", "key") and operator in ("==", "in", "~", "^=", "$=", "~~"):
        # A key that is no text shows as base64, which is not in the record.
        values = [
            None if kind == "key" and "base64:".startswith(each.text[:7]) else _plain(each.text, lower=operator == "~~")
            for each in node.values
        ]
        if kind == "key" and operator in ("~", "~~", "$="):
            values = [None]
        _add_values(parts, values)
    return _joined(AllNeeds, parts)


def _value_need(node: Compare) -> Need | None:
    parts: list[Need] = []
    if node.operator in ("==", "in", "~", "^=", "$=", "~~"):
        lower = node.operator == "~~"
        _add_values(parts, [_json_needle(each, lower=lower) for each in node.values])
    if (name := _field_need(node)) is not None:
        parts.append(name)
    return _joined(AllNeeds, parts)


def _add_values(parts: list[Need], values: list[Needle | None]) -> None:
    if None not in values:
        known = tuple(each for each in values if each is not None)
        parts.append(known[0] if len(known) == 1 else OneNeed(known))


def _field_need(node: Compare | Exists) -> Need | None:
    """Return the need of a field that is there."""
    if node.field.kind == "header":
        return _plain(node.field.path[0])
    if node.field.kind != "value":
        return None
    names = [each for each in node.field.path if not each.isdigit()]
    runs = [run for name in names if (run := _run(name))]
    return Needle(max(runs, key=len).encode(), True) if runs else None


def _json_needle(wanted: Literal, *, lower: bool) -> Needle | None:
    text = wanted.text
    runs = [run for run in _RUN.findall(text) if not _NUMBERS.issuperset(run) and _is_encodable(run)]
    if not runs:
        return None
    best = max(runs, key=len)
    return _lowered(best, escapable=True) if lower else Needle(best.encode(), True)


def _run(text: str) -> str:
    """Return the longest run of characters that JSON writes as themselves, or by their code."""
    return max((run for run in _RUN.findall(text) if _is_encodable(run)), key=len, default="")


def _plain(text: str, *, lower: bool = False) -> Needle | None:
    """Return the needle of a text that is not in JSON."""
    if not text or not _is_encodable(text):
        return None
    return _lowered(text, escapable=False) if lower else Needle(text.encode(), False)


def _lowered(text: str, *, escapable: bool) -> Needle | None:
    """Return the needle of a text in any case: its longest run of ASCII, the only characters that bytes can lower."""
    run = max(re.findall(r"[\x00-\x7f]+", text.lower()), key=len, default="")
    return Needle(run.encode(), escapable, lower=True) if run else None


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


def guard_of(need: Need | None) -> Needle | None:
    """Return a needle that every record which matches contains; None if there is none.

    In records without key and attributes it is a needle of the payload.
    """
    if isinstance(need, Needle):
        return None if need.lower else need
    if isinstance(need, AllNeeds):
        guards = [guard for part in need.parts if (guard := guard_of(part)) is not None]
        return max(guards, key=lambda each: len(each.data), default=None)
    return None


# --- Tests -----------------------------------------------------------------------------------------------------------


def needle_test(needle: Needle) -> Callable[[bytes], bool]:
    """Return whether bytes may contain a needle."""
    data = needle.data
    if needle.lower:
        others = tuple(other for letter, other in _KELVIN.items() if letter in data)

        def in_any_case(found: bytes) -> bool:
            return (
                data in found.lower()
                or (needle.escapable and ESCAPE in found)
                or any(other in found for other in others)
            )

        return in_any_case
    if needle.escapable:
        return lambda found: data in found or ESCAPE in found
    return lambda found: data in found


def payload_test(node: Node) -> Callable[[bytes], bool] | None:
    """Return whether a condition can hold for a payload, by its bytes; None if they do not tell.

    Args:
        node: a condition on the payload, or words (which may also be in the key and the attributes).
    """
    on_payload = isinstance(node, Words) or (
        isinstance(node, Compare | Exists) and node.field.kind in ("value", "text")
    )
    need = need_of(node) if on_payload else None
    return None if need is None else _bytes_test(need)


def _bytes_test(need: Need) -> Callable[[bytes], bool]:
    if isinstance(need, Needle):
        return needle_test(need)
    if isinstance(need, Fact):
        return lambda _data: True
    tests = tuple(map(_bytes_test, need.parts))
    if isinstance(need, AllNeeds):
        if len(tests) == 2:
            first, second = tests
            return lambda data: first(data) and second(data)
        return lambda data: all(test(data) for test in tests)
    return lambda data: any(test(data) for test in tests)


def batch_test(
    need: Need | None, fact: Callable[[Compare], Callable[[BatchFacts], bool]]
) -> Callable[[BatchFacts, bytes], bool]:
    """Return whether a batch may have a message that matches.

    Args:
        need: of the filter.
        fact: makes the test of a condition on what is known of a batch.
    """
    if need is None:
        return lambda _facts, _data: True
    if isinstance(need, Needle):
        test = needle_test(need)
        return lambda _facts, data: test(data)
    if isinstance(need, Fact):
        holds = fact(need.node)
        return lambda facts, _data: holds(facts)
    tests = tuple(batch_test(part, fact) for part in need.parts)
    if isinstance(need, AllNeeds):
        return lambda facts, data: all(each(facts, data) for each in tests)
    return lambda facts, data: any(each(facts, data) for each in tests)
