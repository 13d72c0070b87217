"""Reads what the journal of a stopped broker has of some topics, for giving it back to its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from danube.broker.directory.identity import read_broker_file
from danube.broker.topic.recovered import RecoveryVisitor
from danube.cluster.moves import Copied, Fate, fate_at_recovery
from danube.cluster.records import Assignment
from danube.log import BatchCache, Disk, Journal, StoredBatch, TopicLog
from danube.model import Durability, Limits
from danube.model.errors import FailedPreconditionError
from danube.model.ids import BrokerId, Offset, OwnerEpoch, TopicId
from danube.model.limits import MIB

if TYPE_CHECKING:
    from danube.log import Recovered

__all__ = ["Tail", "open_tail", "read_identity"]

_READ_BYTES: Final = 1 * MIB


async def read_identity(disk: Disk, place: str) -> str:
    """Return the identity of the data directory of a stopped broker.

    Args:
        disk: of the journal.
        place: the data directory, for messages.

    Raises:
        FailedPreconditionError: it holds no broker.
        DataLossError: its identity is damaged.
    """
    found = await read_broker_file(disk, place)
    if found is None:
        raise FailedPreconditionError(f"{place} is not the data directory of a broker")
    return found.identity


class Tail:
    """The topics in the journal of a stopped broker."""

    def __init__(self, journal: Journal, report: Recovered, visitor: RecoveryVisitor) -> None:
        self._journal = journal
        self._report = report
        self._visitor = visitor

    def damage(self, topic_id: TopicId, start: Offset) -> str:
        """Say what the journal has lost of a topic from an offset on; empty: nothing, as far as it knows."""
        error = self._report.stopped_topics({topic_id: start}).get(topic_id)
        return "" if error is None else error.message

    async def batches(
        self, topic_id: TopicId, broker: BrokerId, move: int, start: Offset, end: Offset
    ) -> AsyncIterator[Sequence[StoredBatch]]:
        """Yield the batches of a topic in a range of offsets.

        Args:
            topic_id: of the topic or partition.
            broker: whose journal it is.
            move: the one that has brought the topic to it; 0: none. Entries of other times do not count.
            start, end: the range.

        Raises:
            DataLossError: stored bytes are damaged.
        """
        state, recovered = self._visitor.topics.get(topic_id), self._report.topics.get(topic_id)
        copied = Copied(state.move, state.epoch, state.pending) if state is not None else Copied()
        assignment = Assignment(broker, OwnerEpoch(0), move=move)
        if recovered is None or fate_at_recovery(broker, assignment, copied) is not Fate.SERVE:
            return
        log = TopicLog(topic_id, Durability.DISK, self._journal, BatchCache(0), recovered=recovered)
        offset = max(start, recovered.first_offset)
        while offset < min(end, log.end_offset):
            found = await log.read(offset, _READ_BYTES)
            if not found:
                return
            inside = [each for each in found if each.base_offset >= start and each.end_offset <= end]
            if inside:
                yield inside
            offset = found[-1].end_offset


async def open_tail(disk: Disk, names: Mapping[TopicId, str]) -> Tail:
    """Read the journal of a stopped broker; no message in it is removed.

    Args:
        disk: of the journal.
        names: of the topics that are wanted.

    Raises:
        DataDirectoryError: its files are of another format.
        JournalFencedError: an I/O error.
    """
    limits = Limits()
    journal, visitor = Journal(disk, limits), RecoveryVisitor(names, {}, limits)
    return Tail(journal, await journal.recover(visitor), visitor)
