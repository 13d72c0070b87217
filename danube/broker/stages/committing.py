"""Commits of staged batches: makes the decision, and executes it, across any number of interruptions.

The journal cannot hold the decision. A commit touches topics of every durability, some of which are not in the journal
at all, and it must be decided before its first batch is appended. One conditional metadata write is sufficient for
that; the rest is done like any producer does it: batches with a session and sequences, and retries that the topics
recognise.

The producer of a staged batch in its topics is ``staged/{name}``. A client cannot have that name (a ``/`` is refused),
so no other sender advances its sequences, and the sequence that a decision has recorded stays right.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.stages.decisions import (
    ProducerRecord,
    Share,
    addressed,
    claim,
    continued,
    former_commit,
    losers,
    named_stages,
    stages_by_topic,
)
from danube.broker.stages.ledger import Known, Ledger
from danube.broker.stages.store import StageStore
from danube.broker.stages.stored import StoredStage
from danube.log import ProducerSession, StoredBatch
from danube.model import api
from danube.model.batch import replace_header
from danube.model.errors import (
    DanubeError,
    DataLossError,
    DuplicateSequenceError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from danube.model.ids import FIRST_OFFSET, Offset, ProducerId, TopicId
from danube.model.limits import MIB
from danube.model.log_events import log_event
from danube.model.stage_api import StageCommit, StageState

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic

__all__ = ["Committer"]

_log = logging.getLogger("danube.broker")

_AT_ONCE: Final = 8
"""Number of topics that one commit works on at a time."""
_IN_FLIGHT_BYTES: Final = 16 * MIB


class _Sender:
    """Publishes the share of one topic. A :class:`danube.broker.intake.senders.Sender`."""

    def __init__(self, session: ProducerSession) -> None:
        self._session = session
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.error: DanubeError | None = None
        """Why it cannot continue."""
        self.start: Offset | None = None
        self.end_offset = FIRST_OFFSET
        self.forgotten = False
        """Whether the offsets of the first batches are unknown, although the batches are stored."""
        self._changed = trio.Event()

    @property
    def session(self) -> ProducerSession:
        """The session that was opened."""
        return self._session

    def landed(self, base_offset: Offset, records: int) -> None:
        """Record that a batch is durable at this offset."""
        if self.start is None or base_offset < self.start:
            self.start = base_offset
        self.end_offset = max(self.end_offset, base_offset + records)

    def settled(self, size: int, batch: StoredBatch, error: DanubeError | None, /) -> None:
        """A batch has reached its durability, or will not, or is delayed."""
        self.in_flight_bytes -= size
        if error is None:
            self.landed(batch.base_offset, batch.header.record_count)
        else:
            self.error = self.error or error
        self._changed.set()

    def end(self, error: DanubeError | None, /) -> None:
        """Handle that the topic was deleted, or has an exclusive producer."""
        self.error = self.error or error or UnavailableError("another commit of this producer is in progress")

    async def room(self, limit: int) -> None:
        """Wait until no more than ``limit`` bytes are in flight.

        Raises:
            DanubeError: it cannot continue.
        """
        while self.in_flight_bytes > limit and self.error is None:
            self._changed = trio.Event()
            await self._changed.wait()
        if self.error is not None:
            raise type(self.error)(self.error.message)


class Committer:
    """Decides and executes the commits of staged batches; see the module.

    Args:
        broker: of the topics.
        store: the stages.
        ledger: the decisions.
    """

    def __init__(self, directory: Directory, store: StageStore, ledger: Ledger) -> None:
        self._directory = directory
        self._store = store
        self._ledger = ledger
        self.held: frozenset[ProducerId] = frozenset()
        """Ids of producers that their topics must not forget: a decision has recorded sequences of theirs."""

    def load(self) -> None:
        """Start: find decided commits that are not complete, and drop stages that no later commit can name."""
        for known in self._ledger:
            self._claim(known)
            self._drop_losers(known)
        self._hold()

    def _claim(self, known: Known) -> None:
        """Mark the stages of a decided batch, and release those that were marked for one that was not decided."""
        claim(self._store, known.name, known.record)

    def _drop_losers(self, known: Known) -> None:
        """Drop the stages of decided batches, except those being appended."""
        if known.record is None or not known.certain:
            return
        for stage in losers(self._store, known.name, known.record):
            if stage.fail is None:
                self._store.drop(stage)
            else:  # its own task drops it
                stage.fail(
                    FailedPreconditionError(
                        f"{stage}: batch {stage.head.batch_id} was committed without it, or a later one was; it accepts"
                        " no more data"
                    )
                )

    def _hold(self) -> None:
        self.held = frozenset(
            share.producer_id for known in self._ledger if known.record is not None for share in known.record.shares
        )

    # --- Decision ---

    async def commit(self, known: Known, batch_id: int, stage_ids: Sequence[int], label: str = "") -> StageCommit:
        """Commit a batch; the caller holds the producer's lock. Raises as :meth:`danube.client.Stages.commit`."""
        await self.settle(known)
        former = former_commit(known.record, batch_id)
        if former is not None:
            return former
        stages = named_stages(known.name, batch_id, stage_ids, self._store.find)
        for stage in stages:
            stage.state = StageState.COMMITTING
        try:
            sessions = await self._decide(known, batch_id, stages, label)
        except BaseException:
            if known.certain:  # and therefore it is not decided
                self._claim(known)
            raise
        await self._carry_out(known, sessions)
        record = known.record
        assert record is not None
        return StageCommit(True, dict(record.offsets), record.label)

    async def _decide(
        self, known: Known, batch_id: int, stages: Sequence[StoredStage], label: str
    ) -> dict[TopicId, ProducerSession]:
        by_topic = stages_by_topic(stages)
        shares: dict[TopicId, Share] = {}
        sessions: dict[TopicId, ProducerSession] = {}

        async def prepare(topic_name: str, topic_id: TopicId, of_topic: list[StoredStage]) -> None:
            for stage in of_topic:
                reader = self._store.read(stage)
                while await reader.next_parts():
                    pass
            topic = self._topic(topic_name, topic_id)
            if topic is None:
                raise FailedPreconditionError(
                    f"batch {batch_id} of producer {known.name!r} cannot be committed: topic {topic_name!r} was deleted"
                    " after it was staged; nothing was committed: stage the batch again"
                )
            topic.check_alive()
            session = sessions[topic_id] = await self._open(topic, known.name)
            shares[topic_id] = Share(
                topic_name,
                topic_id,
                session.producer_id,
                session.next_sequence,
                topic.end_offset,
                [stage.head.stage_id for stage in of_topic],
            )

        await _all(*[partial(prepare, name, topic_id, found) for (name, topic_id), found in by_topic.items()])
        plan = [shares[topic_id] for _, topic_id in by_topic]
        now_us = self._directory.runtime.clock_us()
        await self._ledger.write(known, ProducerRecord(batch_id, now_us, True, plan, {}, label))
        self._hold()
        return sessions

    def _topic(self, name: str, topic_id: TopicId) -> Topic | None:
        """Return a topic, or None if it was deleted (and perhaps created again).

        Raises:
            DanubeError: that is unknown, or the topic is unavailable.
        """
        catalogue = self._directory.catalogue
        try:
            _, living_id = catalogue.locate(name)
        except (NotFoundError, InvalidArgumentError):
            return None
        return self._directory.find(name) if living_id == topic_id else None

    async def _open(self, topic: Topic, producer: str) -> ProducerSession:
        request = api.PublishOpen(topic.name, f"staged/{producer}", anonymous=True)
        return await topic.intake.open(request, internal=True)

    # --- Execution ---

    async def refresh(self, known: Known) -> None:
        """Determine the decision, if it is unknown; the caller holds the lock.

        Raises:
            DanubeError: the metadata cannot be read now.
        """
        if not known.certain:
            await self._ledger.reload(known)
            self._claim(known)
            self._hold()

    async def settle(self, known: Known) -> None:
        """Complete a decided commit; the caller holds the lock.

        Raises:
            DataLossError: a stage of it is damaged.
            UnavailableError: it cannot be completed now; it is retried.
        """
        await self.refresh(known)
        if known.pending:
            await self._carry_out(known, {})

    async def _carry_out(self, known: Known, sessions: dict[TopicId, ProducerSession]) -> None:
        record = known.record
        assert record is not None
        try:
            offsets = await self._append_all(known, sessions)
            now_us = self._directory.runtime.clock_us()
            done = ProducerRecord(record.last_batch, now_us, False, [], offsets, record.label)
            await self._ledger.write(known, done)
        except DataLossError as error:
            known.problem = error
            raise DataLossError(
                f"batch {record.last_batch} of producer {known.name!r} is committed, but cannot be applied:"
                f" {error.message}"
            ) from error
        except DanubeError as error:
            known.problem = error
            raise UnavailableError(
                f"batch {record.last_batch} of producer {known.name!r} is committed, but not applied yet; the"
                f" broker continues by itself: {error.message}"
            ) from error
        known.problem = None
        self._hold()
        self._claim(known)
        self._drop_losers(known)

    async def _append_all(
        self, known: Known, sessions: dict[TopicId, ProducerSession]
    ) -> dict[str, tuple[Offset, Offset]]:
        assert known.record is not None
        shares = known.record.shares
        opened = dict(sessions)

        async def resume(share: Share) -> None:
            topic = self._topic(share.topic, share.topic_id)
            if topic is not None:
                opened[share.topic_id] = await self._open(topic, known.name)

        await _all(*[partial(resume, share) for share in shares if share.topic_id not in opened])
        # A topic of durability 'os' may have lost, with the power, messages that were stored before this batch was
        # decided. Then none of this batch is stored there either, and it continues from the present sequence.
        moved = [continued(share, opened.get(share.topic_id)) for share in shares]
        if moved != shares:
            await self._ledger.write(known, msgspec.structs.replace(known.record, shares=moved))
            self._hold()
        offsets: dict[str, tuple[Offset, Offset]] = {}

        async def append(share: Share) -> None:
            topic = self._topic(share.topic, share.topic_id)
            if topic is None or share.topic_id not in opened:
                _log.warning(
                    "topic %r was deleted: its share of a batch of %r is void",
                    share.topic,
                    known.name,
                    extra=log_event("stage.share_void", topic=share.topic, producer=known.name),
                )
                return
            found = await self._append(topic, opened[share.topic_id], share)
            if found is not None:
                offsets[share.topic] = found

        await _all(*[partial(append, share) for share in moved])
        return {share.topic: offsets[share.topic] for share in moved if share.topic in offsets}

    async def _append(self, topic: Topic, session: ProducerSession, share: Share) -> tuple[Offset, Offset] | None:
        """Append a share, or the missing part of it; return when all of it is durable, with its offsets."""
        sender = _Sender(session)
        intake = topic.intake
        try:
            intake.attach(sender, internal=True)
            try:
                sequence = share.base_sequence
                for number in share.stage_ids:
                    sequence = await self._append_stage(topic, sender, number, sequence)
                await sender.room(0)
            finally:
                intake.detach(sender)
        except DanubeError:
            if self._topic(share.topic, share.topic_id) is None:
                return None  # deleted in the meantime
            raise
        assert sender.start is not None  # the latest batches of a producer are always known
        return (share.start_offset if sender.forgotten else sender.start), sender.end_offset

    async def _append_stage(self, topic: Topic, sender: _Sender, number: int, sequence: int) -> int:
        stage = self._store.find(number)
        if stage is None:
            raise DataLossError(f"stage {number:016x} of topic {topic.name!r} was lost with its file")
        intake, session = topic.intake, sender.session
        reader = self._store.read(stage)
        while parts := await reader.next_parts():
            for part, header in parts:
                header = addressed(header, session, sequence)
                part = replace_header(part, header)
                sequence += header.record_count
                await sender.room(_IN_FLIGHT_BYTES)
                await intake.admit(len(part), paid=True)
                await sender.room(_IN_FLIGHT_BYTES)  # the sender may have ended meanwhile
                try:
                    sender.in_flight_bytes += len(part)
                    known = intake.take(sender, len(part), part, header, paid=True)
                except DuplicateSequenceError:
                    sender.in_flight_bytes -= len(part)
                    sender.forgotten = True  # appended before a crash, with many others after it
                except DanubeError:
                    sender.in_flight_bytes -= len(part)
                    raise
                else:
                    if known is not None:
                        sender.in_flight_bytes -= len(part)
                        sender.landed(known, header.record_count)
        return sequence


async def _all(*calls: Callable[[], Awaitable[None]]) -> None:
    """Run several calls, a few at a time; when one fails, the others are cancelled and its error is raised."""
    if len(calls) == 1:
        await calls[0]()
        return
    failures: list[DanubeError] = []
    slots = trio.CapacityLimiter(_AT_ONCE)

    async def run(call: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            try:
                await call()
            except DanubeError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(run, call)
    if failures:
        raise failures[0]
