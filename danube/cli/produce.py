"""``danube produce``: send lines, one message each."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption
from danube.cli._positions import parse_time
from danube.model.policies import Durability

__all__ = ["Compression", "produce"]


class Compression(enum.StrEnum):
    """How batches are packed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


_CODECS: Final[dict[Compression, Literal["lz4", "zstd"] | None]] = {
    Compression.NONE: None,
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}


def produce(
    topic: TopicArgument,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Lines to send; '-' or none: standard input.")
    ] = None,
    message: Annotated[
        list[str] | None, typer.Option("-m", "--message", metavar="TEXT", help="A message; repeat for more.")
    ] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of every message.")] = None,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Lines are JSON objects; the value of this field is the message's key."),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("-a", "--attribute", metavar="NAME=VALUE", help="Attribute of every message; repeat for more."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Messages per second; by default as fast as possible.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", min=0, help="Stop after this many messages; -m texts repeat until then."),
    ] = None,
    producer_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Producer name, for one session at a time; required for --resume."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Skip messages stored under this producer name: repeat the same input without duplicates."
        ),
    ] = False,
    durability: Annotated[
        Durability | None, typer.Option(help="Durability that the topic must have, or gets if it is created now.")
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=0, help="Create the topic with this many partitions if it is missing.")
    ] = 0,
    compression: Annotated[Compression, typer.Option(help="Compression of batches.")] = Compression.NONE,
    deliver_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Deliver each message this long after it was sent, such as 10s or 2h."),
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver from this time on, such as 2026-01-31T12:00:00Z.")
    ] = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send lines, one message each.

    They are read from a file or from standard input. The summary counts acknowledged messages. If the connection to the
    broker is lost, the command waits for the broker for up to a minute and continues without loss or duplicates. Ctrl-C
    stops reading, waits for outstanding acknowledgements and prints the summary.

    With --producer-name and --resume an interrupted command can be repeated with the same input: messages that the
    broker has stored are skipped. A named producer distributes messages without a key to the partitions in turn.
    """
    from danube.cli import _produce

    if file is not None and message:
        raise typer.BadParameter("give --file or --message, not both")
    if key is not None and key_field is not None:
        raise typer.BadParameter("give --key or --key-field, not both")
    if resume and producer_name is None:
        raise typer.BadParameter("--resume needs --producer-name: the broker remembers producers by their name")
    if deliver_after is not None and deliver_at is not None:
        raise typer.BadParameter("give --deliver-after or --deliver-at, not both")
    options = _produce.ProduceOptions(
        topic=topic,
        file=None if file is None or str(file) == "-" else file,
        texts=[text.encode("utf-8", "surrogateescape") for text in message or []],
        key=key,
        key_field=key_field,
        attributes=_attributes(attribute or []),
        rate=rate,
        count=count,
        producer_name=producer_name,
        resume=resume,
        durability=durability,
        partitions=partitions,
        compression=_CODECS[compression],
        deliver_after_s=None if deliver_after is None else parse_duration(deliver_after),
        deliver_at=None if deliver_at is None else parse_time(deliver_at),
    )
    if not _produce.run(options, url, context, output):
        raise typer.Exit(130)


def _attributes(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise typer.BadParameter(f"--attribute {text!r}: give NAME=VALUE, such as source=web")
        if name in found:
            raise typer.BadParameter(f"--attribute {name} is given twice; an attribute has one value")
        found[name] = value
    return found
