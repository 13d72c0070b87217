"""Draws `danube top`: a screen that fits the terminal, or plain tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danube.cli._durations import human_duration
from danube.cli._output import Figure, Styled, human_bytes, plural
from danube.cli._rates import SubscriptionRates, Top, TopicRates

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["head_lines", "screen", "subscription_rows", "topic_rows"]

_TOPICS: Final = (("topic", 0), ("in/s", 8), ("out/s", 8), ("messages", 13), ("size", 9), ("subs", 4))
_SUBSCRIPTIONS: Final = (
    ("subscription", 0),
    ("out/s", 7),
    ("backlog", 10),
    ("oldest", 6),
    ("flight", 6),
    ("state", 13),
)
_LEAST_NAME: Final = 12
_FIXED_LINES: Final = 8
"""Lines of a screen that are no rows: head, headings, blank lines, foot."""


def head_lines(top: Top, url: str) -> list[str]:
    """Return what is shown about the broker, in three lines."""
    info = top.info
    used = info.journal_used_bytes / max(1, info.journal_limit_bytes)
    parts = (
        ["danube top", url, f"{info.broker} {info.version}".strip(), f"up {human_duration(info.uptime_s)}"],
        [
            f"in {top.in_per_s:,.0f} msg/s, {human_bytes(top.in_bytes_per_s)}/s",
            f"out {top.out_per_s:,.0f} msg/s, {human_bytes(top.out_bytes_per_s)}/s",
            plural(info.connections, "connection"),
        ],
        [
            f"memory {human_bytes(info.memory_bytes)}",
            f"cpu {top.cpu:.0%}",
            *([f"loop lag {info.loop_lag_s * 1e3:.1f} ms"] if info.loop_lag_s >= 0 else []),
            f"journal {used:.0%} of {human_bytes(info.journal_limit_bytes)}",
        ],
    )
    return [" \N{MIDDLE DOT} ".join(each) for each in parts]


def topic_rows(rows: list[TopicRates]) -> list[dict[str, Any]]:
    """Return rows of the table of topics."""
    return [
        {
            "topic": each.topic,
            "in/s": _rate(each.in_per_s),
            "out/s": _rate(each.out_per_s),
            "messages": Figure(f"{each.messages:,}"),
            "size": Figure(human_bytes(each.stored_bytes)),
            "subs": each.subscriptions,
        }
        for each in rows
    ]


def subscription_rows(rows: list[SubscriptionRates]) -> list[dict[str, Any]]:
    """Return rows of the table of subscriptions."""
    return [
        {
            "subscription": f"{each.topic} {each.subscription}",
            "out/s": _rate(each.out_per_s),
            "backlog": Figure(f"{each.backlog_messages:,}"),
            "oldest": Figure(
                human_duration(each.oldest_age_s) if each.backlog_messages > 0 and each.oldest_age_s >= 0 else "-"
            ),
            "flight": Figure(f"{each.in_flight_messages:,}"),
            "state": Styled(each.state, "" if each.well else "red"),
        }
        for each in rows
    ]


def screen(top: Top, url: str, sort: str, width: int, height: int) -> Text:
    """Return a screen of at most this size: what does not fit is counted in the last line."""
    from rich.text import Text

    room = max(2, height - _FIXED_LINES)
    few = min(len(top.topics), room // 2)
    many = min(len(top.subscriptions), room - few)
    few = min(len(top.topics), room - many)
    lines = [Text(line, style="bold" if number == 0 else "") for number, line in enumerate(head_lines(top, url))]
    lines += [Text(), *_table(_TOPICS, topic_rows(top.topics[:few]), width)]
    lines += [Text(), *_table(_SUBSCRIPTIONS, subscription_rows(top.subscriptions[:many]), width)]
    left = [(len(top.topics) - few, "topic"), (len(top.subscriptions) - many, "subscription")]
    more = ", ".join(f"{count:,} more {noun}{'' if count == 1 else 's'}" for count, noun in left if count)
    silent = f" \N{MIDDLE DOT} no answer: {', '.join(top.silent)}" if top.silent else ""
    foot = f"q quit \N{MIDDLE DOT} s sort: {sort}" + (f" \N{MIDDLE DOT} {more}" if more else "") + silent
    lines.append(Text(foot, style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[:height])


def _table(columns: tuple[tuple[str, int], ...], rows: list[dict[str, Any]], width: int) -> list[Text]:
    from rich.text import Text

    name = max(_LEAST_NAME, width - sum(size + 2 for _, size in columns[1:]))
    head = Text(style="bold")
    shown = [head]
    for column, size in columns:
        _put(head, column, size or name, left=not size or column == "state", style="")
    for row in rows:
        line = Text()
        for column, size in columns:
            value = row[column]
            _put(
                line,
                str(value),
                size or name,
                left=not size or column == "state",
                style=getattr(value, "style", ""),
            )
        shown.append(line)
    return shown


def _put(line: Text, text: str, size: int, *, left: bool, style: str) -> None:
    if line:
        line.append("  ")
    if len(text) > size:
        text = "\N{HORIZONTAL ELLIPSIS}" + text[-(size - 1) :] if left and not style else text[:size]
    line.append(text.ljust(size) if left else text.rjust(size), style=style)


def _rate(value: float) -> Figure:
    return Figure(f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}")
