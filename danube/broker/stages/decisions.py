"""Commits of staged batches: what is decided, from the stages and the record of their producer. Pure.

:mod:`danube.broker.stages.committing` stores the decisions and executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from danube.broker.stages.stored import StoredStage
from danube.log.producers import ProducerSession
from danube.model.batch import BatchHeader
from danube.model.errors import DataLossError, FailedPreconditionError
from danube.model.ids import Offset, ProducerId, TopicId
from danube.model.stage_api import AbortStages, StageCommit, StageState

__all__ = [
    "ProducerRecord",
    "Share",
    "aborted",
    "addressed",
    "claim",
    "continued",
    "former_commit",
    "held_producers",
    "inherited",
    "losers",
    "named_stages",
    "stages_by_topic",
    "topics_of",
]

_MOST_NAMES: Final = 10


class Share(msgspec.Struct, array_like=True, frozen=True):
    """The part of a decided batch for one topic or partition."""

    topic: str
    topic_id: TopicId
    producer_id: ProducerId
    base_sequence: int
    """Sequence of the first message of the first stage; the others follow without a gap."""
    start_offset: Offset
    """The topic's end when the batch was decided: all messages of the batch are after it."""
    stage_ids: list[int]


class ProducerRecord(msgspec.Struct, array_like=True, frozen=True):
    """The state of a producer of staged batches."""

    last_batch: int
    time_us: int
    """When it was written."""
    committing: bool
    """Whether the last batch is still being appended to its topics."""
    shares: list[Share]
    """Shares of a batch that is being appended."""
    offsets: dict[str, tuple[Offset, Offset]]
    """Offsets of a completed batch, as in :class:`danube.model.stage_api.StageCommit`."""
    label: str = ""
    """Label of the last commit."""


def former_commit(record: ProducerRecord | None, batch_id: int) -> StageCommit | None:
    """Return the answer to a batch that was decided before; None for one that is to be decided now.

    Offsets are known of the last batch only.
    """
    if record is None or batch_id > record.last_batch:
        return None
    offsets = dict(record.offsets) if batch_id == record.last_batch else {}
    return StageCommit(False, offsets, record.label)


def named_stages(
    producer: str, batch_id: int, stage_ids: Sequence[int], find: Callable[[int], StoredStage | None]
) -> list[StoredStage]:
    """Return the stages of a commit, in the order in which they are named.

    Args:
        producer, batch_id: which batch.
        stage_ids: its stages.
        find: returns the stage of an id.

    Raises:
        FailedPreconditionError: one does not exist, belongs to another batch, or is not finished.
    """
    found: list[StoredStage] = []
    wrong: list[str] = []
    for number in stage_ids:
        stage = find(number)
        if stage is None:
            wrong.append(f"stage {number:016x} does not exist (it was dropped, or has expired)")
        elif (stage.head.producer, stage.head.batch_id) != (producer, batch_id):
            wrong.append(f"{stage} belongs to another batch")
        elif stage.state != StageState.STAGED:
            wrong.append(f"{stage} is not finished")
        else:
            found.append(stage)
    if wrong:
        why = "; ".join(wrong[:_MOST_NAMES])
        if len(wrong) > _MOST_NAMES:
            why += f", and {len(wrong) - _MOST_NAMES} more"
        raise FailedPreconditionError(
            f"batch {batch_id} of producer {producer!r} cannot be committed: {why}; nothing was committed: stage"
            " the batch again"
        )
    return found


def stages_by_topic(stages: Iterable[StoredStage]) -> dict[tuple[str, TopicId], list[StoredStage]]:
    """Return the stages that have records by the name and id of their topic."""
    found: dict[tuple[str, TopicId], list[StoredStage]] = {}
    for stage in stages:
        if stage.end.records:
            found.setdefault((stage.head.topic, stage.head.topic_id), []).append(stage)
    return found


def claim(stages: Iterable[StoredStage], producer: str, record: ProducerRecord | None) -> None:
    """Mark the stages of a decided batch, and release those that were marked for one that was not decided."""
    decided = {number for share in record.shares for number in share.stage_ids} if record is not None else set()
    for stage in stages:
        if stage.head.producer == producer and stage.state != StageState.OPEN:
            claimed = stage.head.stage_id in decided
            stage.state = StageState.COMMITTING if claimed else StageState.STAGED


