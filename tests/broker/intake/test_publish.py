"""Publishing: offsets, idempotence by name, epoch and sequence, and invalid input."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
import trio
from broker.broker_harness import RawProducer, raw_consumer, raw_producer, read_all, running_broker, take, wait_until

from danube.broker.intake.effective_policies import stack
from danube.model import Rate, TopicPolicies, api
from danube.model.batch import PART_HEADER_SIZE, BatchFlags, BatchHeader, Codec, read_header, seal_part
from danube.model.errors import (
    BrokerDrainingError,
    CorruptBatchError,
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    MessageTooLargeError,
    NotOwnerError,
    ProducerFencedError,
    Status,
    UnimplementedError,
)
from danube.model.limits import KIB
from danube.wire import connect_channel

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


def with_header(part: bytes, **changed: int) -> bytes:
    """The same batch with another header and a checksum that fits it."""
    header: BatchHeader = read_header(part)
    return seal_part(header._replace(**changed), part[PART_HEADER_SIZE:-4])


async def test_offsets_are_dense_with_many_batches_in_flight(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with running.channel() as channel, raw_producer(channel, TOPIC) as producer:
            sequence = 0
            sizes = [1 + number % 7 for number in range(60)]
            for size in sizes:
                producer.send(sequence, *(b"%d" % (sequence + one) for one in range(size)))
                sequence += size
            acks = await producer.acked(len(sizes))
        assert [ack[2] for ack in acks] == sizes
        assert [ack[0] for ack in acks] == [ack[1] for ack in acks]
        assert await read_all(client, TOPIC) == [b"%d" % number for number in range(sequence)]
        info = await client.admin.info()
        assert info.commits < len(sizes), "batches that are in flight together share commits"


async def test_producers_share_a_topic_and_every_message_has_one_place(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        offsets: list[int] = []

        async def produce(name: str) -> None:
            async with client.producer(TOPIC, name=name) as producer:
                for number in range(30):
                    receipt = await producer.send(b"%s-%d" % (name.encode(), number))
                    offsets.append(receipt.offset)

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(produce, name)
        assert sorted(offsets) == list(range(90))
        payloads = await read_all(client, TOPIC)
        for name in (b"a", b"b", b"c"):
            assert [one for one in payloads if one.startswith(name)] == [b"%s-%d" % (name, n) for n in range(30)]


@pytest.mark.parametrize("between", ["reconnect", "drain", "crash"])
async def test_a_repeat_of_a_stored_batch_gets_its_first_offsets(tmp_path: Path, between: str) -> None:
    async with running_broker(tmp_path) as running:
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            producer.send(0, b"a", b"b")
            producer.send(2, b"c")
            assert await producer.acked(2) == [(0, 0, 2), (2, 2, 1)]
            session = producer.opened
            producer.send(0, b"a", b"b")
            assert await producer.acked() == [(0, 0, 2)]
        if between != "reconnect":
            await running.restart(crash=between == "crash")
        # A reconnect goes on with the session it had; the sequence goes on across a restart of the broker, too.
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p", epoch=session.epoch) as producer:
            opened = producer.opened
            assert (opened.producer_id, opened.epoch, opened.next_sequence) == (session.producer_id, session.epoch, 3)
            producer.send(2, b"c")
            producer.send(3, b"d")
            producer.send(0, b"a", b"b")
            assert sorted(await producer.acked(3)) == [(0, 0, 2), (2, 2, 1), (3, 3, 1)]
        # A new session of the name has a higher epoch and the same sequence.
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            assert producer.opened.epoch > session.epoch
            assert producer.opened.next_sequence == 4
            producer.send(3, b"d")
            assert await producer.acked() == [(3, 3, 1)]
        async with running.client() as client:
            assert await read_all(client, TOPIC) == [b"a", b"b", b"c", b"d"]


async def test_a_repeat_of_a_batch_that_is_still_on_its_way_waits_for_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, sync_delay_ms=50) as running:
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            producer.send(0, b"a")
            producer.send(0, b"a")
            producer.send(1, b"b")
            producer.send(0, b"a")
            acks = await producer.acked(4)
        assert sorted(acks) == [(0, 0, 1)] * 3 + [(1, 1, 1)]
        async with running.client() as client:
            assert await read_all(client, TOPIC) == [b"a", b"b"]


async def test_a_repeat_from_before_the_window_is_a_duplicate_and_a_gap_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            for sequence in range(80):
                producer.send(sequence, b"%d" % sequence)
            await producer.acked(80)
            producer.send(0, b"0")
            refused = await producer.refused()
            assert (refused.base_sequence, refused.status, refused.code) == (
                0,
                Status.ALREADY_EXISTS,
                "duplicate-sequence",
            )
            producer.send(79, b"79")
            assert await producer.acked() == [(79, 79, 1)]
            producer.send(81, b"81")
            refused = await producer.refused()
            assert (refused.status, refused.code) == (Status.FAILED_PRECONDITION, "sequence-gap")
            assert "the next is 80" in refused.message
            producer.send(80, b"80")
            assert await producer.acked() == [(80, 80, 1)]
        await running.restart(crash=True)
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            producer.send(0, b"0")
            assert (await producer.refused()).code == "duplicate-sequence"
            producer.send(82, b"82")
            assert (await producer.refused()).code == "sequence-gap"
        async with running.client() as client:
            assert await read_all(client, TOPIC) == [b"%d" % number for number in range(81)]


LARGE, SOON_US = bytes(2 * KIB), 600_000_000


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "on-its-way"])
@pytest.mark.parametrize("between", ["nothing", "reconnect"])
@pytest.mark.parametrize("changed", ["policy", "clock"])
async def test_a_repeat_is_recognised_although_its_like_would_be_refused_now(
    tmp_path: Path, changed: str, between: str, stored: bool
) -> None:
    """Its producer, which took the refusal for final, gave its sequence to the next batch: taken for a repeat."""
    async with running_broker(tmp_path, patience_s=300) as running, AsyncExitStack() as opened:
        channel = await opened.enter_async_context(running.channel())
        producer = await opened.enter_async_context(raw_producer(channel, TOPIC, "p"))
        running.machine.node.disk.sync_delay_s = 0.0 if stored else 100.0
        fields = {} if changed == "policy" else {"deliver_at_us": running.machine.wall_clock_us() + SOON_US}
        producer.send(0, LARGE, **fields)
        if stored:
            assert await producer.acked() == [(0, 0, 1)]
        else:
            await trio.sleep(0.1)
            assert running.topic(TOPIC).kept.end_offset == 0, "it is durable already"
        intake = running.topic(TOPIC).intake
        if changed == "policy":
            intake.apply_policies(stack([("topic", TopicPolicies(max_message_bytes=KIB))]))
        else:
            late_us = int(running.broker.runtime.limits.max_delivery_delay_s * 1e6)
            intake._clock_us = lambda: running.machine.wall_clock_us() - late_us
        if between == "reconnect":
            epoch = producer.opened.epoch
            producer = await opened.enter_async_context(raw_producer(channel, TOPIC, "p", epoch=epoch))
        producer.send(0, LARGE, **fields)
        again = 1 if stored or between == "reconnect" else 2
        assert await producer.acked(again) == [(0, 0, 1)] * again
        producer.send(1, LARGE, **fields)
        assert (await producer.refused()).base_sequence == 1
        producer.send(1, b"next")
        assert await producer.acked() == [(1, 1, 1)]


async def test_a_repeat_is_recognised_by_a_topic_that_takes_nothing_more(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as running,
        running.channel() as channel,
        raw_producer(channel, TOPIC, "p") as producer,
    ):
        producer.send(0, b"a")
        assert await producer.acked() == [(0, 0, 1)]
        topic = running.topic(TOPIC)
        topic.intake.apply_policies(stack([("topic", TopicPolicies(publish_rate=Rate(messages_per_s=0.1)))]))
        producer.send(1, b"b")
        assert await producer.acked() == [(1, 1, 1)]
        producer.send(1, b"b")  # waits for the rate
        producer.send(2, b"c")
        await trio.sleep(0.1)
        topic.failure = DataLossError("a file is damaged")
        assert await producer.acked() == [(1, 1, 1)]
        refused = await producer.refused()
        assert (refused.base_sequence, refused.code) == (2, DataLossError.code)


async def test_a_connection_that_was_replaced_stores_nothing_more(tmp_path: Path) -> None:
    """What arrived late there took the sequence of another batch, which was then acknowledged as its repeat."""
    async with running_broker(tmp_path, patience_s=300) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="disk")
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as old:
            old.send(0, b"a")
            await old.acked()
            running.machine.node.disk.sync_delay_s = 10.0
            old.send(1, b"b")
            await trio.sleep(0.1)
            log = running.topic(TOPIC).kept
            assert (log.end_offset, log.next_offset) == (1, 2), "it is durable already"
            async with (
                running.channel() as other,
                raw_producer(other, TOPIC, "p", epoch=old.opened.epoch) as new,
            ):
                assert new.opened.next_sequence == 2
                old.send(2, b"late")
                await trio.sleep(0.1)
                assert log.end_offset == 1
                new.send(2, b"c")
                assert await new.acked() == [(2, 2, 1)]
        assert await read_all(client, TOPIC) == [b"a", b"b", b"c"]


async def test_a_newer_session_of_a_name_fences_the_older_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.channel() as channel:
        async with raw_producer(channel, TOPIC, "p") as old:
            old.send(0, b"old")
            await old.acked()
            async with raw_producer(channel, TOPIC, "p") as new:
                assert (new.opened.epoch, new.opened.next_sequence) == (old.opened.epoch + 1, 1)
                with pytest.raises(ProducerFencedError, match="taken over"):
                    await old.reply()
                with pytest.raises(ProducerFencedError):
                    async with raw_producer(channel, TOPIC, "p", epoch=old.opened.epoch):
                        pass
                # A batch that carries the old epoch is refused on the new session's stream as well.
                new.send(1, b"x", producer_epoch=old.opened.epoch)
                assert (await new.refused()).code == "producer-fenced"
                new.send(1, b"new")
                assert await new.acked() == [(1, 1, 1)]
        with pytest.raises(ProducerFencedError, match="forgotten"):
            async with raw_producer(channel, TOPIC, "never-seen", epoch=7):
                pass


async def test_a_fenced_session_stays_fenced_after_a_crash(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as old:
            old.send(0, b"old")
            await old.acked()
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p"):
            pass
        await running.restart(crash=True)
        async with running.channel() as channel:
            with pytest.raises(ProducerFencedError):
                async with raw_producer(channel, TOPIC, "p", epoch=old.opened.epoch):
                    pass


async def test_an_exclusive_producer_has_the_topic_for_itself(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.channel() as channel:
        async with raw_producer(channel, TOPIC, "shared") as shared:
            shared.send(0, b"1")
            await shared.acked()
            async with raw_producer(channel, TOPIC, "first", exclusive=True) as first:
                with pytest.raises(ProducerFencedError):
                    await shared.reply()
                with pytest.raises(FailedPreconditionError, match="held by the exclusive producer 'first'"):
                    async with raw_producer(channel, TOPIC, "shared"):
                        pass
                with pytest.raises(ProducerFencedError):
                    async with raw_producer(channel, TOPIC, "shared", epoch=shared.opened.epoch):
                        pass
                first.send(0, b"2")
                assert await first.acked() == [(0, 1, 1)]
                async with raw_producer(channel, TOPIC, "second", exclusive=True) as second:
                    with pytest.raises(ProducerFencedError):
                        await first.reply()
                    second.send(0, b"3")
                    assert await second.acked() == [(0, 2, 1)]
        # When it has gone, all producers may come again, and sequences go on.
        await wait_until(lambda: not running.topic(TOPIC).intake.infos())
        async with raw_producer(channel, TOPIC, "shared") as shared:
            assert shared.opened.next_sequence == 1


async def test_an_anonymous_producer_is_forgotten_after_its_time(tmp_path: Path) -> None:
    limits = {"anonymous_producer_expiry_s": 0.05}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        async with running.channel() as channel:
            async with raw_producer(channel, TOPIC, "made-up", anonymous=True) as one:
                one.send(0, b"1")
                await one.acked()
            async with raw_producer(channel, TOPIC, "named") as other:
                other.send(0, b"2")
                await other.acked()
        await trio.sleep(0.1)
        topic = running.topic(TOPIC)
        topic.producers.expire(running.broker.runtime.seams.wall_clock_us())
        assert topic.producers.session_of("made-up") is None
        assert topic.producers.session_of("named") is not None
        assert await read_all(client, TOPIC) == [b"1", b"2"]


async def test_a_client_survives_restarts_without_loss_or_repeats(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        offsets: list[int] = []
        async with client.producer(TOPIC, name="p") as producer, trio.open_nursery() as nursery:
            done = False

            async def produce() -> None:
                number = 0
                while not done:
                    offsets.append((await producer.send(b"%d" % number)).offset)
                    number += 1

            nursery.start_soon(produce)
            for crash in (True, False, True, False):
                count = len(offsets)
                await wait_until(lambda at=count: len(offsets) > at + 5)
                await running.restart(crash=crash)
            done = True
        assert offsets == list(range(len(offsets)))
        assert await read_all(client, TOPIC) == [b"%d" % number for number in range(len(offsets))]


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_drain_settles_accepted_batches_before_it_closes_the_call(tmp_path: Path, durability: str) -> None:
    async with running_broker(tmp_path, sync_delay_ms=100, durability=durability) as running:
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            for sequence in range(20):
                producer.send(sequence, b"%d" % sequence)
            await wait_until(lambda: running.topic(TOPIC).producers.session_of("p").next_sequence == 20)
            running.broker.drain()
            assert await producer.acked(20) == [(n, n, 1) for n in range(20)]
            error = await ended_by(producer)
            assert isinstance(error, BrokerDrainingError)
            assert error.retryable
        await running.drain()
        await running.start()
        async with running.client() as client:
            assert await read_all(client, TOPIC) == [b"%d" % n for n in range(20)]


async def test_topics_without_durability_acknowledge_and_keep_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="none")
        async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as producer:
            producer.send(0, b"a", b"b")
            producer.send(2, b"c")
            producer.send(0, b"a", b"b")
            assert sorted(await producer.acked(3)) == [(0, 0, 2), (0, 0, 2), (2, 2, 1)]
        journal = running.broker.runtime.journal
        await wait_until(lambda: journal.told_revision == journal.noted_revision)  # that the topic was created
        commits = (await client.admin.info()).commits
        async with client.producer(TOPIC) as other:
            assert (await other.send(b"d")).offset == 3
        assert (await client.admin.info()).commits == commits
        assert await read_all(client, TOPIC) == []
        await running.restart()
        async with client.producer(TOPIC) as other:
            assert (await other.send(b"e")).offset == 0


# --- Bad input ---


async def ended_by(producer: RawProducer) -> DanubeError:
    with pytest.raises(DanubeError) as caught:
        await producer.reply()
    return caught.value


async def test_a_damaged_batch_ends_its_call_and_nothing_else(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        async with raw_producer(channel, TOPIC, "good") as good, raw_producer(channel, TOPIC, "bad") as bad:
            bad.send(0, b"kept")
            part = bytearray(bad.part(1, [b"damaged on its way"]))
            part[-10] ^= 1
            bad.send_part(bytes(part))
            assert await bad.acked() == [(0, 0, 1)]
            error = await ended_by(bad)
            assert isinstance(error, CorruptBatchError)
            assert "send the batch again" in error.message
            good.send(0, b"undisturbed")
            assert await good.acked() == [(0, 1, 1)]
        # The same session goes on after a reconnect.
        async with raw_producer(channel, TOPIC, "bad", epoch=bad.opened.epoch) as bad:
            bad.send(1, b"again")
            assert await bad.acked() == [(1, 2, 1)]
        assert await read_all(client, TOPIC) == [b"kept", b"undisturbed", b"again"]


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x93\x01\x02", b"garbage", msgspec.msgpack.encode([7, "x"])])
async def test_garbage_on_a_stream_is_an_invalid_argument(tmp_path: Path, garbage: bytes) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        for path in (api.Method.PUBLISH, api.Method.CONSUME):
            async with channel.open_stream(path) as stream:
                stream.send_nowait(garbage)
                with pytest.raises(InvalidArgumentError, match="does not decode"):
                    await stream.receive()
        async with raw_producer(channel, TOPIC) as producer:
            producer.send(0, b"acknowledged")
            await producer.acked()
            producer.stream.send_nowait(garbage)
            assert isinstance(await ended_by(producer), InvalidArgumentError)
        for path in (api.Method.CREATE_TOPIC, api.Method.SEEK_SUBSCRIPTION):
            async with channel.open_stream(path) as stream:
                stream.send_nowait(garbage)
                stream.end()
                with pytest.raises(InvalidArgumentError):
                    await stream.receive()
        assert await read_all(client, TOPIC) == [b"acknowledged"]


async def test_a_stream_that_begins_wrongly_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.channel() as channel:
        for path, wrong in ((api.Method.PUBLISH, api.PublishBatch(b"x")), (api.Method.CONSUME, api.Credit(1, 1))):
            async with channel.open_stream(path) as stream:
                stream.send_nowait(msgspec.msgpack.encode(wrong))
                with pytest.raises(InvalidArgumentError, match="begins with"):
                    await stream.receive()
            async with channel.open_stream(path) as stream:
                stream.end()
                with pytest.raises(InvalidArgumentError, match="before its first message"):
                    await stream.receive()
        async with raw_producer(channel, TOPIC) as producer:
            producer.stream.send_nowait(msgspec.msgpack.encode(api.PublishOpen(TOPIC, "again")))
            assert isinstance(await ended_by(producer), InvalidArgumentError)


async def test_batches_that_break_a_rule_are_refused_one_by_one(tmp_path: Path) -> None:
    limits = {"max_message_bytes": 64 * KIB, "max_batch_bytes": 256 * KIB, "max_batch_records": 100}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        async with running.channel() as channel, raw_producer(channel, TOPIC) as producer:
            assert (producer.opened.max_message_bytes, producer.opened.max_batch_bytes) == (64 * KIB, 256 * KIB)

            async def refused(part: bytes) -> api.PublishRefused:
                producer.send_part(part)
                return await producer.refused()

            one = producer.part(0, [b"x"])
            reply = await refused(producer.part(0, [bytes(65 * KIB)]))
            assert (reply.status, reply.code) == (Status.INVALID_ARGUMENT, "message-too-large")
            assert "max_message_bytes = 65536" in reply.message
            reply = await refused(with_header(one, unpacked_size=300 * KIB, codec=Codec.LZ4))
            assert (reply.code, "max_batch_bytes" in reply.message) == ("message-too-large", True)
            reply = await refused(producer.part(0, [b"x"] * 101))
            assert (reply.status, reply.code) == (Status.RESOURCE_EXHAUSTED, "limit-exceeded")
            assert "max_batch_records = 100" in reply.message
            for flag in (BatchFlags.COMPOSITE, BatchFlags.SLICE):
                reply = await refused(with_header(one, flags=flag))
                assert (reply.status, "reserved" in reply.message) == (Status.INVALID_ARGUMENT, True)
            reply = await refused(producer.part(0, [b"x"], producer_id=producer.opened.producer_id + 1))
            assert reply.status == Status.INVALID_ARGUMENT
            reply = await refused(with_header(one, codec=99))
            assert (reply.status, "codec 99" in reply.message) == (Status.INVALID_ARGUMENT, True)
            producer.send(0, b"fine")
            assert await producer.acked() == [(0, 0, 1)]
        assert await read_all(client, TOPIC) == [b"fine"]


async def test_a_message_beyond_the_batch_limit_ends_the_call_with_the_limit(tmp_path: Path) -> None:
    limits = {"max_message_bytes": 64 * KIB, "max_batch_bytes": 128 * KIB}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        async with (
            running.channel() as channel,
            raw_producer(channel, TOPIC, "big") as big,
            raw_producer(channel, TOPIC, "small") as small,
        ):
            big.send(0, b"acknowledged")
            await big.acked()
            big.send(1, *[bytes(60 * KIB)] * 5)
            error = await ended_by(big)
            assert error.status in (Status.RESOURCE_EXHAUSTED, Status.INVALID_ARGUMENT)
            assert str(128 * KIB + 64) in error.message
            small.send(0, b"undisturbed")
            assert await small.acked() == [(0, 1, 1)]
        async with client.producer(TOPIC) as producer:
            with pytest.raises(MessageTooLargeError, match="max_message_bytes = 65536"):
                await producer.send(bytes(65 * KIB))
            assert (await producer.send(bytes(60 * KIB))).offset == 2
        assert len(await read_all(client, TOPIC)) == 3


async def test_records_that_do_not_decode_do_not_stop_anybody_else(tmp_path: Path) -> None:
    """The broker opens no batch without need; a consumer that needs the records detects the damage and can skip it."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with running.channel() as channel, raw_producer(channel, TOPIC) as producer:
            producer.send(0, b"before")
            good = producer.part(1, [b"x"])
            producer.send_part(seal_part(read_header(good)._replace(packed_size=3, unpacked_size=3), b"\xc1\xc1\xc1"))
            producer.send(2, b"after")
            assert len(await producer.acked(3)) == 3
        for kind in ("exclusive", "shared"):
            async with client.consumer(TOPIC, subscription=kind, type=kind, start="earliest") as consumer:
                assert (await consumer.receive()).payload == b"before"
                with pytest.raises(DanubeError, match="damaged"):
                    await consumer.receive()
                consumer.ack_range(1, 2)
                assert (await consumer.receive()).payload == b"after"
        # Where the broker needs the keys it is poison.
        policy = {"poison": "drop"}
        async with client.consumer(
            TOPIC, subscription="k", type="key_shared", start="earliest", policy=policy
        ) as consumer:
            assert [message.payload for message in await take(consumer, 2)] == [b"before", b"after"]


