"""Checks of payloads, keys and attributes; each raises at once and names the invalid argument."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import msgspec

from danube.client._checks import LARGEST, check_seconds, check_text
from danube.client._outbox import RECORD_OVERHEAD
from danube.model.batch import Record
from danube.model.errors import InvalidArgumentError, MessageTooLargeError
from danube.model.keys import key_from_text

__all__ = [
    "BytesLike",
    "Key",
    "check_payloads",
    "checked_attributes",
    "due_us",
    "encoded_key",
    "encoded_keys",
    "pieces",
    "to_bytes",
    "to_record",
    "too_large",
]

BytesLike = bytes | bytearray | memoryview
Key = str | bytes
"""A key as given by applications: bytes, or text for its UTF-8 encoding (:mod:`danube.model.keys`)."""

_DUE_STEP_US = 1_000
"""Delays are rounded up to this, so that messages sent at about the same time share a batch."""


def check_payloads(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the payloads as a list of bytes, checked in one pass in C; bytes-like payloads are converted."""
    try:
        return msgspec.convert(payloads, list[bytes], builtin_types=(bytes, bytearray, memoryview))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # UnicodeEncodeError is raised for a lone surrogate
        raise InvalidArgumentError(
            f"send_many takes a sequence of bytes ({error}); encode each payload first, for example text.encode()"
        ) from None


def to_bytes(payload: Any) -> bytes:
    """Return a bytes-like payload as bytes."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidArgumentError(
        f"a payload is bytes, not {type(payload).__name__}; encode it first, for example text.encode()"
    )


def to_record(payload: bytes, key: bytes | None, attributes: dict[str, str] | None) -> Record:
    """Make the record of a message with a key or attributes."""
    return Record(payload, key, checked_attributes(attributes))


def encoded_key(key: Any) -> bytes:
    """Return a key as bytes.

    Raises:
        InvalidArgumentError: the key is neither bytes nor valid Unicode text.
    """
    if type(key) is bytes:
        return key
    if isinstance(key, str):
        return key_from_text(key)
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidArgumentError(f"a key is text (str), bytes or None, not {type(key).__name__}")


def encoded_keys(keys: Sequence[Key | None]) -> list[bytes | None]:
    """Return keys as bytes: one pass in C if all are ASCII or other UTF-8 text.

    Raises:
        InvalidArgumentError: as :func:`encoded_key`.
    """
    try:
        return list(map(str.encode, keys))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return [None if key is None else encoded_key(key) for key in keys]


def checked_attributes(attributes: dict[str, str] | None) -> dict[str, str] | None:
    """Return a copy of the attributes; None if there are none."""
    if not attributes:
        return None
    if not isinstance(attributes, dict):
        raise InvalidArgumentError(f"attributes are a dict of texts, not {type(attributes).__name__}")
    for name, value in attributes.items():
        if type(name) is not str or type(value) is not str:
            raise InvalidArgumentError(f"attributes are text: {name!r} has the value {value!r}; use strings for both")
        check_text("the name of an attribute", name)
        check_text(f"attribute {name!r}", value)
    return dict(attributes)


def too_large(size: int, limit: int, index: int | None) -> MessageTooLargeError:
    """Return the error for a payload beyond the limit; ``index`` is its index in a ``send_many``."""
    which = "a message" if index is None else f"message {index} of send_many"
    return MessageTooLargeError(
        f"{which} has {size} bytes, more than max_message_bytes = {limit}; split it, or raise the broker's limit"
    )


def pieces(lengths: list[int], max_bytes: int, max_messages: int) -> list[tuple[int, int, int]]:
    """Cut messages into pieces ``(start, end, size)`` of at most one batch each."""
    count = len(lengths)
    total = sum(lengths) + RECORD_OVERHEAD * count
    if total <= max_bytes and count <= max_messages:
        return [(0, count, total)]
    ends = list(accumulate(lengths))
    found = []
    start, done = 0, 0
    while start < count:
        # The overhead per message is part of the limit; a bisection on the payload bytes finds the longest piece
        # that fits after at most a few corrections, because the overhead of a shorter piece is smaller.
        end = min(bisect_right(ends, done + max_bytes, start), start + max_messages, count)
        while end > start + 1 and ends[end - 1] - done + RECORD_OVERHEAD * (end - start) > max_bytes:
            room = max_bytes - RECORD_OVERHEAD * (end - start)
            end = max(min(bisect_right(ends, done + room, start, end), end - 1), start + 1)
        end = max(end, start + 1)
        size = ends[end - 1] - done + RECORD_OVERHEAD * (end - start)
        found.append((start, end, size))
        start, done = end, ends[end - 1]
    return found


def due_us(deliver_at: datetime | None, deliver_after_s: float | None, clock_us: Callable[[], int]) -> int:
    """Return when a message is due, in microseconds since the epoch; 0 for at once.

    Raises:
        InvalidArgumentError: both are given, the date has no time zone, or the delay is negative or infinite.
    """
    if deliver_at is not None:
        if deliver_after_s is not None:
            raise InvalidArgumentError("give either deliver_at or deliver_after_s, not both")
        if getattr(deliver_at, "tzinfo", None) is None:
            raise InvalidArgumentError(
                f"deliver_at {deliver_at!r} is not a date with a time zone; use datetime(..., tzinfo=timezone.utc)"
            )
        return max(1, round(deliver_at.timestamp() * 1_000_000))
    if deliver_after_s is None:
        return 0
    delay_us = round(check_seconds("deliver_after_s", deliver_after_s, zero=True) * 1_000_000)
    if not delay_us:
        return 0
    due = clock_us() + delay_us
    return min(-(-due // _DUE_STEP_US) * _DUE_STEP_US, LARGEST)
