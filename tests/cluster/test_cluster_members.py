"""Members of a cluster over one metadata store: joining, sessions, coordination, and whole clusters in bad weather."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest
import trio

from danube.cluster.coordinating import LOOK_S, Coordinating
from danube.cluster.coordinator import GARBAGE_AGE_S, Garbage, decide
from danube.cluster.forming import found
from danube.cluster.membership import Membership
from danube.cluster.ownership import Away, Elsewhere, Mine, Unassigned
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    COORDINATOR,
    CREATING,
    DELETED,
    SESSIONS,
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    CreatingRecord,
    DeletedRecord,
    LastStart,
    Reason,
    SessionRecord,
    broker_name,
    is_topic_key,
    is_topic_name,
    topic_key,
)
from danube.cluster.session import SESSION_TTL_S
from danube.metadata import Condition, Delete, MemoryStore, Put, Table
from danube.model import Durability
from danube.model.errors import (
    ClusterConfigurationError,
    ConfigurationError,
    DataLossError,
    MetadataConflictError,
    UnavailableError,
)
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.records import TopicRecord
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
encode = msgspec.msgpack.encode


class Directory:
    """The data directory of a broker."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.life = 0
        self.last_start = LastStart(0, 0)

    async def store(self, life: int, start: int) -> None:
        self.life, self.last_start = life, LastStart(life, start)

    def copy(self) -> Directory:
        copied = Directory(self.identity)
        copied.life, copied.last_start = self.life, self.last_start
        return copied


