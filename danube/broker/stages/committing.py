"""Commits of staged batches: makes the decision, and executes it, across any number of interruptions.

The journal cannot hold the decision. A commit touches topics of every durability, some of which are not in the journal
at all, and it must be decided before its first batch is appended. One conditional metadata write is sufficient for
that; the rest is done like any producer does it: batches with a session and sequences, and retries that the topics
recognise.

The producer of a staged batch in its topics is ``staged/{name}``. A client cannot have that name (a ``/`` is refused),
so no other sender advances its sequences, and the sequence that a decision has recorded stays right.

A share for a topic of another broker goes to its owner over the link (:mod:`danube.broker.stages.distant`). If the
topic moves or its owner dies in the middle, the share is sent to the next owner, which has the table of producers and
recognises what is stored.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.stages.decisions import (
    ProducerRecord,
    Share,
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
from danube.log import ProducerSession
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
)
from danube.model.ids import NO_PRODUCER_EPOCH, Offset, ProducerId, TopicId
from danube.model.log_events import log_event
from danube.model.stage_api import StageCommit, StageState

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.stages.distant import Neighbours
    from danube.broker.stages.near import FarTopic, Parts
    from danube.broker.topic.topic import Topic

__all__ = ["Committer"]

_log = logging.getLogger("danube.broker")

_AT_ONCE: Final = 8
"""Number of topics that one commit works on at a time."""


class Committer:
    """Decides and executes the commits of staged batches; see the module.

    Args:
        broker: of the topics.
        store: the stages.
        ledger: the decisions.
        neighbours: returns those of whom topics of other owners are asked.
    """

    def __init__(
        self, directory: Directory, store: StageStore, ledger: Ledger, neighbours: Callable[[], Neighbours]
    ) -> None:
        self._directory = directory
        self._neighbours = neighbours
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
        except BaseException as error:
            if known.certain:  # and therefore it is not decided
                self._claim(known)
            if isinstance(error, NotOwnerError):  # a topic moves: its owner is not the one to be asked for a commit
                raise UnavailableError(f"nothing was committed: {error.message}; commit again") from error
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
            session, end_offset = await self._open(topic, known.name)
            sessions[topic_id] = session
            shares[topic_id] = Share(
                topic_name,
                topic_id,
                session.producer_id,
                session.next_sequence,
                end_offset,
                [stage.head.stage_id for stage in of_topic],
            )

        await _all(*[partial(prepare, name, topic_id, found) for (name, topic_id), found in by_topic.items()])
        plan = [shares[topic_id] for _, topic_id in by_topic]
        now_us = self._directory.runtime.clock_us()
        await self._ledger.write(known, ProducerRecord(batch_id, now_us, True, plan, {}, label))
        self._hold()
        return sessions

    def _topic(self, name: str, topic_id: TopicId) -> Topic | FarTopic | None:
        """Return a topic, of this broker or of another one, or None if it was deleted (and perhaps created again).

        Raises:
            DanubeError: that is unknown, or the topic is unavailable.
        """
        catalogue = self._directory.catalogue
        try:
            _, living_id = catalogue.locate(name)
        except (NotFoundError, InvalidArgumentError):
            return None
        if living_id != topic_id:
            return None
        try:
            return self._directory.find(name)
        except NotOwnerError:
            return self._neighbours().topic(name, topic_id)

    async def _open(self, topic: Topic | FarTopic, producer: str) -> tuple[ProducerSession, Offset]:
        """Return the session of a producer in a topic, and the end of the topic."""
        from danube.broker.stages.near import FarTopic, open_session  # most brokers have no stages

        if isinstance(topic, FarTopic):
            return await topic.open(producer)
        topic.check_alive()
        return await open_session(topic, producer), topic.end_offset

    # --- Execution ---

    async def refresh(self, known: Known) -> None:
        """Determine the decision, if it is unknown; the caller holds the lock.

        Raises:
            DanubeError: the metadata cannot be read now.
        """
        if not known.certain:
            await self._ledger.reload(known)
            self._follow(known)

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
        self._follow(known)

    def _follow(self, known: Known) -> None:
        """Act on a record that has become known: a commit that it calls complete leaves nothing behind."""
        self._hold()
        self._claim(known)
        if not known.pending:
            known.problem = None
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
                opened[share.topic_id], _ = await self._open(topic, known.name)

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
            found = await self._append(topic, opened[share.topic_id], share, known.name)
            if found is not None:
                offsets[share.topic] = found

        await _all(*[partial(append, share) for share in moved])
        return {share.topic: offsets[share.topic] for share in moved if share.topic in offsets}

    async def _append(
        self, place: Topic | FarTopic, session: ProducerSession, share: Share, producer: str
    ) -> tuple[Offset, Offset] | None:
        """Append a share, or the missing part of it; return when all of it is durable, with its offsets."""
        from danube.broker.stages.near import FarTopic, append_parts, open_session

        parts = self._parts_of(share)
        try:
            if isinstance(place, FarTopic):
                landed = await place.append(producer, share.base_sequence, parts)
            else:
                if session.epoch == NO_PRODUCER_EPOCH:  # it was opened before the topic came here
                    session = await open_session(place, producer)
                landed = await append_parts(place, session, share.base_sequence, parts)
        except DanubeError:
            if self._topic(share.topic, share.topic_id) is None:
                return None  # deleted in the meantime
            raise
        finally:
            await parts.aclose()
        assert landed.start is not None  # the latest batches of a producer are always known
        return (share.start_offset if landed.forgotten else landed.start), landed.end

    async def _parts_of(self, share: Share) -> AsyncGenerator[Parts, None]:
        for number in share.stage_ids:
            stage = self._store.find(number)
            if stage is None:
                raise DataLossError(f"stage {number:016x} of topic {share.topic!r} was lost with its file")
            reader = self._store.read(stage)
            while parts := await reader.next_parts():
                yield parts


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
