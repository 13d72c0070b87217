"""Topics move from one broker to another while they are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from broker.directory.test_several_brokers import created

import danube
from danube.broker.moving import source as source_room
from danube.cluster.moves import Complete, Copy, Done, Doubt, Event, Freeze, Refused, Reserve, Switch
from danube.cluster.ordering import order_move
from danube.cluster.records import Assignment, topic_key
from danube.log import Entry, EntryType
from danube.model import Durability
from danube.model.errors import MessageTooLargeError
from danube.model.ids import TopicId
from danube.model.limits import MIB

pytestmark = pytest.mark.virtual

NAME = "/default/moving"
SETTINGS: dict[str, Any] = {"cluster_secret": "file", "shared_buckets": True, "shared_storages": True}


def topic_id_of(machine: Machine, name: str = NAME) -> TopicId:
    return machine.broker.directory.catalogue.locate(name)[1]


def assignment_of(machine: Machine, name: str = NAME) -> Assignment:
    return machine.broker.directory.membership.assignments.values[topic_key(topic_id_of(machine, name))]


def serves(machine: Machine, name: str = NAME) -> bool:
    return machine.node.life is not None and name in {each.name for each in machine.broker.directory.topics()}


async def order(machine: Machine, target: Machine, name: str = NAME) -> None:
    membership = machine.broker.directory.membership
    broker = target.broker.directory.membership.me
    await order_move(machine.node.faults, membership, topic_id_of(machine, name), broker, random=Random(4))


def is_linked(machine: Machine, target: Machine) -> bool:
    """Whether the link to the target leads to its present life, or will be opened by its first use."""
    peers, peer = machine.broker.peers, target.broker.peers.own
    return peer.address not in peers.links or peers.peer(peer.address) == peer


async def moved(machine: Machine, target: Machine, name: str = NAME) -> None:
    """Order a move of the topic that a machine owns, and wait until it is over.

    A move is refused while the link to its target is down, as it is just after a restart; that is not tested here.
    """
    await wait_until(lambda: is_linked(machine, target))
    await order(machine, target, name)
    await wait_until(lambda: serves(target, name))


async def settled(world: ClusterWorld) -> None:
    """Wait until no move is ordered any more, and exactly one broker serves the topic."""
    tables = [each.broker.directory.membership.moves.values for each in world.machines if each.node.life is not None]
    await wait_until(lambda: not any(tables) and sum(map(serves, world.machines)) == 1)
    assert not (await world.store.list("/moves"))[0]


def other(world: ClusterWorld, *machines: Machine) -> Machine:
    return next(each for each in world.machines if each not in machines)


class Traffic:
    """A producer and a consumer that go on while the topic moves."""

    def __init__(self, client: danube.Client, period_s: float = 0.002) -> None:
        self.client = client
        self.period_s = period_s
        self.confirmed = 0
        self.received: Counter[bytes] = Counter()
        self.order: list[int] = []
        self.gaps: list[float] = []
        self.stopping = False
        self.stopped = trio.Event()

    async def publish(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self.client.producer(NAME, name="p") as producer:
            task_status.started()
            while not self.stopping:
                began = trio.current_time()
                await producer.send(b"%d" % self.confirmed)
                self.gaps.append(trio.current_time() - began)
                self.confirmed += 1
                await trio.sleep(self.period_s)
        self.stopped.set()

    async def consume(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self.client.consumer(NAME, subscription="s", start="earliest") as consumer:
            task_status.started()
            async for message in consumer:
                self.received[message.payload] += 1
                self.order.append(int(message.payload))
                await message.ack()

    async def stop(self) -> None:
        """Stop publishing, and wait until everything was received; check that each message was stored once."""
        self.stopping = True
        await self.stopped.wait()
        await wait_until(lambda: len(self.received) >= self.confirmed)
        async with self.client.reader(NAME, start="earliest") as reader:
            stored = [int((await reader.receive()).payload) for _ in range(self.confirmed)]
        assert stored == list(range(self.confirmed)), "stored once, in order"


async def test_a_topic_moves_with_its_messages_cursors_and_producers(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
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
                assert after.epoch == before.epoch + 1
                assert after.move
                assert not (await world.store.list("/moves"))[0]
                assert source.broker.directory.served(topic_id_of(source)) is None
                await wait_until(lambda: topic_id_of(source) not in source.broker.runtime.journal.topic_ids())
                await producer.send(b"10")
            async with client.consumer(NAME, subscription="s") as consumer:
                assert [(await consumer.receive()).payload for _ in range(7)] == [b"%d" % each for each in range(4, 11)]


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.OS])
async def test_a_topic_moves_to_and_fro_under_traffic(tmp_path: Path, durability: Durability) -> None:
    async with cluster(tmp_path, 3, **SETTINGS) as world:
        source = await created(world, NAME, durability=durability)
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
            assert max(traffic.gaps) < 0.3
            nursery.cancel_scope.cancel()


async def test_a_topic_without_durability_moves(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.NONE)
        target = other(world, source)
        async with source.client() as client, client.producer(NAME) as producer:
            await producer.send(b"a")
            await moved(source, target)
            await producer.send(b"b")
            assert assignment_of(target).epoch == 2


Do = Callable[[Any, object], Awaitable[Event]]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [Reserve, Copy, Freeze, Complete, Switch])
@pytest.mark.parametrize("victim", ["source", "target"])
async def test_a_broker_is_killed_in_the_middle_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: type, when: str, victim: str
) -> None:
    async with cluster(tmp_path, 3, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
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
            await trio.sleep(1)
            await (source if victim == "source" else target).start()
            await trio.sleep(1)
            await settled(world)
            # A source that is back carries the order out. A target that has died gets the topic only while its session
            # lives, which is long enough for the switch: its copy is complete, and synced.
            is_complete = step is Switch or (step is Complete and when == "after")
            assert serves(target) is (victim == "source" or is_complete)
            await traffic.stop()
            nursery.cancel_scope.cancel()
        for machine in world.machines:
            if not serves(machine):
                assert topic_id_of(machine) not in machine.broker.runtime.journal.topic_ids()


async def test_a_topic_whose_switch_is_in_doubt_accepts_nothing_while_its_broker_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a world: it was thawed, and would have accepted messages that its new owner does not have."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME)
        target = other(world, source)
        do, switching = source_room._Move._do, trio.Event()

        async def in_doubt(move: Any, action: object) -> Event:
            if isinstance(action, Switch):
                switching.set()
                await trio.sleep_forever()
            return await do(move, action)

        monkeypatch.setattr(source_room._Move, "_do", in_doubt)
        await order(source, target)
        await switching.wait()
        topic = source.broker.directory.find(NAME)
        await source.drain()
        assert topic.is_frozen


@pytest.mark.parametrize("step", [Reserve, Copy, Freeze, Complete, Switch])
@pytest.mark.parametrize("durability", list(Durability))
async def test_a_topic_whose_move_is_given_up_stays_in_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, step: type
) -> None:
    """Found by a world (20261128949300001): a frozen topic of durability none ended its broker."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=durability)
        target = other(world, source)
        refused = trio.Event()
        do: Do = source_room._Move._do

        async def refusing(move: Any, action: object) -> Event:
            result = await do(move, action)
            if isinstance(action, step) and not isinstance(action, Switch):
                refused.set()
                return Refused("a test")
            return result

        async def no_switch(move: Any) -> Event:
            refused.set()
            return Refused("a test")

        monkeypatch.setattr(source_room._Move, "_do", refusing)
        if step is Switch:
            monkeypatch.setattr(source_room._Move, "_switch", no_switch)
        async with (
            source.client() as client,
            client.producer(NAME) as producer,
            client.consumer(NAME, subscription="s") as consumer,
        ):
            await producer.send(b"a")
            if durability is not Durability.NONE:  # which may drop what comes before the consumer has asked for it
                assert (await consumer.receive()).payload == b"a"
            await order(source, target)
            with trio.move_on_after(5):  # one of durability none skips steps, and moves
                await refused.wait()
            await settled(world)
            assert serves(source) is refused.is_set()
            await producer.send(b"b")
            if durability is not Durability.NONE:
                assert (await consumer.receive()).payload == b"b"


