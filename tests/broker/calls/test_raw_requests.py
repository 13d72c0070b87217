"""Any request of a peer succeeds or gets an error of the tree, and the broker continues, also after a restart.

The peer here has no client between itself and the wire. Its messages are made from what msgspec knows of the structs of
the native API, so that a method or a field that is added is covered by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import RunningBroker, raw_consumer, raw_producer, running_broker
from hypothesis import strategies as st
from msgspec import inspect
from odd_messages import DEEP, OddMessages, acceptable, drawn

from danube.model import api, stage_api
from danube.model.batch import PART_OVERHEAD, BatchFlags, Codec, Record, check_part, encode_part, read_header, seal_part
from danube.model.errors import AlreadyExistsError, DanubeError
from danube.model.policies import SubscriptionPolicy, TopicPolicies
from danube.model.policy_api import ChangePolicies, PolicyMethod, PolicyReport
from danube.wire.client import Channel, ClientStream

TOPIC, PARTS, LOSSY, REMOTE = "/default/t", "/default/p", "/default/n", "/default/r"
CHECKED = "/default/checked"
"""Nothing of what is made up names it."""

TOPICS: dict[str, dict[str, Any]] = {
    TOPIC: {},
    PARTS: {"partitions": 2},
    LOSSY: {"durability": "none"},
    REMOTE: {"durability": "remote"},
    CHECKED: {},
}

STREAMS: dict[str, Any] = {
    api.Method.PUBLISH: api.PublishRequest,
    api.Method.CONSUME: api.ConsumeRequest,
    stage_api.StageMethod.STAGE: stage_api.StageRequest,
}

NAMES = [TOPIC, PARTS, f"{PARTS}-part-0", f"{PARTS}-part-9", LOSSY, REMOTE, "/other/new", "/default/new", "/no/t"]
WORDS = ["s", "raw", "job", "default", "other", "earliest", "latest", "disk:///tmp/none", "memory://", *NAMES]

VALID: dict[str, list[Any]] = {
    "access": ["shared", "exclusive"],
    "attempt": ["1"],
    "batch_id": [1, 2],
    "consumer_name": ["raw"],
    "durability": [None, "none", "os", "disk", "remote"],
    "generation": [0],
    "key_filters": [[], ["a*"]],
    "messages": [100],
    "namespace": ["other"],
    "partitions": [0, 2],
    "policy": [{}],
    "position": ["earliest", "latest", 1],
    "producer": ["job"],
    "producer_name": ["raw"],
    "ranges": [[0, 1], [2, 4, 7, 9], [0, 2**63]],
    "resume_epoch": [0],
    "schema_type": ["string", "avro", "json_schema", "protobuf"],
    "subject": ["", "s", "/default/t-value", "new"],
    "text": ['"int"', "{}", ""],
    "size_bytes": [10_000],
    "stage_ids": [[], [1]],
    "start": ["earliest", "latest", 3],
    "storage": ["", "default"],
    "subscription": ["s"],
    "target": [TOPIC, "default", "", PARTS],
    "topic": [TOPIC, PARTS, f"{PARTS}-part-0", LOSSY, REMOTE],
    "topics": [[TOPIC], [PARTS, LOSSY]],
    "type": ["exclusive", "failover", "shared", "key_shared"],
    "wait_ms": [0, 10],
}
"""What a field has when it is not its turn; the others are of their type."""
FIELDS = sorted({*SubscriptionPolicy.__struct_fields__, *TopicPolicies.__struct_fields__, "no"})

RULES = ["messages_per_s", "bytes_per_s", "max_age_s", "max_bytes", "acknowledged"]

OF_SESSION = 2**40
"""A producer id that stands for the one that the stream's answer gives, with its epoch and next sequence."""
HEADER: dict[str, list[int]] = {
    "version": [0, 1, 3, 255],
    "codec": [1, 2, 3, 255],
    "header_size": [0, 63, 65, 72, 0xFFFF],
    "flags": [0, 2, 4, 5, 0xFFFF, 1 << 16, 2**32 - 1],
    "record_count": [0, 1, 3, 1000, 2**32 - 1],
    "unpacked_size": [0, 1, 10**6, 2**32 - 1],
    "packed_size": [0, 1, 2**32 - 1],
    "publish_time_us": [0, 2**63, 2**64 - 1],
    "deliver_at_us": [1, 2**62, 1_800_000_001_000_000, 2**63 - 1, 2**64 - 1],
    "producer_id": [1, 2**63, 2**64 - 1],
    "producer_epoch": [1, 2**32 - 1],
    "base_sequence": [1, 2**63 - 1, 2**63, 2**64 - 1],
    "schema_id": [2**32 - 1],
    "schema_version": [2**32 - 1],
}
RECORDS = [
    [b"x"],
    [b"a", b"b"],
    [b""],
    [b"x" * 5000] * 3,
    [Record(b"x", b"k"), Record(b"y", b"", {"a": b"b"})],
]


