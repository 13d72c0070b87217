"""The successor of a dead broker goes on with its topics of durability ``remote``; virtual machines on one storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

from danube.broker.durability import claims as claiming
from danube.broker.durability.bucket import BucketLevel
from danube.broker.durability.reconciliation import Reconciliation
from danube.client import Client
from danube.cluster.records import Wal
from danube.history import highest_epoch
from danube.history.remote.claim import Claim
from danube.model import Retention
from danube.model.errors import DataLossError, OwnerAwayError, StorageUnavailableError
from danube.model.ids import OwnerEpoch

pytestmark = pytest.mark.virtual

SHARED: dict[str, Any] = {"storage": "memory://shared?durable=true&shared=true", "shared_buckets": True}


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(start, start + count)]


def owner(world: ClusterWorld, topic: str) -> Machine | None:
    """The only living broker that serves a topic."""
    serving = [
        each
        for each in world.machines
        if each.node.life is not None
        and each.node.ready.is_set()
        and any(topic == served.name for served in each.broker.directory.topics())
    ]
    return serving[0] if len(serving) == 1 else None


async def owned_by(world: ClusterWorld, topic: str, machine: Machine) -> None:
    await wait_until(lambda: owner(world, topic) is machine)


async def all_of(client: Client, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with client.reader(topic, start="earliest") as reader:
        while len(found) < count:
            found += (await reader.receive_batch()).payloads()
    return found


async def test_the_topics_of_a_dead_broker_come_up_at_another(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
            async with client.producer("/default/t") as producer:
                await producer.send_many(numbered(100))
        await first.kill()
        async with second.client() as client:
            assert await all_of(client, "/default/t", 100) == numbered(100)
            async with client.producer("/default/t") as producer:
                await producer.send(b"100")
            assert await all_of(client, "/default/t", 101) == numbered(101)


async def test_producers_and_consumers_go_on_without_loss_or_duplicates(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world:
        first = world.machines[0]
        async with first.client() as client:
            await client.admin.create_topic("/default/t", partitions=4, durability="remote")
        sent = 0
        received: list[bytes] = []
        async with (
            world.machines[1].client() as client,
            client.producer("/default/t") as producer,
            client.consumer("/default/t", subscription="s", type="shared", start="earliest") as consumer,
        ):

            async def publish() -> None:
                nonlocal sent
                while sent < 120:
                    await producer.send(b"%d" % sent, key=str(sent % 50))
                    sent += 1

            async def receive() -> None:
                while len(set(received)) < 120:
                    batch = await consumer.receive_batch()
                    received.extend(batch.payloads())
                    await batch.ack()
                await consumer.flush_acks()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                nursery.start_soon(receive)
                await wait_until(lambda: sent > 40)
                await first.kill()
            assert set(received) == set(numbered(120))
            stored: list[bytes] = []
            async with client.reader("/default/t", start="earliest") as reader:
                while len(stored) < 120:
                    stored += (await reader.receive_batch()).payloads()
                with trio.move_on_after(1):
                    stored += (await reader.receive_batch()).payloads()
            assert sorted(stored) == sorted(numbered(120)), "nothing is stored twice"
            infos = await client.admin.describe_subscription("/default/t", "s")
            assert [info.backlog_messages for info in infos] == [0] * 4


async def test_chains_of_failovers_and_the_return_of_the_first_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SHARED) as world:
        one, two, three = world.machines
        count = 0
        async with three.client() as client:

            async def publish(machine: Machine) -> None:
                nonlocal count
                await owned_by(world, "/default/t", machine)
                async with client.producer("/default/t", name="p") as producer:
                    await producer.send_many(numbered(10, count))
                count += 10
                assert await all_of(client, "/default/t", count) == numbered(count)

            async with one.client() as other:
                await other.admin.create_topic("/default/t", durability="remote")
            await publish(one)
            await one.kill()
            await wait_until(lambda: owner(world, "/default/t") not in (None, one))
            heir = owner(world, "/default/t")
            assert heir is two, "the broker with the fewest topics and the lowest number"
            await publish(two)
            await one.start()
            assert owner(world, "/default/t") is two, "who comes back gets nothing back"
            async with one.client() as other:
                await other.admin.create_topic("/default/new", durability="remote")
                async with other.producer("/default/new") as producer:
                    await producer.send(b"n")
            assert one.broker.directory.membership.home_wal("default") == "b1-2"
            await two.kill()
            await wait_until(lambda: owner(world, "/default/t") not in (None, two))
            await publish(three)
            await two.start()
            await three.broker.directory.history.seal_now([three.broker.directory.find("/default/t")])
            await publish(three)
            async with two.client() as other:
                await other.admin.create_topic("/default/more", durability="remote")
                await other.admin.create_topic("/default/even-more", durability="remote")
            await three.kill()
            # The wal is back with the broker that has begun it.
            async with two.client() as client:
                await publish(one)
                assert await all_of(client, "/default/new", 1) == [b"n"]
            assert set(one.broker.directory.levels.bucket.claims.wals) == {("default", "b1"), ("default", "b1-2")}
            await one.drain()
            await one.start()
            async with one.client() as client:
                assert await all_of(client, "/default/new", 1) == [b"n"]
                assert await all_of(client, "/default/t", count) == numbered(count)


async def test_an_owner_that_was_cut_off_gives_up_its_topics_and_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client, second.client() as other:
            for topic, durability in (("/default/t", "remote"), ("/default/d", "disk")):
                await client.admin.create_topic(topic, durability=durability)
            async with client.producer("/default/t", name="p") as producer:
                await producer.send(b"0")
                first.cut_off()
                await wait_until(lambda: "/default/t" in names(second))
                await producer.send(b"1")
                assert "/default/t" not in names(first), "it was told, or has found the fence"
                async with other.producer("/default/t", name="late") as late:
                    await late.send(b"2")
                first.heal()
                await producer.send(b"3")
            assert await all_of(other, "/default/t", 4) == numbered(4)
            assert first.node.life is not None, "the process goes on"
            async with client.producer("/default/d") as producer:
                await producer.send(b"x")


async def test_a_wal_is_lost_while_the_history_in_its_storage_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss was missed, because the wal did not count as open yet; its topics were served for good."""
    take_over, begun, goes_on = Reconciliation.take_over, trio.Event(), trio.Event()

    async def take_over_late(self: Reconciliation, *arguments: Any) -> None:
        if self._membership.broker == "b1" and not goes_on.is_set():
            begun.set()
            await goes_on.wait()
        await take_over(self, *arguments)

    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
            async with client.producer("/default/t") as producer:
                await producer.send(b"0")
        await first.kill()
        monkeypatch.setattr(Reconciliation, "take_over", take_over_late)
        await first.start()
        await begun.wait()
        first.cut_off()
        await wait_until(lambda: "/default/t" in names(second))
        first.heal()
        await wait_until(lambda: "/default/t" not in names(first))
        goes_on.set()
        async with second.client() as client:
            async with client.producer("/default/t") as producer:
                await producer.send(b"1")
            assert await all_of(client, "/default/t", 2) == numbered(2)
        await trio.sleep(5)
        assert owner(world, "/default/t") is second
        async with first.client() as client:
            await client.admin.create_topic("/default/u", durability="remote")


