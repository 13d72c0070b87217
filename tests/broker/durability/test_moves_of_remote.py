"""Topics of durability ``remote`` move from one broker to another while they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from broker.directory.test_moves import (
    NAME,
    Do,
    Traffic,
    assignment_of,
    moved,
    order,
    other,
    serves,
    settled,
    topic_id_of,
)
from broker.directory.test_several_brokers import created

from danube.broker.durability.reconciliation import Reconciliation
from danube.broker.moving import source as source_room
from danube.cluster import coordinating as coordinating_module
from danube.cluster.moves import Complete, Copy, Done, Doubt, Event, Freeze, Reserve, Switch
from danube.cluster.records import wal_of
from danube.model import Durability

pytestmark = pytest.mark.virtual

SHARED: dict[str, Any] = {
    "cluster_secret": "file",
    "storage": "memory://shared?durable=true&shared=true",
    "shared_buckets": True,
}


async def begun(world: ClusterWorld) -> tuple[Machine, Machine]:
    """Create the topic; return its owner, and another machine."""
    source = await created(world, NAME, durability=Durability.REMOTE)
    return source, other(world, source)


async def stored(machine: Machine, count: int) -> list[int]:
    async with machine.client() as client, client.reader(NAME, start="earliest") as reader:
        return [int((await reader.receive()).payload) for _ in range(count)]


def wal_knows(machine: Machine) -> bool:
    """Whether the wal of a broker has anything of the topic."""
    bucket = machine.broker.directory.levels.bucket
    topic_id = topic_id_of(machine)
    return topic_id in bucket.by_id or topic_id in bucket.copies or bucket.wal_with(topic_id) is not None


async def test_a_topic_moves_with_its_messages_cursors_and_producers(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        source, target = await begun(world)
        async with source.client() as client:
            async with client.producer(NAME, name="p") as producer:
                for number in range(10):
                    await producer.send(b"%d" % number)
                async with client.consumer(NAME, subscription="s", start="earliest") as consumer:
                    for number in range(4):
                        message = await consumer.receive()
                        assert message.payload == b"%d" % number
                        await message.ack()
                before = assignment_of(source)
                await moved(source, target)
                after = assignment_of(target)
                assert after.owner == target.broker.directory.membership.me
                assert (after.epoch, wal_of(after)) == (before.epoch + 1, target.broker.directory.broker)
                assert after.move
                await wait_until(lambda: not wal_knows(source))
                await producer.send(b"10")
            async with client.consumer(NAME, subscription="s") as consumer:
                assert [(await consumer.receive()).payload for _ in range(7)] == [b"%d" % each for each in range(4, 11)]


async def test_a_topic_moves_to_and_fro_under_traffic(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world:
        source, _ = await begun(world)
        async with world.machines[0].client() as client, trio.open_nursery() as nursery:
            traffic = Traffic(client)
            await nursery.start(traffic.publish)
            await nursery.start(traffic.consume)
            for _ in range(6):
                await trio.sleep(0.3)
                target = other(world, source)
                await moved(source, target)
                await settled(world)
                source = target
            await trio.sleep(0.3)
            await traffic.stop()
            assert max(traffic.gaps) < 0.5
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [Reserve, Copy, Freeze, Complete, Switch])
@pytest.mark.parametrize("victim", ["source", "target"])
@pytest.mark.parametrize("returns", [True, False])
async def test_a_broker_is_killed_in_the_middle_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: type, when: str, victim: str, *, returns: bool
) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world:
        source, target = await begun(world)
        bystander = other(world, source, target)
        killed = trio.Event()
        do: Do = source_room._Move._do

        async def ambushed(move: Any, action: object) -> Event:
            result: Event = Done()
            if when == "after":
                result = await do(move, action)
            if isinstance(action, step) and not killed.is_set():
                killed.set()
                if victim == "source":
                    world.nursery.start_soon(source.kill)
                    await trio.sleep_forever()
                await target.kill()
            return result if when == "after" else await do(move, action)

        monkeypatch.setattr(source_room._Move, "_do", ambushed)
        async with bystander.client() as client, trio.open_nursery() as nursery:
            traffic = Traffic(client, 0.02)
            await nursery.start(traffic.publish)
            await nursery.start(traffic.consume)
            await trio.sleep(0.1)
            await order(bystander, target)
            await killed.wait()
            dead = source if victim == "source" else target
            await trio.sleep(0.2)
            if returns:
                await dead.start()
            await trio.sleep(6)  # long enough for a failover
            await traffic.stop()
            nursery.cancel_scope.cancel()
        if not returns:
            await dead.start()
        await trio.sleep(2)
        await settled(world)
        assert await stored(bystander, traffic.confirmed) == list(range(traffic.confirmed))
        for machine in world.machines:
            assert wal_knows(machine) is serves(machine)


async def test_the_target_of_a_move_inherits_the_topic_before_the_move_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a world: it had the pending state in its own wal, and took the topic out of all snapshots of the other.

    So the commits with its messages were deleted.
    """
    withdrawing = trio.Event()
    withdraw = coordinating_module.Coordinating._withdraw

    async def later(coordinating: Any, action: Any) -> None:
        if withdrawing.is_set():
            await withdraw(coordinating, action)

    monkeypatch.setattr(coordinating_module.Coordinating, "_withdraw", later)
    async with cluster(tmp_path, 3, limits={"remote_snapshot_commits": 2}, **SHARED) as world:
        source, target = await begun(world)
        bystander = other(world, source, target)
        sent = trio.Event()
        do: Do = source_room._Move._do

        async def ambushed(move: Any, action: object) -> Event:
            if isinstance(action, Switch):
                sent.set()
                await trio.sleep_forever()
            return await do(move, action)

        monkeypatch.setattr(source_room._Move, "_do", ambushed)
        async with bystander.client() as client:
            async with client.producer(NAME) as producer:
                for number in range(10):
                    await producer.send(b"%d" % number)
                await order(bystander, target)
                await sent.wait()
                assert topic_id_of(target) in target.broker.directory.levels.bucket.copies
                await bystander.kill()  # so that the target is the only heir
                await source.kill()
                await wait_until(lambda: serves(target))
                assert topic_id_of(target) in target.broker.directory.levels.bucket.copies
                assert wal_of(assignment_of(target)) != target.broker.directory.membership.broker
            async with target.client() as client, client.producer(NAME) as producer:
                for number in range(10, 20):
                    await producer.send(b"%d" % number)
                    await trio.sleep(0.5)  # snapshots, and then the deletion of what they do not mention
        await target.kill()
        await target.start()
        assert await stored(target, 20) == list(range(20))
        withdrawing.set()
        await settled(world)
        assert await stored(target, 20) == list(range(20))


