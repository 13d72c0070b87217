"""Dead brokers are noticed: killed ones at once, silent ones with their time to live, live ones never. Virtual time.

Brokers are links, metadata (a Raft group, or a store beside the brokers), membership and coordination, on a simulated
network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest
import trio
from cluster.group_nodes import Broker, World, simulate, until
from msgspec import structs

from danube.cluster.coordinating import Coordinating
from danube.cluster.membership import Membership
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CREATING,
    DELETED,
    Assignment,
    CreatingRecord,
    DeletedRecord,
    LastStart,
    SessionRecord,
    topic_key,
)
from danube.metadata import MemoryStore, MetadataStore, Put, Table
from danube.model import Durability
from danube.model.ids import OwnerEpoch, TopicId
from danube.model.records import TopicRecord
from danube.peers.links import WirePeers

KILLED_S, SILENT_S = 0.5, 3.5
"""How soon a session has to end."""
TOPIC = TopicId(7)


class Member(Broker):
    """A broker with a session and a coordinator."""

    shared: MemoryStore | None = None
    """Metadata that the brokers do not keep themselves."""

    async def _take_part(self, peers: WirePeers, listed: tuple[str, ...], join: str | None) -> None:
        if self.shared is None:
            await super()._take_part(peers, listed, join)
        else:
            await self._work(self.shared)

    async def _work(self, store: MetadataStore) -> None:
        self.member = Membership(
            store,
            cluster="danube",
            identity=self.identity,
            record=SessionRecord(address=self.address),
            storages=("default",),
            random=self.world.random,
        )
        await self.member.join(self.life - 1, LastStart(self.life - 1, 0), self._store_start)
        if self.shared is not None:
            self.peers.identify(structs.replace(self.peers.own, incarnation=self.member.cluster.incarnation))
        topics = Table(store, "/topics", TopicRecord, watched=True, on_change=self._heard)
        creating = Table(store, CREATING, CreatingRecord, watched=True, on_change=self._heard)
        deleted = Table(store, DELETED, DeletedRecord, watched=True, on_change=self._heard)
        self.coordinating = Coordinating(
            store,
            self.member,
            topics=topics,
            creating=creating,
            deleted=deleted,
            random=self.world.random,
            peers=self.peers,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.member.run)
            for table in (topics, creating, deleted):
                await nursery.start(table.follow)
            await nursery.start(self.coordinating.run)
            self.used = store
            self.ready.set()
            await trio.sleep_forever()

    async def _store_start(self, life: int, start: int) -> None:
        assert life == self.life

    def _heard(self, change: object) -> None:
        self.coordinating.look_again()

    @property
    def revision(self) -> int:
        """Of its session."""
        return self.member.session_revision

    def sees(self, other: Member) -> bool:
        return other.member.broker in self.member.sessions.values

    def owner(self) -> int | None:
        return self.member.owner(TOPIC)


async def cluster(world: World, count: int = 3, *, shared: MemoryStore | None = None) -> list[Member]:
    """Start brokers; wait until they see each other and one of them coordinates."""
    brokers = []
    for number in range(1, count + 1):
        broker = Member(world, f"h{number}")
        broker.shared = shared
        world.brokers.append(broker)
        brokers.append(broker)
    listed = [] if shared else [broker.address for broker in brokers]
    for broker in brokers:
        broker.start(listed)
    for broker in brokers:
        await broker.up()
    await until(lambda: all(one.sees(other) for one in brokers for other in brokers))
    await until(lambda: all(one.coordinating.coordinator is not None for one in brokers))
    await trio.sleep(5.0)
    return brokers


def coordinator(brokers: list[Member]) -> Member:
    return next(broker for broker in brokers if broker.coordinating.is_coordinator)


async def give_topic(victim: Member) -> None:
    """Create a topic without durability that the broker owns."""
    encode = msgspec.msgpack.encode
    record = TopicRecord(Durability.NONE, 0, [TOPIC], 0)
    assignment = Assignment(victim.member.me, OwnerEpoch(1))
    await victim.used.transact(
        [], [Put("/topics/default/t", encode(record)), Put(ASSIGNMENTS + topic_key(TOPIC), encode(assignment))]
    )


async def noticed_after(others: list[Member], victim: Member) -> float:
    """Wait until the others do not see its session, and its topic is another's; return how long that took."""
    began = trio.current_time()
    with trio.fail_after(30):
        for other in others:
            while other.sees(victim) or other.owner() == victim.member.me:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.005)
    return trio.current_time() - began


VICTIMS = ("leader and coordinator", "leader", "coordinator", "another")


