"""Bugs that are planted into the product by patching it, to see that the simulation finds them.

``python -m tests.simulation.planted_bugs`` looks for each of them from seed 0 on and prints the table below.
The worlds are ordinary ones, with all their faults and chores, except that they end with a power loss more often.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from danube.broker.topic.topic import Topic
from danube.dispatch.cursor import Cursor
from danube.history import history
from danube.history.packing import Packer
from danube.history.sealer import Sealer
from danube.log import _scan
from danube.log.format import BLOCK_HEADER_SIZE, Block, Fault, read_block_header
from danube.log.journal import Journal
from danube.log.producers import Checked, ProducerTable, Verdict
from danube.log.topic_log import TopicLog
from danube.model.errors import DuplicateSequenceError
from danube.model.policies import Retention
from danube.testing.simulation import draw_plan, run_world
from danube.testing.simulation.node import _LifeDisk

MOST_SEEDS = 1_000
STORM_S = 12.0

Plant = Callable[[pytest.MonkeyPatch], None]


def drop_a_sync(patch: pytest.MonkeyPatch) -> None:
    """Acknowledges what is written and not synced."""
    write = _LifeDisk.write

    async def unsynced(self: _LifeDisk, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        await write(self, name, position, buffers, sync=False)

    patch.setattr(_LifeDisk, "write", unsynced)


def acknowledge_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Settles entries when they are about to be written, whatever becomes of the write."""
    write, settle = Journal._write, Journal._settle
    told: set[int] = set()

    async def hasty(self: Journal, step: Any) -> None:
        if step.entries:
            settle(self, step.entries, step.size, None)
            told.add(id(step.entries))
        await write(self, step)

    def once(self: Journal, entries: Any, size: int, error: Any) -> None:
        if id(entries) in told:
            told.discard(id(entries))
        else:
            settle(self, entries, size, error)

    patch.setattr(Journal, "_write", hasty)
    patch.setattr(Journal, "_settle", once)


def skip_the_check_of_the_torn_tail(patch: pytest.MonkeyPatch) -> None:
    """Takes a block of the journal for whole if its header is."""

    def trusting(data: bytes, position: int, generation: int) -> Block | Fault:
        block = read_block_header(data, position, generation)
        if isinstance(block, Block) and position + max(block.length, BLOCK_HEADER_SIZE) > len(data):
            return Fault.SHORT
        return block

    patch.setattr(_scan, "read_block", trusting)


def advance_the_cursor_over_a_hole(patch: pytest.MonkeyPatch) -> None:
    """Takes an acknowledgement for one of everything before it, now and then."""
    ack, calls = Cursor.ack, count(1)

    def generous(self: Cursor, start: int, end: int, *, force: bool = False) -> list[tuple[int, int]]:
        if not next(calls) % 50:
            start = min(start, self.floor)
        return ack(self, start, end, force=force)

    patch.setattr(Cursor, "ack", generous)


def lose_a_wake_up(patch: pytest.MonkeyPatch) -> None:
    """Forgets now and then to let the subscriptions look at what was committed."""
    pump, calls = Topic.pump, count(1)

    def forgetful(self: Topic) -> None:
        if next(calls) % 3:  # what is said about earlier messages makes up for most of it
            pump(self)

    patch.setattr(Topic, "pump", forgetful)


def lose_the_cursor(patch: pytest.MonkeyPatch) -> None:
    """Confirms acknowledgements of consumers that are not in the journal."""
    delta = Cursor.delta
    patch.setattr(Cursor, "delta", lambda self, subscription_id, ranges: delta(self, subscription_id, []))


def store_a_retry_again(patch: pytest.MonkeyPatch) -> None:
    """Takes a batch that it has for a new one."""
    check = ProducerTable.check

    def forgetful(self: ProducerTable, header: Any) -> Checked:
        found = check(self, header)
        if found.kind is not Verdict.NEW:
            self._by_id[header.producer_id].next_sequence = header.base_sequence
            return Checked(Verdict.NEW)
        return found

    patch.setattr(ProducerTable, "check", forgetful)


