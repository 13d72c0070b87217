"""Progress and results of ``danube produce``: a bar while it runs, and the sums at its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from danube.cli._output import Output, human_bytes, human_messages, human_rate, print_json

if TYPE_CHECKING:
    from danube.client import RangeReceipt

__all__ = ["Progress", "Tally", "show_summary"]


class Tally:
    """Sums of acknowledged messages."""

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.skipped = 0
        self.interrupted = False
        self.seconds = 0.0
        """From the first read to the last receipt."""
        self._topics: dict[str, tuple[int, int | None, int | None]] = {}

    def add(self, receipt: RangeReceipt, size_bytes: int) -> None:
        """Count a receipt."""
        self.size_bytes += size_bytes
        for part in receipt.ranges:
            self.messages += part.count
            count, first, last = self._topics.get(part.topic, (0, None, None))
            if part.start >= 0:  # else the broker has it, but no longer knows its offset
                first = part.start if first is None else min(first, part.start)
                last = part.end - 1 if last is None else max(last, part.end - 1)
            self._topics[part.topic] = (count + part.count, first, last)

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        seconds = self.seconds
        return {
            "messages": self.messages,
            "skipped": self.skipped,
            "bytes": self.size_bytes,
            "seconds": round(seconds, 6),
            "messages_per_s": round(self.messages / seconds, 1) if seconds > 0 else 0.0,
            "interrupted": self.interrupted,
            "topics": [
                {"topic": topic, "messages": count, "first_offset": first, "last_offset": last}
                for topic, (count, first, last) in sorted(self._topics.items())
            ],
        }


class Progress:
    """A progress bar on standard error, for interactive use; otherwise nothing.

    Args:
        total_bytes: of the input; None if unknown.
        output: of the command; forms for programs show no bar.
    """

    def __init__(self, total_bytes: int | None, output: Output) -> None:
        self._bar: Any = None
        if output is not Output.TABLE or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=total_bytes)

    def __enter__(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, size_bytes: int) -> None:
        """Advance by bytes of the input that are acknowledged."""
        if self._bar is not None:
            self._bar.advance(self._task, size_bytes)


def show_summary(summary: dict[str, Any], output: Output) -> None:
    """Print the figures of :meth:`Tally.summary`."""
    if output is Output.JSON:
        print_json(summary, indent=0)
        return
    if output is Output.RAW:
        for part in summary["topics"]:
            print(f"{part['topic']}\t{part['messages']}\t{part['first_offset']}\t{part['last_offset']}")
        return
    seconds = summary["seconds"]
    print(
        f"{human_messages(summary['messages'])}, {human_bytes(summary['bytes'])} in {seconds:.2f} s:"
        f" {human_rate(summary['messages'], seconds, 'messages')}"
        + (f"; {summary['skipped']:,} skipped, stored before" if summary["skipped"] else "")
        + ("; interrupted" if summary["interrupted"] else "")
    )
    for part in summary["topics"]:
        stored = human_messages(part["messages"])
        print(f"  {part['topic']}: {stored}, offsets {part['first_offset']}-{part['last_offset']}")
