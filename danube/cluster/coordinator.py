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
5. The order to move a topic is withdrawn if it cannot be carried out any more, or is not wanted any more.
6. Topics of a drained broker are ordered to move, spread over the active brokers by load; partitions of a topic over
   racks and brokers first.
7. Topics are ordered to move that a plan for an even load names (:mod:`danube.cluster.balance`).
8. A storage object that was entered as garbage is deleted after a time in which readers of an old catalogue end.

An order (:class:`~danube.cluster.records.MoveRecord`) is carried out by the owner of the topic. Whether it can be, only
the owner knows: it withdraws what it cannot carry out, and the topic is ordered again after a pause.

The topics of durability ``remote`` of a dead broker go to others with their wals, after (2):
:mod:`danube.cluster.failover`. Those with durability ``os`` and ``disk`` wait for their owner: see :func:`waiting`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danube.cluster.placement import Candidate, Placement
from danube.cluster.records import (
    Assignment,
    BrokerState,
    CreatingRecord,
    MoveReason,
    MoveRecord,
    Reason,
    Wal,
    WalRecord,
    beginner_of,
    broker_name,
    wal_of,
)
from danube.model import Durability
from danube.model.errors import FailedPreconditionError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.cluster.balance import Move

__all__ = [
    "GARBAGE_AGE_S",
    "MOST_ACTIONS",
    "MOST_BALANCE_MOVES",
    "MOST_DRAIN_MOVES",
    "Action",
    "AssignTopic",
    "AssignedTopic",
    "DeleteAssignment",
    "DeleteObject",
    "Departing",
    "FollowWal",
    "Garbage",
    "GiveUpCreation",
    "OrderMove",
    "OrderedMove",
    "Picture",
    "PicturedTopic",
    "RemoteTopic",
    "TakeWal",
    "Wals",
    "WithdrawMove",
    "decide",
    "waiting",
]

MOST_ACTIONS: Final = 1_000
"""Most actions of one call; the rest follows on the next picture."""
GARBAGE_AGE_S: Final = 60.0
"""How long an object is kept after it was entered as garbage: readers that began before have ended by then."""
MOST_DRAIN_MOVES: Final = 64
"""Most topics of one drained broker that are ordered to move at a time."""
MOST_BALANCE_MOVES: Final = 4
"""Most topics that are ordered to move at a time so that the load becomes even."""


class PicturedTopic(NamedTuple):
    """A topic or partition that exists."""

    name: str
    durability: Durability
    revision: int
    """Of the topic's record, which all partitions share."""
    partitions: Mapping[BrokerId, int] = {}
    """How many partitions of the same topic each broker has."""


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


class OrderedMove(NamedTuple):
    """The order to move a topic, and what it depends on."""

    record: MoveRecord
    revision: int
    assignment: AssignedTopic | None
    """None: the topic has none."""
    exists: bool = True
    """False: the topic was deleted."""
    settled: bool = True
    """False: it was seen a moment ago, so what else it depends on may not have arrived here yet."""


class Departing(NamedTuple):
    """A topic of a drained broker that has to move, and whose move may be ordered now."""

    topic_id: TopicId
    topic: str
    owner: BrokerId
    storage: str | None = None
    """Of its history; None: it stores nothing."""
    partitions: Mapping[BrokerId, int] = {}
    """How many partitions of the same topic each broker has, or will have once those have moved that are ordered to."""


class RemoteTopic(NamedTuple):
    """A topic or partition of durability ``remote`` whose owner may have to change.

    Also one that was deleted, as long as its wal has not noted that: the owner of the wal is the one to do so.
    """

    name: str
    """Empty if it was deleted."""
    record: str
    """The key of its record, or of the note of its deletion."""
    record_revision: int
    wal: Wal
    assignment: Assignment
    revision: int
    """Of the assignment."""
    partitions: Mapping[BrokerId, int] = {}
    """How many partitions of the same topic each broker has or is about to get. Empty for a plain topic."""


