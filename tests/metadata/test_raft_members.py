"""Directed tests of a member of the replicated store: starting, failing, leases, copies, members; in virtual time."""

from __future__ import annotations

import errno
import gc
import logging

import msgspec
import pytest
import trio
from raft_members import OPTIONS, Group, _Port, seeded_scheduler

from danube.metadata import DeleteEvent
from danube.metadata.raft import RaftStore, digest_of
from danube.metadata.raft.commands import Revoke
from danube.metadata.raft.state import ReplicatedState
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    JournalFencedError,
    LimitExceededError,
    MetadataConflictError,
    NotFoundError,
    OutOfDescriptorsError,
    UnavailableError,
    WatchCompactedError,
)
from danube.model.limits import KIB, Limits
from danube.raft import Conf, NodeId
from danube.testing.clock import sleep
from danube.testing.simulated_table import SimulatedTable

pytestmark = pytest.mark.virtual

SMALL = OPTIONS._replace(cut_entries=40, cut_bytes=16 * KIB, kept_entries=10, most_kept_entries=60)


@pytest.fixture(autouse=True)
def _scheduler():
    with seeded_scheduler(11):
        yield


async def fill(store, count, prefix="/fill"):
    for number in range(count):
        await store.put(f"{prefix}/{number % 20}", b"%d" % number)


def others(group, *machines):
    return [each for each in group.machines.values() if each not in machines]


# Planted mistakes


class _LocalClockState(ReplicatedState):
    """Ends leases while it applies, by the clock of the member (planted mistake 5)."""

    def _apply(self, entry):
        deadlines = self.__dict__.setdefault("deadlines", {})
        for lease, deadline in list(deadlines.items()):
            if deadline < trio.current_time():
                del deadlines[lease]
                self._run(Revoke(lease))
        applied = super()._apply(entry)
        for lease, ttl_s in self.table.leases():
            deadlines.setdefault(lease, trio.current_time() + ttl_s)
        return applied


class _SkippingStore(RaftStore):
    """Its watches go on behind an installed copy (planted mistake 6)."""

    def replaced(self, revision):
        self._revision = revision
        for watch in self._watches:
            watch._position = revision


# Alone


async def test_a_lone_member_leads_at_once_and_is_still_while_idle():
    group = Group(1, 1)
    async with group.run():
        assert trio.current_time() < 0.05
        store = group[1].running
        await store.put("/a", b"")
        assert trio.current_time() < 0.1
        await sleep(1.0)
        turns = 0
        turn = store.node._turn

        async def counted():
            nonlocal turns
            turns += 1
            await turn()

        store.node._turn = counted
        writes = group[1].disk.writes
        await sleep(3600)
        assert (turns, group[1].disk.writes) == (0, writes)
        await store.grant_lease(7200)
        writes = group[1].disk.writes
        turns = 0
        await sleep(100)
        assert turns <= 500
        assert group[1].disk.writes == writes


async def test_a_slow_disk_is_no_reason_for_an_election():
    group = Group(2, 1)
    async with group.run():
        store = group[1].running
        lease = await store.grant_lease(3600)
        group[1].disk.sync_delay_s = 30.0
        await store.put("/a", b"", lease=lease)
        assert store.node.raft.term == 1
        assert store.node.raft.is_leader


async def test_a_lone_member_cuts_its_log_and_frees_its_files():
    group = Group(3, 1, options=SMALL)
    async with group.run():
        store = group[1].running
        for number in range(400):
            await store.put(f"/a/{number % 9}", bytes(2000))
        assert store.node.raft.log.last_index - store.node.raft.log.base_index < 100
        await sleep(5.0)
        usage = store.node._wal._journal.usage()
        assert usage.files <= 3
        await group[1].kill(power_loss=True)
        again = await group[1].start()
        items, revision = await again.list("/a")
        assert (len(items), revision) == (9, 400)


async def test_changes_that_a_power_loss_undid_in_the_table_are_applied_again():
    group = Group(4, 1)
    async with group.run():
        for round_number in range(6):
            store = group[1].running
            await fill(store, 30)
            await group[1].kill(power_loss=True)
            await group[1].start()
            items, revision = await group[1].running.list("/fill")
            assert revision == 30 * (round_number + 1)
            assert {int(item.value) for item in items} == set(range(10, 30))


