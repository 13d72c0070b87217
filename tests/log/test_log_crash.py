"""Hundreds of short lives of a journal, each ended by a crash at some moment. The seed in a failure repeats it."""

from __future__ import annotations

import pytest
from log_lives import World


@pytest.mark.parametrize("group", range(10))
def test_acknowledged_entries_survive_crashes(group: int) -> None:
    for seed in range(group * 12, group * 12 + 12):
        world = World(seed)
        for _ in range(4):
            world.live()


def test_a_seed_repeats_a_life_exactly() -> None:
    def trace() -> list[object]:
        world = World(77)
        for _ in range(3):
            world.live()
        return [
            (topic.parts, topic.acked_end, topic.released, topic.cursor, world.snapshots)
            for topic in world.topics.values()
        ] + [world.disk.names()]

    assert trace() == trace()
