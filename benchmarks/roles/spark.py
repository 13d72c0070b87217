"""Spark's workers: each has one session and measures in it.

Every role opens its session, checks that both sides give the same result, warms up (Java compiles hot code),
and only then waits for the harness and measures. Comparisons alternate: A B B A.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._payloads import CheckError, make_payloads
from benchmarks._processes import Outcome, Work
from benchmarks.worker import Control
from danube.client.sync import connect
from danube.model.errors import AlreadyExistsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ROLES"]

FILL_STEP = 100_000
MIN_STEPS = 200
"""Messages are stored in at least so many calls, so that they were appended at different times."""
WARM_UPS = 2
ROUNDS = 2
"""How often a comparison goes back and forth."""
_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.002
_STREAM_TIMEOUT_S = 60.0
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n
"""
_SUMS = ("count(*) AS n", "sum(crc32(payload)) AS crc", "sum(offset) AS offsets", "count(key) AS keys")


# --- Sessions ---


@contextmanager
def _session(work: Work, *, master: str = "local[2]") -> Iterator[SparkSession]:
    """A session during the block: tuned, or with Spark's defaults."""
    directory = Path(str(work.settings["directory"]))
    log = directory / "log4j2.properties"
    log.write_text(_LOG4J)
    # The packages of this checkout, wherever Spark starts its Pythons.
    paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYTHONPATH"] = paths
    kind = str(work.settings.get("session", "tuned"))
    java = f"-Dlog4j2.configurationFile={log.as_uri()}"
    config = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory / "spark-local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executorEnv.PYTHONPATH": paths,
        "spark.sql.shuffle.partitions": "2",
    }
    if kind != "default":
        import pyspark_danube

        spark = pyspark_danube.session(
            "benchmark",
            master=master,
            frozen_daemon=kind == "tuned",
            fast_checkpoints=kind == "tuned",
            unchecked_arrow=kind == "tuned",
            class_archive=kind == "archive",
            warm_up=kind == "warm",
            config=config,
        )
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("benchmark").master(master)
        for name, value in config.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        yield spark
    finally:
        spark.stop()


def _danube(spark: SparkSession, work: Work, **options: str) -> DataFrame:
    return spark.read.format("danube").options(servers=work.address, topic=work.topic, **options).load()


def _parquet(spark: SparkSession, work: Work, rows: DataFrame) -> DataFrame:
    """The same rows as Parquet, compressed with zstd; written by the first repetition."""
    path = Path(str(work.settings["directory"])) / f"rows-{work.count}.parquet"
    if not path.exists():
        rows.write.option("compression", "zstd").parquet(str(path))
    return spark.read.parquet(str(path))


