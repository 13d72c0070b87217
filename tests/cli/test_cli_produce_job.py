"""``produce`` with a stand-in for the client: order, routing, pace, count, and skipping on resume."""

from __future__ import annotations

import datetime
import json
import time
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from danube.cli import _produce
from danube.cli._output import Output
from danube.cli._produce import ProduceOptions
from danube.client import OffsetRange, RangeReceipt
from danube.model.api import TopicPartitions
from danube.model.errors import TopicNotFoundError, UnavailableError
from danube.model.names import partition_name, route_key
from danube.model.policies import Durability


class StandInProducer:
    def __init__(self, client, topic, name):
        self.client, self.topic, self.name = client, topic, name
        self.log = client.logs.setdefault(topic, [])
        self.stored_before = [len(client.by_producer.setdefault((topic, name), []))]
        self.sending = 0

    async def send_many(self, payloads, *, key=None, keys=None, **when):
        self.client.when.append(when)
        start = len(self.log)
        records = list(zip(payloads, keys if keys is not None else [key] * len(payloads), strict=True))
        room = self.client.room - sum(map(len, self.client.logs.values()))
        stored = records[: max(0, room)]
        self.log += stored
        self.client.by_producer[self.topic, self.name] += stored
        self.sending += 1
        self.client.most_in_flight = max(self.client.most_in_flight, self.sending)
        await trio.sleep(0.01)
        self.sending -= 1
        if len(stored) < len(records):
            raise UnavailableError("the broker has gone")
        return RangeReceipt([OffsetRange(self.topic, start, len(records))])


class StandInClient:
    def __init__(self, partitions=0, exists=True):
        self.partitions, self.exists = partitions, exists
        self.logs, self.by_producer = {}, {}
        self.room = 10**9
        self.most_in_flight = 0
        self.opened = []
        self.when = []
        self.admin = self  # one object stands for both

    async def lookup_topic(self, topic):
        await trio.lowlevel.checkpoint()
        if not self.exists:
            raise TopicNotFoundError(topic)
        topics = [partition_name(topic, index) for index in range(self.partitions)] or [topic]
        return TopicPartitions(topic, self.partitions, topics, Durability.DISK)

    async def create_topic(self, topic, *, partitions, durability):
        await trio.lowlevel.checkpoint()
        self.exists, self.partitions = True, partitions

    @asynccontextmanager
    async def producer(self, topic, **options):
        self.opened.append((topic, options))
        yield StandInProducer(self, topic, options["name"])


def produce(client, plan):
    tally = _produce.Tally()
    progress = _produce.Progress(None, Output.RAW)
    trio.run(_produce._Job(client, plan, tally, progress).run)
    return tally


def write(tmp_path, lines):
    file = tmp_path / "lines"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return file


def test_lines_arrive_in_order_with_few_sends_in_flight(tmp_path, monkeypatch):
    monkeypatch.setattr(_produce, "_BLOCK_RECORDS", 100)
    lines = [b"%d" % number for number in range(1, 2_345)]
    client = StandInClient()
    tally = produce(client, ProduceOptions(topic="/d/t", file=write(tmp_path, lines)))
    assert [payload for payload, _ in client.logs["/d/t"]] == lines
    assert tally.messages == 2_344
    assert client.most_in_flight == 3
    assert tally.seconds > 0
    tally.seconds = 2.0
    summary = tally.summary()
    assert summary["topics"] == [{"topic": "/d/t", "messages": 2_344, "first_offset": 0, "last_offset": 2_343}]
    assert summary["bytes"] == sum(map(len, lines))
    assert summary["messages_per_s"] == 1_172.0


def test_count_cuts_a_file_and_repeats_texts(tmp_path):
    client = StandInClient()
    produce(client, ProduceOptions(topic="/d/t", file=write(tmp_path, [b"a", b"b", b"c"]), count=2))
    produce(client, ProduceOptions(topic="/d/u", texts=[b"x", b"y"], count=3))
    produce(client, ProduceOptions(topic="/d/v", texts=[b"x", b"y"]))
    assert [payload for payload, _ in client.logs["/d/t"]] == [b"a", b"b"]
    assert [payload for payload, _ in client.logs["/d/u"]] == [b"x", b"y", b"x"]
    assert [payload for payload, _ in client.logs["/d/v"]] == [b"x", b"y"]
    assert produce(client, ProduceOptions(topic="/d/w", texts=[b"x"], count=0)).messages == 0


