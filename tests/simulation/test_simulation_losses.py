"""Worlds in which machines lose metadata or a journal file: no broker starts as if nothing were missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from danube.broker.directory import bond
from danube.broker.directory.bond import Bond
from danube.log import Journal
from danube.log._files import spare_name
from danube.model import Durability
from danube.testing.simulation import World, draw_plan, run_world
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.node import BrokerNode, _LifeDisk
from danube.testing.simulation.trace import Trace

TOPIC = "/default/lost"
SEED = 710002
"""Loses twice in its storm."""


def test_losses_are_detected_and_nothing_is_changed() -> None:
    report = run_world(SEED, plan=draw_plan(SEED, duration_s=15.0))
    assert not report.violations
    assert report.faults["lost"]
    assert report.counts["mended"] == report.faults["lost"]


def test_a_broker_that_does_not_compare_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bond, "find_losses", lambda standing, record, revision, incarnation_id: [])
    report = run_world(SEED, plan=draw_plan(SEED, duration_s=15.0))
    assert any("although it has lost" in violation for violation in report.violations)


async def lose_metadata_and_then_power(world: World, delay_s: float) -> None:
    """Let a machine with unsynced messages lose its metadata, and then its power while the broker starts."""
    node = world.node
    await node.ready.wait()
    async with world.applications.client("here", Random(1), "broker") as client:
        await client.admin.create_topic(TOPIC, durability=Durability.OS)
        async with client.producer(TOPIC) as producer:
            for _ in range(10):
                await producer.send(bytes(2000))
        await until(lambda: node.lose_metadata(None))
    await until(lambda: node.life is not None and not node.life.over, every_s=0.0001)
    await trio.sleep(delay_s)
    before = contents(node)
    world.crash(node, power_loss=True)
    node.disk.write_delay_s = 0.0002
    assert contents(node) != before
    assert node.lost, "the broker has not refused to start yet"
    await until(lambda: not node.lost and node.ready.is_set())


async def until(condition: Callable[[], bool], *, every_s: float = 0.05) -> None:
    with trio.fail_after(100):
        while not condition():  # noqa: ASYNC110 - in virtual time
            await trio.sleep(every_s)


def contents(node: BrokerNode) -> dict[str, bytes]:
    return {name: bytes(node.disk.content(name)) for name in node.disk.names()}


def violations(delay_s: float) -> list[str]:
    async def main() -> list[str]:
        world = World(draw_plan(1, kind="single"), Trace())
        async with world.machines():
            await lose_metadata_and_then_power(world, delay_s)
        return world.history.violations

    return run_seeded(main, 1)


def test_a_power_loss_during_a_start_is_no_change_by_the_broker() -> None:
    assert violations(delay_s=0.0001) == []


@pytest.mark.parametrize("what", ["create", "write", "begin to write"])
def test_changes_by_a_broker_before_a_power_loss_are_caught(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    examine = Bond.examine
    lives = 0

    async def change(journal: Journal, disk: _LifeDisk, *rest: Any, **more: Any) -> Bond:
        nonlocal lives
        lives += 1
        if lives == 2:  # not synced: a power loss may undo it
            if what == "create":
                await disk.create(spare_name(99), 100)
            else:
                disk._disk.write_delay_s = 0.0002 if what == "write" else 30.0
                await disk.write(next(iter(await disk.list())), 0, [b"?"], sync=False)
            await trio.sleep(math.inf)
        return await examine(journal, disk, *rest, **more)

    monkeypatch.setattr(Bond, "examine", change)
    (violation,) = violations(delay_s=1.0)
    assert "life 3 of broker: something was changed although metadata" in violation


def test_damage_to_unknown_topics_concerns_those_that_the_broker_has_not_opened_yet() -> None:
    async def main() -> None:
        world = World(draw_plan(1, kind="several"), Trace())
        async with world.machines():
            node, other = world.serving[:2]
            await node.ready.wait()
            for topic in world.plan.topics:
                for part in topic.parts:
                    world.history.topic(part, topic.durability, home=topic.home)
            world.damaged(node, {0})
        assert {topic.home for topic in world.plan.topics} == {node.name, other.name}
        for topic in world.plan.topics:
            assert world.history.is_damaged(topic.parts) == (topic.home == node.name)

    run_seeded(main, 1)
