"""The states of topics in the journal: what they take, and in which groups their snapshots are written. Pure.

* A topic whose snapshot was never seen is assumed to have a small state: one subscription, and a producer or two.
* All states together may take a quarter of ``journal_max_bytes``: so much is kept free for writing them
  (:data:`~danube.log._stock.SNAPSHOT_RATIO`). What would exceed that is refused, with the limit's name.
* Snapshots of about 128 KiB are written together; other entries are committed in between.
* Each snapshot has a higher generation than all before it, and covers what had settled when its group was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from danube.log._stock import SNAPSHOT_RATIO
from danube.log.format import ENTRY_HEADER_SIZE, Entry, EntryType
from danube.log.snapshots import SNAPSHOT_OVERHEAD, Assembler, cut
from danube.model.errors import LimitExceededError
from danube.model.ids import TopicId
from danube.model.limits import KIB
from danube.model.policies import Durability

__all__ = ["StateBook", "StateGroup"]

_PART_BYTES: Final = 256 * KIB
"""Most bytes of a state in one entry."""
_PART_OVERHEAD: Final = ENTRY_HEADER_SIZE + SNAPSHOT_OVERHEAD
_GROUP_BYTES: Final = 128 * KIB
_USUAL_BYTES: Final = 128


class StateGroup(NamedTuple):
    """Snapshots that are written together."""

    entries: list[Entry]
    covers: dict[TopicId, int]
    """By topic id: the sequence up to which the snapshot covers its entries."""
    is_last: bool
    """There are no more states."""


class StateBook:
    """What the states of all topics take; see the module.

    Args:
        max_bytes: ``journal_max_bytes``.
        capacity: bytes of entries that a file can hold.
    """

    def __init__(self, max_bytes: int, capacity: int) -> None:
        self._max_bytes = max_bytes
        self._part_bytes = min(_PART_BYTES, capacity // 4)
        self._generation = 0
        self._sizes: dict[TopicId, int] = {}
        """Bytes that the newest snapshot of a topic takes, or of a new topic will take."""
        self._total = 0

    def adopt(self, found: Assembler) -> None:
        """Take over the snapshots that recovery has found."""
        self._generation = found.generation
        for topic_id, (_, _, size) in found.newest.items():
            self._note(topic_id, size + _PART_OVERHEAD)

    def expect(self, topic_ids: Iterable[TopicId]) -> None:
        """Count the states of topics whose snapshots are not known yet."""
        for topic_id in topic_ids:
            if topic_id not in self._sizes:
                self._note(topic_id, _USUAL_BYTES)

    def forget(self, topic_id: TopicId) -> None:
        """Count a deleted topic no more."""
        self._total -= self._sizes.pop(topic_id, 0)

    def _note(self, topic_id: TopicId, size: int) -> None:
        self._total += size - self._sizes.get(topic_id, 0)
        self._sizes[topic_id] = size

    def usual_cost(self, topic_id: TopicId) -> int:
        """Return how many bytes the snapshot of a topic takes, as far as is known without taking it."""
        return self._sizes.get(topic_id, _USUAL_BYTES)

    def cost(self, state: bytes | None) -> int:
        """Return how many bytes the snapshot of a state takes; None: of a topic that is not known."""
        if state is None:
            return 0
        return len(state) + _PART_OVERHEAD * max(1, -(-len(state) // self._part_bytes))

    def check(self, what: str, topics: int) -> None:
        """Check that the states of all topics, and those of so many new ones, take at most a quarter of the journal.

        Raises:
            LimitExceededError: with ``what`` they would take more.
        """
        if self._total + topics * _USUAL_BYTES > self._max_bytes // SNAPSHOT_RATIO:
            raise LimitExceededError(
                f"{what} cannot be added: the states of {len(self._sizes)} topics (producers and cursors) take"
                f" {self._total} bytes of the journal, and may take a quarter of limit journal_max_bytes ="
                f" {self._max_bytes}; delete topics or subscriptions, or raise the limit"
            )

    def group(self, states: Iterator[tuple[TopicId, bytes]], settled: int) -> StateGroup:
        """Take the next states, and return the snapshots of them that are written together.

        Args:
            states: topic ids and states as they are now. Those that are taken contain the effects of all that has
                settled, so their entries are to be queued at once.
            settled: the sequence up to which all entries have been reported.
        """
        entries: list[Entry] = []
        covers: dict[TopicId, int] = {}
        size = 0
        while size < _GROUP_BYTES:
            item = next(states, None)
            if item is None:
                return StateGroup(entries, covers, is_last=True)
            topic_id, state = item
            self._generation += 1
            payloads = cut(state, generation=self._generation, covers=settled, part_bytes=self._part_bytes)
            entries += [Entry(EntryType.SNAPSHOT, topic_id, Durability.DISK, payload) for payload in payloads]
            taken = len(state) + _PART_OVERHEAD * len(payloads)
            self._note(topic_id, taken)
            size += taken
            covers[topic_id] = settled
        return StateGroup(entries, covers, is_last=False)