@st.composite
def parts(draw: st.DrawFn) -> bytes:
    """Return a batch whose checksum is right, whatever its header says; some were cut or bent afterwards."""
    fields = {
        "producer_id": draw(st.sampled_from([OF_SESSION, OF_SESSION, 0])),
        "producer_epoch": 0,
        "base_sequence": 0,
    }
    records: Any = draw(st.sampled_from(RECORDS))
    part = encode_part(records, codec=draw(st.sampled_from(Codec)), publish_time_us=1, **fields)
    odd = draw(st.sets(st.sampled_from(sorted(HEADER)), max_size=2))
    if odd:
        header = read_header(part)._replace(**{name: draw(st.sampled_from(HEADER[name])) for name in sorted(odd)})
        part = seal_part(header, part[PART_OVERHEAD - 4 : -4])
    match draw(st.sampled_from("======<^")):
        case "<":
            return part[: draw(st.integers(0, len(part)))]
        case "^":
            place = draw(st.integers(0, min(len(part), 70) - 1))
            return part[:place] + bytes([part[place] ^ draw(st.integers(1, 255))]) + part[place + 1 :]
    return part


ODD = OddMessages(VALID, WORDS, parts(), FIELDS, RULES)


# --- What comes of them ----------------------------------------------------------------------------------------------


class Session:
    """What the answer to the first message of a stream says that later ones are to have."""

    def __init__(self, path: str, opened: bytes) -> None:
        self.path = path
        self.answer = msgspec.msgpack.decode(opened)
        self.sequence = 0

    def fill_in(self, data: bytes) -> bytes:
        """Return a message with what it is to have; one that is not in order stays as it is."""
        try:
            said = msgspec.msgpack.decode(data)
            header = check_part(said[1])
        except (DanubeError, ValueError, TypeError, LookupError, RecursionError):
            return data
        if header.producer_id != OF_SESSION:
            return data
        if self.path != api.Method.PUBLISH:
            return msgspec.msgpack.encode(
                [1, seal_part(header._replace(producer_id=0), said[1][PART_OVERHEAD - 4 : -4])]
            )
        _, _, producer_id, epoch, next_sequence, *_ = self.answer
        header = header._replace(producer_id=producer_id, producer_epoch=epoch)
        if not header.base_sequence:
            header = header._replace(base_sequence=next_sequence + self.sequence)
            self.sequence += header.record_count
        return msgspec.msgpack.encode([1, seal_part(header, said[1][PART_OVERHEAD - 4 : -4])])


async def converse(stream: ClientStream, messages: list[bytes]) -> None:
    """Send messages, and hear the broker out; anything but success and an acceptable error fails the test."""
    try:
        stream.send_nowait(messages[0])
        if messages[1:]:
            opened = await stream.receive()
            if opened is not None:
                opened.release()
                session = Session(stream.path, opened.data)
                for data in messages[1:]:
                    stream.send_nowait(session.fill_in(data))
                    await trio.sleep(0.001)
        stream.end()
        while (answer := await stream.receive()) is not None:
            answer.release()
    except DanubeError as error:
        shown = f"{stream.path} {[data[:200] for data in messages]!r}"
        if not acceptable(error) or stream._channel.closed:
            raise AssertionError(f"{shown}: {error!r}") from error


async def prepare(running: RunningBroker) -> None:
    """Make topics that the requests are about, with messages and a subscription, as far as they are not there."""
    async with running.client() as client:
        with suppress(AlreadyExistsError):
            await client.admin.create_namespace("other")
        for topic, options in TOPICS.items():
            with suppress(AlreadyExistsError):
                await client.admin.create_topic(topic, **options)
                async with client.consumer(topic, subscription="s", start="earliest"), client.producer(topic) as filler:
                    await filler.send_many([b"%d" % number for number in range(10)])


async def check(running: RunningBroker, channel: Channel) -> None:
    """See that messages go through the broker, and through the connection that has misbehaved."""
    nothing = dict.fromkeys(TopicPolicies.__struct_fields__)
    for target in ("", "default"):
        await channel.unary(PolicyMethod.CHANGE, ChangePolicies(target, nothing), PolicyReport)
    await channel.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)
    async with running.client() as client, client.consumer(CHECKED, subscription="c") as consumer:
        async with client.producer(CHECKED) as producer:
            await producer.send(b"on")
        message = await consumer.receive()
        assert message.payload == b"on"
        await message.ack()
        await consumer.flush_acks()
        await client.admin.list_topics()


def unary_methods(running: RunningBroker) -> Iterator[tuple[str, inspect.Type]]:
    server = running.broker._server
    assert server is not None
    for path, method in sorted(server.methods.items()):
        if path.startswith("/danube.native.") and path not in STREAMS:
            assert method.kind == "unary", f"{path} is a stream: add it to STREAMS"
            yield path, inspect.type_info(method.request_type)


