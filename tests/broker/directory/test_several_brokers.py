"""Several brokers on one metadata store divide the topics among them."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

import danube.broker.broker
from danube.broker.directory import recovery
from danube.broker.directory.directory import Directory
from danube.cluster.records import ASSIGNMENTS, CREATING, parse_broker
from danube.compat.codec import PROTO
from danube.compat.discovery import Discovery
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import Durability, Limits, Retention, api, policy_api
from danube.model.errors import (
    AlreadyExistsError,
    CallRefusedError,
    DanubeError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    NotOwnerError,
    OwnerAwayError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.limits import MIB
from danube.model.quotas import ChangeQuota
from danube.wire import Context

pytestmark = pytest.mark.virtual


def directories(world: ClusterWorld) -> list[Any]:
    return [machine.broker.directory for machine in world.machines]


def owner_of(world: ClusterWorld, topic: str) -> Machine:
    """Return the machine that serves a topic."""
    (found,) = [
        machine
        for machine in world.machines
        if machine.node.life is not None and topic in {each.name for each in machine.broker.directory.topics()}
    ]
    return found


async def created(world: ClusterWorld, name: str, at: int = 0, **more: Any) -> Machine:
    """Create a topic at one broker; return the machine of its owner, once that serves it."""
    directory = world.machines[at].broker.directory
    await directory.create(name, more.pop("durability", None), 0, **more)
    await wait_until(lambda: any(name in {t.name for t in each.topics()} for each in directories(world)))
    return owner_of(world, name)


def _know_of_topics(world: ClusterWorld, count: int) -> bool:
    """Whether all brokers know the owners of so many topics."""
    return all(each.membership.topics.total() == count for each in directories(world))


async def test_topics_are_spread_and_every_broker_knows_where_they_are(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world:
        for number in range(9):
            await created(world, f"/default/t{number}", at=number % 3)
            # The next one is placed by what its broker knows of those before.
            await wait_until(partial(_know_of_topics, world, number + 1))
        await world.machines[1].broker.directory.create("/default/parts", None, 6)
        await wait_until(lambda: sum(len(each) for each in directories(world)) == 15)
        assert [len(each) for each in directories(world)] == [5, 5, 5]
        owners = Counter(topic.name.startswith("/default/parts") for topic in directories(world)[0].topics())
        assert owners[True] == 2, "partitions are spread"
        for number in range(9):
            name = f"/default/t{number}"
            owner = owner_of(world, name)
            for machine in world.machines:
                if machine is owner:
                    assert machine.broker.directory.find(name).name == name
                else:
                    with pytest.raises(NotOwnerError) as caught:
                        machine.broker.directory.find(name)
                    assert caught.value.address == f"{owner.name}:6650"
                    assert caught.value.epoch == owner.broker.directory.find(name).owner_epoch


async def test_two_brokers_create_the_same_topic_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        results: list[str] = []

        async def create(machine: Machine, name: str) -> None:
            try:
                await machine.broker.directory.create(name, None, 3)
                results.append("created")
            except AlreadyExistsError:
                results.append("exists")

        for number in range(10):
            async with trio.open_nursery() as nursery:
                for machine in world.machines:
                    nursery.start_soon(create, machine, f"/default/t{number}")
        assert Counter(results) == {"created": 10, "exists": 10}
        await wait_until(lambda: sum(len(each) for each in directories(world)) == 30)
        assert len((await world.store.list(ASSIGNMENTS))[0]) == 30


async def test_a_topic_is_deleted_at_a_broker_that_does_not_own_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        (other,) = [machine for machine in world.machines if machine is not owner]
        topic_id = owner.broker.directory.find("/default/t").topic_id
        async with owner.client() as client, client.producer("/default/t") as producer:
            await producer.send(b"one")
        await other.broker.directory.delete("/default/t")
        with pytest.raises(TopicNotFoundError):
            other.broker.directory.find("/default/t")
        await wait_until(lambda: not owner.broker.directory.catalogue.membership.owns(topic_id))
        assert len(owner.broker.directory) == 0
        assert owner.broker.runtime.journal.is_buried(topic_id)
        await wait_until(lambda: not other.broker.directory.catalogue.deletions.noted())
        again = await created(world, "/default/t", at=1)
        assert again.broker.directory.find("/default/t").end_offset == 0


async def test_what_is_left_of_a_deleted_topic_is_removed_when_the_metadata_answer_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        catalogue = owner.broker.directory.catalogue
        buried = catalogue.deletions.buried
        attempts = count(1)

        async def unlucky(*arguments: Any) -> None:
            if next(attempts) < 3:
                await trio.lowlevel.checkpoint()
                raise UnavailableError("no answer")
            await buried(*arguments)

        catalogue.deletions.buried = unlucky  # type: ignore[method-assign]
        await owner.broker.directory.delete("/default/t")
        await wait_until(lambda: not owner.broker.directory.catalogue.deletions.noted())
        assert (await world.store.list(ASSIGNMENTS))[0] == []


async def test_a_topic_is_deleted_while_its_owner_is_away(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, second = world.machines
        await first.broker.directory.create("/default/parts", None, 4)
        await wait_until(lambda: sum(len(each) for each in directories(world)) == 4)
        async with first.client() as client:
            for topic in first.broker.directory.topics():
                async with client.producer(topic.name) as producer:
                    await producer.send(b"one")
        ids = {topic.topic_id for topic in first.broker.directory.topics()}
        await first.kill()
        await second.broker.directory.delete("/default/parts")
        assert len(second.broker.directory) == 0
        await first.start()
        await wait_until(lambda: not second.broker.directory.catalogue.deletions.noted())
        assert len(first.broker.directory) == 0
        assert first.broker.info().stranded_topics == 0
        assert all(first.broker.runtime.journal.is_buried(each) for each in ids)
        assert (await world.store.list(ASSIGNMENTS))[0] == []


async def test_partitions_of_several_owners_send_their_dead_letters_to_one_of_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, cluster_secret="file") as world:
        await world.machines[0].broker.directory.create("/default/t", None, 3)
        await wait_until(lambda: [len(each) for each in directories(world)] == [1, 1, 1])
        async with world.machines[0].client() as client:
            async with client.producer("/default/t") as producer:
                for number in range(30):
                    await producer.send(b"%d" % number)
            policy = {"max_redelivery_count": 0, "redelivery_delay_s": 0.01, "poison": "dead_letter"}
            async with client.consumer(
                "/default/t", subscription="s", type="shared", start="earliest", policy=policy
            ) as consumer:
                for _ in range(30):
                    await (await consumer.receive()).nack()
                letters = set[bytes]()
                await wait_until(lambda: client_sees(world, "/default/t-s-dlq"))
                async with client.reader("/default/t-s-dlq", start="earliest") as reader:
                    while len(letters) < 30:
                        letter = await reader.receive()
                        assert (letter.attributes or {})["x-original-topic"].startswith("/default/t-part-")
                        letters.add(letter.payload)
        assert letters == {b"%d" % number for number in range(30)}


async def test_the_largest_messages_reach_the_dead_letters_of_another_broker(tmp_path: Path) -> None:
    limits = {name: getattr(Limits(), name) for name in ("max_message_bytes", "max_batch_bytes")}
    async with cluster(tmp_path, 3, cluster_secret="file", journal_file_size=64 * MIB, limits=limits) as world:
        await world.machines[0].broker.directory.create("/default/t", None, 3)
        await wait_until(lambda: [len(each) for each in directories(world)] == [1, 1, 1])
        payload = bytes(Limits().max_message_bytes - 4096)
        async with world.machines[0].client() as client:
            for part in range(3):
                async with client.producer(f"/default/t-part-{part}") as producer:
                    await producer.send(payload)
            policy = {"max_redelivery_count": 0, "redelivery_delay_s": 0.01, "poison": "dead_letter"}
            async with client.consumer(
                "/default/t", subscription="s", type="shared", start="earliest", policy=policy
            ) as consumer:
                for _ in range(3):
                    await (await consumer.receive()).nack()
                origins = set[str]()
                await wait_until(lambda: client_sees(world, "/default/t-s-dlq"))
                async with client.reader("/default/t-s-dlq", start="earliest") as reader:
                    while len(origins) < 3:
                        letter = await reader.receive()
                        assert letter.payload == payload
                        origins.add((letter.attributes or {})["x-original-topic"])


def client_sees(world: ClusterWorld, topic: str) -> bool:
    return all(each.catalogue.find(topic) is not None for each in directories(world))


async def test_policies_that_are_changed_at_another_broker_take_effect(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        (other,) = [machine for machine in world.machines if machine is not owner]
        topic = owner.broker.directory.find("/default/t")
        change = other.broker.operations.policies.change
        for target, seconds in (("/default/t", 60.0), ("default", 50.0), ("", 40.0)):
            await change(policy_api.ChangePolicies(target, {"message_ttl_s": seconds}))
            await wait_until(lambda seconds=seconds: topic.message_ttl_s == seconds)
            await change(policy_api.ChangePolicies(target, {"message_ttl_s": None}))
            await wait_until(lambda: topic.message_ttl_s == 0)


async def test_topics_wait_for_their_owner_by_name_and_come_back_with_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        (other,) = [machine for machine in world.machines if machine is not owner]
        async with owner.client() as client, client.producer("/default/t", name="p") as producer:
            await producer.send(b"one")
        await owner.kill()
        await trio.sleep(5)
        name = owner.node.name.replace("h", "b")
        with pytest.raises(OwnerAwayError, match=f"waits for broker {name}, whose disk holds offsets from 0 on"):
            other.broker.directory.find("/default/t")
        await owner.start()
        with pytest.raises(NotOwnerError):
            other.broker.directory.find("/default/t")
        async with owner.client() as client, client.producer("/default/t", name="p") as producer:
            assert producer.stored_before == [1]
            assert (await producer.send(b"two")).offset == 1


async def test_durable_topics_go_on_without_metadata_and_others_do_not(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as world:
        (machine,) = world.machines
        async with machine.client() as client:
            await client.admin.create_topic("/default/none", durability="none")
            async with client.producer("/default/t") as durable, client.producer("/default/none") as lossy:
                await durable.send(b"one")
                await lossy.send(b"one")
                machine.cut_off()
                await durable.send(b"two")
                await lossy.send(b"two")
                await trio.sleep(3)
                await durable.send(b"three")
                end = machine.broker.directory.find("/default/none").end_offset
                with trio.move_on_after(3):
                    await lossy.send(b"three")
                assert machine.broker.directory.find("/default/none").end_offset == end == 2
                machine.heal()
                await trio.sleep(5)
                await durable.send(b"four")
            async with client.producer("/default/none") as lossy:
                await lossy.send(b"four")
        assert machine.broker.directory.find("/default/t").end_offset == 4


async def test_a_broker_that_was_cut_off_takes_a_session_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, _ = world.machines
        before = first.broker.directory.membership.session_revision
        first.cut_off()
        with pytest.raises(UnavailableError):
            await first.broker.directory.create("/default/t", None, 0)
        await trio.sleep(10)
        first.heal()
        await wait_until(lambda: first.broker.directory.membership.session_revision not in (0, before))
        await created(world, "/default/u", at=0)
        await created(world, "/default/v", at=1)


async def test_a_broker_ends_while_its_metadata_do_not_answer(tmp_path: Path) -> None:
    """Changes that wait for a majority hold up nothing; the next start settles them."""
    async with cluster(tmp_path) as world, world.machines[0].client() as client:
        first, second = world.machines
        await client.admin.create_topic("/default/here", durability="none")
        first.node.faults.latency_s = 1e9
        for number in range(3):
            world.nursery.start_soon(created_quietly, client, f"/default/t{number}")
        world.nursery.start_soon(created_quietly, client, "/default/parts", 500)
        world.nursery.start_soon(subscribed, client, "/default/here")
        await trio.sleep(1)
        began = trio.current_time()
        await first.drain()
        assert trio.current_time() - began < 5
        await first.start()
        for number in range(3):
            await first.broker.directory.create(f"/default/t{number}", None, 0)
        await first.broker.directory.create("/default/parts", None, 500)
        await wait_until(lambda: second.broker.directory.catalogue.find("/default/parts") is not None)


async def created_quietly(client: danube.Client, name: str, partitions: int = 0) -> None:
    with suppress(DanubeError):
        await client.admin.create_topic(name, partitions=partitions)


async def subscribed(client: danube.Client, name: str) -> None:
    with suppress(DanubeError):
        async with client.consumer(name, subscription="s"):
            pass


async def test_a_topic_with_many_partitions_is_created_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, second = world.machines
        await first.broker.directory.create("/default/parts", Durability.DISK, 150)
        await wait_until(lambda: [len(each) for each in directories(world)] == [75, 75])
        record = second.broker.directory.catalogue.find("/default/parts")
        await second.broker.directory.enlarge("/default/parts", record, 300)
        await wait_until(lambda: [len(each) for each in directories(world)] == [150, 150])
        assert (await world.store.list(CREATING))[0] == []
        await second.broker.directory.delete("/default/parts")
        await wait_until(lambda: [len(each) for each in directories(world)] == [0, 0])
        await wait_until(lambda: not first.broker.directory.catalogue.deletions.noted())
        assert (await world.store.list(ASSIGNMENTS))[0] == []


async def test_what_another_broker_has_just_created_is_found(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, second = world.machines
        second.node.faults.latency_s = 0.5
        for number in range(6):
            name = f"/default/t{number}"
            await first.broker.directory.create(name, None, 0)
            owner = first.broker.directory.membership.owner(first.broker.directory.catalogue.find(name).topic_ids[0])
            if owner == 1:
                with pytest.raises(NotOwnerError, match="owned by broker b1 at h1:6650"):
                    await second.broker.directory.search(name)
            else:
                assert (await second.broker.directory.search(name)).name == name
        await first.broker.directory.catalogue.create_namespace("new")
        await second.broker.directory.create("/new/t", None, 0)


@pytest.mark.parametrize(("partitions", "consumer_first"), [(0, False), (2, False), (2, True)])
async def test_what_is_sent_to_a_topic_that_was_created_again_does_not_go_to_the_deleted_one(
    tmp_path: Path, partitions: int, consumer_first: bool
) -> None:
    """Its owner still served the deleted one, acknowledged what was meant for the new one, and then dropped it."""
    async with cluster(tmp_path) as world:
        near, late = world.machines
        names = [f"/default/t-part-{index}" for index in range(partitions)] or ["/default/t"]
        async with near.client() as client:
            # The deleted and the new topic, or a partition of each, are of the broker that hears of changes late.
            await near.broker.directory.create("/default/weight", None, 0, here=True)
            await client.admin.create_topic("/default/t", partitions=partitions)
            async with client.producer("/default/t") as producer:
                await producer.send_many([b"former"] * 4)
            served = {topic.name: topic.topic_id for topic in late.broker.directory.topics()}
            assert served.keys() & set(names)
            late.node.faults.latency_s = 0.5
            await near.broker.directory.create("/default/more", None, 0, here=True)
            await near.broker.directory.create("/default/most", None, 0, here=True)
            await near.broker.directory.delete("/default/t")
            await near.broker.directory.create("/default/t", None, partitions)
            found = await client.admin.lookup_topic("/default/t")
            still = [name for name, owner in zip(names, found.owners, strict=True) if owner.address == "h2:6650"]
            assert {topic.name: topic.topic_id for topic in late.broker.directory.topics()} == served, (
                "it has not heard"
            )
            (again,) = served.keys() & set(still)
            if consumer_first:
                async with client.consumer("/default/t", subscription="s", start="earliest"):
                    assert late.broker.directory.find(again).topic_id != served[again]
            for name in names:
                async with client.producer(name) as producer:
                    assert (await producer.send(name.encode())).offset == 0, "the new topic is empty"
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                assert {(await consumer.receive()).payload for _ in names} == {name.encode() for name in names}


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_client_that_has_created_a_topic_again_is_not_told_of_the_deleted_one(
    tmp_path: Path, partitions: int
) -> None:
    """Another broker than the one that made the changes, which hears of them late, answers the lookup."""
    async with cluster(tmp_path) as world:
        near, late = world.machines
        view = late.broker.directory.catalogue
        await near.broker.directory.create("/default/weight", None, 0, here=True)
        await near.broker.directory.create("/default/t", None, partitions)
        async with near.client() as client, client.producer("/default/t") as producer:
            await producer.send_many([b"former"] * 4)
        former = view.find("/default/t").topic_ids
        late.node.faults.latency_s = 0.5
        await near.broker.directory.create("/default/more", None, 0, here=True)
        await near.broker.directory.create("/default/most", None, 0, here=True)
        await near.broker.directory.delete("/default/t")
        await near.broker.directory.create("/default/t", None, partitions)
        assert view.find("/default/t").topic_ids == former, "it has not heard"
        revision = near.broker.directory.catalogue.revision
        assert revision > view.tables.topics.position
        async with late.client() as client:
            client._pool.changed(revision)  # as if it had made the changes
            found = await client.admin.lookup_topic("/default/t")
            assert found.topic_ids == near.broker.directory.catalogue.find("/default/t").topic_ids
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                async with client.producer("/default/t") as producer:
                    await producer.send_many([b"new"] * 4)
                assert {(await consumer.receive()).payload for _ in range(4)} == {b"new"}


async def test_a_client_that_has_deleted_a_topic_is_not_told_of_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        near, late = world.machines
        await near.broker.directory.create("/default/t", None, 2)
        late.node.faults.latency_s = 0.5
        done = await near.broker.operations.topics.delete_topic(api.DeleteTopic("/default/t"))
        assert late.broker.directory.catalogue.find("/default/t") is not None, "it has not heard"
        async with late.client() as client:
            client._pool.changed(done.revision)  # as if it had made the change
            with pytest.raises(TopicNotFoundError):
                await client.admin.lookup_topic("/default/t")


async def test_a_client_remembers_the_revision_of_its_changes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world, world.machines[0].client() as client:
        created = await client.admin.create_topic("/default/t", partitions=2)
        assert 0 < created.revision == client._pool.revision
        assert (await client.admin.describe_topic("/default/t")).revision == 0, "it asks for nothing later"
        await client.admin.delete_topic("/default/t")
        assert client._pool.revision > created.revision


async def test_a_broker_that_cannot_ask_which_topic_is_meant_opens_none(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        topic = owner.broker.directory.find("/default/t")
        owner.cut_off()
        known = api.PublishOpen("/default/t", "p", topic_id=topic.topic_id)
        assert await owner.broker.directory.for_producer(known) is topic
        assert await owner.broker.directory.for_producer(api.PublishOpen("/default/t", "p")) is topic
        for wait_s in (0.0, 4.0):  # its session is certain to be alive, and not any more
            await trio.sleep(wait_s)
            with pytest.raises(UnavailableError):
                await owner.broker.directory.for_producer(api.PublishOpen("/default/t", "p", topic_id=TopicId(7)))
            with pytest.raises(UnavailableError):
                await owner.broker.directory.search("/default/t", TopicId(7))
        owner.heal()
        await wait_until(owner.broker.directory.membership.is_certain)
        # The client is the one that has not heard.
        assert await owner.broker.directory.search("/default/t", TopicId(7)) is topic


async def test_official_clients_are_redirected_to_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        for machine in world.machines:
            request = pb.TopicLookupRequest(request_id=7, topic="/default/t")
            context = Context("", "", 1, {}, math.inf, PROTO)
            answer = await Discovery(machine.broker).topic_lookup(request, context)
            kind = pb.TopicLookupResponse.Connect if machine is owner else pb.TopicLookupResponse.Redirect
            assert answer.response_type == kind
            assert answer.connect_url == answer.broker_url == f"http://{owner.name}:6650"


async def test_each_broker_seals_into_a_storage_of_its_own(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        for machine in world.machines:
            await machine.broker.directory.create(f"/default/{machine.name}", None, 0, here=True)
        for count in (1, 2):
            for machine in world.machines:
                name = f"/default/{machine.name}"
                async with machine.client() as client:
                    async with client.producer(name) as producer:
                        await producer.send(b"x")
                    (sealed,) = await client.admin.seal_topic(name, timeout_s=10)
                    assert sealed.sealed_offset == count
            for machine in world.machines:
                await machine.kill()
                await machine.start()


# --- Topics of durability none, and the coordinator ---


async def test_topics_without_durability_move_when_their_owner_dies(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world:
        for number in range(6):
            await created(world, f"/default/t{number}", durability=Durability.NONE)
        dead = world.machines[1]
        moved = {topic.name: topic.owner_epoch for topic in dead.broker.directory.topics()}
        assert len(moved) == 2
        await dead.kill()
        with pytest.raises((NotOwnerError, OwnerAwayError)):
            world.machines[0].broker.directory.find(min(moved))
        alive = [world.machines[0], world.machines[2]]
        await wait_until(lambda: sum(len(machine.broker.directory) for machine in alive) == 6)
        for name, epoch in moved.items():
            assert owner_of(world, name).broker.directory.find(name).owner_epoch > epoch
        await dead.start()
        assert len(dead.broker.directory) == 0
        with pytest.raises(NotOwnerError):
            dead.broker.directory.find(min(moved))


async def test_a_broker_with_a_new_session_does_not_serve_what_others_got_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that follows the catalogue was waiting for the metadata when the topics were assigned to others.

    Seed 20261213009837 of a cluster: it waited on, and with a new session both owners took messages.
    """
    async with cluster(tmp_path, 3) as world:
        for number in range(3):
            await created(world, f"/default/t{number}", durability=Durability.NONE)
        machine = world.machines[1]
        directory = machine.broker.directory
        following = directory.following
        (topic,) = directory.topics()
        busy = trio.Event()

        async def forget() -> None:
            busy.set()
            await trio.sleep(60.0)

        monkeypatch.setattr(directory.catalogue.deletions, "forget", forget)
        following._notes = True
        following._wake.set()
        await busy.wait()
        machine.cut_off()
        others = [each for each in world.machines if each is not machine]
        await wait_until(lambda: topic.name in {t.name for each in others for t in each.broker.directory.topics()})
        machine.heal()
        await wait_until(directory.membership.is_certain)
        assert directory.served(topic.topic_id) is None
        with pytest.raises(NotOwnerError):
            directory.find(topic.name)


