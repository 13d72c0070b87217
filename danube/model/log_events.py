"""Names and fields of what the broker writes to its log. Pure.

Each line of level warning or above has a name that never changes, whatever its sentence says::

    _log.error("topic %r stops: %s", name, failure, extra=log_event("topic.stopped", topic=name))

The literal name is the contract with those who write alerts: ``docs/logs.md`` lists all of them, and a test compares
that table with the code. Alert on names, never on sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["UNNAMED", "event_of", "fields_of", "log_event", "repeat_key"]

UNNAMED: Final = "other"
"""The event of a line that has no name."""

_EVENT: Final = "danube_event"
_FIELDS: Final = "danube_fields"
_REPEATING: Final = "danube_repeating"
_PASSING: Final = ("connection", "peer")


def log_event(name: str, /, *, repeating: bool = False, **fields: object) -> dict[str, Any]:
    """Return the ``extra`` of a log call.

    Args:
        name: of the event, ``area.what_happened``.
        repeating: others can cause this line as often as they like; the same name with the same fields is written once
            a minute, with a count (:class:`danube.model.log_repeats.Repeats`).
        fields: what the line is about, such as ``topic``, ``subscription`` or ``connection``. In the text format the
            sentence has to say it.
    """
    return {_EVENT: name, _FIELDS: fields, _REPEATING: repeating}


def event_of(record: Mapping[str, Any]) -> str:
    """Return the name of the event in the attributes of a log record; ``UNNAMED`` if it has none."""
    return str(record.get(_EVENT, UNNAMED))


def fields_of(record: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the fields in the attributes of a log record."""
    found: Mapping[str, object] = record.get(_FIELDS, {})
    return found


def repeat_key(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what a log record has in common with its repeats; None: it is always written.

    Connections do not count as things: a peer may open another one for each line.
    """
    if not record.get(_REPEATING):
        return None
    things = [str(value) for name, value in fields_of(record).items() if name not in _PASSING]
    return (event_of(record), *things)