class Broker:
    """A process: a member with its own, bad way to the metadata."""

    def __init__(self, store: MemoryStore, directory: Directory, random: Random, **more: Any) -> None:
        self.directory = directory
        self.faults = FaultyMetadataStore(store, random)
        self.member = Membership(
            self.faults,
            **{
                "cluster": "danube",
                "identity": directory.identity,
                "record": SessionRecord(address=f"{directory.identity}:6650"),
                "storages": ("default",),
                "random": random,
                **more,
            },
        )
        heard = self._heard
        self.topics = Table(self.faults, "/topics", TopicRecord, watched=True, on_change=heard, is_name=is_topic_name)
        self.creating = Table(
            self.faults, CREATING, CreatingRecord, watched=True, on_change=heard, is_name=is_topic_name
        )
        self.deleted = Table(self.faults, DELETED, DeletedRecord, watched=True, on_change=heard, is_name=is_topic_key)
        self.coordinating = self.coordinator()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def coordinator(self, **more: Any) -> Coordinating:
        return Coordinating(
            self.faults,
            self.member,
            topics=self.topics,
            creating=self.creating,
            deleted=self.deleted,
            random=Random(7),
            **more,
        )

    def _heard(self, change: Any) -> None:
        self.coordinating.look_again()

    async def join(self) -> None:
        await self.member.join(self.directory.life, self.directory.last_start, self.directory.store)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Join and run until :meth:`stop` or :meth:`kill`."""
        with self._scope:
            await self.join()
            async with trio.open_nursery() as nursery:
                await nursery.start(self.member.run)
                for table in (self.topics, self.creating, self.deleted):
                    await nursery.start(table.follow)
                await nursery.start(self.coordinating.run)
                task_status.started()
        self._ended.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self._ended.wait()

    async def kill(self) -> None:
        """End without a word to the metadata."""
        self.faults.refuse = 1.0
        await self.stop()


@asynccontextmanager
async def cluster(*names: str) -> AsyncIterator[tuple[MemoryStore, list[Broker], trio.Nursery]]:
    """Yield a store and running brokers, numbered in the order of their names."""
    random = Random(1)
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        brokers = []
        for name in names:
            broker = Broker(store, Directory(name), random)
            await nursery.start(broker.run)
            brokers.append(broker)
        yield store, brokers, nursery
        for broker in brokers:
            await broker.stop()


async def create(store: MemoryStore, name: str, topic_id: int, durability: Durability, owner: BrokerId | None) -> None:
    record = TopicRecord(durability, 0, [TopicId(topic_id)], 0)
    operations = [Put(f"/topics/default/{name}", encode(record))]
    if owner is not None:
        operations.append(Put(ASSIGNMENTS + topic_key(TopicId(topic_id)), encode(Assignment(owner, OwnerEpoch(1)))))
    await store.transact([], operations)


async def assignment(store: MemoryStore, topic_id: int) -> Assignment | None:
    item = await store.get(ASSIGNMENTS + topic_key(TopicId(topic_id)))
    return msgspec.msgpack.decode(item.value, type=Assignment) if item is not None else None


@pytest.mark.parametrize("present_at_the_start", [True, False])
async def test_keys_of_another_program_end_no_broker(
    present_at_the_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [
        f"{prefix}of-another-program"
        for prefix in (ASSIGNMENTS, SESSIONS, BROKERS, COORDINATOR, "/topics/", "/creating/", DELETED)
    ]
    async with cluster("a", "b") as (store, (one, two), nursery):
        await store.transact([], [Put(key, b"\xc1") for key in keys])
        joined = one
        if present_at_the_start:
            joined = Broker(store, Directory("c"), Random(2))
            await nursery.start(joined.run)
        await create(store, "t", 7, Durability.NONE, two.member.me)
        await two.kill()
        await trio.sleep(SESSION_TTL_S + 3 * LOOK_S)
        assert joined.member.owner(TopicId(7)) not in (None, two.member.me)
        assert all(f"'{key}'" in caplog.text for key in keys)
        if joined is not one:
            await joined.stop()


# --- Joining ---


async def test_brokers_are_numbered_in_the_order_in_which_they_join() -> None:
    async with cluster("x", "y") as (store, brokers, _):
        assert [broker.member.me for broker in brokers] == [1, 2]
        assert brokers[0].member.cluster.incarnation == brokers[1].member.cluster.incarnation != 0
        assert {item.key for item in (await store.list(BROKERS))[0]} == {"/brokers/b1", "/brokers/b2"}


async def test_brokers_that_join_at_once_get_different_numbers() -> None:
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        brokers = [Broker(store, Directory(str(n)), Random(n)) for n in range(8)]
        for broker in brokers:
            nursery.start_soon(broker.join)
        await trio.sleep(60)
        assert sorted(broker.member.me for broker in brokers) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert len({broker.member.cluster.incarnation for broker in brokers}) == 1


async def test_founders_have_the_numbers_of_their_places_in_the_list() -> None:
    async with MemoryStore() as store:
        founding = found("danube", ["x:6650", "y:6650", "z:6650"], ["x", "y", "z"])
        brokers = [Broker(store, Directory(name), Random(1), founding=founding) for name in ("z", "x")]
        brokers.append(Broker(store, Directory("new"), Random(1)))
        brokers.append(Broker(store, Directory("y"), Random(1), founding=founding))
        for broker in brokers:
            await broker.join()
        assert [broker.member.me for broker in brokers] == [3, 1, 4, 2]
        assert {broker.member.cluster.incarnation for broker in brokers} == {founding.incarnation}


async def test_founders_of_metadata_that_were_restored_get_new_numbers() -> None:
    async with MemoryStore() as store:
        former = Broker(store, Directory("former"), Random(1))
        await former.join()
        founding = found("danube", ["x:6650", "y:6650"], ["x", "y"])
        brokers = [Broker(store, Directory(name), Random(1), founding=founding) for name in ("x", "y")]
        for broker in brokers:
            await broker.join()
        assert [former.member.me, brokers[0].member.me] == [1, 2]
        assert brokers[1].member.me == 3, "its own number is taken"


async def test_a_restarted_broker_is_the_same_one_in_its_next_life() -> None:
    async with cluster("x", "y") as (_, brokers, nursery):
        await brokers[0].stop()
        again = Broker(brokers[0].faults._store, brokers[0].directory, Random(5))  # type: ignore[arg-type]
        await nursery.start(again.run)
        assert again.member.me == 1
        assert again.directory.life == 2
        assert brokers[1].member.sessions.values["b1"].life == 2
        await again.stop()


async def test_a_directory_that_was_set_back_is_refused() -> None:
    async with MemoryStore() as store:
        directory = Directory("x")
        await Broker(store, directory, Random(1)).join()
        snapshot = directory.copy()
        await Broker(store, directory, Random(2)).join()
        with pytest.raises(DataLossError, match="is of start 1 of broker b1, which has been started 2 times"):
            await Broker(store, snapshot, Random(3)).join()


async def test_of_two_copies_that_start_at_once_one_is_refused() -> None:
    async with MemoryStore() as store:
        directory = Directory("x")
        await Broker(store, directory, Random(1)).join()
        refused: list[Directory] = []

        async def start(copied: Directory, seed: int) -> None:
            try:
                await Broker(store, copied, Random(seed)).join()
            except DataLossError:
                refused.append(copied)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, directory.copy(), 2)
            nursery.start_soon(start, directory.copy(), 3)
        (copied,) = refused
        await start(copied, 4)
        assert refused == [copied] * 2, "although it has stored a later start meanwhile"


async def test_a_crash_between_directory_and_record_is_no_loss() -> None:
    async with MemoryStore() as store:
        directory = Directory("x")
        await Broker(store, directory, Random(1)).join()
        await directory.store(2, 9)  # and then the power failed
        again = Broker(store, directory, Random(2))
        await again.join()
        assert (directory.life, again.member.brokers.values["b1"].life) == (3, 3)


async def test_a_lost_answer_does_not_make_two_brokers_or_lives() -> None:
    async with MemoryStore() as store:
        for seed in range(30):
            broker = Broker(store, Directory(f"host{seed}"), Random(seed))
            broker.faults.lose_answer = broker.faults.hold = 0.3
            with trio.fail_after(60):
                while True:
                    try:
                        await broker.join()
                        break
                    except UnavailableError:
                        continue
            await broker.faults.arrive()
            assert broker.directory.life == broker.member.brokers.values[broker_name(broker.member.me)].life
        records = [msgspec.msgpack.decode(item.value, type=BrokerRecord) for item in (await store.list(BROKERS))[0]]
        assert len(records) == len({record.identity for record in records}) == 30


async def test_another_cluster_or_a_newer_one_is_refused() -> None:
    async with MemoryStore() as store:
        await Broker(store, Directory("x"), Random(1)).join()
        with pytest.raises(
            ConfigurationError, match="belong to the cluster 'danube', and this broker was started for 'other'"
        ):
            await Broker(store, Directory("y"), Random(1), cluster="other").join()
        await store.put(CLUSTER_KEY, encode(ClusterRecord(name="danube", incarnation=1, feature_level=3)))
        with pytest.raises(ConfigurationError, match="uses features of level 3"):
            await Broker(store, Directory("x"), Random(1)).join()


# --- Sessions ---


async def test_a_session_lives_as_long_as_its_broker() -> None:
    async with cluster("x", "y") as (_, brokers, _):
        await trio.sleep(60)
        assert all(broker.member.is_certain() for broker in brokers)
        assert brokers[1].member.sessions.values["b1"].address == "x:6650"
        await brokers[0].stop()
        await trio.sleep(0.01)
        assert list(brokers[1].member.sessions.values) == ["b2"]


async def test_a_killed_broker_is_away_after_its_time_to_live() -> None:
    async with cluster("x", "y") as (_, brokers, _):
        await trio.sleep(10)
        await brokers[0].kill()
        await trio.sleep(2.0)
        assert "b1" in brokers[1].member.sessions.values
        await trio.sleep(1.1)
        assert "b1" not in brokers[1].member.sessions.values


async def test_a_broker_that_was_cut_off_takes_a_new_session() -> None:
    async with cluster("x", "y") as (_, brokers, _):
        told: list[int] = []
        member = brokers[0].member
        member.on_session.append(lambda: told.append(member.session_revision))
        first = member.session_revision
        brokers[0].faults.refuse = 1.0
        await trio.sleep(SESSION_TTL_S - 0.2)
        assert not member.is_certain(), "it may have ended"
        assert member.session_revision == first, "it has not learnt that it has"
        await trio.sleep(5)
        brokers[0].faults.refuse = 0.0
        await trio.sleep(2)
        assert told == [0, member.session_revision]
        assert member.session_revision > first
        assert member.is_certain()


async def test_without_a_session_the_condition_says_so() -> None:
    async with MemoryStore() as store:
        broker = Broker(store, Directory("x"), Random(1))
        await broker.join()
        assert not broker.member.is_certain()
        with pytest.raises(UnavailableError, match="broker b1 has no session in the cluster at the moment"):
            _ = broker.member.session_condition


async def test_changes_are_refused_after_the_session_on_which_they_depend() -> None:
    async with cluster("x", "y") as (store, brokers, _):
        condition = brokers[0].member.session_condition
        await store.transact([condition], [Put("/a", b"")])
        await brokers[0].stop()
        with pytest.raises(MetadataConflictError):
            await store.transact([condition], [Put("/a", b"")])


async def test_a_session_left_by_a_crash_is_ended_by_the_next_start() -> None:
    async with cluster("x", "y") as (store, brokers, nursery):
        await brokers[0].kill()
        again = Broker(store, brokers[0].directory, Random(9))
        with trio.fail_after(0.1):
            await nursery.start(again.run)
        assert again.member.is_certain()
        await again.stop()


async def test_a_process_with_an_older_start_does_not_end_the_session_of_a_later_one() -> None:
    async with cluster("x") as (store, brokers, _):
        older = Broker(store, Directory("x"), Random(1))
        older.member.me = B1
        with pytest.raises(DataLossError, match="another process runs as broker b1, with a later start"):
            await older.member._open_session()
        assert brokers[0].member.is_certain()


# --- Owners ---


async def test_every_broker_knows_the_owners() -> None:
    async with cluster("x", "y", "z") as (store, brokers, _):
        await create(store, "t", 7, Durability.DISK, B2)
        await trio.sleep(0.01)
        owners = [broker.member.owners.owner_of(TopicId(7)) for broker in brokers]
        assert owners == [Elsewhere(B2, OwnerEpoch(1), "y:6650", 1), Mine(OwnerEpoch(1)), owners[0]]
        assert brokers[0].member.owners.owner_of(TopicId(8)) == Unassigned()
        await brokers[1].kill()
        await trio.sleep(4)
        away = brokers[0].member.owners.owner_of(TopicId(7))
        assert isinstance(away, Away)
        assert away.owner == B2


# --- Coordination ---


async def test_one_broker_coordinates_and_another_follows_it() -> None:
    async with cluster("x", "y", "z") as (_, brokers, _):
        await trio.sleep(1)
        assert {broker.coordinating.coordinator for broker in brokers} == {B1}
        assert [broker.coordinating.is_coordinator for broker in brokers] == [True, False, False]
        await brokers[0].kill()
        await trio.sleep(SESSION_TTL_S + LOOK_S)
        assert brokers[1].coordinating.coordinator in (B2, B3)
        assert brokers[1].coordinating.coordinator == brokers[2].coordinating.coordinator


async def test_a_topic_without_durability_gets_another_owner_when_its_broker_dies() -> None:
    async with cluster("x", "y", "z") as (store, brokers, _):
        await create(store, "a", 1, Durability.NONE, B3)
        await create(store, "b", 2, Durability.DISK, B3)
        await create(store, "c", 3, Durability.NONE, None)
        await trio.sleep(1)
        assert await assignment(store, 3) == Assignment(B1, OwnerEpoch(1), Reason.CREATED)
        await brokers[2].kill()
        await trio.sleep(SESSION_TTL_S + 0.2)
        assert await assignment(store, 1) == Assignment(B2, OwnerEpoch(2), Reason.FAILOVER)
        assert await assignment(store, 2) == Assignment(B3, OwnerEpoch(1))


async def test_the_tables_are_read_again_only_if_one_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def batches(table: Any, size: int) -> Any:
        nonlocal reads
        reads += 1
        return original(table, size)

    async with cluster("x", "y") as (store, brokers, _):
        await create(store, "a", 1, Durability.NONE, B2)
        await create(store, "b", 2, Durability.DISK, B1)
        await trio.sleep(5 * LOOK_S)
        original = Table.batches
        monkeypatch.setattr(Table, "batches", batches)
        await trio.sleep(20 * LOOK_S)
        assert not reads
        await store.delete("/topics/default/b")  # nothing else is changed
        await trio.sleep(LOOK_S)
        assert reads
        assert await assignment(store, 2) is None
        await trio.sleep(2 * LOOK_S)
        reads = 0
        await trio.sleep(20 * LOOK_S)
        assert not reads
        await brokers[1].kill()
        await trio.sleep(SESSION_TTL_S + 0.2)
        assert await assignment(store, 1) == Assignment(B1, OwnerEpoch(2), Reason.FAILOVER)


async def test_other_tasks_run_while_many_topics_are_looked_at() -> None:
    count = 3_000
    async with cluster("x", "y") as (store, brokers, _):
        for number in range(1, count + 1, 50):
            records = [TopicRecord(Durability.DISK, 0, [TopicId(each)], 0) for each in range(number, number + 50)]
            puts = [Put(f"/topics/default/t{record.topic_ids[0]}", encode(record)) for record in records]
            row = encode(Assignment(B1, OwnerEpoch(1)))
            puts += [Put(ASSIGNMENTS + topic_key(record.topic_ids[0]), row) for record in records]
            await store.transact([], puts)
        await trio.sleep(5)
        coordinating = brokers[0].coordinator()  # it has not looked at them yet
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as other:
            other.start_soon(turn)
            await trio.lowlevel.checkpoint()
            before = turns
            picture = await coordinating.picture()
            assert turns - before >= 2 * count // 500 - 1
            other.cancel_scope.cancel()
        assert not picture.topics, "none needs a decision"
        assert not picture.assignments


async def test_partitions_are_assigned_one_by_one() -> None:
    async with cluster("x", "y") as (store, _, _):
        record = TopicRecord(Durability.NONE, 130, [TopicId(n) for n in range(1, 131)], 0)
        await store.put("/topics/default/p", encode(record))
        await trio.sleep(1)
        found = [msgspec.msgpack.decode(item.value, type=Assignment) for item in (await store.list(ASSIGNMENTS))[0]]
        assert len(found) == 130
        assert sum(each.owner == B1 for each in found) == 65


async def test_a_group_with_one_changed_topic_is_assigned_without_it() -> None:
    async with cluster("x") as (store, brokers, _):
        await trio.sleep(1)
        coordinating = brokers[0].coordinating
        for number in range(1, 4):
            await create(store, f"t{number}", number, Durability.NONE, None)
        await trio.sleep(0.01)
        actions = decide(await coordinating.picture(), 0.0)
        assert len(actions) == 3
        await store.delete("/topics/default/t2")
        await coordinating._act(actions)
        assert await assignment(store, 1) is not None
        assert await assignment(store, 2) is None
        assert await assignment(store, 3) is not None


async def test_a_topic_stays_with_an_owner_that_has_come_back() -> None:
    async with cluster("x", "y") as (store, brokers, nursery):
        await create(store, "t", 1, Durability.NONE, B2)
        await brokers[1].kill()
        await trio.sleep(SESSION_TTL_S - 0.5)
        is_away = trio.Event()
        member = brokers[0].member
        member.on_change.append(lambda: None if "b2" in member.sessions.values else is_away.set())
        await is_away.wait()
        actions = decide(await brokers[0].coordinating.picture(), 0.0)
        assert len(actions) == 1
        again = Broker(store, brokers[1].directory, Random(4))
        await nursery.start(again.run)
        await brokers[0].coordinating._act(actions)
        assert await assignment(store, 1) == Assignment(B2, OwnerEpoch(1))
        await again.stop()


async def test_a_former_coordinator_changes_nothing() -> None:
    async with cluster("x", "y") as (store, brokers, _):
        await trio.sleep(1)
        former = brokers[0].coordinating
        term = former._holder.revision("holder")
        await store.delete("/coordinator/holder")
        await trio.sleep(1)
        assert former._holder.revision("holder") > term, "it has been elected again, or another one has"
        former._term = term
        with pytest.raises(MetadataConflictError):
            await former._change([], [Delete("/anything")])


async def test_remains_of_a_dead_creator_are_removed() -> None:
    async with cluster("x", "y") as (store, brokers, _):
        record = CreatingRecord(
            creator=B2, session=brokers[1].member.session_revision, topic_ids=(TopicId(1), TopicId(2))
        )
        marked = await store.put(f"{CREATING}/default/t", encode(record))
        await store.put(ASSIGNMENTS + topic_key(TopicId(1)), encode(Assignment(B1, OwnerEpoch(1))))
        await trio.sleep(10)
        assert await assignment(store, 1) is not None, "its creator may go on"
        await brokers[1].kill()
        await trio.sleep(SESSION_TTL_S + 2 * LOOK_S)
        assert await assignment(store, 1) is None
        with pytest.raises(MetadataConflictError):
            await store.transact([Condition(f"{CREATING}/default/t", marked)], [Put("/topics/default/t", b"")])


async def test_an_assignment_is_kept_if_its_topic_exists_though_the_table_is_late() -> None:
    async with cluster("x") as (store, brokers, _):
        await trio.sleep(1)
        coordinating = brokers[0].coordinating
        await create(store, "t", 1, Durability.DISK, B1)
        await trio.sleep(0.01)
        del brokers[0].topics.values["/default/t"]
        coordinating.look_again()
        await trio.sleep(5)
        assert await assignment(store, 1) is not None


async def test_garbage_is_deleted_by_the_coordinator() -> None:
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        deleted = []

        async def delete(storage: str, object_: str) -> None:
            deleted.append((storage, object_))
            raise UnavailableError("the storage is away")

        broker = Broker(store, Directory("x"), Random(1))
        begun = trio.current_time()
        broker.coordinating = broker.coordinator(garbage=lambda: [Garbage("s", "o", begun, 1)], delete_object=delete)
        await nursery.start(broker.run)
        await trio.sleep(GARBAGE_AGE_S - 1)
        assert deleted == []
        await trio.sleep(LOOK_S + 1)
        assert ("s", "o") in deleted
        await broker.stop()


async def test_a_coordinator_that_missed_every_event_still_acts() -> None:
    """Planted mistake: one that decides only when an event arrives leaves the topic without an owner for ever."""
    async with cluster("x", "y") as (store, brokers, _):
        await trio.sleep(1)
        brokers[0].topics._on_change = None
        await create(store, "t", 1, Durability.NONE, None)
        await trio.sleep(LOOK_S + 0.1)
        assert await assignment(store, 1) is not None


async def test_the_assignment_of_a_deleted_topic_is_kept_for_its_owner_until_that_is_forgotten() -> None:
    async with cluster("x", "y") as (store, brokers, _):
        await create(store, "t", 1, Durability.DISK, B2)
        note = Put(DELETED + topic_key(TopicId(1)), encode(DeletedRecord((TopicId(1),))))
        await store.transact([], [Delete("/topics/default/t"), note])
        await brokers[1].kill()
        await trio.sleep(10)
        assert await assignment(store, 1) is not None, "its journal has to note the deletion"
        record = brokers[0].member.brokers.values["b2"]
        await store.put(BROKERS + "b2", encode(msgspec.structs.replace(record, state=BrokerState.GONE)))
        await trio.sleep(2 * LOOK_S)
        assert await assignment(store, 1) is None


# --- Whole clusters ---


class Weather:
    """A cluster whose brokers start, die and are cut off, whose requests and answers are lost or come late."""

    def __init__(self, store: MemoryStore, seed: int, nursery: trio.Nursery) -> None:
        self.store = store
        self.random = Random(seed)
        self.nursery = nursery
        self.directories = [Directory(f"host{number}") for number in range(self.random.randint(2, 4))]
        self.running: dict[int, Broker] = {}
        self.epochs: dict[str, int] = {}
        self.durable: dict[str, BrokerId] = {}
        self.topics = 0

    async def start(self, number: int) -> None:
        broker = Broker(self.store, self.directories[number], Random(self.random.getrandbits(32)))
        self.running[number] = broker
        while True:
            try:
                await self.nursery.start(broker.run)
                return
            except UnavailableError:
                broker = Broker(self.store, self.directories[number], Random(self.random.getrandbits(32)))
                self.running[number] = broker

    async def step(self) -> None:
        chance = self.random
        number = chance.randrange(len(self.directories))
        broker = self.running.get(number)
        roll = chance.random()
        if broker is None:
            await self.start(number)
        elif roll < 0.1:
            del self.running[number]
            await (broker.kill() if chance.random() < 0.7 else broker.stop())
        elif roll < 0.3:
            broker.faults.refuse = broker.faults.break_watch = chance.choice((0.0, 0.3, 1.0))
        elif roll < 0.5:
            broker.faults.lose_answer, broker.faults.hold = chance.choice(((0.0, 0.0), (0.3, 0.0), (0.1, 0.3)))
            broker.faults.latency_s = chance.choice((0.0, 0.01, 0.4, 1.0))
        elif roll < 0.6:
            await broker.faults.arrive()
        elif roll < 0.7 and self.topics:
            await self.store.delete(f"/topics/default/t{chance.randint(1, self.topics)}")
        else:
            self.topics += 1
            durability = chance.choice(list(Durability))
            owner = chance.choice((None, *(BrokerId(n) for n in range(1, len(self.directories) + 1))))
            await create(self.store, f"t{self.topics}", self.topics, durability, owner)
            if owner is not None and durability is not Durability.NONE:
                self.durable[topic_key(TopicId(self.topics))] = owner
        await trio.sleep(chance.choice((0.0, 0.01, 0.5, 2.0, 4.0)))

    async def watch(self) -> None:
        while True:
            await self.check()
            await trio.sleep(self.random.uniform(0, 0.1))

    async def check(self) -> None:
        """A broker that is certain of its session and owner of a topic in its view is the owner in the store."""
        rows = {item.key: item.value for item in (await self.store.list("/"))[0]}
        stored = {
            key.removeprefix(ASSIGNMENTS): msgspec.msgpack.decode(value, type=Assignment)
            for key, value in rows.items()
            if key.startswith(ASSIGNMENTS)
        }
        for name, each in stored.items():
            assert each.epoch >= self.epochs.get(name, 0), "epochs never fall"
            self.epochs[name] = each.epoch
        for broker in self.running.values():
            if not broker.member.is_certain():
                continue
            assert SESSIONS + broker_name(broker.member.me) in rows
            for name, each in broker.member.assignments.values.items():
                if each.owner == broker.member.me and name in stored:
                    assert stored[name] == each, "two owners serve a topic at once"

    async def calm(self) -> None:
        """After the storm every topic without durability is served, and nothing is left of those that are gone."""
        for number in range(len(self.directories)):
            if number not in self.running:
                await self.start(number)
        for broker in self.running.values():
            faults = broker.faults
            faults.refuse = faults.lose_answer = faults.hold = faults.latency_s = faults.break_watch = 0.0
            await broker.faults.arrive()
        await trio.sleep(SESSION_TTL_S + 4 * LOOK_S)
        await self.check()
        assert all(broker.member.is_certain() for broker in self.running.values())
        assert len({broker.coordinating.coordinator for broker in self.running.values()}) == 1
        topics = {
            topic_key(record.topic_ids[0]): record
            for item in (await self.store.list("/topics"))[0]
            for record in [msgspec.msgpack.decode(item.value, type=TopicRecord)]
        }
        views = [broker.member.assignments.values for broker in self.running.values()]
        stored = {item.key.removeprefix(ASSIGNMENTS) for item in (await self.store.list(ASSIGNMENTS))[0]}
        assert all(set(view) == stored for view in views), "all brokers see the same"
        assert stored <= set(topics)
        for name in set(self.durable) & set(topics):
            assert views[0][name].owner == self.durable[name], "it waits for the broker that has its data"
        for name, record in topics.items():
            if record.durability is Durability.NONE:
                owner = views[0][name].owner
                assert broker_name(owner) in {broker_name(broker.member.me) for broker in self.running.values()}


@pytest.mark.parametrize("seed", range(25))
async def test_a_cluster_survives_bad_weather(seed: int) -> None:
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        weather = Weather(store, seed, nursery)
        nursery.start_soon(weather.watch)
        for _ in range(60):
            await weather.step()
        await weather.calm()
        nursery.cancel_scope.cancel()


async def test_a_broker_has_the_number_that_its_certificate_names() -> None:
    async with MemoryStore() as store:
        with pytest.raises(ClusterConfigurationError, match=r"this is broker b1 .* its certificate .* is that of b2"):
            await Broker(store, Directory("one"), Random(1), certified=2).join()
        assert not (await store.list(BROKERS))[0]
        first = Broker(store, Directory("one"), Random(1), certified=1)
        await first.join()
        assert first.member.me == 1
        with pytest.raises(ClusterConfigurationError, match="danube security init --broker b2"):
            await Broker(store, Directory("two"), Random(1), certified=3).join()
        # Also once it is a member: its certificate may have been replaced by that of another broker.
        with pytest.raises(ClusterConfigurationError, match="is that of b2"):
            await Broker(store, first.directory.copy(), Random(2), certified=2).join()
