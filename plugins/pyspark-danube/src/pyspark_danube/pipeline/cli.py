"""``danube pipeline export | import | transform | replay``: the jobs of :mod:`pyspark_danube.pipeline` as commands.

This module is imported whenever ``danube --help`` is shown; Spark is imported when a command runs. Results go to
standard output, progress to standard error.
"""

from __future__ import annotations

import enum
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli._context import ContextOption, UrlOption, resolve_url
from danube.cli._durations import parse_duration
from danube.cli._output import Output, OutputOption, show_record
from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_danube.pipeline import Progress

__all__ = ["pipeline_app"]

pipeline_app = typer.Typer(
    help="Move data between topics, files and tables, with Spark.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Kind(enum.StrEnum):
    """Kind of the target of an export."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class PayloadFormat(enum.StrEnum):
    """Format of payloads."""

    BINARY = "binary"
    JSON = "json"


class OutputMode(enum.StrEnum):
    """Which rows of a result are written."""

    APPEND = "append"
    UPDATE = "update"


Pairs = list[str] | None
_MASTER: Final = "local[*,4]"
"""All cores; a task that loses its broker is tried four times, as in a cluster. Without the number, once."""
MasterOption = Annotated[str, typer.Option(metavar="URL", help="Spark's master.")]
SparkOption = Annotated[Pairs, typer.Option("--spark", metavar="K=V", help="Option of the Spark session; repeat.")]
CheckpointOption = Annotated[
    str, typer.Option(metavar="DIR", help="Where the job stores its position; a restarted job continues there.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="End when all present messages are done.")]
StartOption = Annotated[
    str,
    typer.Option("--from", metavar="POSITION", help="First start: earliest, latest, a time, offsets as JSON."),
]
ReadOption = Annotated[
    Pairs, typer.Option("--option", metavar="K=V", help="Option of the data source, such as storage.options.key=...")
]
ProducerOption = Annotated[
    str, typer.Option(metavar="NAME", help="Identifies repetitions: the same batch is not stored twice.")
]
BatchOption = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Number of this batch of the producer id; must grow.")
]


@pipeline_app.command("export")
def export_command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to export.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="Directory or URL; of Iceberg NAMESPACE.TABLE.")],
    kind: Annotated[Kind, typer.Option("--as", help="What the target is.")] = Kind.DELTA,
    checkpoint: CheckpointOption = "",
    once: OnceOption = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between two commits, without --once.")] = "10s",
    starting: StartOption = "earliest",
    payload_format: Annotated[PayloadFormat, typer.Option("--format", help="Of the payloads.")] = PayloadFormat.BINARY,
    schema: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Fields of JSON payloads, such as 'id BIGINT, total DOUBLE'.")
    ] = "",
    columns: Annotated[str, typer.Option(metavar="A,B,...", help="Only these columns.")] = "",
    warehouse: Annotated[str, typer.Option(metavar="DIR", help="Of Iceberg: where the tables are.")] = "",
    catalog: Annotated[Pairs, typer.Option(metavar="K=V", help="Of Iceberg: property of its catalogue.")] = None,
    storage: Annotated[Pairs, typer.Option(metavar="K=V", help="Of Delta: option of the storage.")] = None,
    option: ReadOption = None,
    master: MasterOption = _MASTER,
    spark: SparkOption = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Export topics to Parquet files, a Delta table or an Iceberg table.

    Every message is exported once, even if the command is killed and restarted. It runs until Ctrl-C, or with --once
    until it has caught up. Files left by killed tasks (danube-*.parquet) belong to no table.
    """
    if bool(schema) != (payload_format is PayloadFormat.JSON):
        raise typer.BadParameter("--format json and --schema belong together")
    settings = _pairs("--catalog", catalog), _pairs("--storage", storage), _pairs("--option", option)
    every_s = parse_duration(every)
    address = resolve_url(url, context)
    with _session("export", master, spark) as session:
        from pyspark_danube.pipeline import export_table

        query = export_table(
            session,
            topics,
            to,
            servers=address,
            kind=kind.value,
            checkpoint=checkpoint,
            once=once,
            every_s=every_s,
            starting=starting,
            schema=schema,
            columns=[name.strip() for name in columns.split(",") if name.strip()],
            warehouse=warehouse,
            catalog=settings[0],
            storage=settings[1],
            options=settings[2],
        )
        _follow(query, output)


@pipeline_app.command("import")
def import_command(
    topic: Annotated[str, typer.Argument(help="Where the messages go.")],
    path: Annotated[str, typer.Argument(help="Of files: file, directory or pattern.")] = "",
    format: Annotated[  # noqa: A002 (the name of the option)
        str, typer.Option("--format", help="What Spark calls the source: parquet, csv, json, orc, jdbc, kafka, ...")
    ] = "parquet",
    option: Annotated[Pairs, typer.Option("--option", metavar="K=V", help="Option of the source; repeat.")] = None,
    schema: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns of the source, unless Spark infers them.")
    ] = "",
    key: Annotated[str, typer.Option(metavar="COLUMN", help="Becomes the key.")] = "",
    payload: Annotated[
        str, typer.Option(metavar="COLUMN", help="Becomes the payload; without it the whole row as JSON.")
    ] = "",
    attributes: Annotated[str, typer.Option(metavar="COLUMN", help="A map of texts; becomes the attributes.")] = "",
    producer_id: ProducerOption = "",
    batch_id: BatchOption = None,
    stream: Annotated[bool, typer.Option("--stream", help="Continue with new data (new files, say).")] = False,
    once: OnceOption = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between two polls, with --stream.")] = "1s",
    checkpoint: CheckpointOption = "",
    master: MasterOption = _MASTER,
    spark: SparkOption = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write data that Spark can read into a topic: files, tables of a database, and more.

    All rows become visible at once. With --producer-id and --batch-id a repeated command stores nothing twice. With
    --stream and --checkpoint it continues with new data, and every row is stored once.
    """
    if stream != bool(checkpoint):
        raise typer.BadParameter("--stream and --checkpoint belong together")
    if once and not stream:
        raise typer.BadParameter("--once is for --stream; without it the command ends anyway")
    if stream and batch_id is not None:
        raise typer.BadParameter("--batch-id is not for --stream, which numbers its batches itself")
    options = _pairs("--option", option)
    every_s = parse_duration(every)
    address = resolve_url(url, context)
    source: dict[str, Any] = {
        "servers": address,
        "format": format,
        "path": path,
        "options": options,
        "schema": schema,
        "key": key,
        "payload": payload,
        "attributes": attributes,
        "producer_id": producer_id,
    }
    with _session("import", master, spark) as session:
        from pyspark_danube.pipeline import import_stream, import_table

        if stream:
            query = import_stream(session, topic, checkpoint=checkpoint, once=once, every_s=every_s, **source)
            _follow(query, output)
        else:
            rows = import_table(session, topic, batch_id=batch_id, **source)
            show_record({"topic": topic, "rows": rows}, output)


@pipeline_app.command("transform")
def transform_command(
    sources: Annotated[list[str], typer.Argument(metavar="[VIEW=]TOPIC...", help="Topics, and their names in SQL.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where the results go.")],
    checkpoint: CheckpointOption,
    sql: Annotated[str, typer.Option(help="The query.")] = "",
    file: Annotated[Path | None, typer.Option("--file", help="File with the query.")] = None,
    schema: Annotated[
        Pairs, typer.Option(metavar="VIEW=COLUMNS", help="Payloads are JSON with these fields; repeat for more views.")
    ] = None,
    key: Annotated[str, typer.Option(metavar="COLUMN", help="Of the results; becomes the key.")] = "",
    producer_id: ProducerOption = "",
    once: OnceOption = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between two polls, without --once.")] = "1s",
    starting: StartOption = "earliest",
    output_mode: Annotated[
        OutputMode, typer.Option(help="update: every changed row of an aggregation.")
    ] = OutputMode.APPEND,
    option: ReadOption = None,
    master: MasterOption = _MASTER,
    spark: SparkOption = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read topics with SQL and write the results to a topic, each once.

    Each topic is a view, named after the last part of its name (with _ for -). If the query selects a column payload,
    its columns are those of messages: payload, key, attributes; else each row becomes a JSON object.
    """
    if bool(sql) == (file is not None):
        raise typer.BadParameter("give either --sql or --file")
    query_text = sql or _read(file)
    schemas = _pairs("--schema", schema)
    options = _pairs("--option", option)
    every_s = parse_duration(every)
    address = resolve_url(url, context)
    with _session("transform", master, spark) as session:
        from pyspark_danube.pipeline import transform
        from pyspark_danube.pipeline._transform import view_name

        views = dict(_named(source, view_name) for source in sources)
        query = transform(
            session,
            views,
            to,
            query_text,
            servers=address,
            checkpoint=checkpoint,
            schemas=schemas,
            key=key,
            producer_id=producer_id,
            once=once,
            every_s=every_s,
            starting=starting,
            output_mode=output_mode.value,
            options=options,
        )
        _follow(query, output)


@pipeline_app.command("replay")
def replay_command(
    topic: Annotated[str, typer.Argument(help="Where the messages are.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where they go; may be the same topic.")],
    starting: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="earliest, a time, or offsets as JSON.")
    ] = "earliest",
    ending: Annotated[
        str,
        typer.Option("--until", metavar="POSITION", help="A time or offsets, exclusive; by default the present end."),
    ] = "",
    where: Annotated[str, typer.Option(metavar="SQL", help="Only messages for which this is true.")] = "",
    producer_id: ProducerOption = "",
    batch_id: BatchOption = None,
    option: ReadOption = None,
    master: MasterOption = _MASTER,
    spark: SparkOption = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a range of a topic again, with keys and attributes; all of it becomes visible at once.

    Attributes x-original-topic, -partition, -topic-offset and -publish-time contain the origin of a message. With
    --producer-id and --batch-id a repeated command stores nothing twice.
    """
    options = _pairs("--option", option)
    address = resolve_url(url, context)
    with _session("replay", master, spark) as session:
        from pyspark_danube.pipeline import replay

        rows = replay(
            session,
            topic,
            to,
            servers=address,
            starting=starting,
            ending=ending,
            where=where,
            producer_id=producer_id,
            batch_id=batch_id,
            options=options,
        )
        show_record({"topic": to, "rows": rows}, output)


@contextmanager
def _session(job: str, master: str, config: Sequence[str] | None) -> Iterator[SparkSession]:
    """Start Spark for one command; convert Spark's errors to Danube's, and treat SIGTERM like Ctrl-C."""
    import pyspark_danube
    from pyspark_danube.pipeline._progress import plain_errors

    given = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"} | _pairs("--spark", config)
    session = pyspark_danube.session(f"danube pipeline {job}", master=master, config=given)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # Print one line with the error. Spark's own report has the plan with all options, which may be secret.
        session.sparkContext.setLogLevel("OFF")
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        with plain_errors():
            yield session
    finally:
        session.stop()


def _follow(query: StreamingQuery, output: Output) -> None:
    """Wait for a stream, with progress on standard error; at its end, or Ctrl-C, print the sums."""
    from pyspark_danube.pipeline import Progress, follow

    latest = Progress()

    def show(progress: Progress) -> None:
        nonlocal latest
        latest = progress
        print(  # noqa: T201 (this is what it is for)
            f"{progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s, {progress.lag:,} behind", file=sys.stderr
        )

    try:
        follow(query, show)
    finally:
        show_record(
            {
                "rows": latest.rows,
                "batches": latest.batches,
                "lag": latest.lag,
                "offsets": {topic: dict(sorted(row.items())) for topic, row in latest.offsets.items()},
            },
            output,
        )


def _pairs(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """Split ``K=V``; an error does not show the value, which may be secret."""
    pairs = {}
    for value in values or ():
        name, sign, text = value.partition("=")
        if not sign or not name:
            raise InvalidArgumentError(f"{option} must be NAME=VALUE; one has no name or no '='")
        pairs[name] = text
    return pairs


def _named(source: str, view_name: Callable[[str], str]) -> tuple[str, str]:
    view, sign, topic = source.rpartition("=")
    return (view, topic) if sign else (view_name(topic), topic)


def _read(file: Path | None) -> str:
    assert file is not None
    return file.read_text(encoding="utf-8")
