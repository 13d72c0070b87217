"""What an answer looks like on its way: entity tags, and whether it is compressed. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

__all__ = ["COMPRESS_FROM_BYTES", "accepts_gzip", "entity_tag", "is_text", "matches"]

COMPRESS_FROM_BYTES: Final = 1_400
"""Smaller answers fit into one packet."""
_TEXTS: Final = ("text/", "application/json", "application/problem+json", "application/javascript", "image/svg+xml")


def is_text(content_type: str) -> bool:
    """Whether a content type is worth compressing. Streams of events are not: each event is sent at once."""
    return content_type.startswith(_TEXTS) and not content_type.startswith("text/event-stream")


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Whether a caller accepts gzip."""
    for each in headers.get("accept-encoding", "").split(","):
        coding, _, weight = each.strip().partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            name, _, value = weight.strip().partition("=")
            return not (name.strip() == "q" and value.strip().rstrip("0") in ("", "0", "0.", "."))
    return False


def entity_tag(body: bytes) -> str:
    """Return the tag of an answer; a weak one, because the same answer may be sent compressed or not."""
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def matches(header: str, tag: str) -> bool:
    """Whether a header ``If-None-Match`` names a tag; weak tags are compared as HTTP says."""
    bare = tag.removeprefix("W/")
    return header.strip() == "*" or any(each.strip().removeprefix("W/") == bare for each in header.split(","))