def seal_without_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Leaves a batch out of a segment, and does not notice the hole."""
    add, calls = Packer.add, count(1)

    def careless(self: Packer, topic: Any, batch: Any) -> None:
        if next(calls) % 7:
            add(self, topic, batch)

    patch.setattr(Packer, "add", careless)
    patch.setattr(Sealer, "_fits", lambda self, part: part.topic_id in self._topics)


def release_before_the_upload(patch: pytest.MonkeyPatch) -> None:
    """Lets the journal go before the segment is stored."""
    store = Sealer._store

    async def hasty(self: Sealer, built: Any, *rest: Any) -> None:
        for part in built.footer.parts:
            self._topics[part.topic_id].log.sealed_up_to(part.end_offset, part.size_bytes)
        await store(self, built, *rest)

    patch.setattr(Sealer, "_store", hasty)


def skip_at_the_hand_over(patch: pytest.MonkeyPatch) -> None:
    """Leaves out a batch where sealed history ends and the journal begins."""
    read = TopicLog.read

    async def skipping(self: TopicLog, offset: int, max_bytes: int) -> Any:
        found = await read(self, offset, max_bytes)
        if len(found) > 1 and found[0].base_offset < self.journal_start <= found[-1].end_offset:
            del found[0]
        return found

    patch.setattr(TopicLog, "read", skipping)


def take_more_than_the_rule(patch: pytest.MonkeyPatch) -> None:
    """Retention by size leaves half of what its rule says."""
    plan = history.plan_retention

    def greedy(name: str, policy: Retention, *rest: Any) -> Any:
        return plan(name, msgspec.structs.replace(policy, max_bytes=policy.max_bytes // 2), *rest)

    patch.setattr(history, "plan_retention", greedy)


def acknowledge_a_repeat_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    """Takes a repeat of a batch that is on its way to the disk for one of a batch that is stored."""
    check = ProducerTable.check

    def hasty(self: ProducerTable, header: Any) -> Checked:
        found = check(self, header)
        return Checked(Verdict.KNOWN, found.base_offset) if found.kind is Verdict.PENDING else found

    patch.setattr(ProducerTable, "check", hasty)


def acknowledge_without_a_place(patch: pytest.MonkeyPatch) -> None:
    """Reports some new batches as stored before, at an unknown place."""
    check, calls = ProducerTable.check, count(1)

    def forgetful(self: ProducerTable, header: Any) -> Checked:
        found = check(self, header)
        if found.kind is Verdict.NEW and not next(calls) % 40:
            self._by_id[header.producer_id].next_sequence += header.record_count
            raise DuplicateSequenceError("it was stored before")
        return found

    patch.setattr(ProducerTable, "check", forgetful)


ASKED_FOR: tuple[Plant, ...] = (
    drop_a_sync,
    acknowledge_before_the_commit,
    skip_the_check_of_the_torn_tail,
    advance_the_cursor_over_a_hole,
    lose_a_wake_up,
)
FURTHER: tuple[Plant, ...] = (
    lose_the_cursor,
    store_a_retry_again,
    seal_without_a_batch,
    release_before_the_upload,
    skip_at_the_hand_over,
    take_more_than_the_rule,
    acknowledge_a_repeat_before_its_sync,
    acknowledge_without_a_place,
)

FOUND_BY: dict[str, tuple[int, str]] = {
    "drop_a_sync": (
        1,
        "DataLossError: the file 'broker', which says to which broker the directory belongs, is damaged",
    ),
    "acknowledge_before_the_commit": (0, "P2: was acknowledged where another message is"),
    "skip_the_check_of_the_torn_tail": (37, "StuckError: offsets [40, 43) are damaged, in journal file 20"),
    "advance_the_cursor_over_a_hole": (0, "P5: the cursor has passed 2 unacknowledged messages"),
    "lose_a_wake_up": (3, "StuckError: messages from offset 0 on are about to be delivered"),
    "lose_the_cursor": (0, "P1: it came again after its acknowledgement was durable"),
    "store_a_retry_again": (3, "P11: is there twice"),
    "seal_without_a_batch": (0, "P2: offset 7 follows where 4 should"),
    "release_before_the_upload": (0, "P2: offset 148 follows where 0 should"),
    "skip_at_the_hand_over": (0, "P2: offset 125 follows where 124 should"),
    "take_more_than_the_rule": (13, "P1: retention has left at most 67437 bytes, and has to leave 102400"),
    "acknowledge_a_repeat_before_its_sync": (0, "P2: was acknowledged where another message is"),
    "acknowledge_without_a_place": (0, "P1: was acknowledged as stored, place unknown, and is gone"),
}
"""A seed that finds a bug, the first one if its world is not slow, and what its world says first."""


def find(plant: Plant, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Return the first of the seeds whose world finds the bug, and what it says first."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                violations = run_world(seed, plan=draw_plan(seed, duration_s=STORM_S)).violations
            except Exception as error:  # noqa: BLE001 - a world that breaks is a bug that is found, too
                violations = [f"the world broke: {error!r}"]
        if violations:
            return seed, violations[0]
    return None


if __name__ == "__main__":
    for each in ASKED_FOR + FURTHER:
        found = find(each, range(MOST_SEEDS))
        sys.stdout.write(f"    {each.__name__!r}: {found!r},\n")
        sys.stdout.flush()
