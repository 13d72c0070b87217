"""Drain, activate, move and balance in a cluster of three brokers, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

import danube
from danube.broker import broker as broker_module
from danube.broker.directory.recovery import Unsettled
from danube.broker.moving.source import Departures
from danube.cluster.asking import LeavingTold
from danube.cluster.departures import LONGEST_PAUSE_S, PAUSE_S
from danube.cluster.departures import Departures as DepartingTopics
from danube.cluster.membership import Membership
from danube.cluster.placement import Candidate
from danube.cluster.records import MoveReason, MoveRecord
from danube.metadata import RowChange
from danube.model import Durability
from danube.model.cluster_api import TopicPlace
from danube.model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from danube.model.ids import BrokerId, TopicId
from danube.model.records import members

pytestmark = pytest.mark.virtual

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)


class Watch:
    """What the first broker sees of the moves."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.ordered: list[tuple[str, MoveRecord]] = []
        self.most = 0
        """Most orders that were seen at a time."""
        self.member.on_move.append(self._changed)

    @property
    def member(self) -> Membership:
        return self.world.machines[0].broker.directory.membership

    def _changed(self, change: RowChange[MoveRecord]) -> None:
        if change.after is not None:
            self.ordered.append((change.name, change.after))
        self.most = max(self.most, len(self.member.moves.values))

    @property
    def carried_out(self) -> list[tuple[str, MoveReason]]:
        """Topics that have moved, in the order of their orders, with the reasons."""
        rows = self.member.assignments.values
        ids = {row.move for row in rows.values() if row.move}
        return [(name, move.reason) for name, move in self.ordered if move.move in ids]


@asynccontextmanager
async def three(tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[ClusterWorld, Watch, danube.Client], None]:
    async with (
        cluster(tmp_path, 3, patience_s=20_000, cluster_secret="file", **settings) as world,
        world.machines[0].client() as client,
    ):
        yield world, Watch(world), client


def counts(watch: Watch) -> list[int]:
    return [watch.member.topics[each] for each in (B1, B2, B3)]


async def create(client: danube.Client, count: int, durability: str = "disk") -> None:
    for number in range(count):
        await client.admin.create_topic(f"/default/t{number}", durability=durability)


async def test_a_broker_is_drained_and_activated(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"enabled": False}) as (_, watch, client):
        await create(client, 30)
        assert counts(watch) == [10, 10, 10]
        before = await client.admin.drain_broker("b2", dry_run=True)
        assert (before.state, before.topics, before.staying) == ("active", 10, 0)
        assert (await client.admin.drain_broker("b2")).state == "draining"
        await wait_until(lambda: counts(watch)[1] == 0)
        assert counts(watch) == [15, 0, 15]
        assert [reason for _, reason in watch.carried_out] == [MoveReason.DRAIN] * 10
        await create_more(client, "later")
        assert counts(watch)[1] == 0  # a drained broker gets no topics
        assert (await client.admin.cluster_explain("b2")).sentence.endswith("and gets no new ones.")
        assert (await client.admin.activate_broker("b2")).state == "active"
        await client.admin.create_topic("/default/again")
        assert counts(watch)[1] == 1


async def create_more(client: danube.Client, name: str) -> None:
    await client.admin.create_topic(f"/default/{name}")


