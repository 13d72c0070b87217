"""Topics whose broker opens batches: payloads that must fit their schema, and Confluent's frames."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker.broker_harness import RawProducer, RunningBroker, raw_producer, running_broker

import danube
from danube.model.batch import Codec, Record, SchemaRef
from danube.model.errors import CallRefusedError, SchemaMismatchError, SchemaPayloadError
from danube.model.stage_api import StagedBatch
from danube.schema.frames import encode_frame

pytestmark = pytest.mark.virtual

TOPIC, SUBJECT = "/default/orders", "/default/orders-value"
ORDER = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
NUMBERED = {"type": "object", "properties": {"id": {"type": "integer"}, "number": {"type": "integer"}}}
GOOD, BAD = b'{"id": 1}', b'{"id": "one"}'


@asynccontextmanager
async def bound(directory: Path, **policies: str) -> AsyncIterator[tuple[RunningBroker, danube.Client, int]]:
    """Run a broker with a topic that has a subject with one JSON Schema, whose number is the last value."""
    async with running_broker(directory) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        number = (await client.schemas.register(SUBJECT, "json", ORDER)).number
        await client.schemas.bind(TOPIC, SUBJECT)
        await client.admin.change_policies(TOPIC, **{"schema_validation": "enforce", **policies})
        yield running, client, number


@asynccontextmanager
async def sending(running: RunningBroker) -> AsyncIterator[RawProducer]:
    async with running.channel() as channel, raw_producer(channel, TOPIC) as raw:
        yield raw


async def refusal(raw: RawProducer) -> tuple[str, str]:
    reply: Any = await raw.reply()
    return reply.code, reply.message


async def test_a_payload_that_does_not_fit_refuses_its_batch_and_its_index_is_told(tmp_path: Path) -> None:
    async with bound(tmp_path, schema_payloads="broker") as (running, _, number), sending(running) as raw:
        raw.send(0, GOOD, GOOD, schema_id=number)
        await raw.acked()
        raw.send(2, GOOD, GOOD, BAD, GOOD, schema_id=number)
        code, text = await refusal(raw)
        assert code == "schema-mismatch"
        assert f"topic '{TOPIC}': message 2 of the batch does not fit schema {number}: " in text
        raw.send(2, b"no JSON", schema_id=number)
        assert "message 0 of the batch" in (await refusal(raw))[1]
        raw.send(2, GOOD, schema_id=number)
        await raw.acked()
        topic = running.topic(TOPIC)
        assert topic.end_offset == 3
        assert topic.intake.refused_messages == {"schema-mismatch": 5}
        assert topic.intake.mismatched_messages == 0


async def test_batches_with_keys_and_compressed_ones_are_opened(tmp_path: Path) -> None:
    async with bound(tmp_path, schema_payloads="broker") as (running, _, number), sending(running) as raw:
        for sequence, codec in enumerate(Codec):
            raw.send(sequence, Record(GOOD, key=b"k"), schema_id=number, codec=codec)
            await raw.acked()
            raw.send(sequence + 1, Record(BAD, key=b"k"), schema_id=number, codec=codec)
            assert (await refusal(raw))[0] == "schema-mismatch"


async def test_a_repeat_is_acknowledged_though_it_would_be_refused_by_now(tmp_path: Path) -> None:
    async with bound(tmp_path) as (running, client, number), sending(running) as raw:
        raw.send(0, BAD, schema_id=number)
        await raw.acked()
        await client.admin.change_policies(TOPIC, schema_payloads="broker")
        raw.send(0, BAD, schema_id=number)
        await raw.acked()
        assert running.topic(TOPIC).end_offset == 1


async def test_what_does_not_fit_is_counted_under_warn_and_passes_under_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bound(tmp_path, schema_payloads="broker", schema_validation="warn") as (running, client, number):
        async with sending(running) as raw:
            raw.send(0, GOOD, BAD, schema_id=number)
            await raw.acked()
            assert running.topic(TOPIC).intake.mismatched_messages == 2
            assert "message 1 of the batch does not fit schema" in caplog.text
            raw.send(2, BAD)
            await raw.acked()
            assert running.topic(TOPIC).intake.mismatched_messages == 3, "counted once"
            await client.admin.change_policies(TOPIC, schema_validation="none")
            raw.send(3, BAD, schema_id=number)
            await raw.acked()
        assert running.topic(TOPIC).intake.schema_rule is None
        assert "danube_publish_schema_mismatches_total 3\n" in await client.admin.metrics()


async def test_policies_of_a_namespace_apply_at_once_and_survive_a_restart(tmp_path: Path) -> None:
    async with bound(tmp_path) as (running, client, number):
        schema = danube.Json(ORDER)
        async with client.producer(TOPIC, schema=schema) as typed, client.producer(TOPIC) as plain:
            await client.admin.change_policies("default", schema_payloads="broker")
            await typed.send({"id": 1})
            plain._carry(SchemaRef(number, 1))
            with pytest.raises(SchemaMismatchError, match="does not fit"):
                await plain.send(BAD)
            await running.restart(crash=True)
            with pytest.raises(SchemaMismatchError, match="does not fit"):
                await plain.send(BAD)
            await client.admin.change_policies(TOPIC, schema_payloads="client")
            await plain.send(BAD)


async def test_staged_batches_are_opened(tmp_path: Path) -> None:
    async with bound(tmp_path, schema_payloads="broker") as (_, client, number):

        async def staged(payload: bytes) -> StagedBatch:
            async with client.stages.open(TOPIC, producer="job", batch_id=1, schema=SchemaRef(number, 1)) as stage:
                await stage.add([payload])
                return await stage.finish()

        with pytest.raises(SchemaMismatchError, match="message 0"):
            await staged(BAD)
        assert (await client.stages.commit("job", 1, [await staged(GOOD)])).committed


async def test_frames_name_the_schemas(tmp_path: Path) -> None:
    async with bound(tmp_path, schema_framing="confluent") as (running, client, number), sending(running) as raw:
        other = (await client.schemas.register("other", "string")).number
        raw.send(0, encode_frame(number, GOOD), encode_frame(number, BAD))
        await raw.acked()
        for bad, why in (
            (GOOD, "message 1 of the batch has no Confluent frame"),
            (b"", "message 1 of the batch has no Confluent frame"),
            (b"\x00\x00\x00", "message 1 of the batch has no Confluent frame"),
            (encode_frame(other, GOOD), f"a message of the batch has schema {other} in its frame"),
            (encode_frame(2**31, GOOD), f"a message of the batch has schema {2**31} in its frame"),
        ):
            raw.send(2, encode_frame(number, GOOD), bad)
            code, text = await refusal(raw)
            assert code == "schema-mismatch"
            assert why in text
        raw.send(2, GOOD, schema_id=number)  # the header says that the payload is bare
        await raw.acked()
        second = (await client.schemas.register(SUBJECT, "json", json.dumps(NUMBERED))).number
        await client.admin.change_policies(TOPIC, schema_payloads="broker")
        raw.send(3, encode_frame(number, GOOD), encode_frame(second, b'{"number": 2}'))
        await raw.acked()
        raw.send(5, encode_frame(number, GOOD), encode_frame(second, b'{"number": "2"}'))
        assert f"message 1 of the batch does not fit schema {second}" in (await refusal(raw))[1]


async def test_many_frames_are_looked_at(tmp_path: Path) -> None:
    async with bound(tmp_path, schema_framing="confluent") as (running, _, number), sending(running) as raw:
        many = [encode_frame(number, b"x")] * 5_000
        raw.send(0, *many)
        await raw.acked()
        raw.send(5_000, *many, b"x", *many)
        assert "message 5000 of the batch has no Confluent frame" in (await refusal(raw))[1]


async def test_batches_that_are_damaged_or_too_large_are_refused_as_ever(tmp_path: Path) -> None:
    async with bound(tmp_path, schema_payloads="broker") as (running, _, number), sending(running) as raw:
        raw.send(0, b"[" + b"0," * 7 * 2**20 + b"0]", schema_id=number, codec=Codec.ZSTD)
        code, text = await refusal(raw)
        assert "max_batch_bytes" in text, code
        raw.send(0, GOOD, schema_id=number)
        await raw.acked()


async def test_without_a_process_enforcing_topics_ask_to_repeat_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bound(tmp_path, schema_payloads="broker") as (running, client, number), sending(running) as raw:
        payloads: Any = running.broker._payloads()

        async def fails(*_: object) -> None:
            raise CallRefusedError("the process that checks payloads does not start: no memory; try again")

        check = payloads._check
        payloads._check = fails
        raw.send(0, GOOD, schema_id=number)
        assert (await refusal(raw))[0] == CallRefusedError.code
        payloads._check = check
        raw.send(0, GOOD, schema_id=number)
        await raw.acked()
        payloads._check = fails
        await client.admin.change_policies(TOPIC, schema_validation="warn")
        raw.send(1, GOOD, schema_id=number)
        await raw.acked()
        assert running.topic(TOPIC).intake.mismatched_messages == 1


def test_the_check_itself() -> None:
    from danube.model.batch import encode_part
    from danube.schema import SchemaType, Source
    from danube.schema.payloads import PayloadCheck, PayloadChecks

    def check(checks: PayloadChecks, source: Source, *payloads: bytes, framed: bool = False) -> None:
        ids: Any = {"producer_id": 1, "producer_epoch": 1, "base_sequence": 0, "publish_time_us": 1}
        part = encode_part(list(payloads), schema_id=0 if framed else 7, **ids)
        checks.check(PayloadCheck(part, 1 << 20, framed, ((7, source),)))

    checks = PayloadChecks()
    for source, good, bad in (
        (Source(SchemaType.AVRO, '{"type": "array", "items": "string"}'), b"\x02\x02a\x00", b"\x02\x02a"),
        (Source(SchemaType.AVRO, '"string"'), b"\x02a", b"\x02a\x00"),
        (Source(SchemaType.JSON, ORDER), GOOD, b"[" * 100_000 + b"]" * 100_000),
        (Source(SchemaType.STRING, ""), "é".encode(), b"\xff"),
        (Source(SchemaType.NUMBER, ""), b"1.5", b"one"),
    ):
        check(checks, source, good, good)
        check(checks, source, encode_frame(7, good), framed=True)
        with pytest.raises(SchemaPayloadError, match="message 1 of the batch does not fit schema 7"):
            check(checks, source, good, bad)
        with pytest.raises(SchemaPayloadError, match="message 0 of the batch does not fit schema 7"):
            check(checks, source, encode_frame(7, bad), framed=True)
    check(checks, Source(SchemaType.BYTES, ""), zlib.compress(b"anything"))


def test_protobuf_frames_name_a_message_of_the_file() -> None:
    import base64

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from danube.model.batch import encode_part
    from danube.model.errors import InvalidSchemaError
    from danube.schema import SchemaType, Source
    from danube.schema.payloads import PayloadCheck, PayloadChecks

    file = FileDescriptorProto(name="a.proto", package="p", syntax="proto2")
    outer = file.message_type.add(name="A")
    outer.nested_type.add(name="Inner")
    needed = file.message_type.add(name="B").field.add(name="x", number=1, type="TYPE_INT32", label="LABEL_REQUIRED")
    assert needed.number == 1
    source = Source(SchemaType.PROTOBUF, base64.b64encode(file.SerializeToString()).decode())
    checks = PayloadChecks()

    def check(*payloads: bytes, number: int = 0, chosen: Source = source) -> None:
        ids: Any = {"producer_id": 1, "producer_epoch": 1, "base_sequence": 0, "publish_time_us": 1}
        part = encode_part(list(payloads), schema_id=number, **ids)
        checks.check(PayloadCheck(part, 1 << 20, not number, ((7, chosen),)))

    check(b"\x08\x01", number=7)
    check(b"\x08\x01", number=7, chosen=Source(SchemaType.PROTOBUF, source.text, (), "p.B"))
    check(*(encode_frame(7, b"\x08\x01", indexes) for indexes in ((0,), (1,), (0, 0))))
    for bad, why in (
        (encode_frame(7, b"", (1,)), "p.B"),
        (encode_frame(7, b"", (2,)), "names message"),
        (encode_frame(7, b"", (0, 1)), "names message"),
        (encode_frame(7, b"\xff", (0,)), "p.A"),
        (encode_frame(7, b"")[:5], "message index"),
    ):
        with pytest.raises(SchemaPayloadError, match=why):
            check(bad)
    empty = base64.b64encode(FileDescriptorProto(name="b.proto").SerializeToString()).decode()
    with pytest.raises(InvalidSchemaError, match="has no message"):
        check(b"", number=7, chosen=Source(SchemaType.PROTOBUF, empty))
