"""Composing batches of single messages: when a batch is closed and sent, and how senders are notified."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from danube.broker.intake.composer import Composed, Composer, Composing
from danube.broker.intake.schema_rule import SchemaRule
from danube.broker.runtime.runtime import Runtime
from danube.log import StoredBatch
from danube.model import Limits
from danube.model.batch import PART_OVERHEAD, BatchHeader, CompositeRecord, SchemaRef, check_part, open_records
from danube.model.errors import (
    BrokerDrainingError,
    DanubeError,
    FailedPreconditionError,
    JournalFullError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.policies import SchemaValidation

pytestmark = pytest.mark.virtual


class FakeIntake:
    """Takes batches, lets them settle when it is told to, and can be full, or refuse."""

    def __init__(self) -> None:
        self.taken: list[tuple[Composer, Any, bytes, BatchHeader]] = []
        self.settled = 0
        self.full = False
        self.refusal: DanubeError | None = None
        self.admission: DanubeError | None = None
        self.keeps_nothing = False
        self.refused = 0
        self._free = trio.Event()
        self.schema_rule: SchemaRule | None = None

    async def examine(self, part: bytes, header: BatchHeader) -> None:
        if self.schema_rule is not None:
            await self.schema_rule.examine(part, header)

    def try_admit(self, size: int) -> bool:
        if self.admission is not None:
            raise self.admission
        return not self.full

    def note_refused(self, error: DanubeError, messages: int) -> None:
        self.refused += messages

    async def admit(self, size: int) -> None:
        if self.full:
            await self._free.wait()
        await trio.lowlevel.checkpoint()
        if self.admission is not None:
            raise self.admission

    def free(self) -> None:
        self.full = False
        self._free.set()

    def compose(self, waiter: Composer, token: Any, part: bytes, header: BatchHeader) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert check_part(part) == header
        waiter.in_flight += 1
        self.taken.append((waiter, token, part, header))
        if self.keeps_nothing:
            self.settle()

    def settle(self, error: DanubeError | None = None) -> None:
        waiter, token, part, header = self.taken[self.settled]
        self.settled += 1
        waiter.in_flight -= 1
        waiter.settled(token, StoredBatch(0, header.record_count, b"", part, header, 0), error)

    def settle_all(self) -> None:
        while self.settled < len(self.taken):
            self.settle()

    def batches(self) -> list[list[bytes]]:
        return [
            [record.payload for record in cast("list[CompositeRecord]", open_records(part, header, 1 << 24))]
            for _, _, part, header in self.taken
        ]


class Bench:
    """A composer between a fake intake and the test."""

    def __init__(self, nursery: trio.Nursery, **limits: Any) -> None:
        self.intake = FakeIntake()
        self.composing = Composing(cast("Runtime", SimpleNamespace(limits=Limits(**limits), start=nursery.start_soon)))
        self.topic = SimpleNamespace(composer=None, intake=self.intake)
        self.told: dict[bytes, DanubeError | None] = {}

    def send(self, *payloads: bytes, schema: SchemaRef | None = None, time_us: int = 1_000) -> None:
        composer = self.composing.of(cast("Composed", self.topic))
        for payload in payloads:
            record = CompositeRecord(payload, producer="p", producer_id=1)

            def told(error: DanubeError | None, payload: bytes = payload) -> None:
                assert payload not in self.told, "told twice"
                self.told[payload] = error

            composer.add(record, time_us, len(payload), told, *([schema] if schema else []))


@asynccontextmanager
async def bench(**limits: Any) -> AsyncGenerator[Bench, None]:
    async with trio.open_nursery() as nursery:
        made = Bench(nursery, **limits)
        nursery.start_soon(made.composing.run)
        yield made
        nursery.cancel_scope.cancel()


async def turn() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_messages_of_one_turn_are_appended_at_its_end() -> None:
    async with bench() as it:
        it.send(b"1", b"2")
        it.send(b"3")
        assert it.intake.taken == []
        await turn()
        assert it.intake.batches() == [[b"1", b"2", b"3"]]
        assert it.told == {}
        it.intake.settle()
        assert it.told == {b"1": None, b"2": None, b"3": None}


async def test_messages_that_arrive_while_a_batch_is_in_flight_are_appended_when_it_has_settled() -> None:
    async with bench() as it:
        it.send(b"1")
        await turn()
        it.send(b"2")
        await turn()
        it.send(b"3")
        await turn()
        assert it.intake.batches() == [[b"1"]]
        it.intake.settle()
        assert it.intake.batches() == [[b"1"], [b"2", b"3"]]
        it.intake.settle()
        assert it.told == {b"1": None, b"2": None, b"3": None}


async def test_a_full_batch_does_not_wait() -> None:
    async with bench(max_batch_records=2) as it:
        it.send(b"1")
        await turn()
        it.send(b"2", b"3", b"4", b"5", b"6")
        await turn()
        assert it.intake.batches() == [[b"1"], [b"2", b"3"], [b"4", b"5"]]
        for _ in range(3):
            it.intake.settle()
        assert it.intake.batches()[3:] == [[b"6"]]


async def test_batches_stay_small_unless_a_message_is_large() -> None:
    async with bench() as it:
        large, small = bytes(3 << 20), [bytes([n]) * 400_000 for n in range(1, 6)]
        it.send(large, *small)
        await turn()
        it.intake.settle_all()
        assert it.intake.batches() == [[large], small[:2], small[2:4], small[4:]]


async def test_another_schema_begins_another_batch() -> None:
    async with bench() as it:
        it.send(b"1", b"2", schema=SchemaRef(1, 1))
        it.send(b"3", schema=SchemaRef(1, 2))
        it.send(b"4", schema=SchemaRef(1, 2))
        it.send(b"5")
        await turn()
        it.intake.settle()
        it.intake.settle()
        headers = [(header.schema_id, header.schema_version) for *_, header in it.intake.taken]
        assert it.intake.batches() == [[b"1", b"2"], [b"3", b"4"], [b"5"]]
        assert headers == [(1, 1), (1, 2), (0, 0)]


async def test_times_are_kept_in_every_batch() -> None:
    async with bench() as it:
        it.send(b"1", time_us=5_000)
        it.send(b"2", time_us=3_000)
        it.send(b"3", time_us=9_000, schema=SchemaRef(1, 1))
        await turn()
        it.intake.settle()
        found = []
        for _, _, part, header in it.intake.taken:
            records = cast("list[CompositeRecord]", open_records(part, header, 1 << 20))
            found += [(record.payload, header.publish_time_us + record.publish_delta_us) for record in records]
        assert found == [(b"1", 5_000), (b"2", 3_000), (b"3", 9_000)]


async def test_a_topic_that_keeps_nothing_settles_at_once() -> None:
    async with bench(max_batch_records=2) as it:
        it.intake.keeps_nothing = True
        it.send(*(b"%d" % n for n in range(5)))
        await turn()
        assert it.intake.batches() == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
        assert set(it.told.values()) == {None}


@pytest.mark.parametrize("where", ["compose", "admission", "waiting", "settling"])
async def test_everybody_is_told_of_an_error_and_the_next_ones_go(where: str) -> None:
    error = TopicNotFoundError("gone") if where == "admission" else FailedPreconditionError("no")
    async with bench() as it:
        if where == "compose":
            it.intake.refusal = error
        elif where == "admission":
            it.intake.admission = error
        elif where == "waiting":
            it.intake.full = True
        it.send(b"1", b"2")
        await turn()
        if where == "waiting":
            error = it.intake.admission = JournalFullError("full")
            it.intake.free()
            await turn()
        elif where == "settling":
            it.intake.settle(error)
        assert it.told == {b"1": error, b"2": error}
        assert it.intake.refused == (0 if where == "settling" else 2)  # what was appended is counted by the intake
        it.intake.refusal = it.intake.admission = None
        it.send(b"3")
        await turn()
        it.intake.settle()
        assert it.told[b"3"] is None


async def test_waiting_messages_are_appended_in_order() -> None:
    async with bench(max_batch_records=2) as it:
        it.intake.full = True
        for n in range(7):
            it.send(b"%d" % n)
            await turn()
        assert it.intake.taken == []
        it.intake.free()
        await turn()
        it.intake.settle_all()
        assert [payload for batch in it.intake.batches() for payload in batch] == [b"%d" % n for n in range(7)]
        assert set(it.told.values()) == {None}


async def test_a_drain_refuses_messages_that_wait_or_would_have_to_wait() -> None:
    async with bench() as it:
        it.intake.full = True
        it.send(b"1")
        await turn()
        it.send(b"2")
        it.composing.drain()
        await turn()
        it.send(b"3")
        await turn()
        assert {payload: type(error) for payload, error in it.told.items()} == {
            b"1": BrokerDrainingError,
            b"2": BrokerDrainingError,
            b"3": BrokerDrainingError,
        }
        it.intake.free()
        it.send(b"4")
        await turn()
        it.intake.settle()
        assert it.told[b"4"] is None, "what need not wait is still taken"


async def test_a_storage_that_stalls_lets_the_next_batch_go() -> None:
    async with bench() as it:
        it.send(b"1")
        await turn()
        it.intake.settle(UnavailableError("it takes long"))
        it.send(b"2")
        await turn()
        assert it.intake.batches() == [[b"1"], [b"2"]]


async def test_an_intake_of_a_topic_has_one_composer() -> None:
    async with bench() as it:
        topic = cast("Composed", it.topic)
        assert it.composing.of(topic) is it.composing.of(topic)
        assert isinstance(it.composing.of(topic), Composer)


async def test_no_batch_is_larger_than_the_limit_however_small_or_large_its_messages_are() -> None:
    limit = 20_000
    async with bench(max_batch_bytes=limit, max_batch_records=10_000) as it:
        small = [b"%d" % number for number in range(2_000)]
        it.send(*small)
        half = (limit + PART_OVERHEAD) // 2 - 65
        it.send(b"a" * half, b"b" * half)
        await turn()
        it.intake.settle_all()
        assert max(len(part) for _, _, part, _ in it.intake.taken) <= limit
        assert [payload for batch in it.intake.batches() for payload in batch][:2_000] == small
        assert len(it.told) == 2_002


async def test_the_schema_of_a_batch_is_asked_for_before_it_is_appended() -> None:
    class Asked:
        subject = "s"

        def __init__(self) -> None:
            self.numbers = frozenset({7})
            self.asked: list[int] = []

        async def learn(self, number: int) -> None:
            await trio.lowlevel.checkpoint()
            self.asked.append(number)
            if number == 9:
                raise UnavailableError("the metadata do not answer")

    async with bench() as it:
        schemas = Asked()
        it.intake.schema_rule = SchemaRule("/default/t", schemas, SchemaValidation.ENFORCE)
        for number in (7, 8, 9):
            it.send(b"%d" % number, schema=SchemaRef(number, 1))
        await turn()
        it.intake.settle_all()
        await turn()
        it.intake.settle_all()
        assert schemas.asked == [8, 9]
        assert [header.schema_id for _, _, _, header in it.intake.taken] == [7, 8]
        assert {payload: type(error) for payload, error in it.told.items()} == {
            b"7": type(None),
            b"8": type(None),
            b"9": UnavailableError,
        }