@pytest.mark.parametrize("is_applied", [True, False])
async def test_the_answer_of_the_switch_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool
) -> None:
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
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
        assert topic_id_of(source) not in (source if is_applied else target).broker.runtime.journal.topic_ids()


async def test_history_that_only_the_owner_reaches_does_not_move(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SETTINGS, "shared_storages": False}
    async with cluster(tmp_path, 2, **settings) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        async with source.client() as client, client.producer(NAME, name="p") as producer:
            await producer.send(b"0")
            await moved(source, target)
            await client.admin.seal_topic(NAME)
            await order(target, source)
            await wait_until(lambda: "which other brokers cannot reach" in caplog.text)
            await wait_until(lambda: not target.broker.directory.membership.moves.values)
            await producer.send(b"1")
            assert serves(target)
            assert not serves(source)


async def test_a_topic_is_deleted_in_the_middle_of_its_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        topic_id = topic_id_of(source)
        do: Do = source_room._Move._do

        async def ambushed(move: Any, action: object) -> Event:
            if isinstance(action, Switch):
                async with target.client() as client:
                    await client.admin.delete_topic(NAME)
            return await do(move, action)

        async with source.client() as client, client.producer(NAME, name="p") as producer:
            await producer.send(b"0")
            monkeypatch.setattr(source_room._Move, "_do", ambushed)
            await order(source, target)
            await wait_until(lambda: not any(map(serves, world.machines)))
            for machine in world.machines:
                await wait_until(lambda: topic_id not in machine.broker.runtime.journal.topic_ids())  # noqa: B023
                await wait_until(lambda: not machine.broker.directory.membership.moves.values)  # noqa: B023
                await wait_until(lambda: not machine.broker.directory.expected)  # noqa: B023


