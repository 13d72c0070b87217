"""Topics as streams: offsets, limits, restarts, topics that come and go, and an idle source that is no burden.

What the source decides is tested on the source itself, with a real broker and without Spark; what Spark makes of it,
in the session that all tests share.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from brokers import BrokerProcess
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark_danube._columns import SCHEMA
from pyspark_danube._options import read_options
from pyspark_danube._stream import StreamReader
from sparks import publish

from danube.client.sync import Client, connect
from danube.model.errors import ConfigurationError, DataLossError, TopicNotFoundError
from danube.model.policies import Retention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


# --- The source by itself ---------------------------------------------------------------------------------------------


def source(broker: BrokerProcess, **options: str) -> StreamReader:
    options = {"servers": broker.url, "startingOffsets": "earliest"} | options
    return StreamReader(read_options(options, streaming=True), SCHEMA)


def offsets(position: dict[str, Any], topic: str) -> dict[str, int]:
    found: dict[str, int] = position[topic]
    return found


def rows_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, bytes]]:
    """Read a batch as Spark's executors would: (partition, offset, payload) in order."""
    rows = []
    for task in reader.partitions(start, end):
        away = pickle.loads(pickle.dumps(reader))
        for batch in away.read(pickle.loads(pickle.dumps(task))):
            columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "payload")]
            rows += list(zip(*columns, strict=True))
    return sorted(rows)