def losers(stages: Iterable[StoredStage], producer: str, record: ProducerRecord) -> list[StoredStage]:
    """Return the stages that no later commit can name: of decided batches, except those being appended."""
    return [
        stage
        for stage in stages
        if stage.head.producer == producer
        and stage.head.batch_id <= record.last_batch
        and stage.state != StageState.COMMITTING
    ]


def aborted(stages: Iterable[StoredStage], request: AbortStages) -> list[StoredStage]:
    """Return the stages that an abort drops: those of the batch that it names, or all, except those being appended."""
    return [
        stage
        for stage in stages
        if (stage.head.producer, stage.head.batch_id) == (request.producer, request.batch_id)
        and (not request.stage_ids or stage.head.stage_id in request.stage_ids)
        and (not request.write_id or stage.head.write_id == request.write_id)
        and stage.state != StageState.COMMITTING
    ]


def topics_of(
    stages: Iterable[StoredStage],
    record: ProducerRecord | None,
    producer: str,
    stage_ids: Iterable[int],
    write_id: str,
) -> set[str]:
    """Return the topics of some stages, of all others of their producer or write, and of its last commit.

    Args:
        stages: all stages of a broker.
        record: the last decision about the producer; None: there is none.
        producer: its name.
        stage_ids: which stages.
        write_id: which write; empty: none.
    """
    numbers = frozenset(stage_ids)
    found = {
        stage.head.topic
        for stage in stages
        if stage.head.stage_id in numbers
        or stage.head.producer == producer
        or (write_id and stage.head.write_id == write_id)
    }
    if record is not None:
        found.update(record.offsets)
        found.update(share.topic for share in record.shares)
    return found


def continued(share: Share, session: ProducerSession | None) -> Share:
    """Return a share that begins at its producer's present sequence, if that is lower than the decided one."""
    if session is None or session.next_sequence >= share.base_sequence:
        return share
    return msgspec.structs.replace(share, producer_id=session.producer_id, base_sequence=session.next_sequence)


def addressed(header: BatchHeader, session: ProducerSession, sequence: int) -> BatchHeader:
    """Return the header of a staged part with the sender filled in. Its records stay unopened."""
    return header._replace(producer_id=session.producer_id, producer_epoch=session.epoch, base_sequence=sequence)


def inherited(producer: str, own: int | None, left: Mapping[str, ProducerRecord]) -> ProducerRecord | None:
    """Return what counts of the decisions that brokers have left that are gone; None: the home knows better.

    A commit that was decided and not reported as complete cannot be finished: its stages were on the disk of the broker
    that is gone. How much of it is in its topics is unknown, so neither can it count as committed nor be committed
    again. It is refused until an operator has looked: a job that goes on under another name says so by that.

    Args:
        producer: whose decisions.
        own: last batch of the producer in the ledger of its home; None: there is none.
        left: records of the producer by the names of the brokers.

    Raises:
        DataLossError: the last batch was not complete.
    """
    if not left:
        return None
    broker = max(left, key=lambda name: left[name].last_batch)
    record = left[broker]
    if own is not None and own >= record.last_batch:
        return None
    if record.committing:
        batch = record.last_batch
        places = ", ".join(f"{share.topic} from offset {share.start_offset} on" for share in record.shares)
        raise DataLossError(
            f"batch {batch} of producer {producer!r} was being committed by broker {broker}, which was forgotten: a"
            f" part of it may be missing ({places}). Look which of its messages are there, then go on under another"
            f" name of the producer: with batch {batch} if none are, with the next one if all are"
        )
    return record


class _Every(Container[ProducerId]):
    """All producers."""

    def __contains__(self, _: object) -> bool:
        return True


def held_producers(
    own: Collection[ProducerId], others: Collection[ProducerId], age_s: float, expiry_s: float
) -> Container[ProducerId]:
    """Return the producers that topics must not forget: a decision has recorded sequences of theirs.

    Another broker may have decided a commit, appended it here, and died. So nothing is forgotten unless the decisions
    of others were looked at after the last use of what has been idle for so long.

    Args:
        own: those of this broker's decisions.
        others: those of other brokers' decisions, when they were looked at.
        age_s: how long ago that was.
        expiry_s: topics forget a producer that was idle for longer.
    """
    return {*own, *others} if age_s < expiry_s else _Every()
