"""The rules of staged publishing one by one, with topics that settle on demand and metadata with single failures."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio

from danube.broker.runtime.config import BrokerConfig
from danube.broker.runtime.runtime import Runtime
from danube.broker.runtime.seams import Seams
from danube.broker.stages import Stages
from danube.log import ProducerSession, StoredBatch
from danube.metadata import MemoryStore
from danube.model import Durability, Limits, api, stage_api
from danube.model.batch import BatchHeader, encode_part, open_records
from danube.model.errors import (
    DanubeError,
    DataDirectoryError,
    DataLossError,
    DuplicateSequenceError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.limits import MIB
from danube.model.stage_api import StageCommit, StageOpened
from danube.testing.disk import SimulatedDisk

pytestmark = pytest.mark.virtual

AWAY = UnavailableError("away for a while")
FULL = UnavailableError("the journal is full")
_REPLY = msgspec.msgpack.Decoder(stage_api.StageReply)


class FakeTopic:
    """A topic and its intake: batches settle at once, or when they are told to."""

    def __init__(self, name: str, topic_id: int, durability: Durability = Durability.DISK) -> None:
        self.name, self.topic_id, self.durability = name, topic_id, durability
        self.lossy = durability is Durability.NONE
        self.intake = self
        self.max_message_bytes = MIB
        self.at_once = True
        self.producer_id = 1000 + topic_id
        self.forgetful = False
        """Whether it has forgotten where batches are that it knows."""
        self.damage: DanubeError | None = None
        self.refusal: DanubeError | None = None
        """Says no to a batch that asks to be admitted."""
        self.on_open: Callable[[], None] = lambda: None
        self.on_admit: Callable[[], None] = lambda: None
        self.epoch = self.next_sequence = self.end_offset = 0
        self.rows: list[bytes] = []
        self.known: dict[int, int] = {}
        self.opened: list[tuple[str, bool, bool]] = []
        self.openings: list[float] = []
        self.here: list[Any] = []
        self.paid: list[tuple[int, int]] = []
        self.admitted: list[int] = []
        self.taken: list[int] = []
        self.waiting: list[tuple[Any, int, StoredBatch]] = []

    def check_alive(self) -> None:
        if self.damage is not None:
            raise self.damage

    def check_schema(self, header: BatchHeader) -> None:
        pass

    async def examine(self, part: bytes, header: BatchHeader) -> None:
        pass

    def check_delivery_time(self, deliver_at_us: int) -> None:
        raise AssertionError("nothing is delayed here")

    def said_max_message_bytes(self) -> str:
        return "the limit"

    async def open(self, request: api.PublishOpen, *, internal: bool) -> ProducerSession:
        self.openings.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        self.on_open()
        self.opened.append((request.producer_name, bool(request.anonymous), internal))
        self.epoch += 1
        return ProducerSession(self.producer_id, request.producer_name, self.epoch, self.next_sequence, False, True)

    def attach(self, sender: Any, *, internal: bool) -> None:
        assert internal
        self.here.append(sender)

    def detach(self, sender: Any) -> None:
        self.here.remove(sender)

    async def pay(self, records: int, size: int) -> None:
        self.paid.append((records, size))

    async def admit(self, size: int, *, paid: bool) -> None:
        await trio.lowlevel.checkpoint()
        assert paid, "what was staged was paid for"
        self.on_admit()
        if self.refusal is not None:
            raise self.refusal
        self.admitted.append(size)

    def take(self, sender: Any, token: Any, part: bytes, header: BatchHeader, *, paid: bool) -> int | None:
        assert paid
        assert sender in self.here
        assert len(self.admitted) == len(self.taken) + 1, "each batch is admitted before it is taken"
        assert self.admitted[-1] == len(part)
        assert (header.producer_id, header.producer_epoch) == (self.producer_id, self.epoch)
        self.taken.append(header.base_sequence)
        if header.base_sequence < self.next_sequence:
            if self.forgetful:
                raise DuplicateSequenceError("stored, place unknown")
            return self.known[header.base_sequence]
        assert header.base_sequence == self.next_sequence, "a gap"
        start, count = self.end_offset, header.record_count
        self.known[self.next_sequence] = start
        self.next_sequence += count
        self.end_offset += count
        if len(part) < MIB:
            self.rows += cast("list[bytes]", open_records(part, header, MIB))
        self.waiting.append((sender, token, StoredBatch(start, start + count, b"", part, header, 0)))
        if self.at_once:
            self.settle()
        return None

    def settle(self, error: DanubeError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for sender, token, batch in waiting:
            sender.settled(token, batch, error)


class Metadata(MemoryStore):
    """A store whose writes may be refused, or lose their answers; ``away``: nothing can be read either."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        """What becomes of the next ones: ``ok``, ``refuse`` or ``lose``."""
        self.away = False

    async def get(self, key: str) -> Any:
        if self.away:
            raise AWAY
        return await super().get(key)

    async def transact(self, conditions: Sequence[Any], operations: Sequence[Any]) -> Any:
        if [each.key for each in operations] == ["/writers/b1/stages"]:  # opens or settles
            if self.away:
                raise AWAY
            return await super().transact(conditions, operations)
        what = self.writes.pop(0) if self.writes else "ok"
        if what == "refuse":
            raise AWAY
        result = await super().transact(conditions, operations)
        if what == "lose":
            raise AWAY
        return result


class FakeMessage:
    def __init__(self, request: Any) -> None:
        self.data = request if isinstance(request, bytes) else msgspec.msgpack.encode(request)
        self.released = False

    def release(self) -> None:
        self.released = True


class FakeStream:
    """A Stage stream: the test is the peer."""

    def __init__(self) -> None:
        self._to, self._from = trio.open_memory_channel[FakeMessage](100)
        self.messages: list[FakeMessage] = []
        self.sent: list[Any] = []
        self.scope = trio.CancelScope()
        self.failure: DanubeError | None = None

    def say(self, *requests: Any) -> None:
        for request in requests:
            self.messages.append(FakeMessage(request))
            self._to.send_nowait(self.messages[-1])

    def end(self) -> None:
        self._to.close()

    async def receive(self) -> FakeMessage | None:
        try:
            return await self._from.receive()
        except trio.EndOfChannel:
            return None

    def receive_nowait(self) -> list[FakeMessage]:
        found = []
        while self._from.statistics().current_buffer_used:
            found.append(self._from.receive_nowait())
        return found

    def send_nowait(self, data: bytes) -> bool:
        self.sent.append(_REPLY.decode(data))
        return True

    def abandon(self, error: DanubeError | None) -> None:
        self.failure = self.failure or error
        self.scope.cancel()


def part(*payloads: bytes) -> stage_api.StageBatch:
    return stage_api.StageBatch(
        encode_part(list(payloads), producer_id=0, producer_epoch=0, base_sequence=0, publish_time_us=1)
    )


def opening(batch_id: int, topic: str = "/default/a", producer: str = "job", attempt: str = "") -> stage_api.StageOpen:
    return stage_api.StageOpen(topic=topic, producer=producer, batch_id=batch_id, attempt=attempt)


CONTEXT = cast("Any", SimpleNamespace(connection_id=1))


class World:
    """The stages of a broker, and what is around them; :meth:`restart` begins another life of it."""

    def __init__(self, nursery: trio.Nursery, store: Metadata, **limits: Any) -> None:
        self.nursery, self.store = nursery, store
        self.disk = SimulatedDisk(Random(1), growing=True, write_delay_s=0, sync_delay_s=0, read_delay_s=0)
        self.topics = {
            name: FakeTopic(name, number) for number, name in enumerate(("/default/a", "/default/b", "/default/c"), 1)
        }
        self.topics["/default/none"] = FakeTopic("/default/none", 9, Durability.NONE)
        self.ids = 0
        limits = {"max_batch_bytes": 8 * MIB, **limits}
        runtime = Runtime(
            BrokerConfig(data_directory="/data", cluster="here", limits=Limits(**limits)),
            Seams(wall_clock_us=lambda: 10**15 + round(trio.current_time() * 1e6), random=Random(1)),
        )
        runtime.new_id = self.new_id  # type: ignore[method-assign]
        runtime.begin(nursery)
        self.directory = SimpleNamespace(
            runtime=runtime,
            catalogue=SimpleNamespace(store=store, locate=self.locate),
            membership=SimpleNamespace(broker="b1", is_alone=True, brokers=SimpleNamespace(values={})),
            find=self.topics.__getitem__,
            for_producer=self.topic_for_producer,
        )
        self.stages = Stages(cast("Any", self.directory), self.disk)

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def locate(self, name: str) -> tuple[None, int]:
        if name not in self.topics:
            raise TopicNotFoundError(f"topic {name!r} does not exist")
        return None, self.topics[name].topic_id

    async def topic_for_producer(self, request: api.PublishOpen) -> FakeTopic:
        return self.topics[request.topic]

    async def restart(self) -> None:
        self.stages = Stages(cast("Any", self.directory), self.disk)
        for topic in self.topics.values():
            topic.here.clear()
            topic.waiting.clear()
        await self.stages.load()

    async def stage(self, stream: FakeStream) -> None:
        """The handler, as the wire calls it."""
        with stream.scope:
            await self.stages.stage(cast("Any", stream), CONTEXT)
        if stream.scope.cancelled_caught and stream.failure is not None:
            raise stream.failure

    async def staged(self, batch_id: int, *rows: bytes, alone: bool = False, **fields: Any) -> int:
        """Stage rows, in one batch or each ``alone``, and return the stage's id."""
        stream = FakeStream()
        parts = [part(row) for row in rows] if alone else [part(*rows)]
        stream.say(opening(batch_id, **fields), *parts, stage_api.StageFinish())
        await self.stage(stream)
        staged: int = stream.sent[-1].stage.stage_id
        return staged

    async def commit(self, batch_id: int, *stage_ids: int, producer: str = "job", label: str = "") -> StageCommit:
        request = stage_api.CommitStages(producer=producer, batch_id=batch_id, stage_ids=list(stage_ids), label=label)
        return await self.stages.commit(request, CONTEXT)

    async def abort(self, batch_id: int, *stage_ids: int, producer: str = "job") -> tuple[int, bool]:
        request = stage_api.AbortStages(producer=producer, batch_id=batch_id, stage_ids=list(stage_ids))
        answer = await self.stages.abort(request, CONTEXT)
        return answer.dropped, answer.committed

    async def last(self, producer: str = "job") -> int | None:
        return (await self.stages.last_batch(stage_api.LastBatch(producer), CONTEXT)).batch_id

    async def states(self, producer: str = "") -> dict[int, str]:
        found = await self.stages.list(stage_api.ListStages(producer), CONTEXT)
        return {info.stage_id: info.state for info in found.stages}

    def rows(self, name: str = "/default/a") -> list[bytes]:
        return self.topics[name].rows


