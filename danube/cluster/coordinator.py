"""What the coordinator has to do, given everything that the metadata say. Pure and level-triggered.

:func:`decide` looks at the whole state each time, never at a change of it: a coordinator that missed an event, or has
just been elected, comes to the same actions. Each action is conditional on revisions of what it was decided on, and on
the term of the coordinator; one that is refused is decided again, or not, on the next picture. No action is needed for
a message to flow: without a coordinator the cluster goes on, and repairs wait.

What it decides, in this order, at most ``most`` actions a call:

1. A topic without durability whose owner has no session gets another owner at once: nothing was promised that is lost.
2. A topic without durability that has no assignment gets one.
3. The creation of a topic whose creator has died is given up: first its key is deleted, which no later transaction of
   the creator survives, then (4) its assignments are.
4. An assignment of a topic that neither exists nor is being created is deleted. It remains after (3), or if the owner
   of a deleted topic will not return; an owner that may return deletes it itself, once its journal notes the deletion.
   What a broker has found in a bucket is left to that broker: it assigns it before it writes the record.
5. A storage object that was entered as garbage is deleted after a time in which readers of an old catalogue end.

Topics with durability ``os``, ``disk`` and ``remote`` wait for their owner: see :func:`waiting`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from danube.cluster.placement import Candidate, Placement
from danube.cluster.records import Assignment, CreatingRecord, Reason
from danube.model import Durability
from danube.model.errors import FailedPreconditionError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

__all__ = [
    "GARBAGE_AGE_S",
    "MOST_ACTIONS",
    "Action",
    "AssignTopic",
    "AssignedTopic",
    "DeleteAssignment",
    "DeleteObject",
    "Garbage",
    "GiveUpCreation",
    "Picture",
    "PicturedTopic",
    "decide",
    "waiting",
]

MOST_ACTIONS: Final = 1_000
"""Most actions of one call; the rest follows on the next picture."""
GARBAGE_AGE_S: Final = 60.0
"""How long an object is kept after it was entered as garbage: readers that began before have ended by then."""


class PicturedTopic(NamedTuple):
    """A topic or partition that exists."""

    name: str
    durability: Durability
    revision: int
    """Of the topic's record, which all partitions share."""


class AssignedTopic(NamedTuple):
    """An assignment and its revision."""

    assignment: Assignment
    revision: int


class Garbage(NamedTuple):
    """An object of a storage that nothing refers to."""

    storage: str
    object: str
    entered_s: float
    """When it was entered, by the clock of the broker that did."""
    revision: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decisions depend on, at one revision of the metadata."""

    topics: Mapping[TopicId, PicturedTopic]
    assignments: Mapping[TopicId, AssignedTopic]
    sessions: Mapping[BrokerId, int]
    """Running brokers, and the revision of the session of each."""
    candidates: Mapping[BrokerId, Candidate]
    """The load of each running broker; one whose load is unknown counts as idle."""
    creating: Mapping[str, tuple[CreatingRecord, int]] = {}
    """Topics that are being created, by name, each with the revision of its key."""
    burying: Collection[TopicId] = frozenset()
    """Deleted topics whose owners have to remove what they have of them first."""
    garbage: tuple[Garbage, ...] = ()
    epoch_base: int = 0


class AssignTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Give a topic to a broker. Conditional on all revisions, and on the former owner's absence."""

    topic_id: TopicId
    topic: str
    record_revision: int
    """Of the topic's record: a topic that was deleted meanwhile gets no owner."""
    assignment: Assignment
    revision: int
    """Of the assignment that it replaces; 0: there is none."""
    session: int
    """Of the new owner."""
    former: BrokerId | None
    """Must have no session."""


class GiveUpCreation(msgspec.Struct, frozen=True):
    """Delete the key of a creation whose creator has died. Conditional on its revision."""

    topic: str
    revision: int


class DeleteAssignment(msgspec.Struct, frozen=True):
    """Delete the assignment of a topic that does not exist. Conditional on its revision."""

    topic_id: TopicId
    revision: int


class DeleteObject(msgspec.Struct, frozen=True):
    """Delete an object of a storage, then its garbage key, conditional on the key's revision."""

    storage: str
    object: str
    revision: int


Action = AssignTopic | GiveUpCreation | DeleteAssignment | DeleteObject


def decide(picture: Picture, now: float, most: int = MOST_ACTIONS) -> list[Action]:
    """Return what is to be done, the most urgent first.

    Args:
        picture: the metadata.
        now: seconds of the clock of ``Garbage.entered_s``. If clocks differ, objects are deleted earlier or later.
        most: bound of the work of one call.
    """
    return list(islice(_decide(picture, now), most))


def _decide(picture: Picture, now: float) -> Iterator[Action]:
    yield from _assign(picture)
    yield from _give_up(picture)
    yield from _delete_assignments(picture)
    for object_ in picture.garbage:
        if now - object_.entered_s >= GARBAGE_AGE_S:
            yield DeleteObject(object_.storage, object_.object, object_.revision)


def _assign(picture: Picture) -> Iterator[Action]:
    placement = Placement(_running(picture))
    for topic_id, topic in picture.topics.items():
        if topic.durability is not Durability.NONE:
            continue
        assigned = picture.assignments.get(topic_id)
        if assigned is not None and assigned.assignment.owner in picture.sessions:
            continue
        try:
            owner = placement.place()
        except FailedPreconditionError:
            return  # No broker may take topics, so these wait; they are named by `waiting`.
        if assigned is None:
            epoch, revision, former = OwnerEpoch(picture.epoch_base + 1), 0, None
            reason = Reason.CREATED
        else:
            epoch, revision = OwnerEpoch(assigned.assignment.epoch + 1), assigned.revision
            former, reason = assigned.assignment.owner, Reason.FAILOVER
        yield AssignTopic(
            topic_id=topic_id,
            topic=topic.name,
            record_revision=topic.revision,
            assignment=Assignment(owner, epoch, reason),
            revision=revision,
            session=picture.sessions[owner],
            former=former,
        )


def _running(picture: Picture) -> list[Candidate]:
    return [picture.candidates.get(broker, Candidate(broker=broker)) for broker in sorted(picture.sessions)]


def _give_up(picture: Picture) -> Iterator[Action]:
    for topic, (record, revision) in picture.creating.items():
        if picture.sessions.get(record.creator) != record.session:
            yield GiveUpCreation(topic, revision)


def _delete_assignments(picture: Picture) -> Iterator[Action]:
    creating = {topic_id for record, _ in picture.creating.values() for topic_id in record.topic_ids}
    for topic_id, assigned in picture.assignments.items():
        if assigned.assignment.reason is Reason.FOUND:
            continue  # Its owner is restoring it: the record comes last.
        if topic_id not in picture.topics and topic_id not in creating and topic_id not in picture.burying:
            yield DeleteAssignment(topic_id, assigned.revision)


def waiting(picture: Picture) -> dict[BrokerId | None, list[TopicId]]:
    """Return the topics that are not served and that no action helps, by the broker for which they wait.

    None: for any broker that may take topics, or for the one that has their data but has not said so.
    """
    found: dict[BrokerId | None, list[TopicId]] = {}
    takes = any(each.refusal(None) is None for each in _running(picture))
    for topic_id, topic in picture.topics.items():
        assigned = picture.assignments.get(topic_id)
        owner = assigned.assignment.owner if assigned is not None else None
        if owner in picture.sessions:
            continue
        if topic.durability is not Durability.NONE:
            found.setdefault(owner, []).append(topic_id)
        elif not takes:
            found.setdefault(None, []).append(topic_id)
    return found
