"""Topics with a subject: what they are bound to, and which batches they take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, raw_producer, running_broker

import danube
from danube.broker.intake.schema_rule import SchemaRule
from danube.broker.runtime.subjects import Subjects
from danube.model.batch import SchemaRef, encode_part, read_header, schema_id_of
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SchemaMismatchError,
    SubjectNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.policies import SchemaValidation
from danube.model.stage_api import StagedBatch

pytestmark = pytest.mark.virtual

TOPIC, SUBJECT = "/default/orders", "/default/orders-value"


@asynccontextmanager
async def bound(directory: Path, validation: str) -> AsyncIterator[tuple[RunningBroker, danube.Client, int]]:
    """Run a broker with a topic that has a subject with one schema, whose number is the last value."""
    async with running_broker(directory) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        number = (await client.schemas.register(SUBJECT, "string")).number
        await client.schemas.bind(TOPIC, SUBJECT)
        await client.admin.change_policies(TOPIC, schema_validation=validation)
        yield running, client, number


async def test_a_topic_is_bound_shown_and_unbound_and_it_survives_a_restart(tmp_path: Path) -> None:
    async with bound(tmp_path, "none") as (running, client, _):
        assert (await client.admin.describe_topic(TOPIC)).schema_subject == SUBJECT
        assert (await client.schemas.subject(SUBJECT)).topics == [TOPIC]
        await client.admin.create_topic("/default/p", partitions=2)
        await client.schemas.bind("/default/p", SUBJECT)
        await running.restart(crash=True)
        for name in (TOPIC, "/default/p", "/default/p-part-1"):
            assert (await client.admin.describe_topic(name)).schema_subject == SUBJECT
        assert {info.schema_subject for info in await client.admin.list_topics()} == {SUBJECT}
        with pytest.raises(FailedPreconditionError, match="is a partition"):
            await client.schemas.bind("/default/p-part-0", SUBJECT)
        with pytest.raises(SubjectNotFoundError):
            await client.schemas.bind(TOPIC, "other")
        with pytest.raises(TopicNotFoundError):
            await client.schemas.bind("/default/nothing", SUBJECT)
        await client.schemas.bind(TOPIC, "")
        assert (await client.admin.describe_topic(TOPIC)).schema_subject == ""
        assert (await client.schemas.subject(SUBJECT)).topics == ["/default/p"]


async def test_batches_without_a_schema_of_the_subject_are_refused_if_that_is_enforced(tmp_path: Path) -> None:
    async with bound(tmp_path, "enforce") as (running, client, number):
        other = (await client.schemas.register("other", "bytes")).number
        async with client.producer(TOPIC) as producer:
            with pytest.raises(SchemaMismatchError, match="the batch names no schema, and topic '/default/orders'"):
                await producer.send(b"x")
        async with running.channel() as channel, raw_producer(channel, TOPIC) as raw:
            raw.send(0, b"x", schema_id=number)
            await raw.acked()
            for wrong in (other, 999_999, 2**32 - 1):
                raw.send(1, b"x", schema_id=wrong)
                refused = await raw.reply()
                assert (refused.code, refused.base_sequence) == ("schema-mismatch", 1)  # type: ignore[union-attr]
            second = (await client.schemas.register(SUBJECT, "string", metadata={"a": "b"})).number
            assert second != number
            raw.send(1, b"x", schema_id=second)
            await raw.acked()
        intake = running.topic(TOPIC).intake
        assert intake.refused_messages["schema-mismatch"] == 4
        assert intake.mismatched_messages == 0


async def test_a_deleted_version_is_still_taken_and_one_of_no_version_is_not(tmp_path: Path) -> None:
    async with bound(tmp_path, "enforce") as (running, client, number):
        await client.schemas.delete(SUBJECT)
        async with running.channel() as channel, raw_producer(channel, TOPIC) as raw:
            raw.send(0, b"x", schema_id=number)
            await raw.acked()
            await client.schemas.delete(SUBJECT, permanent=True)
            raw.send(1, b"x", schema_id=number)
            assert (await raw.reply()).code == "schema-mismatch"  # type: ignore[union-attr]


async def test_warnings_are_counted_and_nothing_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bound(tmp_path, "warn") as (running, client, number):
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x", b"y"])
        async with running.channel() as channel, raw_producer(channel, TOPIC) as raw:
            raw.send(0, b"x", schema_id=number)
            await raw.acked()
        assert running.topic(TOPIC).intake.mismatched_messages == 2
        assert "danube_publish_schema_mismatches_total 2\n" in await client.admin.metrics()
        assert "a batch names no schema, which subject '/default/orders-value' does not have" in caplog.text


async def test_the_policy_and_the_subject_take_effect_on_open_producers(tmp_path: Path) -> None:
    async with bound(tmp_path, "none") as (running, client, _):
        async with client.producer(TOPIC) as producer:
            await producer.send(b"1")
            await client.admin.change_policies("default", schema_validation="enforce")
            await producer.send(b"2")  # the topic's own policy comes first
            await client.admin.change_policies(TOPIC, schema_validation=None)
            with pytest.raises(SchemaMismatchError):
                await producer.send(b"3")
            await client.schemas.bind(TOPIC, "")
            await producer.send(b"4")
            await client.schemas.bind(TOPIC, SUBJECT)
            with pytest.raises(SchemaMismatchError):
                await producer.send(b"5")
            await running.restart(crash=True)
            with pytest.raises(SchemaMismatchError):
                await producer.send(b"6")
            await client.admin.change_policies("default", schema_validation=None)
            await producer.send(b"7")
        with pytest.raises(InvalidArgumentError):
            await client.admin.change_policies(TOPIC, schema_validation="always")


async def test_staged_batches_are_checked(tmp_path: Path) -> None:
    async with bound(tmp_path, "enforce") as (_, client, number):

        async def staged(schema: SchemaRef | None) -> StagedBatch:
            async with client.stages.open(TOPIC, producer="job", batch_id=1, schema=schema) as stage:
                await stage.add([b"x"])
                return await stage.finish()

        for schema in (None, SchemaRef(number + 1, 1)):
            with pytest.raises(SchemaMismatchError):
                await staged(schema)
        with pytest.raises(InvalidArgumentError, match="schema_id"):
            await staged(SchemaRef(-1, 1))
        assert (await client.stages.commit("job", 1, [await staged(SchemaRef(number, 1))])).committed


async def test_what_the_replica_has_not_heard_of_is_asked_for_once(tmp_path: Path) -> None:
    async with bound(tmp_path, "enforce") as (running, _, number):
        rule = running.topic(TOPIC).intake.schema_rule
        assert rule is not None
        schemas = rule.schemas
        asked: list[int] = []
        learn = running.broker.runtime.subjects.learn

        async def learning(subject: str, wanted: int) -> None:
            asked.append(wanted)
            await trio.sleep(1)
            await learn(subject, wanted)
            running.broker.runtime.subjects.changed(subject)

        running.broker.runtime.subjects.learn = learning
        schemas.numbers = frozenset()  # type: ignore[misc]
        async with running.channel() as channel, raw_producer(channel, TOPIC) as raw:
            for sequence in range(3):
                raw.send(sequence, b"x", schema_id=number)
            await raw.acked(3)
            assert asked == [number]


class Silent:
    """The schemas of a subject, of which nothing can be learned."""

    subject, numbers = SUBJECT, frozenset({7})

    async def learn(self, number: int) -> None:
        raise UnavailableError("the metadata do not answer")


async def test_while_the_metadata_do_not_answer_only_known_schemas_are_taken() -> None:
    def header(number: int) -> bytes:
        ids: Any = {"producer_id": 1, "producer_epoch": 1, "base_sequence": 0}
        return encode_part([b"x"], schema_id=number, publish_time_us=1, **ids)

    assert [schema_id_of(header(number)) for number in (0, 7, 2**32 - 1)] == [0, 7, 2**32 - 1]
    assert [schema_id_of(damaged) for damaged in (b"", header(7)[:60], b"\x09" + header(7)[1:])] == [0, 0, 0]
    enforcing = SchemaRule(TOPIC, Silent(), SchemaValidation.ENFORCE)
    assert [enforcing.waits_for(header(number)) for number in (0, 7, 8)] == [False, False, True]
    assert [enforcing.asks(number) for number in (0, 7, 8)] == [False, False, True]
    assert enforcing.check(read_header(header(7)))
    with pytest.raises(UnavailableError):
        await enforcing.learn(8)
    warning = SchemaRule(TOPIC, Silent(), SchemaValidation.WARN)
    await warning.learn(8)
    assert not warning.check(read_header(header(8)))


async def test_subjects_that_nobody_uses_are_forgotten() -> None:
    subjects = Subjects()
    held = subjects.of("a")
    assert subjects.of("a") is held
    subjects.read = lambda subject: frozenset({len(subject)})
    subjects.changed("a")
    subjects.changed("not used")
    assert held.numbers == {1}
    await held.learn(5)
    assert held.numbers == {1}
