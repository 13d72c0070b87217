"""The JSON form of a line in the log. Pure.

One object a line::

    {"time":"2026-01-02T03:04:05.678Z","level":"error","logger":"danube.subscription","event":"dead_letters.failing",
     "message":"...","topic":"/default/orders","subscription":"billing"}

``exception`` has a traceback, and ``repeats`` how many lines of the same event about the same thing were not written.
Fields that have no value are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from danube.model.log_events import UNNAMED

__all__ = ["MAX_FIELD_CHARACTERS", "OWN_NAMES", "json_line"]

OWN_NAMES: Final = ("time", "level", "logger", "event", "message", "repeats", "exception")
"""Names that a field cannot have."""
MAX_FIELD_CHARACTERS: Final = 16_384
"""Longest text in a line; a longer one is cut, and ends with an ellipsis."""


def json_line(
    *,
    time_s: float,
    level: str,
    logger: str,
    message: str,
    event: str = UNNAMED,
    fields: Mapping[str, object] | None = None,
    repeats: int = 0,
    exception: str = "",
) -> str:
    """Return a line, without its end.

    Args:
        time_s: seconds since the epoch.
        level: ``warning`` for instance.
        logger: its name.
        message: the sentence.
        event: its name.
        fields: what the line is about. Numbers and truth values stay such; anything else becomes its text, by which a
            secret shows only that it is one.
        repeats: how many lines were not written.
        exception: its traceback.
    """
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level.lower(),
        "logger": logger,
        "event": event,
        "message": _cut(message),
    }
    for name, value in (fields or {}).items():
        if value is not None and name not in OWN_NAMES:
            line[name] = value if isinstance(value, bool | int | float) else _cut(str(value))
    if repeats:
        line["repeats"] = repeats
    if exception:
        line["exception"] = _cut(exception)
    return msgspec.json.encode(line).decode()


def _cut(text: str) -> str:
    """Return a text that is not too long, and that UTF-8 can encode: names of files may have single surrogates."""
    if len(text) > MAX_FIELD_CHARACTERS:
        text = text[: MAX_FIELD_CHARACTERS - 1] + "…"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
