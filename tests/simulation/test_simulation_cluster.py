"""Worlds whose brokers share metadata and topics, and the rules that are checked in them."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
import trio

from danube.cluster.gaps import GAPS, GapRecord, gap_name
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    MOVES,
    SESSIONS,
    WALS,
    Assignment,
    BrokerRecord,
    BrokerState,
    MoveRecord,
    Reason,
    WalRecord,
    topic_key,
    wal_key,
)
from danube.log import MemoryLog
from danube.metadata import Condition, Delete, DeleteEvent, EventBatch, KeyValue, LeaseId, MemoryStore, Put, PutEvent
from danube.model.errors import UnavailableError
from danube.model.ids import BrokerId, Offset, OwnerEpoch, TopicId
from danube.model.policies import Durability
from danube.model.records import TopicRecord
from danube.testing.history import History
from danube.testing.metadata_history import MetadataHistory
from danube.testing.simulation.forgotten import holes
from danube.testing.simulation.fresh import fresh_seeds, present_base
from danube.testing.simulation.owners import OwnerWatch, check_owners, find_differences
from danube.testing.simulation.plan import draw_plan
from danube.testing.simulation.runner import run_many
from danube.testing.simulation.world import run_world

pytestmark = pytest.mark.timeout(600)

SEEDS = range(8)
STORM_S = 8.0
"""Virtual seconds with faults in each of these worlds."""
FRESH_MINUTES = 1.0
"""Real ones, of both cores; ``--kind cluster --minutes 60`` runs an hour of them."""


ASSIGNED = msgspec.msgpack.encode(Assignment(BrokerId(1), OwnerEpoch(1), Reason.CREATED))


class FakeNode:
    """A broker that serves topics of durability ``disk``, and others."""

    def __init__(self, name, topics=(), *, lossy=(), is_certain=True, durability=Durability.DISK):
        self.name = name

        def check():
            if not is_certain:
                raise UnavailableError("the session is not certain to be alive")

        kept = MemoryLog(TopicId(1), check=check)
        self.topics = {
            each: SimpleNamespace(name=each, topic_id=hash(each), lossy=False, is_frozen=False, durability=durability)
            for each in topics
        }
        self.topics |= {
            each: SimpleNamespace(name=each, topic_id=hash(each), lossy=True, is_frozen=False, kept=kept)
            for each in lossy
        }
        self.records = {}
        self.assignments = {}
        self.owned = set()
        self.ready = trio.Event()
        self.ready.set()
        membership = SimpleNamespace(
            me=1,
            is_certain=lambda: is_certain,
            owns=lambda topic_id: topic_id in self.owned,
            assignments=SimpleNamespace(values=self.assignments, revision=lambda name: self.assignments[name]),
        )
        directory = SimpleNamespace(
            topics=lambda: list(self.topics.values()),
            membership=membership,
            catalogue=SimpleNamespace(topics=lambda: self.records.items()),
        )
        self.life = SimpleNamespace(over=False, broker=SimpleNamespace(directory=directory))


def violations(*nodes):
    history = History()
    watch = OwnerWatch(nodes, history)
    watch.look()
    watch.look()
    return history.violations


def test_a_topic_that_is_frozen_serves_nobody():
    one, two = FakeNode("h1", ["/default/t"]), FakeNode("h2", ["/default/t"])
    one.topics["/default/t"].is_frozen = True
    assert violations(one, two) == []


def test_two_brokers_that_serve_a_topic_are_reported_once():
    one, two = FakeNode("h1", ["/default/t"]), FakeNode("h2", ["/default/t", "/default/u"])
    assert violations(one, two) == ["C2: /default/t is served by h1 and by h2 at the same time"]
    two.topics["/default/t"].topic_id += 1  # created again, under the same name
    assert violations(one, two) == []
    two.topics["/default/t"].topic_id -= 1
    two.life.over = True
    assert violations(one, two) == []


def test_topics_without_durability_may_have_a_former_owner_whose_session_is_not_certain():
    present = FakeNode("h2", lossy=["/default/t"])
    assert violations(FakeNode("h1", lossy=["/default/t"], is_certain=False), present) == []
    assert violations(FakeNode("h1", lossy=["/default/t"]), present)
    assert violations(FakeNode("h1", ["/default/t"], is_certain=False), FakeNode("h2", ["/default/t"]))
    remote = FakeNode("h2", ["/default/t"], durability=Durability.REMOTE)
    assert violations(FakeNode("h1", ["/default/t"], is_certain=False, durability=Durability.REMOTE), remote) == []
    assert violations(FakeNode("h1", ["/default/t"], durability=Durability.REMOTE), remote)


async def test_differences_between_brokers_and_metadata_are_named():
    topic_id = TopicId(7)
    async with MemoryStore() as store:
        node = FakeNode("h1")
        assert await find_differences(store, [node]) == []
        record = TopicRecord(Durability.DISK, 0, [topic_id], 0)
        await store.put("/topics/default/t", msgspec.msgpack.encode(record))
        found = await find_differences(store, [node])
        assert found[0] == "/default/t has no owner"
        assert "the topics of h1 differ: ['/default/t']" in found
        revision = await store.put(ASSIGNMENTS + topic_key(topic_id), ASSIGNED)
        node.records["/default/t"] = record
        assert await find_differences(store, [node]) == [
            f"the assignments of h1 differ: ['{topic_key(topic_id)}']",
        ]
        node.assignments[topic_key(topic_id)] = revision - 1
        assert await find_differences(store, [node]) == ["the assignments of h1 differ: in their revisions"]
        node.assignments[topic_key(topic_id)] = revision
        node.owned.add(topic_id)
        assert await find_differences(store, [node]) == ["the own topics of b1 differ: ['/default/t']"]
        node.topics["/default/t"] = SimpleNamespace(name="/default/t", lossy=False)
        assert await find_differences(store, [node]) == []
        await store.put(ASSIGNMENTS + topic_key(TopicId(8)), ASSIGNED)
        assert "1 assignments are of topics that do not exist" in await find_differences(store, [node])
        assert not any("do not exist" in each for each in await find_differences(store, [node], {"b1"}))
        order = MoveRecord(move=5, target=BrokerId(2), target_session=1, assignment=2)
        await store.put(MOVES + topic_key(topic_id), msgspec.msgpack.encode(order))
        assert any("is not over" in each for each in await find_differences(store, [node]))
        assert not any("is not over" in each for each in await find_differences(store, [node], {"b1"}))
        await store.delete(MOVES + topic_key(topic_id))
        node.life.broker.directory.membership.is_certain = lambda: False
        assert "h1 has no session that is certain to be alive" in await find_differences(store, [node])
        node.life.over = True
        assert "h1 is not ready" in await find_differences(store, [node])


def assigned(owner, epoch, wal=""):
    return msgspec.msgpack.encode(Assignment(BrokerId(owner), OwnerEpoch(epoch), Reason.FAILOVER, wal=wal))


def wal(owner, former):
    return Put(WALS + wal_key("s3", "b1"), msgspec.msgpack.encode(WalRecord(BrokerId(owner), BrokerId(former))))


async def story_of(*changes):
    """Make changes, a transaction each, and return what a watch tells of them."""
    async with MemoryStore() as store, store.watch("/", 1) as watch:
        for change in changes:
            await store.transact([], change)
        return {number: await watch.__anext__() for number in range(1, len(changes) + 1)}


SESSION = Put(SESSIONS + "b1", b"")


async def test_an_owner_is_replaced_only_without_a_session_and_under_the_next_epoch():
    key = ASSIGNMENTS + topic_key(TopicId(7))
    begin = [SESSION], [Put(key, assigned(1, 1))]
    over = [Delete(SESSION.key)]
    assert check_owners(await story_of(*begin, over, [Put(key, assigned(2, 2))])) == []
    (found,) = check_owners(await story_of(*begin, [Put(key, assigned(2, 2))]))
    assert "to b2 while b1 has a session" in found
    (found,) = check_owners(await story_of(*begin, over, [Put(key, assigned(2, 1))]))
    assert "with epoch 1, which was 1" in found
    assert check_owners(await story_of(*begin, [Delete(key)], [Put(key, assigned(2, 1))])) == [], "it is another one"


async def test_an_owner_that_lives_is_replaced_only_by_the_move_that_is_ordered():
    key, row = ASSIGNMENTS + topic_key(TopicId(7)), MOVES + topic_key(TopicId(7))
    begin = [SESSION], [Put(key, assigned(1, 1))]
    order = [Put(row, msgspec.msgpack.encode(MoveRecord(move=5, target=BrokerId(2), target_session=1, assignment=2)))]

    def moved(owner, move):
        return Put(key, msgspec.msgpack.encode(Assignment(BrokerId(owner), OwnerEpoch(2), Reason.MOVED, move)))

    assert check_owners(await story_of(*begin, order, [moved(2, 5), Delete(row)])) == []
    for wrong in ([moved(2, 5)], [moved(3, 5), Delete(row)], [moved(2, 6), Delete(row)]):
        (found,) = check_owners(await story_of(*begin, order, wrong))
        assert "by a move that is not ordered, or whose order remains" in found
    (found,) = check_owners(await story_of(*begin, order, [Delete(row)], [moved(2, 5)]))
    assert "not ordered" in found


async def test_an_owner_that_is_gone_is_replaced_behind_a_gap():
    topic_id = TopicId(7)
    key, row = ASSIGNMENTS + topic_key(topic_id), GAPS + gap_name(topic_id, Offset(3))
    begin = [SESSION], [Put(key, assigned(1, 1))], [Delete(SESSION.key)]
    gap = Put(row, msgspec.msgpack.encode(GapRecord(start=Offset(3), end=Offset(9), broker=BrokerId(1), since_s=0.0)))
    given = Put(key, msgspec.msgpack.encode(Assignment(BrokerId(2), OwnerEpoch(2), Reason.FORGOTTEN, 5)))
    gone = [Put(BROKERS + "b1", msgspec.msgpack.encode(BrokerRecord(identity="i", state=BrokerState.GONE)))]
    assert check_owners(await story_of(*begin, gone, [given, gap])) == []
    (found,) = check_owners(await story_of(*begin, gone, [given], [gap]))
    assert found.endswith("which b1 has lost, without a gap")
    (found,) = check_owners(await story_of(*begin, [given, gap]))
    assert found.endswith("which b1 owned, though that broker is not gone")
    (found,) = check_owners(await story_of(*begin, gone, [SESSION]))
    assert found == "C2: revision 5 gives b1, which is gone, a session"


def test_offsets_without_messages_are_declared():
    assert holes([0, 1, 2], 0, []) == []
    assert holes([3, 4], 3, [(0, 2)]) == []
    assert holes([1, 2, 9], 0, [(3, 9)]) == [(0, 1)]
    assert holes([0, 9], 0, [(3, 8)]) == [(1, 3), (8, 9)]
    assert holes([0, 20], 0, [(1, 5), (5, 9), (12, 20)]) == [(9, 12)]
    assert holes([8, 9], 4, [(2, 8)]) == []
    assert holes([], 4, []) == []


def test_a_world_whose_lost_broker_is_forgotten():
    plan = draw_plan(276, kind="cluster", duration_s=STORM_S)
    assert plan.forgets
    plan = plan._replace(faults={**plan.faults, "wipe": 40.0}, fault_every_s=1.0)
    report = run_world(276, plan=plan)
    assert report.violations == []
    assert report.counts["forgotten"] == 1
    topics = report.counts["gone"]
    assert topics
    assert report.counts["gaps"] == 3 * topics


async def test_topics_follow_their_wal_which_changes_hands_only_without_a_session():
    key = ASSIGNMENTS + topic_key(TopicId(7))
    begin = [SESSION], [Put(key, assigned(1, 1))]
    over = [Delete(SESSION.key)]
    follow = [Put(key, assigned(2, 2, "b1"))]
    assert check_owners(await story_of(*begin, over, [wal(2, 1)], [SESSION], follow)) == []
    (found,) = check_owners(await story_of(*begin, [wal(2, 1)], over, follow))
    assert "gives /wals/s3/b1 to b2 instead of b1, which has a session" in found
    (found,) = check_owners(await story_of(*begin, over, [wal(2, 1)], [wal(3, 1)]))
    assert "gives /wals/s3/b1 to b3 instead of b2" in found
    (found,) = check_owners(await story_of(*begin, over, [wal(3, 1)], [SESSION], follow))
    assert "to b2 while b1 has a session" in found


class Recorded:
    """A store whose callers and watch are recorded: one change a second."""

    def __init__(self):
        self.history = MetadataHistory()
        self.store = MemoryStore()
        self.now = 0.0

    async def change(self, conditions, operations, took=0.5, result=None):
        start, self.now = self.now, self.now + 1
        revision = (await self.store.transact(conditions, operations)).revision
        self.history.changed(start, start + took, conditions, operations, revision if result is None else result)
        return revision

    async def check(self):
        items, revision = await self.store.list("/")
        async with self.store.watch("/", 1) as watch:
            for number in range(1, revision + 1):
                self.history.told("h1", await watch.__anext__(), float(number))
        return self.history.check(items, revision)


@pytest.fixture
async def recorded():
    found = Recorded()
    async with found.store:
        yield found


async def test_a_history_of_metadata_without_mistakes_has_no_violations(recorded):
    at = await recorded.change([], [Put("/a", b"1"), Put("/b", b"1")])
    await recorded.change([Condition("/a", at)], [Put("/a", b"2"), Delete("/b")])
    recorded.history.read(2.0, 2.5, "/a", await recorded.store.get("/a"))
    recorded.history.read(2.0, 2.5, "/b", None)
    recorded.history.listed(2.0, 2.5, "/", *await recorded.store.list("/"))
    assert await recorded.check() == []


async def test_stale_reads_are_found(recorded):
    await recorded.change([], [Put("/a", b"1")])
    former, before = await recorded.store.get("/a"), await recorded.store.list("/")
    await recorded.change([], [Put("/a", b"2")])
    recorded.history.read(1.2, 1.4, "/a", former)  # the change is under way
    assert await recorded.check() == []
    recorded.history.read(2.0, 2.5, "/a", former)
    recorded.history.read(2.0, 2.5, "/a", None)
    recorded.history.listed(2.0, 2.5, "/", *before)
    assert [each.split(":")[0] for each in recorded.history.check((await recorded.store.list("/"))[0], 2)] == ["C1"] * 3


async def test_reads_of_what_was_never_there_are_found(recorded):
    await recorded.change([], [Put("/a", b"1")])
    recorded.history.read(2.0, 2.5, "/a", KeyValue("/a", b"2", 1, 1, 1, None))
    recorded.history.listed(2.0, 2.5, "/", (), 1)
    found = await recorded.check()
    assert "which was never there" in found[1]
    assert "is not the state there" in found[0]


async def test_a_change_whose_conditions_did_not_hold_is_found(recorded):
    await recorded.change([], [Put("/a", b"1")])
    await recorded.store.put("/b", b"")
    recorded.history.changed(1.0, 1.5, [Condition("/a", 0)], [Put("/b", b"")], 2)
    assert "conditional on revision 0 of /a, which was at 1" in (await recorded.check())[0]


async def test_revisions_that_contradict_the_clock_are_found(recorded):
    await recorded.store.put("/a", b"1")
    await recorded.store.put("/a", b"2")
    recorded.history.changed(5.0, 5.5, [], [Put("/a", b"1")], 1)
    recorded.history.changed(1.0, 1.5, [], [Put("/a", b"2")], 2)
    assert "before an earlier one began" in (await recorded.check())[0]


async def test_a_change_that_is_not_what_was_acknowledged_is_found(recorded):
    await recorded.change([], [Put("/a", b"1")])
    recorded.history.changed(0.0, 0.5, [], [Put("/a", b"2")], 1)
    found = await recorded.check()
    assert "two changes have revision 1" in found[0]
    assert "is not the change of /a" in found[1]


async def test_a_lease_that_ended_early_is_found(recorded):
    for ended_at, revoked in ((2.0, False), (2.0, True), (4.0, False)):
        history, lease = MetadataHistory(), LeaseId(1)
        history.kept(lease, 3.0, 0.0, 0.1)
        if revoked:
            history.revoking(lease)
        item = KeyValue("/s", b"", 1, 1, 1, lease)
        history.told("h1", EventBatch(1, (PutEvent(item, 0),)), 0.5)
        history.told("h1", EventBatch(2, (DeleteEvent("/s", 2, 1),)), ended_at)
        assert len(history.check([], 2)) == (ended_at == 2.0 and not revoked)


async def test_watches_that_miss_repeat_or_change_something_are_found(recorded):
    await recorded.change([], [Put("/a", b"1")])
    await recorded.change([], [Put("/a", b"2")])
    assert await recorded.check() == []
    first, second = recorded.history.story[1], recorded.history.story[2]
    recorded.history.told("h2", second, 1.0)
    recorded.history.told("h3", first, 1.0)
    recorded.history.told("h3", first, 1.0)
    recorded.history.told("h4", EventBatch(1, second.events), 1.0)
    assert [each.split(" tells")[0] for each in recorded.history.violations] == ["C7: h2", "C7: h3", "C7: h4"]
    assert "no watch has told of revision 3" in recorded.history.check([], 3)[-1]


def test_cluster_worlds():
    """On two cores; each world has a watchdog of real time."""
    summary = run_many(SEEDS, jobs=2, duration_s=STORM_S, kind="cluster", watchdog_s=120.0)
    print("\n".join(summary.lines()))  # noqa: T201 - what the proof consists of
    assert not summary.troubles, "\n".join(trouble.told() for trouble in summary.troubles)
    assert summary.worlds == len(SEEDS)
    assert summary.faults["kill"]
    assert summary.faults["power-loss"]
    assert summary.checked
    assert summary.events["converged"] == summary.events["probed"] == len(SEEDS)
    assert 0 < summary.events["metadata"] < len(SEEDS), "both kinds of metadata"


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_cluster_worlds_that_were_never_run_before():
    """A seed that fails here belongs into a test that stays."""
    base = present_base()
    print(f"fresh seeds from {base} on")  # noqa: T201 - what has to be known to repeat it
    summary = run_many(fresh_seeds(base, FRESH_MINUTES), jobs=2, kind="cluster", watchdog_s=300.0)
    print("\n".join(summary.lines()))  # noqa: T201 - what the proof consists of
    assert not summary.troubles, "\n".join(trouble.told() for trouble in summary.troubles)
    assert summary.worlds


@pytest.mark.parametrize("seed", range(20))
def test_clusters_are_drawn_on_request_only(seed):
    plan = draw_plan(seed, kind="cluster")
    assert plan.is_cluster
    assert 3 <= len(plan.configs) <= 5
    assert plan.keeps_metadata == any(config.peers for config in plan.configs.values())
    assert plan.keeps_metadata or not plan.wipes
    assert plan.wipes == ("wipe" in plan.faults)
    assert plan.wipes or not plan.forgets
    assert {topic.home for topic in plan.topics} == set(plan.routes) == {"cluster"}
    assert {plan.home_of(machine) for machine in plan.configs} == {"cluster"}
    assert not draw_plan(seed).is_cluster
