"""Damage that one recovery has told is told by every later one, as long as what was lost is needed.

The evidence of a loss wanders: a damaged file is replaced by a copy, the batches on both sides of a hole are released,
and files without needed batches are recycled. A start that has forgotten a loss serves the topic with a hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from log_lives import FILE_SIZE, LIMITS, make_part
from trio.testing import MockClock

from danube.log import BatchCache, Entry, EntryType, Journal, Recovered, TopicLog
from danube.log.format import FILE_HEADER_SIZE
from danube.model import DanubeError, Durability
from danube.model.batch import check_part
from danube.model.errors import JournalFencedError
from danube.testing.disk import SimulatedDisk

TOPICS = (1, 2, 3)
LONGEST = 7000
ROOMY = msgspec.structs.replace(LIMITS, journal_max_bytes=200 * FILE_SIZE)


class Losses:
    """What the recoveries have told of lost offsets, and what was released since."""

    def __init__(self) -> None:
        self.released = dict.fromkeys(TOPICS, 0)
        self.ranges: dict[int, set[int]] = {}
        self.suspects: set[int] = set()

    def seen_in(self, recovered: Recovered) -> tuple[dict[int, set[int]], set[int]]:
        """Return the lost offsets that are still needed, and the topics whose last messages may be missing."""
        ranges = {
            topic.topic_id: {offset for low, high in topic.damaged for offset in range(low, high)}
            - set(range(self.released[topic.topic_id]))
            for topic in recovered.topics.values()
        }
        return (
            {topic_id: offsets for topic_id, offsets in ranges.items() if offsets},
            {topic.topic_id for topic in recovered.topics.values() if topic.suspect},
        )

    def release(self, topic_id: int, offset: int) -> None:
        self.released[topic_id] = offset
        if topic_id in self.ranges:
            self.ranges[topic_id] -= set(range(offset))
            if not self.ranges[topic_id]:
                del self.ranges[topic_id]


class Lives:
    """Lives of one journal, all of which end by a kill."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.losses = Losses()
        self.recovered: Recovered

    def live(self, appends: int, *, releases: bool) -> None:
        try:
            trio.run(self._live, appends, releases, clock=MockClock(autojump_threshold=0))
        except* JournalFencedError:
            pass  # the crash

    async def _live(self, appends: int, releases: bool) -> None:
        random, settled = self.random, 0
        logs: dict[int, TopicLog] = {}

        def on_commit(entries: list[Entry], error: DanubeError | None) -> None:
            nonlocal settled
            assert error is None
            settled += len(entries)
            for entry in entries:
                if entry.type is EntryType.BATCH:
                    logs[entry.topic_id].settled(entry)

        journal = Journal(self.disk, ROOMY, file_size=FILE_SIZE, on_commit=on_commit, snapshot=lambda topic_id: b"s")
        self.recovered = recovered = await journal.recover()
        stopped = recovered.stopped_topics(self.losses.released)
        cache = BatchCache(LIMITS.cache_bytes)
        for topic_id in TOPICS:
            logs[topic_id] = TopicLog(
                topic_id,
                Durability.DISK,
                journal,
                cache,
                next_offset=self.losses.released[topic_id],
                start_offset=self.losses.released[topic_id],
                recovered=recovered.topics.get(topic_id),
            )
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            submitted = 0
            for _ in range(appends):
                log = logs[random.choice(TOPICS)]
                if log.topic_id not in stopped:
                    part = make_part([bytes(random.choice((10, 900, LONGEST)))], log.next_offset, log.topic_id)
                    log.append(part, check_part(part), 1)
                    submitted += 1
                if random.random() < 0.6:
                    while settled < submitted:  # noqa: ASYNC110 - in virtual time
                        await trio.sleep(0.001)
            for topic_id in TOPICS if releases else ():
                low, high = self.losses.released[topic_id], logs[topic_id].end_offset
                if low < high and random.random() < 0.7:
                    offset = random.randint(low, high)
                    journal.release(topic_id, offset)
                    self.losses.release(topic_id, offset)
            await trio.sleep(1)
            self.disk = self.disk.crash(power_loss=False)
            nursery.cancel_scope.cancel()

    def journal_files(self) -> Iterator[str]:
        return (name for name in sorted(self.disk.names()) if name.startswith("journal"))

    def damage(self, what: str) -> None:
        random = self.random
        names = [name for name in self.journal_files() if any(self.disk.content(name)[FILE_HEADER_SIZE:])]
        if not names:
            return  # the damage before this one has taken the only file
        name = random.choice(names)
        content = self.disk.content(name)
        end = len(bytes(content).rstrip(b"\0"))
        at = random.randrange(FILE_HEADER_SIZE, max(end, FILE_HEADER_SIZE + 1))
        if what == "bit":
            content[at] ^= 1 << random.randrange(8)
        elif what == "zeros":
            length = random.choice((100, 3000, 9000))
            content[at : min(at + length, end)] = bytes(len(content[at : min(at + length, end)]))
        else:
            trio.run(self.disk.remove, name)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    appends=st.integers(5, 60),
    damage=st.lists(st.sampled_from(["bit", "zeros", "gone"]), min_size=1, max_size=2),
    later=st.lists(st.integers(0, 25), min_size=1, max_size=4),
)
def test_what_is_lost_is_told_until_it_is_not_needed(
    seed: int, appends: int, damage: list[str], later: list[int]
) -> None:
    lives = Lives(seed)
    lives.live(appends, releases=bool(seed % 2))
    for what in damage:
        lives.damage(what)
    lives.live(0, releases=False)
    losses = lives.losses
    losses.ranges, losses.suspects = losses.seen_in(lives.recovered)
    for count in later:
        lives.live(count, releases=True)
        # Compare what the start found with what was needed then, before this life released more of it.
        lives.live(0, releases=False)
        ranges, suspects = losses.seen_in(lives.recovered)
        assert ranges == losses.ranges
        assert suspects == losses.suspects