@asynccontextmanager
async def world_of(**limits: Any) -> AsyncGenerator[World, None]:
    async with Metadata() as store, trio.open_nursery() as nursery:
        world = World(nursery, store, **limits)
        await world.stages.load()
        yield world
        nursery.cancel_scope.cancel()


async def outcome_of(call: Callable[[], Awaitable[Any]], into: list[Any]) -> None:
    try:
        into.append(await call())
    except DanubeError as error:
        into.append(error)


async def come_to_rest() -> None:
    """Let everything happen that needs no time to pass."""
    for _ in range(100):
        await trio.lowlevel.checkpoint()


# --- A decision is carried out, whatever comes between ---


async def test_a_committed_batch_is_applied_before_the_next_one_is_committed() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        first, second = await world.staged(0, b"1", b"2"), await world.staged(1, b"3")
        a.refusal = FULL
        with pytest.raises(UnavailableError, match="committed, but not applied yet"):
            await world.commit(0, first)
        assert await world.last() == 0
        with pytest.raises(UnavailableError, match="batch 0 of producer 'job' is committed"):
            await world.commit(1, second)
        assert await world.last() == 0, "nothing is decided behind a batch that is not finished"
        assert await world.states() == {first: "committing", second: "staged"}
        a.refusal = None
        assert await world.commit(1, second, label="run") == StageCommit(True, {"/default/a": (2, 3)}, "run")
        assert world.rows() == [b"1", b"2", b"3"]
        assert await world.states() == {}
        assert await world.commit(1) == StageCommit(False, {"/default/a": (2, 3)}, "run")
        assert await world.commit(0) == StageCommit(False, {}, "run"), "where earlier batches are is not kept"


