"""The history checker: records what applications saw of a broker, and finds violations of its promises.

A :class:`History` records all actions and observations of producers and consumers, in the order in which they happen,
and finally the contents of the topics (an *audit*: a topic read from its first offset). :meth:`History.check` returns
violations, in time linear in the history; the rules are:

* an acknowledged message is in the log, exactly once, at the acknowledged offset (P1, P11), or anywhere in its
  topic if the broker no longer knows the offset; offsets are dense and grow (P2);
* everything in the log, delivered, or read, was published, and every byte of it is the same (P3);
* the messages of a producer name are in its order in each partition, those of a later run behind those of an earlier
  one (the earlier one was fenced, P8), and the broker knew their number when the later run began (P11);
* in exclusive subscriptions the first attempts come in the order of the log, as long as one broker lives, in failover
  ones and with retention for each consumer's stream; in key-shared ones the same holds within a key (P6), and a
  consumer sees only keys that its filters match;
* what was acknowledged, and confirmed as durable, is not delivered again by a stream that was opened later (P1);
* messages that must be repeated after a seek are repeated, however late earlier deliveries were acknowledged (P5);
* every message was delivered at least once when everything was reported as caught up, and a consumer has acknowledged
  it (P5), or it ended as the subscription's policy defines: it failed often enough, and then was
  dropped, or is in the dead-letter topic with the right attributes; or it was expired;
* one audit equals the other: before and after sealing, crash and restart (P9);
* nothing is accepted by a topic whose disk was lost (C3);
* what was acknowledged before a topic was handed over to another broker is there, whatever power losses follow (P1);
* in topics of durability ``none`` a message arrives at most once, and the messages of a producer in its order.

Exceptions by durability: on ``os`` topics a power loss may lose the newest messages, but only a tail of them
(:mod:`danube.testing._sights`), and acknowledgements of consumers, so that messages are repeated. It may undo moves of
a cursor since the broker was last ready, so that messages below an earlier position are skipped. Messages that reuse
lost offsets must be delivered and acknowledged like any other: acknowledgements of their predecessors
do not count. Retention may remove messages from the front, as long as the rest satisfies its rule, and readers may only
skip removed messages. Each violation names the broken promise (P1 to P12, see the README), or the rule of a cluster (C1
to C8); C4 is checked by :mod:`danube.testing.simulation.forgotten`.

The checker only knows payloads; each must be unique.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

import msgspec

from danube.model.policies import Durability, SubscriptionType
from danube.testing._sights import Losses, Sights
from danube.testing._subscriptions import (
    ORDERS,
    DeadLetter,
    DeliveryContext,
    MessageState,
    Order,
    Place,
    Session,
    Spot,
    SubscriptionRules,
)

__all__ = ["Audited", "DeadLetter", "History", "Session", "Spot", "SubscriptionRules"]

_MOST_VIOLATIONS = 50
_MESSAGE_OVERHEAD_BYTES = 300
"""Maximum overhead of a message besides its payload: header and stamp of a batch of its own, key, attributes."""


class Audited(NamedTuple):
    """A message found by an audit."""

    offset: int
    payload: bytes
    key: str | None


class _Sent(msgspec.Struct, gc=False):
    """A message that an application has tried to publish."""

    producer: str
    run: int
    number: int
    topic: str
    checksum: int
    key: str | None
    published_s: float = 0.0
    due_s: float = 0.0
    event: int = 0
    """Number of events of the history before it was published."""
    acked_topic: str = ""
    acked_offset: int = -1
    acked_after_losses: int = -1
    """Number of power losses before the acknowledgement arrived."""
    stored_topic: str = ""
    """Topic where it is stored, if the broker has acknowledged it without an offset."""
    sent_after_losses: int = 0
    """Number of power losses of all homes before it was published."""
    is_synced: bool = False
    """Whether it was acknowledged before its topic was handed over, and nothing could have taken it before that."""


class _Topic(msgspec.Struct):
    durability: Durability
    retention: bool
    home: str
    audits: list[tuple[str, list[Audited], int | None]] = []
    """Label, messages found, and the topic's start when it was read to its end."""
    least_bytes: int = 0
    """Bytes that retention leaves at least."""
    skipped_to: int = 0
    """The highest offset to which a reader has jumped; only retention may cause that."""
    start: int = 0
    """Start offset after retention at the first audit."""
    gone_at: float = math.inf
    """When its disk was lost: from then on it stays away."""
    forgotten_at: float = math.inf
    """When an operator first ordered to go on without that disk."""
    jumps: list[tuple[int, int]] = []
    """Offsets that readers have passed over since then."""
    damaged: bool = False
    """Whether its stored data was damaged: it may stop, but its answers must be correct nevertheless."""
    sights: Sights = msgspec.field(default_factory=Sights)
    """Messages acknowledged, delivered and read, with their offsets."""
    losses: Losses = msgspec.field(default_factory=Losses)


