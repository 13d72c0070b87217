"""``danube top``: live rates of topics and subscriptions, and the state of the broker."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._connecting import find_target
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._output import Output, OutputOption, print_json, show_rows
from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.cli._rates import Sample, Top
    from danube.client import Client

__all__ = ["top"]

_LEAST_INTERVAL_S: Final = 0.2
_SHARE: Final = 4
"""A sample that takes long makes the interval longer, so that asking takes at most a quarter of the time."""


def top(
    interval: Annotated[str, typer.Option(metavar="TIME", help="Time between two samples; at least 0.2s.")] = "1s",
    sort: Annotated[
        str, typer.Option(metavar="ORDER", help="rate (the busiest first), worst (what is not well first), or name.")
    ] = "rate",
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and leave; so without a terminal, except as JSON.")
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show live rates of all topics and subscriptions, backlogs, connections, memory and the journal.

    Keys: q ends it, s changes the order. -o json prints a line for each interval.
    """
    from danube.cli._rates import SORTS

    every_s = parse_duration(interval)
    if every_s < _LEAST_INTERVAL_S:
        raise InvalidArgumentError(f"--interval {interval} is too short; it is at least {_LEAST_INTERVAL_S} s")
    if sort not in SORTS:
        raise InvalidArgumentError(f"--sort {sort!r} is none of {', '.join(SORTS)}")
    live = not once and output is Output.TABLE and sys.stdout.isatty()
    address = find_target(url, context).url

    async def work(client: Client) -> None:
        if live:
            await _show_live(client, every_s, sort, address)
            return
        before = await _sample(client)
        while True:
            before, found = await _next(client, before, every_s, sort)
            _print(found, address, output)
            if once or output is not Output.JSON:
                return

    run_with_client(work, url, context, reconnect_timeout_s=None if live else 5.0)


async def _sample(client: Client) -> Sample:
    import trio

    from danube.cli._overview import wholes
    from danube.cli._rates import make_sample

    info = await client.admin.info()
    topics = await client.admin.list_topics()
    overview = await client.admin.overview()
    return make_sample(trio.current_time(), info, topics, wholes(overview.subscriptions), overview.silent)


async def _next(client: Client, before: Sample, every_s: float, sort: str) -> tuple[Sample, Top]:
    """Take the next sample when it is time; return it, and the rates since the one before."""
    import trio

    from danube.cli._rates import top_of

    await trio.sleep_until(before.time_s + every_s)
    began_s = trio.current_time()
    after = await _sample(client)
    await trio.sleep(max(0.0, (_SHARE - 1) * (trio.current_time() - began_s) - every_s))
    return after, top_of(before, after, sort)


def _print(found: Top, address: str, output: Output) -> None:
    from danube.cli._top_screen import head_lines, subscription_rows, topic_rows

    if output is Output.JSON:
        print_json(to_plain(found), indent=0)
        sys.stdout.flush()
        return
    if output is Output.RAW:
        names = ["topic", "subscription", "out_per_s", "acked_per_s", "backlog_messages", "oldest_age_s", "state"]
        show_rows([to_plain(each) for each in found.subscriptions], names, output)
        return
    print("\n".join(head_lines(found, address)) + "\n")
    show_rows(topic_rows(found.topics), ["topic", "in/s", "out/s", "messages", "size", "subs"], output)
    print()
    columns = ["subscription", "out/s", "backlog", "oldest", "flight", "state"]
    show_rows(subscription_rows(found.subscriptions), columns, output)
    for broker in found.silent:
        print(f"! broker {broker} does not answer: what it serves is not shown", file=sys.stderr)


async def _show_live(client: Client, every_s: float, sort: str, address: str) -> None:
    import trio
    from rich.console import Console
    from rich.live import Live

    from danube.cli._rates import SORTS, top_of
    from danube.cli._top_screen import screen

    console = Console(highlight=False)
    order, samples = sort, [await _sample(client)]

    def draw(live: Live) -> None:
        if len(samples) > 1:
            found = top_of(samples[-2], samples[-1], order)
            live.update(screen(found, address, order, console.width, console.height), refresh=True)

    with _keys() as keyboard, Live("", console=console, screen=True, auto_refresh=False) as live:
        live.update(f"danube top \N{MIDDLE DOT} {address} \N{MIDDLE DOT} taking the first sample", refresh=True)
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while True:
                    after, _ = await _next(client, samples[-1], every_s, order)
                    samples[:] = [samples[-1], after]
                    draw(live)

            nursery.start_soon(watch)
            while True:
                key = await keyboard()
                if key in ("q", "Q", ""):
                    nursery.cancel_scope.cancel()
                    return
                if key in ("s", "S"):
                    order = SORTS[(SORTS.index(order) + 1) % len(SORTS)]
                    draw(live)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for the next key; the terminal passes keys on as they are pressed."""
    import termios
    import tty

    import trio

    if not sys.stdin.isatty():
        yield trio.sleep_forever
        return
    descriptor = sys.stdin.fileno()
    saved = termios.tcgetattr(descriptor)

    async def key() -> str:
        await trio.lowlevel.wait_readable(descriptor)
        return os.read(descriptor, 1).decode("latin-1")

    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
