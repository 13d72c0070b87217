"""A broker that will not return: its topics go on elsewhere, behind a declared gap."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from metrics_text import parse

from danube.broker.directory.tail import open_tail, read_identity
from danube.broker.moving import source as source_room
from danube.broker.operations import forgetting as forgetting_module
from danube.broker.operations.forgetting import ForgetOperations
from danube.cli._return_tail import _piece as piece_of
from danube.cli._return_tail import give_back
from danube.client import Client
from danube.cluster import coordinating as coordinating_module
from danube.cluster.gaps import DEFAULT_RESERVE, GapState, lost_with
from danube.cluster.moves import Complete, Freeze, Switch
from danube.cluster.records import BROKERS, BrokerState, Reason, parse_broker, topic_key
from danube.model.batch import open_records, read_header
from danube.model.cluster_api import Forgotten
from danube.model.errors import (
    BrokerForgottenError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    MetadataConflictError,
    NotFoundError,
)
from danube.model.ids import Offset, TopicId
from danube.model.limits import MIB
from danube.testing.disk import SimulatedDisk

pytestmark = pytest.mark.virtual

OWN: dict[str, Any] = {"cluster_secret": "file"}
SHARED: dict[str, Any] = {**OWN, "shared_buckets": True, "shared_storages": True}
TOPIC = "/default/t"


def served_by(world: ClusterWorld, topic: str, *, beside: Machine | None = None) -> Machine | None:
    running = [each for each in world.machines if each.node.life is not None and each is not beside]
    return next((each for each in running if topic in {found.name for found in each.broker.directory.topics()}), None)


async def topic_of(client: Client, world: ClusterWorld, victim: Machine, durability: str = "disk") -> str:
    """Create a topic at a machine, and return its name."""
    for number in range(20):
        name = f"{TOPIC}-{durability}-{number}"
        await client.admin.create_topic(name, durability=durability)
        await wait_until(lambda name=name: served_by(world, name) is not None)  # type: ignore[misc]
        if served_by(world, name) is victim:
            return name
    raise AssertionError("no topic was placed there")


async def publish(client: Client, topic: str, *payloads: bytes) -> list[int]:
    async with client.producer(topic) as producer:
        return [(await producer.send(payload)).offset for payload in payloads]


async def lose(world: ClusterWorld, victim: Machine) -> str:
    """Kill a machine, and wait until the others have noticed; return the name of its broker."""
    name = victim.broker.directory.membership.broker
    await victim.kill()
    others = [each for each in world.machines if each is not victim]
    for each in others:
        await wait_until(
            lambda each=each: name not in each.broker.directory.membership.sessions.values  # type: ignore[misc]
        )
    return name


async def forget(client: Client, name: str) -> Forgotten:
    return await client.admin.forget_broker(name, accept_loss=True)


async def test_a_topic_goes_on_behind_a_gap(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        assert await publish(client, topic, b"a", b"b") == [0, 1]
        await client.admin.seal_topic(topic)
        assert await publish(client, topic, b"lost") == [2]
        name = await lose(world, victim)

        told = await client.admin.forget_broker(name)
        row = next(each for each in told.topics if each.topic == topic)
        assert (row.sealed_end, row.loses_history, row.target) == (2, False, 0)
        assert not told.accepted
        assert served_by(world, topic) is None

        told = await forget(client, name)
        row = next(each for each in told.topics if each.topic == topic)
        reserve = world.machines[0].broker.directory.membership.brokers.values[name].reserve
        assert reserve & (reserve - 1) == 0
        assert 0 < reserve <= DEFAULT_RESERVE
        assert row.gap_end == 2 + reserve
        assert row.target
        await wait_until(lambda: served_by(world, topic) is not None)
        assert await publish(client, topic, b"c") == [2 + reserve]
        async with client.reader(topic, start="earliest") as reader:
            found = [await reader.receive() for _ in range(3)]
        assert [(each.offset, each.payload) for each in found] == [(0, b"a"), (1, b"b"), (2 + reserve, b"c")]

        directory = served_by(world, topic).broker.directory  # type: ignore[union-attr]
        topic_id = directory.catalogue.locate(topic)[1]
        (gap,) = directory.catalogue.gaps.of(topic_id)
        assert (gap.start, gap.end, gap.state) == (2, 2 + reserve, GapState.OPEN)
        assignment = directory.membership.assignments.values[topic_key(topic_id)]
        assert (assignment.reason, assignment.epoch) == (Reason.FORGOTTEN, 2)
        assert directory.membership.brokers.values[name].state is BrokerState.GONE


async def test_the_new_owner_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Also if it had stored nothing of the topic: it must not use offsets of the gap."""
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        first, second = [await topic_of(client, world, victim, each) for each in ("disk", "os")]
        await publish(client, first, b"a")
        await publish(client, second, b"a")
        name = await lose(world, victim)
        told = await forget(client, name)
        ends = {each.topic: each.gap_end for each in told.topics}
        await wait_until(lambda: all(served_by(world, each) is not None for each in (first, second)))
        assert await publish(client, first, b"b") == [ends[first]]
        for machine in (world.machines[0], world.machines[2]):
            await machine.kill()
            await machine.start()
        await wait_until(lambda: all(served_by(world, each) is not None for each in (first, second)))
        assert await publish(client, first, b"c") == [ends[first] + 1]
        assert await publish(client, second, b"c") == [ends[second]]
        # And it moves like any other.
        source = served_by(world, first)
        target = next(each for each in (world.machines[0], world.machines[2]) if each is not source)
        await client.admin.move_topic(first, target.broker.directory.membership.broker)
        await wait_until(lambda: served_by(world, first) is target)
        assert await publish(client, first, b"d") == [ends[first] + 2]
        await target.kill()
        await target.start()
        await wait_until(lambda: served_by(world, first) is target)
        assert await publish(client, first, b"e") == [ends[first] + 3]


