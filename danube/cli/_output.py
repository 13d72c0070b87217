"""Formats results: a table for people, JSON for programs, tab-separated text for shell pipes.

Results go to standard output, everything else (progress, summaries beside data, errors) to standard error.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

__all__ = [
    "Figure",
    "Output",
    "OutputOption",
    "human_bytes",
    "human_messages",
    "Styled",
    "human_rate",
    "plural",
    "print_json",
    "print_styled",
    "show_record",
    "show_rows",
]


class Output(enum.StrEnum):
    """The value of ``-o``."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="table for people, json for programs, raw for pipes (tab-separated).")
]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_json(value: Any, indent: int = 2) -> None:
    """Print plain data (dicts, lists, texts, numbers) as JSON; ``indent`` 0 puts it on one line."""
    import msgspec

    text = msgspec.json.encode(value)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    print(text.decode())


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: Output) -> None:
    """Print rows: ``columns`` selects the fields of a table and of raw lines; JSON is a list with every field."""
    if output is Output.JSON:
        print_json(list(rows))
    elif output is Output.RAW:
        for row in rows:
            print("\t".join(_cell(row[column]) for column in columns))
    else:
        _print_table(rows, columns)


def show_record(record: Mapping[str, Any], output: Output) -> None:
    """Print one record: a line for each field, or one JSON object."""
    if output is Output.JSON:
        print_json(record)
    elif output is Output.RAW:
        for name, value in record.items():
            print(f"{name}\t{_cell(value)}")
    else:
        width = max(map(len, record), default=0)
        for name, value in record.items():
            print(f"{name:<{width}}  {_cell(value)}")


def human_bytes(size: float) -> str:
    """Format a number of bytes with a binary unit: ``1.5 MiB``."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit always returns")


def human_messages(count: int) -> str:
    """Return ``1 message``, ``1,234 messages``."""
    return "1 message" if count == 1 else f"{count:,} messages"


def plural(count: int, noun: str) -> str:
    """Return ``1 topic``, ``1,234 topics``."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


class Styled(str):
    """A cell of a table in a style of Rich, for terminals."""

    __slots__ = ("style",)

    def __new__(cls, text: str, style: str) -> Styled:
        """Return a text with a style."""
        made = super().__new__(cls, text)
        made.style = style
        return made

    style: str


def print_styled(*parts: tuple[str, str]) -> None:
    """Print a line of texts with styles of Rich; on what is no terminal, without the styles."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, width=100_000, highlight=False)
    with console.capture() as capture:
        console.print(Text.assemble(*parts), soft_wrap=True)
    sys.stdout.write(capture.get())


def human_rate(count: float, seconds: float, unit: str) -> str:
    """Format a rate: ``12,345 messages/s``."""
    return f"{count / seconds if seconds > 0 else 0:,.0f} {unit}/s"


class Figure(str):
    """A cell that is aligned as a number: ``4.2m``, ``1,000``."""

    __slots__ = ()


def _is_figure(value: Any) -> bool:
    return isinstance(value, Figure)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list | tuple | dict):
        import msgspec

        return msgspec.json.encode(value).decode() if value and not _all_text(value) else ", ".join(value) or "-"
    return str(value)


def _all_text(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As wide as the cells need: a row stays one line, for people and for grep; a narrow terminal wraps it by itself.
    console = Console(file=sys.stdout, width=100_000, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = bool(rows) and all(type(row[column]) in (int, float) or _is_figure(row[column]) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(row[column]), style=getattr(row[column], "style", "")) for column in columns))
    with console.capture() as capture:
        console.print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))
