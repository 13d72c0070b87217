"""Batch queries against a broker: every requested message once, from journal and history."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from brokers import BrokerProcess
from sparks import publish

from danube.client.sync import Client, connect
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    StorageNotFoundError,
    TopicNotFoundError,
)
from danube.model.policies import Retention

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark.sql.types import StructField, StructType
from pyspark_danube._batch import plan_batch
from pyspark_danube._columns import COLUMNS, SCHEMA, Columns
from pyspark_danube._filters import Bounds
from pyspark_danube._options import read_options
from pyspark_danube._plan import ReadTask
from pyspark_danube._reading import read_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_numbers = itertools.count()

Read = Callable[..., "DataFrame"]


@pytest.fixture
def topic() -> str:
    return f"/default/batch{next(_numbers)}"


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Read:
    def load(topic: str = "", *, schema: str = "", **options: Any) -> DataFrame:
        reader = spark.read.format("danube").option("servers", broker.url)
        for name, value in ({"topic": topic} if topic else {}).items() | options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    return load


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


# --- Spark reads ---


def test_sealed_and_tail_are_one(client: Client, read: Read, topic: str) -> None:
    before = datetime.now(UTC)
    publish(client, topic, [b"sealed %d" % number for number in range(1000)])
    client.admin.seal_topic(topic)
    keys = [f"k{number}" for number in range(10)]
    publish(client, topic, [b"tail %d" % number for number in range(10)], keys=keys, attributes={"v": "1"}, name="me")
    rows = read(topic).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(1010))
    assert [bytes(row.payload) for row in rows[998:1002]] == [b"sealed 998", b"sealed 999", b"tail 0", b"tail 1"]
    assert ({row.topic for row in rows}, {row.partition for row in rows}) == ({topic}, {0})
    assert (rows[0].key, rows[0].attributes, rows[0].schema_id, rows[0].schema_version) == (None, None, 0, 0)
    assert rows[0].producer
    assert (rows[1009].key, rows[1009].attributes, rows[1009].producer) == ("k9", {"v": "1"}, "me")
    for row in rows:
        assert before <= row.publish_time.astimezone(UTC) <= datetime.now(UTC)
    assert read(topic, includeTail="false").count() == 1000


def test_topics_and_partitions_are_columns(client: Client, read: Read, topic: str) -> None:
    several, plain = f"{topic}-several", f"{topic}-plain"
    client.admin.create_topic(several, partitions=3)
    publish(client, several, [b"x"] * 90, keys=[f"k{number}" for number in range(90)])
    client.admin.seal_topic(several)
    publish(client, plain, [b"y"] * 10)
    by_topic = {several: 90, plain: 10}
    for frame in (read(topics=f"{several},{plain}"), read(topicsPattern=f"{topic}-(several|plain)")):
        counted = frame.groupBy("topic").count().collect()
        assert {row.topic: row["count"] for row in counted} == by_topic
    rows = read(several, schema="partition INT, offset BIGINT").collect()
    assert {row.partition for row in rows} == {0, 1, 2}
    assert len({tuple(row) for row in rows}) == 90


def test_positions_choose_a_range(client: Client, read: Read, topic: str) -> None:
    publish(client, topic, [b"early"] * 100)
    client.admin.seal_topic(topic)
    time.sleep(0.01)
    middle_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    publish(client, topic, [b"late"] * 50)

    def json_of(offset: int) -> str:
        return json.dumps({topic: {"0": offset}})

    both = {"startingOffsets": json_of(40), "endingOffsets": json_of(110)}
    assert offsets(read(topic, **both)) == list(range(40, 110))
    assert offsets(read(topic, startingTimestamp=str(middle_ms))) == list(range(100, 150))
    assert offsets(read(topic, endingTimestamp=str(middle_ms))) == list(range(100))
    iso = datetime.fromtimestamp(middle_ms / 1000, UTC).isoformat()
    assert read(topic, startingTimestamp=iso, endingTimestamp=iso).count() == 0
    assert read(topic, startingOffsets="latest").count() == 0
    assert read(topic, startingOffsets=json_of(120), endingOffsets=json_of(20)).count() == 0


def test_a_column_that_may_not_be_null_is_not_null(client: Client, read: Read, topic: str) -> None:
    publish(client, topic, [b'{"n": 1, "legs": [{"to": "VIE"}]}', b"{}"], keys=["k", None])
    legs = "legs ARRAY<STRUCT<to: STRING NOT NULL>>"
    first = {"endingOffsets": json.dumps({topic: {"0": 1}}), "payloadFormat": "json"}
    row = read(topic, schema=f"key STRING NOT NULL, n INT NOT NULL, {legs}", **first).collect()[0]
    assert (row.key, row.n, row.legs[0].to) == ("k", 1, "VIE")
    for schema, said in (("key STRING NOT NULL", "column 'key'"), (f"n INT NOT NULL, {legs}", "field 'n'")):
        with pytest.raises(Exception, match=rf"offset 1: {said} is null.*NOT NULL"):
            read(topic, schema=schema, payloadFormat="json").collect()


def test_an_empty_topic_is_an_empty_table(client: Client, read: Read, topic: str) -> None:
    client.admin.create_topic(topic)
    frame = read(topic)
    assert frame.columns == list(COLUMNS)
    assert frame.collect() == []


def test_tasks_are_as_many_as_asked_for(client: Client, read: Read, topic: str) -> None:
    publish(client, topic, [bytes(1000)] * 5000)
    client.admin.seal_topic(topic)
    assert read(topic).rdd.getNumPartitions() == 1
    split = read(topic, minPartitions="3")
    assert split.rdd.getNumPartitions() == 3
    assert offsets(split) == list(range(5000))
    small = read(topic, schema="offset BIGINT", targetPartitionBytes="1m")
    assert small.rdd.getNumPartitions() == 5
    assert offsets(small) == list(range(5000))


def test_sql_has_topics_as_views(spark: SparkSession, broker: BrokerProcess, client: Client, topic: str) -> None:
    publish(client, topic, [b'{"user": "ada", "amount": %d}' % number for number in range(10)])
    spark.sql(f"CREATE TEMPORARY VIEW raw USING danube OPTIONS (servers '{broker.url}', topic '{topic}')")
    (row,) = spark.sql("SELECT max(offset) AS last, count(*) AS rows FROM raw").collect()
    assert (row.last, row.rows) == (9, 10)
    spark.sql(
        "CREATE TEMPORARY VIEW opened (offset BIGINT, user STRING, amount DOUBLE) USING danube"
        f" OPTIONS (servers '{broker.url}', topic '{topic}', payloadFormat 'json')"
    )
    (row,) = spark.sql("SELECT user, sum(amount) AS total FROM opened WHERE offset > 0 GROUP BY user").collect()
    assert (row.user, row.total) == ("ada", 45.0)


def test_filters_that_are_pushed_change_nothing_but_the_time(client: Client, read: Read, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    publish(client, topic, [b"x"] * 200, keys=[f"k{number}" for number in range(200)])
    client.admin.seal_topic(topic)
    publish(client, topic, [b"y"] * 20, keys=[f"k{number}" for number in range(20)])
    for condition in (
        "offset >= 10 AND offset < 25 AND partition = 1",
        "offset IN (3, 50) OR partition = 0",
        "topic LIKE '/default/%' AND offset BETWEEN 5 AND 7",
        "publish_time > current_timestamp() - INTERVAL 1 HOUR",
        "publish_time < current_timestamp() - INTERVAL 1 HOUR",
        "topic = '/default/other'",
    ):
        plain = read(topic).where(condition).select("partition", "offset")
        pruned = read(topic, pushdown="true", maxClockSkew="1m").where(condition).select("partition", "offset")
        assert sorted(map(tuple, pruned.collect())) == sorted(map(tuple, plain.collect())), condition


# --- Planning and reading by themselves ---


def tasks_of(broker: BrokerProcess, topic: str, bounds: Bounds | None = None, **options: str) -> list[ReadTask]:
    return plan_batch(read_options({"servers": broker.url, "topic": topic} | options), bounds or Bounds())


def rows_of(broker: BrokerProcess, tasks: list[ReadTask], topic: str, **options: str) -> list[int]:
    asked = read_options({"servers": broker.url, "topic": topic} | options)
    return [
        offset
        for task in tasks
        for batch in read_task(task, asked, Columns(SCHEMA))
        for offset in batch.column("offset").to_pylist()
    ]


def moved(tasks: list[ReadTask]) -> list[ReadTask]:
    """The same plan from a time before the broker has put everything into other objects and deleted these."""
    return [
        ReadTask(
            [
                msgspec.structs.replace(
                    one, parts=tuple(msgspec.structs.replace(part, object=f"{part.object}.old") for part in one.parts)
                )
                for one in task.slices
            ],
            task.storages,
        )
        for task in tasks
    ]


def test_filters_leave_out_what_is_certain(broker: BrokerProcess, client: Client, topic: str) -> None:
    for _ in range(4):
        publish(client, topic, [b"x"] * 100)
        client.admin.seal_topic(topic)
        time.sleep(0.002)
    (task,) = tasks_of(broker, topic, Bounds(offsets=(150, 250)))
    assert [(one.start, one.end, len(one.parts)) for one in task.slices] == [(150, 250, 2)]
    assert tasks_of(broker, topic, Bounds(partitions=(1, 9))) == []
    last_us = task.slices[0].parts[-1].part.last_time_us
    after = Bounds(published_us=last_us + 1)
    (unsure,) = tasks_of(broker, topic, after)
    assert unsure.slices[0].start == 0
    (sure,) = tasks_of(broker, topic, after, maxClockSkew="0s")
    assert sure.slices[0].start == 300


def test_parts_that_were_merged_are_looked_for_again(broker: BrokerProcess, client: Client, topic: str) -> None:
    for _ in range(3):
        publish(client, topic, [b"x"] * 100)
        client.admin.seal_topic(topic)
    publish(client, topic, [b"y"] * 10)
    tasks = moved(tasks_of(broker, topic, minPartitions="2"))
    assert rows_of(broker, tasks, topic) == list(range(310))


def test_messages_that_expired_under_way_count_as_loss(
    broker: BrokerProcess, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        publish(client, topic, [b"x"] * 100)
        client.admin.seal_topic(topic)
        time.sleep(0.002)
    tasks = moved(tasks_of(broker, topic))
    client.admin.change_retention(topic, Retention(max_bytes=tasks[0].slices[0].parts[-1].part.size_bytes), now=True)
    with pytest.raises(DataLossError, match=rf"{topic}, partition 0: offsets \[0, 200\) .*failOnDataLoss=false"):
        rows_of(broker, tasks, topic)
    with caplog.at_level(logging.WARNING, "pyspark_danube"):
        assert rows_of(broker, tasks, topic, failOnDataLoss="false") == list(range(200, 300))
    assert "continues after them" in caplog.text
    # And at the time of planning.
    asked = {"startingOffsets": json.dumps({topic: {"0": 150}})}
    with pytest.raises(DataLossError, match=r"\[150, 200\) have expired; it begins at 200"):
        tasks_of(broker, topic, **asked)
    (task,) = tasks_of(broker, topic, failOnDataLoss="false", **asked)
    assert (task.slices[0].start, task.slices[0].end) == (200, 300)


def test_an_object_that_is_where_it_should_be_and_gone_is_an_error(
    broker: BrokerProcess, client: Client, topic: str
) -> None:
    publish(client, topic, [b"x"] * 100)
    client.admin.seal_topic(topic)
    (task,) = tasks_of(broker, topic)
    history = Path(task.storages["default"].removeprefix("disk://"))
    (history / task.slices[0].parts[0].object).rename(history / "aside")
    try:
        with pytest.raises(StorageNotFoundError, match="reads another storage"):
            rows_of(broker, [task], topic)
    finally:
        (history / "aside").rename(history / task.slices[0].parts[0].object)


def test_a_new_topic_of_the_same_name_is_another_one(broker: BrokerProcess, client: Client, topic: str) -> None:
    publish(client, topic, [b"x"] * 100)
    client.admin.seal_topic(topic)
    tasks = moved(tasks_of(broker, topic))
    client.admin.delete_topic(topic)
    publish(client, topic, [b"y"] * 100)
    with pytest.raises(DataLossError, match="deleted and created again while the query was running"):
        rows_of(broker, tasks, topic)


def test_a_tail_is_that_of_the_topic_that_was_planned(broker: BrokerProcess, client: Client, topic: str) -> None:
    publish(client, topic, [b"x"] * 100)
    tasks = tasks_of(broker, topic)
    client.admin.delete_topic(topic)
    publish(client, topic, [b"y"] * 100)
    with pytest.raises(DanubeError, match="created again"):
        rows_of(broker, tasks, topic)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_topic_that_goes_under_way_is_loss_and_no_end_if_that_is_asked_for(
    broker: BrokerProcess, client: Client, topic: str, caplog: pytest.LogCaptureFixture, sealed: bool, again: bool
) -> None:
    publish(client, topic, [b"x"] * 100)
    if sealed:
        client.admin.seal_topic(topic)
    tasks = moved(tasks_of(broker, topic))
    client.admin.delete_topic(topic)
    if again:
        publish(client, topic, [b"y"] * 200)
    with pytest.raises(DanubeError, match="created again" if again else "does not exist"):
        rows_of(broker, tasks, topic)
    with caplog.at_level(logging.WARNING, "pyspark_danube"):
        assert rows_of(broker, tasks, topic, failOnDataLoss="false") == []
    assert f"{topic}, partition 0: offsets [0, 100) have expired or were lost" in caplog.text


def test_of_a_log_that_got_shorter_under_way_the_rest_is_loss(
    broker: BrokerProcess, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(client, topic, [b"x"] * 100)
    (task,) = tasks_of(broker, topic)
    longer = ReadTask([msgspec.structs.replace(one, end=150) for one in task.slices], task.storages)
    with pytest.raises(DataLossError, match=r"\[100, 150\) are not there"):
        rows_of(broker, [longer], topic)
    with caplog.at_level(logging.WARNING, "pyspark_danube"):
        assert rows_of(broker, [longer], topic, failOnDataLoss="false") == list(range(100))
    assert f"{topic}, partition 0: offsets [100, 150) have expired or were lost" in caplog.text


def test_a_broker_that_is_restarted_under_way_is_waited_for(forgetful: BrokerProcess, topic: str) -> None:
    with connect(forgetful.url) as client:
        publish(client, topic, [bytes(1024)] * 40_000)
    (task,) = tasks_of(forgetful, topic)
    asked = read_options({"servers": forgetful.url, "topic": topic})
    batches = read_task(task, asked, Columns(StructType([StructField("offset", COLUMNS["offset"])])))
    read = next(batches).column("offset").to_pylist()
    forgetful.kill()
    forgetful.start()
    read += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert read == list(range(40_000))


def test_damage_names_object_offset_and_remedy(broker: BrokerProcess, client: Client, topic: str) -> None:
    publish(client, topic, [bytes(100)] * 5000, batch_max_messages=1000)
    client.admin.seal_topic(topic)
    (task,) = tasks_of(broker, topic)
    (part,) = task.slices[0].parts
    path = Path(task.storages["default"].removeprefix("disk://")) / part.object
    good = path.read_bytes()
    at = (part.part.start + part.part.end) // 2
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    try:
        with pytest.raises(DataLossError) as caught:
            rows_of(broker, [task], topic, failOnDataLoss="false")
    finally:
        path.write_bytes(good)
    for said in (part.object, "offset 2000", "restore the object"):
        assert said in str(caught.value)


def test_history_is_read_without_a_broker(
    broker: BrokerProcess, client: Client, topic: str, spark: SparkSession
) -> None:
    for _ in range(2):
        publish(client, topic, [b"x"] * 100)
        client.admin.seal_topic(topic)
        time.sleep(0.002)
    publish(client, topic, [b"tail"] * 10)
    url = next(iter(tasks_of(broker, topic)[0].storages.values()))
    asked = {"storage.url": url, "cluster": "danube", "topic": topic}
    frame = spark.read.format("danube").options(**asked)
    assert offsets(frame.load()) == list(range(200))
    (_, second) = plan_batch(read_options(asked | {"minPartitions": "2"}), Bounds())
    first_us = second.slices[0].parts[0].part.first_time_us
    starting = datetime.fromtimestamp(first_us / 1e6, UTC).isoformat()
    assert offsets(frame.option("startingTimestamp", starting).load()) == list(range(100, 200))
    with pytest.raises(TopicNotFoundError, match="has no history in disk://"):
        plan_batch(read_options(asked | {"topic": "/default/nobody"}), Bounds())


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--storage", "memory://") as process:
        yield process


def test_topics_that_are_never_sealed_are_read_from_the_broker(forgetful: BrokerProcess, topic: str) -> None:
    with connect(forgetful.url) as client:
        publish(client, topic, [b"x"] * 200, durability="os")
        publish(client, f"{topic}-none", [b"x"], durability="none")
    tasks = tasks_of(forgetful, topic, minPartitions="2")
    assert len(tasks) == 2
    assert rows_of(forgetful, tasks, topic) == list(range(200))
    with pytest.raises(FailedPreconditionError, match="stores no messages"):
        tasks_of(forgetful, f"{topic}-none")


def test_topics_of_durability_remote_are_read_whole(broker: BrokerProcess, client: Client, topic: str) -> None:
    for _ in range(3):
        publish(client, topic, [b"x"] * 10, durability="remote")
    assert rows_of(broker, tasks_of(broker, topic), topic) == list(range(30))