async def test_a_topic_is_deleted_while_it_is_sealed_before_its_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner looked for the assignment afterwards, and ended because there was none."""
    monkeypatch.setattr(source_room, "_SEAL_FROM_BYTES", 1)
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        history = source.broker.directory.history
        seal_now, sealing = history.seal_now, trio.Event()
        topic_id = topic_id_of(source)
        assignments = source.broker.directory.membership.assignments.values

        async def slow(topics: Any) -> None:
            sealing.set()
            await wait_until(lambda: topic_key(topic_id) not in assignments)
            await seal_now([])

        async with source.client() as client:
            async with client.producer(NAME) as producer:
                await producer.send(b"0")
            monkeypatch.setattr(history, "seal_now", slow)
            await order(source, target)
            await sealing.wait()
            await client.admin.delete_topic(NAME)
            await wait_until(lambda: not source.broker.directory.membership.moves.values)
            assert not any(map(serves, world.machines))
            await client.admin.create_topic("/default/next")  # the broker goes on


async def test_a_copy_that_does_not_fit_into_the_journal_is_given_up_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never buried: the failure of its entry was raised whenever it was tried."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        journal = target.broker.runtime.journal
        submit, refused = journal.submit, trio.Event()

        def refusing(entry: Entry) -> None:
            if entry.type == EntryType.BATCH:
                refused.set()
                raise MessageTooLargeError("the files of this journal are too small")
            submit(entry)

        async with source.client() as client, client.producer(NAME, name="p") as producer:
            await producer.send(b"0")
            monkeypatch.setattr(journal, "submit", refusing)
            await order(source, target)
            await refused.wait()
            await settled(world)
            assert serves(source)
            await wait_until(lambda: topic_id_of(target) not in journal.topic_ids())
            monkeypatch.undo()
            await moved(source, target)
            await producer.send(b"1")


async def test_a_copy_that_waits_for_its_storage_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two owners fall silent; what becomes of the first one's copy cannot be found out for long."""
    async with cluster(tmp_path, 2, limits={"move_timeout_s": 2.0}, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        names, tried = [NAME], 0
        async with source.client() as client:
            while len(names) < 3:
                name, tried = f"/default/other-{tried}", tried + 1
                await client.admin.create_topic(name, durability="disk")
                await wait_until(lambda: serves(source, name) or serves(target, name))  # noqa: B023
                if serves(source, name):
                    names.append(name)
            ids = {topic_id_of(source, name) for name in names}
            do: Do = source_room._Move._do
            silent: list[object] = []

            async def falling_silent(move: Any, action: object) -> Event:
                if isinstance(action, Copy):
                    silent.append(move)
                    await trio.sleep_forever()
                return await do(move, action)

            monkeypatch.setattr(source_room._Move, "_do", falling_silent)
            for name in names:
                await order(source, target, name)
            await wait_until(lambda: len(silent) == len(names))
            journal = target.broker.runtime.journal
            bury, blocked = journal.bury, trio.Event()

            async def slow(topics: Any) -> None:
                if not blocked.is_set() and not ids.isdisjoint(topics):
                    blocked.set()
                    await trio.sleep_forever()
                await bury(topics)

            monkeypatch.setattr(journal, "bury", slow)
            began = trio.current_time()
            await wait_until(lambda: len(ids & journal.topic_ids()) == 1)
            assert trio.current_time() - began < 10


async def test_a_seek_and_a_new_subscription_wait_for_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        is_frozen, goes_on = trio.Event(), trio.Event()
        do: Do = source_room._Move._do

        async def slow(move: Any, action: object) -> Event:
            if isinstance(action, Complete):
                is_frozen.set()
                await goes_on.wait()
            return await do(move, action)

        monkeypatch.setattr(source_room._Move, "_do", slow)
        async with (
            source.client() as client,
            trio.open_nursery() as nursery,
            client.producer(NAME, name="p") as producer,
        ):
            for number in range(5):
                await producer.send(b"%d" % number)
            async with client.consumer(NAME, subscription="s", start="earliest") as consumer:
                for _ in range(5):
                    await (await consumer.receive()).ack()
            await order(source, target)
            await is_frozen.wait()
            ended: list[str] = []

            async def seek() -> None:
                await client.admin.seek_subscription(NAME, "s", 2)
                ended.append("seek")

            async def subscribe() -> None:
                async with client.consumer(NAME, subscription="new", start="earliest") as consumer:
                    assert (await consumer.receive()).payload == b"0"
                ended.append("subscribe")

            async def publish() -> None:
                await producer.send(b"5")
                ended.append("publish")

            for work in (seek, subscribe, publish):
                nursery.start_soon(work)
            await trio.sleep(0.5)
            assert not ended
            goes_on.set()
            await wait_until(lambda: len(ended) == 3)
            assert serves(target)
            async with client.consumer(NAME, subscription="s") as consumer:
                assert [(await consumer.receive()).payload for _ in range(4)] == [b"2", b"3", b"4", b"5"]


async def test_a_topic_that_has_moved_survives_restarts_and_returns(tmp_path: Path) -> None:
    limits = {"segment_max_age_s": 1.0}  # what is sealed leaves the journal, and with it the files of the moves
    async with cluster(tmp_path, 2, journal_file_size=3 * MIB, limits=limits, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        await created(world, "/default/a", durability=Durability.DISK)
        await created(world, "/default/b", durability=Durability.DISK)
        target = other(world, source)
        async with (
            world.machines[0].client() as client,
            client.producer(NAME, name="p") as producer,
            client.producer("/default/a") as first,
            client.producer("/default/b") as second,
        ):
            sent = 0
            for _ in range(4):
                for _ in range(5):
                    await producer.send(b"%d" % sent)
                    sent += 1
                await moved(source, target)
                for _ in range(14):
                    await first.send(bytes(500_000))
                    await second.send(bytes(500_000))
                await trio.sleep(5)
                assert target.broker.runtime.journal.usage().files < 6
                await target.kill()
                await target.start()
                await source.kill()
                await source.start()
                source, target = target, source
                await wait_until(lambda: serves(source))  # noqa: B023 - awaited here
            async with client.reader(NAME, start="earliest") as reader:
                assert [(await reader.receive()).payload for _ in range(sent)] == [b"%d" % each for each in range(sent)]


async def test_the_new_owner_does_not_take_the_order_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its table of assignments may be ahead of that of the orders, in which the order still stands."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        late = target.broker.directory.membership.moves
        mirror = type(late._mirror)
        delete, passed = mirror.delete, mirror.passed
        deleted: list[tuple[str, int]] = []

        def delete_later(self: Any, name: str, revision: int) -> Any:
            return deleted.append((name, revision)) if self is late._mirror else delete(self, name, revision)

        def pass_later(self: Any, revision: int) -> None:
            if self is not late._mirror:
                passed(self, revision)

        with monkeypatch.context() as patch:
            patch.setattr(mirror, "delete", delete_later)
            patch.setattr(mirror, "passed", pass_later)
            await moved(source, target)
            await trio.sleep(2.0)
            assert late.values
        for name, revision in deleted:
            late._report(late._mirror.delete(name, revision))
        await settled(world)
        assert serves(target)
    assert "stays, and is not moved" not in caplog.text


async def test_an_acknowledgement_from_before_a_power_loss_is_void_after_a_move(tmp_path: Path) -> None:
    """The offset stands for another message now, and the new owner may have been started as often as the former one."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.OS)
        target = other(world, source)
        async with target.client() as client:
            async with client.consumer(NAME, subscription="s", start="earliest") as consumer:
                await publish(client, *(b"old %d" % number for number in range(30)))
                held = [await consumer.receive() for _ in range(30)]
                await source.kill(power_loss=True)
                await source.start()
                await wait_until(lambda: serves(source))
                kept = source.broker.directory.find(NAME).end_offset
                assert kept < 30, "the power loss has lost something"
                await moved(source, target)
                payloads = [b"new %d" % number for number in range(30 - kept)]
                await publish(client, *payloads)
                for message in held:
                    await message.ack()
                await consumer.flush_acks()
            async with client.consumer(NAME, subscription="s") as consumer:
                found = [(await consumer.receive()).payload for _ in range(30)]
            assert found[kept:] == payloads


async def test_what_was_delivered_before_a_move_is_acknowledged_after_it(tmp_path: Path) -> None:
    """Of durability os, too: without a restart an offset stands for the same message."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME, durability=Durability.OS)
        target = other(world, source)
        async with target.client() as client:
            await publish(client, b"0", b"1", b"2")
            async with client.consumer(NAME, subscription="s", start="earliest") as consumer:
                held = [await consumer.receive() for _ in range(2)]
                await moved(source, target)
                for message in held:
                    await message.ack()
                await consumer.flush_acks()
            async with client.consumer(NAME, subscription="s") as consumer:
                assert (await consumer.receive()).payload == b"2"


async def publish(client: danube.Client, *payloads: bytes) -> None:
    async with client.producer(NAME) as producer:
        for payload in payloads:
            await producer.send(payload)


@pytest.mark.parametrize("step", [Copy, Freeze])
async def test_a_target_without_room_holds_up_no_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: type
) -> None:
    """The journal of the target gets full after it has accepted the move: before, or while the topic is frozen."""
    limits = {"move_timeout_s": 30.0, "move_complete_s": 1.0}
    async with cluster(tmp_path, 2, limits=limits, **SETTINGS) as world:
        source = await created(world, NAME)
        target = other(world, source)
        journal = target.broker.runtime.journal
        admit, has_room, is_full = journal.admit, trio.Event(), trio.Event()
        waiting = 0
        do: Do = source_room._Move._do

        async def until_room(size: int) -> None:
            nonlocal waiting
            if is_full.is_set():
                waiting += 1
                await has_room.wait()
            await admit(size)

        async with source.client() as client, trio.open_nursery() as nursery, client.producer(NAME) as producer:
            traffic = Traffic(client)
            await producer.send_many([b"%d" % number for number in range(100)])
            await nursery.start(traffic.consume)

            async def filling(move: Any, action: object) -> Event:
                if isinstance(action, step) and not is_full.is_set():
                    await producer.send(b"100")  # so that there is something to be sent
                    is_full.set()
                return await do(move, action)

            monkeypatch.setattr(journal, "admit", until_room)
            monkeypatch.setattr(source_room._Move, "_do", filling)
            await order(source, target)
            await is_full.wait()
            await wait_until(lambda: traffic.received[b"100"] > 0)
            for number in range(101, 200):
                began = trio.current_time()
                await producer.send(b"%d" % number)
                assert trio.current_time() - began < 1.1, "the topic goes on once the move is given up"
                await trio.sleep(0.5)
            assert waiting == 1
            await settled(world)
            assert serves(source)
            monkeypatch.undo()
            has_room.set()
            await wait_until(lambda: topic_id_of(target) not in target.broker.runtime.journal.topic_ids())
            await moved(source, target)
            await producer.send(b"200")
            await wait_until(lambda: len(traffic.received) == 201)
            assert sorted(set(traffic.order)) == list(range(201))
            nursery.cancel_scope.cancel()


async def test_an_order_that_was_withdrawn_is_not_carried_out_again_while_the_view_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a world (20261129600000011): it was tried again, without a pause, until the watch had told of it."""
    async with cluster(tmp_path, 2, **SETTINGS) as world:
        source = await created(world, NAME)
        target = other(world, source)
        attempts = 0
        do: Do = source_room._Move._do

        async def refusing(move: Any, action: object) -> Event:
            nonlocal attempts
            if isinstance(action, Reserve):
                attempts += 1
                return Refused("a test")
            return await do(move, action)

        async def nothing(*_arguments: object) -> bool:
            return True

        monkeypatch.setattr(source_room._Move, "_do", refusing)
        monkeypatch.setattr(source_room, "withdraw_move", nothing)  # so the order stays in the view
        await order(source, target)
        await trio.sleep(5)
        assert attempts == 1
        monkeypatch.undo()
        membership, topic_id = source.broker.directory.membership, topic_id_of(source)
        await source_room.withdraw_move(world.store, topic_id, membership.moves.revision(topic_key(topic_id)))
        await settled(world)
        await moved(source, target)
