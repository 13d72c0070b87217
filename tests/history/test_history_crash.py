"""A crash at any step between journal, bucket and catalogue: no message is lost or duplicated, no object is left."""

from __future__ import annotations

import trio
from history_lives import GRACE_S, Cut, Life, World, run_lives


async def busy_day(life: Life) -> None:
    """Seal, share, expire, merge, collect, delete: everything that changes bucket and catalogue."""
    await life.append(1, 12)
    await life.append(2, 12)
    await life.append(3, 6, (100,))
    await life.seal(1, 2, 3)
    for _ in range(3):
        for topic_id in (1, 2, 3):
            await life.append(topic_id, 1, (100,))
        await life.seal(1, 2, 3)
    life.topics[2].truth.floor = life.topics[2].log.end_offset - 2
    await life.history.expire(life.topics[2])
    await life.append(2, 3)
    await life.history.keep()
    await life.drop(3)
    await life.seal(1, 2)
    await life.history.keep()
    await life.append(1, 20)
    life.topics[1].truth.floor = life.topics[1].log.end_offset // 2
    await life.history.keep()
    await life.seal(1, 2)
    for _ in range(2):
        await life.history.keep()
        await trio.sleep(1.5 * GRACE_S)
    await life.history.keep()


def test_a_day_without_trouble() -> None:
    async def work(world: World) -> None:
        assert await world.live(busy_day)
        assert world.space.objects
        await world.check("no trouble")

    run_lives(work, 0)


def count_steps() -> int:
    cut = Cut(1 << 60)

    async def work(world: World) -> None:
        assert await world.live(busy_day, cut)

    run_lives(work, 0)
    return cut.steps


def test_death_at_every_step() -> None:
    steps = count_steps()
    assert steps > 50
    for at in range(steps):

        async def work(world: World, at: int = at) -> None:
            assert not await world.live(busy_day, Cut(at))
            await world.check(f"death at step {at} of {steps}")

        run_lives(work, 0)
