"""Shows the subscriptions of all topics as a table, as JSON or as raw lines: the worst first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from danube.cli._client import to_plain
from danube.cli._durations import human_duration
from danube.cli._output import Figure, Output, Styled, show_rows
from danube.cli._overview import Whole, wholes, worst_first

if TYPE_CHECKING:
    from danube.client._admin import Overview

__all__ = ["show"]

_COLUMNS: Final = ["topic", "subscription", "state", "backlog", "oldest", "consumers"]
_OPTIONAL: Final = {
    "in flight": "in_flight_messages",
    "waiting": "waiting_messages",
    "delayed": "delayed_messages",
    "poisoned": "poisoned_messages",
    "dead-lettered": "dead_lettered_messages",
}
"""Columns that are left out where they would be zero in all rows."""


def show(found: Overview, *, partitions: bool, output: Output) -> None:
    """Print subscriptions.

    Args:
        found: as the broker returns them.
        partitions: a row for each partition.
        output: JSON has all fields.
    """
    groups = [wholes([row]) for row in found.subscriptions] if partitions else [wholes(found.subscriptions)]
    rows = worst_first(each for group in groups for each in group)
    if output is Output.JSON:
        show_rows([_plain(each, partitions) for each in rows], _COLUMNS, output)
    else:
        extra = [name for name, field in _OPTIONAL.items() if any(getattr(each, field) for each in rows)]
        columns = [*_COLUMNS, *_OPTIONAL] if output is Output.RAW else [*_COLUMNS, *extra]
        show_rows([_row(each, partitions, raw=output is Output.RAW) for each in rows], columns, output)
    for broker in found.silent:
        print(f"! broker {broker} does not answer: what it serves is not shown", file=sys.stderr)


def _row(each: Whole, partitions: bool, *, raw: bool) -> dict[str, Any]:
    age_s = each.oldest_age_s
    known = age_s >= 0 and each.backlog_messages > 0
    row: dict[str, Any] = {
        "topic": each.rows[0].topic if partitions else each.topic,
        "subscription": each.subscription,
        "state": each.state if raw else Styled(each.state, "" if each.well else "red"),
        "backlog": each.backlog_messages if raw else Figure(f"{each.backlog_messages:,}"),
        "oldest": (age_s if known else None) if raw else Figure(human_duration(age_s) if known else "-"),
        "consumers": each.consumers,
    }
    return row | {name: getattr(each, field) for name, field in _OPTIONAL.items()}


def _plain(each: Whole, partitions: bool) -> dict[str, Any]:
    if partitions:
        plain: dict[str, Any] = to_plain(each.rows[0])
        return plain
    return {name: value for name, value in to_plain(each).items() if name != "rows"}
