"""What the tools of ``danube mcp`` return: plain data of bounded size. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from danube.cli._format import Shown, iso_time
from danube.cli._printing import key_fields, payload_fields

__all__ = ["MAX_OUTPUT_CHARS", "encoded", "fitted", "message_row"]

MAX_OUTPUT_CHARS: Final = 40_000
"""Most characters of an answer: about what a model can take without losing sight of the rest."""
_SHORTEST: Final = 200
"""Texts that are shorter are not cut."""


def message_row(message: Shown, max_payload_chars: int) -> dict[str, Any]:
    """Return a message as it is shown: a payload that is no UTF-8 is base64, and a long one is cut."""
    payload = payload_fields(message.payload)
    row: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "publish_time": iso_time(message.publish_time_us),
        **key_fields(message.key_bytes),
        "payload": payload["payload"][:max_payload_chars],
    }
    if "encoding" in payload:
        row["encoding"] = payload["encoding"]
    if len(payload["payload"]) > max_payload_chars:
        row["payload_cut"] = f"{len(message.payload):,} bytes in all; max_payload_chars shows more"
    if message.attributes:
        row["attributes"] = dict(message.attributes)
    if message.producer:
        row["producer"] = message.producer
    return row


def encoded(value: Any) -> str:
    """Return plain data as JSON."""
    return msgspec.json.encode(value).decode()


def fitted(result: Mapping[str, Any], limit: int = MAX_OUTPUT_CHARS) -> dict[str, Any]:
    """Return a result whose JSON has at most so many characters, or little more.

    The end of the largest list is left out, again and again; then the ends of the longest texts. What is missing is
    counted in ``omitted``, by the path of the list.
    """
    found: dict[str, Any] = _copy(result)
    omitted: dict[str, int] = {}
    while len(encoded(found)) > limit:
        lists = [(len(encoded(rows)), path, rows) for path, rows in _lists(found) if rows]
        if not lists:
            if not _cut_longest(found):
                break
            continue
        _, path, rows = max(lists, key=lambda each: each[:2])
        keep = len(rows) // 2
        omitted[path] = omitted.get(path, 0) + len(rows) - keep
        del rows[keep:]
    if omitted:
        found["omitted"] = omitted
        found["hint"] = f"an answer has at most {limit:,} characters: ask for less, or narrow it down"
    return found


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy(each) for name, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list | tuple) else value


def _lists(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists in a value that are in no other list, with their paths."""
    if isinstance(value, list):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _lists(each, f"{path}.{name}" if path else str(name))


def _cut_longest(value: dict[str, Any]) -> bool:
    """Halve the longest text; return whether there was one to be halved."""
    texts = list(_texts(value))
    if not texts:
        return False
    holder, name = max(texts, key=lambda each: len(each[0][each[1]]))
    text = holder[name]
    holder[name] = text[: len(text) // 2].removesuffix(" ...") + " ..."
    return True


def _texts(value: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, each in value.items():
        if isinstance(each, str) and len(each) > _SHORTEST:
            yield value, name
        elif isinstance(each, dict):
            yield from _texts(each)
