"""A proof that cannot fail proves nothing: planted bugs, each of which a few worlds must find.

The bugs are put into the product by patching it; the worlds are small ones in which the same seeds find nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from danube.dispatch.cursor import Cursor
from danube.history.sealer import Sealer, _Packer
from danube.log.producers import Checked, ProducerTable, Verdict
from danube.log.topic_log import TopicLog
from danube.model import Durability, Retention, SubscriptionType
from danube.testing.simulation import Plan, draw_plan, run_world
from danube.testing.simulation.node import _LifeDisk

MOST_SEEDS = 15

Mutate = Callable[[pytest.MonkeyPatch], None]


def small_plan(seed: int) -> Plan:
    """A world with durable topics that keep everything, one ordered subscription each, and the faults that crash."""
    plan = draw_plan(seed, duration_s=12.0, kind="single")
    topics = {
        topic.name: topic._replace(durability=Durability.DISK, retention=Retention()) for topic in plan.topics[:1]
    }
    producers = [each for each in plan.producers if each.topic.name in topics]
    consumers = [each for each in plan.consumers if each.topic.name in topics][:1]
    return plan._replace(
        topics=list(topics.values()),
        producers=[
            each._replace(topic=topics[each.topic.name], operations_per_s=5.0, batch=5, crash_after_s=1000.0)
            for each in producers
        ],
        consumers=[
            each._replace(topic=topics[each.topic.name], kind=SubscriptionType.EXCLUSIVE, leave_after_s=5.0)
            for each in consumers
        ],
        faults={"power-loss": 2.0, "ambush": 2.0, "reset": 2.0},
        fault_every_s=1.5,
        last_end="power-loss",
    )


def drops_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Acknowledges what is written and not synced."""
    write = _LifeDisk.write

    async def unsynced(self: _LifeDisk, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        await write(self, name, position, buffers, sync=False)

    patch.setattr(_LifeDisk, "write", unsynced)


def loses_the_cursor(patch: pytest.MonkeyPatch) -> None:
    """Confirms acknowledgements of consumers that are not in the journal."""
    delta = Cursor.delta
    patch.setattr(Cursor, "delta", lambda self, subscription_id, ranges: delta(self, subscription_id, []))


def stores_a_retry_again(patch: pytest.MonkeyPatch) -> None:
    """Takes a batch that it has for a new one."""
    check = ProducerTable.check

    def forgetful(self: ProducerTable, header: Any) -> Checked:
        found = check(self, header)
        if found.kind is not Verdict.NEW:
            self._by_id[header.producer_id].next_sequence = header.base_sequence
            return Checked(Verdict.NEW)
        return found

    patch.setattr(ProducerTable, "check", forgetful)


def seals_without_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Leaves a batch out of a segment."""
    add, count = _Packer.add, iter(range(1, 1_000_000))

    def careless(self: _Packer, topic: Any, batch: Any) -> None:
        if next(count) % 7:
            add(self, topic, batch)

    patch.setattr(_Packer, "add", careless)


def releases_before_the_upload(patch: pytest.MonkeyPatch) -> None:
    """Lets the journal go before the segment is stored."""
    store = Sealer._store

    async def hasty(self: Sealer, built: Any, *rest: Any) -> None:
        for part in built.footer.parts:
            self._topics[part.topic_id].log.sealed_up_to(part.end_offset, part.size_bytes)
        await store(self, built, *rest)

    patch.setattr(Sealer, "_store", hasty)


def skips_at_the_hand_over(patch: pytest.MonkeyPatch) -> None:
    """Leaves out a batch where sealed history ends and the journal begins."""
    read = TopicLog.read

    async def skipping(self: TopicLog, offset: int, max_bytes: int) -> Any:
        found = await read(self, offset, max_bytes)
        if len(found) > 1 and found[0].base_offset < self.journal_start <= found[-1].end_offset:
            del found[0]
        return found

    patch.setattr(TopicLog, "read", skipping)


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (drops_the_sync, "was acknowledged @"),
        (loses_the_cursor, "came again after its acknowledgement was durable"),
        (stores_a_retry_again, "is there twice"),
        (seals_without_a_batch, "spins"),
        (releases_before_the_upload, "spins"),
        (skips_at_the_hand_over, "was not seen before it"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_planted_bug_is_found(mutate: Mutate, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    seen: list[str] = []
    for seed in range(MOST_SEEDS):
        seen += run_world(seed, plan=small_plan(seed)).violations
        if any(expected in violation for violation in seen):
            return
    raise AssertionError(f"not found in {MOST_SEEDS} worlds; they said: {seen}")


@pytest.mark.parametrize("seed", range(3))
def test_these_worlds_are_well_otherwise(seed: int) -> None:
    assert run_world(seed, plan=small_plan(seed)).violations == []