async def test_asking_again_for_a_batch_that_is_not_finished_finishes_it() -> None:
    async with world_of() as world:
        first = await world.staged(0, b"1")
        world.topics["/default/a"].refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, first, label="one")
        world.topics["/default/a"].refusal = None
        assert await world.commit(0, first, label="two") == StageCommit(False, {"/default/a": (0, 1)}, "one")
        assert world.rows() == [b"1"]


@pytest.mark.parametrize("which", ["decision", "end"])
async def test_a_write_whose_answer_was_lost_counts(which: str) -> None:
    async with world_of() as world:
        staged = await world.staged(0, b"1")
        world.store.writes = ["lose"] if which == "decision" else ["ok", "lose"]
        assert (await world.commit(0, staged)).committed
        assert (world.rows(), await world.last()) == ([b"1"], 0)
        assert (await world.commit(1, await world.staged(1, b"2"))).committed, "the revision is the one that counts"


async def test_a_decision_that_was_refused_is_none_and_its_stages_can_be_committed_again() -> None:
    async with world_of() as world:
        staged = await world.staged(0, b"1")
        world.store.writes = ["refuse"]
        with pytest.raises(UnavailableError, match="away"):
            await world.commit(0, staged)
        assert await world.states() == {staged: "staged"}
        assert await world.last() is None
        assert world.stages.held_producers == frozenset()
        assert (await world.commit(0, staged)).committed
        assert world.rows() == [b"1"]


@pytest.mark.parametrize("written", [True, False])
async def test_a_decision_that_is_in_doubt_is_looked_up_before_anything_else(written: bool) -> None:
    async with world_of() as world:
        staged, other = await world.staged(0, b"1"), await world.staged(0, b"2")
        world.store.writes, world.store.away = ["lose" if written else "refuse"], True
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        assert world.rows() == []
        assert await world.states() == {staged: "committing", other: "staged"}
        for question in (world.last, partial(world.commit, 0, staged), partial(world.abort, 0)):
            with pytest.raises(UnavailableError):  # who cannot know does not say
                await question()
        assert await world.states() == {staged: "committing", other: "staged"}
        world.store.away = False
        assert await world.last() == (0 if written else None)
        assert await world.states() == {staged: "committing" if written else "staged", other: "staged"}
        outcome = await world.commit(0, staged)
        assert outcome == StageCommit(not written, {"/default/a": (0, 1)})
        assert world.rows() == [b"1"]
        assert await world.states() == {}


@pytest.mark.parametrize("written", [True, False])
async def test_a_batch_in_doubt_is_looked_up_and_finished_without_a_request(written: bool) -> None:
    async with world_of() as world:
        world.nursery.start_soon(world.stages.run)
        staged = await world.staged(0, b"1")
        world.store.writes, world.store.away = ["lose" if written else "refuse"], True
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        await trio.sleep(20)
        assert await world.states() == {staged: "committing"}
        world.store.away = False
        await trio.sleep(40)
        assert world.rows() == ([b"1"] if written else [])
        assert await world.states() == ({} if written else {staged: "staged"})


async def test_an_abort_of_a_batch_in_doubt_finds_out_first() -> None:
    async with world_of() as world:
        staged, loser = await world.staged(0, b"1"), await world.staged(0, b"2")
        world.store.writes, world.store.away = ["lose"], True
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        world.store.away = False
        assert await world.abort(0) == (1, True)
        assert await world.states() == {staged: "committing"}, "what is decided stays"
        assert loser not in await world.states()


async def test_a_commit_whose_end_was_in_doubt_leaves_no_stages_behind() -> None:
    async with world_of() as world:
        staged, _loser = await world.staged(0, b"1"), await world.staged(0, b"2")
        later = await world.staged(1, b"3")
        topic = world.topics["/default/a"]
        topic.on_admit = lambda: setattr(world.store, "away", True)  # from after the decision on
        world.store.writes = ["ok", "lose"]
        with pytest.raises(UnavailableError, match="not applied yet"):
            await world.commit(0, staged)
        world.store.away = False
        assert await world.last() == 0
        assert await world.states() == {later: "staged"}
        assert [known.problem for known in world.stages._ledger] == [None]
        assert await world.commit(0, staged) == StageCommit(False, {"/default/a": (0, 1)})
        assert world.rows() == [b"1"]


