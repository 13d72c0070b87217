"""Server-sent events as bytes. Pure. https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

from typing import Final

from danube.model.errors import InvalidArgumentError

__all__ = ["KEEP_ALIVE", "event_text"]

KEEP_ALIVE: Final = b":\n\n"
"""A comment, which clients ignore."""


def event_text(data: bytes, *, name: str = "", event_id: str = "", retry_ms: int | None = None) -> bytes:
    """Return one event.

    Args:
        data: UTF-8 text; each of its lines becomes a line of the event.
        name: of the event; empty: ``message``.
        event_id: what a client sends as ``Last-Event-ID`` when it reconnects; empty: none.
        retry_ms: pause before a client reconnects.

    Raises:
        InvalidArgumentError: the name or the id contains the end of a line.
    """
    lines: list[bytes] = []
    for field, value in ((b"event", name), (b"id", event_id)):
        if value:
            if any(each in value for each in "\r\n\0"):
                raise InvalidArgumentError(f"{field.decode()} of an event has one line, not {value!r}")
            lines.append(b"%s: %s\n" % (field, value.encode()))
    if retry_ms is not None:
        lines.append(b"retry: %d\n" % retry_ms)
    lines += [b"data: %s\n" % line for line in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")]
    return b"".join(lines) + b"\n"
