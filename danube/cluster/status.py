"""The status of the cluster, composed from the tables and from what brokers told about themselves. Pure.

A :class:`View` is what one broker has in its tables. It says who has a session and who owns what, and may be a moment
old. :class:`Answer` is what another broker told when it was asked. What the tables say of a broker that does not
answer is shown all the same, with the reason: a cluster is looked at most when something in it does not work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from danube.cluster.absences import Absences
from danube.cluster.features import outlook
from danube.cluster.gaps import GapRecord, lost_with, shown_gap, spoken_gap, spoken_since
from danube.cluster.group_memory import MemberRecord
from danube.cluster.records import (
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    MoveRecord,
    SessionRecord,
    broker_name,
    parse_broker,
    parse_topic_id,
    topic_key,
)
from danube.model import Durability
from danube.model.cluster_api import (
    ANY_BROKER,
    MOST_MOVES,
    MOST_WAITING_NAMES,
    UNKNOWN,
    BrokerFigures,
    BrokerRow,
    ClusterStatus,
    LostOffsets,
    MetadataMember,
    MetadataStanding,
    MetadataStatus,
    MoveRow,
    WaitingTopics,
)
from danube.model.ids import BrokerId, TopicId
from danube.model.spoken import spoken_count, spoken_duration

__all__ = [
    "CLOCK_TOLERANCE_S",
    "Answer",
    "KnownTopic",
    "View",
    "compose_status",
    "may_take_topics",
    "moves_on",
    "shown_gaps",
    "shown_moves",
    "unserved",
]

CLOCK_TOLERANCE_S: Final = 1.0
"""Clocks that differ by more are reported: publish times and delays are theirs."""


class KnownTopic(NamedTuple):
    """A topic or partition of the catalogue."""

    name: str
    durability: Durability
    storage: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker told when it was asked, or why it did not."""

    figures: BrokerFigures | None = None
    problem: str = ""
    rtt_s: float = UNKNOWN
    clock_offset_s: float = 0.0


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of the cluster, as one broker has them. Rows are by their names in the metadata."""

    me: BrokerId
    cluster: ClusterRecord
    brokers: Mapping[str, BrokerRecord]
    sessions: Mapping[str, SessionRecord]
    session_revisions: Mapping[str, int]
    assignments: Mapping[str, Assignment]
    coordinator: BrokerId | None
    absences: Absences
    now: float
    """Of the clock of ``absences``."""
    members: Mapping[str, MemberRecord] = {}
    """Members of the group that keeps the metadata, if brokers keep them."""
    moves: Mapping[str, MoveRecord] = {}
    gaps: Mapping[TopicId, Sequence[GapRecord]] = {}
    """Declared gaps in the offsets of topics and partitions."""
    wall_clock_s: float = 0.0
    """Seconds since 1970, by the clock of the broker whose view this is."""
    has_leader: bool = True
    """False: the metadata have no leader as far as this broker knows, so no session can begin or end."""

    def has_session(self, broker: BrokerId) -> bool:
        """Whether a broker has a session, as far as this one knows."""
        return broker_name(broker) in self.sessions

    def broker_with(self, identity: str) -> BrokerId | None:
        """Return the broker whose data directory has an identity."""
        return next((parse_broker(name) for name, each in self.brokers.items() if each.identity == identity), None)

    def address_of(self, broker: BrokerId) -> str:
        """Return where a broker is, or was when it last had a session, as far as this one knows; empty if it does not.

        After a restart of this broker, the record of the other one's member of the group says it.
        """
        name = broker_name(broker)
        shown = self.sessions.get(name) or self.absences.last_session(name)
        if shown is not None:
            return shown.address
        member = self._member_of(broker)
        return "" if member is None else member.address

    def successor(self, broker: BrokerId) -> BrokerId | None:
        """Return the broker that runs at the address of one that is away, from another data directory; None: none."""
        address = "" if self.has_session(broker) else self.address_of(broker)
        if not address:
            return None
        names = [name for name, session in self.sessions.items() if session.address == address]
        return parse_broker(names[0]) if names else None

    def lacks_member(self, broker: BrokerId) -> bool:
        """Whether the data directory of a broker has no place among the members that keep the metadata any more.

        That is so after a recovery or a restore, and if another broker has joined at its address. It joins again.
        """
        return bool(self.members) and broker_name(broker) in self.brokers and self._member_of(broker) is None

    def _member_of(self, broker: BrokerId) -> MemberRecord | None:
        record = self.brokers.get(broker_name(broker))
        if record is None:
            return None
        return next((each for each in self.members.values() if each.identity == record.identity), None)

    def state_of(self, broker: BrokerId) -> BrokerState | None:
        """Return the recorded state of a broker; None: it was forgotten, or has not arrived here."""
        record = self.brokers.get(broker_name(broker))
        return None if record is None else record.state


def may_take_topics(view: View) -> bool:
    """Whether a broker runs that gets topics."""
    return any(record.state is BrokerState.ACTIVE and name in view.sessions for name, record in view.brokers.items())


def moves_on(view: View, topic: KnownTopic, owner: BrokerId) -> bool:
    """Whether a topic whose owner has no session gets another one."""
    if topic.durability is Durability.NONE:
        return may_take_topics(view)
    former = view.brokers.get(broker_name(owner))
    if topic.durability is not Durability.REMOTE or former is None or topic.storage not in former.shared:
        return False
    return any(
        record.state is BrokerState.ACTIVE and name in view.sessions and topic.storage in record.shared
        for name, record in view.brokers.items()
    )


def unserved(view: View) -> list[TopicId]:
    """Return the topics whose owner has no session."""
    away = {
        owner for owner in {assignment.owner for assignment in view.assignments.values()} if not view.has_session(owner)
    }
    if not away:
        return []
    return [parse_topic_id(name) for name, each in view.assignments.items() if each.owner in away]


def shown_moves(view: View) -> list[TopicId]:
    """Return the topics that are ordered to move, as many as a status lists."""
    return [parse_topic_id(name) for name, _ in islice(view.moves.items(), MOST_MOVES)]


def shown_gaps(view: View) -> list[TopicId]:
    """Return the topics whose gaps a status lists."""
    return [topic_id for found in lost_with(view.gaps).values() for topic_id, _ in found[:MOST_WAITING_NAMES]]


def compose_status(
    view: View, answers: Mapping[BrokerId, Answer], known: Mapping[TopicId, tuple[KnownTopic, Assignment]]
) -> ClusterStatus:
    """Compose the status.

    Args:
        view: of the broker that answers.
        answers: of the brokers that were asked; its own, too.
        known: the :func:`unserved` topics, the :func:`shown_moves` and the :func:`shown_gaps`, as far as the catalogue
            knows them.
    """
    waiting = [(topic, each) for topic, each in known.values() if not view.has_session(each.owner)]
    counts = Counter(assignment.owner for assignment in view.assignments.values())
    numbers = sorted({parse_broker(name) for name in (*view.brokers, *view.sessions)})
    status = ClusterStatus(
        cluster=view.cluster.name,
        incarnation=f"{view.cluster.incarnation:016x}",
        feature_level=view.cluster.feature_level,
        broker=view.me,
        brokers=[_row(view, broker, counts[broker], answers.get(broker)) for broker in numbers],
        metadata=_metadata(view, answers),
        coordinator=view.coordinator or ANY_BROKER,
        topics=len(view.assignments),
        waiting=_waiting(view, waiting),
        moving=len(view.moves),
        moves=list(_moves(view, known)),
        lost=list(_lost(view, known)),
    )
    leaving, arriving = Counter[int](), Counter[int]()
    for name, move in view.moves.items():
        arriving[move.target] += 1
        if name in view.assignments:
            leaving[view.assignments[name].owner] += 1
    for row in status.brokers:
        row.leaving, row.arriving = leaving[row.broker], arriving[row.broker]
    status.warnings = [*_warnings(status), *_lost_warnings(view, status), *_level_warnings(view)]
    return status


def _moves(view: View, known: Mapping[TopicId, tuple[KnownTopic, Assignment]]) -> Iterator[MoveRow]:
    for topic_id in shown_moves(view):
        move, assignment = view.moves[topic_key(topic_id)], view.assignments.get(topic_key(topic_id))
        topic = known.get(topic_id)
        yield MoveRow(
            topic=topic[0].name if topic is not None else topic_key(topic_id),
            topic_id=topic_id,
            source=assignment.owner if assignment is not None else ANY_BROKER,
            target=move.target,
            reason=move.reason.value,
            by=move.by,
            age_s=max(0.0, view.wall_clock_s - move.ordered_s),
        )


def _lost(view: View, known: Mapping[TopicId, tuple[KnownTopic, Assignment]]) -> Iterator[LostOffsets]:
    for broker, found in sorted(lost_with(view.gaps).items()):
        shown = [(known[each][0].name, gap) for each, gap in found[:MOST_WAITING_NAMES] if each in known]
        yield LostOffsets(
            broker=broker,
            topics=len({topic_id for topic_id, _ in found}),
            gaps=[shown_gap(name, gap) for name, gap in shown],
        )


def _row(view: View, broker: BrokerId, topics: int, answer: Answer | None) -> BrokerRow:
    name = broker_name(broker)
    record = view.brokers.get(name)
    session = view.sessions.get(name)
    shown = session or view.absences.last_session(name)
    successor = view.successor(broker)
    row = BrokerRow(
        broker=broker,
        name=name,
        state=_state(record, session, answer),
        life=record.life if record is not None else 0,
        rack=record.rack if record is not None else "",
        storages=list(record.storages) if record is not None else [],
        session=view.session_revisions.get(name, 0),
        topics=topics,
        coordinator=view.coordinator == broker,
        address=view.address_of(broker),
        successor=successor or ANY_BROKER,
    )
    if record is not None:
        row.feature_level = record.feature_level
    if shown is not None:
        row.admin_address, row.http_address = shown.admin_address, shown.http_address
        row.version, row.feature_level = shown.version, shown.feature_level
    away_s = view.absences.away_s(name, view.now)
    if session is None and away_s is not None:
        row.away_s = away_s
    if answer is not None:
        row.figures, row.problem = answer.figures, answer.problem
        row.rtt_s, row.clock_offset_s = answer.rtt_s, answer.clock_offset_s
    return row


def _state(record: BrokerRecord | None, session: SessionRecord | None, answer: Answer | None) -> str:
    state = record.state if record is not None else BrokerState.GONE
    if state is BrokerState.GONE:
        return state.value
    if session is None:
        return "away"
    if answer is not None and answer.figures is None:
        return "silent"
    if answer is not None and answer.figures is not None and answer.figures.draining:
        return "stopping"
    return state.value


# --- Metadata ---


def _metadata(view: View, answers: Mapping[BrokerId, Answer]) -> MetadataStatus:
    own = answers.get(view.me)
    if own is None or own.figures is None:
        return MetadataStatus()
    standing = own.figures.metadata
    if not standing.member:
        return MetadataStatus(engine=standing.engine, kept_by=standing.kept_by)
    told = {
        BrokerId(answer.figures.broker): answer.figures.metadata
        for answer in answers.values()
        if answer.figures is not None and answer.figures.metadata.member
    }
    newest = max(told.values(), key=_newness)
    committed = max(each.committed for each in told.values())
    by_member = {each.member: (broker, each) for broker, each in told.items()}
    members = [
        _member(view, member, newest, by_member.get(member), committed)
        for member in dict.fromkeys((*newest.voters, *newest.leaving, *newest.learners))
    ]
    return MetadataStatus(
        engine=newest.engine,
        leader=newest.leader,
        term=newest.term,
        committed=committed,
        members=sorted(members, key=lambda each: (each.broker == ANY_BROKER, each.broker, each.member)),
    )


def _newness(standing: MetadataStanding) -> tuple[int, bool, bool, int]:
    """Order what members tell: a later term first, then the leader itself, one that knows it, the longest log."""
    return standing.term, standing.leader == standing.member, standing.leader != 0, standing.committed


def _member(
    view: View,
    member: int,
    newest: MetadataStanding,
    told: tuple[BrokerId, MetadataStanding] | None,
    committed: int,
) -> MetadataMember:
    if member == newest.leader:
        role = "leader"
    elif member in newest.learners:
        role = "learner"
    else:
        role = "voter" if member in newest.voters else "leaving"
    if told is None:
        record = view.members.get(str(member))
        if record is None:
            return MetadataMember(member=member, role=role)
        known = view.broker_with(record.identity)
        return MetadataMember(member=member, role=role, broker=known or ANY_BROKER, address=record.address)
    broker, standing = told
    session = view.sessions.get(broker_name(broker))
    return MetadataMember(
        member=member,
        role=role,
        broker=broker,
        address=session.address if session is not None else "",
        applied=standing.applied,
        behind=max(0, committed - standing.applied),
    )


# --- Topics ---


def _waiting(view: View, topics: Iterable[tuple[KnownTopic, Assignment]]) -> list[WaitingTopics]:
    """Group topics by the broker for which they wait; those that the coordinator is about to move do not wait."""
    found: dict[tuple[int, Durability], WaitingTopics] = {}
    for topic, assignment in topics:
        if moves_on(view, topic, assignment.owner):
            continue
        broker: int = assignment.owner if topic.durability is not Durability.NONE else ANY_BROKER
        group = found.setdefault(
            (broker, topic.durability), WaitingTopics(broker=broker, durability=topic.durability, count=0)
        )
        group.count += 1
        if len(group.topics) < MOST_WAITING_NAMES:
            group.topics.append(topic.name)
    return [found[key] for key in sorted(found)]


# --- Warnings ---


def _warnings(status: ClusterStatus) -> Iterator[str]:
    rows = {row.broker: row for row in status.brokers}
    yield from _metadata_warnings(status)
    if not status.coordinator:
        yield "no broker coordinates the cluster: topics of dead brokers do not move until one does"
    for waiting in status.waiting:
        topics = f"{spoken_count(waiting.count, 'topic')} of durability {waiting.durability.value!r}"
        verb = "waits" if waiting.count == 1 else "wait"
        row = rows.get(waiting.broker)
        if row is None:
            yield f"{topics} {verb} for any broker that may take topics; start or activate one"
            continue
        away = f", away for {spoken_duration(row.away_s)}" if row.away_s >= 0 else ""
        if row.successor:
            away += f"; at its address runs {broker_name(BrokerId(row.successor))}, from another data directory"
        yield f"{topics} {verb} for broker {row.name}{away}; see: danube cluster explain {row.name}"
    for row in status.brokers:
        yield from _broker_warnings(status, row)


def _lost_warnings(view: View, status: ClusterStatus) -> Iterator[str]:
    for lost in status.lost:
        name = broker_name(BrokerId(lost.broker))
        found = [spoken_gap(gap) for gap in lost.gaps] + (["..."] if lost.topics > len(lost.gaps) else [])
        gone = f"declared gone {spoken_since(lost.gaps[0], view.wall_clock_s)}: " if lost.gaps else "declared gone: "
        yield (
            f"subscriptions of {spoken_count(lost.topics, 'topic')} wait for what was lost with broker {name},"
            f" {gone}{', '.join(found)}; see: danube cluster explain {name}"
        )


def _level_warnings(view: View) -> Iterator[str]:
    """Say why the cluster does not use everything that some of its brokers understand."""
    found = outlook(view.cluster.feature_level, view.brokers, view.sessions)
    if found.level >= found.newest:
        return
    if not found.older:
        yield (
            f"the feature level of the cluster is {found.level}, and all brokers know level {found.newest}: it rises by"
            " itself an hour after the last one was upgraded, or at once by: danube cluster upgrade"
        )
        return
    each = ", ".join(
        f"{older.broker} (level {older.level}{'' if older.is_running else ', away'})" for older in found.older
    )
    yield (
        f"the feature level of the cluster is {found.level}, and other brokers know level {found.newest}: {each}"
        f" {'holds' if len(found.older) == 1 else 'hold'} it back. Upgrade the version of Danube there"
    )


def _metadata_warnings(status: ClusterStatus) -> Iterator[str]:
    metadata = status.metadata
    voters = [each for each in metadata.members if each.role in ("leader", "voter")]
    if not voters:
        return
    silent = sum(each.behind < 0 for each in voters)
    spare = (len(voters) - 1) // 2 - silent
    if not metadata.leader or spare < 0:
        problem = "have no leader" if not metadata.leader else f"have lost {silent} of their voters"
        yield (
            f"the metadata {problem}: nothing can be created, moved or sealed, and no session ends, until"
            f" {len(voters) // 2 + 1} of {spoken_count(len(voters), 'voter')} run. Start the brokers that are away; if"
            " their disks are permanently lost, see: danube cluster recover --help"
        )
    elif silent:
        left = f"{spare} more may fail" if spare > 0 else "if another fails, nothing can be created, moved or sealed"
        yield f"{silent} of {spoken_count(len(voters), 'voter')} of the metadata not heard; {left}"
    if len(voters) == 1 and len(status.brokers) > 1:
        name = broker_name(BrokerId(voters[0].broker)) if voters[0].broker else "a broker that does not answer"
        yield f"only {name} votes on the metadata: while it is away, nothing can be created, moved or sealed"


def _broker_warnings(status: ClusterStatus, row: BrokerRow) -> Iterator[str]:
    if row.state == "silent":
        yield f"broker {row.name} has a session, but does not answer b{status.broker}: {row.problem}"
    figures = row.figures
    if figures is None:
        return
    if figures.topics < row.topics and row.state == BrokerState.ACTIVE:
        yield (
            f"broker {row.name} serves {figures.topics:,} of its {spoken_count(row.topics, 'topic')}; see: danube"
            f" cluster explain {row.name}"
        )
    if figures.sealing_failing_s:
        yield (
            f"sealing has been failing at {row.name} for {spoken_duration(figures.sealing_failing_s)}; see: danube"
            f" storage status --url danube://{row.address}"
        )
    if figures.stranded_topics:
        yield (
            f"the journal of {row.name} has messages of {spoken_count(figures.stranded_topics, 'topic')} that do not"
            f" exist; see: danube topics stranded --url danube://{row.address}"
        )
    if abs(row.clock_offset_s) - row.rtt_s / 2 > CLOCK_TOLERANCE_S:
        yield (
            f"the clock of {row.name} is {abs(row.clock_offset_s):.1f} s"
            f" {'ahead of' if row.clock_offset_s > 0 else 'behind'} that of b{status.broker}"
        )
