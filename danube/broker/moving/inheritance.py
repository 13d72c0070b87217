"""Serves topics whose owner was declared gone: they begin again on this broker, behind a declared gap.

An operator has accepted the loss (:mod:`danube.broker.operations.forgetting`), and the assignment says so
(``Reason.FORGOTTEN``). This broker has nothing of the topic but its sealed history, if its storage is shared. In the
journal it begins with a TAKEOVER entry, as after a move: what the journal has of the topic from an earlier time counts
for nothing. Until that entry is durable a restart does all of it again.

**Cursors** were in the lost journal, and were told to the storage with what was sealed last
(:mod:`danube.broker.moving.told_cursors`): what was acknowledged since is delivered again, and later seeks are lost. If
the storage is not shared, a subscription begins where it was created. **Producers** begin new sessions: what they had
in flight when the broker was lost may be twice in the topic, if the lost disk returns.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.moving.told_cursors import ToldCursors
from danube.broker.topic.recovered import RecoveryVisitor, TopicSnapshot
from danube.cluster.records import Reason, parse_topic_id, topic_key
from danube.history.tenure import owner_epoch
from danube.log import Entry, EntryType, ProducerTable
from danube.log.format import TAKEOVER_ENTRY
from danube.model.errors import DanubeError, UnavailableError
from danube.model.ids import TopicId
from danube.model.log_events import log_event
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.cluster.records import Assignment
    from danube.metadata import RowChange
    from danube.model.ids import Offset
    from danube.model.records import TopicRecord

__all__ = ["Inheritance"]

_log = logging.getLogger("danube.broker")

_RETRY_S: Final = 0.25
_MOST_RETRY_S: Final = 10.0
_TOPICS_PER_TURN: Final = 1_000


class _Beginning:
    """The owner of a TAKEOVER entry."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._error: DanubeError | None = None

    def settled(self, entry: Entry, error: DanubeError | None) -> None:
        """Journal: the entry is durable, or never will be."""
        self._error = error
        self._done.set()

    def stalled(self, entry: Entry, error: DanubeError) -> None:
        """Never called: the entry is in the journal of the broker."""

    async def wait(self) -> None:
        """Wait until it has settled."""
        await self._done.wait()
        if self._error is not None:
            raise self._error


