"""The declared gaps of topics, as this broker knows them; see :mod:`danube.cluster.gaps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from danube.cluster.gaps import GAPS, GapRecord, gap_name, topic_gaps, topic_of_gap
from danube.metadata import Condition, Delete, Put
from danube.model.ids import FIRST_OFFSET, Offset, TopicId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from danube.metadata import MetadataStore, RowChange, Table

__all__ = ["GapBook"]

_encode = msgspec.msgpack.encode


class GapBook:
    """The gaps of all topics, by topic.

    Args:
        store: the metadata.
        table: mirrors the rows.

    Attributes:
        on_change: called with a topic whenever one of its gaps has changed; must not raise.
    """

    def __init__(self, store: MetadataStore, table: Table[GapRecord]) -> None:
        self._store = store
        self._table = table
        self._by_topic: dict[TopicId, tuple[GapRecord, ...]] = {}
        self.on_change: Callable[[TopicId], None] = _ignore

    def changed(self, change: RowChange[GapRecord]) -> None:
        """Table: a row has changed."""
        topic_id = topic_of_gap(change.name)
        known = {gap.start: gap for gap in self._by_topic.get(topic_id, ())}
        if change.before is not None:
            known.pop(change.before.start, None)
        if change.after is not None:
            known[change.after.start] = change.after
        if known:
            self._by_topic[topic_id] = tuple(known[start] for start in sorted(known))
        else:
            self._by_topic.pop(topic_id, None)
        self.on_change(topic_id)

    def of(self, topic_id: TopicId) -> tuple[GapRecord, ...]:
        """Return the gaps of a topic or partition, in order."""
        return self._by_topic.get(topic_id, ())

    def floor(self, topic_id: TopicId) -> Offset:
        """Return the offset below which nothing of a topic is in the journal of its present owner."""
        gaps = self._by_topic.get(topic_id)
        return gaps[-1].end if gaps else FIRST_OFFSET

    def every(self) -> Mapping[TopicId, tuple[GapRecord, ...]]:
        """Return all gaps, by topic or partition; a view that changes with the rows."""
        return self._by_topic

    async def refresh(self) -> None:
        """Read all rows again: they include every gap that was declared before this was called.

        Raises:
            DanubeError: the metadata cannot answer.
        """
        await self._table.load()

    async def settle(self, topic_id: TopicId, gap: GapRecord, conditions: Sequence[Condition]) -> None:
        """Store what has become of a gap.

        Args:
            topic_id: of the topic or partition.
            gap: the changed record.
            conditions: that the topic still belongs to the caller.

        Raises:
            MetadataConflictError: it has changed in the meantime, or the topic has.
            DanubeError: the metadata cannot answer.
        """
        name = gap_name(topic_id, gap.start)
        condition = Condition(GAPS + name, self._table.revision(name))
        result = await self._store.transact([condition, *conditions], [Put(condition.key, _encode(gap))])
        await self._table.reached(result.revision)

    async def restore(self, topic_id: TopicId, gaps: Sequence[GapRecord]) -> None:
        """Enter the gaps of a topic that existed elsewhere, and does not exist here yet. May be repeated.

        Raises:
            DanubeError: the metadata cannot answer.
        """
        if gaps:
            rows = [Put(GAPS + gap_name(topic_id, gap.start), _encode(gap)) for gap in gaps]
            result = await self._store.transact([], rows)
            await self._table.reached(result.revision)

    async def drop(self, topic_ids: Iterable[TopicId]) -> None:
        """Remove the gaps of deleted topics.

        Raises:
            DanubeError: the metadata cannot answer.
        """
        for topic_id in topic_ids:
            if topic_id not in self._by_topic:
                continue
            rows, _ = await self._store.list(topic_gaps(topic_id))
            if rows:
                await self._store.transact([], [Delete(row.key) for row in rows])


def _ignore(topic_id: TopicId) -> None:
    """Initial callback: does nothing."""