@pytest.mark.parametrize("in_doubt", [False, True])
async def test_the_next_life_applies_committed_batches(in_doubt: bool) -> None:
    async with world_of() as world:
        a, b = world.topics["/default/a"], world.topics["/default/b"]
        won = [await world.staged(3, b"1"), await world.staged(3, b"2", topic="/default/b")]
        await world.staged(3, b"lost")
        await world.staged(2, b"late")
        later = await world.staged(4, b"3")
        other = await world.staged(3, b"another", producer="other")
        if in_doubt:
            world.store.writes, world.store.away = ["lose"], True
        else:
            a.refusal = b.refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(3, *won)
        world.store.away, a.refusal, b.refusal = False, None, None
        await world.restart()
        states = await world.states()
        assert states == {won[0]: "committing", won[1]: "committing", later: "staged", other: "staged"}
        assert world.stages.held_producers == {1001, 1002}, "their sequences are in a decision"
        assert await world.last() == 3
        assert await world.abort(3) == (0, True)
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        assert (a.rows, b.rows) == ([b"1"], [b"2"])
        assert world.stages.held_producers == frozenset()
        assert await world.states() == {later: "staged", other: "staged"}
        assert (await world.commit(4, later)).committed
        assert a.rows == [b"1", b"3"]


async def test_a_batch_that_waits_is_tried_again_after_pauses_that_double(caplog: pytest.LogCaptureFixture) -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        await trio.sleep(100)
        assert a.openings == [], "nothing is looked for while nothing waits"
        staged = await world.staged(0, b"1")
        a.refusal = FULL
        began = trio.current_time()
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        await trio.sleep(120)
        tries = [round(each - began) for each in a.openings]
        assert tries[1:] == [0, 1, 3, 7, 15, 31, 61, 91], "the commit itself, at once, and then twice as long each time"
        assert [record.message for record in caplog.records] == [], "the caller was told"
        a.refusal = UnavailableError("the disk is slow")
        await trio.sleep(70)
        (record,) = caplog.records
        assert "staged batches of 'job' are delayed" in record.message, "another reason is told, once"
        a.refusal = None
        await trio.sleep(30)
        assert (a.rows, await world.states()) == ([b"1"], {})
        # The next trouble begins with short pauses again.
        staged = await world.staged(1, b"2")
        a.refusal = FULL
        a.openings.clear()
        began = trio.current_time()
        with pytest.raises(UnavailableError):
            await world.commit(1, staged)
        await trio.sleep(4)
        assert [round(each - began) for each in a.openings[1:]] == [0, 1, 3]


async def test_a_batch_that_cannot_be_finished_after_a_restart_is_told_once_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1")
        a.refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        await world.restart()
        world.nursery.start_soon(world.stages.run)
        await trio.sleep(100)
        (record,) = caplog.records
        assert "staged batches of 'job' are delayed" in record.message
        a.refusal = None
        await trio.sleep(30)
        assert a.rows == [b"1"]


async def test_one_that_commits_is_not_disturbed() -> None:
    """The upkeep leaves a producer alone whose commit is under way."""
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1")
        a.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, staged), found)
        await come_to_rest()
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        assert (len(a.taken), found) == (1, [])
        a.settle()
        await come_to_rest()
        assert found[0].committed
        assert a.taken == [0]


# --- What is appended ---


async def test_a_commit_answers_when_all_of_it_is_durable() -> None:
    async with world_of() as world:
        a, b = world.topics["/default/a"], world.topics["/default/b"]
        stages = [await world.staged(0, b"1", b"2", alone=True), await world.staged(0, b"3", topic="/default/b")]
        a.at_once = b.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, *stages), found)
        await come_to_rest()
        assert world.stages.held_producers == {1001, 1002}
        a.settle()
        await come_to_rest()
        assert (len(a.here), len(b.here), found) == (0, 1, [])
        b.settle()
        await come_to_rest()
        assert found == [StageCommit(True, {"/default/a": (0, 2), "/default/b": (0, 1)})]
        assert (a.opened, b.opened) == ([("staged/job", True, True)], [("staged/job", True, True)])
        assert world.stages.held_producers == frozenset()


async def test_batches_in_flight_are_bounded() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        a.max_message_bytes = 8 * MIB
        staged = await world.staged(0, *[bytes(5_700_000)] * 4, alone=True)
        a.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, staged), found)
        for taken in (3, 4):
            await come_to_rest()
            assert len(a.taken) == taken, "no more is taken when more than 16 MiB are on their way"
            assert len(a.admitted) == taken, "what was admitted is taken before anything else runs"
            a.settle()
        await come_to_rest()
        assert found[0].offsets == {"/default/a": (0, 4)}


async def test_a_commit_that_was_cut_short_appends_the_missing_batches() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        a.end_offset = 50
        staged = await world.staged(0, b"1", b"2", b"3", alone=True)

        def break_down() -> None:
            a.refusal = FULL if len(a.taken) == 2 else None

        a.on_admit = break_down
        with pytest.raises(UnavailableError, match="full"):
            await world.commit(0, staged)
        assert (a.taken, a.here) == ([0, 1], [])
        a.on_admit = lambda: None
        a.end_offset = 60  # others have gone on meanwhile
        a.refusal = None
        assert (await world.commit(0)).offsets == {"/default/a": (50, 61)}
        assert a.taken == [0, 1, 0, 1, 2]
        assert a.rows == [b"1", b"2", b"3"]


async def test_batches_that_the_topic_no_longer_remembers_are_there_from_the_decision_on() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        a.end_offset = 50
        staged = await world.staged(0, b"1", b"2", b"3", alone=True)

        def break_down() -> None:
            a.refusal = FULL if len(a.taken) == 2 else None

        a.on_admit = break_down
        with pytest.raises(UnavailableError, match="full"):
            await world.commit(0, staged)
        a.on_admit, a.refusal, a.forgetful = (lambda: None), None, True
        a.end_offset = 60
        assert (await world.commit(0)).offsets == {"/default/a": (50, 61)}
        assert a.rows == [b"1", b"2", b"3"]


