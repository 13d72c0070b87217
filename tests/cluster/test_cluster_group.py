"""Brokers form the metadata's group, join it, lose disks and leaders, and remember their place; in virtual time."""

from __future__ import annotations

import errno
import math

import pytest
import trio
from group_nodes import World, simulate, until

from danube.cluster import group as group_module
from danube.cluster import voters
from danube.cluster.group import GroupMemory, save_memory
from danube.model.errors import (
    ConfigurationError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    JournalFencedError,
    JournalFullError,
    UnavailableError,
)

LISTED = ("a:6650", "b:6650", "c:6650")


async def formed(world: World, names: str = "abc"):
    brokers = [world.broker(name) for name in names]
    listed = tuple(f"{name}:6650" for name in names)
    for broker in brokers:
        broker.start(listed)
    for broker in brokers:
        await broker.up()
    return brokers


@pytest.mark.parametrize("seed", range(3))
def test_listed_brokers_form_one_group_and_outlive_their_leaders(seed: int) -> None:
    async def work(world: World) -> None:
        a, b, c = await formed(world)
        assert [each.group.memory.member for each in (a, b, c)] == [1, 2, 3]
        await a.store.put("/k", b"1")
        assert (await c.store.get("/k")).value == b"1"
        for round_number in range(3):
            leader = await world.leader()
            began_at = trio.current_time()
            await leader.kill()
            others = [each for each in (a, b, c) if each is not leader]
            await others[0].store.put("/k", b"%d" % round_number)
            assert trio.current_time() - began_at < 3.0
            leader.start(LISTED)
            await leader.up()
            assert (await leader.store.get("/k")).value == b"%d" % round_number

    simulate(work, seed)


def test_a_broker_ends_when_its_log_fails_and_starts_again() -> None:
    async def work(world: World) -> None:
        a, b, _ = await formed(world)
        b.log.fail("sync", errno.EIO)
        await a.store.put("/k", b"1")
        await until(lambda: b.error is not None)
        assert isinstance(b.error, JournalFencedError)
        await b.kill()
        b.start(LISTED)
        await b.up()
        assert (await b.store.get("/k")).value == b"1"
        assert b.error is None

    simulate(work)


def test_a_listed_broker_is_waited_for() -> None:
    async def work(world: World) -> None:
        a, b = world.broker("a").start(LISTED), world.broker("b").start(LISTED)
        await trio.sleep(30)
        assert not a.ready.is_set()
        assert not b.ready.is_set()
        await b.kill()
        c = world.broker("c").start(LISTED)
        b.start(LISTED)
        for broker in (a, b, c):
            await broker.up()
        await c.store.put("/k", b"")

    simulate(work)


def test_a_lone_broker_grows_to_three_voters() -> None:
    """One voter with two members: with two, either loss would be one too many."""

    async def work(world: World) -> None:
        a = await world.broker("a").start().up()
        for number in range(50):
            await a.store.put(f"/k/{number}", b"v")
        b = await world.broker("b").start(join="a:6650").up()
        assert (await b.store.get("/k/7")).value == b"v"
        await trio.sleep(5)
        assert a.store.node.raft.conf.voters == (1,)
        c = await world.broker("c").start(join="b:6650").up()
        await until(lambda: len(a.store.node.raft.conf.voters) == 3)
        assert not a.store.node.raft.conf.learners
        await a.kill()
        await c.store.put("/k/7", b"w")
        assert (await b.store.get("/k/7")).value == b"w"
        await a.start().up()
        assert (await a.store.get("/k/7")).value == b"w"

    simulate(work)


def test_a_place_that_was_asked_for_is_asked_for_again_under_the_same_id() -> None:
    async def work(world: World) -> None:
        b = world.broker("b").start(join="a:6650")
        await trio.sleep(1)
        assert not b.ready.is_set()
        await b.kill()
        a = await world.broker("a").start().up()
        await b.start(join="a:6650").up()
        member = b.group.memory.member
        await b.kill()
        await b.start(join="a:6650").up()
        assert b.group.memory.member == member
        assert a.store.node.raft.conf.learners == (member,)

    simulate(work)


def test_a_broker_with_a_new_disk_takes_the_place_of_the_one_at_its_address() -> None:
    async def work(world: World) -> None:
        a, b, c = await formed(world)
        await a.store.put("/k", b"1")
        await b.kill()
        b.replace_disks()
        await b.start(LISTED).up()
        assert b.group.memory.member > 3
        assert (await b.store.get("/k")).value == b"1"
        leader = await world.leader(a, c)
        await until(lambda: leader.store.node.raft.conf.voters == (1, 3, b.group.memory.member))

    simulate(work)


