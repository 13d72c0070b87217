"""The intake of a topic by itself, with a journal that settles on demand: which sender is notified, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import outcome
import pytest
import trio
import trio.testing

from danube.broker.intake.effective_policies import stack
from danube.broker.intake.intake import Intake
from danube.log import BatchCache, Entry, EntryType, MemoryLog, ProducerSession, ProducerTable, StoredBatch, TopicLog
from danube.model import Durability, Limits, ProducerAccess, Rate, TopicPolicies, api
from danube.model.batch import BatchHeader, CompositeRecord, encode_composite, encode_part, read_header
from danube.model.errors import (
    DanubeError,
    DurabilityMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    JournalFencedError,
    LimitExceededError,
    ProducerFencedError,
    UnavailableError,
)

STALL = UnavailableError("the storage does not answer")


class FakeJournal:
    """Takes entries, and settles them in order when it is told to."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.settled = 0
        self.refusal: DanubeError | None = None
        self.admitted: list[int] = []
        self.full = False

    def submit(self, entry: Entry) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.entries.append(entry)

    def release(self, topic_id: int, offset: int) -> None:
        raise AssertionError("nothing is sealed here")

    def try_admit(self, size: int) -> bool:
        return not self.full

    async def admit(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        self.admitted.append(size)

    def settle(self, count: int = 1, error: DanubeError | None = None) -> None:
        for _ in range(count):
            entry = self.entries[self.settled]
            self.settled += 1
            cast("Any", entry.owner).settled(entry, error)

    def stall(self) -> None:
        for entry in self.entries[self.settled :]:
            cast("Any", entry.owner).stalled(entry, STALL)


class FakeCommits:
    def __init__(self) -> None:
        self.flushes = 0
        self.committed = trio.Event()

    def flush(self) -> None:
        self.flushes += 1

    async def next_commit(self) -> None:
        await self.committed.wait()

    def commit(self) -> None:
        event, self.committed = self.committed, trio.Event()
        event.set()


class Sent:
    """A sender that writes down what it is told."""

    def __init__(self, session: ProducerSession) -> None:
        self.session = session
        self.in_flight = 0
        self.told: list[tuple[Any, int, DanubeError | None]] = []
        self.ended: list[DanubeError | None] = []

    def settled(self, token: Any, batch: StoredBatch, error: DanubeError | None) -> None:
        self.told.append((token, batch.base_offset, error))

    def end(self, error: DanubeError | None) -> None:
        self.ended.append(error)


class World:
    """An intake and what is around it."""

    def __init__(
        self, durability: Durability = Durability.DISK, policies: TopicPolicies | None = None, **limits: Any
    ) -> None:
        self.journal, self.commits, self.now_us, self.ids = FakeJournal(), FakeCommits(), 10**15, 100
        self.limits = Limits(**limits)
        self.arrived: list[int] = []
        self.held_producers: set[int] = set()
        journal = cast("Any", self.journal)
        keeps = durability is not Durability.NONE
        log = TopicLog(7, durability, journal, BatchCache(1 << 20)) if keeps else MemoryLog(7)
        self.topic = SimpleNamespace(
            name="/default/t",
            topic_id=7,
            durability=durability,
            kept=log,
            lossy=not keeps,
            sessions_may_move=durability is Durability.REMOTE,
            check_alive=lambda: None,
            check_states=lambda what: None,
            check_not_deleted=lambda: None,
            arrived=lambda batch: self.arrived.append(batch.base_offset),
        )
        self.table = ProducerTable(self.limits, "/default/t")
        effective = stack([("topic", policies or TopicPolicies())])
        self.intake = Intake(
            cast("Any", self.topic),
            self.table,
            journal,
            cast("Any", self.commits),
            self.limits,
            effective,
            lambda: self.now_us,
            self.new_id,
            lambda: self.held_producers,
        )

    def new_id(self) -> int:
        self.ids += 2  # the lowest bit of an id has a meaning
        return self.ids

    async def open(self, name: str, *, internal: bool = False, **fields: Any) -> ProducerSession:
        """Open a session; its entry becomes durable while it waits."""
        return await self.settling(
            lambda: self.intake.open(api.PublishOpen("/default/t", name, **fields), internal=internal)
        )

    async def settling(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do what needs an entry to settle, and settle it once that is waited for."""
        outcomes: list[outcome.Outcome[Any]] = []

        async def run() -> None:
            outcomes.append(await outcome.acapture(work))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            if not outcomes:
                self.journal.settle()
        return outcomes[0].unwrap()

    async def attached(self, name: str, **fields: Any) -> Sent:
        sender = Sent(await self.open(name, **fields))
        self.intake.attach(sender, internal=fields.get("internal", False))
        return sender

    def take(self, sender: Sent, token: Any, sequence: int, count: int = 1) -> int | None:
        part = part_of(sender.session, sequence, count)
        return self.intake.take(sender, token, part, read_header(part))


def part_of(session: ProducerSession, sequence: int, count: int = 1) -> bytes:
    return encode_part(
        [b"x"] * count,
        producer_id=session.producer_id,
        producer_epoch=session.epoch,
        base_sequence=sequence,
        publish_time_us=1,
    )


async def test_a_repeat_of_a_batch_in_flight_is_acknowledged_with_it_and_not_before() -> None:
    """By the same connection or by the next one of its session; no answer is sent before the batch is durable."""
    world = World()
    first = await world.attached("p")
    assert world.take(first, "a", 0, 2) is None
    assert world.take(first, "b", 2) is None
    assert world.take(first, "a again", 0, 2) is None, "it is not durable yet"
    second = Sent(await world.open("p", resume_epoch=first.session.epoch))
    world.intake.attach(second)
    assert first.ended == [None]
    assert world.take(second, "a elsewhere", 0, 2) is None
    assert (first.in_flight, second.in_flight) == (3, 1)
    assert (first.told, second.told, world.arrived) == ([], [], [])
    assert len(world.journal.entries) == 3, "a repeat is not stored"

    world.journal.settle()
    assert first.told == [("a", 0, None), ("a again", 0, None)]
    assert second.told == [("a elsewhere", 0, None)]
    assert (first.in_flight, second.in_flight, world.arrived) == (1, 0, [0])
    assert world.take(second, "a once more", 0, 2) == 0, "what is durable is answered at once"
    assert world.take(second, "b elsewhere", 2) is None
    world.journal.settle()
    assert second.told == [("a elsewhere", 0, None), ("b elsewhere", 2, None)]
    assert (second.in_flight, world.arrived) == (0, [0, 2])
    assert world.take(second, "b once more", 2) == 2


async def test_the_sender_of_a_stalled_batch_is_notified_again_for_each_retry() -> None:
    world = World()
    sender = await world.attached("p")
    world.take(sender, "a", 0)
    world.journal.stall()
    assert sender.told == [("a", 0, STALL)]
    assert (sender.in_flight, world.arrived) == (0, [])
    assert world.take(sender, "again", 0) is None, "it may become durable yet, and it has not"
    world.journal.settle()
    assert sender.told[1:] == [("again", 0, None)], "the first one has had its answer"
    assert (sender.in_flight, world.arrived) == (0, [0])


async def test_a_failed_batch_is_neither_shown_nor_acknowledged() -> None:
    world = World()
    sender = await world.attached("p")
    world.take(sender, "a", 0)
    error = JournalFencedError("the disk failed")
    world.journal.settle(error=error)
    assert (sender.told, sender.in_flight, world.arrived) == ([("a", 0, error)], 0, [])
    world.journal.refusal = error
    with pytest.raises(JournalFencedError):
        world.take(sender, "b", 1)
    assert (sender.told[1:], sender.in_flight) == ([], 0)
    with pytest.raises(JournalFencedError):
        world.intake.compose(sender, "c", *composite())
    assert (sender.told[1:], sender.in_flight) == ([], 0)


def composite() -> tuple[bytes, BatchHeader]:
    part = encode_composite([CompositeRecord(b"x", producer_id=5)], publish_time_us=1)
    return part, read_header(part)


async def test_a_composite_batch_belongs_to_no_session_and_waits_like_any_other() -> None:
    world = World()
    waiter = Sent(cast("ProducerSession", None))
    for token in ("a", "b"):
        world.intake.compose(waiter, token, *composite())
    assert (waiter.told, waiter.in_flight, len(world.table)) == ([], 2, 0)
    world.journal.settle(2)
    assert (waiter.told, waiter.in_flight, world.arrived) == ([("a", 0, None), ("b", 1, None)], 0, [0, 1])
    holder = await world.attached("h", access=ProducerAccess.EXCLUSIVE)
    with pytest.raises(FailedPreconditionError, match="exclusive producer 'h'"):
        world.intake.compose(waiter, "c", *composite())
    assert waiter.in_flight == 0
    world.intake.detach(holder)
    world.intake.compose(waiter, "c", *composite())
    assert waiter.in_flight == 1


async def test_a_topic_that_keeps_nothing_answers_at_once() -> None:
    world = World(Durability.NONE)
    sender = await world.attached("p")
    assert world.journal.entries == [], "nor are sessions kept"
    assert world.take(sender, "a", 0, 3) is None
    assert (sender.told, sender.in_flight, world.arrived) == ([("a", 0, None)], 0, [0])
    assert world.commits.flushes == 1
    assert world.take(sender, "a", 0, 3) == 0
    assert await world.intake.register("r") == world.table.session_of("r").producer_id  # type: ignore[union-attr]
    with pytest.raises(FailedPreconditionError, match="stores nothing"):
        world.intake.check_delivery_time(world.now_us)
    assert world.intake.try_admit(10**12)


async def test_a_session_is_open_when_it_and_the_batches_before_it_are_durable() -> None:
    world = World()
    old = await world.attached("p")
    world.take(old, "a", 0, 5)
    sessions: list[ProducerSession] = []

    async def opening() -> None:
        sessions.append(await world.intake.open(api.PublishOpen("/default/t", "p")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(opening)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(old.ended[0], ProducerFencedError)
        assert [entry.type for entry in world.journal.entries[1:]] == [EntryType.BATCH, EntryType.PRODUCER]
        world.journal.settle()
        world.commits.commit()
        await trio.testing.wait_all_tasks_blocked()
        assert sessions == [], "it is not durable"
        world.journal.settle()
        await trio.testing.wait_all_tasks_blocked()
    assert sessions[0].next_sequence == 5
    assert sessions[0].epoch > old.session.epoch
    with pytest.raises(ProducerFencedError):
        world.take(old, "late", 5)


async def test_a_session_waits_for_the_batches_in_flight_of_its_predecessor() -> None:
    world = World()
    old = await world.attached("p")
    sessions: list[ProducerSession] = []

    async def opening() -> None:
        sessions.append(await world.intake.open(api.PublishOpen("/default/t", "p")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(opening)
        await trio.testing.wait_all_tasks_blocked()
        old.in_flight = 1
        world.journal.settle()
        await trio.testing.wait_all_tasks_blocked()
        assert sessions == []
        old.in_flight = 0
        world.commits.commit()
    assert len(sessions) == 1


async def test_a_session_that_was_replaced_while_it_was_opened_is_none() -> None:
    world = World()
    async with trio.open_nursery() as nursery:

        async def first() -> None:
            with pytest.raises(ProducerFencedError, match="opened again while it was being opened"):
                await world.intake.open(api.PublishOpen("/default/t", "p"))

        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.intake.open, api.PublishOpen("/default/t", "p"))
        await trio.testing.wait_all_tasks_blocked()
        world.journal.settle(2)
    with pytest.raises(ProducerFencedError, match="forgotten"):
        await world.intake.open(api.PublishOpen("/default/t", "unknown", resume_epoch=3))
    with pytest.raises(DurabilityMismatchError, match="'disk', not 'os'"):
        await world.intake.open(api.PublishOpen("/default/t", "p", durability=Durability.OS))


@pytest.mark.parametrize(("durability", "entries"), [(Durability.DISK, 1), (Durability.REMOTE, 2)])
async def test_a_resumed_session_is_written_where_another_owner_may_have_gone_on(
    durability: Durability, entries: int
) -> None:
    world = World(durability)
    session = await world.open("p")
    assert (await world.open("p", resume_epoch=session.epoch)).epoch == session.epoch
    assert len(world.journal.entries) == entries


async def test_an_exclusive_producer_has_the_topic_to_itself() -> None:
    world = World()
    shared = await world.attached("s")
    holder = await world.attached("h", access=ProducerAccess.EXCLUSIVE)
    assert isinstance(shared.ended[0], ProducerFencedError)
    assert holder.ended == []
    world.intake.detach(shared)
    for attempt in (world.intake.open(api.PublishOpen("/default/t", "s")), world.intake.register("r")):
        with pytest.raises(FailedPreconditionError, match="held by the exclusive producer 'h'"):
            await attempt
    assert (await world.open("h")).exclusive is False, "the holder itself may come back as it likes"


async def test_an_exclusive_producer_takes_over_from_another_and_those_it_replaced_are_fenced() -> None:
    world = World()
    shared = await world.attached("s")
    first = await world.attached("h", access=ProducerAccess.EXCLUSIVE)
    with pytest.raises(ProducerFencedError):  # it was replaced, which is more than that it has to wait
        await world.open("s", resume_epoch=shared.session.epoch)
    second = await world.attached("other", access=ProducerAccess.EXCLUSIVE)
    assert isinstance(first.ended[-1], ProducerFencedError)
    assert second.ended == []
    with pytest.raises(ProducerFencedError):
        world.take(first, "late", 0)
    assert world.take(second, "mine", 0) is None


async def test_there_is_room_for_as_many_producers_as_the_limit_says() -> None:
    world = World(max_producers_per_topic=3)
    ann = await world.attached("ann")
    arriving = await world.open("bob")
    await world.open("bob", resume_epoch=arriving.epoch)  # who has a place needs no other
    await world.attached("own", internal=True)  # the broker's own do not count
    await register(world, "carl")
    for attempt in (world.intake.open(api.PublishOpen("/default/t", "dora")), world.intake.register("dora")):
        with pytest.raises(LimitExceededError, match="max_producers_per_topic = 3"):
            await attempt
    assert await register(world, "carl") == world.table.session_of("carl").producer_id  # type: ignore[union-attr]
    await world.attached("own2", internal=True)
    world.intake.detach(ann)
    await world.attached("dora")
    with pytest.raises(LimitExceededError):
        await world.open("emil")


async def test_who_fails_to_open_gives_its_place_back() -> None:
    world = World(max_producers_per_topic=1)
    world.journal.refusal = JournalFencedError("no")
    for name in ("a", "b"):
        with pytest.raises(JournalFencedError):
            await world.intake.open(api.PublishOpen("/default/t", name))
    world.journal.refusal = None
    await world.attached("c")


async def test_a_policy_may_allow_fewer_producers_and_the_known_ones_are_bounded() -> None:
    world = World(policies=TopicPolicies(max_producers=1), max_known_producers_per_topic=2)
    ann = await world.attached("ann")
    with pytest.raises(LimitExceededError, match="policy max_producers = 1"):
        await world.open("bob")
    world.intake.detach(ann)
    bob = await world.attached("bob")
    world.intake.detach(bob)
    with pytest.raises(LimitExceededError, match="knows 2 producers"):
        await world.open("carl")
    await world.attached("ann")


async def register(world: World, name: str) -> int:
    found: int = await world.settling(lambda: world.intake.register(name))
    return found


async def test_registering_is_durable_and_forgotten_if_it_cannot_be() -> None:
    world = World()
    error = JournalFencedError("no")
    world.journal.refusal = error
    with pytest.raises(JournalFencedError):
        await world.intake.register("r")
    assert world.table.session_of("r") is None
    assert world.intake.infos() == []
    world.journal.refusal = None
    found = await register(world, "r")
    assert world.intake.seen(found) == "r"
    assert world.intake.seen(found + 1) == ""
    assert await register(world, "r") == found
    assert len(world.journal.entries) == 1
    assert [info.name for info in world.intake.infos()] == ["r"]


async def test_two_that_register_one_name_both_wait_until_it_is_durable() -> None:
    world = World()
    ids: list[int] = []

    async def registering() -> None:
        ids.append(await world.intake.register("r"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(registering)
        nursery.start_soon(registering)
        await trio.testing.wait_all_tasks_blocked()
        assert ids == []
        world.journal.settle()
    assert len(set(ids)) == 1


async def test_who_registered_counts_for_its_time_after_its_last_sign() -> None:
    world = World(unary_producer_idle_s=60.0, max_producers_per_topic=1)
    found = await register(world, "r")
    world.now_us += 59_000_000
    assert world.intake.seen(found) == "r"
    world.now_us += 59_000_000
    with pytest.raises(LimitExceededError):
        await world.open("p")
    world.now_us += 2_000_000
    with pytest.raises(LimitExceededError):
        await world.open("p")  # looked for at most every ten seconds
    world.now_us += 9_000_000
    await world.open("p")


async def test_the_idle_are_forgotten_but_not_those_who_are_here_or_held() -> None:
    world = World(producer_state_expiry_s=100.0)
    here = await world.attached("here")
    gone = await world.open("gone")
    held = await world.open("held")
    world.held_producers.add(held.producer_id)
    world.now_us += 101_000_000
    await world.open("new")
    assert world.table.name_of(here.session.producer_id) == "here"
    assert world.table.name_of(held.producer_id) == "held"
    assert world.table.name_of(gone.producer_id) == ""


async def test_only_the_one_that_is_attached_can_detach() -> None:
    world = World()
    first = await world.attached("p")
    second = Sent(await world.open("p", resume_epoch=first.session.epoch))
    world.intake.attach(second)
    world.intake.detach(first)
    assert [info.epoch for info in world.intake.infos()] == [first.session.epoch]
    error = UnavailableError("over")
    world.intake.end(error)
    assert second.ended == [error]
    world.intake.detach(second)
    assert world.intake.infos() == []


async def test_a_delivery_time_is_bounded() -> None:
    world = World(max_delivery_delay_s=100.0)
    world.intake.check_delivery_time(world.now_us + 100_000_000)
    with pytest.raises(InvalidArgumentError, match="max_delivery_delay_s = 100"):
        world.intake.check_delivery_time(world.now_us + 100_000_001)


async def test_the_smaller_bound_of_a_message_counts_and_is_named() -> None:
    world = World(policies=TopicPolicies(max_message_bytes=2000), max_message_bytes=1000)
    assert world.intake.max_message_bytes == 1000
    assert world.intake.said_max_message_bytes() == "limit max_message_bytes = 1000"
    world.intake.apply_policies(stack([("namespace", TopicPolicies(max_message_bytes=500))]))
    assert world.intake.max_message_bytes == 500
    assert world.intake.said_max_message_bytes() == "policy max_message_bytes = 500 (set for the namespace)"


async def test_a_rate_admits_no_batch_that_has_not_waited(autojump_clock: trio.testing.MockClock) -> None:
    world = World(policies=TopicPolicies(publish_rate=Rate(messages_per_s=10)))
    sender = await world.attached("p")
    assert world.intake.try_admit(1)
    world.take(sender, "a", 0, 20)
    assert not world.intake.try_admit(1)
    begun = trio.current_time()
    await world.intake.admit(5)
    assert trio.current_time() > begun + 0.5
    assert world.journal.admitted == [5]
    await world.intake.pay(20, 1)
    assert not world.intake.try_admit(1)
    part = part_of(sender.session, 20, 20)
    world.intake.take(sender, "b", part, read_header(part), paid=True)
    begun = trio.current_time()
    await world.intake.admit(6, paid=True)
    assert trio.current_time() == begun, "it has been paid for"
    await world.intake.pay(1, 1)
    assert trio.current_time() > begun + 0.5
    world.intake.apply_policies(stack([]))
    assert world.intake.try_admit(1)
    world.journal.full = True
    assert not world.intake.try_admit(1)
    await world.intake.admit(7)
    assert world.journal.admitted == [5, 6, 7]


async def test_waiting_for_batches_in_flight_does_not_wait_for_later_ones() -> None:
    world = World()
    sender = await world.attached("p")
    world.take(sender, "a", 0)
    world.take(sender, "b", 1)
    done = trio.Event()

    async def wait() -> None:
        await world.intake.wait_settled()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        world.take(sender, "c", 2)
        for expected in (False, True):
            world.journal.settle()
            world.commits.commit()
            await trio.testing.wait_all_tasks_blocked()
            assert done.is_set() is expected
        nursery.cancel_scope.cancel()


async def test_a_resumed_session_does_not_wait_for_its_batches_in_flight() -> None:
    """Its repeats settle with the first copies, so nothing about it is still open."""
    world = World(Durability.REMOTE)
    sender = await world.attached("p")
    world.take(sender, "a", 0)
    found: list[ProducerSession] = []

    async def resume() -> None:
        request = api.PublishOpen("/default/t", "p", resume_epoch=sender.session.epoch)
        found.append(await world.intake.open(request))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(resume)
        await trio.testing.wait_all_tasks_blocked()
        assert found == [], "it is written down first"
        entry = world.journal.entries[-1]
        cast("Any", entry.owner).settled(entry, None)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [session.epoch for session in found] == [sender.session.epoch]


async def test_who_registered_in_an_earlier_life_has_a_place_as_soon_as_it_is_heard_of() -> None:
    world = World(max_producers_per_topic=1)
    found = await register(world, "r")
    later = World(max_producers_per_topic=1)
    later.intake._table = later.intake._roster._table = world.table
    assert later.intake.infos() == []
    assert later.intake.seen(found) == "r"
    assert [(info.name, info.epoch) for info in later.intake.infos()] == [("r", 0)]
    with pytest.raises(LimitExceededError):
        await later.open("p")


async def test_who_waits_for_a_rate_hears_of_the_end_of_the_topic(autojump_clock: trio.testing.MockClock) -> None:
    world = World(policies=TopicPolicies(publish_rate=Rate(messages_per_s=10)))
    sender = await world.attached("p")
    world.take(sender, "a", 0, 20)

    def gone() -> None:
        raise UnavailableError("the topic has gone")

    async with trio.open_nursery() as nursery:

        async def delete() -> None:
            await trio.sleep(0.5)
            world.topic.check_alive = gone

        nursery.start_soon(delete)
        with pytest.raises(UnavailableError, match="has gone"):
            await world.intake.admit(5)
    assert world.journal.admitted == []
    for attempt in (lambda: world.intake.admit(5, paid=True), lambda: world.intake.pay(1, 1)):
        with pytest.raises(UnavailableError, match="has gone"):
            await attempt()
    with pytest.raises(UnavailableError, match="has gone"):
        world.intake.try_admit(1)


async def test_the_brokers_own_producers_let_the_idle_go_too() -> None:
    world = World(producer_state_expiry_s=100.0)
    gone = await world.open("gone")
    world.now_us += 101_000_000
    await world.open("own", internal=True)
    assert world.table.name_of(gone.producer_id) == ""


async def test_who_is_attached_or_registered_is_listed_by_name() -> None:
    world = World()
    sender = await world.attached("p")
    await register(world, "a")
    await world.open("not here")
    world.take(sender, "a", 0, 5)
    assert world.intake.infos() == [
        api.ProducerInfo("a", 0, 0, True),
        api.ProducerInfo("p", sender.session.epoch, 5, True),
    ]