async def test_a_batch_that_fails_on_its_way_is_appended_again() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1")
        a.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, staged), found)
        await come_to_rest()
        a.settle(FULL)
        await come_to_rest()
        assert "full" in found[0].message
        assert a.here == []
        assert (await world.commit(0)).offsets == {"/default/a": (0, 1)}, "its repeat is recognised"


async def test_a_failed_share_does_not_wait_for_other_batches_in_flight() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1", b"2", alone=True)
        a.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, staged), found)
        await come_to_rest()
        sender, size, batch = a.waiting[0]
        sender.settled(size, batch, FULL)
        await come_to_rest()
        assert "full" in found[0].message
        assert a.here == []


async def test_a_share_that_failed_is_told_of_the_first_error() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1", b"2", alone=True)
        a.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, staged), found)
        await come_to_rest()
        for (sender, size, batch), error in zip(a.waiting, (FULL, AWAY), strict=True):
            sender.settled(size, batch, error)
        sender.end(UnavailableError("the topic has gone"))
        await come_to_rest()
        assert found[0].message.endswith(FULL.message)


async def test_a_share_that_was_ended_while_it_was_admitted_takes_nothing_more() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1")
        a.on_admit = lambda: a.here[0].end(UnavailableError("the topic has gone"))
        with pytest.raises(UnavailableError, match="has gone"):
            await world.commit(0, staged)
        assert (a.taken, a.here) == ([], [])


async def test_a_commit_whose_session_is_taken_over_says_so_and_is_repeated() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        staged = await world.staged(0, b"1")
        a.at_once = False
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, staged), found)
        await come_to_rest()
        a.here[0].end(None)
        a.settle()
        await come_to_rest()
        assert "another commit of this producer" in found[0].message
        a.at_once = True
        assert (await world.commit(0)).offsets == {"/default/a": (0, 1)}


async def test_a_topic_that_lost_its_latest_batches_goes_on_from_where_it_stands() -> None:
    """Durability ``os`` and a power cut: sequences of batches that are gone are given again."""
    async with world_of() as world:
        a = world.topics["/default/a"]
        a.next_sequence, a.end_offset = 7, 7
        staged = await world.staged(1, b"1", b"2")
        a.refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(1, staged)
        await world.restart()
        a.refusal, a.next_sequence, a.end_offset = None, 4, 4
        a.producer_id, a.at_once = 4711, False  # its producer is another one, too
        found: list[Any] = []
        world.nursery.start_soon(outcome_of, partial(world.commit, 1), found)
        await come_to_rest()
        assert world.stages.held_producers == {4711}
        a.settle()
        await come_to_rest()
        assert found[0].offsets == {"/default/a": (4, 6)}
        assert (a.taken, a.rows) == ([4], [b"1", b"2"])


@pytest.mark.parametrize("again", [False, True])
async def test_the_share_of_a_topic_that_was_deleted_after_the_decision_is_void(again: bool) -> None:
    async with world_of() as world:
        a, b = world.topics["/default/a"], world.topics["/default/b"]
        stages = [await world.staged(0, b"1"), await world.staged(0, b"2", topic="/default/b")]
        a.refusal = b.refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, *stages)
        del world.topics["/default/a"]
        if again:
            world.topics["/default/a"] = FakeTopic("/default/a", 77)
        b.refusal = None
        assert await world.commit(0) == StageCommit(False, {"/default/b": (0, 1)})
        assert (a.rows, b.rows) == ([], [b"2"])
        assert not again or world.rows() == []
        assert await world.states() == {}


async def test_a_topic_that_is_deleted_before_its_share_is_appended_stops_no_commit() -> None:
    async with world_of() as world:
        a, b = world.topics["/default/a"], world.topics["/default/b"]
        stages = [await world.staged(0, b"1"), await world.staged(0, b"2", topic="/default/b")]
        b.refusal = a.refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, *stages)
        await world.restart()
        b.refusal = a.refusal = None
        for topic in (a, b):  # both sessions are open when one of the topics goes
            topic.on_open = lambda: len(a.opened) + len(b.opened) == 3 and world.topics.pop("/default/a", None)
        assert await world.commit(0) == StageCommit(False, {"/default/b": (0, 1)})
        assert (a.rows, b.rows) == ([], [b"2"])


async def test_a_topic_that_is_deleted_while_its_share_is_appended_stops_no_commit() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        stages = [await world.staged(0, b"1"), await world.staged(0, b"2", topic="/default/b")]

        def delete() -> None:
            world.topics.pop("/default/a", None)
            a.refusal = TopicNotFoundError("topic '/default/a' does not exist")

        a.on_admit = delete
        assert await world.commit(0, *stages) == StageCommit(True, {"/default/b": (0, 1)})


async def test_a_decided_stage_that_is_lost_is_data_loss_and_says_which() -> None:
    async with world_of() as world:
        staged = await world.staged(0, b"1")
        world.topics["/default/a"].refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        world.topics["/default/a"].refusal = None
        for name in await world.disk.list():
            await world.disk.remove(name)
        await world.restart()
        with pytest.raises(DataLossError, match=rf"batch 0 of producer 'job' is committed.*{staged:016x}"):
            await world.commit(0)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_topic_that_cannot_take_anything_is_found_before_the_decision(count: int) -> None:
    async with world_of() as world:
        stages = [await world.staged(0, b"1"), await world.staged(0, b"2", topic="/default/b")]
        world.topics["/default/a"].damage = DataLossError("topic '/default/a' is damaged")
        with pytest.raises(DataLossError, match="is damaged"):
            await world.commit(0, *stages[:count])
        assert await world.last() is None
        assert set((await world.states()).values()) == {"staged"}
        assert world.rows("/default/b") == []