async def test_topics_without_durability_move_at_once_when_their_owner_is_killed(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, cluster_secret="/simulated/secret") as world:
        names = [f"/default/t{number}" for number in range(6)]
        for name in names:
            await created(world, name, durability=Durability.NONE)
        await trio.sleep(3.0)
        for victim in world.machines:  # the coordinator, too
            others = [each for each in world.machines if each is not victim]
            mine = [name for name in names if owner_of(world, name) is victim]
            assert mine
            killed_at = trio.current_time()
            await victim.kill()
            served = {name for each in others for name in (t.name for t in each.broker.directory.topics())}
            assert not served & set(mine)
            while not served >= set(mine):
                await trio.sleep(0.01)
                served = {t.name for each in others for t in each.broker.directory.topics()}
            assert trio.current_time() - killed_at < 0.5
            await victim.start()
            for name in mine:  # it gets some again
                await world.machines[0].broker.directory.delete(name)
                names.remove(name)
            await wait_until(lambda: not world.machines[0].broker.directory.catalogue.deletions.noted())
            for number in range(len(mine)):
                names.append(f"{mine[number]}x")
                await created(world, names[-1], durability=Durability.NONE)
            await trio.sleep(2.0)


async def test_clients_of_a_broker_that_is_cut_off_change_the_metadata_at_another_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world:
        near = world.machines[0]
        await created(world, "/default/before")
        async with near.client() as client:
            await client.admin.lookup_topic("/default/before")  # names the brokers
            near.cut_off()
            await trio.sleep(4.0)  # its session is not certain any more
            began = trio.current_time()
            await client.admin.create_namespace("more")
            await client.admin.create_topic("/default/new")
            await client.admin.change_policies("/default/new", message_ttl_s=60)
            assert trio.current_time() - began < 3.0
            # It does not know this one, and does not say that it does not exist.
            async with client.producer("/default/new") as producer:
                await producer.send(b"x")
            await client.admin.delete_topic("/default/before")
            await client.admin.create_namespace("less")
            await client.admin.delete_namespace("less")
            assert trio.current_time() - began < 6.0
            with pytest.raises(CallRefusedError, match="ask another broker"):
                await near.broker.operations.topics.create_topic(api.CreateTopic("/default/other"))
            near.heal()
            await wait_until(near.broker.directory.membership.is_certain)
            await near.broker.operations.topics.create_topic(api.CreateTopic("/default/other"))


