"""Checks the owners of topics in a world whose brokers share them.

Rules (their names are those of the design of the cluster):

* C2. At any moment one broker at most serves a topic: one of durability ``os`` or ``disk``, whatever happens; others as
  long as the broker's session is certain to be alive (after that, the fence in the bucket keeps the former owner of a
  topic of durability ``remote`` from acknowledging anything). A topic that was deleted, and one that was created under
  its name since, are two: the owner of the first one hears of its end a little later. A topic that is frozen serves
  nobody. An assignment gets another owner only with the next epoch, and while the former one has no session, or if the
  topic follows its wal, or by a move to the broker that its order names: then the order goes with the same revision;
  or because its broker was declared gone: then a gap comes with the same revision. One that is gone gets no session. A
  wal gets another owner only while the former one has no session.
* C6. In calm weather each broker has a session, each topic exactly one owner, which serves it, and no move is ordered.
* C7. In calm weather all brokers see the same topics and owners as the metadata.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import trio

from danube.broker.topic.topic import Topic
from danube.cluster.gaps import topic_gaps
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    MOVES,
    SESSIONS,
    WALS,
    Assignment,
    BrokerRecord,
    BrokerState,
    MoveRecord,
    Reason,
    WalRecord,
    beginner_of,
    broker_name,
    parse_topic_id,
    topic_key,
    wal_of,
)
from danube.log import MemoryLog
from danube.metadata import EventBatch, MetadataStore, PutEvent
from danube.model import Durability
from danube.model.errors import UnavailableError
from danube.model.ids import TopicId
from danube.model.records import decode_topic, members
from danube.testing.history import History
from danube.testing.simulation.node import BrokerNode, Life

__all__ = ["OwnerWatch", "find_differences"]

_LOOK_S: Final = 0.25
_MOST: Final = 10
"""Violations of one world that are told."""
_TOPICS: Final = "/topics"
_ASSIGNMENT: Final = msgspec.msgpack.Decoder(Assignment)
_BROKER: Final = msgspec.msgpack.Decoder(BrokerRecord)
_ORDER: Final = msgspec.msgpack.Decoder(MoveRecord)
_WAL: Final = msgspec.msgpack.Decoder(WalRecord)


class OwnerWatch:
    """Looks for topics that two brokers serve at the same time (C2).

    Args:
        nodes: of the cluster.
        history: gets the violations.
    """

    def __init__(self, nodes: Sequence[BrokerNode], history: History) -> None:
        self._nodes = nodes
        self._history = history
        self._told: set[str] = set()

    async def run(self) -> None:
        """Task: look again and again, until cancelled."""
        while True:
            self.look()
            await trio.sleep(_LOOK_S)

    def look(self) -> None:
        """Record a violation for each topic that has two servants now; once for each topic."""
        served: dict[TopicId, str] = {}
        for node in self._nodes:
            for name, topic_id in _served(node):
                other = served.setdefault(topic_id, node.name)
                if other != node.name and name not in self._told:
                    self._told.add(name)
                    self._history.violation(f"C2: {name} is served by {other} and by {node.name} at the same time")


def _served(node: BrokerNode) -> list[tuple[str, TopicId]]:
    """Return the topics for which a broker would accept or deliver a message now."""
    life = node.life
    if life is None or life.over or not node.ready.is_set():
        return []
    return [
        (topic.name, topic.topic_id)
        for topic in life.broker.directory.topics()
        if not topic.is_frozen
        and (not topic.lossy or _accepts(topic))
        and (topic.lossy or topic.durability is not Durability.REMOTE or _is_certain(life))
    ]


def _is_certain(life: Life) -> bool:
    return life.broker.directory.membership.is_certain()


def _accepts(topic: Topic) -> bool:
    """Whether a topic of durability ``none`` would take a message now."""
    assert isinstance(topic.kept, MemoryLog)
    try:
        topic.kept._check()
    except UnavailableError:
        return False
    return True


def check_owners(story: Mapping[int, EventBatch]) -> list[str]:
    """Return the changes of owners that break C2, in everything that the metadata went through, by revision."""
    found: list[str] = []
    sessions: set[str] = set()
    gone: set[str] = set()
    owners: dict[str, Assignment] = {}
    orders: dict[str, MoveRecord] = {}
    wals: dict[str, WalRecord] = {}
    for number in sorted(story):
        for event in story[number].events:
            if event.key.startswith(SESSIONS):
                name = event.key.removeprefix(SESSIONS)
                if isinstance(event, PutEvent):
                    sessions.add(name)
                else:
                    sessions.discard(name)
            if (
                isinstance(event, PutEvent)
                and event.key.startswith(BROKERS)
                and _BROKER.decode(event.item.value).state is BrokerState.GONE
            ):
                gone.add(event.key.removeprefix(BROKERS))
        found += [f"C2: revision {number} gives {name}, which is gone, a session" for name in sorted(gone & sessions)]
        moving = dict(orders)
        for event in story[number].events:
            if event.key.startswith(MOVES):
                if isinstance(event, PutEvent):
                    orders[event.key] = _ORDER.decode(event.item.value)
                else:
                    orders.pop(event.key, None)
        for event in story[number].events:
            if event.key.startswith(WALS) and isinstance(event, PutEvent):
                known = wals.get(event.key)
                taken = wals[event.key] = _WAL.decode(event.item.value)
                last = known.owner if known is not None else beginner_of(event.key.rpartition("/")[2])
                if taken.former != last or broker_name(last) in sessions:
                    found.append(
                        f"C2: revision {number} gives {event.key} to {broker_name(taken.owner)} instead of"
                        f" {broker_name(last)}, which {'has' if broker_name(last) in sessions else 'had'} a session"
                    )
        for event in story[number].events:
            if not event.key.startswith(ASSIGNMENTS):
                continue
            former = owners.pop(event.key, None)
            if not isinstance(event, PutEvent):
                continue
            present = owners[event.key] = _ASSIGNMENT.decode(event.item.value)
            if former is None or former == present:
                continue
            what = f"C2: revision {number} assigns {event.key.removeprefix(ASSIGNMENTS)}"
            if present.epoch != former.epoch + 1:
                found.append(f"{what} with epoch {present.epoch}, which was {former.epoch}")
            key = MOVES + event.key.removeprefix(ASSIGNMENTS)
            order = moving.get(key)
            if present.reason is Reason.FORGOTTEN and present != former:
                name = broker_name(former.owner)
                if name not in gone or name in sessions:
                    found.append(f"{what}, which {name} owned, though that broker is not gone")
                if not any(put.key.startswith(_gaps_of(event.key)) for put in story[number].events):
                    found.append(f"{what}, which {name} has lost, without a gap")
            elif present.move and present.move != former.move:
                if order is None or (order.move, order.target) != (present.move, present.owner) or key in orders:
                    found.append(f"{what} by a move that is not ordered, or whose order remains")
            elif broker_name(former.owner) in sessions and not _follows(present, wals):
                found.append(f"{what} to {broker_name(present.owner)} while {broker_name(former.owner)} has a session")
    return found[:_MOST]


def _gaps_of(key: str) -> str:
    """Return the prefix of the gaps of the topic of an assignment."""
    return topic_gaps(parse_topic_id(key.removeprefix(ASSIGNMENTS)))


def _follows(present: Assignment, wals: Mapping[str, WalRecord]) -> bool:
    """Whether a topic goes to the owner of its wal."""
    wal = f"/{wal_of(present)}"
    return any(key.endswith(wal) and row.owner == present.owner for key, row in wals.items())


async def find_differences(store: MetadataStore, nodes: Iterable[BrokerNode], lost: Container[str] = ()) -> list[str]:
    """Return what keeps the brokers from having divided all topics among them (C6, C7); empty in calm weather.

    ``lost`` are brokers that will never return: what they own waits for them, deleted topics and moves included.
    """
    items, _ = await store.list(_TOPICS)
    records = {item.key.removeprefix(_TOPICS): decode_topic(item.value) for item in items}
    rows = (await store.list(ASSIGNMENTS))[0]
    assigned = {item.key.removeprefix(ASSIGNMENTS): item.mod_revision for item in rows}
    owners = {item.key.removeprefix(ASSIGNMENTS): broker_name(_ASSIGNMENT.decode(item.value).owner) for item in rows}
    found: list[str] = []
    expected: dict[str, Any] = {}
    for base, record in records.items():
        for name, topic_id in members(base, record):
            if topic_key(topic_id) in assigned:
                expected[name] = topic_id
            else:
                found.append(f"{name} has no owner")
    living = {topic_key(topic_id) for topic_id in expected.values()}
    orphans = [name for name in assigned if name not in living and owners[name] not in lost]
    if orphans:
        found.append(f"{len(orphans)} assignments are of topics that do not exist")
    ordered = [item.key.removeprefix(MOVES) for item in (await store.list(MOVES[:-1]))[0]]
    found += [f"the move of {name} is not over" for name in ordered if owners.get(name) not in lost]
    for node in nodes:
        life = node.life
        if life is None or life.over or not node.ready.is_set():
            found.append(f"{node.name} is not ready")
            continue
        directory = life.broker.directory
        if not directory.membership.is_certain():
            found.append(f"{node.name} has no session that is certain to be alive")
        found += _compare(node.name, "topics", set(records), {name for name, _ in directory.catalogue.topics()})
        table = directory.membership.assignments
        found += _compare(node.name, "assignments", assigned, {name: table.revision(name) for name in table.values})
        mine = {name for name, topic_id in expected.items() if directory.membership.owns(topic_id)}
        found += _compare(
            broker_name(directory.membership.me), "own topics", mine, {t.name for t in directory.topics()}
        )
    return found


def _compare(
    node: str, what: str, wanted: set[str] | Mapping[str, int], present: set[str] | Mapping[str, int]
) -> list[str]:
    """Return a sentence if a broker's view is not what it should be."""
    if wanted == present:
        return []
    return [f"the {what} of {node} differ: {sorted(set(wanted) ^ set(present)) or 'in their revisions'}"]
