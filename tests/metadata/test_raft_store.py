"""The conformance kit over the replicated store: alone, on three members, and while these fail again and again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from raft_members import AnyMember, Group, seeded_scheduler

from danube.log import RealDisk
from danube.metadata.raft import RaftStore, SqliteStateTable
from danube.model.limits import Limits
from danube.raft import Conf, NodeId
from danube.testing.clock import sleep
from danube.testing.metadata import MetadataStoreConformance

HISTORY = 400
LIMITS = Limits(metadata_history_revisions=HISTORY)


@pytest.fixture(autouse=True)
def _scheduler():
    with seeded_scheduler(7):
        yield


@pytest.mark.virtual
class TestAlone(MetadataStoreConformance):
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _group(self):
        self.group = Group(1, 1, limits=LIMITS)

    def open_store(self):
        return AnyMember(self.group)


class TestAloneOnRealFiles(MetadataStoreConformance):
    lease_s = 2.0
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.directory = tmp_path

    @asynccontextmanager
    async def open_store(self):
        member = NodeId(1)
        async with (
            RealDisk(self.directory / "log") as disk,
            RaftStore(
                disk,
                SqliteStateTable(self.directory),
                member=member,
                first_conf=Conf((member,)),
                limits=LIMITS,
                random=Random(1),
            ) as store,
        ):
            yield store


@pytest.mark.virtual
class TestThreeMembers(MetadataStoreConformance):
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _group(self):
        self.group = Group(2, limits=LIMITS)

    def open_store(self):
        return AnyMember(self.group)

    async def test_cancelled_calls_leave_the_store_usable(self):
        self.group.sticky = True  # a cancelled call of one member may be executed after a later one of another member
        await super().test_cancelled_calls_leave_the_store_usable()


async def trouble(group: Group, random: Random, kinds: list[str]) -> None:
    """Kill, pause and cut off the leader, again and again."""
    end = trio.current_time() + 12
    while trio.current_time() < end:
        await sleep(random.uniform(0.05, 1.5))
        machine = await group.leader()
        kind = random.choice(kinds)
        if (
            kind == "kill"
            and not group.sticky
            and len([each for each in group.up if not each.doomed]) == len(group.machines)
        ):
            machine.doomed = True
            with trio.move_on_after(1.0):
                while machine.busy:
                    await sleep(0.01)
            if not machine.busy:
                await machine.kill(power_loss=random.random() < 0.5)
                await sleep(random.uniform(0.0, 2.0))
                await machine.start()
            machine.doomed = False
        elif kind == "pause":
            machine.pause()
            await sleep(random.uniform(0.1, 2.0))
            machine.resume()
        elif kind == "cut":
            others = list(group.machines)
            inward, outward = random.choice([(True, True), (True, False), (False, True)])
            group.switch.isolate(machine.member, others, inward=inward, outward=outward)
            await sleep(random.uniform(0.1, 2.0))
            group.switch.heal()


@pytest.mark.virtual
class TestThreeMembersInTrouble(TestThreeMembers):
    """With the leader killed, paused or cut off all the time, and links that lose and repeat."""

    lease_s = 6.0
    history_revisions = None  # a watch resumes at another member, where that much history is gone

    @pytest.fixture(autouse=True)
    def _group(self):
        self.group = Group(3, limits=LIMITS, delay_s=0.02, loss=0.01, twice=0.01)

    @asynccontextmanager
    async def open_store(self):
        async with AnyMember(self.group) as store, trio.open_nursery() as nursery:
            nursery.start_soon(trouble, self.group, Random(3), ["kill", "pause", "cut"])
            try:
                yield store
            finally:
                self.group.switch.heal()
                nursery.cancel_scope.cancel()
