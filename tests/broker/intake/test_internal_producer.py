"""A producer inside the broker retries the same batch until it is durable or refused for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from danube.broker.intake.internal_producer import InternalProducer
from danube.log import ProducerSession, StoredBatch
from danube.model.batch import BatchHeader, Record, open_records, read_header
from danube.model.errors import DanubeError, JournalFullError, ProducerFencedError, StorageUnavailableError

pytestmark = pytest.mark.virtual

SESSION = ProducerSession(7, "inside", 3, 40, False, True)


class ScriptedIntake:
    """Answers each batch as the script says: an error, an offset that is known already, or None for success."""

    def __init__(self, *script: DanubeError | int | None, full: int = 0) -> None:
        self.script = list(script)
        self.full = full
        self.parts: list[bytes] = []
        self.attached: list[Any] = []

    async def admit(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.full:
            self.full -= 1
            raise JournalFullError("the journal is full")

    def take(self, sender: InternalProducer, token: Any, part: bytes, header: BatchHeader) -> int | None:
        self.parts.append(part)
        answer = self.script.pop(0)
        if isinstance(answer, int):
            return answer
        batch = StoredBatch(100, 100 + header.record_count, b"", part, header, 1)
        sender.settled(token, batch, answer)
        return None

    def attach(self, sender: InternalProducer, *, internal: bool) -> None:
        assert internal
        self.attached.append(sender)

    def detach(self, sender: InternalProducer) -> None:
        self.attached.remove(sender)


def producing(intake: ScriptedIntake, problems: list[DanubeError | None]) -> InternalProducer:
    topic: Any = SimpleNamespace(name="/default/t", intake=intake)
    return InternalProducer(topic, SESSION, problems.append)


async def test_batches_continue_the_sequence_of_the_session() -> None:
    intake, problems = ScriptedIntake(None, None), []
    with producing(intake, problems) as producer:
        assert intake.attached == [producer]
        assert await producer.publish([Record(b"a"), Record(b"b")], 5) == 100
        assert await producer.publish([Record(b"c", b"k", {"x": "y"}, 2)], 6, schema_id=9, schema_version=1) == 100
    assert intake.attached == []
    headers = [read_header(part) for part in intake.parts]
    assert [(one.base_sequence, one.record_count, one.producer_id, one.producer_epoch) for one in headers] == [
        (40, 2, 7, 3),
        (42, 1, 7, 3),
    ]
    assert [(one.publish_time_us, one.schema_id, one.schema_version) for one in headers] == [(5, 0, 0), (6, 9, 1)]
    assert open_records(intake.parts[1], headers[1], 1_000) == [Record(b"c", b"k", {"x": "y"}, 2)]
    assert problems == [None, None]


async def test_a_stalled_batch_is_sent_again_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    away = StorageUnavailableError("the storage is away")
    intake, problems = ScriptedIntake(away, away, 100, full=1), []
    with producing(intake, problems) as producer:
        assert await producer.publish([Record(b"a")], 5) == 100
    assert len(intake.parts) == 3
    assert len(set(intake.parts)) == 1
    assert trio.current_time() >= 1 + 2 + 4
    assert [type(problem) for problem in problems] == [
        JournalFullError,
        StorageUnavailableError,
        StorageUnavailableError,
        type(None),
    ]


async def test_errors_that_no_repetition_helps_are_raised() -> None:
    intake, problems = ScriptedIntake(ProducerFencedError("another session")), []
    with producing(intake, problems) as producer, pytest.raises(ProducerFencedError):
        await producer.publish([Record(b"a")], 5)
    assert problems == []


async def test_it_stops_when_the_topic_has_gone(autojump_clock: trio.testing.MockClock) -> None:
    intake, problems = ScriptedIntake(StorageUnavailableError("away")), []
    gone = StorageUnavailableError("the topic was unloaded")
    with producing(intake, problems) as producer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ends_with, producer, gone)
            await trio.testing.wait_all_tasks_blocked()
            producer.end(gone)
    assert len(intake.parts) == 1


async def _ends_with(producer: InternalProducer, error: DanubeError) -> None:
    with pytest.raises(type(error), match=error.message):
        await producer.publish([Record(b"a")], 5)
