"""What is the matter with a broker or a topic, in sentences, and what to do about it. Pure.

:func:`place_of` says where one topic or partition is and whether it is served; :func:`explain_topic` and
:func:`explain_broker` make sentences of that. They name the broker that a topic waits for, and for how long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from danube.cluster.gaps import GapState, lost_with, shown_gap, spoken_gap, spoken_since
from danube.cluster.records import BrokerState, MoveReason, Reason, broker_name, topic_key
from danube.cluster.status import KnownTopic, View, moves_on
from danube.model import Durability
from danube.model.api import DeclaredGap
from danube.model.cluster_api import MOST_PLACES, BrokerRow, ClusterStatus, Explained, TopicPlace
from danube.model.ids import BrokerId, TopicId
from danube.model.spoken import spoken_count, spoken_duration

__all__ = ["explain_broker", "explain_topic", "place_of", "sorted_places"]

_URGENCY: Final = ("unassigned", "waiting", "unavailable", "unknown", "moving", "served")
"""States of a :class:`TopicPlace`, those that need attention first."""
_ENDLESS: Final = (
    "It may have ended: it still has a session only because none can end while the metadata have no leader."
)
_REASONS: Final = {
    Reason.CREATED: "it was created there",
    Reason.FAILOVER: "its former owner died",
    Reason.FOUND: "that broker had it before it became a member of the cluster",
    Reason.FORGOTTEN: "its former owner was declared gone",
    Reason.MOVED: "it was moved there",
}
_MOVE_REASONS: Final = {
    MoveReason.ASKED.value: "as an operator asked",
    MoveReason.DRAIN.value: "because its owner is drained",
    MoveReason.BALANCE.value: "because that broker has less load",
}


def place_of(view: View, topic_id: TopicId, topic: KnownTopic) -> TopicPlace:
    """Return the owner of a topic and its state, as far as the tables say: ``unknown`` if its owner has to be asked."""
    place = TopicPlace(topic=topic.name, durability=topic.durability, state="unassigned", topic_id=topic_id)
    assignment = view.assignments.get(topic_key(topic_id))
    if assignment is None:
        return place
    place.broker, place.epoch, place.reason = assignment.owner, assignment.epoch, assignment.reason.value
    place.address = view.address_of(assignment.owner)
    move = view.moves.get(topic_key(topic_id))
    if move is not None:
        place.target, place.move_reason = move.target, move.reason.value
    if view.has_session(assignment.owner):
        place.state = "unknown"
    elif moves_on(view, topic, assignment.owner):
        place.state = "moving"
    else:
        place.state = "waiting"
    return place


def sorted_places(places: Sequence[TopicPlace]) -> list[TopicPlace]:
    """Return places in the order in which they need attention."""
    return sorted(places, key=lambda place: (_URGENCY.index(place.state), place.topic))


# --- Topics ---


def explain_topic(view: View, subject: str, places: Sequence[TopicPlace]) -> Explained:
    """Explain a topic.

    Args:
        view: of the broker that answers.
        subject: the name that was asked for.
        places: the topic itself, or its partitions, in their order; the owners that run have been asked.
    """
    found = _explain_places(view, subject, places)
    gaps = [
        shown_gap(place.topic, gap)
        for place in places
        for gap in view.gaps.get(place.topic_id, ())
        if gap.state is not GapState.FILLED
    ]
    return _with_gaps(view, found, sorted(gaps, key=lambda gap: not gap.open), subject)


def _explain_places(view: View, subject: str, places: Sequence[TopicPlace]) -> Explained:
    if len(places) == 1:
        sentence, remedy = _explain_place(view, places[0])
        return Explained(
            subject=subject,
            state=places[0].state,
            sentence=_with_doubt(view, sentence),
            remedy=remedy,
            topics=list(places),
        )
    states = {place.state for place in places}
    bad = [place for place in places if place.state != "served"]
    if not bad:
        owners = {place.broker for place in places}
        sentence = f"All {len(places)} partitions are served, by {spoken_count(len(owners), 'broker')}."
        return Explained(
            subject=subject,
            state="served",
            sentence=_with_doubt(view, sentence),
            topics=list(places[:MOST_PLACES]),
            more=max(0, len(places) - MOST_PLACES),
        )
    shown = sorted_places(places)
    first, remedy = _explain_place(view, shown[0])
    sentence = f"{len(bad)} of {len(places)} partitions are not served. {first}"
    return Explained(
        subject=subject,
        state=states.pop() if len(states) == 1 else "mixed",
        sentence=_with_doubt(view, sentence),
        remedy=remedy,
        topics=shown[:MOST_PLACES],
        more=max(0, len(shown) - MOST_PLACES),
    )


def _with_gaps(view: View, found: Explained, gaps: Sequence[DeclaredGap], topic: str) -> Explained:
    """Add the gaps of offsets, those for which subscriptions wait first, and how they are filled or given up.

    Args:
        view: of the broker that answers.
        found: what else is the matter.
        gaps: all of them.
        topic: the one to name in a command.
    """
    found.gaps, found.more_gaps = list(gaps[:MOST_PLACES]), max(0, len(gaps) - MOST_PLACES)
    if not gaps:
        return found
    first, waiting = gaps[0], sum(gap.open for gap in gaps)
    lost = (
        f"{spoken_gap(first)} were lost with broker {first.broker}, which was declared gone"
        f" {spoken_since(first, view.wall_clock_s)}"
    )
    if not waiting:
        more = f"; so it is with {spoken_count(len(gaps) - 1, 'more gap')}" if len(gaps) > 1 else ""
        found.sentence += f" O{lost[1:]}; they were given up, and nothing waits for them{more}."
        return found
    more = f", and for {spoken_count(waiting - 1, 'more gap')}" if waiting > 1 else ""
    found.sentence += f" O{lost[1:]}: subscriptions wait for them{more}."
    first_of_all = f"{found.remedy.removesuffix('.')}. " if found.remedy else ""
    found.remedy = (
        f"{first_of_all}To give back what the disk of {first.broker} has, if it still exists: danube"
        " cluster return-tail --data-dir DIRECTORY, while no broker runs on it. To give it up: danube topics"
        f" forget-gap {topic}"
    )
    return found


def _with_doubt(view: View, sentence: str) -> str:
    """Add that the tables may be outdated, if the broker that answers has no session itself."""
    if view.has_session(view.me):
        return sentence
    me = broker_name(view.me)
    return f"{sentence} But {me}, which answers this, has no session itself at the moment, so this may be outdated."


def _explain_place(view: View, place: TopicPlace) -> tuple[str, str]:
    """Return a sentence about a place, and what to do."""
    topic, name = f"Topic {place.topic}", broker_name(BrokerId(place.broker))
    owner = f"{name} at {place.address}" if place.address else name
    owned = f"broker {owner}, which owns it in epoch {place.epoch}"
    if place.state == "served":
        served = f"{topic} is served by {owned} ({_REASONS[Reason(place.reason)]})."
        return served + _explain_move(view, place), ""
    if place.state == "unavailable":
        return f"{topic} is not served by {owned}: {place.detail}.", f"See the log of {name}."
    if place.state == "unassigned":
        what = "it is being created or deleted, or the coordinator has not assigned it yet"
        return f"{topic} has no owner: {what}.", _need_coordinator(view)
    if place.state == "unknown":
        silent = f"{name} does not answer {broker_name(view.me)}: {place.detail or 'not asked'}"
        if not view.has_leader:
            return f"{topic} belongs to {owned}. {silent}. {_ENDLESS}", _start(name)
        return (
            f"{topic} belongs to {owned}. {silent}. It has a session: clients that reach {name} may be served.",
            f"Check {name}, and the network between the brokers: danube doctor --cluster",
        )
    return _explain_absence(view, place, topic, owner)


def _explain_move(view: View, place: TopicPlace) -> str:
    """Say that a topic is about to move, or cannot."""
    if place.target:
        return f" It is to move to {broker_name(BrokerId(place.target))}, {_MOVE_REASONS[place.move_reason]}."
    if place.hindrance and len(view.brokers) > 1:
        return f" It cannot move to another broker: {place.hindrance}."
    if place.move_failure:
        return f" Its last move to another broker was given up: {place.move_failure.removesuffix('.')}."
    if view.state_of(BrokerId(place.broker)) is BrokerState.DRAINING:
        others = [
            name for name in view.sessions if name in view.brokers and view.brokers[name].state is BrokerState.ACTIVE
        ]
        if not others:
            return f" {broker_name(BrokerId(place.broker))} is drained, and no other broker is active to take it."
        return f" {broker_name(BrokerId(place.broker))} is drained: the coordinator is about to order its move."
    return ""


def _explain_absence(view: View, place: TopicPlace, topic: str, owner: str) -> tuple[str, str]:
    """Explain a topic whose owner is away."""
    broker = BrokerId(place.broker)
    name, away = broker_name(broker), _away(view, broker)
    if place.state == "moving":
        why = f"{name}, which owns it in epoch {place.epoch}, {away}"
        nothing = place.durability is Durability.NONE
        what = "stores nothing (durability none)" if nothing else "is in a storage that other brokers reach"
        return f"{topic} {what} and is about to move: {why}.", _need_coordinator(view)
    if place.durability is Durability.NONE:
        why = f"{name}, which owns it in epoch {place.epoch}, {away}, and no broker is active"
        return f"{topic} waits for any broker that may take topics: {why}.", "Start or activate a broker."
    if place.durability is Durability.REMOTE:
        holds = ", which goes on with it from its storage"
    elif place.sealed_end > 0:
        holds = f", whose disk holds its messages from offset {place.sealed_end:,} on"
    else:
        holds = ", whose disk holds its messages"
    replaced = _replaced(view, broker)
    if replaced:  # another broker is at its address
        owner = name
    return f"{topic} waits for broker {owner}{holds}: {name} {away}.{replaced}", _return(
        view, broker, "the topic is served"
    )


def _need_coordinator(view: View) -> str:
    return "" if view.coordinator is not None else "There is no coordinator: see danube cluster status"


def _away(view: View, broker: BrokerId) -> str:
    """Say for how long a broker has been away."""
    state = view.state_of(broker)
    if state is None:
        return "was forgotten by the cluster"
    if state is BrokerState.GONE:
        return "was declared gone for good"
    away_s = view.absences.away_s(broker_name(broker), view.now)
    if away_s is None:
        return "has no session"
    return f"has had no session for {spoken_duration(away_s)}"


def _replaced(view: View, broker: BrokerId) -> str:
    """Say that another broker has taken the address of one that is away."""
    successor = view.successor(broker)
    if successor is None:
        return ""
    name, other = broker_name(broker), broker_name(successor)
    return (
        f" At its address, {view.address_of(broker)}, runs {other} now, from another data directory: the directory of"
        f" {name} was replaced, and {other} has none of its messages."
    )


def _return(view: View, broker: BrokerId, served: str) -> str:
    """Say how a broker that is away comes back.

    Args:
        view: of the broker that answers.
        broker: the one that is away.
        served: what is served again then, with its verb.
    """
    name = broker_name(broker)
    if view.state_of(broker) is None:
        return f"If the disk of {name} still exists, start a broker on its data directory."
    if view.state_of(broker) is BrokerState.GONE:
        return f"Have other brokers go on with its topics: danube cluster forget {name} --accept-loss."
    successor = view.successor(broker)
    if successor is None and not view.lacks_member(broker):
        return f"Start {name} on its data directory; {served} again as soon as it is back."
    if successor is not None:
        when, at = f"If the data directory of {name} still exists somewhere", " at an address of its own"
    else:
        when, at = f"The metadata in the data directory of {name} are not those of this cluster any more", ""
    return (
        f"{when}: remove the directory 'metadata' and the files 'group-*' from it, and nothing else (the rest holds its"
        f" messages), and start {name} on it{at} with --join {view.address_of(view.me)}; {served} again as soon as it"
        " is back."
    )


def _start(name: str) -> str:
    return (
        f"Start {name}, if it does not run, or other brokers that vote on the metadata: danube cluster voters lists"
        " them. If their disks are permanently lost, see: danube cluster recover --help"
    )


# --- Brokers ---


def explain_broker(
    view: View,
    row: BrokerRow,
    status: ClusterStatus,
    places: Sequence[TopicPlace],
    total: int,
    known: Mapping[TopicId, KnownTopic],
) -> Explained:
    """Explain a broker.

    Args:
        view: of the broker that answers.
        row: of the broker.
        status: of the cluster.
        places: topics that it owns, at most :data:`MOST_PLACES`, those that are not served first.
        total: how many it owns.
        known: topics that have lost messages with it, as far as the catalogue knows them.
    """
    sentence, remedy = _explain_row(view, row, status, places)
    found = Explained(
        subject=row.name,
        state=row.state,
        sentence=_with_doubt(view, sentence),
        remedy=remedy,
        topics=list(places),
        more=max(0, total - len(places)),
    )
    lost = lost_with(view.gaps).get(BrokerId(row.broker), [])
    gaps = [shown_gap(known[topic_id].name, gap) for topic_id, gap in lost if topic_id in known]
    return _with_gaps(view, found, gaps, "TOPIC" if len(gaps) > 1 else gaps[0].topic if gaps else "")


def _explain_row(view: View, row: BrokerRow, status: ClusterStatus, places: Sequence[TopicPlace]) -> tuple[str, str]:
    broker = BrokerId(row.broker)
    starts = "started once" if row.life == 1 else f"started {row.life:,} times"
    owns = f"It owns {spoken_count(row.topics, 'topic')}."
    if row.session:
        runs = f"Broker {row.name} at {row.address} runs Danube {row.version or 'of an unknown version'} ({starts})."
        if row.state == "silent":
            silent = (
                f"Broker {row.name} at {row.address} ({starts}) does not answer {broker_name(view.me)}: {row.problem}."
            )
            if not view.has_leader:
                return f"{silent} {_ENDLESS} {owns}", _start(row.name)
            why = "It has a session: it cannot be reached from there, or it has ended, and so will its session."
            return (
                f"{silent} {why} {owns}",
                f"Check that {row.name} runs, its log, and the network between the brokers: danube doctor --cluster",
            )
        return f"{runs}{_roles(row, status)} {owns}{_condition(row)}{_stays(row, places)}", _need(row)
    last = f" It was last at {row.address}." if row.address else ""
    waiting = sum(each.count for each in status.waiting if each.broker == row.broker)
    waits = f" {spoken_count(waiting, 'topic')} {'waits' if waiting == 1 else 'wait'} for it." if waiting else ""
    sentence = f"Broker {row.name} {_away(view, broker)} ({starts}).{_replaced(view, broker) or last}{waits}"
    return sentence, _return(view, broker, "its topics are served") if waiting else ""


def _stays(row: BrokerRow, places: Sequence[TopicPlace]) -> str:
    """Say what moves to and from a broker, and what cannot leave one that is drained."""
    found = []
    if row.leaving:
        found.append(f"{spoken_count(row.leaving, 'topic')} {'is' if row.leaving == 1 else 'are'} ordered to leave it.")
    if row.arriving:
        found.append(
            f"{spoken_count(row.arriving, 'topic')} {'is' if row.arriving == 1 else 'are'} ordered to move to it."
        )
    stay = [place for place in places if place.hindrance]
    if stay and row.state == BrokerState.DRAINING:
        first = stay[0]
        found.append(
            f"Of those below, {spoken_count(len(stay), 'topic')} cannot move; {first.topic}: {first.hindrance}."
        )
    return "".join(f" {each}" for each in found)


def _roles(row: BrokerRow, status: ClusterStatus) -> str:
    roles = ["coordinates the cluster"] if row.coordinator else []
    member = next((each for each in status.metadata.members if each.broker == row.broker), None)
    if member is not None:
        does = {"leader": "leads the metadata", "voter": "votes on the metadata", "leaving": "leaves the metadata"}
        behind = f" and is {spoken_count(member.behind, 'entry', 'entries')} behind" if member.behind > 0 else ""
        roles.append(does.get(member.role, "follows the metadata without a vote") + behind)
    return f" It {' and '.join(roles)}." if roles else ""


def _condition(row: BrokerRow) -> str:
    found = []
    if row.state == "stopping":
        found.append("It is shutting down.")
    if row.state == BrokerState.DRAINING:
        found.append("It is draining: it keeps its topics until they have been moved, and gets no new ones.")
    figures = row.figures
    if figures is not None and figures.sealing_failing_s:
        found.append(f"Sealing has been failing for {spoken_duration(figures.sealing_failing_s)}.")
    if figures is not None and figures.topics < row.topics and row.state == BrokerState.ACTIVE:
        found.append(f"It serves {figures.topics:,} of them.")
    if figures is not None and figures.stranded_topics:
        found.append(f"Its journal has messages of {spoken_count(figures.stranded_topics, 'topic')} that do not exist.")
    return "".join(f" {each}" for each in found)


def _need(row: BrokerRow) -> str:
    figures = row.figures
    if figures is None:
        return ""
    if figures.sealing_failing_s:
        return f"See danube storage status --url danube://{row.address}"
    if figures.stranded_topics:
        return f"See danube topics stranded --url danube://{row.address}"
    return ""