@pytest.mark.parametrize("is_applied", [True, False])
async def test_the_answer_of_the_switch_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool
) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        source, target = await begun(world)
        do: Do = source_room._Move._do

        async def lost(move: Any, action: object) -> Event:
            if not isinstance(action, Switch):
                return await do(move, action)
            if is_applied:
                await do(move, action)
            return Doubt("the answer was lost")

        monkeypatch.setattr(source_room._Move, "_do", lost)
        async with source.client() as client, trio.open_nursery() as nursery:
            traffic = Traffic(client)
            await nursery.start(traffic.publish)
            await nursery.start(traffic.consume)
            await order(source, target)
            await trio.sleep(1)
            await settled(world)
            assert serves(target) is is_applied
            await traffic.stop()
            nursery.cancel_scope.cancel()
        assert not wal_knows(source if is_applied else target)
        assert not any(each.broker.directory.levels.bucket.leaving for each in world.machines)


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_topic_goes_to_and_fro_and_its_brokers_die(tmp_path: Path, *, restarts: bool) -> None:
    """A, B, A, B, with commits of all its stays in both wals; each owner dies once, and returns or is replaced."""
    async with cluster(tmp_path, 3, **SHARED) as world:
        source, target = await begun(world)
        bystander = other(world, source, target)
        async with bystander.client() as client:
            sent = 0
            async with (
                client.producer(NAME, name="p") as producer,
                client.consumer(NAME, subscription="s", start="earliest") as consumer,
            ):
                for _ in range(4):
                    for _ in range(5):
                        await producer.send(b"%d" % sent)
                        message = await consumer.receive()
                        assert int(message.payload) == sent
                        await message.ack()
                        sent += 1
                    await consumer.flush_acks()
                    await moved(source, target)
                    if restarts:
                        await target.kill()
                        await target.start()
                        await source.kill()
                        await source.start()
                        await wait_until(lambda: sum(map(serves, world.machines)) == 1)
                        owner = next(each for each in world.machines if serves(each))
                        if owner is not target:
                            await moved(owner, target)
                    source, target = target, source
                await producer.send(b"%d" % sent)
                sent += 1
                assert int((await consumer.receive()).payload) == sent - 1
        for machine in (target, source):  # the former owner first: its wal gets a successor, and the topic does not
            await machine.kill()
            await trio.sleep(4)
            assert await stored(bystander, sent) == list(range(sent))
            await machine.start()
        await wait_until(lambda: sum(map(serves, world.machines)) == 1)
        assert await stored(bystander, sent) == list(range(sent))
        async with bystander.client() as client, client.producer(NAME, name="p") as producer:
            await producer.send(b"%d" % sent)
        assert await stored(bystander, sent + 1) == list(range(sent + 1))