# What ends a member


async def test_a_failed_sync_ends_the_member():  # R24
    group = Group(5)
    async with group.run():
        leader = await group.leader()
        await leader.running.put("/a", b"1")
        leader.disk.fail("sync", errno.EIO)
        with pytest.raises((JournalFencedError, UnavailableError)):
            await leader.running.put("/a", b"2")
        with pytest.raises(JournalFencedError):
            await leader.running.get("/a")
        assert isinstance(leader.running.node.failure, JournalFencedError)
        other = await group.leader(other_than=leader)
        assert (await other.running.get("/a")).value in (b"1", b"2")
        await other.running.put("/a", b"3")


async def test_links_may_tell_of_others_before_a_member_is_open():
    group = Group(13, 1)
    store = group[1].make_store(_Port(group.switch, group[1].member))
    store.node.refused(NodeId(2))
    store.node.deliver(b"nonsense")
    async with store:
        await store.put("/a", b"")
    store.node.refused(NodeId(2))


async def test_a_disk_that_fails_at_the_start_is_told():
    group = Group(12, 1)
    group[1].disk.fail("sync", errno.EIO, after=1)  # the first one belongs to the recovery
    with pytest.raises(JournalFencedError):
        await group[1].try_start()


async def test_a_member_whose_log_is_damaged_takes_part_in_nothing():  # R25
    group = Group(6)
    async with group.run():
        await fill(group[1].running, 60)
        await sleep(1.0)
        await group[1].kill()
        disk = group[1].disk
        name = max(
            name for name in disk.names() if name.startswith("journal-") and disk.content(name)[4096:4100] == b"DNJB"
        )
        disk.flip(name, 4096 + 60)
        for _ in range(2):
            with pytest.raises(DataLossError, match="takes part in nothing"):
                await group[1].try_start()
        assert 1 not in group.switch.receivers


async def test_a_table_that_is_not_that_of_the_log_is_refused():
    group = Group(7, 1)
    async with group.run():
        await fill(group[1].running, 20)
        await group[1].stop()
        ahead = group[1].table
        group[1].table = SimulatedTable(group.random)
        await group[1].start()  # an empty one is built again
        assert len((await group[1].running.list("/"))[0]) == 20
        await group[1].stop()
        group[1].disk = group.make_disk()
        group[1].table = ahead
        with pytest.raises(DataLossError, match="does not fit"):
            await group[1].try_start()


async def test_a_full_disk_of_the_table_delays_what_is_committed():
    group = Group(8, 1)
    async with group.run():
        group[1].table.fail = LimitExceededError("the disk is full")
        before = trio.current_time()
        await group[1].running.put("/a", b"1")
        assert trio.current_time() >= before + 1.0


async def test_a_member_that_gets_no_descriptor_for_its_first_entry_ends_in_time():
    group = Group(8, 1, options=OPTIONS._replace(start_descriptor_wait_s=3.0))
    async with group.run():
        await group[1].running.put("/a", b"1")
        await group[1].stop()
        no_descriptor = OutOfDescriptorsError("no file descriptor is left")
        group[1].table.always_fails = no_descriptor
        before = trio.current_time()
        await group[1].start()
        with pytest.raises(OutOfDescriptorsError, match="no file descriptor is left"):
            await group[1].running.put("/b", b"2")
        assert 3.0 <= trio.current_time() - before < 10.0
        await group[1].stop()
        group[1].table.always_fails = None
        await group[1].start()
        await group[1].running.put("/b", b"2")
        # One that runs waits for as long as it takes.
        group[1].table.always_fails = no_descriptor
        with trio.move_on_after(30.0) as waiting:
            await group[1].running.put("/c", b"3")
        assert waiting.cancelled_caught
        group[1].table.always_fails = None
        assert (await group[1].running.get("/c")) is not None