@pytest.fixture
def nothing_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders stay until they are withdrawn."""

    async def wait(departures: Departures, topic_id: TopicId, order: MoveRecord, revision: int) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Departures, "_carry_out", wait)


@pytest.mark.usefixtures("nothing_is_carried_out")
async def test_a_drain_has_64_orders_at_a_time_and_stops_when_it_is_called_off(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"enabled": False}) as (_, watch, client):
        await client.admin.create_topic("/default/p", partitions=240)
        await client.admin.drain_broker("b3")
        await wait_until(lambda: len(watch.member.moves.values) == 64)
        await trio.sleep(3)
        status = await client.admin.cluster_status()
        assert (status.moving, status.brokers[2].leaving, len(status.moves)) == (64, 64, 64)
        assert status.brokers[0].arriving == status.brokers[1].arriving == 32
        first = status.moves[0]
        assert (first.reason, first.topic.startswith("/default/p-part-")) == ("drain", True)
        found = await client.admin.cluster_explain(first.topic)
        assert f"It is to move to b{first.target}, because its owner is drained." in found.sentence
        assert "64 topics are ordered to leave it." in (await client.admin.cluster_explain("b3")).sentence
        metrics = await client.admin.metrics()
        assert 'danube_topic_moves_ordered{reason="drain"} 0' in metrics  # they are those of b3
        await client.admin.activate_broker("b3")
        await wait_until(lambda: not watch.member.moves.values)
        assert (watch.most, counts(watch)) == (64, [80, 80, 80])


@pytest.mark.usefixtures("nothing_is_carried_out")
async def test_orders_to_a_broker_that_dies_are_withdrawn(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"enabled": False}) as (world, watch, client):
        await client.admin.create_topic("/default/p", partitions=9)
        assert len(await client.admin.move_topic("/default/p", "b3")) == 6
        await wait_until(lambda: len(watch.member.moves.values) == 6)
        moving = next(iter(watch.member.moves.values))
        name = next(name for name, each in named(world) if f"{each:016x}" == moving)
        with pytest.raises(FailedPreconditionError, match="ordered to move to broker b3 already"):
            await client.admin.move_topic(name, "b2" if watch.member.owner(TopicId(int(moving, 16))) == B1 else "b1")
        await world.machines[2].kill()
        await wait_until(lambda: not watch.member.moves.values)
        assert counts(watch) == [3, 3, 3]
        with pytest.raises(UnavailableError, match="b3, which does not run"):
            await client.admin.move_topic(name, "b3")


def named(world: ClusterWorld) -> list[tuple[str, TopicId]]:
    record = world.machines[0].broker.directory.catalogue.find("/default/p")
    assert record is not None
    return members("/default/p", record)


def identity(world: ClusterWorld, number: int) -> TopicId:
    return TopicId(world.machines[0].broker.directory.catalogue.locate(f"/default/t{number}")[1])


async def test_a_topic_and_all_its_partitions_move(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"enabled": False}) as (_, watch, client):
        await client.admin.create_topic("/default/p", partitions=6)
        planned = await client.admin.move_topic("/default/p", "b3", dry_run=True)
        assert sorted(row.source for row in planned) == [1, 1, 2, 2]
        assert not watch.member.moves.values
        assert len(await client.admin.move_topic("/default/p", "b3")) == 4
        await wait_until(lambda: counts(watch) == [0, 0, 6])
        assert await client.admin.move_topic("/default/p", "b3") == []
        with pytest.raises(FailedPreconditionError, match="on broker b3 already"):
            await client.admin.move_topic("/default/p-part-0", "b3")
        with pytest.raises(NotFoundError, match="its brokers are b1, b2, b3"):
            await client.admin.move_topic("/default/p", "b7")
        with pytest.raises(InvalidArgumentError):
            await client.admin.move_topic("/default/p", "h7")
        with pytest.raises(NotFoundError):
            await client.admin.move_topic("/default/missing", "b1")
        await client.admin.drain_broker("b2")
        with pytest.raises(FailedPreconditionError, match="danube cluster activate b2"):
            await client.admin.move_topic("/default/p", "b2")


async def test_topics_that_cannot_move_are_named(tmp_path: Path) -> None:
    settings = {"balance": {"enabled": False}, "storage": "memory", "shared_buckets": True}
    async with three(tmp_path, **settings) as (world, watch, client):
        await create(client, 1, "remote")
        name, owner = "/default/t0", watch.member.owner(identity(world, 0))
        with pytest.raises(FailedPreconditionError, match="durability 'remote', in the storage 'default'"):
            await client.admin.move_topic(name, f"b{4 - (owner or 0)}" if owner != B2 else "b1")
        await client.admin.drain_broker(f"b{owner}")
        found = await client.admin.drain_broker(f"b{owner}", dry_run=True)
        assert (found.topics, found.staying, [each.topic for each in found.named]) == (1, 1, [name])
        explained = await client.admin.cluster_explain(name)
        assert "It cannot move to another broker: it has durability 'remote'" in explained.sentence
        assert f"cannot move; {name}: it has" in (await client.admin.cluster_explain(f"b{owner}")).sentence


async def test_topics_of_durability_remote_leave_a_drained_broker(tmp_path: Path) -> None:
    settings = {"storage": "memory://shared?durable=true&shared=true", "shared_buckets": True}
    async with three(tmp_path, balance={"enabled": False}, **settings) as (world, watch, client):
        await create(client, 6, "remote")
        owners = {watch.member.owner(identity(world, number)) for number in range(6)}
        drained = next(iter(owners))
        await client.admin.drain_broker(f"b{drained}")
        await wait_until(lambda: watch.member.topics[drained] == 0)
        for number in range(6):
            async with client.producer(f"/default/t{number}") as producer:
                await producer.send(b"x")


async def test_a_drain_whose_topics_no_broker_can_take_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was waited for without a word."""
    async with three(tmp_path, balance={"enabled": False}) as (world, _, client):
        await create(client, 3)
        for machine in world.machines:
            membership = machine.broker.directory.membership
            candidates = membership.candidates

            def without(candidates: Any = candidates) -> list[Candidate]:
                return [msgspec.structs.replace(each, storages=frozenset()) for each in candidates()]

            monkeypatch.setattr(membership, "candidates", without)
        found = await client.admin.drain_broker("b2", dry_run=True)
        assert (found.topics, found.problem) == (1, "")
        progress = world.machines[0].broker.operations.moves
        assert "no broker can take" in progress._unplaceable(B2)
        monkeypatch.undo()
        assert progress._unplaceable(B2) == ""