async def test_the_wal_of_a_former_owner_does_not_resurrect_a_topic(tmp_path: Path) -> None:
    """A dies just after the move, before its wal says that the topic is gone; the topic is deleted meanwhile."""
    async with cluster(tmp_path, 3, **SHARED) as world:
        source, target = await begun(world)
        async with source.client() as client, client.producer(NAME, name="p") as producer:
            await producer.send(b"0")
            bucket = source.broker.directory.levels.bucket

            async def dies(topic: object) -> None:
                world.nursery.start_soon(source.kill)
                await trio.sleep_forever()

            bucket.handover.left = dies
            await order(source, target)
            await wait_until(lambda: serves(target))
        await wait_until(lambda: source.node.life is None)
        async with target.client() as client:
            await client.admin.delete_topic(NAME)
        await source.start()
        await trio.sleep(3)
        for machine in world.machines:
            assert machine.broker.directory.catalogue.find(NAME) is None


async def test_a_storage_that_the_target_does_not_reach_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SHARED, "storage": "memory://own?durable=true", "shared_buckets": False}
    async with cluster(tmp_path, 2, **settings) as world:
        source, target = await begun(world)
        async with source.client() as client, client.producer(NAME, name="p") as producer:
            await producer.send(b"0")
            await order(source, target)
            await wait_until(lambda: "which other brokers cannot reach" in caplog.text)
            await wait_until(lambda: not source.broker.directory.membership.moves.values)
            await producer.send(b"1")
            assert serves(source)


async def test_a_topic_returns_to_a_broker_that_died_when_it_left(tmp_path: Path) -> None:
    """Found by a world: what its wal still had of the former stay hid the sealed history, and was deleted then."""
    limits = {"remote_snapshot_commits": 6, "segment_merge_parts": 2, "segment_grace_s": 0.05}
    async with cluster(tmp_path, 2, limits=limits, **SHARED) as world:
        source, target = await begun(world)
        async with source.client() as client, client.producer(NAME, name="p") as producer:
            for number in range(5):
                await producer.send(b"%d" % number)
                await source.broker.directory.history.seal_now([source.broker.directory.find(NAME)])

            async def dies(topic: object) -> None:
                world.nursery.start_soon(source.kill)
                await trio.sleep_forever()

            source.broker.directory.levels.bucket.handover.left = dies
            await order(source, target)
            await wait_until(lambda: serves(target))
        await wait_until(lambda: source.node.life is None)
        await source.start()
        await target.broker.directory.history.keep()
        await moved(target, source)
        async with source.client() as client:
            async with client.producer(NAME, name="p") as producer:
                for number in range(5, 25):
                    await producer.send(b"%d" % number)
                    await trio.sleep(0.2)  # snapshots, and the deletion of what they do not mention
            assert await stored(source, 25) == list(range(25))
        await source.kill()
        await source.start()
        assert await stored(source, 25) == list(range(25))


async def test_partitions_in_different_wals_are_changed_enlarged_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world:
        source = world.machines[0]
        async with world.machines[2].client() as client:
            async with source.client() as owner:
                await owner.admin.create_topic(NAME, partitions=3, durability="remote")
            parts = [f"{NAME}-part-{number}" for number in range(3)]
            await wait_until(lambda: all(serves(source, each) for each in parts))
            await moved(source, world.machines[1], parts[0])
            await moved(source, world.machines[2], parts[2])
            async with client.producer(NAME, name="p") as producer:
                for number in range(30):
                    await producer.send(b"%d" % number)
            await client.admin.change_policies(NAME, message_ttl_s=3600.0)
            await client.admin.expand_topic(NAME, 4)
            parts.append(f"{NAME}-part-3")
            await wait_until(lambda: serves(world.machines[1], parts[3]))
            for machine in world.machines:
                await machine.kill()
            for machine in world.machines:
                await machine.start()
            await wait_until(lambda: sum(serves(m, each) for m in world.machines for each in parts) == 4)
            for machine in world.machines:
                record = machine.broker.directory.catalogue.find(NAME)
                assert record is not None
                assert record.policies.message_ttl_s == 3600.0
            async with client.reader(NAME, start="earliest") as reader:
                found = {int((await reader.receive()).payload) for _ in range(30)}
            assert found == set(range(30))
            await client.admin.delete_topic(NAME)
        for machine in world.machines:
            await wait_until(lambda: not machine.broker.directory.levels.bucket.by_id)  # noqa: B023
            await machine.kill()
        for machine in world.machines:
            await machine.start()
        await trio.sleep(2)
        for machine in world.machines:
            assert machine.broker.directory.catalogue.find(NAME) is None