async def test_a_leader_whose_table_has_no_space_has_another_one_lead():
    group = Group(8)
    async with group.run():
        leader = await group.leader()
        lease = await leader.running.grant_lease(3.0)
        leader.table.fail = LimitExceededError("the disk is full")
        with trio.move_on_after(0.01):
            await leader.running.put("/a", b"1")
        before = trio.current_time()
        new = await group.leader(other_than=leader)
        await new.running.keep_alive(lease)  # a leader that cannot apply entries confirms none
        await new.running.put("/b", b"2")
        assert trio.current_time() < before + 0.5


async def test_a_table_that_fails_ends_the_member():
    group = Group(9, 1)
    async with group.run():
        group[1].table.fail = DataLossError("the table is damaged")
        for _ in range(2):
            with pytest.raises(DataLossError, match="the table is damaged"):
                await group[1].running.put("/a", b"1")


# Calls


async def test_without_a_majority_calls_fail_in_time_and_say_so():
    group = Group(10, options=OPTIONS._replace(call_s=5.0))
    async with group.run():
        leader = await group.leader()
        await leader.running.put("/a", b"1")
        for machine in others(group, leader):
            await machine.kill()
        await sleep(3.0)
        for call in (lambda: leader.running.put("/a", b"2"), lambda: leader.running.get("/a")):
            before = trio.current_time()
            with pytest.raises(UnavailableError, match="no leader is known"):
                await call()
            assert trio.current_time() < before + 5.2
        for machine in others(group, leader):
            await machine.start()
        assert (await leader.running.get("/a")).value == b"1"  # it was said not to be made


async def test_a_change_of_leaders_answers_calls_without_doubt():
    """What the former leader had not committed is in the log of the new one, or is proposed again; never both."""
    for seed in range(6):
        group = Group(20 + seed, delay_s=0.01)
        async with group.run():
            leader = await group.leader()
            follower = others(group, leader)[0]
            revisions = []

            async def put(number, follower=follower, revisions=revisions):
                revisions.append(await follower.running.put(f"/n/{number}", b"", expected_revision=0))

            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(put, number)
                    if number == 20:
                        nursery.start_soon(leader.kill)
                    await sleep(0.002)
            assert len(set(revisions)) == 40
            await leader.start()
            await group.settle()