async def test_an_heir_that_dies_before_it_has_noted_the_cursors_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry that begins the topic is in its journal, and the cursors that the storage has told are not."""
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a", b"b")
        assert await Taker(client, topic, type="exclusive").take(2) == [b"a", b"b"]
        await client.admin.seal_topic(topic)
        name = await lose(world, victim)
        others = [each for each in world.machines if each is not victim]
        topic_id = others[0].broker.directory.catalogue.locate(topic)[1]
        saving: list[Machine] = []
        for machine in others:

            async def hang(states: Any, machine: Machine = machine) -> None:
                assert list(states) == [topic_id]
                saving.append(machine)
                await trio.sleep_forever()

            monkeypatch.setattr(machine.broker.runtime.journal, "save", hang)
        await forget(client, name)
        await wait_until(lambda: bool(saving))
        await saving[0].kill()
        await saving[0].start()
        await wait_until(lambda: served_by(world, topic) is saving[0])
        (served,) = [each for each in saving[0].broker.directory.topics() if each.name == topic]
        assert served.subscriptions["s"].cursor.floor == 2
        monkeypatch.undo()


async def test_a_topic_is_deleted_while_its_heir_begins_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was served for good, although it did not exist any more."""
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a")
        name = await lose(world, victim)
        others = [each for each in world.machines if each is not victim]
        topic_id = others[0].broker.directory.catalogue.locate(topic)[1]
        saving, deleted = trio.Event(), trio.Event()
        for machine in others:
            journal, save = machine.broker.runtime.journal, machine.broker.runtime.journal.save

            async def slow(states: Any, save: Any = save) -> None:
                if topic_id in states:
                    saving.set()
                    await deleted.wait()
                await save(states)

            monkeypatch.setattr(journal, "save", slow)
        await forget(client, name)
        await saving.wait()
        await client.admin.delete_topic(topic)
        deleted.set()
        for machine in others:
            directory = machine.broker.directory
            await wait_until(lambda directory=directory: topic_id not in directory.expected)  # type: ignore[misc]
            assert directory.served(topic_id) is None
            journal = machine.broker.runtime.journal
            await wait_until(lambda journal=journal: topic_id not in journal.topic_ids())  # type: ignore[misc]
        with pytest.raises(NotFoundError):
            await client.admin.describe_topic(topic)