async def test_a_broker_that_ends_before_it_is_asked_what_keeps_its_topics(tmp_path: Path) -> None:
    """The coordinator ended with a KeyError: the sessions change while it begins to ask."""
    async with three(tmp_path, balance={"enabled": False}) as (world, _, client):
        await create(client, 3)
        directory = world.machines[0].broker.directory
        cluster_room = world.machines[0].broker.operations.cluster
        view = cluster_room.view()
        (owned,) = [
            (topic.name, directory.catalogue.locate(topic.name)[1])
            for topic in world.machines[1].broker.directory.topics()
            if topic.name.startswith("/default")
        ]
        sessions = dict(view.sessions)
        del sessions["b2"]
        place = TopicPlace(topic=owned[0], durability=Durability.DISK, state="unknown", topic_id=owned[1], broker=B2)
        await cluster_room._ask_owners(msgspec.structs.replace(view, sessions=sessions), [place])
        assert (place.state, place.detail) == ("unknown", "broker b2 has just ended")


async def test_a_drain_whose_orders_were_not_written_goes_on_after_the_first_pause(tmp_path: Path) -> None:
    """No table changes then, and the next search was a minute later."""
    async with three(tmp_path, balance={"enabled": False}) as (world, watch, client):
        await create(client, 3)
        departures = DepartingTopics(watch.member, world.machines[0].broker.directory.catalogue.tables.topics)
        departures.drained = lambda: {B2}  # type: ignore[method-assign]
        now = trio.current_time()
        (topic,) = await departures.some(now)
        departures.decided([topic], {topic.topic_id}, now)
        assert await departures.some(now + PAUSE_S - 1) == ()
        assert await departures.some(now + PAUSE_S + 1) == (topic,)