async def test_reads_at_a_cut_off_leader_are_not_answered():
    group = Group(30, options=OPTIONS._replace(call_s=3.0))
    async with group.run():
        old = await group.leader()
        await old.running.put("/a", b"1")
        group.switch.isolate(old.member, list(group.machines))
        outcome = []

        async def read():
            try:
                outcome.append(await old.running.get("/a"))
            except UnavailableError:
                outcome.append(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            new = await group.leader(other_than=old)
            await new.running.put("/a", b"2")
        assert outcome == [None]
        group.switch.heal()
        await sleep(2.0)
        assert (await old.running.get("/a")).value == b"2"


async def test_a_conflict_is_told_at_the_member_that_was_asked():
    group = Group(31)
    async with group.run():
        leader = await group.leader()
        follower = others(group, leader)[0]
        revision = await leader.running.put("/a", b"1")
        with pytest.raises(MetadataConflictError, match=f"at revision {revision + 1}"):
            await follower.running.put("/a", b"2", expected_revision=revision + 1)


async def test_a_refused_reconnect_to_the_leader_starts_an_election_at_once():
    group = Group(32)
    async with group.run():
        leader = await group.leader()
        await leader.running.put("/a", b"1")
        await leader.kill()
        await sleep(0.01)  # what it has sent arrives
        before = trio.current_time()
        for machine in others(group, leader):
            machine.running.node.refused(leader.member)
        await others(group, leader)[0].running.put("/a", b"2")
        assert trio.current_time() < before + 0.3


async def test_members_change_the_bounds_together():
    group = Group(33, limits=Limits(metadata_history_revisions=30))
    async with group.run():
        await fill(group[1].running, 50)
        await group.settle()
        kept = {machine.table.revision - machine.table.compacted for machine in group.up}
        assert kept == {kept_by for kept_by in kept if 20 < kept_by <= 30}
        assert len(kept) == 1


async def test_refused_changes_leave_nothing_behind():
    """Their errors hold frames, which must not hold the errors in turn where the garbage collector cannot see it."""

    def errors() -> int:
        gc.collect()
        return sum(isinstance(each, MetadataConflictError) for each in gc.get_objects())

    before = errors()  # of other tests in this process
    group = Group(34, 1)
    async with group.run():
        for _ in range(20):
            with pytest.raises(MetadataConflictError):
                await group[1].running.put("/a", b"", expected_revision=5)
        await sleep(1.0)
        assert errors() - before <= 1


# Leases


async def test_leases_end_by_the_leaders_clock_through_the_log():
    group = Group(40)
    async with group.run():
        leader = await group.leader()
        lease = await leader.running.grant_lease(3.0)
        await others(group, leader)[0].running.put("/a", b"", lease=lease)
        granted = trio.current_time()
        async with group[1].running.watch("/a") as watch:
            batch = await watch.__anext__()
        assert isinstance(batch.events[0], DeleteEvent)
        assert 2.9 < trio.current_time() - granted < 3.3
        with pytest.raises(NotFoundError):
            await others(group, leader)[1].running.keep_alive(lease)


@pytest.mark.parametrize("seed", range(41, 47))
async def test_a_lease_outlives_its_leader_by_its_time_and_little_more(seed):
    group = Group(seed)
    async with group.run():
        leader = await group.leader()
        lease = await leader.running.grant_lease(3.0)
        await leader.running.put("/a", b"", lease=lease)
        await sleep(2.8)
        await leader.running.keep_alive(lease)
        renewed = trio.current_time()
        await leader.kill()
        new = await group.leader(other_than=leader)
        assert trio.current_time() > renewed + 1.0  # no port has refused a connection
        await sleep(renewed + 2.95 - trio.current_time())
        assert await new.running.get("/a") is not None
        await sleep(renewed + 3.6 - trio.current_time())
        assert await new.running.get("/a") is None


async def test_a_leader_elected_without_silence_gives_every_lease_its_full_time():
    group = Group(41)
    async with group.run():
        leader = await group.leader()
        lease = await leader.running.grant_lease(3.0)
        await leader.running.put("/a", b"", lease=lease)
        await sleep(2.8)
        leader.running.node.transfer(others(group, leader)[0].member)
        new = await group.leader(other_than=leader)
        led = trio.current_time()
        await sleep(2.8)  # the time to live, less at most the time between two heartbeats
        assert await new.running.get("/a") is not None
        await sleep(led + 3.5 - trio.current_time())
        assert await new.running.get("/a") is None


async def test_keep_alives_that_wait_for_a_leader_renew_in_time_after_a_long_silence():
    group = Group(43)
    async with group.run():
        leader = await group.leader()
        lease = await leader.running.grant_lease(3.0)
        await leader.running.put("/a", b"", lease=lease)
        one, two = others(group, leader)
        await leader.kill()
        await two.kill()
        await sleep(8.0)  # one alone is no majority
        with trio.move_on_after(1.0):
            await one.running.keep_alive(lease)
        await two.start()
        async with trio.open_nursery() as nursery:

            async def hold() -> None:
                while True:
                    with trio.move_on_after(1.0):
                        await one.running.keep_alive(lease)
                        await sleep(0.75)

            nursery.start_soon(hold)
            await group.leader(other_than=leader)
            await sleep(6.0)
            assert await one.running.get("/a") is not None
            nursery.cancel_scope.cancel()


async def test_a_leader_that_stood_still_extends_leases_by_that_time():
    group = Group(42, 1)
    async with group.run():
        store = group[1].running
        lease = await store.grant_lease(3.0)
        await store.put("/a", b"", lease=lease)
        await sleep(2.0)
        group[1].pause()
        await sleep(10.0)
        group[1].resume()
        await sleep(0.8)
        await store.keep_alive(lease)
        await sleep(2.5)
        assert await store.get("/a") is not None


async def test_a_keep_alive_is_answered_only_by_a_leader_that_still_leads():
    group = Group(43, options=OPTIONS._replace(call_s=4.0))
    async with group.run():
        old = await group.leader()
        lease = await old.running.grant_lease(30.0)
        group.switch.isolate(old.member, list(group.machines))
        with pytest.raises(UnavailableError):
            await old.running.keep_alive(lease)
        new = await group.leader(other_than=old)
        await new.running.revoke(lease)
        group.switch.heal()
        with pytest.raises(NotFoundError):
            await old.running.keep_alive(lease)


async def test_a_leader_that_hears_nobody_ends_no_lease():
    group = Group(44)
    async with group.run():
        old = await group.leader()
        lease = await old.running.grant_lease(0.6)
        await old.running.put("/a", b"", lease=lease)
        await sleep(0.3)
        group.switch.isolate(old.member, list(group.machines), outward=False)
        await sleep(1.0)  # its time is up there, and others still take its entries
        assert old.is_leader
        end = old.running.node.raft.log.last_index
        assert not any(b"\x92\x02" in entry.data for entry in old.running.node.raft.log.between(end, end + 1))
        new = await group.leader(other_than=old)
        assert await new.running.get("/a") is not None


# Watches and copies of the table


async def behind_a_copy(group, seconds=0.0):
    """Let a follower fall so far behind that it needs a copy; return it, and the store of another member."""
    leader = await group.leader()
    slow = others(group, leader)[0]
    group.switch.isolate(slow.member, list(group.machines))
    await fill(leader.running, 200)
    installs = slow.table.installs
    group.switch.heal()
    with trio.fail_after(60):
        while slow.table.installs == installs:
            await sleep(0.05)
    return slow, leader


async def story_across_a_copy(store_type):
    """Return what a watch at a member tells while a copy replaces the member's table, and the last revision."""
    group = Group(50, options=SMALL, limits=Limits(metadata_history_revisions=1000), store_type=store_type)
    async with group.run():
        leader = await group.leader()
        slow = others(group, leader)[0]
        seen = []

        async def follow():
            async with slow.running.watch("/") as watch:
                async for batch in watch:
                    seen.append(batch.revision)  # noqa: PERF401 - they are looked at meanwhile

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await sleep(0.1)
            await behind_a_copy(group)
            last = await leader.running.put("/last", b"")
            with trio.fail_after(10):
                while not seen or seen[-1] < last:
                    await sleep(0.01)
            nursery.cancel_scope.cancel()
        await group.settle()
    return seen, last


async def test_a_watch_goes_on_across_an_installed_copy():
    seen, last = await story_across_a_copy(RaftStore)
    assert seen == list(range(1, last + 1))


async def test_a_watch_that_skips_a_copy_is_found():
    seen, last = await story_across_a_copy(_SkippingStore)
    assert seen != list(range(1, last + 1))


async def test_a_watch_that_a_copy_leaves_without_history_is_told():
    group = Group(51, options=SMALL, limits=Limits(metadata_history_revisions=50))
    async with group.run():
        leader = await group.leader()
        await leader.running.put("/w", b"")
        slow = others(group, leader)[0]
        await slow.running.get("/w")
        async with slow.running.watch("/w") as watch:
            await behind_a_copy(group)
            with pytest.raises(WatchCompactedError), trio.fail_after(10):
                await watch.__anext__()


async def test_a_copy_arrives_although_pieces_are_lost_and_the_leader_changes():
    group = Group(52, options=SMALL._replace(piece_bytes=300), delay_s=0.005)
    async with group.run():
        leader = await group.leader()
        slow = others(group, leader)[0]
        group.switch.isolate(slow.member, list(group.machines))
        await fill(leader.running, 200)
        group.switch.heal()
        group.switch.loss = 0.3
        await sleep(1.0)
        group.switch.loss = 0.05
        await leader.kill()
        await group.leader(other_than=leader)
        await leader.start()
        await group.settle()
        assert slow.table.installs >= 1


async def test_a_crash_at_any_point_of_an_installation_leaves_a_member_that_starts():
    """Before, while and after the table is replaced, with the power lost each time."""
    for moment in (0, 1, 2, 4, 6):
        group = Group(60 + moment, options=SMALL, sync_delay_s=0.05)
        async with group.run():
            leader = await group.leader()
            slow = others(group, leader)[0]
            group.switch.isolate(slow.member, list(group.machines))
            await fill(leader.running, 120)
            group.switch.heal()
            node = slow.running.node
            with trio.fail_after(60):
                while not node._wal.standing.installing:
                    await sleep(0.001)
            await sleep(0.02 * moment)
            await slow.kill(power_loss=True)
            await slow.start()
            await group.settle()
            assert (await slow.running.list("/fill"))[1] == 120


async def test_a_member_that_installs_a_copy_still_answers_its_leader():
    group = Group(54, options=SMALL)
    async with group.run():
        leader = await group.leader()
        slow, other = others(group, leader)
        group.switch.isolate(slow.member, list(group.machines))
        await fill(leader.running, 120)
        node = slow.running.node
        work = node._work

        async def slow_work(function):
            if function == slow.table.install:
                await sleep(10.0)
            return await work(function)

        node._work = slow_work
        group.switch.heal()
        with trio.fail_after(60):
            while not node._wal.standing.installing:
                await sleep(0.001)
        term = leader.running.node.raft.term
        await other.kill()  # now the leader needs the one that installs
        await sleep(5.0)
        assert (leader.running.node.raft.term, leader.is_leader) == (term, True)
        await leader.running.put("/a", b"")  # acknowledged when it has installed
        assert slow.table.installs == 1
        await other.start()
        await group.settle()


async def test_the_log_kept_for_a_slow_member_is_bounded():
    group = Group(53, options=SMALL)
    async with group.run():
        leader = await group.leader()
        slow = others(group, leader)[0]
        await slow.kill()
        await fill(leader.running, 300)
        log = leader.running.node.raft.log
        assert log.last_index - log.base_index <= 60 + 45
        await slow.start()
        await group.settle()


# Comparing tables


def spoil(machine, key="/fill/3"):
    """Change a key in a member's table behind its back."""
    item = machine.table.lookup(key)
    machine.table._items[key] = msgspec.structs.replace(item, value=b"spoiled")


def digests(group):
    return {digest_of(machine.table) for machine in group.up}


@pytest.mark.parametrize("leads", [False, True])
async def test_a_table_that_differs_is_replaced_by_a_copy(leads, caplog):
    group = Group(55, options=SMALL._replace(compare_s=3.0), delay_s=0.01)
    async with group.run():
        leader = await group.leader()
        spoiled = leader if leads else others(group, leader)[0]
        await fill(leader.running, 150)
        await group.settle()
        spoil(spoiled)
        assert len(digests(group)) == 2
        lease = await leader.running.grant_lease(60.0)
        seen = []

        async def follow():
            async with spoiled.running.watch("/fill") as watch:
                async for batch in watch:
                    seen.append(batch.revision)  # noqa: PERF401 - they are looked at meanwhile

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for number in range(200):
                try:
                    await spoiled.running.put(f"/fill/{number % 20}x", b"")
                except UnavailableError:
                    assert leads
                await sleep(0.05)
            last = await spoiled.running.put("/fill/3y", b"")
            await sleep(0.5)
            nursery.cancel_scope.cancel()
        assert spoiled.table.installs == 1
        assert (await spoiled.running.get("/fill/3")).value == b"143"
        await spoiled.running.keep_alive(lease)
        assert seen == list(range(seen[0], last + 1))
        await group.settle()
        assert len(digests(group)) == 1
        assert [record for record in caplog.records if "this member differs" in record.getMessage()]
        await spoiled.kill(power_loss=True)
        await spoiled.start()
        await group.settle()


async def test_each_member_logs_one_line_for_each_election(caplog):
    caplog.set_level(logging.INFO, "danube.metadata")

    def lines():
        found = [record.getMessage() for record in caplog.records]
        return [line for line in found if "leads the metadata" in line or "follows member" in line]

    group = Group(59, 3)
    async with group.run():
        leader = await group.leader()
        await group.settle()
        first = lines()
        assert [line for line in first if line == f"member {leader.member} leads the metadata in term 1"]
        assert len(first) == 3
        await fill(leader.running, 20)
        await sleep(20.0)
        assert lines() == first
        await leader.kill()
        successor = await group.leader(other_than=leader)
        await sleep(5.0)
        (other,) = (each for each in others(group, successor) if each is not leader)
        term = successor.running.node.raft.term
        assert sorted(lines()[3:]) == sorted(
            [
                f"member {successor.member} leads the metadata in term {term}",
                f"member {other.member} follows member {successor.member} in term {term}",
            ]
        )


async def test_a_lone_member_logs_no_election(caplog):
    caplog.set_level(logging.INFO, "danube.metadata")
    group = Group(61, 1)
    async with group.run():
        await fill((await group.leader()).running, 5)
    assert "leads the metadata" not in caplog.text


async def test_two_members_that_differ_are_told_and_left_alone(caplog):
    group = Group(57, 2, options=SMALL._replace(compare_s=1.0))
    async with group.run():
        leader = await group.leader()
        await fill(leader.running, 20)
        await group.settle()
        spoil(leader)
        await sleep(2.5)
        assert len(digests(group)) == 2
        assert [record for record in caplog.records if "no majority agrees" in record.getMessage()]
        assert leader.is_leader


# Members


async def test_a_learner_joins_is_promoted_and_a_voter_leaves():
    group = Group(70, options=SMALL)
    async with group.run():
        leader = await group.leader()
        await fill(leader.running, 150)
        new = group.add(4)
        await new.start()
        conf = await leader.running.node.add_learner(new.member)
        assert conf.learners == (4,)
        with trio.fail_after(30):
            while True:
                try:
                    conf = await leader.running.node.promote(new.member)
                    break
                except FailedPreconditionError:
                    await sleep(0.1)
        assert (conf.voters, conf.learners) == ((1, 2, 3, 4), ())
        assert (await new.running.list("/fill"))[1] == 150
        await leader.running.node.remove(leader.member)
        machine = await group.leader(other_than=leader)
        assert machine.running.node.raft.conf.voters == tuple(sorted({1, 2, 3, 4} - {leader.member}))
        await leader.stop()
        del group.machines[leader.member]
        await machine.running.put("/after", b"")
        await group.settle()


async def test_a_learner_far_behind_is_not_promoted():
    group = Group(71)
    async with group.run():
        leader = await group.leader()
        await leader.running.node.add_learner(NodeId(4))
        await fill(leader.running, 120)
        with pytest.raises(FailedPreconditionError, match="entries behind"):
            await leader.running.node.promote(NodeId(4))
        with pytest.raises(FailedPreconditionError, match="not a learner"):
            await leader.running.node.promote(NodeId(5))


async def test_members_are_changed_at_any_member():
    group = Group(72, loss=0.1, twice=0.1)
    async with group.run():
        leader = await group.leader()
        asked, other = others(group, leader)
        conf = await asked.running.node.add_learner(NodeId(4))
        assert conf.learners == (4,)
        assert asked.running.node.raft.conf == conf or asked.running.node.raft.commit < leader.running.node.raft.commit
        with pytest.raises(FailedPreconditionError, match="not a learner"):
            await asked.running.node.promote(NodeId(5))
        with pytest.raises(InvalidArgumentError, match="not possible"):
            await asked.running.node.change_members([])
        with pytest.raises(UnavailableError, match="have changed meanwhile"):
            await asked.running.node.change_members(conf.voters, [5], instead_of=Conf(conf.voters))
        assert (await asked.running.node.change_members(conf.voters, [4, 5], instead_of=conf)).learners == (4, 5)
        await asked.running.node.remove(NodeId(5))
        assert (await asked.running.node.remove(leader.member)).voters == (asked.member, other.member)
        await group.leader(other_than=leader)
        assert (await other.running.node.remove(NodeId(4))).learners == ()
        await leader.stop()
        del group.machines[leader.member]
        await group.settle()


async def test_a_change_of_members_is_not_passed_on_to_another_leader():
    group = Group(75, options=OPTIONS._replace(call_s=4.0))
    async with group.run():
        leader = await group.leader()
        asked, other = others(group, leader)
        group.switch.isolate(leader.member, [asked.member], inward=False)  # it is asked, and cannot answer
        for machine in (asked, other):
            group.switch.isolate(machine.member, [], inward=False)
        with pytest.raises(UnavailableError, match="look at them"):
            await asked.running.node.add_learner(NodeId(4))
        group.switch.heal()
        for machine in (asked, other):
            await machine.kill()
        with pytest.raises(UnavailableError):
            await leader.running.node.remove(NodeId(4))
        with pytest.raises(UnavailableError, match="were not changed"):
            await leader.running.node.remove(NodeId(4))
        for machine in (asked, other):
            await machine.start()
        await group.settle()


async def test_a_lone_member_grows_to_three_and_shrinks_to_one():
    group = Group(73, 1, options=SMALL)
    async with group.run():
        first = group[1]
        await fill(first.running, 100)
        for number in (2, 3):
            await group.add(number).start()
            await first.running.node.add_learner(NodeId(number))
            await sleep(2.0)
            await first.running.node.promote(NodeId(number))
        await group.settle()
        for number in (2, 3):
            await first.running.node.remove(NodeId(number))
            await group[number].stop()
            del group.machines[NodeId(number)]
        assert first.running.node.is_alone
        await first.running.put("/a", b"")


async def test_a_leader_hands_over():
    group = Group(74)
    async with group.run():
        leader = await group.leader()
        other = others(group, leader)[0]
        assert leader.running.node.transfer(other.member)
        before = trio.current_time()
        assert await group.leader(other_than=leader) is other
        assert trio.current_time() < before + 0.3
        await leader.running.put("/a", b"")


async def test_a_caller_that_puts_one_key_after_the_other_costs_one_message_to_each_follower():
    group = Group(75, sync_delay_s=0.001)
    async with group.run():
        leader = await group.leader()
        store = leader.running
        await store.put("/a", b"")
        await group.settle()
        links, sent = store.node._links, 0
        send = links.send

        def counted(to, payload, *, bulk=False):
            nonlocal sent
            sent += 1
            send(to, payload, bulk=bulk)

        links.send = counted
        for _ in range(100):
            await store.put("/a", b"1")
        # One for each put; heartbeats; and one more of some puts whose transaction may have to wait for the disk.
        assert 200 <= sent < 260
        await sleep(0.05)  # they learn of the last commit although nothing follows
        assert {each.running.node.raft.applied_index for each in group.up} == {store.node.raft.applied_index}


async def test_a_leader_that_stops_hands_over_first():
    for down in (0, 1):  # with two of three members left, the vote of the one that stops is needed
        group = Group(76 + down)
        async with group.run():
            leader = await group.leader()
            await leader.running.put("/a", b"1")
            for machine in others(group, leader)[:down]:
                await machine.kill()
            await sleep(2.0)
            stopped = trio.current_time()
            await leader.stop()
            assert trio.current_time() < stopped + 0.2
            assert [machine.is_leader for machine in group.up].count(True) == 1
            await leader.start()
            for machine in others(group, leader):
                if machine.store is None:
                    await machine.start()
            await group.settle()


async def test_a_leader_that_cannot_hand_over_stops_in_time():
    group = Group(78)
    async with group.run():
        leader = await group.leader()
        for machine in others(group, leader):
            await machine.kill()
        before = trio.current_time()
        await leader.stop()
        assert trio.current_time() < before + 1.2


def test_leases_that_end_by_the_clock_of_a_member_are_found(monkeypatch):
    from raft_worlds import run_world

    monkeypatch.setattr("danube.metadata.raft.node.ReplicatedState", _LocalClockState)
    for seed in range(10):
        try:
            run_world(seed)
        except (AssertionError, DanubeError):
            return
    raise AssertionError("not found")


@pytest.mark.parametrize("seed", range(6))
def test_worlds_keep_what_the_store_promises(seed):
    from raft_worlds import run_world

    counts = run_world(seed)
    assert counts["changes"] > 20


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1000, 1040), marks=pytest.mark.extended),
        pytest.param(range(1040, 1600), marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_many_worlds(seeds):
    from raft_worlds import run_world

    for seed in seeds:
        run_world(seed)