class Inheritance:
    """See the module.

    Args:
        directory: of the topics.
        void_copy: forgets the copy of a topic that was to move to this broker.
    """

    def __init__(self, directory: Directory, void_copy: Callable[[TopicId], Awaitable[None]]) -> None:
        self._directory = directory
        self._void_copy = void_copy
        self._membership = directory.membership
        self._runtime = directory.runtime
        self._wake = trio.Event()
        self._waiting: dict[TopicId, None] = {}
        self._told = ToldCursors(directory, self._waiting.keys())
        self._membership.on_assigned.append(self._assigned)
        for name, assignment in self._membership.assignments.values.items():
            self._look(parse_topic_id(name), assignment)

    def _assigned(self, change: RowChange[Assignment]) -> None:
        if change.after is not None:
            self._look(parse_topic_id(change.name), change.after)

    def _look(self, topic_id: TopicId, assignment: Assignment) -> None:
        if assignment.owner != self._membership.me or assignment.reason is not Reason.FORGOTTEN:
            return
        if self._directory.served(topic_id) is None and topic_id not in self._waiting:
            self._waiting[topic_id] = None
            self._directory.expected.add(topic_id)
            self._directory.arriving[topic_id] = trio.Event()
            self._wake.set()

    def _forget(self, topic_id: TopicId) -> None:
        self._waiting.pop(topic_id, None)
        self._directory.expected.discard(topic_id)
        arrival = self._directory.arriving.pop(topic_id, None)
        if arrival is not None:
            arrival.set()

    def _is_mine(self, topic_id: TopicId) -> bool:
        assignment = self._membership.assignments.values.get(topic_key(topic_id))
        return (
            assignment is not None
            and assignment.owner == self._membership.me
            and assignment.reason is Reason.FORGOTTEN
            and self._directory.served(topic_id) is None
        )

    def _is_there(self, topic_id: TopicId, name: str) -> bool:
        """Return whether a topic still exists. While it is being deleted its assignment remains for a while."""
        try:
            _, known = self._directory.catalogue.locate(name)
        except DanubeError:
            return False
        return known == topic_id

    async def run(self) -> None:
        """Task: serve such topics, until cancelled."""
        pause_s = _RETRY_S
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            failed = await self._serve_all()
            if not failed:
                pause_s = _RETRY_S
                continue
            self._wake.set()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_RETRY_S)

    async def _serve_all(self) -> bool:
        """Serve all that wait; return whether some have to be tried again."""
        for topic_id in [each for each in self._waiting if not self._is_mine(each)]:
            self._forget(topic_id)
        if not self._waiting:
            self._told.clear()
            return False
        try:
            await self._directory.catalogue.gaps.refresh()
            found = await self._named()
        except (DanubeError, OSError) as error:
            _log.info("topics of a broker that is gone are served later: %s", error)
            return True
        failed = False
        for topic_id in list(self._waiting):
            if topic_id not in found:
                self._forget(topic_id)  # it was deleted
                continue
            name, record = found[topic_id]
            try:
                await self._serve(topic_id, name, record)
            except (DanubeError, OSError) as error:
                failed = True
                _log.warning(
                    "topic %r, whose broker is gone, is served later: %s",
                    name,
                    error,
                    extra=log_event("topic.inheritance_delayed", topic=name),
                )
            else:
                self._forget(topic_id)
        return failed

    async def _named(self) -> dict[TopicId, tuple[str, TopicRecord]]:
        """Return names and records of those that wait. The records may be late, so one that is missing is read."""
        found = self._find()
        if len(found) < len(self._waiting):
            await self._directory.catalogue.tables.topics.load()
            found = self._find()
        return found

    def _find(self) -> dict[TopicId, tuple[str, TopicRecord]]:
        found: dict[TopicId, tuple[str, TopicRecord]] = {}
        for name, record in self._directory.catalogue.topics():
            if not self._waiting.keys().isdisjoint(record.topic_ids):
                for each, topic_id in members(name, record):
                    if topic_id in self._waiting:
                        found[topic_id] = each, record
        return found

    async def _serve(self, topic_id: TopicId, name: str, record: TopicRecord) -> None:
        directory, runtime, limits = self._directory, self._runtime, self._runtime.limits
        await directory.history.adopt_topic(topic_id)
        rows = await directory.catalogue.subscriptions.of_topic(topic_id)
        if not (self._is_mine(topic_id) and self._is_there(topic_id, name)):
            return
        assignment = self._membership.assignments.values[topic_key(topic_id)]
        gaps = directory.catalogue.gaps.of(topic_id)
        if not gaps:
            raise UnavailableError(f"the declared gap of topic {name!r} is not known here yet")
        first: Offset = gaps[-1].end
        epoch = owner_epoch(assignment.epoch, 0)
        cursors = await self._told.of_topic(topic_id, record.storage, epoch, rows, gaps)
        if not (self._is_mine(topic_id) and self._is_there(topic_id, name)):
            return
        journal = runtime.journal
        await self._void_copy(topic_id)
        if topic_id in journal.topic_ids():
            await journal.bury([topic_id])  # of an earlier time, or of an attempt that has failed
        beginning = _Beginning()
        payload = TAKEOVER_ENTRY.pack(assignment.move, first, assignment.epoch)
        journal.submit(Entry(EntryType.TAKEOVER, topic_id, record.durability, (payload,), beginning))
        await beginning.wait()
        producers = ProducerTable(limits, name).snapshot()
        state = TopicSnapshot(first, producers, cursors, assignment.move, assignment.epoch)
        snapshot = msgspec.msgpack.encode(state)
        await journal.save({topic_id: snapshot})
        await journal.sync(journal.sequence)
        if not self._is_there(topic_id, name):
            await journal.bury([topic_id])  # its burial was possibly before these entries
            return
        if not self._is_mine(topic_id):
            return
        visitor = RecoveryVisitor({topic_id: name}, {topic_id: rows}, limits)
        visitor.snapshot(topic_id, snapshot)
        topic = directory.level(record).build(name, topic_id, record, None, visitor.topics[topic_id])
        for each, row in rows.items():
            topic.restore_subscription(each, row, visitor.cursors[row.subscription_id])
        directory.adopt(topic)
        _log.warning(
            "topic %r goes on here at offset %d: its broker is gone, and what only that one had is a declared gap",
            name,
            first,
            extra=log_event("topic.inherited", topic=name),
        )