async def test_a_large_stage_is_read_in_pieces() -> None:
    async with world_of() as world:
        world.topics["/default/a"].max_message_bytes = 8 * MIB
        sizes = [MIB] * 9 + [6 * MIB]
        staged = world.stages._store.find(await world.staged(0, *map(bytes, sizes), alone=True))
        assert staged is not None
        reader, found = world.stages._store.read(staged), []
        while parts := await reader.next_parts():
            found.append([header.unpacked_size // MIB for _, header in parts])
        assert found == [[1] * 3, [1] * 3, [1] * 3, [6]]


async def test_damage_in_a_later_stage_is_found_before_the_decision() -> None:
    async with world_of() as world:
        stages = [await world.staged(0, b"1"), await world.staged(0, b"2" * 100)]
        name = f"{stages[1]:016x}.stage"
        world.disk.content(name)[-60] ^= 1
        with pytest.raises(DataLossError, match=name):
            await world.commit(0, *stages)
        assert (await world.last(), world.rows()) == (None, [])


async def test_damage_far_into_a_large_stage_is_found_before_the_decision() -> None:
    async with world_of() as world:
        world.topics["/default/a"].max_message_bytes = 8 * MIB
        staged = await world.staged(0, *[bytes(3 * MIB)] * 3, alone=True)
        world.disk.content(f"{staged:016x}.stage")[-1000] ^= 1
        with pytest.raises(DataLossError):
            await world.commit(0, staged)
        assert (await world.last(), world.rows()) == (None, [])


# --- What is refused, and what is dropped ---


async def test_stages_of_other_batches_states_and_producers_are_refused_by_name() -> None:
    async with world_of() as world:
        good = await world.staged(1, b"1")
        later, foreign = await world.staged(2, b"2"), await world.staged(1, b"3", producer="other")
        stream, told = FakeStream(), list[Any]()
        stream.say(opening(1))
        world.nursery.start_soon(outcome_of, partial(world.stage, stream), told)
        await come_to_rest()
        unfinished = stream.sent[0].stage_id
        for wrong, why in (
            (later, "belongs to another batch"),
            (foreign, "belongs to another batch"),
            (unfinished, "is not finished"),
            (99, "does not exist"),
        ):
            with pytest.raises(FailedPreconditionError, match=rf"{wrong:016x}.* {why}.*; nothing was committed"):
                await world.commit(1, good, wrong)
        with pytest.raises(FailedPreconditionError, match="and 3 more"):
            await world.commit(1, *range(100, 113))
        with pytest.raises(FailedPreconditionError) as caught:
            await world.commit(1, *range(100, 110))
        assert "more" not in str(caught.value)
        assert set((await world.states()).values()) == {"staged", "open"}
        assert (await world.commit(1, good)).committed


async def test_an_abort_drops_only_the_stages_that_it_names() -> None:
    async with world_of() as world:
        one, two, three = [await world.staged(5, row) for row in (b"1", b"2", b"3")]
        later, foreign = await world.staged(6, b"4"), await world.staged(5, b"5", producer="other")
        assert await world.abort(5, two, later, foreign) == (1, False)
        assert sorted(await world.states()) == sorted((one, three, later, foreign))
        assert await world.abort(5, two) == (0, False)
        assert await world.abort(6) == (1, False)
        later = await world.staged(6, b"4")
        assert (await world.commit(4)).committed
        assert await world.abort(5) == (2, False)
        assert sorted(await world.states()) == sorted((later, foreign))
        assert await world.abort(4) == (0, True)
        with pytest.raises(InvalidArgumentError, match="batch id -1"):
            await world.abort(-1)


async def test_a_task_that_still_stages_is_told_of_the_abort() -> None:
    async with world_of() as world:
        stream, told = FakeStream(), list[Any]()
        stream.say(opening(5), part(b"1"))
        world.nursery.start_soon(outcome_of, partial(world.stage, stream), told)
        await come_to_rest()
        assert await world.abort(5) == (1, False)
        await come_to_rest()
        assert "was aborted" in str(told[0])
        assert await world.states() == {}


async def test_a_commit_drops_older_stages_and_those_that_it_does_not_name() -> None:
    async with world_of() as world:
        old, loser, won = await world.staged(4, b"1"), await world.staged(5, b"2"), await world.staged(5, b"3")
        later, foreign = await world.staged(6, b"4"), await world.staged(4, b"5", producer="other")
        stream, told = FakeStream(), list[Any]()
        stream.say(opening(5))
        world.nursery.start_soon(outcome_of, partial(world.stage, stream), told)
        await come_to_rest()
        assert (await world.commit(5, won)).committed
        await come_to_rest()
        assert "committed without it" in str(told[0])
        assert sorted(await world.states()) == [later, foreign]
        assert {old, loser, won}.isdisjoint(await world.states())


async def test_files_of_dropped_stages_count_until_they_are_removed() -> None:
    async with world_of() as world:
        await world.staged(0, b"1" * 100)
        listed = await world.stages.list(stage_api.ListStages(), CONTEXT)
        ((_, size),) = (await world.disk.list()).items()
        assert (listed.total, listed.size_bytes, listed.limit_bytes) == (1, size, Limits().max_staged_bytes)
        await world.abort(0)
        listed = await world.stages.list(stage_api.ListStages(), CONTEXT)
        assert (listed.total, listed.size_bytes) == (0, size)
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        assert await world.disk.list() == {}
        assert (await world.stages.list(stage_api.ListStages(), CONTEXT)).size_bytes == 0


async def test_a_file_that_cannot_be_removed_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with world_of() as world:
        await world.staged(0, b"1")
        await world.staged(0, b"2")
        remove, failures = world.disk.remove, [OSError(errno.EIO, "no")]

        async def fail_once(name: str) -> None:
            if failures:
                raise failures.pop()
            await remove(name)

        world.disk.remove = fail_once  # type: ignore[method-assign]
        await world.abort(0)
        world.nursery.start_soon(world.stages.run)
        await trio.sleep(29)
        assert len(await world.disk.list()) == 2
        await trio.sleep(2)
        assert await world.disk.list() == {}
        assert len(caplog.records) == 1


async def test_files_that_contradict_their_names_or_ends_are_removed_by_the_next_life() -> None:
    async with world_of() as world:
        kept = await world.staged(0, b"1", b"2")
        for what in ("another name", "too long", "no head", "no end"):
            name = f"{await world.staged(0, what.encode() * 10):016x}.stage"
            content = world.disk.content(name)
            if what == "another name":
                await world.disk.rename(name, f"{777:016x}.stage")
            elif what == "too long":
                content[100:100] = bytes(5)
            elif what == "no head":
                content[5] ^= 1
            else:
                content[-1] ^= 1
        await world.restart()
        assert await world.states() == {kept: "staged"}
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        assert list(await world.disk.list()) == [f"{kept:016x}.stage"]
        assert (await world.commit(0, kept)).offsets == {"/default/a": (0, 2)}
        await come_to_rest()
        assert (await world.stages.list(stage_api.ListStages(), CONTEXT)).size_bytes == 0


async def test_a_list_begins_with_the_oldest_and_may_be_of_one_producer() -> None:
    async with world_of() as world:
        late = await world.staged(0, b"1", b"2", attempt="1.0")
        await trio.sleep(5)
        other = await world.staged(1, b"3", producer="other")
        world.ids = -1
        early = await world.staged(2, b"4")
        await trio.sleep(2)
        listed = await world.stages.list(stage_api.ListStages(), CONTEXT)
        assert [info.stage_id for info in listed.stages] == [late, early, other]
        assert [round(info.age_s) for info in listed.stages] == [7, 2, 2]
        first = listed.stages[0]
        assert (first.topic, first.producer, first.batch_id, first.attempt) == ("/default/a", "job", 0, "1.0")
        assert (first.state, first.records) == ("staged", 2)
        listed = await world.stages.list(stage_api.ListStages("other"), CONTEXT)
        assert [info.stage_id for info in listed.stages] == [other]
        assert listed.total == 1


async def test_no_more_than_ten_thousand_are_listed() -> None:
    async with world_of(max_stages=20_000) as world:
        first = world.stages._store.find(await world.staged(0, b"1"))
        assert first is not None
        for number in range(2, 10_002):
            world.stages._store.create(msgspec.structs.replace(first.head, stage_id=number))
        listed = await world.stages.list(stage_api.ListStages(), CONTEXT)
        assert (len(listed.stages), listed.total) == (10_000, 10_001)


async def test_a_stage_expires_a_quarter_of_its_time_late_at_most() -> None:
    async with world_of(stage_expiry_s=40.0) as world:
        world.nursery.start_soon(world.stages.run)
        staged = await world.staged(0, b"1")
        await trio.sleep(39)
        assert await world.states() == {staged: "staged"}
        await trio.sleep(13)
        assert await world.states() == {}


async def test_uncommitted_stages_expire_and_decided_ones_do_not() -> None:
    async with world_of(stage_expiry_s=100.0) as world:
        world.nursery.start_soon(world.stages.run)
        decided, old = await world.staged(0, b"1"), await world.staged(1, b"2")
        stream, told = FakeStream(), list[Any]()
        stream.say(opening(1))
        world.nursery.start_soon(outcome_of, partial(world.stage, stream), told)
        await come_to_rest()
        world.topics["/default/a"].refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, decided)
        await trio.sleep(60)
        young = await world.staged(1, b"3")
        assert old in await world.states()
        await trio.sleep(66)
        assert set(await world.states()) == {decided, young}
        assert "expired after stage_expiry_s = 100" in str(told[0])
        await trio.sleep(60)
        assert set(await world.states()) == {decided}


# --- Staging ---


async def test_a_stage_is_paid_for_and_written_as_it_comes() -> None:
    async with world_of() as world:
        a = world.topics["/default/a"]
        stream = FakeStream()
        world.nursery.start_soon(world.stage, stream)
        stream.say(opening(0))
        await come_to_rest()
        (opened,) = stream.sent
        assert opened == StageOpened(opened.stage_id, False, "here", 8 * MIB, MIB)
        assert await world.states() == {opened.stage_id: "open"}
        first, second, third = part(b"1", b"2"), part(b"3"), part(b"4")
        stream.say(first, second)
        await come_to_rest()
        stream.say(third, stage_api.StageFinish())
        await come_to_rest()
        assert a.paid == [(3, len(first.part) + len(second.part)), (1, len(third.part))]
        assert all(message.released for message in stream.messages)
        size = sum(len(each.part) for each in (first, second, third))
        staged = stage_api.StagedBatch(opened.stage_id, "/default/a", 4, size, "here")
        assert stream.sent[1:] == [stage_api.Staged(staged)]
        assert (await world.commit(0, opened.stage_id)).offsets == {"/default/a": (0, 4)}
        assert world.rows() == [b"1", b"2", b"3", b"4"]


async def test_a_batch_that_was_committed_needs_nothing_more() -> None:
    async with world_of() as world:
        assert (await world.commit(3)).committed
        for batch_id, committed in ((2, True), (3, True), (4, False)):
            stream = FakeStream()
            stream.say(opening(batch_id))
            stream.end()
            await world.stage(stream)
            assert [(reply.committed, bool(reply.stage_id)) for reply in stream.sent] == [(committed, not committed)]
        assert await world.states() == {}, "a stream that ends early leaves nothing"


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "begins with StageOpen"),
        ([stage_api.StageFinish()], "begins with StageOpen"),
        ([b"\xc1"], "does not decode"),
        ([opening(-1)], "batch id -1 is not between"),
        ([opening(2**63)], "is not between 0 and 9223372036854775807"),
        ([opening(0, attempt="x" * 256)], "more than 255 characters"),
        ([opening(0, topic="/default/none")], "stores nothing, so nothing can be staged"),
        ([opening(0), opening(0)], "StageOpen once"),
        ([opening(0), stage_api.StageFinish(), part(b"late")], "StageFinish at its end"),
        ([opening(0), part(b"x" * (MIB + 200))], "the limit"),
    ],
)
async def test_streams_that_break_the_rules_leave_no_stage(requests: Sequence[Any], said: str) -> None:
    async with world_of() as world:
        stream = FakeStream()
        stream.say(*requests)
        stream.end()
        with pytest.raises(DanubeError, match=said):
            await world.stage(stream)
        assert await world.states() == {}