def test_a_place_that_was_given_half_leaves_no_record_of_the_former_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the former member could not be deleted; the broker asks again, and is a member already."""

    async def work(world: World) -> None:
        a, b, c = await formed(world)
        former = b.group.memory.member
        await until(lambda: all(len(each.group._records) == 3 for each in (a, b, c)))
        await b.kill()
        leader = await world.leader(a, c)
        failures = [UnavailableError("no majority")]
        delete = leader.store.delete

        async def failing(key: str) -> int | None:
            if failures:
                raise failures.pop()
            return await delete(key)

        monkeypatch.setattr(leader.store, "delete", failing)
        b.replace_disks()
        await b.start(LISTED).up()
        assert not failures
        rows = [row.key for row in (await leader.store.list("/members/"))[0]]
        assert f"/members/{former}" not in rows
        assert f"/members/{b.group.memory.member}" in rows

    simulate(work)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_with_a_new_disk_need_not_wait_for_links_of_the_former_one(seed: int) -> None:
    async def work(world: World) -> None:
        brokers = await formed(world)
        leader = await world.leader()
        b = next(each for each in brokers if each is not leader)
        await b.kill(silently=True)
        await trio.sleep(1.0)  # the others have links on which nothing answers
        b.replace_disks()
        b.start(LISTED)
        await b.up()
        assert b.error is None
        await until(lambda: len(leader.store.node.raft.conf.voters) == 3)

    simulate(work, seed)


@pytest.mark.parametrize("seed", range(8))
def test_brokers_that_join_at_once_all_keep_their_places(seed: int) -> None:
    """The members that a place was worked out from may have changed when it is given.

    Seed 20261128760000165 of the worlds of clusters: a broker that had just joined was no member any more.
    """

    async def work(world: World) -> None:
        brokers = await formed(world)
        leader = await world.leader()
        former = next(each for each in brokers if each is not leader)
        await former.kill()
        former.replace_disks()
        joining = [world.broker(name) for name in ("d", "e", "f")]
        former.start(LISTED)
        for each in joining:
            await trio.sleep(world.random.choice((0.0, 0.0, 0.001, 0.01)))
            each.start(join=world.random.choice([each.address for each in brokers if each is not former]))
        for each in (former, *joining):
            await each.up()
            assert each.error is None
        members = {each.group.memory.member for each in world.brokers}
        await until(lambda: leader.store.node.raft.conf.members == members)
        await until(lambda: len(leader.store.node.raft.conf.voters) == 5)
        await trio.sleep(5)
        assert [each.error for each in world.brokers] == [None] * 6

    simulate(work, seed)


def test_a_learner_takes_the_place_of_a_voter_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voters, "DEAD_S", 20.0)

    async def work(world: World) -> None:
        a, b, c, _ = await formed(world, "abcd")
        leader = await world.leader()
        assert leader.store.node.raft.conf.learners == (4,)
        victim = next(each for each in (a, b, c) if each is not leader)
        await victim.kill(silently=True)
        await trio.sleep(15)
        assert leader.store.node.raft.conf.learners == (4,)
        await until(lambda: 4 in leader.store.node.raft.conf.voters)
        assert leader.store.node.raft.conf.learners == (victim.group.memory.member,)

    simulate(work)


def test_a_broker_whose_member_was_replaced_says_so_and_what_to_do() -> None:
    async def work(world: World) -> None:
        a, b, c = await formed(world)
        await a.store.put("/k", b"1")
        await b.kill()
        former = b.identity, b.disk, b.log, b.table
        b.replace_disks()
        await b.start(LISTED).up()
        leader = await world.leader(a, c)
        await until(lambda: leader.store.node.raft.conf.voters == (1, 3, b.group.memory.member))
        await b.kill()
        b.identity, b.disk, b.log, b.table = former
        began = trio.current_time()
        await b.start(LISTED).up()  # it has opened its metadata
        await until(lambda: b.error is not None)
        assert trio.current_time() - began < 10.0
        assert isinstance(b.error, FailedPreconditionError)
        assert "metadata member 2" in b.error.message
        assert "the files 'group-*' from b" in b.error.message
        assert "--join " in b.error.message

    simulate(work)


def test_a_member_that_is_removed_while_it_runs_ends() -> None:
    async def work(world: World) -> None:
        a, b, c = await formed(world)
        leader = await world.leader()
        gone = next(each for each in (a, b, c) if each is not leader)
        await trio.sleep(1)  # a leader changes members once it has committed an entry of its term
        await leader.group.remove(gone.group.memory.member)
        await until(lambda: gone.error is not None)
        assert isinstance(gone.error, FailedPreconditionError)
        assert "was removed from the cluster 'danube'" in gone.error.message

    simulate(work)


def test_members_without_a_leader_are_not_taken_for_removed() -> None:
    async def work(world: World) -> None:
        a, b, c = await formed(world)
        await a.kill()
        await b.kill()
        await trio.sleep(30)  # nobody can say who the members are
        assert c.error is None
        world.network.set_cut("c", "a", cut=True)  # from one of two members, and then from the leader only
        await a.start(LISTED).up()
        await trio.sleep(30)
        await b.start(LISTED).up()
        await trio.sleep(30)
        assert all(each.error is None for each in (a, b, c))
        world.network.set_cut("c", "a", cut=False)
        await until(lambda: c.store.node.raft.leader is not None)

    simulate(work)


def test_members_are_removed_wherever_it_is_asked() -> None:
    async def work(world: World) -> None:
        a, b, c = await formed(world)
        leader = await world.leader()
        follower = next(each for each in (a, b, c) if each is not leader)
        gone = next(each for each in (a, b, c) if each not in (leader, follower))
        await gone.kill()
        conf = await follower.group.remove(gone.group.memory.member)
        assert gone.group.memory.member not in conf.members
        # Two voters would be worse than one.
        await until(lambda: leader.store.node.raft.conf.voters == (leader.group.memory.member,))
        await until(lambda: not leader.store.node.raft.conf.is_joint)
        with pytest.raises(InvalidArgumentError, match="not possible"):
            await follower.group.remove(leader.group.memory.member)

    simulate(work)


def test_an_address_of_a_running_member_is_refused() -> None:
    async def work(world: World) -> None:
        await world.broker("a").start().up()
        b = await world.broker("b").start(join="a:6650").up()
        wrong = world.broker("c")
        wrong.advertised = b.address
        await wrong.start(join="a:6650").up()
        assert isinstance(wrong.error, ConfigurationError)
        assert "--advertise: b:6650 is the address of metadata member" in str(wrong.error)

    simulate(work)


def test_a_directory_of_another_cluster_is_refused() -> None:
    async def work(world: World) -> None:
        a = await world.broker("a").start().up()
        await a.kill()
        a.cluster = "other"
        await a.start().up()
        assert isinstance(a.error, ConfigurationError)
        assert "belongs to the cluster 'danube'" in str(a.error)

    simulate(work)


def test_a_member_that_may_have_voted_does_not_begin_another_log() -> None:
    async def work(world: World) -> None:
        a, _, _ = await formed(world)
        await a.kill()
        a.log, a.table = type(a.log)(world.random), type(a.table)(world.random)
        await a.start(LISTED).up()
        assert isinstance(a.error, DataLossError)
        assert "it may have voted" in str(a.error)

    simulate(work)


def test_a_recovery_that_was_interrupted_is_not_taken_for_a_new_broker() -> None:
    """It asked for a place under the id of a voter, and became that voter with an empty log."""

    async def work(world: World) -> None:
        a, _, _ = await formed(world)
        member = a.group.memory.member
        await a.kill()
        await save_memory(a.disk, GroupMemory(cluster="danube", member=member, is_opened=True), "a")
        a.log, a.table = type(a.log)(world.random), type(a.table)(world.random)
        await a.start(LISTED).up()
        assert isinstance(a.error, DataLossError)
        assert "Repeat that command" in str(a.error)

    simulate(work)


def test_a_leader_that_has_just_started_knows_who_had_which_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read the records of the members only later, and kept the former place of a broker as a dead voter."""

    async def work(world: World) -> None:
        a, b, c = await formed(world)
        former = c.group.memory.member
        await until(lambda: all(len(each.group._records) == 3 for each in (a, b, c)))
        for broker in (a, b, c):
            await broker.kill()

        async def never(table: object) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(group_module.Table, "follow", never)
        for broker in (a, b):
            broker.start(LISTED)
        for broker in (a, b):
            await broker.up()
        await until(lambda: a.is_leader or b.is_leader)
        leader = a if a.is_leader else b
        moved = world.broker("d")
        moved.identity = c.identity
        await moved.start(join=leader.address).up()
        assert moved.error is None
        assert former not in leader.store.node.raft.conf.members

    simulate(work)


