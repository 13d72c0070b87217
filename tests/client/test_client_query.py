"""The blocking calls for engines, against a broker in a process of its own."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from brokers import BrokerProcess

from danube.client import _log_range
from danube.client.sync import Client, connect
from danube.history.direct import direct_parts, open_direct
from danube.model.batch import open_records, read_header
from danube.model.errors import InvalidArgumentError, TopicNotFoundError
from danube.model.query_api import RawBatch

T = "/default/t"
SENT = [b"%d" % number for number in range(100)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running, connect(running.url) as client:
        with client.producer(T) as producer:
            for start in range(0, 100, 10):
                producer.send_many(SENT[start : start + 10])
                if start == 50:
                    client.admin.seal_topic(T)
        yield running


@pytest.fixture(params=["asyncio", "trio"])
def client(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with connect(broker.url, backend=request.param) as opened:
        yield opened


def read(client: Client, topic: str, start: int, end: int, **options: int) -> list[RawBatch]:
    with client.logs.read(topic, start, end, **options) as batches:
        return list(batches)


def payloads(batches: list[RawBatch]) -> list[object]:
    return [record for batch in batches for record in open_records(batch.part, read_header(batch.part), 1 << 20)]


def test_a_range_is_read_from_storage_and_broker(client: Client) -> None:
    (state,) = client.logs.states([T])
    assert (state.start_offset, state.sealed_offset, state.end_offset) == (0, 60, 100)
    found = client.logs.parts(T, 15, 85)
    assert (found.start, found.end) == (15, 60)
    with open_direct(state.storage_url) as storage:
        history = list(storage.read_all([(part, found.start, found.end) for part in direct_parts(found)]))
    tail = read(client, T, found.end, 85)
    assert payloads(history) + payloads(tail) == SENT[10:90]
    assert read(client, T, 3, 3) == []
    assert payloads(read(client, T, 0, 100, credit_bytes=100)) == SENT


def test_a_reading_goes_on_when_its_messages_weigh_next_to_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_log_range, "_MOST_MESSAGES", 20)
    found: list[RawBatch] = []

    reading = threading.Thread(target=lambda: found.extend(read(client, T, 0, 100)), daemon=True)
    reading.start()
    reading.join(timeout=10)
    assert not reading.is_alive()
    assert payloads(found) == SENT


def test_a_reading_that_is_left_ends(client: Client) -> None:
    topic = f"/default/left-{uuid.uuid4().hex}"
    with client.producer(topic) as producer:
        for start in range(0, 100, 10):
            producer.send_many(SENT[start : start + 10])
    with client.logs.read(topic, 0, 100, credit_bytes=100) as batches:
        assert next(batches).base_offset == 0
        assert client.admin.describe_topic(topic).readers == 1
    deadline = time.monotonic() + 10
    while client.admin.describe_topic(topic).readers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not client.admin.describe_topic(topic).readers


def test_offsets_by_time(client: Client) -> None:
    batches = read(client, T, 0, 100)
    for batch in batches:
        assert client.logs.offset_at(T, batch.append_time_us) == batch.base_offset
    assert client.logs.offset_at(T, datetime(2000, 1, 1, tzinfo=UTC)) == 0
    assert client.logs.offset_at(T, datetime(2999, 1, 1, tzinfo=UTC)) == 100
    with pytest.raises(InvalidArgumentError, match="no time zone"):
        client.logs.offset_at(T, datetime(2000, 1, 1))


def test_waiting_for_news(client: Client) -> None:
    topic = f"/default/news-{uuid.uuid4().hex}"
    client.admin.create_topic(topic)
    began = time.monotonic()
    (state,) = client.logs.states([topic], beyond={topic: 0}, timeout_s=0.05)
    assert state.end_offset == 0
    assert time.monotonic() - began >= 0.05

    def publish() -> None:
        with client.producer(topic) as producer:
            producer.send(b"news")

    later = threading.Timer(0.1, publish)
    later.start()
    began = time.monotonic()
    (state,) = client.logs.states([topic], beyond={topic: 0}, timeout_s=10)
    later.join()
    assert state.end_offset == 1
    assert time.monotonic() - began < 5


def test_errors_come_as_themselves(client: Client) -> None:
    with pytest.raises(TopicNotFoundError):
        client.logs.states(["/default/missing"])
    with pytest.raises(TopicNotFoundError):
        client.logs.parts("/default/missing")
    with pytest.raises(TopicNotFoundError):
        read(client, "/default/missing", 0, 1)


def test_an_idle_poll_costs_the_broker_next_to_nothing(broker: BrokerProcess, client: Client) -> None:
    """Processor time of the broker while ten polls wait: none of them makes it do anything."""
    topic = f"/default/idle-{uuid.uuid4().hex}"
    client.admin.create_topic(topic)
    polls = [
        threading.Thread(target=client.logs.states, args=([topic],), kwargs={"beyond": {topic: 0}, "timeout_s": 60})
        for _ in range(10)
    ]
    for poll in polls:
        poll.start()
    time.sleep(0.5)
    before = ticks(broker.pid)
    time.sleep(1.0)
    spent = ticks(broker.pid) - before
    with client.producer(topic) as producer:
        producer.send(b"news")
    for poll in polls:
        poll.join()
    assert spent <= 10  # hundredths of a second


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