async def choose(brokers: list[Member], kind: str) -> Member:
    """Return a broker with these duties; they are arranged."""
    leading = await brokers[0].world.leader(*brokers)
    chief = coordinator(brokers)
    if (leading is chief) != (kind in ("leader and coordinator", "another")):
        away = (
            chief
            if kind == "leader and coordinator" or kind == "another"
            else next(each for each in brokers if each is not chief)
        )
        assert leading.store.node.transfer(away.store.node.member)
        await until(lambda: away.is_leader)
        await trio.sleep(1.0)
        leading = away
    if kind == "another":
        return next(each for each in brokers if each is not leading)
    return chief if kind in ("coordinator", "leader and coordinator") else leading


@pytest.mark.parametrize("kind", VICTIMS)
def test_a_killed_broker_is_noticed_within_half_a_second(kind: str) -> None:
    async def work(world: World) -> None:
        brokers = await cluster(world)
        victim = await choose(brokers, kind)
        await give_topic(victim)
        await trio.sleep(1.0)
        others = [each for each in brokers if each is not victim]
        kept = [each.revision for each in others]
        await victim.kill()
        assert await noticed_after(others, victim) <= KILLED_S
        await trio.sleep(5.0)
        assert [each.revision for each in others] == kept
        victim.start([each.address for each in brokers])
        await victim.up()
        await until(lambda: all(each.sees(victim) for each in others))
        # It is killed again soon: another start.
        await trio.sleep(3.0)
        await victim.kill()
        assert await noticed_after(others, victim) <= KILLED_S

    for seed in (1, 2, 3):
        simulate(work, seed)


@pytest.mark.parametrize("kind", VICTIMS)
def test_a_silent_machine_is_noticed_with_its_time_to_live(kind: str) -> None:
    async def work(world: World) -> None:
        brokers = await cluster(world)
        victim = await choose(brokers, kind)
        await give_topic(victim)
        await trio.sleep(1.0)
        await victim.kill(silently=True)
        others = [each for each in brokers if each is not victim]
        kept = [each.revision for each in others]
        assert 2.0 < await noticed_after(others, victim) <= SILENT_S
        assert [each.revision for each in others] == kept

    for seed in range(4, 12):  # with 5, the two others ask for votes at the same moment
        simulate(work, seed)


def test_two_brokers_that_are_killed_at_once_are_noticed_by_the_others() -> None:
    async def work(world: World) -> None:
        brokers = await cluster(world, 5)
        leading = await world.leader(*brokers)
        chief = coordinator(brokers)
        victims = [chief, leading if leading is not chief else next(each for each in brokers if each is not chief)]
        for victim in victims:
            await victim.kill()
        others = [each for each in brokers if each not in victims]
        began = trio.current_time()
        for victim in victims:
            await noticed_after(others, victim)
        # The new coordinator may have no hint of its own about the second one.
        assert trio.current_time() - began <= SILENT_S

    simulate(work)


def test_metadata_beside_the_brokers_serve_as_well() -> None:
    async def work(world: World) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, shared=store)
            for victim in (coordinator(brokers), next(each for each in brokers if each is not coordinator(brokers))):
                others = [each for each in brokers if each is not victim]
                await victim.kill()
                assert await noticed_after(others, victim) <= KILLED_S
                victim.start()
                await victim.up()
                await trio.sleep(3.0)

    simulate(work)


def test_links_to_brokers_that_were_removed_are_closed() -> None:
    async def work(world: World) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, shared=store)
            chief = coordinator(brokers)
            removed, other = [each for each in brokers if each is not chief]
            assert set(chief.peers.links) == {removed.address, other.address}
            await removed.kill()
            await noticed_after([chief, other], removed)
            await trio.sleep(1.0)
            assert removed.address in chief.peers.links, "it may return"
            await store.delete(BROKERS + removed.member.broker)
            await until(lambda: set(chief.peers.links) == {other.address})
            # One that starts at the address of another one is linked to once, also when that one is removed later.
            await other.kill()
            await noticed_after([chief], other)
            former = other.member.broker
            other.replace_disks()
            other.life = 0
            other.start()
            await other.up()
            await until(lambda: chief.peers.peer(other.address) is not None)
            await store.delete(BROKERS + former)
            await trio.sleep(0.1)
            assert chief.peers.peer(other.address) is not None
            assert set(chief.peers.links) == {other.address}

    simulate(work)


