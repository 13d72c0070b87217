"""Planner, tasks and sink with topics of several brokers; no Java is needed for that."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from brokers import BrokerProcess

from danube.client.sync import Client, connect
from danube.model.errors import FailedPreconditionError, UnavailableError

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from pyspark.sql.types import StructField, StructType
from pyspark_danube._batch import plan_batch
from pyspark_danube._columns import COLUMNS, Columns
from pyspark_danube._filters import Bounds
from pyspark_danube._options import read_options, write_options
from pyspark_danube._reading import read_task
from pyspark_danube._stream import StreamReader
from pyspark_danube._watch import Watch
from pyspark_danube._writer import _commit, stage_rows

T = "/default/t"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    made = [BrokerProcess(tmp_path_factory.mktemp(f"broker{number}")) for number in range(3)]
    peers = ",".join(f"127.0.0.1:{broker.port}" for broker in made)
    for broker in made:
        broker.options = ("--peers", peers)
        broker.launch()
    try:
        assert all(broker.wait_ready() for broker in made)
        yield made
    finally:
        for broker in made:
            broker.kill()


@pytest.fixture(scope="module")
def servers(brokers: list[BrokerProcess]) -> str:
    return "danube://" + ",".join(f"127.0.0.1:{broker.port}" for broker in brokers[:2])


@pytest.fixture(scope="module")
def client(servers: str) -> Iterator[Client]:
    with connect(servers) as opened:
        opened.admin.create_topic(T, partitions=6)
        with opened.producer(T) as producer:
            producer.send_many([b"%d" % n for n in range(600)], keys=[str(n) for n in range(600)])
        yield opened


def rows_of(servers: str, **options: str) -> list[bytes]:
    asked = read_options({"servers": servers, "topic": T} | options)
    columns = Columns(StructType([StructField("payload", COLUMNS["payload"])]))
    tasks = plan_batch(asked, Bounds())
    return [
        row.as_py() for task in tasks for batch in read_task(task, asked, columns) for row in batch.column("payload")
    ]


def test_a_query_reads_the_partitions_of_all_owners(servers: str, client: Client) -> None:
    owners = {owner.address for owner in client.admin.lookup_topic(T).owners}
    assert len(owners) == 3
    assert sorted(rows_of(servers)) == sorted(b"%d" % n for n in range(600))
    assert sorted(rows_of(servers, minPartitions="6")) == sorted(b"%d" % n for n in range(600))


def test_a_stream_watches_the_partitions_of_all_owners(servers: str, client: Client) -> None:
    watch = Watch(read_options({"servers": servers, "topic": T}, streaming=True))
    assert sorted(key.partition for key in watch.logs.states) == list(range(6))


def test_rows_of_several_owners_are_committed_together_once(servers: str, client: Client) -> None:
    rows = pa.RecordBatch.from_pydict({"key": [str(n) for n in range(60)], "payload": [f"all {n}" for n in range(60)]})
    whole = write_options({"servers": servers, "topic": T})
    for _ in range(2):
        _commit(whole, "whole", 0, stage_rows(whole, "whole", 0, iter([rows])), "run", "taken")
    assert sorted(row for row in rows_of(servers) if row.startswith(b"all")) == sorted(b"all %d" % n for n in range(60))


def test_rows_of_several_owners_are_committed_by_partition(servers: str, client: Client) -> None:
    rows = pa.RecordBatch.from_pydict({"key": [str(n) for n in range(60)], "payload": [f"row {n}" for n in range(60)]})
    target = {"servers": servers, "topic": T}
    parts = write_options(target | {"commitScope": "partition"})
    for _ in range(2):
        _commit(parts, "parts", 0, stage_rows(parts, "parts", 0, iter([rows])), "run", "taken")
    assert sorted(row for row in rows_of(servers) if row.startswith(b"row")) == sorted(b"row %d" % n for n in range(60))


def test_a_topic_goes_on_behind_a_declared_gap(servers: str, client: Client, brokers: list[BrokerProcess]) -> None:
    """Last, because a broker does not return."""
    topic, victim = "/default/gone", brokers[2]
    client.admin.create_topic(topic, partitions=6)
    with client.producer(topic) as producer:
        producer.send_many([b"%d" % n for n in range(60)], keys=[str(n) for n in range(60)])
    address = f"127.0.0.1:{victim.port}"
    lost = [owner for owner in client.admin.lookup_topic(topic).owners if owner.address == address]
    assert lost
    (name,) = [row.name for row in client.admin.cluster_status().brokers if row.address == address]
    reader = StreamReader(
        read_options(
            {"servers": servers, "topic": topic, "maxOffsetsPerTrigger": "40", "startingOffsets": "earliest"},
            streaming=True,
        ),
        StructType([StructField("payload", COLUMNS["payload"])]),
    )
    start = reader.initialOffset()
    brokers.remove(victim)
    victim.kill()
    give_up_at = time.monotonic() + 60
    while True:
        try:
            assert client.admin.forget_broker(name, accept_loss=True).accepted
            break
        except (FailedPreconditionError, UnavailableError):  # the others have not noticed yet
            assert time.monotonic() < give_up_at
            time.sleep(0.2)
    with client.producer(topic) as producer:
        kept = {f"after {n}".encode() for n in range(60)}
        producer.send_many(sorted(kept), keys=[str(n) for n in range(60)])
    assert [state.gaps for state in client.logs.states([topic])].count([]) == 6 - len(lost)
    rows = rows_of(servers, topic=topic)
    assert len(rows) == len(set(rows))
    assert kept <= set(rows) <= kept | {b"%d" % n for n in range(60)}

    seen: list[bytes] = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        tasks = reader.partitions(start, end)
        found = [row.as_py() for task in tasks for batch in reader.read(task) for row in batch.column("payload")]
        assert len(found) <= 40
        seen += found
        start = end
    assert sorted(seen) == sorted(rows)
    reader.stop()
