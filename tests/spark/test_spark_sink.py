"""The sink: all rows of a batch or none, once, in the partitions of their keys."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brokers import BrokerProcess
from ports import free_port
from sparks import nothing_staged

from danube.client.sync import Client, connect
from danube.model.batch import Record, open_records, read_header
from danube.model.errors import ConnectionLostError, DanubeError, FailedPreconditionError
from danube.model.limits import Limits
from danube.model.names import route_key

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType
from pyspark_danube import DefaultSource
from pyspark_danube._options import write_options
from pyspark_danube._writer import StagedRows, Written, _abort, _commit, batch_writer, stage_rows, stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter


def contents(client: Client, topic: str) -> dict[str, list[Record]]:
    """Return the messages of each partition in order."""
    found = {}
    for state in client.logs.states([topic]):
        records: list[Record] = []
        with client.logs.read(state.name, state.start_offset, state.end_offset) as batches:
            for batch in batches:
                opened = open_records(batch.part, read_header(batch.part), Limits().max_batch_bytes)
                records += [one if isinstance(one, Record) else Record(one) for one in opened]
        found[state.name] = records
    return found


def payloads(client: Client, topic: str) -> list[bytes]:
    return sorted(record.payload for records in contents(client, topic).values() for record in records)


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    frame.write.format("danube").options(servers=broker.url, **options).mode("append").save()


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS payload")


def expected(count: int, start: int = 0) -> list[bytes]:
    return sorted(b"%d" % number for number in range(start, start + count))


def test_rows_become_messages(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    client.admin.create_topic("/default/k-rows", partitions=3)
    frame = spark.range(0, 3_000, 1, 2).selectExpr(
        "concat('user-', id % 50) AS key",
        "encode(CAST(id AS STRING), 'UTF-8') AS payload",
        "CASE WHEN id % 2 = 0 THEN map('n', CAST(id AS STRING), 'v', 'é') END AS attributes",
    )
    write(frame, broker, topic="/default/k-rows")
    found = contents(client, "/default/k-rows")
    assert sorted(int(record.payload) for records in found.values() for record in records) == list(range(3_000))
    for name, records in found.items():
        assert records
        for record in records:
            number = int(record.payload)
            assert record.key == b"user-%d" % (number % 50)
            assert name == f"/default/k-rows-part-{route_key(record.key, 3)}"
            assert record.attributes == ({"n": str(number), "v": "é"} if number % 2 == 0 else None)
        # What one task has of one key stays in its order.
        for key in {record.key for record in records}:
            of_key = [int(record.payload) for record in records if record.key == key]
            for task in (range(1_500), range(1_500, 3_000)):
                assert [n for n in of_key if n in task] == sorted(n for n in of_key if n in task)


def test_a_written_topic_is_read_again(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    frame = spark.range(0, 1_000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key", "encode(concat('p', id), 'UTF-8') AS payload", "map('a', 'b') AS attributes"
    )
    write(frame, broker, topic="/default/k-round-trip")
    columns = ["key", "payload", "attributes"]
    again = spark.read.format("danube").options(servers=broker.url, topic="/default/k-round-trip").load()
    key = lambda row: row.key  # noqa: E731
    assert sorted(again.select(columns).collect(), key=key) == sorted(frame.select(columns).collect(), key=key)


def test_rows_without_a_key_are_spread(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    client.admin.create_topic("/default/k-spread", partitions=2)
    write(numbers(spark, 60_000, tasks=2), broker, topic="/default/k-spread")
    found = contents(client, "/default/k-spread")
    assert payloads(client, "/default/k-spread") == expected(60_000)
    assert min(len(records) for records in found.values()) >= 20_000


def test_partition_and_time_are_those_of_the_rows(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    topic = "/default/k-times"
    client.admin.create_topic(topic, partitions=3)
    frame = spark.range(0, 300, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS payload",
        "CAST(id % 3 AS INT) AS partition",
        "timestamp_micros(1000000000000000 + (id * 7919000001) % 1000000000) AS publish_time",
    )
    write(frame, broker, topic=topic)
    columns = ["partition", "key", "publish_time"]
    again = spark.read.format("danube").options(servers=broker.url, topic=topic).load()
    assert sorted(again.select(columns).collect()) == sorted(frame.select(columns).collect())
    with pytest.raises(Exception, match="for partition 3 of /default/k-times, and its partitions are 0 to 2"):
        write(frame.withColumn("partition", frame.partition + 1), broker, topic=topic)


def test_partitions_may_commit_by_themselves(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    topic = "/default/k-scope"
    client.admin.create_topic(topic, partitions=3)
    scope = {"commitScope": "partition", "producerId": "k-scope", "batchId": "0"}
    frame = spark.range(0, 300, 1, 2).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS payload")
    write(frame.where("id < 100"), broker, topic=topic, **(scope | {"batchId": "0"}))
    assert payloads(client, topic) == expected(100)
    write(frame.where("id < 100"), broker, topic=topic, **scope)
    assert payloads(client, topic) == expected(100)
    write(numbers(spark, 100), broker, topic=topic, commitScope="partition")
    assert payloads(client, topic) == sorted(expected(100) * 2)
    assert nothing_staged(client)


def test_an_interrupted_commit_of_partitions_is_completed_by_a_repetition(
    broker: BrokerProcess, client: Client
) -> None:
    topic = "/default/k-scope-again"
    client.admin.create_topic(topic, partitions=3)
    options = write_options({"servers": broker.url, "topic": topic, "commitScope": "partition"})
    rows = pa.RecordBatch.from_pydict({"key": [str(n) for n in range(60)], "payload": [str(n) for n in range(60)]})
    staged = stage_rows(options, "k-scope-again", 4, iter([rows]))
    assert len(staged.stages) == 3
    _commit(options, "k-scope-again", 4, first_of(staged), "run", "taken")
    assert 0 < len(payloads(client, topic)) < 60
    again = stage_rows(options, "k-scope-again", 4, iter([rows]))
    stages = sorted(again.stages, key=lambda stage: stage.topic)
    assert [stage.stage_id == 0 for stage in stages] == [True, False, False]
    _commit(options, "k-scope-again", 4, again, "run", "taken")
    assert payloads(client, topic) == expected(60)
    _commit(options, "k-scope-again", 4, again, "run", "taken")
    assert payloads(client, topic) == expected(60)
    with pytest.raises(FailedPreconditionError, match="taken"):
        _commit(options, "k-scope-again", 4, staged, "another run", "taken")
    unfinished = stage_rows(options, "k-scope-again", 5, iter([rows]), write_id="w")
    assert len(unfinished.stages) == 3
    _abort(options, "k-scope-again", 5, "w", ())
    assert nothing_staged(client)


def first_of(staged: StagedRows) -> StagedRows:
    """Return what a driver that is killed after its first commit has committed."""
    return replace(staged, stages=(min(staged.stages, key=lambda stage: stage.topic),))


def test_a_repetition_sends_rows_to_the_same_partitions_although_there_are_more(
    broker: BrokerProcess, client: Client
) -> None:
    """By the present number of partitions, some rows were stored twice and others never."""
    topic, producer = "/default/k-scope-more", "k-scope-more"
    client.admin.create_topic(topic, partitions=2)
    options = write_options({"servers": broker.url, "topic": topic, "commitScope": "partition"})
    keys = [str(n) if n % 3 else None for n in range(60)]
    rows = pa.RecordBatch.from_pydict({"key": keys, "payload": [str(n) for n in range(60)]})
    staged = stage_rows(options, producer, 4, iter([rows]))
    _commit(options, producer, 4, first_of(staged), "run", "taken")
    client.admin.expand_topic(topic, 5)
    again = stage_rows(options, producer, 4, iter([rows]))
    with pytest.raises(FailedPreconditionError, match="another query"):
        _commit(options, producer, 4, again, "another run", "another query")
    _commit(options, producer, 4, again, "run", "taken")
    assert payloads(client, topic) == expected(60)
    # The next batch uses all partitions.
    following = stage_rows(options, producer, 5, iter([rows]))
    assert len({stage.topic for stage in following.stages}) == 5
    _commit(options, producer, 5, following, "run", "taken")
    assert payloads(client, topic) == sorted(expected(60) * 2)
    # How the batch before it was routed is not known any more, but it is committed.
    _commit(options, producer, 4, stage_rows(options, producer, 4, iter([rows])), "run", "taken")
    assert payloads(client, topic) == sorted(expected(60) * 2)


def test_rows_that_were_routed_before_a_topic_got_more_partitions_wait_for_a_repetition(
    broker: BrokerProcess, client: Client
) -> None:
    topic, producer = "/default/k-scope-race", "k-scope-race"
    client.admin.create_topic(topic, partitions=2)
    given = {"servers": broker.url, "topic": topic, "commitScope": "partition", "producerId": producer}
    options = write_options(given, streaming=True)
    rows = pa.RecordBatch.from_pydict({"key": [str(n) for n in range(60)], "payload": [str(n) for n in range(60)]})

    def stage() -> StagedRows:
        return stage_rows(options, producer, 0, iter([rows]))

    before = stage()
    client.admin.expand_topic(topic, 3)
    after = stage()
    writer = stream_writer(options, StructType([StructField("payload", StringType())]), overwrite=False)
    with pytest.raises(FailedPreconditionError, match="got more partitions while"):
        writer.commit([Written(producer, before, "run"), Written(producer, after, "run")], 0)
    assert payloads(client, topic) == []
    # A driver that was taken for dead commits in the middle of the repetition.
    _commit(options, producer, 0, first_of(before), "run", "taken")
    stored = payloads(client, topic)
    assert 0 < len(stored) < 60
    with pytest.raises(FailedPreconditionError, match=r"to 2 partitions of .*, and these .* to 3"):
        writer.commit([Written(producer, after, "run")], 0)
    writer.abort([Written(producer, after, "run")], 0)
    assert payloads(client, topic) == stored
    writer.commit([Written(producer, stage(), "run")], 0)
    assert payloads(client, topic) == expected(60)
    assert nothing_staged(client)


def test_a_batch_with_an_identity_is_written_once(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    topic = "/default/k-once"
    for _ in range(2):
        write(numbers(spark, 100), broker, topic=topic, producerId="k-once", batchId="0")
    assert payloads(client, topic) == expected(100)
    write(numbers(spark, 100), broker, topic=topic, producerId="k-once", batchId="1")
    assert len(payloads(client, topic)) == 200
    # The older batch is known, too.
    write(numbers(spark, 100), broker, topic=topic, producerId="k-once", batchId="0")
    assert len(payloads(client, topic)) == 200
    # Without an identity, or without a number, there is no promise.
    for options in ({}, {}, {"producerId": "k-once"}, {"producerId": "k-once"}):
        write(numbers(spark, 10), broker, topic=topic, **options)
    assert len(payloads(client, topic)) == 240
    assert nothing_staged(client)


def test_several_topics_in_one_write(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    client.admin.create_topic("/default/k-even", partitions=2)
    frame = spark.range(0, 1_000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS payload",
        "CASE WHEN id % 2 = 0 THEN '/default/k-even' ELSE '/default/k-odd' END AS topic",
    )
    write(frame, broker, producerId="k-several", batchId="0")
    write(frame, broker, producerId="k-several", batchId="0")
    assert payloads(client, "/default/k-even") == sorted(b"%d" % number for number in range(0, 1_000, 2))
    assert payloads(client, "/default/k-odd") == sorted(b"%d" % number for number in range(1, 1_000, 2))


def test_nothing_is_written_for_no_rows(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    client.admin.create_topic("/default/k-empty")
    for _ in range(2):
        write(numbers(spark, 0), broker, topic="/default/k-empty", producerId="k-empty", batchId="0")
    assert payloads(client, "/default/k-empty") == []


TEXT, NUMBER = StringType(), LongType()


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"id": NUMBER}, {"topic": "/default/k-no"}, "no column 'id'"),
        ({"payload": TEXT, "ky": TEXT}, {"topic": "/default/k-no"}, "did you mean 'key'"),
        ({"payload": NUMBER}, {"topic": "/default/k-no"}, "'payload' is BIGINT"),
        ({"payload": TEXT}, {}, "neither an option 'topic' nor a column 'topic'"),
        ({"payload": TEXT}, {"topic": "/default/k-no", "produserId": "x"}, "did you mean 'producerId'"),
        ({"payload": TEXT}, {"topic": "/default/k-no", "batchId": "1"}, "needs the option producerId|batchId is for"),
        ({"payload": TEXT}, {"topic": "orders"}, "/namespace/topic"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_rows_that_cannot_be_written_are_refused(
    broker: BrokerProcess, columns: dict[str, DataType], options: dict[str, str], message: str, streaming: bool
) -> None:
    source = DefaultSource({"servers": broker.url} | options)
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(DanubeError, match=message):
        (source.streamWriter if streaming else source.writer)(schema, False)


def test_a_refusal_comes_before_anything_runs(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(Exception, match="no column 'id'") as caught:
        write(spark.range(1), broker, topic="/default/k-no")
    assert "Task" not in str(caught.value).split("\n", maxsplit=1)[0]
    overwriting = numbers(spark, 1).write.format("danube").options(servers=broker.url, topic="/default/k-no")
    with pytest.raises(Exception, match="cannot be overwritten"):
        overwriting.mode("overwrite").save()


def test_an_address_without_a_broker_is_reported_at_once() -> None:
    source = DefaultSource({"servers": f"danube://127.0.0.1:{free_port()}", "topic": "/default/k-no"})
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match="check the address"):
        source.writer(StructType([StructField("payload", TEXT)]), False)
    assert time.monotonic() - began < 10.0


def test_a_topic_that_keeps_nothing_is_refused(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    client.admin.create_topic("/default/k-lossy", durability="none")
    with pytest.raises(Exception, match="durability"):
        write(numbers(spark, 1), broker, topic="/default/k-lossy")


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    topic = "/default/k-fails"
    client.admin.create_topic(topic)
    frame = spark.range(0, 40_000, 1, 4).selectExpr(
        "CASE WHEN id < 39000 THEN CAST(id AS STRING) ELSE CAST(raise_error('planted') AS STRING) END AS payload"
    )
    with pytest.raises(Exception, match="planted"):
        write(frame, broker, topic=topic, producerId="k-fails", batchId="3")
    assert payloads(client, topic) == []
    # Not that of a task either that was still at work when the driver gave the write up.
    assert nothing_staged(client)
    assert client.stages.last_batch("k-fails") is None
    write(numbers(spark, 10), broker, topic=topic, producerId="k-fails", batchId="3")
    assert payloads(client, topic) == expected(10)
    assert nothing_staged(client)


def test_an_attempt_too_many_is_dropped(broker: BrokerProcess, client: Client) -> None:
    """What speculation does: two attempts of a task write the same rows, and Spark names one of them."""
    topic = "/default/k-attempts"
    client.admin.create_topic(topic, partitions=2)
    schema = StructType([StructField("payload", StringType())])
    rows = [pa.record_batch({"payload": [f"{number}" for number in range(start, start + 50)]}) for start in (0, 50)]
    options = write_options({"servers": broker.url, "topic": topic, "producerId": "k-attempts", "batchId": "0"})
    writer = pickle.loads(pickle.dumps(batch_writer(options, schema, overwrite=False)))
    first, second, other = (writer.write(iter(batches)) for batches in (rows, rows, rows[:1]))
    assert len(client.stages.describe("k-attempts").stages) == 5
    assert payloads(client, topic) == []
    writer.commit([pickle.loads(pickle.dumps(second)), None])
    assert payloads(client, topic) == expected(100)
    assert client.stages.describe("k-attempts").stages == []
    # The slower attempt comes to its end after the decision.
    assert [stage.stage_id for stage in writer.write(iter(rows)).rows.stages] == [0, 0]
    writer.commit([second])
    writer.abort([first, other])
    assert payloads(client, topic) == expected(100)


def test_the_abort_of_one_of_two_writes_leaves_the_other_alone(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/k-aborts"
    client.admin.create_topic(topic)
    schema = StructType([StructField("payload", StringType())])
    options = write_options({"servers": broker.url, "topic": topic, "producerId": "k-aborts"})
    first, second, third = (
        pickle.loads(pickle.dumps(writer))
        for writer in [batch_writer(options, schema, overwrite=False) for _ in range(3)]
    )
    mine, other = (
        writer.write(iter([pa.record_batch({"payload": [name]})])) for writer, name in ((first, "a"), (second, "b"))
    )
    third.abort([None])  # none of its tasks has come to an end
    second.abort([other, None])
    assert [stage.stage_id for stage in client.stages.describe("k-aborts").stages] == [mine.rows.stages[0].stage_id]
    first.commit([mine])
    assert payloads(client, topic) == [b"a"]
    assert client.stages.describe("k-aborts").stages == []


@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_that_goes_on_behind_the_abort_stages_nothing(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """Spark gives a write up without waiting for its tasks: one of them is half done, and one has not begun."""
    topic = f"/default/k-behind-{streaming}"
    client.admin.create_topic(topic)
    schema = StructType([StructField("payload", StringType())])
    rows = [pa.record_batch({"payload": [f"{number}" * 1000] * 1000}) for number in range(3)]

    class Task:
        """What Spark tells a task of a stream."""

        def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
            known = {"sql.streaming.queryId": "behind", "streaming.sql.batchId": "0"}
            return known.get(name, "8c9f1d2e-7a61-4e0b-9a4c-0f3c8f0f7b11")

    if streaming:
        monkeypatch.setattr("pyspark_danube._writer._task", Task)
        writer: Any = stream_writer(write_options({"servers": broker.url, "topic": topic}), schema, overwrite=False)
        batch: tuple[int, ...] = (0,)
    else:
        options = write_options({"servers": broker.url, "topic": topic, "producerId": "k-behind"})
        writer, batch = pickle.loads(pickle.dumps(batch_writer(options, schema, overwrite=False))), ()
    done = writer.write(iter(rows))

    def slowly() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        writer.abort([done, None], *batch)
        yield from rows[1:]

    for batches in (slowly(), iter(rows)):
        with pytest.raises(FailedPreconditionError, match="aborted"):
            writer.write(batches)
        assert nothing_staged(client)
    assert payloads(client, topic) == []


def test_of_two_writes_that_take_the_same_batch_id_the_second_says_so(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/k-overlap"
    client.admin.create_topic(topic)
    schema = StructType([StructField("payload", StringType())])
    options = write_options({"servers": broker.url, "topic": topic, "producerId": "k-overlap"})
    first, second = (
        pickle.loads(pickle.dumps(writer))
        for writer in [batch_writer(options, schema, overwrite=False) for _ in range(2)]
    )
    mine, other = (
        writer.write(iter([pa.record_batch({"payload": [name]})])) for writer, name in ((first, "a"), (second, "b"))
    )
    first.commit([mine])
    first.commit([mine])  # a repetition of its own, not of another writer
    with pytest.raises(FailedPreconditionError, match=r"a concurrent write.*were not written. Write them again"):
        second.commit([other])
    again = batch_writer(options, schema, overwrite=False)
    again.commit([again.write(iter([pa.record_batch({"payload": ["b"]})]))])
    assert payloads(client, topic) == [b"a", b"b"]
    # A batch without a batch id is never reported as a repetition of one with a batch id.
    numbered = batch_writer(
        write_options({"servers": broker.url, "topic": topic, "producerId": "k-overlap", "batchId": "1"}),
        schema,
        overwrite=False,
    )
    with pytest.raises(FailedPreconditionError, match="in a write without a batchId"):
        numbered.commit([other])


def test_a_commit_is_repeated_until_its_outcome_is_known(tmp_path: Path) -> None:
    schema = StructType([StructField("payload", StringType())])
    rows = [pa.record_batch({"payload": [f"{number}" for number in range(100)]})]
    with BrokerProcess(tmp_path / "data") as process:
        options = write_options({"servers": process.url, "topic": "/default/k-away"}, streaming=True)
        writer = stream_writer(options, schema, overwrite=False)
        with connect(process.url) as client:
            client.admin.create_topic("/default/k-away")
        stages = stage_rows(options, "k-away", 0, iter(rows))
        process.kill()
        restart = threading.Timer(1.0, process.start)
        restart.start()
        for _ in range(2):
            writer.commit([Written("k-away", stages)], 0)
        restart.join()
        with connect(process.url) as client:
            assert payloads(client, "/default/k-away") == expected(100)


# --- Streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    return directory


def put(files: Path, name: str, numbers: range) -> None:
    """Make one file, which is one micro-batch of the streams below."""
    text = "".join(f"{number}\n" for number in numbers)
    hidden = files / f".{name}"
    hidden.write_text(text)
    hidden.rename(files / name)


def lines(spark: SparkSession, files: Path) -> DataFrame:
    return (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(files))
        .withColumnRenamed("value", "payload")
    )


def writing(frame: DataFrame, broker: BrokerProcess, checkpoint: Path, **options: str) -> DataStreamWriter:
    return (
        frame.writeStream.format("danube")
        .options(servers=broker.url, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
    )


def finish(writer: DataStreamWriter) -> list[Any]:
    query = writer.start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    return query.recentProgress


@pytest.mark.parametrize("options", [{}, {"producerId": "k-stream"}])
def test_a_stream_is_written_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, files: Path, options: dict[str, str]
) -> None:
    topic = f"/default/k-stream-{len(options)}"
    checkpoint = tmp_path / "checkpoint"
    options = {"topic": topic} | options
    for batch in range(3):
        put(files, f"{batch}.txt", range(batch * 100, batch * 100 + 100))
    finish(writing(lines(spark, files), broker, checkpoint, **options))
    assert payloads(client, topic) == expected(300)

    # Spark forgets that it has committed, once the last batch and once the last two of them.
    for forgotten in ([2], [1, 2]):
        for batch in forgotten:
            (checkpoint / "commits" / str(batch)).unlink()
            (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
        finish(writing(lines(spark, files), broker, checkpoint, **options))
        assert payloads(client, topic) == expected(300)

    put(files, "3.txt", range(300, 400))
    finish(writing(lines(spark, files), broker, checkpoint, **options))
    assert payloads(client, topic) == expected(400)
    assert nothing_staged(client)
    if "producerId" in options:
        (job,) = [job for job in client.jobs.describe() if job.name == options["producerId"]]
        assert (job.topic, job.rows, job.error) == (topic, 400, ""), "repeated batches were written once"


def test_a_new_checkpoint_under_an_old_name_is_refused(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, files: Path
) -> None:
    topic = "/default/k-new-checkpoint"
    for batch in range(2):
        put(files, f"{batch}.txt", range(batch * 10, batch * 10 + 10))
    finish(writing(lines(spark, files), broker, tmp_path / "one", topic=topic, producerId="k-new"))
    with pytest.raises(Exception, match="set another producerId"):
        finish(writing(lines(spark, files), broker, tmp_path / "two", topic=topic, producerId="k-new"))
    assert payloads(client, topic) == expected(20)
    # Without a name there is no such danger: the query writes what it reads.
    finish(writing(lines(spark, files), broker, tmp_path / "three", topic=topic))
    assert len(payloads(client, topic)) == 40


def test_a_new_checkpoint_is_noticed_whichever_batch_is_its_first(broker: BrokerProcess, client: Client) -> None:
    client.admin.create_topic("/default/k-first")
    given = {"servers": broker.url, "topic": "/default/k-first", "producerId": "k-first"}
    options = write_options(given, streaming=True)
    writer = stream_writer(options, StructType([StructField("payload", StringType())]), overwrite=False)
    rows = [pa.record_batch({"payload": ["a"]})]

    def commit(batch_id: int, query: str) -> None:
        stages = stage_rows(options, "k-first", batch_id, iter(rows))
        writer.commit([Written("k-first", stages, query), Written("k-first", StagedRows(), query)], batch_id)

    commit(0, "one")
    commit(0, "one")  # the driver was killed before it had noted the commit
    with pytest.raises(FailedPreconditionError, match="new checkpoint"):
        commit(0, "two")
    commit(1, "one")
    with pytest.raises(FailedPreconditionError, match="new checkpoint"):
        commit(1, "two")
    writer.commit([Written("k-first", StagedRows(), "two")], 1)  # nothing to lose
    assert payloads(client, "/default/k-first") == [b"a", b"a"]


def test_batches_without_rows_leave_no_trace(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, files: Path
) -> None:
    topic = "/default/k-hollow"
    client.admin.create_topic(topic)
    checkpoint = tmp_path / "checkpoint"
    for batch in range(3):
        put(files, f"{batch}.txt", range(batch * 10, batch * 10 + 10))
    odd = lines(spark, files).where("payload < 10 OR payload >= 20")
    for _ in range(2):
        finish(writing(odd, broker, checkpoint, topic=topic))
        for commit in (checkpoint / "commits").glob("*2*"):
            commit.unlink()
    assert payloads(client, topic) == sorted([*expected(10), *expected(10, 20)])


def test_a_micro_batch_that_fails_is_written_when_it_is_tried_again(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, files: Path
) -> None:
    topic = "/default/k-broken"
    client.admin.create_topic(topic)
    put(files, "0.txt", range(100))
    broken = lines(spark, files).selectExpr(
        "CASE WHEN payload < 99 THEN payload ELSE CAST(raise_error('planted') AS STRING) END AS payload"
    )
    with pytest.raises(Exception, match="planted"):
        finish(writing(broken, broker, tmp_path / "checkpoint", topic=topic))
    assert payloads(client, topic) == []
    finish(writing(lines(spark, files), broker, tmp_path / "checkpoint", topic=topic))
    assert payloads(client, topic) == expected(100)
    assert nothing_staged(client)


def test_a_stream_cannot_be_written_complete(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, files: Path
) -> None:
    put(files, "0.txt", range(10))
    counts = lines(spark, files).groupBy("payload").count().select("payload")
    with pytest.raises(Exception, match="cannot be overwritten"):
        finish(writing(counts, broker, tmp_path / "checkpoint", topic="/default/k-no").outputMode("complete"))