def test_keys(tmp_path):
    client = StandInClient()
    file = write(tmp_path, [b'{"id": 1}', b'{"id": "b"}', b"{}"])
    produce(client, ProduceOptions(topic="/d/t", file=file, key_field="id"))
    produce(client, ProduceOptions(topic="/d/u", file=file, key="all"))
    assert [key for _, key in client.logs["/d/t"]] == ["1", "b", None]
    assert [key for _, key in client.logs["/d/u"]] == ["all"] * 3


def test_the_time_of_delivery_goes_with_each_send():
    client = StandInClient()
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    produce(client, ProduceOptions(topic="/d/t", texts=[b"x"]))
    produce(client, ProduceOptions(topic="/d/t", texts=[b"x"], deliver_after_s=10.0))
    produce(client, ProduceOptions(topic="/d/t", texts=[b"x"], deliver_at=noon))
    assert client.when == [{}, {"deliver_after_s": 10.0}, {"deliver_at": noon}]


def test_a_rate_is_kept():
    client = StandInClient()
    seconds = trio.run(_timed, client, ProduceOptions(topic="/d/t", texts=[b"x"], count=11, rate=50.0))
    assert seconds >= 0.2
    assert len(client.logs["/d/t"]) == 11


async def _timed(client, plan):
    began = trio.current_time()
    await _produce._Job(client, plan, _produce.Tally(), _produce.Progress(None, Output.RAW)).run()
    return trio.current_time() - began


def test_a_named_producer_gets_its_missing_partitioned_topic():
    client = StandInClient(exists=False)
    produce(client, ProduceOptions(topic="/d/t", texts=[b"x"], count=4, producer_name="till", partitions=2))
    assert [(topic, options["name"]) for topic, options in client.opened] == [
        ("/d/t-part-0", "till-0"),
        ("/d/t-part-1", "till-1"),
    ]
    assert [len(log) for log in client.logs.values()] == [2, 2]


def test_no_thread_reads_the_file_after_a_failure(tmp_path, monkeypatch):
    """It would read whichever file is opened next under the same descriptor."""
    is_reading = False

    def blocks(descriptor, size):
        nonlocal is_reading
        yield [b"first"]
        is_reading = True
        time.sleep(0.2)
        is_reading = False

    monkeypatch.setattr(_produce, "split_blocks", blocks)
    client = StandInClient()
    client.room = 0
    with pytest.raises(BaseExceptionGroup):
        produce(client, ProduceOptions(topic="/d/t", file=write(tmp_path, [b"first"])))
    assert not is_reading


@given(
    keys=st.lists(st.none() | st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=60),
    room=st.integers(0, 60),
    partitions=st.integers(0, 4),
    block=st.integers(1, 20),
)
def test_resume_stores_every_line_once_and_in_order(tmp_path_factory, keys, room, partitions, block):
    lines = [
        json.dumps({"line": number, **({} if key is None else {"key": key})}).encode()
        for number, key in enumerate(keys)
    ]
    file = write(tmp_path_factory.mktemp("resume"), lines)
    client = StandInClient(partitions)
    client.room = room
    plan = ProduceOptions(topic="/d/t", file=file, key_field="key", producer_name="till", resume=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_produce, "_BLOCK_RECORDS", block)
        if room < len(lines):
            with pytest.raises(BaseExceptionGroup):
                produce(client, plan)
        client.room = 10**9
        tally = produce(client, plan)
    stored = sorted(payload for log in client.logs.values() for payload, _ in log)
    assert stored == sorted(lines)
    assert tally.messages + tally.skipped == len(lines)
    assert tally.skipped == (room if room < len(lines) else 0)
    for topic, log in client.logs.items():
        numbers = [json.loads(payload)["line"] for payload, _ in log]
        assert numbers == sorted(numbers)
        if partitions:
            index = int(topic.rpartition("-")[2])
            expected = [
                number % partitions if keys[number] is None else route_key(keys[number], partitions)
                for number in numbers
            ]
            assert expected == [index] * len(numbers)