def test_a_source_reads_to_the_end_and_then_finds_nothing(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/s-simple", numbered(100))
    reader = source(broker, topic="/default/s-simple")
    start = reader.initialOffset()
    assert offsets(start, "/default/s-simple") == {"0": 0}
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets(end, "/default/s-simple") == {"0": 100}
    assert rows_of(reader, start, end) == [(0, number, b"%d" % number) for number in range(100)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.partitions(end, end) == []


def test_history_and_tail_are_one_stream(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/s-history", numbered(1_000))
    client.admin.seal_topic("/default/s-history")
    publish(client, "/default/s-history", numbered(500, 1_000))
    reader = source(broker, topic="/default/s-history")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows_of(reader, start, end) == [(0, number, b"%d" % number) for number in range(1_500)]


def test_a_batch_that_is_read_again_is_the_same(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/s-again", numbered(100))
    reader = source(broker, topic="/default/s-again")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    publish(client, "/default/s-again", numbered(100, 100))
    client.admin.seal_topic("/default/s-again")
    restarted = source(broker, topic="/default/s-again", startingOffsets="latest")
    saved_start, saved_end = (json.loads(json.dumps(position)) for position in (start, end))
    assert rows_of(restarted, saved_start, saved_end) == [(0, number, b"%d" % number) for number in range(100)]
    assert offsets(restarted.latestOffset(saved_end, ReadAllAvailable()), "/default/s-again") == {"0": 200}


def test_where_a_stream_begins(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/s-begin"
    publish(client, topic, numbered(10))
    time.sleep(0.01)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    publish(client, topic, numbered(10, 10))

    def start(**options: str) -> dict[str, int]:
        reader = StreamReader(read_options({"servers": broker.url, "topic": topic} | options, streaming=True), SCHEMA)
        return offsets(reader.initialOffset(), topic)

    assert start() == {"0": 20}
    assert start(startingOffsets="earliest") == {"0": 0}
    assert start(startingOffsets="latest") == {"0": 20}
    assert start(startingOffsets=json.dumps({topic: {"0": 7}})) == {"0": 7}
    assert start(startingOffsets=json.dumps({topic: {"0": -2}})) == {"0": 0}
    assert start(startingOffsets=json.dumps({topic: {"0": -1}})) == {"0": 20}
    assert start(startingTimestamp=str(between_ms)) == {"0": 10}


def test_a_batch_is_limited_in_messages(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/s-limited"
    publish(client, topic, numbered(1_000), keys=[f"k{number}" for number in range(1_000)], partitions=2)
    reader = source(broker, topic=topic, maxOffsetsPerTrigger="300")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    at = reader.initialOffset()
    counts = []
    while (end := reader.latestOffset(at, limit)) != at:
        counts.append(sum(offsets(end, topic).values()) - sum(offsets(at, topic).values()))
        at = end
    assert counts == [300, 300, 300, 100]
    # Trigger.Once wants all at once.
    assert sum(offsets(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()), topic).values()) == 1_000


def test_a_batch_is_limited_in_bytes(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/s-bytes"
    publish(client, topic, [b"x" * 1_000] * 500)
    client.admin.seal_topic(topic)
    publish(client, topic, [b"x" * 1_000] * 500)
    reader = source(broker, topic=topic, maxBytesPerTrigger="100k")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(102_400)
    at = reader.initialOffset()
    counts = []
    while (end := reader.latestOffset(at, limit)) != at:
        counts.append(offsets(end, topic)["0"] - offsets(at, topic)["0"])
        at = end
    assert sum(counts) == 1_000
    assert 90 <= max(counts) <= 102
    # One message is always taken, however large.
    tiny = source(broker, topic=topic, maxBytesPerTrigger="1")
    start = tiny.initialOffset()
    assert offsets(tiny.latestOffset(start, tiny.getDefaultReadLimit()), topic) == {"0": 1}


def test_an_idle_source_asks_the_broker_for_nothing(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/s-idle", numbered(10))
    reader = source(broker, topic="/default/s-idle")
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    calls: list[str] = []
    watch = reader._watch
    assert watch is not None
    asked = watch.client.logs.states
    watch.client.logs.states = lambda *args, **kwargs: calls.append("states") or asked(*args, **kwargs)  # type: ignore[method-assign]
    began = time.thread_time()
    for _ in range(1_000):
        assert reader.latestOffset(at, ReadAllAvailable()) == at
        assert offsets(reader.reportLatestOffset(), "/default/s-idle") == {"0": 10}
    assert time.thread_time() - began < 1.0
    assert calls == []
    publish(client, "/default/s-idle", numbered(1))
    eventually(lambda: reader.latestOffset(at, ReadAllAvailable()) != at)
    assert len(calls) <= 2


def test_available_now_ends_where_the_topics_ended(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/s-now"
    publish(client, topic, numbered(10))
    reader = source(broker, topicsPattern="/default/s-now.*")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    publish(client, topic, numbered(10, 10))
    publish(client, "/default/s-now-later", numbered(10))
    eventually(lambda: len(reader.reportLatestOffset()) == 3)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end.keys() >= {topic}
    assert offsets(end, topic) == {"0": 10}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    latest = source(broker, topic=topic, startingOffsets="latest")
    latest.prepareForTriggerAvailableNow()
    publish(client, topic, numbered(10, 20))
    at = latest.initialOffset()
    assert latest.latestOffset(at, ReadAllAvailable()) == at


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(
    broker: BrokerProcess, client: Client
) -> None:
    reader = source(broker, topicsPattern="/default/s-come-.*", startingOffsets="latest")
    start = reader.initialOffset()
    publish(client, "/default/s-come-a", numbered(10))
    publish(client, "/default/s-come-b", numbered(10), keys=[str(number) for number in range(10)], partitions=2)

    def known() -> int:
        latest = reader.reportLatestOffset()
        return sum(sum(offsets(latest, topic).values()) for topic in latest["ids"])

    eventually(lambda: known() == 20)  # a topic is told of when it is there, and of its messages when they come
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = rows_of(reader, start, end)
    assert sorted(payload for _, _, payload in rows) == sorted(numbered(10) * 2)


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_is_a_loss(broker: BrokerProcess, client: Client, again: bool) -> None:
    topic, stays = f"/default/s-delete-{again}", f"/default/s-delete-{again}-not"
    for name in (topic, stays):
        publish(client, name, numbered(10))
    strict, loose = (
        source(broker, topicsPattern=f"/default/s-delete-{again}.*", failOnDataLoss=fail) for fail in ("true", "false")
    )
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    assert loose.latestOffset(start, ReadAllAvailable()) == end
    client.admin.delete_topic(topic)
    if again:
        publish(client, topic, numbered(3))
    publish(client, stays, numbered(1, 10))
    wanted = {"0": 11}
    eventually(lambda: offsets(loose.latestOffset(end, ReadAllAvailable()), stays) == wanted)
    after = loose.latestOffset(end, ReadAllAvailable())
    if again:
        assert offsets(after, topic) == {"0": 3}
        assert after["ids"][topic] != end["ids"][topic]
        assert len(rows_of(loose, end, after)) == 4
    else:
        assert topic not in after
    # The batch before cannot be read again as it was.
    assert len(rows_of(loose, start, end)) == 10
    what = "created again" if again else "was deleted after offset 10"
    with pytest.raises(DataLossError, match=f"{what}.*failOnDataLoss=false"):
        eventually(lambda: strict.latestOffset(end, ReadAllAvailable()) == {})
    with pytest.raises(DataLossError, match="was deleted"):
        strict.partitions(start, end)


def test_a_query_whose_topic_was_deleted_is_started_again(broker: BrokerProcess, client: Client) -> None:
    stays, goes = "/default/s-again-stays", "/default/s-again-goes"
    for name in (stays, goes):
        publish(client, name, numbered(10))
    options = {"topics": f"{stays}, {goes}", "failOnDataLoss": "false"}
    begun = source(broker, **options)
    at = begun.latestOffset(begun.initialOffset(), ReadAllAvailable())
    client.admin.delete_topic(goes)
    publish(client, stays, numbered(1, 10))
    again = source(broker, **options)
    after = again.latestOffset(at, ReadAllAvailable())
    assert goes not in after
    assert rows_of(again, at, after) == [(0, 10, b"10")]
    # Without a checkpoint it is a name that is not there.
    with pytest.raises(TopicNotFoundError, match=goes):
        source(broker, **options).initialOffset()


def test_expired_messages_are_a_loss(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/s-expired"
    publish(client, topic, numbered(100))
    reader = source(broker, topic=topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    client.admin.seal_topic(topic)
    publish(client, topic, numbered(50, 100))
    client.admin.change_retention(topic, Retention(max_bytes=1), now=True)
    assert client.logs.states([topic])[0].start_offset == 100
    with pytest.raises(DataLossError, match="offsets 0 to 99 of topic /default/s-expired, partition 0, none exist"):
        reader.partitions(start, end)
    fresh = source(broker, topic=topic)
    with pytest.raises(DataLossError, match="offsets 0 to 99 of topic /default/s-expired, partition 0, have expired"):
        fresh.latestOffset(start, ReadAllAvailable())
    loose = source(broker, topic=topic, failOnDataLoss="false")
    after = loose.latestOffset(start, ReadAllAvailable())
    assert [offset for _, offset, _ in rows_of(loose, start, after)] == list(range(100, 150))


def test_a_foreign_checkpoint_is_refused(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/s-foreign", numbered(1))
    with pytest.raises(ConfigurationError, match="checkpointLocation"):
        source(broker, topic="/default/s-foreign").latestOffset({"logOffset": 3}, ReadAllAvailable())


# --- In Spark ---------------------------------------------------------------------------------------------------------


def stream(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    options = {"servers": broker.url, "startingOffsets": "earliest"} | options
    return spark.readStream.format("danube").options(**options).load()


def run(frame: DataFrame, directory: Path, **trigger: Any) -> StreamingQuery:
    """Write a stream to Parquet files."""
    return (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "table"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**trigger or {"availableNow": True})
        .start()
    )


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def finish(query: StreamingQuery, timeout_s: float = 60.0) -> None:
    with running(query):
        assert query.awaitTermination(timeout_s)


def read_rows(query: StreamingQuery) -> int:
    """Return how many rows a running query has read; it fails with the query."""
    if (error := query.exception()) is not None:
        raise error
    return sum(progress.numInputRows for progress in query.recentProgress)


def table(spark: SparkSession, directory: Path) -> list[tuple[int, bytes]]:
    """Return what was written: offsets and payloads, in the order of the offsets."""
    rows = spark.read.parquet(str(directory / "table")).select("partition", "offset", "payload").collect()
    return sorted((row.partition, row.offset, bytes(row.payload)) for row in rows)


def expected(count: int) -> list[tuple[int, int, bytes]]:
    return [(0, number, b"%d" % number) for number in range(count)]


def test_a_query_goes_on_where_it_has_stopped(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    topic = "/default/s-restart"
    publish(client, topic, numbered(1_000))
    client.admin.seal_topic(topic)
    publish(client, topic, numbered(500, 1_000))
    query = run(stream(spark, broker, topic=topic, maxOffsetsPerTrigger="600"), tmp_path)
    finish(query)
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [600, 600, 300]
    assert table(spark, tmp_path) == expected(1_500)

    publish(client, topic, numbered(700, 1_500))
    # The checkpoint says where to begin, not the option.
    finish(run(stream(spark, broker, topic=topic, startingOffsets="latest"), tmp_path))
    assert table(spark, tmp_path) == expected(2_200)


def test_a_running_query_follows_restarts_of_the_broker_and_tells_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    topic = "/default/s-moving"
    with BrokerProcess(tmp_path / "data", "--storage", f"disk://{tmp_path / 'history'}") as broker:
        with connect(broker.url) as client:
            client.admin.create_topic(topic, partitions=1)
            publish(client, topic, numbered(100))
        frame = stream(spark, broker, topic=topic, maxOffsetsPerTrigger="100")
        with running(run(frame, tmp_path, processingTime="50 milliseconds")) as query:
            eventually(lambda: read_rows(query) == 100)
            broker.kill()
            restart = threading.Timer(0.5, broker.start)
            restart.start()
            restart.join()
            with connect(broker.url) as client:
                publish(client, topic, numbered(250, 100))
                eventually(lambda: read_rows(query) == 350)
                sources = [progress.sources[0] for progress in query.recentProgress if progress.numInputRows]
        assert table(spark, tmp_path) == expected(350)
    lags = [
        sum(json.loads(one.latestOffset)[topic].values()) - sum(json.loads(one.endOffset)[topic].values())
        for one in sources
        if one.latestOffset
    ]
    assert max(lags) > 0
    assert lags[-1] == 0


def test_a_query_fails_when_its_topic_is_deleted(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    topic = "/default/s-gone"
    publish(client, topic, numbered(10))
    finish(run(stream(spark, broker, topic=topic), tmp_path))
    client.admin.delete_topic(topic)
    publish(client, topic, numbered(10))
    with pytest.raises(Exception, match="deleted and created again after offset 10"):
        finish(run(stream(spark, broker, topic=topic), tmp_path))
    finish(run(stream(spark, broker, topic=topic, failOnDataLoss="false"), tmp_path))
    assert len(table(spark, tmp_path)) == 20
