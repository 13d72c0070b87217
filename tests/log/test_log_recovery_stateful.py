"""Recovery of the journal against a model: whatever a life did and however it ended, the next one finds what it must.

Hypothesis says what a life does, step by step, and how it ends; the model of :mod:`log_lives` says what must be there
afterwards: of each topic a prefix of what was appended, cut between two batches, never shorter than what was
acknowledged at its durability, and the content of every byte of it; of each cursor the last acknowledged value or a
later one.
"""

from __future__ import annotations

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from log_lives import FILE_SIZE, LIMITS, Replay, TopicModel, World, make_part
from trio.testing import MockClock

from danube.log import Entry, EntryType, Journal
from danube.model import DanubeError
from danube.model.batch import check_part

TOPICS = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.just("append"), TOPICS, st.lists(st.sampled_from((1, 80, 1500)), min_size=1, max_size=4)),
    st.tuples(st.just("acknowledge"), TOPICS, st.none()),
    st.tuples(st.just("release"), TOPICS, st.sampled_from((0, 3, 40))),
    st.tuples(st.just("wait"), TOPICS, st.sampled_from((0.0, 0.0003, 0.003, 1.0))),
)
ENDINGS = st.sampled_from(("clean", "kill", "power loss"))


class CrashError(Exception):
    """The life is over by a crash."""


class DirectedWorld(World):
    """A world whose lives are told what to do."""

    def live_by(self, steps: list[tuple[str, int, object]], ending: str) -> None:
        self.crashed = False
        try:
            trio.run(self._live_by, steps, ending, clock=MockClock(autojump_threshold=0))
        except* (CrashError, OSError, DanubeError):
            assert self.crashed, "only a crash may end a life"
        self.lives += 1

    async def _live_by(self, steps: list[tuple[str, int, object]], ending: str) -> None:
        journal = Journal(self.disk, LIMITS, file_size=FILE_SIZE, on_commit=self._on_commit, snapshot=self.snapshot_of)
        replay = Replay(self.topics)
        await journal.recover(replay)
        await self._check(journal, replay)
        self.power_loss = False
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            for number, (what, topic_id, detail) in enumerate(steps):
                await self._step(journal, self.topics[topic_id], what, detail, number)
            if ending != "clean":
                self.crashed = True
                self.power_loss = ending == "power loss"
                # The disk goes first, so that nothing that is cancelled can still write.
                self.disk = self.disk.crash(power_loss=self.power_loss)
                raise CrashError
            await journal.aclose()
            nursery.cancel_scope.cancel()
        for topic in self.topics.values():
            assert topic.acked_end == topic.log.next_offset, "a journal that was closed has settled everything"
            assert topic.cursor_acked == topic.cursor

    async def _step(self, journal: Journal, topic: TopicModel, what: str, detail: object, number: int) -> None:
        log = topic.log
        if what == "append":
            assert isinstance(detail, list)
            # Different bytes in every record, so that a batch in the wrong place is seen.
            mark = b"%d.%d." % (self.lives, number)
            part = make_part([(mark + b"x" * size)[: max(size, len(mark))] for size in detail])
            base = log.next_offset
            await journal.admit(len(part))
            log.append(part, check_part(part), 1000 * base, topic)
            topic.parts.append((base, base + len(detail), part))
        elif what == "acknowledge":
            topic.cursor += 1
            payload = b"%d" % topic.cursor
            journal.submit(Entry(EntryType.CURSOR, topic.topic_id, topic.durability, (payload,), topic))
        elif what == "release":
            assert isinstance(detail, int)
            if log.end_offset - detail > topic.released:
                topic.released = log.end_offset - detail
                log.expire(topic.released)
        else:
            assert isinstance(detail, float)
            await trio.sleep(detail)


class JournalRecovery(RuleBasedStateMachine):
    """Lives of one journal."""

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.world = DirectedWorld(seed)

    @rule(steps=st.lists(STEPS, max_size=12), ending=ENDINGS)
    def live(self, steps: list[tuple[str, int, object]], ending: str) -> None:
        self.world.live_by(steps, ending)

    @rule(topic=TOPICS, count=st.integers(20, 60), ending=ENDINGS)
    def fill_files(self, topic: int, count: int, ending: str) -> None:
        """So much that files fill up, and are released, covered by snapshots and recycled."""
        steps: list[tuple[str, int, object]] = []
        for number in range(count):
            steps.append(("append", topic, [1500]))
            if number % 8 == 7:
                steps += [("wait", topic, 0.003), ("release", topic, 3)]
        self.world.live_by(steps, ending)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.live_by([], "clean")


TestJournalRecovery = JournalRecovery.TestCase
TestJournalRecovery.settings = settings(deadline=None, max_examples=40, stateful_step_count=8)