class Wals(msgspec.Struct, frozen=True, kw_only=True):
    """What the decisions about wals depend on, beside sessions and candidates."""

    topics: Mapping[TopicId, RemoteTopic] = {}
    """Those whose wal belongs to a broker without a session, or to another one than they do."""
    rows: Mapping[Wal, tuple[WalRecord, int]] = {}
    """With their revisions. A wal without a row belongs to the broker that has begun it."""
    overdue: Collection[BrokerId] = frozenset()
    """Brokers without a session whose grace is over."""
    shared: Mapping[BrokerId, Collection[str]] = {}
    """The storages of each broker that others reach, too."""

    def owner(self, wal: Wal) -> BrokerId:
        """Return the owner of a wal."""
        row = self.rows.get(wal)
        return row[0].owner if row is not None else beginner_of(wal.name)

    def heir(self, storage: str, assignment: Assignment | None) -> BrokerId | None:
        """Return the broker to which a topic is about to follow its wal; None: it has followed, or has no owner."""
        if assignment is None:
            return None
        owner = self.owner(Wal(storage, wal_of(assignment)))
        return owner if owner != assignment.owner else None


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
    moves: Mapping[TopicId, OrderedMove] = {}
    """All orders to move a topic."""
    departing: tuple[Departing, ...] = ()
    """Some topics of drained brokers that run, without those that were ordered a moment ago."""
    plan: tuple[Move, ...] = ()
    """What is left of the plan for an even load."""
    wals: Wals = Wals()
    """The wals of durability ``remote`` whose owner has died, with their topics."""
    racks: Mapping[BrokerId, str] = {}
    """Of all brokers that have one, whether they run or not."""


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


class TakeWal(msgspec.Struct, frozen=True, kw_only=True):
    """Give a wal to another broker. Conditional on its row, the former owner's absence, and the new one's session."""

    wal: Wal
    record: WalRecord
    revision: int
    """Of the row that it replaces; 0: there is none."""
    session: int
    """Of the new owner."""
    topics: int
    """How many topics are in it."""


class FollowWal(msgspec.Struct, frozen=True, kw_only=True):
    """Assign a topic to the owner of its wal. Conditional on all revisions."""

    topic_id: TopicId
    record: str
    """See :class:`RemoteTopic`."""
    record_revision: int
    assignment: Assignment
    revision: int
    """Of the assignment that it replaces."""
    wal: Wal
    wal_revision: int


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


class WithdrawMove(msgspec.Struct, frozen=True):
    """Delete the order to move a topic. Conditional on its revision."""

    topic_id: TopicId
    revision: int
    why: str


class OrderMove(msgspec.Struct, frozen=True):
    """Order the move of a topic.

    Conditional on its assignment, on the sessions of its owner and of the target, on the target's record, and on the
    absence of another order.
    """

    topic_id: TopicId
    topic: str
    source: BrokerId
    target: BrokerId
    reason: MoveReason


Action = AssignTopic | TakeWal | FollowWal | GiveUpCreation | DeleteAssignment | DeleteObject | WithdrawMove | OrderMove


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
    if picture.wals.topics:
        from danube.cluster.failover import decide_failover  # a broker that is alone needs none of this

        yield from decide_failover(picture.wals, picture.sessions, picture.candidates)
    yield from _give_up(picture)
    yield from _delete_assignments(picture)
    yield from _withdraw(picture)
    yield from _drain(picture)
    yield from _balance(picture)
    for object_ in picture.garbage:
        if now - object_.entered_s >= GARBAGE_AGE_S:
            yield DeleteObject(object_.storage, object_.object, object_.revision)