async def test_values_at_the_bounds_are_accepted() -> None:
    async with world_of() as world:
        staged = await world.staged(2**63 - 1, b"1", attempt="x" * 255)
        assert (await world.commit(0)).committed
        assert (await world.commit(2**63 - 1, staged, label="x" * 255)).label == "x" * 255
        with pytest.raises(InvalidArgumentError, match="label"):
            await world.commit(1, label="x" * 256)
        with pytest.raises(InvalidNameError):
            await world.commit(1, producer="a/b")
        with pytest.raises(InvalidArgumentError, match="names stage 0000000000000001 twice"):
            await world.commit(1, 1, 2, 1)


@pytest.mark.parametrize("fields", [{"producer_id": 5}, {"producer_epoch": 1}, {"base_sequence": 1}])
async def test_a_staged_batch_has_no_sender_yet(fields: dict[str, int]) -> None:
    async with world_of() as world:
        stream = FakeStream()
        given = {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0, "publish_time_us": 1, **fields}
        stream.say(opening(0), stage_api.StageBatch(encode_part([b"x"], **given)))
        with pytest.raises(InvalidArgumentError, match="leave them 0"):
            await world.stage(stream)


async def test_how_much_may_be_staged_is_bounded() -> None:
    async with world_of(max_staged_bytes=1000, max_stages=2) as world:
        first = await world.staged(0, b"1" * 600)
        with pytest.raises(LimitExceededError, match="max_staged_bytes = 1000"):
            await world.staged(0, b"2" * 600)
        assert list(await world.states()) == [first]
        await world.staged(0, b"3")
        with pytest.raises(LimitExceededError, match="max_stages = 2"):
            await world.staged(0, b"4")
        assert await world.abort(0) == (2, False)
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        await world.staged(0, b"2" * 600)