@pytest.mark.parametrize(
    "how",
    ["it returns", "it is replaced, and returns", "it cannot read its storage", "it is opened during the burial"],
)
async def test_a_wal_that_is_not_open_notes_a_deletion_when_it_is_opened(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition came back with it, and with that the topic; or a successor waited for an assignment for ever."""
    away = how in ("it cannot read its storage", "it is opened during the burial")
    serve_withheld = Reconciliation.serve_withheld

    async def late(self: Reconciliation, name: str) -> None:
        if how == "it is opened during the burial" and self._membership.broker == "b2":
            await wait_until(lambda: self._level.claims.wals)
        await serve_withheld(self, name)

    monkeypatch.setattr(Reconciliation, "serve_withheld", late)
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client, second.client() as other_client:
            await client.admin.create_topic(NAME, partitions=2, durability="remote")
            parts = [f"{NAME}-part-{number}" for number in range(2)]
            await wait_until(lambda: all(serves(first, each) for each in parts))
            await moved(first, second, parts[1])
            await other_client.admin.create_topic("/default/other", durability="remote")
            for topic in (NAME, "/default/other"):
                async with other_client.producer(topic, name="p") as producer:
                    for number in range(10):
                        await producer.send(b"%d" % number)
            await second.kill()
            if away:
                second.node.set_storage_faults(down=True)
                await second.start()
            await client.admin.delete_topic(NAME)
            if how == "it is replaced, and returns":
                await wait_until(lambda: serves(first, "/default/other"))
            if not away:
                await second.start()
            second.node.set_storage_faults(down=False)
        for _ in range(2):
            await wait_until(lambda: any(serves(each, "/default/other") for each in world.machines), timeout_s=60.0)
            await trio.sleep(3)
            for machine in world.machines:
                directory = machine.broker.directory
                assert directory.catalogue.find(NAME) is None
                assert not directory.catalogue.deletions.noted()
                assert not [each for each in directory.topics() if each.name in parts]
                assert len(directory.membership.assignments.values) == 1
            assert not (await world.store.list("/segments/"))[0]
            async with first.client() as client, client.reader("/default/other", start="earliest") as reader:
                assert [int((await reader.receive()).payload) for _ in range(10)] == list(range(10))
            for machine in world.machines:
                await machine.kill()
            for machine in world.machines:
                await machine.start()


@pytest.mark.parametrize("durability", [Durability.REMOTE, Durability.DISK])
@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_a_message_at_its_third_attempt_is_at_its_third_after_a_move(
    tmp_path: Path, durability: Durability, kind: str
) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        source = await created(world, NAME, durability=durability)
        target = other(world, source)
        async with source.client() as client:
            async with client.producer(NAME, name="p") as producer:
                for number in range(4):
                    await producer.send(b"%d" % number, key=str(number))
            policy = {"redelivery_delay_s": 0.05, "backoff": "fixed"}
            async with client.consumer(NAME, subscription="s", type=kind, start="earliest", policy=policy) as consumer:
                seen: list[tuple[bytes, int]] = []
                while (b"2", 3) not in seen:
                    message = await consumer.receive()
                    seen.append((message.payload, message.attempt))
                    if message.payload != b"2":
                        await message.ack()
                    elif message.attempt < 3:
                        await message.nack(reason="bad")
                await consumer.flush_acks()
                await moved(source, target)
                message = await consumer.receive()
                assert (message.payload, message.attempt) == (b"2", 3)
                await message.nack(reason="bad")
                message = await consumer.receive()
                assert (message.payload, message.attempt) == (b"2", 4)