def _assign(picture: Picture) -> Iterator[Action]:
    placement = Placement(_running(picture), picture.racks)
    spreads: dict[str, Counter[BrokerId]] = {}
    for topic_id, topic in picture.topics.items():
        if topic.durability is not Durability.NONE:
            continue
        assigned = picture.assignments.get(topic_id)
        if assigned is not None and assigned.assignment.owner in picture.sessions:
            continue
        # What brokers have that do not run goes to others in the same way.
        present = {broker: count for broker, count in topic.partitions.items() if broker in picture.sessions}
        spread = _spread(spreads, topic.name, present)
        try:
            owner = placement.place(partitions=spread)
        except FailedPreconditionError:
            return  # No broker may take topics, so these wait; they are named by `waiting`.
        spread[owner] += 1
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


def _spread(spreads: dict[str, Counter[BrokerId]], name: str, partitions: Mapping[BrokerId, int]) -> Counter[BrokerId]:
    """Return what counts the partitions of one topic while they are placed; at first, those that others have."""
    split = split_partition(name)
    return spreads.setdefault(split[0], Counter(partitions)) if split is not None else Counter()


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


def _withdraw(picture: Picture) -> Iterator[WithdrawMove]:
    for topic_id, move in picture.moves.items():
        why = _stale(picture, move)
        if why is not None:
            yield WithdrawMove(topic_id, move.revision, why)


def _stale(picture: Picture, move: OrderedMove) -> str | None:
    """Say why an order is to be withdrawn; None: it stands."""
    record, target = move.record, broker_name(move.record.target)
    if not move.settled:
        return None
    if not move.exists:
        return "the topic was deleted"
    if move.assignment is None or move.assignment.revision != record.assignment:
        return "the topic has another owner"
    if picture.sessions.get(record.target) != record.target_session:
        return f"broker {target} has ended or was restarted"
    if _state(picture, record.target) is not BrokerState.ACTIVE:
        return f"broker {target} is {_state(picture, record.target)}"
    owner = move.assignment.assignment.owner
    if record.reason is MoveReason.DRAIN and _state(picture, owner) is BrokerState.ACTIVE:
        return f"broker {broker_name(owner)} was activated"
    return None


def _state(picture: Picture, broker: BrokerId) -> BrokerState:
    return picture.candidates[broker].state if broker in picture.candidates else BrokerState.ACTIVE


def _in_flight(picture: Picture, reason: MoveReason) -> Counter[BrokerId]:
    """Count the orders that stand, by the owners of their topics."""
    return Counter(
        move.assignment.assignment.owner
        for move in picture.moves.values()
        if move.record.reason is reason and move.assignment is not None
    )


def _drain(picture: Picture) -> Iterator[OrderMove]:
    in_flight = _in_flight(picture, MoveReason.DRAIN)
    placement = Placement(_running(picture), picture.racks)
    spreads: dict[str, Counter[BrokerId]] = {}
    for topic in picture.departing:
        if topic.topic_id in picture.moves or in_flight[topic.owner] >= MOST_DRAIN_MOVES:
            continue
        spread = _spread(spreads, topic.topic, topic.partitions)
        try:
            target = placement.place(topic.storage, partitions=spread)
        except FailedPreconditionError:
            continue  # It waits for a broker that can take it.
        spread[target] += 1
        in_flight[topic.owner] += 1
        yield OrderMove(topic.topic_id, topic.topic, topic.owner, target, MoveReason.DRAIN)


def _balance(picture: Picture) -> Iterator[OrderMove]:
    # Orders of a broker that does not run wait for it, and keep no other broker from getting even.
    orders = _in_flight(picture, MoveReason.BALANCE)
    in_flight = sum(count for owner, count in orders.items() if owner in picture.sessions)
    for move in picture.plan:
        if in_flight >= MOST_BALANCE_MOVES:
            return
        able = move.target in picture.sessions and _state(picture, move.target) is BrokerState.ACTIVE
        if able and move.source in picture.sessions and move.topic_id not in picture.moves:
            in_flight += 1
            yield OrderMove(move.topic_id, move.topic, move.source, move.target, MoveReason.BALANCE)


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
