# ruff: noqa: SIM117, PT012 - a nested "async with" shows what is inside of what
"""Producers against a small broker, over a real socket."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import trio
import trio.lowlevel
from fake_broker import FakeBroker, FakeTopic, running_broker, wait_until

import danube
from danube.client import Client, Environment, Producer
from danube.model.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DurabilityMismatchError,
    InvalidArgumentError,
    JournalFullError,
    LimitExceededError,
    MessageTooLargeError,
    ProducerFencedError,
    UnavailableError,
)
from danube.model.names import route_key

TOPIC = "/default/orders"
FAST = {"reconnect_initial_s": 0.01, "reconnect_max_s": 0.05}


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(start, start + count)]


async def test_send_returns_offsets() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
        assert (await producer.send(b"a")).offset == 0
        receipt = await producer.send(bytearray(b"b"), key="k", attributes={"x": "1"})
        assert (receipt.topic, receipt.offset, receipt.partition) == (TOPIC, 1, 0)
        assert producer.partitions == 0
    assert broker.topic(TOPIC).payloads() == [b"a", b"b"]
    assert broker.opens[0].anonymous
    assert broker.opens[0].producer_name.startswith("producer-")


@pytest.mark.parametrize("count", [1, 7, 1_000, 1_001, 40_000])
async def test_send_many_gives_one_range(count: int) -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"before")
        receipt = await producer.send_many(numbered(count))
        assert [(one.start, one.count) for one in receipt.ranges] == [(1, count)]
        assert receipt.count == count
        assert (await producer.send_many([])).ranges == []
    assert broker.topic(TOPIC).payloads() == [b"before", *numbered(count)]


async def test_batches_stay_below_their_size() -> None:
    sizes = [10, 5_000, 20, 20_000, 9_000, 1] * 400
    payloads = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.producer(TOPIC, batch_max_bytes=30_000) as producer:
            await producer.send_many(payloads)
            await producer.send_many(payloads, key="k")
            await producer.send_many(payloads[:900])
    assert broker.topic(TOPIC).payloads() == [*payloads, *payloads, *payloads[:900]]
    assert max(len(part) for _, part in broker.received) < 30_000 + 100
    assert len(broker.received) < 2 * sum(map(len, payloads)) // 10_000


async def test_overlapping_sends_travel_together() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.producer(TOPIC) as producer, trio.open_nursery() as nursery:
            for payload in numbered(200):
                nursery.start_soon(producer.send, payload)
    assert sorted(broker.topic(TOPIC).payloads()) == sorted(numbered(200))
    assert len(broker.received) < 20


async def test_several_batches_are_in_flight() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.hold_acks = trio.Event()
        async with client.producer(TOPIC, max_in_flight_batches=4, batch_max_bytes=200) as producer:
            pending = [producer.send_nowait(b"x" * 90) for _ in range(20)]
            await wait_until(lambda: len(producer._lanes[0].outbox.flight) >= 4)
            await trio.sleep(0.02)
            assert len(producer._lanes[0].outbox.flight) == 4
            assert not pending[0].done
            broker.hold_acks.set()
            assert [(await one).offset for one in pending] == list(range(20))


async def test_the_buffer_has_a_limit() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.hold_acks = trio.Event()
        async with client.producer(TOPIC, max_buffered_bytes=1_000) as producer:
            with pytest.raises(LimitExceededError, match="max_buffered_bytes = 1000"):
                for _ in range(100):
                    producer.send_nowait(b"x" * 100)
            with trio.move_on_after(0.05) as scope:
                await producer.send(b"waits")
            assert scope.cancelled_caught
            broker.hold_acks.set()
            await producer.send(b"goes")
    assert b"waits" not in broker.topic(TOPIC).payloads()
    assert broker.topic(TOPIC).payloads()[-1] == b"goes"


async def test_wrong_payloads_are_refused_with_advice() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(InvalidArgumentError, match="not str; encode it"):
            await producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"\$\[1\]"):
            await producer.send_many([b"a", "b"])  # type: ignore[list-item]
        with pytest.raises(InvalidArgumentError, match="sequence of bytes"):
            await producer.send_many(b"abc")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="3 payloads and 2 keys"):
            await producer.send_many([b"a"] * 3, keys=["x", "y"])
        with pytest.raises(InvalidArgumentError, match="a key is text"):
            await producer.send(b"a", key=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="attributes are text"):
            await producer.send(b"a", attributes={"a": 1})  # type: ignore[dict-item]
        half = "\ud800"  # of a character: JSON and file names may have it, UTF-8 has not
        for wrong in ({"key": half}, {"attributes": {"a": half}}, {"attributes": {half: "a"}}):
            with pytest.raises(InvalidArgumentError, match="not valid Unicode"):
                await producer.send(b"a", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="not valid Unicode"):
            await producer.send_many([b"a", b"b"], keys=["ä", half])
        large = bytes(11 * 2**20)
        with pytest.raises(MessageTooLargeError, match="max_message_bytes = 10485760"):
            producer.send_nowait(large)
        with pytest.raises(MessageTooLargeError, match="message 2 of send_many"):
            await producer.send_many([b"a", b"b", large])
        with pytest.raises(MessageTooLargeError, match="message 1500 of send_many"):
            await producer.send_many([b"a"] * 1_500 + [large])
        assert (await producer.send(b"fine")).offset >= 0


async def test_a_large_message_travels_alone() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send_many([b"a", bytes(9 * 2**20), b"b"])
    assert [len(payload) for payload in broker.topic(TOPIC).payloads()] == [1, 9 * 2**20, 1]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compression(compression: str) -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.producer(TOPIC, compression=compression) as producer:  # type: ignore[arg-type]
            await producer.send(b"a" * 100_000)
    assert len(broker.received[0][1]) < 2_000
    async with client_of(broker.topics[TOPIC]) as (client, _):
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert (await consumer.receive()).payload == b"a" * 100_000


def client_of(topic: FakeTopic):  # type: ignore[no-untyped-def]
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened():  # type: ignore[no-untyped-def]
        broker = FakeBroker()
        broker.topics[topic.name] = topic
        async with running_broker(broker), danube.connect(broker.url) as client:
            yield client, broker

    return opened()


# --- Reconnecting


async def test_nothing_is_lost_or_stored_twice_when_connections_break() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        lost = {3, 40, 41, 90}
        broker.lose_answer = lambda header: header.base_sequence in lost and not lost.discard(header.base_sequence)
        async with client.producer(TOPIC, name="p") as producer:
            pending = []
            for payload in numbered(200):
                pending.append(producer.send_nowait(payload))
                await trio.lowlevel.checkpoint()
                if len(pending) in (100, 150):
                    await broker.cut()
            offsets = [(await one).offset for one in pending]
    assert broker.topic(TOPIC).payloads() == numbered(200)
    assert offsets == list(range(200))
    by_sequence: dict[int, bytes] = {}
    for sequence, part in broker.received:
        assert by_sequence.setdefault(sequence, part) == part, "a retry must carry identical bytes"
    assert len(broker.received) > len(by_sequence)
    assert [one.resume_epoch for one in broker.opens[:2]] == [0, 1]


async def test_a_broker_that_stays_away_is_told_after_a_while() -> None:
    async with running_broker() as broker, danube.connect(broker.url, reconnect_timeout_s=0.1, **FAST) as client:
        with pytest.raises(ConnectionLostError, match=r"reconnect_timeout_s = 0\.1"):
            async with client.producer(TOPIC) as producer:
                broker.accepting = False
                await broker.cut()
                await producer.send(b"a")
        broker.accepting = True
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"b")).offset == 0


async def test_a_wrong_address_is_told_at_once() -> None:
    with pytest.raises(ConnectionLostError, match="check the address"):
        async with danube.connect("danube://127.0.0.1:1"):
            pytest.fail("must not connect")


async def test_the_second_address_is_tried() -> None:
    async with running_broker() as broker:
        async with danube.connect(f"danube://127.0.0.1:1,127.0.0.1:{broker.port}") as client:
            assert client.connected


async def test_opening_is_repeated_while_the_broker_starts() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        broker.open_errors = [UnavailableError("starting"), UnavailableError("starting")]
        async with client.producer(TOPIC) as producer:
            await producer.send(b"a")
    assert len(broker.opens) == 3


async def test_an_open_that_cannot_succeed_raises() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.open_errors = [DurabilityMismatchError("it is disk")]
        with pytest.raises(DurabilityMismatchError, match="it is disk"):
            async with client.producer(TOPIC, durability="none"):
                pytest.fail("must not open")
        for wrong in ({"durability": "wet"}, {"access": "mine"}, {"batch_max_bytes": 0}):
            with pytest.raises(InvalidArgumentError):
                async with client.producer(TOPIC, **wrong):  # type: ignore[arg-type]
                    pytest.fail("must not open")


# --- Refusals


async def test_fencing_is_final() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.producer(TOPIC, name="p") as second_wins:
            await second_wins.send(b"a")
            async with client.producer(TOPIC, name="p") as newer:
                assert newer.stored_before == [1]
                await newer.send(b"b")
                with pytest.raises(ProducerFencedError):
                    await second_wins.send(b"c")
                with pytest.raises(ProducerFencedError):
                    second_wins.send_nowait(b"d")
                await newer.send(b"e")
    assert broker.topic(TOPIC).payloads() == [b"a", b"b", b"e"]


async def test_a_full_journal_is_waited_for() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        refusals = [JournalFullError("full")] * 3
        broker.before_store = lambda header: refusals.pop() if refusals and header.base_sequence else None
        async with client.producer(TOPIC, batch_max_messages=1) as producer:
            pending = [producer.send_nowait(payload) for payload in numbered(30)]
            assert [(await one).offset for one in pending] == list(range(30))
    assert broker.topic(TOPIC).payloads() == numbered(30)


async def test_a_refused_batch_fails_alone_and_flush_tells() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        bad = {4, 9}
        broker.before_store = lambda header: InvalidArgumentError("no") if header.base_sequence in bad else None
        async with client.producer(TOPIC, batch_max_messages=1) as producer:
            pending = [producer.send_nowait(payload) for payload in numbered(12)]
            with pytest.raises(InvalidArgumentError, match="no"):
                await pending[4]
            bad.discard(4)
            assert (await pending[5]).offset == 4
            with pytest.raises(InvalidArgumentError, match="no"):
                await producer.flush()
            bad.clear()
            await producer.flush()
            await producer.send(b"last")
    stored = broker.topic(TOPIC).payloads()
    assert b"4" not in stored
    assert stored[-1] == b"last"


async def test_the_details_of_a_refusal_reach_the_application() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.before_store = lambda header: InvalidArgumentError("no", {"why": "a test"})
        async with client.producer(TOPIC) as producer:
            with pytest.raises(InvalidArgumentError) as caught:
                await producer.send(b"x")
            assert caught.value.details == {"why": "a test"}


# --- Partitions


async def test_keys_choose_partitions_and_other_messages_go_round() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.partitioned[TOPIC] = 4
        keys = [f"user-{index}" for index in range(50)]
        async with client.producer(TOPIC, name="p") as producer:
            assert producer.partitions == 4
            for key in keys[:5]:
                receipt = await producer.send(key.encode(), key=key)
                assert receipt.partition == route_key(key, 4) == producer.partition_for(key)
                assert receipt.topic == f"{TOPIC}-part-{receipt.partition}"
            result = await producer.send_many([key.encode() for key in keys], keys=keys)
            assert result.count == 50
            plain = {(await producer.send(b"x")).partition for _ in range(8)}
            assert plain == {0, 1, 2, 3}
            many = await producer.send_many([b"y"] * 5_000 + [bytes(2**20)] * 3)
            assert {one.partition for one in many.ranges} == {0, 1, 2, 3}
        for key in keys:
            assert key.encode() in broker.topic(f"{TOPIC}-part-{route_key(key, 4)}").payloads()
        assert sorted(one.producer_name for one in broker.opens) == [f"p-{index}" for index in range(4)]


async def test_partitions_are_created_by_opening() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.producer(TOPIC, partitions=3) as producer:
            await producer.send(b"a")
    assert (broker.opens[0].topic, broker.opens[0].partitions) == (f"{TOPIC}-part-0", 3)
    assert len(broker.opens) == 3


# --- Ends


async def test_leaving_the_block_flushes() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.producer(TOPIC) as producer:
            last = [producer.send_nowait(payload) for payload in numbered(1_000)][-1]
        assert (await last).offset == 999
        with pytest.raises(ClosedError):
            await producer.send(b"x")
        with pytest.raises(ClosedError):
            producer.send_nowait(b"x")


async def test_an_exception_in_the_block_comes_out_as_it_is() -> None:
    async with running_broker() as broker:
        with pytest.raises(ZeroDivisionError):
            async with danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
                broker.hold_acks = trio.Event()
                pending = producer.send_nowait(b"x")
                raise ZeroDivisionError
        with pytest.raises(ClosedError):
            await pending


async def test_timeouts() -> None:
    async with running_broker() as broker, danube.connect(broker.url, close_timeout_s=0.05) as client:
        broker.hold_acks = trio.Event()
        with pytest.raises(DeadlineExceededError, match="close_timeout_s"):
            async with client.producer(TOPIC, send_timeout_s=0.05) as producer:
                with pytest.raises(DeadlineExceededError, match="send_timeout_s"):
                    await producer.send(b"x")
                with pytest.raises(DeadlineExceededError, match="2 messages"):
                    await producer.send_many([b"x", b"y"])


async def _send_all(producer: Producer, step: int) -> None:
    await producer.send(b"%d-a" % step)
    await producer.send_many([b"%d-b" % step, b"%d-c" % step], keys=["x", None])
    producer.send_nowait(b"%d-d" % step)
    await producer.flush()


class _Ticks(trio.abc.Instrument):
    """Cancels a scope after a number of scheduler turns."""

    def __init__(self, scope: trio.CancelScope, turns: int) -> None:
        self.scope, self.turns = scope, turns

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.turns -= 1
        if self.turns == 0:
            self.scope.cancel()


async def test_cancelling_at_any_point_sends_whole_messages_in_order() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
        step = 0
        finished = False
        while not finished:
            step += 1
            with trio.CancelScope() as scope:
                ticks = _Ticks(scope, step)
                trio.lowlevel.add_instrument(ticks)
                try:
                    await _send_all(producer, step)
                    finished = True
                finally:
                    trio.lowlevel.remove_instrument(ticks)
        assert step > 5
        await producer.send(b"end")
    stored = broker.topic(TOPIC).payloads()
    assert stored[-1] == b"end"
    assert len(set(stored)) == len(stored)
    for index in range(1, step + 1):
        mine = [payload[-1:] for payload in stored if payload.startswith(b"%d-" % index)]
        assert mine in ([], [b"a"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"])
    numbers = [int(payload.split(b"-")[0]) for payload in stored[:-1]]
    assert all(first <= second for first, second in pairwise(numbers))


async def test_opening_can_be_cancelled_anywhere() -> None:
    async with running_broker() as broker:
        for turns in range(1, 60, 3):
            with trio.CancelScope() as scope:
                ticks = _Ticks(scope, turns)
                trio.lowlevel.add_instrument(ticks)
                try:
                    async with danube.connect(broker.url) as client:
                        await _use(client)
                finally:
                    trio.lowlevel.remove_instrument(ticks)
        async with danube.connect(broker.url) as client:
            await _use(client)


async def _use(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x")


async def test_delayed_messages_carry_their_time() -> None:
    clock = iter(range(1_700_000_000_000_001, 1_800_000_000_000_000, 100))
    environment = Environment(clock_us=lambda: next(clock))
    due = datetime(2030, 1, 1, tzinfo=UTC)
    async with running_broker() as broker, danube.connect(broker.url, environment=environment) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"at", deliver_at=due)
            await producer.send(b"after", key="k", deliver_after_s=1.5)
            await producer.send(b"now", deliver_after_s=0)
            await producer.send_many([b"m"] * 3, deliver_at=due)
            await producer.send_many([b"m"] * 3, key="k", deliver_at=due)
            await producer.send_many([b"m"] * 2_000, deliver_at=due)
            for wrong in (
                {"deliver_at": datetime(2030, 1, 1)},
                {"deliver_after_s": -1.0},
                {"deliver_after_s": math.inf},
                {"deliver_at": due, "deliver_after_s": 1.0},
            ):
                with pytest.raises(InvalidArgumentError, match="deliver_"):
                    producer.send_nowait(b"x", **wrong)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgumentError, match="deliver_"):
                    await producer.send(b"x", **wrong)  # type: ignore[arg-type]
    headers = [batch.header for batch in broker.topic(TOPIC).batches]
    due_us = 1_893_456_000_000_000
    assert [header.deliver_at_us for header in headers[:1] + headers[2:]] == [due_us, 0, due_us, due_us, due_us]
    assert 1_700_000_001_500_000 < headers[1].deliver_at_us <= 1_700_000_001_502_000
    assert headers[1].deliver_at_us % 1_000 == 0
    assert [header.record_count for header in headers] == [1, 1, 1, 3, 3, 2_000]


async def test_delayed_messages_of_one_turn_share_a_batch() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.partitioned[TOPIC] = 2
        async with client.producer(TOPIC) as producer:
            due = datetime(2030, 1, 1, tzinfo=UTC)
            for index in range(100):
                producer.send_nowait(b"%d" % index, key="k", deliver_at=due)
            await producer.flush()
    stored = [batch for index in range(2) for batch in broker.topic(f"{TOPIC}-part-{index}").batches]
    assert len(stored) <= 2
    assert sum(batch.header.record_count for batch in stored) == 100
