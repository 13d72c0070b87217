"""Implements ``danube search``: the search of the HTTP API in this process, printed as ``danube read`` prints."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from danube.cli import _printing
from danube.cli._client import run_with_client
from danube.cli._output import Output
from danube.cli._printing import Printer, make_printer
from danube.model.limits import Limits
from danube.web.search.engine import Search
from danube.web.search.filters import parse_filter
from danube.web.search.jobs import Job
from danube.web.search.planning import plan_search

if TYPE_CHECKING:
    from danube.client import Client
    from danube.web.bodies import SearchEnd, SearchProgress
    from danube.web.search.scanning import Found

__all__ = ["run"]

_RECONNECT_S: Final = 60.0
_UNBOUNDED: Final = 2**62


def run(
    topic: str,
    filter_text: str,
    start: str | int | datetime.datetime,
    count: int | None,
    format: str | None,
    url: str | None,
    context: str | None,
    output: Output,
) -> None:
    """Search and print until the end of the topic, the count, a signal, or a closed output.

    Raises:
        InvalidArgumentError: the filter or the format is invalid.
        DanubeError: the broker refused, or was unreachable for more than a minute.
    """
    parse_filter(filter_text)  # before a broker is asked
    printer = make_printer(format, output)
    if format is None and output is Output.TABLE:
        _printing.write_now(_printing.table_head())

    async def search(client: Client) -> None:
        parts = await plan_search(client, topic, filter_text, start, direct=False)
        job = Job(
            filter=filter_text,
            parts=parts,
            max_matches=count or _UNBOUNDED,
            max_bytes=_UNBOUNDED,
            max_s=float(_UNBOUNDED),
            payload_bytes=_UNBOUNDED,
            max_batch_bytes=Limits().max_batch_bytes,
        )
        try:
            await Search(client, job, _Report(printer)).run()
        except* BrokenPipeError:
            pass  # the normal end of `danube search ... | head`: its reader has finished

    run_with_client(search, url, context, _RECONNECT_S)


class _Report:
    """Prints matches, and says on standard error how far the search is (on a terminal) and has come."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._is_terminal = sys.stderr.isatty() and not sys.stdout.isatty()

    def match(self, found: Found, _positions: Mapping[int, int]) -> bytes:
        """Return a match as it is printed."""
        return self._printer([found])

    async def send(self, data: bytes) -> None:
        """Print matches."""
        await _printing.write(data)

    async def progress(self, progress: SearchProgress) -> None:
        """Say how far it is."""
        if self._is_terminal:
            print(f"\r{_said(progress)}", end="", file=sys.stderr, flush=True)

    async def end(self, end: SearchEnd) -> None:
        """Say how far it has come."""
        begin = "\r" if self._is_terminal else ""
        print(f"{begin}{_said(end)}", file=sys.stderr)


def _said(progress: SearchProgress) -> str:
    matches = f"{progress.matches:,} match{'' if progress.matches == 1 else 'es'}"
    total = "" if progress.scanned == progress.total else f" of {progress.total:,}"
    return f"{matches} in {progress.scanned:,}{total} messages, {progress.per_second:,} a second"