class ForeignCodec:
    subtype = "json"

    def encode(self, value: object) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, kind: type, data: bytes) -> object:
        return msgspec.json.decode(data, type=kind)


@pytest.mark.real("opens a socket")
async def test_an_unknown_codec_or_path_is_unimplemented(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        async with connect_channel("127.0.0.1", running.port, codec=ForeignCodec()) as channel:
            with pytest.raises(UnimplementedError):
                await channel.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)
        async with running.channel() as channel:
            with pytest.raises(UnimplementedError, match="Broker/Nothing"):
                await channel.unary("/danube.native.v1.Broker/Nothing", api.Empty(), api.Done)
            assert (await channel.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)).connections == 1


@pytest.mark.real("opens a socket")
async def test_http_1_and_garbage_on_the_port_leave_the_broker_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"handshake_timeout_s": 0.3}) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"1")
            for hello in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01garbage" * 50, struct.pack(">I", 7), b""):
                stream = await trio.open_tcp_stream("127.0.0.1", running.port)
                async with stream:
                    await stream.send_all(hello)
                    with trio.fail_after(5):
                        answer = b""
                        while data := await receive_or_end(stream):
                            answer += data
                    if hello.startswith(b"GET"):
                        assert answer.startswith(b"HTTP/1.1 ")
            await producer.send(b"2")
        assert await read_all(client, TOPIC) == [b"1", b"2"]
        await wait_until(lambda: running.broker._server.connections == 1)


