"""Follows the catalogue: serves what is assigned to this broker, and ends what was deleted, whichever broker did that.

Every broker of a cluster has the records of all topics and their assignments, as of some moment ago. This task compares
them with what is served here whenever one of them has changed::

    record and assignment to this broker        the topic is built and served
    assignment elsewhere (durability none)      the topic ends; clients are told its owner
    assignment elsewhere, by a move             the same, and its entries in the journal are *buried*
    assignment to this broker, after a loss     the room :mod:`danube.broker.moving` begins it behind a declared gap
    assignment to this broker, by a move        the room :mod:`danube.broker.moving` serves the copy that it has
    record deleted                              the topic ends; its owner *buries* it, see below
    other policies, another schema subject      they are applied

A deleted topic ends at once, as far as it is served here. Then its owner notes the deletion in its journal, removes
what belongs to it from the history and the metadata, and its assignment. So the deletion may be requested from any
broker, also while an owner is away: that one buries its partitions when it starts again.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from danube.broker.directory.policies import put_into_effect
from danube.cluster.records import Reason, parse_topic_id, topic_key
from danube.metadata import may_pass
from danube.model.errors import DanubeError, OwnerFencedError, TopicNotFoundError
from danube.model.log_events import log_event
from danube.model.names import split_partition
from danube.model.records import members

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic
    from danube.cluster.records import Assignment
    from danube.metadata import RowChange
    from danube.model.ids import TopicId
    from danube.model.records import TopicRecord

__all__ = ["Burial", "Following", "deletion_of"]

_log = logging.getLogger("danube.broker")

_RETRY_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_TOPICS_PER_TURN: Final = 100


def deletion_of(topic: str) -> DanubeError:
    """Return the error for those who use a topic that was deleted."""
    return TopicNotFoundError(f"topic {topic!r} was deleted")


class Burial:
    """A topic that was deleted, until nothing is left of what this broker owned of it."""

    def __init__(self, name: str, record: TopicRecord, ended: Sequence[Topic]) -> None:
        self.name = name
        self.record = record
        self.ended = ended
        """Those that were served here."""
        self.failure: DanubeError | OSError | None = None
        self._done = trio.Event()

    async def wait(self) -> None:
        """Wait until it is complete; raise what has stopped it."""
        await self._done.wait()
        if self.failure is not None:
            raise self.failure

    def end(self, failure: DanubeError | OSError | None = None) -> None:
        """It is complete, or is continued at the next start."""
        self.failure = failure
        self._done.set()


class Following:
    """See the module.

    Args:
        directory: of the topics.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._catalogue = directory.catalogue
        self._membership = directory.catalogue.membership
        self._burials: dict[TopicId, Burial] = {}
        self._new: list[Burial] = []
        self._names: dict[str, bool] = {}
        """Topics to look at, and whether their policies or subject have changed."""
        self._moved: set[TopicId] = set()
        """Topics and partitions that this broker got from another one without a copy."""
        self._policies: set[str] = set()
        self._notes = False
        self.leaving: set[TopicId] = set()
        """Topics that have moved away, until nothing of them is left in the journal."""
        self.on_given: Callable[[TopicId], bool] = _ignore
        """Called when a topic was moved to this broker; returns whether it is served from a copy. Must not raise."""
        self.on_change: list[Callable[[], None]] = []
        """Called whenever a topic was created, changed or deleted, by any broker; must not raise."""
        self._wake = trio.Event()
        self._is_recovered = False
        self._catalogue.on_topic = self._topic_changed
        self._catalogue.on_policies = self._policies_changed
        self._membership.on_assignment = self._assignment_changed

    # --- What has changed ---

    def _topic_changed(self, change: RowChange[TopicRecord]) -> None:
        before, after = change.before, change.after
        if before is not None and (after is None or after.topic_ids[0] != before.topic_ids[0]):
            burial = Burial(change.name, before, self._directory.withdraw(before.topic_ids, deletion_of))
            self._burials[before.topic_ids[0]] = burial
            self._new.append(burial)
            before = None
        if after is not None:
            changed = before is not None and (before.policies, before.schema_subject) != (
                after.policies,
                after.schema_subject,
            )
            self._names[change.name] = changed or self._names.get(change.name, False)
        self._wake.set()
        for told in self.on_change:
            told()

    def _assignment_changed(self, change: RowChange[Assignment]) -> None:
        me, topic_id = self._membership.me, parse_topic_id(change.name)
        name = self._catalogue.newly_assigned(topic_id) if change.before is None else ""
        if any(each is not None and each.owner == me for each in (change.before, change.after)):
            served = self._directory.served(topic_id)
            if served is not None:
                name = self._base_of(served.name)
                # Now: the task may be busy, and this broker's session is certain again once all changes are entered.
                record = self._catalogue.find(name)
                if record is not None:
                    self._end_if_lost(served.name, record, topic_id)
            after = change.after
            is_given = after is not None and after.owner == me
            is_copied = after is not None and is_given and after.move and self.on_given(topic_id)
            if name:
                self._names.setdefault(name, False)
            elif change.before is not None and is_given and not is_copied:
                self._moved.add(topic_id)
            # Else its record has not arrived: it is looked at then.
            self._wake.set()
        if change.after is None:
            self._notes = True
            self._wake.set()

    def _policies_changed(self, target: str) -> None:
        self._policies.add(target)
        self._wake.set()

    def burial(self, record: TopicRecord) -> Burial | None:
        """Return the burial of a deleted topic; None if it is complete."""
        return self._burials.get(record.topic_ids[0])

    # --- The task ---

    def recovered(self) -> None:
        """Allow that topics are built: those that the journal holds are served from now on.

        Called at the end of :func:`danube.broker.directory.recovery.settle`. A topic of the journal that was built
        before would be empty, and would use its offsets a second time.
        """
        self._is_recovered = True

    async def run(self) -> None:
        """Task: act on all changes since this object was created, until cancelled."""
        directory = self._directory
        assert self._is_recovered, "recovery has built the topics that the journal holds"
        while True:
            with trio.move_on_after(_RETRY_S if self._notes else math.inf):
                await self._wake.wait()
            self._wake = trio.Event()
            burials, self._new = self._new, []
            for burial in burials:
                directory.runtime.start(self._bury, burial)
            if self._moved:
                await self._name_moved()
            names, self._names = self._names, {}
            for count, (name, changed) in enumerate(names.items(), 1):
                self.look(name)
                record = self._catalogue.find(name)
                if changed and record is not None:
                    await put_into_effect(directory, [(name, record)])
                if not count % _TOPICS_PER_TURN:
                    await trio.lowlevel.checkpoint()
            targets, self._policies = self._policies, set()
            for target in targets:
                await put_into_effect(directory, list(self._catalogue.topics(target)))
            if self._notes:
                self._notes = False
                try:
                    await self._catalogue.deletions.forget()
                except DanubeError as error:
                    self._notes = True
                    _log.info("the note of a deletion is removed later: %s", error)

    def _base_of(self, name: str) -> str:
        """Return the name of the topic as a whole that a topic or partition belongs to."""
        split = split_partition(name)
        return split[0] if split and self._catalogue.find(name) is None else name

    async def _name_moved(self) -> None:
        """Find the names of topics that this broker got from another one without a copy.

        That is rare, so no table has names by id.
        """
        moved, self._moved = self._moved, set()
        for count, name in enumerate(list(self._catalogue.tables.topics.values), 1):
            record = self._catalogue.find(name)
            if record is not None and not moved.isdisjoint(record.topic_ids):
                self._names.setdefault(name, False)
            if not count % _TOPICS_PER_TURN:
                await trio.lowlevel.checkpoint()

    def look(self, name: str) -> None:
        """Serve of a topic what is assigned to this broker and is not served yet; end what it lost to others.

        Only after :meth:`recovered`.
        """
        assert self._is_recovered, f"topic {name!r} may be in the journal, which is not recovered yet"
        directory, membership = self._directory, self._membership
        record = self._catalogue.find(name)
        if record is None:
            return
        level = directory.level(record)
        for each, topic_id in members(name, record):
            self._end_if_lost(each, record, topic_id)
            if (
                directory.served(topic_id) is None
                and membership.owns(topic_id)
                and not level.recovers_itself
                and not self._is_restored(topic_id)
                and not (level.keeps and self._membership.assignments.values[topic_key(topic_id)].move)
            ):
                try:
                    directory.adopt(level.build(each, topic_id, record))
                except DanubeError as error:
                    _log.error(
                        "topic %r cannot be served: %s", each, error, extra=log_event("topic.not_served", topic=each)
                    )

    def _end_if_lost(self, each: str, record: TopicRecord, topic_id: TopicId) -> None:
        """End a topic or partition that was moved to another broker.

        Of those of durability ``none`` also one that another broker owns for another reason, or this one in a later
        epoch. Others stay: their messages are in the journal of this broker.

        Args:
            each: its name.
            record: of the topic as a whole: it is decoded once for all partitions, of which it has all ids.
            topic_id: its id.
        """
        directory, membership = self._directory, self._membership
        topic = directory.served(topic_id)
        if topic is None:
            return
        if directory.level(record).keeps:
            assignment = membership.assignments.values.get(topic_key(topic_id))
            if assignment is not None and assignment.owner != membership.me and assignment.move:
                error = directory.absence(each, record, topic_id)
                directory.withdraw([topic_id], lambda _: error)
                directory.history.release_topic(topic_id)
                self.leaving.add(topic_id)
                directory.runtime.start(self._leave, topic)
            return
        if not membership.owns(topic_id) or topic.owner_epoch != membership.epoch(topic_id):
            error = directory.absence(each, record, topic_id)
            directory.withdraw([topic_id], lambda _: error)

    async def _leave(self, topic: Topic) -> None:
        """Remove what the journal holds of a topic that has moved away. A crash leaves that to the next start."""
        try:
            await topic.intake.wait_settled()
            if await self._membership.is_forgotten():
                return  # what is in this journal may be all that there is
            if topic.commits_to_storage:
                await self._directory.levels.bucket.handover.left(topic)
            else:
                await self._directory.runtime.journal.bury([topic.topic_id])
        except (DanubeError, OSError) as error:
            _log.info("what is left of topic %r, which has moved away, is removed later: %s", topic.name, error)
        finally:
            self.leaving.discard(topic.topic_id)

    def _is_restored(self, topic_id: TopicId) -> bool:
        """Whether it existed before it was assigned: then it is served once its cursors are known, too."""
        return self._membership.assignments.values[topic_key(topic_id)].reason is Reason.FOUND

    async def _bury(self, burial: Burial) -> None:
        """Remove what is left of the partitions of a deleted topic that this broker owns."""
        directory, record = self._directory, burial.record
        failure: DanubeError | OSError | None = None
        try:
            for topic in burial.ended:
                await topic.intake.wait_settled()  # a submitted batch keeps its journal file in use once it is written
            await directory.levels.bucket.reconciliation.serve_withheld(burial.name)
            if directory.level(record).recovers_itself:
                await directory.levels.bucket.bury(burial.name, record.topic_ids)
            mine = [topic_id for topic_id in record.topic_ids if self._membership.owns(topic_id)]
            if directory.level(record).recovers_itself:  # what is in other wals stays noted until they are open
                mine = [each for each in mine if directory.levels.bucket.has_noted(record.storage, each)]
            if directory.level(record).checkpointed and mine:
                await directory.runtime.journal.bury(mine)
            for topic_id in mine:
                await self._drop_history(topic_id, burial.name)
            await self._drop_records(burial, mine)
        except (DanubeError, OSError) as error:
            _log.warning(
                "the deletion of topic %r is completed at the next start: %s",
                burial.name,
                error,
                extra=log_event("topic.deletion_left", topic=burial.name),
            )
            failure = error
        finally:
            self._burials.pop(record.topic_ids[0], None)
            burial.end(failure)

    async def _drop_records(self, burial: Burial, mine: list[TopicId]) -> None:
        """Remove what is left in the metadata; the deletion is complete without it."""
        buried = partial(self._catalogue.deletions.buried, burial.record.topic_ids, mine)
        if not await self._tried(buried, burial.name, "what the metadata hold"):
            burial.end()
            await self._repeat(buried, burial.name, "what the metadata hold")

    async def _drop_history(self, topic_id: TopicId, name: str) -> None:
        drop = partial(self._directory.history.drop_topic, topic_id, name)
        if not await self._tried(drop, name, "the history"):
            await self._repeat(drop, name, "the history")

    async def _repeat(self, remove: Callable[[], Awaitable[None]], name: str, what: str) -> None:
        pause_s = _RETRY_S
        while True:
            await trio.sleep(pause_s)
            if await self._tried(remove, name, what):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _tried(self, remove: Callable[[], Awaitable[None]], name: str, what: str) -> bool:
        """Return whether something of a deleted topic was removed; raise errors that do not pass."""
        try:
            await remove()
        except DanubeError as error:
            if isinstance(error, OwnerFencedError) or not may_pass(error):
                raise
            _log.warning(
                "%s of deleted topic %r is removed later: %s",
                what,
                name,
                error,
                extra=log_event("topic.deletion_left", topic=name),
            )
            return False
        return True


def _ignore(topic_id: TopicId) -> bool:
    """Initial callback: no copy is here."""
    return False
