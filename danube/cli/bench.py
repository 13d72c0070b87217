"""``danube bench``: measures the throughput and latency of a running broker from this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, show_record
from danube.model.policies import Durability

__all__ = ["bench_app"]

bench_app = typer.Typer(no_args_is_help=True, help="Measure a running broker: publish, consume, latency.")

_Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="Use and keep this topic; by default one is created and deleted afterwards."
    ),
]
_Size = Annotated[int, typer.Option("--size", min=16, max=2**30, help="Size of a payload in bytes.")]
_Count = Annotated[int, typer.Option("-n", "--count", min=1, max=10**15, help="Number of messages.")]
_Batch = Annotated[int, typer.Option("--batch", min=1, max=10**6, help="Messages in one call of the client.")]
_InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=10**4, help="Maximum number of concurrent calls.")]
_Durability = Annotated[
    Durability | None, typer.Option("--durability", help="Durability of the created topic; by default the broker's.")
]


@bench_app.command("publish")
def bench_publish(
    topic: _Topic = None,
    size: _Size = 128,
    count: _Count = 200_000,
    batch: _Batch = 1_000,
    in_flight: _InFlight = 8,
    durability: _Durability = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish as fast as acknowledgements allow: rate, and latency of a call of --batch messages."""
    from danube.cli import _bench

    options = _bench.BenchOptions(
        topic=topic, size=size, count=count, batch=batch, in_flight=in_flight, durability=durability
    )
    _show(_bench.run(_bench.publish, options, url, context), output)


@bench_app.command("consume")
def bench_consume(
    topic: _Topic = None,
    size: _Size = 128,
    count: _Count = 200_000,
    durability: _Durability = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read a topic from its beginning as fast as possible, acknowledging batch by batch.

    Without --topic, --count messages are published first (and not timed).
    """
    from danube.cli import _bench

    options = _bench.BenchOptions(topic=topic, size=size, count=count, durability=durability)
    _show(_bench.run(_bench.consume, options, url, context), output)


@bench_app.command("latency")
def bench_latency(
    topic: _Topic = None,
    size: _Size = 128,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=1e7, help="Messages per second, sent one by one.")
    ] = 1_000.0,
    duration: Annotated[float, typer.Option("--duration", min=0.1, max=1e6, metavar="SECONDS", help="Duration.")] = 5.0,
    durability: _Durability = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send at a fixed rate and measure the time to the receipt and to a consumer in this process.

    Both are measured from the time when a message was due, not from when it was sent: a stall adds to the latency of
    every message that was due in the meantime (no coordinated omission).
    """
    from danube.cli import _bench

    options = _bench.BenchOptions(
        topic=topic, size=size, count=max(1, int(rate * duration)), rate=rate, durability=durability
    )
    _show(_bench.run(_bench.latency, options, url, context), output)


def _show(result: dict[str, Any], output: Output) -> None:
    show_record(result, output)