FEW = [
    8,
    pytest.param(60, marks=[pytest.mark.extended, pytest.mark.timeout(1800)]),
    pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
]
"""Examples of each method."""


@pytest.fixture(autouse=True)
def _no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    wrong = [each.getMessage() for each in caplog.get_records("call") if each.exc_info]
    assert not wrong, "\n".join(wrong)


@pytest.mark.virtual
@pytest.mark.parametrize("count", FEW)
async def test_every_unary_method(tmp_path: Path, count: int) -> None:
    async with running_broker(tmp_path, patience_s=10**7) as running:
        async with running.channel() as channel:
            for path, kind in unary_methods(running):
                await prepare(running)
                for data in [*ODD.spoilt(kind), *drawn(ODD.encoded(ODD.plausible(kind)), count)]:
                    with trio.fail_after(300):
                        await converse(channel.open_stream(path), [data])
                await check(running, channel)
        await running.restart(crash=True)
        async with running.channel() as channel:
            await check(running, channel)


@pytest.mark.virtual
@pytest.mark.parametrize("count", FEW)
async def test_every_message_of_a_stream(tmp_path: Path, count: int) -> None:
    async with running_broker(tmp_path, patience_s=10**7) as running:
        async with running.channel() as channel:
            for path, union in STREAMS.items():
                await prepare(running)
                opening, *following = inspect.type_info(union).types
                usual = msgspec.msgpack.encode([opening.tag, *map(ODD.usual_value, opening.fields)])
                planned = [[data] for data in ODD.spoilt(opening)]
                planned += [[usual, data] for each in following for data in ODD.spoilt(each)]
                for messages in [*planned, *drawn(ODD.conversations(union), 4 * count)]:
                    async with channel.open_stream(path) as stream:
                        with trio.move_on_after(60):  # a rate may have been set that lets nothing through
                            await converse(stream, messages)
                await check(running, channel)
        await running.restart(crash=True)
        async with running.channel() as channel:
            await check(running, channel)


# --- What batches hold -----------------------------------------------------------------------------------------------

BODIES = {
    "nothing": b"",
    "no array": b"\x01",
    "too few": b"\x90",
    "numbers": b"\x92\x01\x02",
    "cut": b"\x92\xc4",
    "deep payload": b"\x92" + DEEP + b"\xc4\x01x",
    "deep field": b"\x92\x95\xc4\x01x\xc4\x01k\x80\x00" + DEEP + b"\x91\xc4\x01x",
    "deep attribute": b"\x92\x93\xc4\x01x\xc4\x01k\x81\xa1a" + DEEP + b"\x91\xc4\x01x",
    "key that is text": b"\x92\x92\xc4\x01x\xa2ab\x91\xc4\x01x",
    "attribute that is no text": b"\x92\x93\xc4\x01x\xc4\x01k\x81\xa1a\xa1\xff\x91\xc4\x01x",
}


@pytest.mark.virtual
@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_malformed_batches_affect_no_other_client(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path, patience_s=10**6) as running:
        for number, body in enumerate(BODIES.values()):
            for flags in (0, BatchFlags.PAYLOADS_ONLY):
                topic = f"/default/t{number}-{int(flags)}"
                await consume_spoilt(running, topic, kind, body, flags)
        await prepare(running)
        async with running.channel() as channel:
            await check(running, channel)


async def consume_spoilt(running: RunningBroker, topic: str, kind: str, body: bytes, flags: int) -> None:
    """Publish a batch with a body while a consumer waits for it; have it refused until it is put aside."""
    async with running.client() as client, running.channel() as producing, trio.open_nursery() as nursery:
        await client.admin.create_topic(topic)
        await nursery.start(take_spoilt, running, topic, kind)
        async with raw_producer(producing, topic) as producer:
            part = producer.part(0, [b"x", b"y"])
            header = read_header(part)._replace(flags=flags, unpacked_size=len(body), packed_size=len(body))
            producer.send_part(seal_part(header, body))
            await producer.acked()
        await nursery.start(take_spoilt, running, topic, kind)


async def take_spoilt(
    running: RunningBroker, topic: str, kind: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    policy = {"poison": "dead_letter", "max_redelivery_count": 0}
    try:
        async with running.channel() as channel, raw_consumer(channel, topic, kind=kind, policy=policy) as consumer:
            consumer.credit(1)
            await consumer.flush()
            task_status.started()
            with trio.move_on_after(5):
                await consumer.reply_of(api.ConsumeBatch)
                consumer.send(api.Nack([0, 2], 0, "no"))
                await trio.sleep(2)
                await consumer.flush()
    except DanubeError as error:
        if not acceptable(error):
            raise
        with suppress(RuntimeError):  # it was ended at once
            task_status.started()
