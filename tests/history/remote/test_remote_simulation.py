"""Whole lives on one bad bucket, from seeds: crashes, zombies, lost answers, late puts, recoveries that are cut short.

Invariants: nothing acknowledged is lost or duplicated, by whichever owner, and no offset is assigned
twice. Publishers, acknowledgers, a sealer and a deleter work in each life; former owners go on until they are fenced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from remote_lives import Life, World, hold_store, world

from danube.history.pieces import ROOM_BYTES
from danube.model.errors import DanubeError, DataLossError, OwnerFencedError, StorageError, UnavailableError
from danube.testing.simulation._scheduler import run_seeded

SEEDS = 16
ENDS = ("close", "crash", "crash", "zombie", "zombie")


def make_worse(life: Life, random: Random) -> None:
    faults = life.faults
    life.network.latency_s = random.choice((0.001, 0.02, 0.3))
    life.network.late = random.choice((0.0, 0.05, 0.3))
    faults.lose_answer = random.choice((0.0, 0.05, 0.3))
    faults.unavailable = random.choice((0.0, 0.05, 0.3))
    faults.throttle = random.choice((0.0, 0.1))
    faults.conflict = random.choice((0.0, 0.1, 0.3))
    faults.corrupt = 0.0
    if random.random() < 0.3:
        start = random.random() * 10
        faults.down_between(start, start + random.random() * 20)
    if life.world.mounted:
        for _ in range(random.randrange(4)):
            start = random.random() * 8
            faults.away_between(start, start + random.choice((0.05, 1.0, 20.0)))


async def working(life: Life, work: Callable[[], Awaitable[None]]) -> None:
    """Do a thing again and again; the errors that a user may meet are for the user to repeat."""
    while True:
        await trio.sleep(life.random.random() * life.random.choice((0.05, 0.2, 1.0)))
        try:
            await work()
        except OwnerFencedError:
            return
        except (UnavailableError, StorageError):
            if life.journal.failure is not None:
                return
        except DataLossError:
            # A later owner has deleted what it did not need any more; this one does not know yet that it is over.
            if not life.is_over:
                raise


async def be_busy(life: Life, *, sealing: bool) -> None:
    random = life.random

    async def publish() -> None:
        if not life.topics or (len(life.topics) < 4 and random.random() < 0.1):
            await life.create_topic()
        for _ in range(random.randrange(1, 6)):
            if life.topics:
                await life.journal.admit(20_000)
                entry = life.publish(
                    random.choice(list(life.topics)), [random.randbytes(random.choice((3, 300, 9000)))]
                )
        if random.random() < 0.5:
            await life.wait(entry)

    async def acknowledge() -> None:
        entries = [life.ack(random.randrange(1, 4)) for _ in range(3)]
        await life.wait(entries[-1])

    async def seal() -> None:
        if life.topics:
            await life.seal(random.choice(list(life.topics)))

    async def delete() -> None:
        await trio.sleep(5)
        if len(life.topics) > 2:
            await life.delete_topic(random.choice(list(life.topics)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(working, life, publish)
        nursery.start_soon(working, life, acknowledge)
        nursery.start_soon(working, life, delete)
        if sealing:
            nursery.start_soon(working, life, seal)


class Story:
    """One seed: several lives, one after the other, that do not know when they are over."""

    def __init__(self, everything: World, *, sealing: bool) -> None:
        self.world = everything
        self.random = everything.random
        self.sealing = sealing
        self.acquired = 0

    async def live(self, life: Life, end: str, *, task_status: trio.TaskStatus[bool]) -> None:
        """One life; ``task_status`` is told when the next one may begin: that it came to life at all."""
        patience_s = self.random.choice((0.5, 30.0, 500.0))
        claimed = False
        with trio.move_on_after(patience_s):
            try:
                await life.claim()
                claimed = True
            except (StorageError, OwnerFencedError):
                pass
        if not claimed:
            life.faults.down = True
            task_status.started(False)
            return
        await life.check_promises_patiently()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(life.reader.run)
                await nursery.start(life.journal.run)
                nursery.start_soon(lambda: be_busy(life, sealing=self.sealing))
                await trio.sleep(self.random.random() * 8)
                if end == "close":
                    with trio.move_on_after(60):
                        await life.journal.aclose()
                elif end == "zombie":
                    task_status.started(True)
                    task_status = trio.TASK_STATUS_IGNORED
                    await trio.sleep(self.random.choice((1, 10, 60)))
                life.faults.down = True
                nursery.cancel_scope.cancel()
        except* OwnerFencedError:
            assert end == "zombie"
        task_status.started(True)


async def run_story(seed: int, *, sealing: bool, mounted: bool = False) -> None:
    async with world(seed) as everything:
        everything.mounted = mounted
        story = Story(everything, sealing=sealing)
        lived = 0
        for _ in range(everything.random.randrange(3, 8)):
            if not sealing:
                everything.store = await everything.nursery.start(hold_store)
            life = Life(everything)
            make_worse(life, everything.random)
            lived += await everything.nursery.start(story.live, life, everything.random.choice(ENDS))
        if not sealing:
            everything.store = await everything.nursery.start(hold_store)
        last = Life(everything)
        while True:
            try:
                await last.claim()
                break
            except DanubeError as error:
                raise AssertionError(f"seed {seed}: cannot recover: {error}") from error
        await last.check_promises_patiently()
        await trio.sleep(1000)  # late puts have arrived, and live owners have noticed them
        await last.check_promises_patiently()
        assert lived or not everything.acked


def tell_story(seed: int, *, sealing: bool, mounted: bool = False) -> None:
    """Run a story in virtual time, with an order of tasks that follows from its seed."""
    try:
        run_seeded(lambda: run_story(seed, sealing=sealing, mounted=mounted), seed)
    except BaseException as error:
        error.add_note(f"seed {seed}, sealing {sealing}")
        raise


@pytest.mark.parametrize("sealing", [False, True], ids=["bucket alone", "sealing"])
@pytest.mark.parametrize("group", range(4))
def test_nothing_that_was_acknowledged_is_lost(group: int, sealing: bool) -> None:
    for seed in range(group * SEEDS // 4, (group + 1) * SEEDS // 4):
        tell_story(seed, sealing=sealing)


@pytest.mark.parametrize("sealing", [False, True], ids=["bucket alone", "sealing"])
def test_nothing_is_lost_when_every_snapshot_is_in_pieces(sealing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube.history.remote.journal.piece_bytes", lambda storage: ROOM_BYTES + 40)
    for seed in range(100, 103):
        tell_story(seed, sealing=sealing)


@pytest.mark.parametrize("sealing", [False, True], ids=["bucket alone", "sealing"])
def test_nothing_is_lost_in_a_directory_that_is_missing_now_and_then(sealing: bool) -> None:
    """A broker that trusted an empty mount point would ignore its history, or acknowledge messages outside of it."""
    for seed in range(200, 203):
        tell_story(seed, sealing=sealing, mounted=True)