async def test_a_topic_is_deleted_before_its_heir_begins_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its declared gap goes before its assignment: the heir found no gap, and ended."""
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a")
        name = await lose(world, victim)
        others = [each for each in world.machines if each is not victim]
        topic_id = others[0].broker.directory.catalogue.locate(topic)[1]
        asking, dropped = trio.Event(), trio.Event()
        for machine in others:
            catalogue = machine.broker.directory.catalogue
            of_topic, drop = catalogue.subscriptions.of_topic, catalogue.gaps.drop

            async def slow(asked: TopicId, of_topic: Any = of_topic) -> Any:
                rows = await of_topic(asked)
                if asked == topic_id and not asking.is_set():
                    asking.set()
                    await dropped.wait()
                return rows

            async def drop_and_pause(topics: Any, drop: Any = drop) -> None:
                await drop(topics)
                if topic_id in topics:
                    dropped.set()
                    await trio.sleep(1.0)  # until the assignments are deleted, too

            monkeypatch.setattr(catalogue.subscriptions, "of_topic", slow)
            monkeypatch.setattr(catalogue.gaps, "drop", drop_and_pause)
        await forget(client, name)
        await asking.wait()
        await client.admin.delete_topic(topic)
        await dropped.wait()
        for machine in others:
            directory = machine.broker.directory
            await wait_until(lambda directory=directory: topic_id not in directory.expected)  # type: ignore[misc]
            assert directory.served(topic_id) is None
            assert topic_id not in machine.broker.runtime.journal.topic_ids()
        await client.admin.create_topic("/default/next")  # both go on


async def test_a_topic_is_deleted_while_it_is_found_out_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any topic: the command ended with a KeyError, or gave a topic to another broker that did not exist any more."""
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topics: list[str] = []
        while len(topics) < 3:
            made = f"{TOPIC}-{world.network.clock.now:012.6f}".replace(".", "-")
            await client.admin.create_topic(made, durability="disk")
            await wait_until(lambda made=made: served_by(world, made) is not None)  # type: ignore[misc]
            if served_by(world, made) is victim:
                topics.append(made)
        first, lost, later = topics
        name = await lose(world, victim)
        directory = world.machines[0].broker.directory
        lost_id = directory.catalogue.locate(lost)[1]
        judge, doomed = forgetting_module.sealed_range, [later, lost]

        async def slow(store: Any, topic_id: TopicId, floor: Offset) -> Any:
            found = await judge(store, topic_id, floor)
            if doomed and (topic_id == lost_id or doomed[0] == later):
                doomed_now = doomed.pop(0)
                await client.admin.delete_topic(doomed_now)
                await wait_until(lambda: directory.catalogue.find(doomed_now) is None)
            return found

        monkeypatch.setattr(forgetting_module, "sealed_range", slow)
        told = await forget(client, name)
        assert doomed == []
        await wait_until(lambda: served_by(world, first) is not None)
        assert served_by(world, lost) is None
        assert {each.topic for each in told.topics} <= {first, lost}
        assignment = directory.membership.assignments.values.get(topic_key(lost_id))
        assert assignment is None or assignment.reason is not Reason.FORGOTTEN
        assert directory.catalogue.gaps.of(lost_id) == ()


async def test_topics_are_told_that_were_given_away_before_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        first, second = [await topic_of(client, world, victim, each) for each in ("disk", "os")]
        name = await lose(world, victim)
        give, conflicts = ForgetOperations._give_group, 2

        async def changing(self: ForgetOperations, broker: Any, revision: int, group: Any, *rest: Any) -> None:
            nonlocal conflicts
            if conflicts and second in {each.name for each in group}:
                conflicts -= 1  # of the group, and of the topic alone
                raise MetadataConflictError("it has changed")
            await give(self, broker, revision, group, *rest)

        monkeypatch.setattr(ForgetOperations, "_give_group", changing)
        told = await forget(client, name)
        assert conflicts == 0
        targets = {each.topic: each.target for each in told.topics}
        assert {first, second} <= set(targets)
        assert all(targets.values())