async def test_why_a_drained_broker_keeps_topics_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """History that was sealed to a storage of the broker's own binds a topic to it: under load, within seconds."""
    async with three(tmp_path, balance={"enabled": False}) as (world, watch, client):
        await create(client, 6)
        drained = [number for number in range(6) if watch.member.owner(identity(world, number)) == B2]
        bound, free = drained[0], drained[1:]
        history = world.machines[1].broker.directory.history
        async with client.producer(f"/default/t{bound}") as producer:
            await producer.send(b"sealed")
        topic = world.machines[1].broker.directory.served(identity(world, bound))
        assert topic is not None
        assert free
        await history.seal_now([topic])
        for drain in (1, 2):
            await client.admin.drain_broker("b2")
            await wait_until(lambda: watch.member.topics[B2] == 1)
            await trio.sleep(3 * LONGEST_PAUSE_S)
            lines = [each for each in caplog.records if "cannot move, for example" in each.getMessage()]
            assert len(lines) == drain
            assert f"for example /default/t{bound}: its history is in the storage" in lines[-1].getMessage()
            await client.admin.activate_broker("b2")
            await trio.sleep(10)


async def test_the_last_active_broker_is_not_drained(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, _, client):
        await client.admin.drain_broker("b2")
        await client.admin.drain_broker("b3")
        with pytest.raises(FailedPreconditionError, match="no other broker is active and running"):
            await client.admin.drain_broker("b1")
        with pytest.raises(NotFoundError, match="no broker 'b9'"):
            await client.admin.drain_broker("b9")
        await restart(world.machines[1])
        await trio.sleep(1)
        status = await client.admin.cluster_status()
        assert [row.state for row in status.brokers] == ["active", "draining", "draining"]


async def restart(machine: Machine) -> None:
    await machine.drain()
    await machine.start()


async def uneven(client: danube.Client) -> None:
    """Create 40 topics, all of them at b1."""
    for name in ("b2", "b3"):
        await client.admin.drain_broker(name)
    await create(client, 40)
    for name in ("b2", "b3"):
        await client.admin.activate_broker(name)


async def test_the_load_becomes_even_by_itself_and_then_nothing_moves(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"interval_s": 2.0, "rest_s": 60.0}) as (_, watch, client):
        await uneven(client)
        assert counts(watch) == [40, 0, 0]
        await trio.sleep(3)
        assert not watch.carried_out  # three rounds have to find the same
        await trio.sleep(60)
        spread = counts(watch)
        assert max(spread) <= 17
        assert min(spread) >= 11
        assert watch.most <= 4
        assert len({topic for topic, _ in watch.carried_out}) == len(watch.carried_out) > 0
        before = len(watch.carried_out)
        await trio.sleep(60)
        assert len(watch.carried_out) == before


async def test_few_topics_come_back_to_a_broker_that_was_drained(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"interval_s": 2.0, "rest_s": 60.0}) as (_, watch, client):
        await create(client, 6)
        await client.admin.drain_broker("b2")
        await wait_until(lambda: counts(watch)[1] == 0)
        assert counts(watch) == [3, 0, 3]
        await client.admin.activate_broker("b2")
        await trio.sleep(120)  # those that the drain has moved rest for a minute; the others need not
        assert counts(watch) == [2, 2, 2]
        before = len(watch.carried_out)
        moved = [topic for topic, reason in watch.carried_out if reason is MoveReason.BALANCE]
        assert len(moved) == len(set(moved)) == 2
        await trio.sleep(180)
        assert len(watch.carried_out) == before


async def test_few_topics_become_even_at_once_when_it_is_asked_for(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"enabled": False}) as (_, watch, client):
        await client.admin.drain_broker("b2")
        await create(client, 4)
        await client.admin.move_topic("/default/t0", "b3")
        await wait_until(lambda: counts(watch) == [1, 0, 3])
        await client.admin.activate_broker("b2")
        plan = await client.admin.balance_cluster(dry_run=True)
        assert [(row.source, row.target, row.why) for row in plan.moves] == [(3, 2, "b3 has 3 topics, b2 0")]
        await client.admin.balance_cluster()
        await wait_until(lambda: counts(watch) == [1, 1, 2])
        assert (await client.admin.balance_cluster()).moves == []