class History:
    """Records a history and checks it; see the module. Topics are named as in messages (partitions).

    ``clock`` returns the time in seconds, for rules that are about time.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.violations: list[str] = []
        self.events = 0
        self.published_messages = 0
        self.acknowledged_messages = 0
        self.delivered_messages = 0
        self.audited_messages = 0
        self._losses: defaultdict[str, list[int]] = defaultdict(list)
        """The numbers of the power losses of each home, among those of all homes."""
        self._all_losses = 0
        self._lives: Counter[str] = Counter()
        self._born: dict[str, int] = {}
        """The number of the event when the present broker of a home began."""
        self._homes: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._topics: dict[str, _Topic] = {}
        self._sent: dict[bytes, _Sent] = {}
        self._places: dict[tuple[str, str], Place] = {}
        self._rules: dict[tuple[str, str], SubscriptionRules] = {}
        self._runs: list[tuple[str, int, str, int, int]] = []
        self._sessions = 0
        self._lossy: dict[tuple[str, str], set[bytes]] = {}
        self._letters: dict[tuple[str, str], list[DeadLetter]] = {}
        self._clock = clock

    def violation(self, text: str) -> None:
        """Record a violation."""
        if len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(text)

    # --- Topics and machines

    def topic(
        self, topic: str, durability: Durability, *, retention: bool = False, least_bytes: int = 0, home: str = ""
    ) -> None:
        """Record that a topic (partition) exists.

        Args:
            topic, durability: of it.
            retention: whether messages may go from its front; ``least_bytes``: but it never has less than that then.
            home: where it is.
        """
        self._topics[topic] = _Topic(durability, retention, home, least_bytes=least_bytes)
        self._homes[topic] = self._homes[_base(topic)] = home

    def knows(self, topic: str) -> bool:
        """Whether the existence of a topic (partition) was recorded."""
        return topic in self._topics

    def at_home(self, topic: str, home: str) -> None:
        """Record which machine holds a topic (partition), once that is known."""
        self._topics[topic].home = self._homes[topic] = home

    def damaged(self, topic: str) -> None:
        """Record that stored data of a topic (partition) was damaged: batches, or acknowledgements.

        A consumer of a partitioned topic stops with its first partition. Topics unknown to the history are
        ignored.
        """
        self.events += 1
        for name, found in self._topics.items():
            found.damaged = found.damaged or _base(name) == _base(topic)
        for (name, _), place in self._places.items():
            if self._topics[name].damaged:
                place.settled.clear()

    def is_damaged(self, topics: Iterable[str]) -> bool:
        """Whether data of any of these topics was damaged."""
        return any(self._topics[topic].damaged for topic in topics)

    def gone(self, topic: str) -> None:
        """Record that the disk of a topic (partition) was lost, with its machine: nothing is accepted from now on."""
        self.events += 1
        self._topics[topic].gone_at = self._clock()

    def forgotten(self, topic: str) -> None:
        """Record that it is to go on without the disk that was lost: from now on, messages may be accepted again.

        Its cursors were lost, too, so what was acknowledged may come again.
        """
        self.events += 1
        self._topics[topic].forgotten_at = min(self._clock(), self._topics[topic].forgotten_at)
        for (name, _), place in self._places.items():
            if name == topic:
                place.moved(0)

    def declared(self, topic: str, gaps: Sequence[tuple[int, int]]) -> None:
        """Record which offsets were declared as lost with the disk: readers may pass over these, and no others."""
        for low, high in self._topics[topic].jumps:
            if not any(start <= low and high <= end for start, end in gaps):
                self.violation(f"P2: a reader of {topic} has passed over [{low}, {high}), which is no gap")
        self._topics[topic].jumps.clear()

    def accepted_without_disk(self, topic: str) -> dict[int, bytes]:
        """Return the messages by offset that were sent and acknowledged after :meth:`forgotten`.

        Of durability ``os`` only those that no power loss may have taken since.
        """
        since, losses = self._topics[topic].forgotten_at, self.power_losses(topic)
        is_lossy = self._topics[topic].durability is Durability.OS
        return {
            sent.acked_offset: payload
            for payload, sent in self._sent.items()
            if sent.acked_topic == topic
            and sent.acked_offset >= 0
            and sent.published_s > since
            and (not is_lossy or sent.acked_after_losses == losses)
        }

    def is_gone(self, topic: str) -> bool:
        """Whether the disk of a topic (partition) was lost."""
        return topic in self._topics and self._topics[topic].gone_at < math.inf

    def power_loss(self, home: str = "") -> None:
        """Record a power loss of a home's machine: its ``os`` topics may lose a tail."""
        self.events += 1
        self._all_losses += 1
        self._losses[home].append(self._all_losses)
        for (name, _), place in self._places.items():
            if self._homes[name] == home and self._taken_back(name):
                place.lost_tail()

    def replaced(self, home: str) -> None:
        """Record that another machine takes the place of one, whose broker may live until everything is settled."""
        self.events += 1
        self._replaced.add(home)
        for (name, _), place in self._places.items():
            place.former_owners = place.former_owners or self._homes[name] == home

    def new_life(self, home: str = "") -> None:
        """Record that a home's broker has started: topics of durability none start again."""
        self.events += 1
        self._lives[home] += 1
        self._born[home] = self.events

    def recovered(self, home: str = "", topics: Container[str] | None = None) -> None:
        """Record that a home's broker is ready: it has synced what it has recovered.

        ``topics``: those that it has, if the home has several brokers.
        """
        self.events += 1
        for (name, _), place in self._places.items():
            if self._homes[name] == home and (topics is None or name in topics):
                place.synced()

    def handed_over(self, topic: str) -> None:
        """Record that another broker is about to serve a topic (partition) that is a home of its own.

        The former owner has handed it over, and serves it no more; the new one has accepted nothing yet. What was
        acknowledged is synced there, whatever the durability: a later power loss takes none of it.
        """
        home = self._homes[topic]
        self.new_life(home)
        self.recovered(home)
        if self._topics[topic].durability is not Durability.OS:
            return
        losses = self.power_losses(topic)
        for sent in self._sent.values():
            # If a loss came after its sending, it may be gone, and its acknowledgement have been in flight.
            if sent.acked_topic == topic and not sent.is_synced and self._losses_before(topic, sent) == losses:
                sent.is_synced = True

    def power_losses(self, topic: str) -> int:
        """Return the number of power losses of a topic's home."""
        return len(self._losses[self._homes.get(topic, "")])

    def _losses_before(self, topic: str, sent: _Sent) -> int:
        """Return the number of power losses of a topic's home before a message was published."""
        return bisect_right(self._losses[self._homes.get(topic, "")], sent.sent_after_losses)

    def _taken_back(self, topic: str) -> bool:
        """Whether offsets may have been assigned twice: data in flight at a power loss arrives afterwards."""
        return self.power_losses(topic) > 0 and self._topics[topic].durability is Durability.OS

    def _see(self, topic: str, offset: int, sent: _Sent, how: str) -> bool:
        """Record that a message was at an offset; return False if another one was there at the same time."""
        found = self._topics[topic]
        if found.durability is Durability.NONE:
            return True
        low, high = self._span(topic, sent)
        return found.sights.note(offset, sent.checksum, low, high, how)

    def _span(self, topic: str, sent: _Sent) -> tuple[int, int]:
        """Return the power losses before a message was sent, and now, where they can take something."""
        if self._topics[topic].durability is not Durability.OS:
            return 0, 0
        return self._losses_before(topic, sent), self.power_losses(topic)

    # --- Producers

    def producer_run(
        self, producer: str, run: int, topic: str, stored_before: int, *, losses: int | None = None
    ) -> None:
        """Record the ``run``-th opening of a producer name, with the broker's stored count for a partition.

        ``losses``: power losses of the topic when it began to open, if that is not now. The broker's answer may
        have been in flight at a power loss.
        """
        self.events += 1
        losses = self.power_losses(topic) if losses is None else losses
        self._runs.append((producer, run, topic, stored_before, losses))

    def publish(
        self, producer: str, run: int, number: int, topic: str, payload: bytes, key: str | None, *, due_s: float = 0.0
    ) -> None:
        """Record that a message is about to be sent; ``number`` grows within a run, ``topic`` is the requested topic.

        It must not be delivered before ``due_s``.
        """
        self.events += 1
        self.published_messages += 1
        assert payload not in self._sent, "payloads must be unique"
        sent = self._sent[payload] = _Sent(producer, run, number, topic, zlib.crc32(payload), key, self._clock())
        sent.sent_after_losses = self._all_losses
        sent.due_s = due_s
        sent.event = self.events

    def acknowledge(self, payload: bytes, topic: str, offset: int) -> None:
        """Record the broker's acknowledgement of a message, with its place."""
        self.events += 1
        self.acknowledged_messages += 1
        sent = self._sent[payload]
        known = self._topics.get(topic)
        if known is not None and known.gone_at < sent.published_s and self._clock() < known.forgotten_at:
            self.violation(f"C3: {_name(payload)} was acknowledged in {topic}, whose disk had been lost before")
        if offset < 0:
            sent.stored_topic = topic  # stored, at an unknown offset
            return
        if topic in self._topics and not self._see(topic, offset, sent, "acknowledged"):
            self.violation(f"P2: {_name(payload)} was acknowledged @{offset} of {topic}, where another message is")
        if sent.acked_offset >= 0 and (sent.acked_topic, sent.acked_offset) != (topic, offset):
            self.violation(f"P2: {_name(payload)} was acknowledged at {sent.acked_offset} and at {offset} of {topic}")
        sent.acked_topic, sent.acked_offset = topic, offset
        sent.acked_after_losses = self.power_losses(topic)

    # --- Consumers

    def rules(self, topics: Iterable[str], subscription: str, rules: SubscriptionRules) -> None:
        """Set in advance how messages of a subscription may end."""
        for topic in topics:
            self._rules[topic, subscription] = rules

    def opening(self) -> int:
        """Record that a consumer is about to be opened; return the number of this event, for :meth:`session`."""
        self.events += 1
        return self.events

    def session(
        self,
        subscription: str,
        kind: SubscriptionType,
        topics: Iterable[str],
        *,
        filters: Sequence[str] = (),
        began: int | None = None,
    ) -> Session:
        """Record that a consumer was opened.

        ``began``: result of :meth:`opening` before it; None: no time has passed since. A consumer of several partitions
        is open when all of them serve it, and the first may have sent messages before others have acknowledged them.
        """
        self.events += 1
        self._sessions += 1
        for topic in topics:
            if (topic, subscription) not in self._places:
                self._begin(topic, subscription, self._rules.get((topic, subscription), SubscriptionRules(kind)))
        return Session(subscription, self._sessions, self.events if began is None else began, tuple(filters))

    def _begin(self, topic: str, subscription: str, rules: SubscriptionRules) -> Place:
        place = self._places[topic, subscription] = Place(rules, topic, subscription)
        place.former_owners = self._homes[topic] in self._replaced
        place.expires = self._topics[topic].retention
        return place

    def deliver(
        self,
        session: Session,
        generation: int,
        topic: str,
        offset: int,
        payload: bytes,
        key: str | None,
        *,
        attempt: int = 1,
    ) -> None:
        """Record that an application was handed a message."""
        self.events += 1
        self.delivered_messages += 1
        sent = self._known(f"{topic} @{offset} to {session.subscription}", payload, key)
        if sent is None:
            return
        if self._topics[topic].durability is Durability.NONE:
            wrong = self._deliver_lossy(session, topic, payload, sent)
        else:
            message = self._state_of(payload)
            context = DeliveryContext(session, generation, attempt, self._lives[self._homes[topic]], self._clock())
            wrong = self._places[topic, session.subscription].take(offset, message, context)
            if not self._see(topic, offset, sent, "delivered"):
                wrong = "P2: it was delivered where another message was before"
        if wrong:
            promise, _, what = wrong.partition(": ")
            self.violation(f"{promise}: {topic} @{offset} to {session.subscription}: {_name(payload)}: {what}")

    def _known(self, where: str, payload: bytes, key: str | None) -> _Sent | None:
        sent = self._sent.get(payload)
        if sent is None:
            self.violation(f"P3: {where}: delivered {payload[:40]!r}, which was never published")
        elif sent.key != key:
            self.violation(f"P3: {where}: {_name(payload)} was delivered with key {key!r} instead of {sent.key!r}")
        return sent

    def _deliver_lossy(self, session: Session, topic: str, payload: bytes, sent: _Sent) -> str:
        came = self._lossy.setdefault((topic, session.subscription), set())
        again = payload in came
        came.add(payload)
        which = topic, sent.producer
        last, session.last[which] = session.last.get(which, (-1, -1)), (sent.run, sent.number)
        if sent.event < self._born.get(self._homes[topic], 0):
            return ""  # its producer may have repeated it to a broker that could not know
        if again:
            return "P11: it came a second time, in a topic of durability none"
        kind = self._places[topic, session.subscription].rules.kind
        if ORDERS[kind] is Order.LOG and (sent.run, sent.number) < last:
            return f"P6: it came behind {last} of the same producer"
        return ""

    def given(
        self, session: Session, topic: str, offset: int, payload: bytes, moment: tuple[int, int] = (0, 0)
    ) -> Spot:
        """Record that an application has acknowledged a message that was delivered at a given :meth:`moment`.

        Return its key for :meth:`confirmed`.
        """
        spot = self.spot(offset, payload)
        self._places[topic, session.subscription].give(spot, moment[1])
        return spot

    def given_up_to(self, session: Session, topic: str, offset: int, moment: tuple[int, int]) -> None:
        """Record an acknowledgement of everything up to and including a message that was delivered at a :meth:`moment`.

        It covers messages delivered so far, to any consumer. Others must still be delivered.
        """
        place = self._places[topic, session.subscription]
        for spot in [spot for spot in place.open if spot[0] <= offset]:
            place.give(spot, moment[1])

    def spot(self, offset: int, payload: bytes) -> Spot:
        """Return the key of a message."""
        sent = self._sent.get(payload)
        return offset, sent.checksum if sent is not None else zlib.crc32(payload)

    def moment(self, session: Session, topic: str) -> tuple[int, int]:
        """Return the time stamp of deliveries for :meth:`confirmed`."""
        losses = self.power_losses(topic) if self._topics[topic].durability is Durability.OS else 0
        return losses, self._places[topic, session.subscription].moves

    def confirmed(
        self, session: Session, topic: str, spots: Iterable[Spot], generation: int, given: tuple[int, int]
    ) -> None:
        """Record the broker's confirmation of acknowledgements of messages delivered at the moment ``given`` or later.

        Messages delivered before a power loss, or a move of the cursor, may be replaced or repeated.
        """
        self.events += 1
        place = self._places[topic, session.subscription]
        if self._topics[topic].damaged or given != self.moment(session, topic):
            return  # taken back in the meantime
        for spot in spots:
            place.settled.setdefault(spot, (self.events, session.number, generation))

    def settled(self, topic: str, subscription: str) -> None:
        """Record that everything delivered to a subscription is acknowledged and confirmed."""
        self.events += 1
        place = self._places.get((topic, subscription))
        if place is not None and not self._topics[topic].damaged:  # a stopped topic cannot be opened
            place.former_owners = False
            for spot in place.deliveries:
                place.settled.setdefault(spot, (self.events, 0, 0))

    def moved(self, topic: str, subscription: str, offset: int, *, failed: bool = False, voids: bool = True) -> int:
        """Record a move of a subscription's cursor to an offset. Call before and after the move.

        Repeated messages are new then, and messages below may be skipped. ``failed``: afterwards, if the broker has
        not confirmed the move; it may still take effect. ``voids``: False if messages below are only skipped, so
        that what was acknowledged must not come again.
        """
        self.events += 1
        place = self._places.get((topic, subscription))
        if place is None and (rules := self._rules.get((topic, subscription))) is not None:
            place = self._begin(topic, subscription, rules)  # no consumer has been let in so far
        return place.moved(offset, failed=failed, voids=voids) if place is not None else 0

    def sought(self, topic: str, subscription: str, offset: int, moves: int) -> None:
        """Record that the broker has confirmed a move; ``moves``: result of :meth:`moved` before it.

        To be called after the second call of that. Earlier deliveries and their acknowledgements are void then:
        everything from the offset on must be redelivered.
        """
        place = self._places.get((topic, subscription))
        if place is not None:
            place.sought(offset, moves)

    # --- Readers

    def read(
        self, topic: str, offset: int, payload: bytes, key: str | None, *, before: tuple[int, bytes] | None
    ) -> None:
        """Record that a reader was handed a message; ``before``: offset and payload of the previous one."""
        self.events += 1
        self.delivered_messages += 1
        where = f"{topic} @{offset} to a reader"
        sent = self._known(where, payload, key)
        if sent is None or self._topics[topic].durability is Durability.NONE:
            return
        found = self._topics[topic]
        if before is not None and offset > before[0] + 1 and found.retention:
            found.skipped_to = max(found.skipped_to, offset)
        elif before is not None and offset != before[0] + 1:
            former = self._sent.get(before[1])
            low, high = self._span(topic, former) if former is not None else (0, 0)
            if low == high and offset > before[0] and self._clock() >= found.forgotten_at:
                found.jumps.append((before[0] + 1, offset))
            elif low == high:  # if not, a power loss may have taken the one before
                self.violation(f"P2: {where}: {before[0] + 1} should follow")
        if not self._see(topic, offset, sent, "read"):
            self.violation(f"P2: {where}: {_name(payload)} was read where another message was before")

    # --- The end

    def audit(self, label: str, topic: str, found: Sequence[Audited], start: int | None = None) -> None:
        """Record that a topic was read from its first offset to its end.

        Args:
            label, topic: name of the audit, and the topic.
            found: all messages, in order.
            start: the topic's start offset afterwards, if it has retention: it may have overtaken the reading, so
                messages below may be missing, but none from there on. None: where ``found`` begins.
        """
        self.events += 1
        self.audited_messages += len(found)
        self._topics[topic].audits.append((label, list(found), start))

    def dead_letters(self, topic: str, subscription: str, found: Sequence[DeadLetter]) -> None:
        """Record the dead-letter topic of a subscription (of all partitions together)."""
        self.events += 1
        self.audited_messages += len(found)
        self._letters[topic, subscription] = list(found)

    def check(self) -> list[str]:
        """Return all violations; empty if there are none."""
        logs: dict[str, dict[int, bytes]] = {}
        homes: dict[bytes, tuple[str, int]] = {}
        for name, topic in self._topics.items():
            logs[name] = self._check_log(name, topic, homes)
        self._check_acknowledged(logs, homes)
        self._check_runs(logs)
        self._check_deliveries(logs, homes)
        return self.violations

    def _check_log(self, name: str, topic: _Topic, homes: dict[bytes, tuple[str, int]]) -> dict[int, bytes]:
        first: dict[int, bytes] = {}
        for label, found, start in topic.audits:
            log: dict[int, bytes] = {}
            if not topic.retention:
                start = 0
            elif start is None:
                start = found[0].offset if found else 0
            expected = start
            for offset, payload, key in found:
                kept = offset >= start
                if kept and offset != expected:
                    self.violation(f"P2: audit {label} of {name}: offset {offset} follows where {expected} should")
                if kept:
                    expected = offset + 1
                sent = self._sent.get(payload)
                if sent is None:
                    self.violation(f"P3: audit {label} of {name} @{offset}: {payload[:40]!r} was never published")
                elif sent.key != key:
                    self.violation(f"P3: audit {label} of {name} @{offset}: key {key!r} instead of {sent.key!r}")
                elif name != sent.topic and not name.startswith(sent.topic + "-part-"):
                    self.violation(f"P3: audit {label} of {name} @{offset}: {_name(payload)} was sent to {sent.topic}")
                if kept:
                    log[offset] = payload
            if start and not self._may_have_lost(topic):
                self._check_left(label, name, topic, log)
            if not first:
                first, topic.start = log, start
                self._check_once(label, name, log, homes)
            else:
                self._check_same(label, name, first, log, topic)
        if topic.audits and topic.skipped_to > topic.start and not self._may_have_lost(topic):
            self.violation(f"P2: {name}: a reader has jumped to {topic.skipped_to}, and it begins at {topic.start}")
        return first

    def _may_have_lost(self, topic: _Topic) -> bool:
        """Whether messages may be lost other than by retention, or a new machine may not know its extent."""
        return topic.damaged or topic.durability is Durability.OS or topic.home in self._replaced

    def _check_left(self, label: str, name: str, topic: _Topic, log: dict[int, bytes]) -> None:
        """Check that retention has left what its rule requires."""
        left = sum(len(payload) + _MESSAGE_OVERHEAD_BYTES for payload in log.values())
        if left < topic.least_bytes:
            self.violation(
                f"P1: audit {label} of {name}: retention has left at most {left} bytes, and has to leave"
                f" {topic.least_bytes}"
            )

    def _check_once(self, label: str, name: str, log: dict[int, bytes], homes: dict[bytes, tuple[str, int]]) -> None:
        last: dict[str, tuple[int, int]] = {}
        for offset, payload in log.items():
            home = homes.setdefault(payload, (name, offset))
            if home != (name, offset):
                self.violation(
                    f"P11: audit {label} of {name}: {_name(payload)} is there twice, at {home[1]} and {offset}"
                )
                continue
            sent = self._sent.get(payload)
            if sent is not None:
                if (sent.run, sent.number) < last.get(sent.producer, (-1, -1)):
                    self.violation(
                        f"P8: audit {label} of {name} @{offset}: {_name(payload)} (run {sent.run}, {sent.number}) is"
                        f" behind {last[sent.producer]} of the same producer"
                    )
                last[sent.producer] = sent.run, sent.number

    def _check_same(self, label: str, name: str, first: dict[int, bytes], log: dict[int, bytes], topic: _Topic) -> None:
        for offset, payload in log.items():
            if first.get(offset) != payload:
                self.violation(f"P9: audit {label} of {name} @{offset}: not what the first audit found")
        unsealed = topic.damaged and self._taken_back(name)  # a topic that may have stopped is not sealed
        if not topic.retention and not unsealed and len(log) < len(first):
            missing = next(offset for offset in first if offset not in log)
            self.violation(
                f"P9: audit {label} of {name}: {len(first) - len(log)} messages are gone, the first is @{missing}"
            )

    def _check_acknowledged(self, logs: dict[str, dict[int, bytes]], homes: dict[bytes, tuple[str, int]]) -> None:
        for payload, sent in self._sent.items():
            if sent.acked_offset < 0:
                if sent.stored_topic:
                    self._check_stored(payload, sent, homes)
                continue
            name, offset = sent.acked_topic, sent.acked_offset
            log, topic = logs.get(name), self._topics[name]
            if not log and not topic.audits:
                continue
            assert log is not None
            if log.get(offset) == payload:
                topic.losses.kept(offset, sent.acked_after_losses)
            elif payload in homes:
                self.violation(f"P2: {_name(payload)} was acknowledged @{offset} of {name} and is at {homes[payload]}")
            elif sent.is_synced and offset >= topic.start:
                self.violation(
                    f"P1: {_name(payload)} was acknowledged @{offset} of {name} before it was handed over, and is not"
                    " there"
                )
            elif topic.durability is Durability.OS and self._losses_before(name, sent) < self.power_losses(name):
                # An acknowledgement may have been in flight for long: only the time of sending counts.
                topic.losses.lost(offset, self._losses_before(name, sent))
            elif offset >= topic.start:
                self.violation(f"P1: {_name(payload)} was acknowledged @{offset} of {name} and is not there")
        for name, topic in self._topics.items():
            if topic.audits and topic.durability is not Durability.NONE:
                self._check_sights(name, topic, logs[name])

    def _check_stored(self, payload: bytes, sent: _Sent, homes: dict[bytes, tuple[str, int]]) -> None:
        """Check a message acknowledged without an offset: it must be in its topic, unless it may have been lost."""
        name = sent.stored_topic
        topic = self._topics.get(name)
        if topic is None or not topic.audits or topic.durability is Durability.NONE:
            return
        home = homes.get(payload)
        if home is not None and home[0] == name:
            return
        # Its offset is unknown, but a producer's messages are in order: its neighbours give the range.
        siblings = [
            other
            for each, (place, _) in homes.items()
            if place == name and (other := self._sent.get(each)) is not None and other.producer == sent.producer
        ]
        mine, losses = (sent.run, sent.number), self._losses_before(name, sent)
        if topic.durability is Durability.OS and losses < self.power_losses(name):
            found = any((each.run, each.number) > mine and 0 <= each.acked_after_losses <= losses for each in siblings)
            what = "and is gone, though it was not in a lost tail"
        elif topic.retention:
            found = any((each.run, each.number) < mine for each in siblings)
            what = "and is gone, though one before it is there"
        else:
            found, what = True, "and is not there"
        if found:
            self.violation(f"P1: {_name(payload)} was acknowledged as stored in {name}, place unknown, {what}")

    def _check_sights(self, name: str, topic: _Topic, log: dict[int, bytes]) -> None:
        """Compare sightings with the log, and check that only tails are lost."""
        total = self.power_losses(name) if topic.durability is Durability.OS else 0
        present = {offset: zlib.crc32(payload) for offset, payload in log.items()}
        front = min(log, default=0)
        for sight in topic.sights:
            offset = sight.offset
            if present.get(offset) == sight.checksum:
                sent = self._sent.get(log[offset])
                if sent is not None and 0 <= sent.acked_after_losses <= sight.high:
                    topic.losses.kept(offset, sight.high)
                # Else its producer may have repeated it after the loss, and it may have got the same offset again.
            elif sight.low < total:
                topic.losses.lost(offset, sight.low)
            elif sight.how == "acknowledged":
                pass  # checked by its payload instead
            elif offset in present or not (topic.damaged or (topic.retention and (offset < front or not log))):
                promise = "P2" if offset in present else "P1"
                self.violation(f"{promise}: {name} @{offset} was {sight.how}, and the log has something else")
        for gone, there in topic.losses.holes():
            if not topic.retention or gone >= front:
                self.violation(f"P1: {name} @{gone} is gone, but {there} at or behind it is not: not a lost tail")

    def _check_runs(self, logs: dict[str, dict[int, bytes]]) -> None:
        counts: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for name, log in logs.items():
            for payload in log.values():
                sent = self._sent.get(payload)
                if sent is not None:
                    by_run = counts[sent.producer, name]
                    by_run[sent.run] = by_run.get(sent.run, 0) + 1
        for producer, run, name, stored, losses in self._runs:
            topic = self._topics[name]
            if (
                topic.retention
                or not topic.audits
                or (topic.durability is Durability.OS and losses < self.power_losses(name))
            ):
                continue
            found = sum(count for before, count in counts[producer, name].items() if before < run)
            if found != stored:
                self.violation(
                    f"P11: producer {producer} was told that {name} has {stored} messages of its earlier runs;"
                    f" it has {found}"
                )

    def _check_deliveries(self, logs: dict[str, dict[int, bytes]], homes: dict[bytes, tuple[str, int]]) -> None:
        now_s = self._clock()
        for (name, subscription), place in self._places.items():
            topic = self._topics[name]
            if not topic.audits:
                continue
            letters = self._letters.get((_base(name), subscription), [])
            for wrong in place.check_letters(homes, letters, taken_back=self._taken_back(name)):
                self.violation(wrong)
            for wrong in place.check(logs[name], self._state_of, now_s, cut=topic.retention or topic.damaged):
                self.violation(wrong)

    def _state_of(self, payload: bytes) -> MessageState:
        sent = self._sent.get(payload)
        if sent is None:  # which is reported elsewhere
            return MessageState(zlib.crc32(payload), None, "", self._clock())
        return MessageState(sent.checksum, sent.key, sent.producer, sent.published_s, sent.due_s)


def _base(topic: str) -> str:
    return topic.rpartition("-part-")[0] or topic


def _name(payload: bytes) -> str:
    """Show a payload up to its second ``|``, where filling begins."""
    return repr(b"|".join(payload.split(b"|", 2)[:2])[:32])
