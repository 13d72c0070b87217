"""The target of a request: its segments and its query, decoded once and strictly. Pure.

A segment keeps what was written as ``%2F``: names may contain slashes, and are never split again. What other programs
could read as a way out of a directory is refused: ``.`` and ``..``, also within a decoded segment, backslashes, and
control characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from danube.model.errors import InvalidArgumentError

__all__ = ["Target", "parse_target"]

_MAX_SEGMENTS: Final = 32
_MAX_PARAMETERS: Final = 64


class Target(NamedTuple):
    """A decoded target."""

    path: str
    """As it was sent, without the query."""
    segments: tuple[str, ...]
    """Between the slashes, decoded; none for ``/``."""
    query: Mapping[str, str]
    """Parameters by name."""


def parse_target(target: bytes) -> Target:
    """Decode the target of a request.

    Raises:
        InvalidArgumentError: it is no absolute path, or has something in it that could be read in two ways.
    """
    if not target.startswith(b"/"):
        raise InvalidArgumentError("the target of the request is no path; send one that begins with '/'")
    path, _, query = target.partition(b"?")
    if b"#" in target:
        raise InvalidArgumentError("the target of the request contains '#'; write %23")
    pieces = path[1:].split(b"/") if path != b"/" else []
    if len(pieces) > _MAX_SEGMENTS:
        raise InvalidArgumentError(f"the path has {len(pieces)} segments; at most {_MAX_SEGMENTS} are allowed")
    return Target(path.decode("latin-1"), tuple(map(_segment, pieces)), _parse_query(query))


def _segment(piece: bytes) -> str:
    text = _decoded(piece)
    if not text or not text.isprintable() or "\\" in text or any(each in (".", "..") for each in text.split("/")):
        raise InvalidArgumentError(
            f"the path has the segment {ascii(text)[:80]}: segments are neither empty nor '.' or '..', and have no"
            " backslash or control character"
        )
    return text


def _parse_query(query: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    if not query:
        return found
    pairs = query.split(b"&")
    if len(pairs) > _MAX_PARAMETERS:
        raise InvalidArgumentError(f"the query has {len(pairs)} parameters; at most {_MAX_PARAMETERS} are allowed")
    for pair in pairs:
        name, _, value = (_decoded(part.replace(b"+", b" ")) for part in pair.partition(b"="))
        if not name:
            continue
        if name in found:
            raise InvalidArgumentError(f"the parameter {ascii(name)[:80]} is given twice; give it once")
        found[name] = value
    return found


def _decoded(text: bytes) -> str:
    if text.count(b"%") != sum(_is_escape(text, at) for at in _places(text)):
        raise InvalidArgumentError("the target has a '%' that is not followed by two hexadecimal digits; write %25")
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("the target is not UTF-8 once its escapes are decoded") from error


def _places(text: bytes) -> list[int]:
    return [at for at, each in enumerate(text) if each == ord("%")]


def _is_escape(text: bytes, at: int) -> bool:
    digits = text[at + 1 : at + 3]
    return len(digits) == 2 and all(each in b"0123456789abcdefABCDEF" for each in digits)