@pytest.mark.parametrize("step", [Freeze, Complete, Switch])
async def test_the_target_of_a_move_inherits_the_topic_before_the_move_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: type
) -> None:
    """Its copy was buried when the order was withdrawn, and what was published since with it."""
    withdrawing = trio.Event()
    withdraw = coordinating_module.Coordinating._withdraw

    async def later(coordinating: Any, action: Any) -> None:
        if withdrawing.is_set():
            await withdraw(coordinating, action)

    monkeypatch.setattr(coordinating_module.Coordinating, "_withdraw", later)
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        target, victim, bystander = world.machines
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a", b"b")
        topic_id = target.broker.directory.catalogue.locate(topic)[1]
        sent = trio.Event()
        do = source_room._Move._do

        async def ambushed(move: Any, action: object) -> Any:
            if isinstance(action, step):
                sent.set()
                await trio.sleep_forever()
            return await do(move, action)

        monkeypatch.setattr(source_room._Move, "_do", ambushed)
        await client.admin.move_topic(topic, target.broker.directory.membership.broker)
        await sent.wait()
        assert topic_id in target.broker.runtime.journal.topic_ids()
        name, sessions = victim.broker.directory.membership.broker, target.broker.directory.membership.sessions
        await bystander.kill()  # so that the target is the only heir
        await victim.kill()
        await wait_until(lambda: len(sessions.values) == 1)
        end = next(each.gap_end for each in (await forget(client, name)).topics if each.topic == topic)
        await wait_until(lambda: served_by(world, topic) is target)
        assert await publish(client, topic, b"c") == [end]
        withdrawing.set()
        await wait_until(lambda: not target.broker.directory.membership.moves.values)
        await trio.sleep(5)
        assert await publish(client, topic, b"d") == [end + 1]
        await target.kill()
        await target.start()
        await wait_until(lambda: served_by(world, topic) is target)
        async with client.reader(topic, start=end) as reader:
            assert [(await reader.receive()).payload for _ in range(2)] == [b"c", b"d"]


