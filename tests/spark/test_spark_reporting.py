"""What streaming queries report to the broker: without Spark, but with its classes."""

from __future__ import annotations

import time

import pytest
from brokers import BrokerProcess
from sparks import publish

from danube.client import sync
from danube.client.sync import Client, Jobs
from danube.model.errors import DataLossError, PermissionDeniedError
from danube.model.ids import Offset, TopicId
from danube.model.job_api import Job
from danube.model.policies import Durability
from danube.model.query_api import LogState

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from pyspark_danube._options import read_options, write_options
from pyspark_danube._positions import LogKey, Position
from pyspark_danube._reporting import MAX_TOPICS, Reporter, Standing, standings
from pyspark_danube._stream import StreamReader
from pyspark_danube._writer import Written, stage_rows, stream_writer

A, B = LogKey("/default/a", 0), LogKey("/default/a", 1)


def state(key: LogKey, start: int, end: int, topic_id: int = 1) -> LogState:
    return LogState(
        name=f"{key.topic}-{key.partition}",
        topic=key.topic,
        partition=key.partition,
        topic_id=TopicId(topic_id),
        durability=Durability.DISK,
        start_offset=Offset(start),
        sealed_offset=Offset(start),
        end_offset=Offset(end),
        storage="default",
        storage_url="",
    )


def test_rows_and_lag_are_sums_over_partitions() -> None:
    first = {A: Position(Offset(5), TopicId(1)), B: Position(Offset(0), TopicId(1))}
    now = {A: Position(Offset(9), TopicId(1)), B: Position(Offset(3), TopicId(1))}
    found = standings(first, now, {A: state(A, 0, 10), B: state(B, 0, 10)})
    assert found == {"/default/a": Standing(4 + 3, 1 + 7)}


def test_new_and_recreated_logs_and_expired_messages_count_from_their_start() -> None:
    first = {A: Position(Offset(5), TopicId(1))}
    now = {A: Position(Offset(9), TopicId(1))}
    assert standings(first, now, {A: state(A, 2, 6, topic_id=2)}) == {"/default/a": Standing(0, 4)}
    assert standings(first, now, {A: state(A, 20, 26)}) == {"/default/a": Standing(4, 6)}
    assert standings({}, {}, {B: state(B, 3, 7)}) == {"/default/a": Standing(0, 4)}
    assert standings(first, now, {}) == {}


def eventually_listed(client: Client, name: str, rows: int) -> Job:
    give_up_at = time.monotonic() + 60
    while True:
        found = [job for job in client.jobs.describe() if job.name == name]
        if found and found[0].rows >= rows:
            return found[0]
        assert time.monotonic() < give_up_at, found
        time.sleep(0.05)


def test_a_reporter_reports_rows_once_and_errors_at_once(client: Client) -> None:
    reporter = Reporter(client, "etl", every_s=0.2)
    reporter.note({"/default/reported": Standing(10, 5)})
    assert eventually_listed(client, "etl", 10).lag == 5
    reporter.note({"/default/reported": Standing(30, 0)})
    eventually_listed(client, "etl", 30)
    time.sleep(0.5)
    reporter.failed(ValueError("no such column"))
    reporter.end()
    job = eventually_listed(client, "etl", 30)
    assert (job.rows, job.error, job.kind) == (30, "no such column", "spark-read")


def test_a_reporter_that_may_not_report_stops(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(self: Jobs, name: str, topic: str, **_fields: object) -> None:
        if name == "mute":
            calls.append(topic)
        raise PermissionDeniedError("no right to produce")

    monkeypatch.setattr(Jobs, "report", refuse)
    reporter = Reporter(client, "mute", every_s=0.05)
    reporter.note({f"/default/many-{number}": Standing(0, number) for number in range(2 * MAX_TOPICS)})
    time.sleep(1)
    reporter.end()
    assert calls == [f"/default/many-{2 * MAX_TOPICS - 1}"]


def test_a_source_is_listed_with_its_lag_and_what_has_ended_it(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/report-in"
    publish(client, topic, [b"%d" % number for number in range(100)])
    given = {"servers": broker.url, "topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    schema = StructType([StructField("payload", BinaryType())])
    reader = StreamReader(read_options(given | {"jobName": "copy"}, streaming=True), schema)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    job = eventually_listed(client, "copy", 0)
    assert (job.topic, job.kind, job.rows, job.lag, job.missing) == (topic, "spark-read", 0, 100, False)
    assert reader.partitions(start, middle)
    reader.latestOffset(middle, reader.getDefaultReadLimit())
    client.admin.delete_topic(topic)
    with pytest.raises(DataLossError):
        reader.partitions(middle, middle | {topic: {"0": 80}})
    job = eventually_listed(client, "copy", 40)
    assert (job.rows, job.lag) == (40, 60)
    assert "was deleted" in job.error


def test_a_sink_is_listed_with_what_it_has_committed_and_dropped(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/report-out"
    client.admin.create_topic(topic, partitions=2)
    options = write_options({"servers": broker.url, "topic": topic, "producerId": "copy-sink"}, streaming=True)
    writer = stream_writer(options, StructType([StructField("payload", StringType())]), overwrite=False)
    rows = pa.record_batch({"payload": ["a", "b", "c"]})

    def written(batch_id: int) -> Written:
        return Written("copy-sink", stage_rows(options, "copy-sink", batch_id, iter([rows])), "query")

    writer.commit([written(0)], 0)
    writer.commit([written(0)], 0)
    writer.commit([written(1)], 1)
    job = eventually_listed(client, "copy-sink", 6)
    assert (job.topic, job.kind, job.rows, job.lag, job.error) == (topic, "spark-write", 6, None, "")
    writer.abort([written(2)], 2)
    job = eventually_listed(client, "copy-sink", 6)
    assert (job.rows, job.error) == (6, "batch 2 has failed, and its rows were dropped")


def test_a_reporter_whose_client_is_closed_ends_quietly(broker: BrokerProcess) -> None:
    with sync.connect(broker.url) as client:
        reporter = Reporter(client, "closed", every_s=0.05)
    reporter.note({"/default/report-closed": Standing(1, 2)})
    reporter._thread.join(30)
    assert not reporter._thread.is_alive()