async def test_producers_of_stages_are_bounded_and_those_that_committed_nothing_take_no_place() -> None:
    async with world_of(max_stage_producers=2, stage_producer_expiry_s=50.0) as world:
        for name in ("one", "two", "three"):
            with pytest.raises(FailedPreconditionError):
                await world.commit(0, 99, producer=name)
        assert (await world.commit(0, producer="one")).committed
        await trio.sleep(30)
        assert (await world.commit(0, producer="two")).committed
        with pytest.raises(LimitExceededError, match="max_stage_producers = 2"):
            await world.commit(0, producer="three")
        assert (await world.commit(1, producer="two")).committed, "who has a place keeps it"
        await trio.sleep(30)
        assert (await world.commit(0, producer="three")).committed, "one has been idle for too long"
        assert [await world.last(name) for name in ("one", "two", "three")] == [None, 1, 0]
        await world.restart()
        assert [await world.last(name) for name in ("one", "two", "three")] == [None, 1, 0]


async def test_of_two_first_commits_at_once_the_one_that_fails_does_not_take_the_other_along() -> None:
    async with world_of() as world:
        one, two = await world.staged(0, b"1"), await world.staged(0, b"2")
        world.store.writes = ["refuse"]
        failed, found = list[Any](), list[Any]()
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, one), failed)
        while (known := world.stages._ledger.find("job")) is None or not known.lock.locked():
            await trio.lowlevel.checkpoint()
        world.nursery.start_soon(outcome_of, partial(world.commit, 0, two), found)
        await come_to_rest()
        assert isinstance(failed[0], UnavailableError)
        assert found[0].committed
        assert await world.last() == 0
        assert not (await world.commit(0)).committed
        assert world.rows() == [b"2"]


async def test_a_disk_that_cannot_be_read_at_the_start_is_named() -> None:
    async with world_of() as world:

        async def fail() -> dict[str, int]:
            raise OSError(errno.EACCES, "no")

        world.disk.list = fail  # type: ignore[method-assign]
        with pytest.raises(DataDirectoryError, match="its stages cannot be read"):
            await world.restart()


async def test_the_largest_batch_fits_into_a_request() -> None:
    async with world_of() as world:
        limit = world.stages.service()[stage_api.StageMethod.STAGE].max_request_bytes
        assert limit is not None
        largest = stage_api.StageBatch(bytes(world.directory.runtime.limits.max_batch_bytes))
        assert len(msgspec.msgpack.encode(largest)) <= limit


async def test_the_memory_of_a_producer_whose_batch_waits_does_not_expire() -> None:
    async with world_of(stage_producer_expiry_s=50.0) as world:
        world.nursery.start_soon(world.stages.run)
        await come_to_rest()
        staged = await world.staged(0, b"1")
        world.topics["/default/a"].refusal = FULL
        with pytest.raises(UnavailableError):
            await world.commit(0, staged)
        assert (await world.commit(0, producer="idle")).committed
        await trio.sleep(200)
        assert (await world.last(), await world.last("idle")) == (0, None)
        world.topics["/default/a"].refusal = None
        await trio.sleep(40)
        assert world.rows() == [b"1"]