async def test_without_balance_nothing_moves_until_it_is_asked_for(tmp_path: Path) -> None:
    async with three(tmp_path, balance={"enabled": False}) as (_, watch, client):
        await uneven(client)
        await trio.sleep(80)
        assert not watch.carried_out
        plan = await client.admin.balance_cluster(dry_run=True)
        assert not plan.automatic
        assert [row.topics for row in plan.brokers] == [40, 0, 0]
        assert plan.brokers[0].load == 1.0 > plan.brokers[0].after
        assert plan.moves[0].why == "b1 has 100% of the topics, b2 0%"
        assert plan.ordered == 0
        with pytest.raises(InvalidArgumentError, match="most_moves"):
            await client.admin.balance_cluster(most_moves=0)
        assert (await client.admin.balance_cluster(most_moves=3)).ordered == 3
        ordered = (await client.admin.balance_cluster()).ordered
        await wait_until(lambda: len(watch.carried_out) == ordered + 3)
        assert max(counts(watch)) <= 17
        assert (await client.admin.balance_cluster()).moves == []


async def test_a_broker_is_drained_while_its_topics_are_used(tmp_path: Path) -> None:
    """100 topics leave it; producers and consumers of 20 of them notice nothing."""
    async with three(tmp_path, balance={"enabled": False}) as (_, watch, client):
        await client.admin.create_topic("/default/p", partitions=300)
        ended, published, consumed = trio.Event(), Counter[int](), dict[int, list[int]]()
        indices = [index for index in range(300) if watch.member.owner(parts(watch)[index]) == B2][:20]

        async def produce(index: int) -> None:
            async with client.producer(f"/default/p-part-{index}") as producer:
                while not ended.is_set():
                    await producer.send(str(published[index]).encode())
                    published[index] += 1
                    await trio.sleep(0.05)

        async def consume(index: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            got = consumed[index] = []
            async with client.consumer(f"/default/p-part-{index}", subscription="s") as consumer:
                task_status.started()
                async for message in consumer:
                    got.append(int(message.payload))
                    await message.ack()

        async with trio.open_nursery() as nursery:
            for index in indices:
                await nursery.start(consume, index)
            async with trio.open_nursery() as producers:
                for index in indices:
                    producers.start_soon(produce, index)
                await trio.sleep(1)
                found = await client.admin.drain_broker("b2")
                assert found.topics == 100
                await wait_until(lambda: counts(watch)[1] == 0)
                await trio.sleep(1)
                ended.set()
            await wait_until(lambda: all(len({*consumed[index]}) == published[index] for index in indices))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        for index in indices:  # a message whose ack was on its way may come twice
            assert list(dict.fromkeys(consumed[index])) == list(range(published[index]))
        assert min(published.values()) > 20
        assert len(watch.carried_out) == 100
        spread = counts(watch)
        assert (spread[1], abs(spread[0] - spread[2]) <= 1) == (0, True)


def parts(watch: Watch) -> list[TopicId]:
    record = watch.world.machines[0].broker.directory.catalogue.find("/default/p")
    assert record is not None
    return record.topic_ids


async def test_a_broker_answers_what_it_weighs_while_it_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = broker_module.recover
    told: list[object] = []

    async with three(tmp_path, balance={"enabled": False}) as (world, watch, client):
        await create(client, 3)
        first, second, _ = world.machines

        async def recover_when_asked(*arguments: Any, **options: Any) -> Unsettled:
            await wait_until(lambda: "b2" in watch.member.sessions.values)
            told.append(await first.broker.operations.cluster.ask_leaving(B2))
            return await recover(*arguments, **options)

        await second.drain()
        monkeypatch.setattr(broker_module, "recover", recover_when_asked)
        await second.start()
        assert told == [LeavingTold(0, 0)]