def test_metadata_without_a_memory_are_no_new_broker() -> None:
    async def work(world: World) -> None:
        a = await world.broker("a").start().up()
        await a.kill()
        for name in a.disk.names():
            await a.disk.remove(name)
        await a.start().up()
        assert isinstance(a.error, DataLossError)
        assert "'group-...', which says to which cluster" in str(a.error)

    simulate(work)


def test_a_damaged_memory_is_no_new_broker() -> None:
    async def work(world: World) -> None:
        a = await world.broker("a").start().up()
        await a.kill()
        (name,) = [name for name in a.disk.names() if name.startswith("group-")]
        await a.disk.write(name, 12, [b"\xff"], sync=True)
        a.start()
        await a.up()
        assert isinstance(a.error, DataLossError)

    simulate(work)


def test_a_full_disk_ends_a_start_as_such_and_the_next_one_goes_on() -> None:
    async def work(world: World) -> None:
        a = world.broker("a")
        a.disk.capacity = 0
        a.start()
        await until(lambda: a.error is not None)
        assert isinstance(a.error, JournalFullError)
        assert "the place of the broker in its cluster cannot be written, because the disk is full" in str(a.error)
        await a.kill()
        a.disk.capacity = math.inf
        a.start()
        await a.up()

    simulate(work)