def _run_through(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _check(work: Work, **sides: DataFrame) -> None:
    """Compare the contents of both sides with the sent messages.

    Raises:
        CheckError: they differ.
    """
    expected = (work.count, int(work.settings["expected"]), work.count * (work.count - 1) // 2, 0)
    for name, rows in sides.items():
        found = tuple(rows.selectExpr(*_SUMS).collect()[0])
        if found != expected:
            raise CheckError(f"{name}: (count, sum of CRC-32, sum of offsets, keys) is {found} instead of {expected}")


def _row_bytes(rows: DataFrame) -> float:
    """Bytes of a row in Arrow, all columns."""
    table = rows.limit(1_000).toArrow().combine_chunks()
    return float(table.nbytes / table.num_rows)


# --- Comparisons ---


def _seconds(action: Callable[[], object]) -> float:
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def _back_and_forth(control: Control, sides: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Warm up, hold, let all sides take turns as A B B A, hold again; return the mean seconds of each."""
    for _ in range(WARM_UPS):
        for action in sides.values():
            action()
    control.hold()
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(2 * rounds):
        for name in sides if number % 2 == 0 else reversed(sides):
            took[name].append(_seconds(sides[name]))
    control.hold()
    return {name: statistics.fmean(values) for name, values in took.items()}


def _outcome(began: int, count: int, values: dict[str, float]) -> Outcome:
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=count, values=values)


def _scan(work: Work, control: Control) -> Outcome:
    """Scan the topic, and the same rows in Parquet, to Spark's sink that discards all rows."""
    with _session(work) as spark:
        began = control.ready()
        ours = _danube(spark, work)
        theirs = _parquet(spark, work, ours)
        _check(work, danube=ours, parquet=theirs)
        row_bytes = _row_bytes(ours)
        took = _back_and_forth(control, {"danube": lambda: _run_through(ours), "parquet": lambda: _run_through(theirs)})
    rows_per_s = work.count / took["danube"]
    return _outcome(
        began,
        work.count,
        {
            "rows_per_s": rows_per_s,
            "mb_per_s": rows_per_s * row_bytes / 1e6,
            "parquet_rows_per_s": work.count / took["parquet"],
            "times_parquet": took["danube"] / took["parquet"],
            "row_bytes": row_bytes,
        },
    )


def _range(work: Work, control: Control) -> Outcome:
    """Read a range of time, and everything."""
    first_us, last_us = int(work.settings["first_us"]), int(work.settings["last_us"])
    with _session(work) as spark, connect(work.address) as client:
        began = control.ready()
        expected = client.logs.offset_at(work.topic, last_us) - client.logs.offset_at(work.topic, first_us)
        everything = _danube(spark, work)
        bounds = {"startingTimestamp": _iso(first_us), "endingTimestamp": _iso(last_us)}
        part = _danube(spark, work, **bounds)
        _check(work, danube=everything)
        if (found := part.count()) != expected:
            raise CheckError(f"the range of time has {found} messages instead of {expected}")
        took = _back_and_forth(control, {"part": lambda: _run_through(part), "all": lambda: _run_through(everything)})
    return _outcome(
        began,
        work.count,
        {
            "range_ms": took["part"] * 1e3,
            "full_ms": took["all"] * 1e3,
            "share_of_full": took["part"] / took["all"],
            "range_rows": float(expected),
        },
    )


def _iso(time_us: int) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()


def _first(work: Work, control: Control) -> Outcome:
    """Load a topic and fetch a row, as the first query of the session; then once more."""
    if work.settings["session"] == "archive":
        _make_archive(Path(str(work.settings["directory"])))
    starting = time.perf_counter()
    with _session(work) as spark:
        session_s = time.perf_counter() - starting
        began = control.ready()
        control.hold()
        before = time.perf_counter()
        rows = _danube(spark, work)
        loaded = time.perf_counter()
        found = rows.limit(1).collect()
        after = time.perf_counter()
        again = _seconds(lambda: _danube(spark, work).limit(1).collect())
        control.hold()
        _check(work, danube=rows)
    if len(found) != 1 or len(found[0].payload) != work.size:
        raise CheckError(f"instead of one message of {work.size} bytes there are {found}")
    values = {"first_s": after - before, "load_s": loaded - before, "row_s": after - loaded, "again_s": again}
    return _outcome(began, work.count, values | {"session_s": session_s})


def _make_archive(directory: Path) -> None:
    """Make the archive of Spark's classes in the directory of the benchmark, unless an earlier repetition has."""
    from pyspark_danube import class_archive

    os.environ["XDG_CACHE_HOME"] = str(directory)
    if not any(directory.glob("danube/*/spark.jsa")):
        class_archive.make_archive()


# --- Streams ---


def _stream(work: Work, control: Control) -> Outcome:
    """Publish a little to both partitions, and measure the time until a micro-batch contains it; repeatedly."""
    samples, each = int(work.settings["samples"]), work.count
    directory = Path(str(work.settings["directory"])) / f"stream-{work.settings['tag']}"
    payloads = make_payloads(each, work.size)
    waits: list[float] = []
    triggers: list[float] = []
    with _session(work) as spark, connect(work.address) as client:
        began = control.ready()
        with suppress(AlreadyExistsError):
            client.admin.create_topic(work.topic, partitions=2)
        rows = spark.readStream.format("danube").options(
            servers=work.address, topic=work.topic, startingOffsets="earliest"
        )
        query = (
            rows.load().writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint")).start()
        )
        with client.producer(work.topic) as producer:
            for number in range(-max(5, samples // 4), samples):
                if number == 0:
                    control.hold()
                carried = _last_batch(query)
                before = time.perf_counter()
                producer.send_many(payloads)
                trigger_ms = _await_rows(query, carried, each)
                if number >= 0:
                    waits.append((time.perf_counter() - before) * 1e3)
                    triggers.append(trigger_ms)
        control.hold()
        query.stop()
    return _outcome(
        began,
        samples * each,
        {
            "latency_p50_ms": statistics.median(waits),
            "latency_max_ms": max(waits),
            "trigger_p50_ms": statistics.median(triggers),
        },
    )


def _last_batch(query: StreamingQuery) -> int:
    """The number of the last micro-batch that the query has reported; -1 before the first."""
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])


def _await_rows(query: StreamingQuery, after: int, more: int) -> float:
    """Wait until micro-batches after ``after`` contain ``rows`` rows; return the longest duration of one, in ms.

    Raises:
        CheckError: too few rows in time, or too many.
    """
    end = time.monotonic() + _STREAM_TIMEOUT_S
    found: dict[int, tuple[int, float]] = {}
    while (rows := sum(count for count, _ in found.values())) < more:
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > end:
            break
        time.sleep(_POLL_S)
        last = query.lastProgress
        if last is not None and last["batchId"] > after and last["numInputRows"]:
            found[last["batchId"]] = (last["numInputRows"], float(last["durationMs"]["triggerExecution"]))
    if rows != more:
        raise CheckError(f"the stream has carried {rows} of {more} rows within {_STREAM_TIMEOUT_S} s")
    return max(duration for _, duration in found.values())


# --- The sink ---


def _sink(work: Work, control: Control) -> Outcome:
    """Write rows from Parquet into a topic, and into Parquet."""
    directory = Path(str(work.settings["directory"]))
    source = directory / f"payloads-{work.count}.parquet"
    with _session(work) as spark, connect(work.address) as client:
        began = control.ready()
        if not source.exists():
            made = spark.range(0, work.count, 1, 2).selectExpr(f"{_filler(work.size)} AS payload")
            made.write.option("compression", "zstd").parquet(str(source))
        rows = spark.read.parquet(str(source))
        expected = _sums(rows)
        topics: list[str] = []

        def to_topic() -> None:
            topic = f"{work.topic}-{len(topics)}"
            client.admin.create_topic(topic, durability="disk")
            topics.append(topic)
            rows.write.format("danube").options(servers=work.address, topic=topic).mode("append").save()

        def to_parquet() -> None:
            target = str(directory / "written.parquet")
            rows.write.mode("overwrite").option("compression", "zstd").parquet(target)

        took = _back_and_forth(control, {"danube": to_topic, "parquet": to_parquet}, rounds=1)
        reader = spark.read.format("danube").options(servers=work.address, topic=topics[-1])
        if (found := _sums(reader.load())) != expected:
            raise CheckError(f"{topics[-1]} has (count, sum of CRC-32) {found} instead of {expected}")
        for topic in topics:
            client.admin.delete_topic(topic)
    return _outcome(
        began,
        work.count,
        {
            "rows_per_s": work.count / took["danube"],
            "parquet_rows_per_s": work.count / took["parquet"],
            "times_parquet": took["danube"] / took["parquet"],
        },
    )


def _filler(size: int) -> str:
    """An expression for payloads of ``size`` bytes: the number, and hashes of it, which hardly compress."""
    hashes = ", ".join(f"sha2(cast(id + {one} AS string), 256)" for one in range(-(-size // 64)))
    return f"cast(substr(concat(lpad(cast(id AS string), 12, '0'), {hashes}), 1, {size}) AS binary)"


def _sums(rows: DataFrame) -> tuple[int, int]:
    found = rows.selectExpr("count(*)", "sum(crc32(payload))").collect()[0]
    return int(found[0]), int(found[1])


# --- Executors that are processes ---


def _aggregate(work: Work, control: Control) -> Outcome:
    """Aggregate and copy the topic with the configured master; the checksum is over all results."""
    master = str(work.settings["master"])
    directory = Path(str(work.settings["directory"])) / f"stream-{work.settings['tag']}"
    with _session(work, master=master) as spark:
        began = control.ready()
        rows = _danube(spark, work)
        _check(work, danube=rows)
        groups = rows.selectExpr("crc32(payload) % 100 AS bucket", "offset", "length(payload) AS bytes").groupBy(
            "bucket"
        )
        table = groups.agg({"offset": "sum", "bytes": "max", "*": "count"}).orderBy("bucket").collect()
        stream = spark.readStream.format("danube").options(
            servers=work.address, topic=work.topic, startingOffsets="earliest"
        )
        writing = stream.load().writeStream.format("parquet").trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(directory / "checkpoint")).start(str(directory / "rows"))
        query.awaitTermination()
        _check(work, stream=spark.read.parquet(str(directory / "rows")))
        took = _back_and_forth(control, {"scan": lambda: _run_through(rows)}, rounds=1)
        executors = _executors(spark)
    result = zlib.crc32(repr([tuple(row) for row in table]).encode())
    values = {"rows_per_s": work.count / took["scan"], "executors": float(executors)}
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=work.count, checksum=result, values=values)


def _executors(spark: SparkSession) -> int:
    """Number of separate executor processes; 0 if the driver executes tasks."""
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
    return int(status.size()) - 1


# --- Loading ---


def _fill(work: Work, control: Control) -> Outcome:
    """Create the topic and store messages; up to ``settings.uneven`` bytes are cut off each, a varying number.

    The checksum is the sum of the payloads' CRC-32s, which SQL can compute, too.
    """
    uneven = int(work.settings.get("uneven", 0))
    step = max(1, min(FILL_STEP, work.count // MIN_STEPS))
    value = 0
    with connect(work.address) as client:
        client.admin.create_topic(work.topic, durability="disk")
        with client.producer(work.topic, name=str(work.settings["name"]), durability="disk") as producer:
            began = control.ready()
            for first in range(0, work.count, step):
                payloads = _incompressible(min(step, work.count - first), work.size + uneven // 2, first)
                if uneven:
                    payloads = [
                        payload[: len(payload) - (first + place) * 7919 % uneven]
                        for place, payload in enumerate(payloads)
                    ]
                value += sum(map(zlib.crc32, payloads))
                producer.send_many(payloads)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=work.count, checksum=value)


def _incompressible(count: int, size: int, first: int) -> list[bytes]:
    """Create payloads of bytes that are not repeated elsewhere.

    Payloads of the other scenarios are slices of four kilobytes. Parquet would compress these to almost nothing and
    read them from the processor's cache, which is unrealistic.
    """
    noise = random.Random(first).randbytes(count * size)
    return [noise[at : at + size] for at in range(0, count * size, size)]


ROLES: dict[str, Callable[[Work, Control], Outcome]] = {
    "fill": _fill,
    "scan": _scan,
    "range": _range,
    "first": _first,
    "stream": _stream,
    "sink": _sink,
    "aggregate": _aggregate,
}