def test_a_firewall_between_two_brokers_ends_no_session() -> None:
    async def work(world: World) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, shared=store)
            chief = coordinator(brokers)
            victim = next(each for each in brokers if each is not chief)
            kept = [each.revision for each in brokers]
            for _ in range(3):
                world.refusing |= {(chief.name, victim.name), (victim.name, chief.name)}
                world.network.reset(chief.name, victim.name)
                await trio.sleep(8.0)
                world.refusing.clear()
                await trio.sleep(3.0)
            assert [each.revision for each in brokers] == kept
            assert coordinator(brokers) is chief

    simulate(work)


def test_of_two_brokers_each_waits_for_the_time_to_live_of_the_other() -> None:
    """There is none that could be asked whether it is the network between the two."""

    async def work(world: World) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, 2, shared=store)
            kept = [each.revision for each in brokers]
            first, second = brokers
            world.refusing |= {(first.name, second.name), (second.name, first.name)}
            world.network.reset(first.name, second.name)
            await trio.sleep(20.0)
            assert [each.revision for each in brokers] == kept

    simulate(work)


def test_a_broker_that_is_taken_for_dead_opens_another_session_and_goes_on() -> None:
    """The connections of all others are refused. It happens once a minute at most."""

    async def work(world: World) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, shared=store)
            chief = coordinator(brokers)
            victim = next(each for each in brokers if each is not chief)
            others = [each for each in brokers if each is not victim]
            await give_topic(victim)
            first = victim.revision

            async def refuse() -> None:
                for each in others:
                    world.refusing.add((each.name, victim.name))
                for each in others:
                    world.network.reset(each.name, victim.name)
                await trio.sleep(0.7)
                world.refusing.clear()
                await trio.sleep(2.0)

            await refuse()
            second = victim.revision
            assert second > first
            assert victim.member.is_certain()
            assert victim.owner() == victim.member.me, "it was too fast for its topic to move"
            for _ in range(5):
                await refuse()
            assert victim.revision == second
            await trio.sleep(60.0)
            await refuse()
            assert victim.revision > second
            assert chief.sees(victim)
            assert victim.life == 1

    simulate(work)


def test_a_coordinator_whose_connections_all_are_refused_ends_no_session() -> None:
    """It reaches the metadata, and no broker: it may be the one that is cut off."""

    async def work(world: World) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, 4, shared=store)
            chief = coordinator(brokers)
            kept = [each.revision for each in brokers]
            for other in brokers:
                if other is not chief:
                    world.refusing.add((chief.name, other.name))
            for other in brokers:
                if other is not chief:
                    world.network.reset(chief.name, other.name)
            await trio.sleep(20.0)
            assert [each.revision for each in brokers] == kept

    simulate(work)


Cut = Callable[[World, Member, Member], None]


def _cut(world: World, one: Member, other: Member) -> None:
    world.network.set_cut(one.name, other.name, cut=True)


def _cut_one_way(world: World, one: Member, other: Member) -> None:
    world.network.set_one_way_cut(one.name, other.name, cut=True)


@pytest.mark.parametrize("cut", [_cut, _cut_one_way, lambda world, one, other: _cut_one_way(world, other, one)])
@pytest.mark.parametrize("isolated", ["coordinator", "another"])
def test_a_broker_that_is_cut_off_ends_no_session_of_others(cut: Cut, isolated: str) -> None:
    async def work(world: World) -> None:
        brokers = await cluster(world)
        chief = coordinator(brokers)
        lone = chief if isolated == "coordinator" else next(each for each in brokers if each is not chief)
        others = [each for each in brokers if each is not lone]
        kept = [each.revision for each in others]
        for other in others:
            cut(world, lone, other)
        await trio.sleep(20.0)
        assert [each.revision for each in others] == kept
        assert coordinator(others) in others
        for other in others:
            world.network.set_cut(lone.name, other.name, cut=False)
            world.network.set_one_way_cut(lone.name, other.name, cut=False)
            world.network.set_one_way_cut(other.name, lone.name, cut=False)
        await until(lambda: lone.revision > 0 and all(each.sees(lone) for each in brokers))
        await trio.sleep(10.0)
        assert [each.revision for each in others] == kept

    simulate(work)


@pytest.mark.parametrize("pause_s", [0.0, 0.06, 0.1, 0.3])
def test_a_broker_that_is_killed_and_starts_at_once_keeps_its_new_session(pause_s: float) -> None:
    async def work(world: World, pause_s: float) -> None:
        async with MemoryStore() as store:
            brokers = await cluster(world, shared=store)
            for victim in brokers:
                await victim.kill()
                await trio.sleep(pause_s)
                victim.start()
                await victim.up()
                first = victim.revision
                await trio.sleep(5.0)
                assert victim.revision == first
                assert all(each.sees(victim) for each in brokers)

    run: Callable[[World], Awaitable[None]] = partial(work, pause_s=pause_s)
    simulate(run)