async def test_a_topic_whose_deletion_had_failed_is_in_the_next_snapshots(tmp_path: Path) -> None:
    """The wal was lost in the middle of a deletion, and came back to the same process."""
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
            async with client.producer("/default/t") as producer:
                await producer.send(b"0")
        level = first.broker.directory.levels.bucket
        level._deleting.add(first.broker.directory.find("/default/t").topic_id)
        first.cut_off()
        await owned_by(world, "/default/t", second)
        await wait_until(lambda: "/default/t" not in names(first))
        first.heal()
        await trio.sleep(5)
        await second.kill()
        await owned_by(world, "/default/t", first)
        async with first.client() as client, client.producer("/default/t") as producer:
            await producer.send(b"1")
        await first.drain()
        await first.start()
        await owned_by(world, "/default/t", first)
        async with first.client() as client:
            assert await all_of(client, "/default/t", 2) == numbered(2)


def names(machine: Machine) -> set[str]:
    return {topic.name for topic in machine.broker.directory.topics()}


async def test_topics_wait_for_a_storage_that_is_away_while_their_owner_dies(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
            async with client.producer("/default/t") as producer:
                await producer.send_many(numbered(10))
        second.node.set_storage_faults(down=True)
        await first.kill()
        place = second.broker.directory.membership
        await wait_until(lambda: "default/b1" in place.wals.values)
        await trio.sleep(5)
        async with second.client(request_timeout_s=3.0) as client:
            await client.admin.create_topic("/default/d", durability="disk")
            with pytest.raises(StorageUnavailableError, match="takes over wal b1 of storage 'default'"):
                async with client.producer("/default/t"):
                    pass
            second.node.set_storage_faults(down=False)
            await owned_by(world, "/default/t", second)
            assert await all_of(client, "/default/t", 10) == numbered(10)


async def test_a_claim_that_comes_too_late_takes_nothing_from_the_successor(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
            async with client.producer("/default/t") as producer:
                await producer.send(b"0")
        await first.kill()
        await owned_by(world, "/default/t", second)
        bucket = second.broker.directory.levels.bucket
        storage, wal = second.broker.directory.history.storages["default"], Wal("default", "b1")
        async with second.client() as client, client.producer("/default/t", name="p") as producer:
            await producer.send(b"1")
            epoch = OwnerEpoch(await highest_epoch(storage, bucket.claims.place(wal)) + 1)
            late = Claim(storage, bucket.claims.place(wal), epoch, "the former owner", world.wall_clock_us)
            await late.run()
            assert late.replay.recovered.topics, "it has read everything, and put a fence"
            await producer.send(b"2")
            assert await all_of(client, "/default/t", 3) == numbered(3)
        assert second.node.life is not None
        assert list(bucket.claims.wals) == [wal]


async def test_a_topic_that_was_adopted_is_changed_enlarged_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", partitions=2, durability="remote")
            await client.admin.create_topic("/default/gone", durability="remote")
        await first.kill()
        await owned_by(world, "/default/t-part-1", second)
        async with second.client() as client:
            await client.admin.change_retention("/default/t", Retention(max_bytes=1_000_000))
            await client.admin.expand_topic("/default/t", 3)
            await client.admin.delete_topic("/default/gone")
            async with client.producer("/default/t") as producer:
                await producer.send_many(numbered(30), keys=[str(index) for index in range(30)])
        membership = second.broker.directory.membership
        record = second.broker.directory.catalogue.find("/default/t")
        assert record is not None
        assert {membership.wal_of(each) for each in record.topic_ids} == {"b1"}
        await second.drain()
        await first.start()
        await second.start()
        assert names(first) == set()
        assert names(second) == {f"/default/t-part-{index}" for index in range(3)}
        async with second.client() as client:
            assert sorted(await all_of(client, "/default/t", 30)) == sorted(numbered(30))


@pytest.mark.parametrize("how", ["at once", "sealed", "behind another topic", "one wal after the other"])
async def test_new_metadata_find_all_wals_of_a_broker(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics of the second one were taken for moved, or for deleted if there was any other topic by then."""
    is_away, look, recover = True, claiming.brokers_with_commits, BucketLevel._recover

    async def looks(*arguments: Any) -> Any:
        if is_away:
            raise StorageUnavailableError("the storage does not answer")
        return await look(*arguments)

    async def recovers(level: BucketLevel, wal: Wal, is_home: bool) -> Any:
        if is_home and is_away:
            raise StorageUnavailableError("the storage does not answer any more")
        return await recover(level, wal, is_home)

    async with cluster(tmp_path / "old", 2, **SHARED) as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
            await first.kill()
            await owned_by(world, "/default/t", second)
            await first.start()
            await client.admin.create_topic("/default/new", durability="remote")
            await second.kill()
            await owned_by(world, "/default/t", first)
            assert set(first.broker.directory.levels.bucket.claims.wals) == {("default", "b1"), ("default", "b1-2")}
            for topic in ("/default/t", "/default/new"):
                async with client.producer(topic, name="p") as producer:
                    await producer.send_many(numbered(10))
                if how != "at once":
                    await first.broker.directory.history.seal_now([first.broker.directory.find(topic)])
                    async with client.producer(topic, name="p") as producer:
                        await producer.send_many(numbered(10, 10))
        await first.kill()
        buckets = world.buckets
    count = 10 if how == "at once" else 20
    if how == "behind another topic":
        monkeypatch.setattr(claiming, "brokers_with_commits", looks)
    elif how == "one wal after the other":
        monkeypatch.setattr(BucketLevel, "_recover", recovers)
    async with cluster(tmp_path / "new", 1, seed=9, buckets=buckets, **SHARED) as world:
        (machine,) = world.machines
        async with machine.client() as client:
            if how == "behind another topic":
                await client.admin.create_topic("/default/d", durability="disk")
            await machine.kill()
            is_away = False
            for _ in range(2):
                await machine.start()
                for topic in ("/default/t", "/default/new"):
                    await owned_by(world, topic, machine)
                    assert await all_of(client, topic, count) == numbered(count)
                    async with client.producer(topic, name="p") as producer:
                        await producer.send_many(numbered(10, count))
                count += 10
                await machine.broker.directory.history.keep()
                await machine.kill()
            await machine.start()
            report = await machine.broker.directory.history.janitor.check("default", deep=True)
            assert (report.missing, report.damaged) == ([], [])


async def test_a_broker_whose_own_wal_is_damaged_takes_over_another(tmp_path: Path) -> None:
    """It opened no other wal of that storage either, and said nothing of it."""
    async with cluster(tmp_path, 2, **SHARED) as world:
        first, second = world.machines
        for machine, topic in ((first, "/default/a"), (second, "/default/b")):
            async with machine.client() as client:
                await client.admin.create_topic(topic, durability="remote")
                await owned_by(world, topic, machine)
                async with client.producer(topic) as producer:
                    await producer.send(b"0")
        await second.kill()
        (space,) = world.buckets[""].values()
        place = "wal/" + first.broker.directory.levels.bucket.claims.place(Wal("default", "b2"))
        for key in [each for each in space.objects if each.startswith(f"{place}/")]:
            space.remove(key)
        await second.start()
        assert "/default/b" not in names(second)
        await first.kill()
        await owned_by(world, "/default/a", second)
        async with second.client(request_timeout_s=3.0) as client:
            assert await all_of(client, "/default/a", 1) == numbered(1)
            with pytest.raises(DataLossError, match="knows nothing of its topics"):
                await client.admin.create_topic("/default/c", durability="remote")


async def test_topics_in_a_storage_of_one_broker_wait_for_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, storage="memory://own?durable=true") as world:
        first, second = world.machines
        async with first.client() as client:
            await client.admin.create_topic("/default/t", durability="remote")
        await first.kill()
        await trio.sleep(40)
        assert names(second) == set()
        async with second.client(request_timeout_s=2.0) as client:
            with pytest.raises(OwnerAwayError, match="waits for broker b1, which is away"):
                async with client.producer("/default/t"):
                    pass