async def test_a_broker_alone_does_not_send_its_clients_to_others(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as world:
        near = world.machines[0]
        near.cut_off()
        await trio.sleep(4.0)
        with pytest.raises(UnavailableError) as caught:
            await near.broker.operations.topics.create_topic(api.CreateTopic("/default/other"))
        assert not isinstance(caught.value, CallRefusedError)


async def test_an_owner_that_was_cut_off_ends_what_has_moved_without_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, second = world.machines
        await created(world, "/default/t", durability=Durability.NONE)
        owner = owner_of(world, "/default/t")
        other = second if owner is first else first
        await created(world, "/default/d", here=True, at=world.machines.index(owner))
        async with owner.client() as client, client.producer("/default/t") as producer:
            await producer.send(b"one")
            owner.cut_off()
            await wait_until(lambda: not owner.broker.directory.membership.is_certain())
            assert len(other.broker.directory) == 0, "the session may be alive"
            before = owner.broker.directory.find("/default/t").end_offset
            with trio.move_on_after(0.05):
                await producer.send(b"two")
            assert owner.broker.directory.find("/default/t").end_offset == before, "it may also have ended"
            await wait_until(lambda: len(other.broker.directory) == 1)
            owner.heal()
            await wait_until(lambda: len(owner.broker.directory) == 1)
            with trio.fail_after(20):
                await producer.send(b"three")  # at the new owner
        assert other.broker.directory.find("/default/t").end_offset >= 1
        with pytest.raises(NotOwnerError):
            owner.broker.directory.find("/default/t")


async def test_an_interrupted_creation_leaves_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, second = world.machines
        first.node.faults.latency_s = 0.2
        world.nursery.start_soon(create_quietly, first)
        await wait_until(lambda: len(second.broker.directory.membership.assignments.values) > 60)
        await first.kill()
        await trio.sleep(10)
        assert (await world.store.list(CREATING))[0] == []
        assert (await world.store.list(ASSIGNMENTS))[0] == []
        await first.start()
        await second.broker.directory.create("/default/parts", None, 2)


async def create_quietly(machine: Machine) -> None:
    with suppress(DanubeError):
        await machine.broker.directory.create("/default/parts", None, 500)


# --- Calls that concern several owners ---


class Links:
    """Links between the brokers, without a network."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        (machine,) = [each for each in self.world.machines if to == f"{each.name}:6650"]
        if machine.node.life is None:
            raise CallRefusedError(f"{to} is away")
        await trio.sleep(0.01)
        return await machine.broker.operations.topics.across.answer(None, payload)  # type: ignore[arg-type]


def linked(world: ClusterWorld) -> None:
    for machine in world.machines:
        machine.broker.operations.topics.across.calls = Links(world)


async def test_calls_about_a_partitioned_topic_reach_all_owners(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        first, second = world.machines
        linked(world)
        async with second.client() as client:
            await client.admin.create_topic("/default/parts", partitions=4)
            await wait_until(lambda: [len(each) for each in directories(world)] == [2, 2])
            for number in range(4):
                async with client.producer(f"/default/parts-part-{number}") as producer:
                    await producer.send(b"x")
                async with client.consumer(f"/default/parts-part-{number}", subscription="s", start="earliest"):
                    pass
            for machine in world.machines:
                async with machine.client() as asked:
                    info = await asked.admin.describe_topic("/default/parts")
                    assert (info.partitions, info.end_offset, info.subscriptions) == (4, 4, ["s"])
                    assert [row.backlog_messages for row in await asked.admin.list_subscriptions("/default/parts")] == [
                        1
                    ] * 4
                    rows = await asked.admin.list_topics()
                    assert [(row.topic, row.end_offset) for row in rows] == [("/default/parts", 4)]
            async with first.client() as asked:
                await asked.admin.seek_subscription("/default/parts", "s", "latest")
                rows = await asked.admin.describe_subscription("/default/parts", "s")
                assert [row.backlog_messages for row in rows] == [0] * 4
                await asked.admin.delete_subscription("/default/parts", "s")
                assert await asked.admin.list_subscriptions("/default/parts") == []


async def test_retention_of_a_partitioned_topic_is_changed_at_all_owners(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world:
        linked(world)
        async with world.machines[1].client() as client:
            await client.admin.create_topic("/default/parts", partitions=6)
            await wait_until(lambda: [len(each) for each in directories(world)] == [2, 2, 2])
            for _ in range(2):
                for number in range(6):
                    async with client.producer(f"/default/parts-part-{number}") as producer:
                        await producer.send_many([bytes(1_000)] * 20)
                await client.admin.seal_topic("/default/parts")
        names = [f"/default/parts-part-{number}" for number in range(6)]
        rules = Retention(max_bytes=5_000)

        def retentions() -> set[Retention]:
            return {topic.retention for each in directories(world) for topic in each.topics()}

        for machine in world.machines:
            async with machine.client() as asked:
                reported = await asked.admin.change_retention("/default/parts", rules, dry_run=True)
                assert (reported.retention, reported.applied) == (rules, False)
                assert [plan.topic for plan in reported.plans] == names
                assert {plan.new_start_offset for plan in reported.plans} == {20}
                assert retentions() == {Retention()}, "a dry run changes nothing"
        async with world.machines[0].client() as asked:
            with pytest.raises(FailedPreconditionError, match="partition"):
                await asked.admin.change_retention("/default/parts-part-3", rules)
            with pytest.raises(InvalidArgumentError, match="exclude each other"):
                await asked.admin.change_retention("/default/parts", rules, dry_run=True, now=True)
            assert retentions() == {Retention()}
            # The other brokers have not read the new rules by themselves when they apply them.
            changed = await asked.admin.change_retention("/default/parts", rules, now=True)
            assert (changed.retention, changed.applied) == (rules, True)
            assert [plan.topic for plan in changed.plans] == names
            assert retentions() == {rules}
            assert (await asked.admin.describe_topic("/default/parts")).start_offset == 6 * 20
        async with world.machines[2].client() as asked:
            again = await asked.admin.change_retention("/default/parts")
            assert (again.retention, again.applied, len(again.plans)) == (rules, False, 6)
        # Nothing is changed while an owner is away.
        await world.machines[2].kill()
        await trio.sleep(5)
        async with world.machines[0].client() as asked:
            with pytest.raises(DeadlineExceededError, match="waits for broker b3"):
                await asked.admin.change_retention("/default/parts", Retention(), timeout_s=3)
            found = world.machines[0].broker.directory.catalogue.find("/default/parts")
            assert found.policies.retention == rules


async def test_calls_of_other_brokers_wait_until_topics_are_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reached, let = recovery.recover, trio.Event(), trio.Event()

    async def held(*arguments: Any, **more: Any) -> Any:
        reached.set()
        await let.wait()
        return await real(*arguments, **more)

    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        async with owner.client() as client, client.producer("/default/t") as producer:
            await producer.send(b"one")
        await owner.kill()
        monkeypatch.setattr(danube.broker.broker, "recover", held)
        fields = [
            api.Method.LIST_SUBSCRIPTIONS,
            msgspec.msgpack.encode(api.ListSubscriptions("/default/t")),
            ["/default/t"],
        ]
        part = msgspec.msgpack.encode([*fields, None])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.start)
            await reached.wait()
            across = owner.broker.operations.topics.across
            with pytest.raises(CallRefusedError, match="is starting"):
                await across.answer(None, part)  # type: ignore[arg-type]
            assert len(owner.broker.directory) == 0, "a topic that is not recovered was served"
            let.set()
        await across.answer(None, part)  # type: ignore[arg-type]
        with pytest.raises(FailedPreconditionError, match="earlier version, which does not say what its caller may do"):
            await across.answer(None, msgspec.msgpack.encode(fields))  # type: ignore[arg-type]
        assert owner.broker.directory.find("/default/t").end_offset == 1


@pytest.mark.parametrize("step", ["recover", "settle"])
async def test_no_topic_is_built_before_the_journal_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It would be empty, and give offsets to new messages that others have."""
    real, refused = getattr(recovery, step), []

    async def early(directory: Directory, *arguments: Any, **more: Any) -> Any:
        before = directory.topics()
        with pytest.raises(AssertionError, match="not recovered yet"):
            directory.following.look("/default/t")
        with pytest.raises(AssertionError, match="not recovered yet"):
            await directory.refresh("/default/t")
        assert directory.topics() == before
        refused.append(step)
        return await real(directory, *arguments, **more)

    async with cluster(tmp_path) as world:
        owner = await created(world, "/default/t")
        async with owner.client() as client, client.producer("/default/t") as producer:
            await producer.send(b"one")
        await owner.kill()
        monkeypatch.setattr(danube.broker.broker, step, early)
        await owner.start()
        assert refused
        assert owner.broker.directory.find("/default/t").end_offset == 1


async def test_lists_say_who_did_not_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world:
        linked(world)
        for number in range(6):
            await created(world, f"/default/t{number}")
        await directories(world)[0].create("/default/parts", None, 6)
        await wait_until(lambda: sum(len(each) for each in directories(world)) == 12)
        asked, _, dead = world.machines
        its = {topic.name for topic in dead.broker.directory.topics() if "-part-" not in topic.name}
        assert len(its) == 2
        operations = asked.broker.operations.topics

        async def silent() -> dict[str, list[str]]:
            found = await operations.list_topics(api.ListTopics())
            assert len(found.topics) == 7
            return {topic.topic: topic.silent for topic in found.topics if topic.silent}

        assert await silent() == {}
        await dead.kill()
        assert await silent() == {name: ["b3"] for name in (*its, "/default/parts")}
        await trio.sleep(5)
        assert await silent() == {name: ["b3"] for name in (*its, "/default/parts")}, "its session has ended"


@pytest.mark.parametrize("seed", range(3))
async def test_brokers_do_not_exceed_a_quota_of_topics_together(tmp_path: Path, seed: int) -> None:
    async with cluster(tmp_path, 3) as world:
        first = world.machines[0].broker.operations.topics
        await first.create_namespace(api.CreateNamespace("shop"))
        await wait_until(lambda: all("shop" in each.catalogue.namespaces for each in directories(world)))
        outcomes: Counter[str] = Counter()

        async def create(number: int) -> None:
            operations = world.machines[(number + seed) % 3].broker.operations.topics
            request = api.CreateTopic(f"/shop/t{number}", partitions=number % 4)
            try:
                await operations.create_topic(request)
            except LimitExceededError:
                outcomes["refused"] += 1
            except UnavailableError:  # others were faster, again and again
                outcomes["later"] += 1
            else:
                outcomes["topics"] += max(1, number % 4)

        async with trio.open_nursery() as nursery:  # the others have not heard of the quota when they begin
            await first.change_quota(ChangeQuota("shop", {"max_topics": 7}))
            for number in range(12):
                nursery.start_soon(create, number)
        for number in range(12, 40):  # fill it to the last
            await create(4 * number)
        assert outcomes["topics"] == 7
        assert outcomes["refused"] >= 28 - 7
        for each in directories(world):
            await wait_until(lambda each=each: each.catalogue.topics_of("shop") == 7)
        # What another broker has deleted or raised counts at once.
        name, record = next(directories(world)[0].catalogue.topics("shop"))
        await world.machines[1].broker.operations.topics.delete_topic(api.DeleteTopic(name))
        last = api.CreateTopic("/shop/last", partitions=len(record.topic_ids))
        await world.machines[2].broker.operations.topics.create_topic(last)
        await world.machines[1].broker.operations.topics.change_quota(ChangeQuota("shop", {"max_topics": 8}))
        await world.machines[2].broker.operations.topics.create_topic(api.CreateTopic("/shop/more"))
        with pytest.raises(LimitExceededError, match="quota max_topics is 8"):
            await first.create_topic(api.CreateTopic("/shop/beyond"))


async def test_a_large_topic_is_counted_again_before_it_is_visible(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as world:
        first, second = (each.broker.operations.topics for each in world.machines)
        await first.create_namespace(api.CreateNamespace("shop"))
        await first.change_quota(ChangeQuota("shop", {"max_topics": 200}))
        await wait_until(lambda: all("shop" in each.catalogue.namespaces for each in directories(world)))
        made: list[str] = []

        async def create(operations: Any, name: str) -> None:
            with suppress(LimitExceededError, UnavailableError):
                await operations.create_topic(api.CreateTopic(name, partitions=130))
                made.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, first, "/shop/a")
            nursery.start_soon(create, second, "/shop/b")
        assert len(made) == 1
        await create(first, "/shop/c")
        assert len(made) == 1
        for each in directories(world):
            await wait_until(lambda each=each: each.catalogue.topics_of("shop") == 130)
        await second.create_topic(api.CreateTopic("/shop/d", partitions=70))


async def test_a_quota_of_topics_holds_for_many_creations_at_once(tmp_path: Path) -> None:
    """Each creation counts those before it, also those of brokers of which it has not heard yet."""
    async with cluster(tmp_path, 3) as world:
        catalogue = world.machines[0].broker.directory.catalogue
        await catalogue.policy_changes.quota("default", {"max_topics": 20})
        results: Counter[str] = Counter()

        async def create(machine: Machine, name: str, partitions: int) -> None:
            try:
                await machine.broker.directory.create(name, None, partitions)
                results["created"] += max(1, partitions)
            except LimitExceededError:
                results["refused"] += 1
            except UnavailableError:
                results["unknown"] += 1

        async with trio.open_nursery() as nursery:
            for number in range(30):
                machine = world.machines[number % 3]
                nursery.start_soon(create, machine, f"/default/t{number}", number % 3)
        await wait_until(lambda: len({each.catalogue.topics_of("default") for each in directories(world)}) == 1)
        assert catalogue.topics_of("default") == results["created"] <= 20
        # Large topics are created in several transactions.
        results.clear()
        await catalogue.policy_changes.quota("default", {"max_topics": 820})
        async with trio.open_nursery() as nursery:
            for number, machine in enumerate(world.machines):
                nursery.start_soon(create, machine, f"/default/large{number}", 400)
        assert results["created"] <= 800


async def test_a_broker_whose_session_has_just_ended_is_one_that_does_not_answer(tmp_path: Path) -> None:
    """Found by a world (20261129600000011): a KeyError ended the coordinator, which asked it for its load."""
    async with cluster(tmp_path, 2) as world:
        first, second = world.machines
        membership = first.broker.directory.membership
        broker = second.broker.directory.membership.me
        assert membership.session_address(broker) == "h2:6650"
        await second.kill()
        await wait_until(lambda: broker not in map(parse_broker, membership.sessions.values))
        with pytest.raises(UnavailableError, match="broker b2 does not run any more"):
            membership.session_address(broker)


async def test_the_ends_of_logs_include_partitions_that_a_topic_got_since(tmp_path: Path) -> None:
    """A stream of Spark read them only after its next start."""
    name = "/default/grows"
    async with cluster(tmp_path, 2, cluster_secret="file") as world, world.machines[0].client() as client:
        await client.admin.create_topic(name, partitions=2)
        known = {state.name: state.end_offset for state in await client.logs.states([name])}
        assert len(known) == 2
        await client.admin.expand_topic(name, 3)
        began = trio.current_time()
        while len(await client.logs.states([name], beyond=known, timeout_s=15.0)) < 3:
            assert trio.current_time() < began + 31
        assert len(await client.logs.states()) == 3