async def receive_or_end(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""


async def test_too_many_producers_and_subscriptions_name_their_limit(tmp_path: Path) -> None:
    limits = {"max_producers_per_topic": 1, "max_subscriptions_per_topic": 1}
    async with (
        running_broker(tmp_path, limits=limits) as running,
        running.channel() as channel,
        raw_producer(channel, TOPIC, "one"),
    ):
        with pytest.raises(LimitExceededError, match="max_producers_per_topic = 1"):
            async with raw_producer(channel, TOPIC, "two"):
                pass
        async with raw_consumer(channel, TOPIC, "one"):
            with pytest.raises(LimitExceededError, match="max_subscriptions_per_topic = 1"):
                async with raw_consumer(channel, TOPIC, "two"):
                    pass


@pytest.mark.parametrize("how", ["it has moved", "it has stopped"])
async def test_a_batch_that_waits_for_the_journal_is_refused_if_its_topic_ends_meanwhile(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was appended by its former owner, acknowledged, and lost, if the topic had moved away."""
    waiting, space = trio.Event(), trio.Event()
    told: list[DanubeError | None] = []

    async def admit(size: int) -> None:
        waiting.set()
        await space.wait()

    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        topic = running.topic(TOPIC)
        moved = NotOwnerError("topic '/default/t' is at another broker", {"address": "h2:6650"})
        stopped = DataLossError("its batches are damaged")

        async def publish() -> None:
            try:
                await topic.intake.admit(100)
                told.append(None)
            except DanubeError as error:
                told.append(error)

        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr(topic.intake._journal, "try_admit", lambda size: False)
                patch.setattr(topic.intake._journal, "admit", admit)
                nursery.start_soon(publish)
                await waiting.wait()
            if how == "it has moved":
                async with topic.frozen():
                    topic.end(moved)
            else:
                topic.stop(stopped)
            space.set()
        assert told == [moved if how == "it has moved" else stopped]