async def test_who_cannot_be_forgotten(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world, world.machines[0].client() as client:
        with pytest.raises(FailedPreconditionError, match="it runs"):
            await forget(client, "b2")
        with pytest.raises(FailedPreconditionError, match="the one that answers"):
            await forget(client, "b1")
        with pytest.raises(NotFoundError, match="no broker 'b9'"):
            await forget(client, "b9")
        assert world.machines[0].broker.directory.membership.brokers.values["b2"].state is BrokerState.ACTIVE


@pytest.mark.parametrize("call", ["activate_broker", "drain_broker"])
async def test_a_broker_that_is_forgotten_meanwhile_stays_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It came back to life, and buried the tail that its gap waits for."""
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        name = victim.broker.directory.membership.broker
        if call == "activate_broker":
            await client.admin.drain_broker(name)
        await lose(world, victim)
        store = world.machines[0].broker.directory.catalogue.store
        get, asked = store.get, []

        async def slow(key: str) -> Any:
            if key == BROKERS + name and not asked:
                asked.append(key)
                async with world.machines[2].client() as other:
                    await forget(other, name)
            return await get(key)

        monkeypatch.setattr(store, "get", slow)
        with pytest.raises(FailedPreconditionError, match="was declared gone for good"):
            await getattr(client.admin, call)(name)
        assert asked
        for machine in (world.machines[0], world.machines[2]):
            brokers = machine.broker.directory.membership.brokers
            await brokers.load()
            assert brokers.values[name].state is BrokerState.GONE


async def test_a_forgotten_broker_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 2, **SHARED) as world, world.machines[0].client() as client:
            name = await lose(world, world.machines[1])
            assert (await forget(client, name)).topics == []
            await world.machines[1].start()

    with pytest.raises(BrokerForgottenError, match="b2, which was declared gone"):
        await body()


async def test_a_broker_that_was_only_cut_off_ends_and_keeps_its_journal(tmp_path: Path) -> None:
    """It goes on without the metadata; when it reaches them again it must not remove what nobody else has."""
    kept: list[bool] = []

    async def body() -> None:
        async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
            victim = world.machines[1]
            topic = await topic_of(client, world, victim)
            await publish(client, topic, b"a")
            directory = victim.broker.directory
            topic_id = directory.catalogue.locate(topic)[1]
            name = directory.membership.broker
            victim.cut_off()
            sessions = world.machines[0].broker.directory.membership.sessions
            await wait_until(lambda: name not in sessions.values)
            await forget(client, name)
            await wait_until(lambda: served_by(world, topic, beside=victim) is not None)
            heir = served_by(world, topic, beside=victim)
            target = next(each for each in (world.machines[0], world.machines[2]) if each is not heir)
            await client.admin.move_topic(topic, target.broker.directory.membership.broker)
            await wait_until(lambda: served_by(world, topic, beside=victim) is target)
            journal = victim.broker.runtime.journal
            victim.heal()
            with trio.CancelScope() as scope:
                try:
                    await trio.sleep(60)
                finally:
                    kept.append(topic_id in journal.topic_ids() and not journal.is_buried(topic_id))
            assert not scope.cancelled_caught

    with pytest.raises(BrokerForgottenError, match="declared gone"):
        await body()
    assert kept == [True]


async def test_history_in_a_storage_of_its_own_is_lost(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **OWN) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a", b"b")
        await client.admin.seal_topic(topic)
        name = await lose(world, victim)
        told = await forget(client, name)
        row = next(each for each in told.topics if each.topic == topic)
        assert (row.sealed_end, row.loses_history) == (0, True)
        await wait_until(lambda: served_by(world, topic) is not None)
        assert await publish(client, topic, b"c") == [row.gap_end]
        async with client.reader(topic, start="earliest") as reader:
            assert (await reader.receive()).offset == row.gap_end
        await client.admin.seal_topic(topic)
        async with client.reader(topic, start="earliest") as reader:
            assert (await reader.receive()).offset == row.gap_end
        await client.admin.delete_topic(topic)
        gaps = [key for key, gap in world.machines[0].broker.directory.catalogue.tables.gaps.values.items() if gap]
        assert len(gaps) == len(told.topics) - 1


@pytest.mark.parametrize("returns", [False, True], ids=["both-are-lost", "the-first-returns"])
async def test_an_heir_is_lost_before_it_has_sealed_anything(tmp_path: Path, returns: bool) -> None:
    """It could not be forgotten, and its topic had no owner for good."""
    async with cluster(tmp_path, 3, **SHARED) as world:
        victim = world.machines[1]
        async with world.machines[0].client() as client:
            topic = await topic_of(client, world, victim)
            await publish(client, topic, b"a", b"b")
            await client.admin.seal_topic(topic)
            await publish(client, topic, b"1")
            first = await lose(world, victim)
            told = await forget(client, first)
            await wait_until(lambda: served_by(world, topic) is not None)
            begun = next(each.gap_end for each in told.topics if each.topic == topic)
            assert await publish(client, topic, b"2", b"3") == [begun, begun + 1]
            if returns:
                assert [each.problem for each in await give_back(client, victim.node.disk, "h2")] == [""]
        heir = served_by(world, topic)
        assert heir is not None
        third = next(each for each in world.machines if each not in (victim, heir))
        second = heir.broker.directory.membership.broker
        await heir.kill()
        sessions = third.broker.directory.membership.sessions
        await wait_until(lambda: second not in sessions.values)
        async with third.client() as client:
            (row,) = [each for each in (await client.admin.forget_broker(second)).topics if each.topic == topic]
            assert (row.sealed_end, row.loses_history) == (begun, False)
            (row,) = [each for each in (await forget(client, second)).topics if each.topic == topic]
            assert row.gap_end > begun + 1
            await wait_until(lambda: served_by(world, topic) is third)
            assert await publish(client, topic, b"c") == [row.gap_end]
            info = await client.admin.describe_topic(topic)
            assert [(each.start, each.end, each.broker, each.open) for each in info.gaps] == [
                (3 if returns else 2, begun, first, not returns),
                (begun, row.gap_end, second, True),
            ]
            taker = Taker(client, topic, type="exclusive")
            filled = [b"1"] if returns else []
            assert await taker.take(3 + len(filled)) == [b"a", b"b", *filled, b"c"]
            if not returns:  # then it does so later
                assert [each.filled for each in await give_back(client, victim.node.disk, "h2")] == [3]
                assert await taker.take(1) == [b"1"]
            assert [each.filled for each in await give_back(client, heir.node.disk, "h")] == [begun + 2]
            assert await taker.take(2) == [b"2", b"3"]
            (served,) = [each for each in third.broker.directory.topics() if each.name == topic]
            await wait_until(lambda: served.subscriptions["s"].cursor.floor == row.gap_end + 1)
            await third.kill()
            await third.start()
            await wait_until(lambda: served_by(world, topic) is third)
            assert await publish(client, topic, b"d") == [row.gap_end + 1]


async def test_an_heir_is_lost_with_history_in_a_storage_of_its_own(tmp_path: Path) -> None:
    """The history that the first owner has lost is not lost with the heir again."""
    async with cluster(tmp_path, 3, **OWN) as world:
        victim = world.machines[1]
        async with world.machines[0].client() as client:
            topic = await topic_of(client, world, victim)
            await publish(client, topic, b"a")
            await client.admin.seal_topic(topic)
            told = await forget(client, await lose(world, victim))
            begun = next(each.gap_end for each in told.topics if each.topic == topic)
            await wait_until(lambda: served_by(world, topic) is not None)
            await publish(client, topic, b"b", b"c")
            await client.admin.seal_topic(topic)
        heir = served_by(world, topic)
        assert heir is not None
        third = next(each for each in world.machines if each not in (victim, heir))
        second = heir.broker.directory.membership.broker
        await heir.kill()
        sessions = third.broker.directory.membership.sessions
        await wait_until(lambda: second not in sessions.values)
        async with third.client() as client:
            (row,) = [each for each in (await forget(client, second)).topics if each.topic == topic]
            assert (row.sealed_end, row.loses_history) == (begun, True)
            await wait_until(lambda: served_by(world, topic) is third)
            assert await publish(client, topic, b"d") == [row.gap_end]
            gaps = [(each.start, each.end) for each in (await client.admin.describe_topic(topic)).gaps]
            assert gaps == [(0, begun), (begun, row.gap_end)]
            async with client.reader(topic, start="earliest") as reader:
                assert (await reader.receive()).payload == b"d"


class Taker:
    """Takes messages of a subscription, and acknowledges them."""

    def __init__(self, client: Client, topic: str, **options: Any) -> None:
        self._client, self._topic, self._options = client, topic, options

    async def take(self, count: int) -> list[bytes]:
        found = []
        async with self._client.consumer(self._topic, subscription="s", start="earliest", **self._options) as consumer:
            for _ in range(count):
                message = await consumer.receive()
                found.append(message.payload)
                await message.ack()
            with trio.move_on_after(1):
                raise AssertionError(f"{await consumer.receive()} was not expected")
        return found


async def test_what_was_lost_is_named_until_it_is_given_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a", b"b")
        await client.admin.seal_topic(topic)
        name = await lose(world, victim)
        told = await forget(client, name)
        end = next(each.gap_end for each in told.topics if each.topic == topic)
        await wait_until(lambda: served_by(world, topic) is not None)
        heir = served_by(world, topic)
        assert heir is not None

        async def gaps_counted() -> float:
            async with heir.client() as other:
                return parse(await other.admin.metrics()).one("danube_topic_gaps", topic=topic)

        lost = f"ffsets 2 to {end - 1:,} of {topic}"
        for subject in (topic, name):
            found = await client.admin.cluster_explain(subject)
            assert f" O{lost} were lost with broker {name}, which was declared gone " in found.sentence
            assert f"danube topics forget-gap {topic}" in found.remedy
            assert [(each.start, each.end, each.broker) for each in found.gaps] == [(2, end, name)]
        status = await client.admin.cluster_status()
        assert [(each.broker, each.topics) for each in status.lost] == [(parse_broker(name), 1)]
        assert any(f"o{lost}; see: danube cluster explain {name}" in warning for warning in status.warnings)
        assert await gaps_counted() == 1

        await client.admin.forget_gaps(topic)
        for machine in (world.machines[0], world.machines[2]):
            gaps = machine.broker.directory.catalogue.gaps
            await wait_until(lambda gaps=gaps: not lost_with(gaps.every()))  # type: ignore[misc]
        assert await gaps_counted() == 0
        assert (await client.admin.cluster_explain(name)).gaps == []
        found = await client.admin.cluster_explain(topic)
        assert "they were given up" in found.sentence
        assert (found.state, found.remedy) == ("served", "")
        assert (await client.admin.cluster_status()).lost == []


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_subscriptions_wait_for_a_gap_until_it_is_forgotten(tmp_path: Path, kind: str) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, b"a", b"b")
        taker = Taker(client, topic, type=kind)
        assert await taker.take(2) == [b"a", b"b"]
        await client.admin.seal_topic(topic)
        await publish(client, topic, b"lost")
        name = await lose(world, victim)
        end = next(each.gap_end for each in (await forget(client, name)).topics if each.topic == topic)
        await wait_until(lambda: served_by(world, topic) is not None)
        await publish(client, topic, b"c", b"d")
        assert await taker.take(2) == [b"c", b"d"]
        heir = served_by(world, topic)
        assert heir is not None

        async def check(floor: int) -> None:
            await wait_until(lambda: served_by(world, topic) is not None)
            (served,) = [each for each in heir.broker.directory.topics() if each.name == topic]
            subscription = served.subscriptions["s"]
            await wait_until(lambda: subscription.cursor.floor == floor)
            (row,) = [each for each in await client.admin.list_subscriptions(topic) if each.subscription == "s"]
            assert row.backlog_messages == 0
            assert subscription.machine.explain(trio.current_time(), served.end_offset).state in (
                "caught-up",
                "no-consumer",
            )

        await check(2)
        info = await client.admin.describe_topic(topic)
        assert [(each.start, each.end, each.broker, each.open) for each in info.gaps] == [(2, end, name, True)]
        await heir.kill()
        await heir.start()
        await check(2)
        await publish(client, topic, b"e")
        assert await taker.take(1) == [b"e"]
        await check(2)
        assert [each.end for each in await client.admin.forget_gaps(topic, dry_run=True)] == [end]
        await check(2)
        assert [each.end for each in await client.admin.forget_gaps(topic)] == [end]
        await check(end + 3)
        assert await client.admin.forget_gaps(topic) == []
        info = await client.admin.describe_topic(topic)
        assert [each.open for each in info.gaps] == [False]
        assert (info.start_offset, info.end_offset, info.messages) == (0, end + 3, 5)
        await heir.kill()
        await heir.start()
        await check(end + 3)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.parametrize("own", [False, True], ids=["shared-storage", "own-storage"])
async def test_the_disk_comes_back(tmp_path: Path, kind: str, own: bool) -> None:
    """What it has is put into the gap, and delivered; also if the broker had got the topic by a move."""
    async with cluster(tmp_path, 3, **(OWN if own else SHARED)) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        other = await topic_of(client, world, world.machines[2], "os")
        name = victim.broker.directory.membership.broker
        await publish(client, other, b"x")
        await client.admin.move_topic(other, name)
        await wait_until(lambda: served_by(world, other) is victim)
        await publish(client, other, b"y")
        await publish(client, topic, b"a", b"b")
        if not own:
            await client.admin.seal_topic(topic)
        big, last = b"z" * 400_000, b"2" * 400_000  # together they do not fit into one call
        await publish(client, topic, b"1", big, last)
        await lose(world, victim)
        disk = victim.node.disk
        end = next(each.gap_end for each in (await forget(client, name)).topics if each.topic == topic)
        await wait_until(lambda: all(served_by(world, each) is not None for each in (topic, other)))
        await publish(client, topic, b"c")
        taker = Taker(client, topic, type=kind)
        sealed = [] if own else [b"a", b"b"]
        assert await taker.take(len(sealed) + 1) == [*sealed, b"c"]
        heir = served_by(world, topic)
        assert heir is not None

        (state,) = await client.logs.states([topic])
        assert state.gaps == [((0 if own else 2), end)]
        found = {each.topic: each for each in await give_back(client, disk, "h2")}
        assert [each.problem for each in found.values()] == [""] * len(found)
        assert (found[topic].start, found[topic].filled) == ((0 if own else 2), 5)
        assert (found[other].start, found[other].filled) == (0, 2)
        assert await taker.take(5 - len(sealed)) == [b"a", b"b", b"1", big, last][len(sealed) :]
        (served,) = [each for each in heir.broker.directory.topics() if each.name == topic]
        await wait_until(lambda: served.subscriptions["s"].cursor.floor == end + 1)
        async with client.reader(topic, start="earliest") as reader:
            offsets = [(await reader.receive()).offset for _ in range(6)]
        assert offsets == [0, 1, 2, 3, 4, end]
        async with client.reader(other, start="earliest") as reader:
            assert [(await reader.receive()).payload for _ in range(2)] == [b"x", b"y"]
        info = await client.admin.describe_topic(topic)
        assert [(each.start, each.end, each.open) for each in info.gaps] == [(5, end, False)]
        assert info.messages == info.end_offset - (end - 5)
        (state,) = await client.logs.states([topic])
        assert state.gaps == [(5, end)]
        parts = await client.logs.parts(topic)
        assert parts.gaps == []
        assert await give_back(client, disk, "h2") == []
        for machine in (world.machines[0], world.machines[2]):
            await machine.kill()
            await machine.start()
        await wait_until(lambda: served_by(world, topic) is not None)
        await publish(client, topic, b"d")
        assert await taker.take(1) == [b"d"]


async def test_what_a_damaged_disk_still_has_comes_back_right(tmp_path: Path) -> None:
    """Whatever byte of its journal is wrong, each message is there as it was, or its absence is reported."""
    chance = Random(7)
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        sent = {number: b"%d." % number * 20 for number in range(30)}
        await publish(client, topic, *sent.values())
        name = await lose(world, victim)
        disk = victim.node.disk
        identity = await read_identity(disk, "h2")
        await forget(client, name)
        await wait_until(lambda: served_by(world, topic) is not None)
        (gap,) = (await client.admin.open_gaps(identity)).gaps
        files = {each: bytes(disk.content(each)) for each in disk.names()}
        journals = [each for each in files if each.startswith("journal-") and any(files[each])]
        ends = {each: len(files[each].rstrip(b"\0")) for each in journals}

        def copy(damaged: str = "", at: int = 0) -> SimulatedDisk:
            made = SimulatedDisk(Random(0), write_delay_s=0.0, sync_delay_s=0.0, read_delay_s=0.0)
            for each, content in files.items():
                made.put_back(each, content)
            if damaged:
                made.flip(damaged, at, 1 << chance.randrange(8))
            return made

        async def messages(made: SimulatedDisk) -> tuple[dict[int, bytes], str]:
            """Return what a disk gives back, and how it says that something is missing."""
            found: dict[int, bytes] = {}
            try:
                tail = await open_tail(made, {gap.topic_id: topic})
                problem = tail.damage(gap.topic_id, gap.start)
                async for some in tail.batches(gap.topic_id, parse_broker(name), gap.move, gap.start, gap.end):
                    for batch in some:
                        records = open_records(batch.part, read_header(batch.part), MIB)
                        payloads = [each if isinstance(each, bytes) else each.payload for each in records]
                        found |= dict(enumerate(payloads, batch.base_offset))
            except DanubeError as error:
                problem = error.message
            return found, problem

        assert await messages(copy()) == (sent, "")
        damaged = 0
        for _ in range(60):
            journal = chance.choice(journals)
            found, problem = await messages(copy(journal, chance.randrange(ends[journal])))
            assert found.items() <= sent.items()
            # A last write that is wrong looks like one that the loss of the machine has cut off.
            assert problem or found == sent or found == {at: sent[at] for at in range(len(sent) - 1)}
            damaged += bool(problem)
        assert damaged > 10, "hardly any damage mattered"

        place = files[journals[0]].find(sent[20])
        (given,) = await give_back(client, copy(journals[0], place), "h2")
        assert 0 < given.filled <= 20
        assert "topics forget-gap" in given.problem
        (still,) = (await client.admin.open_gaps(identity)).gaps
        assert still.topic == topic
        (given,) = await give_back(client, copy(), "h2")
        assert (given.filled, given.problem) == (30, "")


async def test_a_transfer_that_was_cut_off_begins_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world, world.machines[0].client() as client:
        victim = world.machines[1]
        topic = await topic_of(client, world, victim)
        await publish(client, topic, *(b"%d" % number for number in range(20)))
        name = await lose(world, victim)
        disk = victim.node.disk
        identity = await read_identity(disk, "h2")
        with pytest.raises(FailedPreconditionError, match="was not declared gone"):
            await client.admin.open_gaps(identity)
        await forget(client, name)
        await wait_until(lambda: served_by(world, topic) is not None)
        (gap,) = (await client.admin.open_gaps(identity)).gaps
        with pytest.raises(FailedPreconditionError, match="a piece of the transfer is missing"):
            await client.admin.fill_gap(piece_of(identity, gap, transfer=7, position=5, data=b"x"))
        with pytest.raises(InvalidArgumentError, match="cannot be decoded"):
            await client.admin.fill_gap(piece_of(identity, gap, transfer=7, data=b"x"))
        tail = await open_tail(disk, {gap.topic_id: topic})
        move = gap.move
        broker = parse_broker(name)
        batches = [each async for some in tail.batches(gap.topic_id, broker, move, gap.start, gap.end) for each in some]
        assert (batches[0].base_offset, batches[-1].end_offset) == (0, 20)
        half = msgspec.msgpack.encode([(each.stamp, each.part) for each in batches[: len(batches) // 2]])
        end = await client.admin.fill_gap(piece_of(identity, gap, transfer=8, data=half))
        assert 0 < end < 20
        assert await client.admin.fill_gap(piece_of(identity, gap, transfer=9, data=half)) == end
        later = msgspec.msgpack.encode([(batches[-1].stamp, batches[-1].part)])
        assert await client.admin.fill_gap(piece_of(identity, gap, transfer=10, data=later[:9], more=True)) == end
        (found,) = await give_back(client, disk, "h2")
        assert (found.filled, found.problem) == (20, "")
        with pytest.raises(FailedPreconditionError, match="was filled or forgotten"):
            await client.admin.fill_gap(piece_of(identity, gap, transfer=11, data=later))
