"""What applications saw of a broker, and whether it could have happened: the history checker.

A :class:`History` is told everything that producers and consumers do and see, in the order in which it happens, and in
the end what the topics hold (an *audit*: a topic read from its first offset). :meth:`History.check` returns what cannot
be true, in time linear in the history:

* what was acknowledged is in the log, exactly once, at the offset that was acknowledged; offsets are dense and grow;
* nothing is in the log, or delivered, that was not published, and every byte of it is the same;
* the messages of a producer name are in its order in each partition, those of a later run behind those of an earlier
  one (the earlier one was fenced), and the broker knew their number when the later run began;
* in exclusive and failover subscriptions no message is seen for the first time before those in front of it; in
  key-shared ones the same holds within a key;
* what was acknowledged, and confirmed as durable, is not delivered again by a stream that was opened later;
* every message was delivered at least once when everything was said to be caught up;
* one audit equals the other: before and after sealing, crash and restart.

What durability takes back: on ``os`` topics a power loss may take the newest messages, but only a tail of them, and
what consumers have acknowledged. Retention may take messages from the front.

The checker knows payloads only; each must be unique.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from danube.model.policies import Durability, SubscriptionType

__all__ = ["Audited", "History", "Session"]

_MOST_VIOLATIONS = 50


class Audited(NamedTuple):
    """A message as an audit found it."""

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
    acked_topic: str = ""
    acked_offset: int = -1
    acked_after_losses: int = -1
    """Power losses before the acknowledgement arrived."""
    sent_after_losses: int = 0


class _Topic(msgspec.Struct):
    durability: Durability
    retention: bool
    audits: list[tuple[str, list[Audited]]] = []


class Session(msgspec.Struct, eq=False):
    """One consumer of one subscription, from its opening to its end."""

    subscription: str
    number: int
    opened_at: int
    """Events of the history before it."""


class _Place(msgspec.Struct):
    """A subscription in one partition."""

    kind: SubscriptionType
    seen: dict[int, int] = {}
    """Checksum of the payload by offset, since the last power loss that may have changed it."""
    ever: set[int] = set()
    last_new: dict[str | None, int] = {}
    """Newest offset that was seen, by key (or for all together)."""
    settled: dict[int, tuple[int, int, int]] = {}
    """Durably acknowledged offsets: (event, session number, generation) of the confirmation."""


class History:
    """See the module. Methods are called as things happen; topics are named as messages name them (partitions)."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.events = 0
        self.published_messages = 0
        self.acknowledged_messages = 0
        self.delivered_messages = 0
        self.audited_messages = 0
        self._power_losses = 0
        self._topics: dict[str, _Topic] = {}
        self._sent: dict[bytes, _Sent] = {}
        self._places: dict[tuple[str, str], _Place] = {}
        self._kinds: dict[tuple[str, str], SubscriptionType] = {}
        self._runs: list[tuple[str, int, str, int, int]] = []
        self._sessions = 0

    def violation(self, text: str) -> None:
        """Note something that must not be."""
        if len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(text)

    # --- Topics and machines

    def topic(self, topic: str, durability: Durability, *, retention: bool = False) -> None:
        """A topic (partition) exists; ``retention`` if messages may go from its front."""
        self._topics[topic] = _Topic(durability, retention, [])

    def power_loss(self) -> None:
        """The broker's machine lost its power: ``os`` topics may lose a tail."""
        self.events += 1
        self._power_losses += 1
        for (topic, _), place in self._places.items():
            if self._taken_back(topic):
                place.settled.clear()

    def _taken_back(self, topic: str) -> bool:
        """Whether offsets may have been given twice: what was on its way when the power went arrives afterwards."""
        return self._power_losses > 0 and self._topics[topic].durability is Durability.OS

    # --- Producers

    def producer_run(self, producer: str, run: int, topic: str, stored_before: int) -> None:
        """A producer name was opened for the ``run``-th time; the broker says what it has of it in a partition."""
        self.events += 1
        self._runs.append((producer, run, topic, stored_before, self._power_losses))

    def publish(self, producer: str, run: int, number: int, topic: str, payload: bytes, key: str | None) -> None:
        """A message is about to be sent; ``number`` grows within a run, ``topic`` is what was asked for."""
        self.events += 1
        self.published_messages += 1
        assert payload not in self._sent, "payloads must be unique"
        self._sent[payload] = _Sent(producer, run, number, topic, zlib.crc32(payload), key)
        self._sent[payload].sent_after_losses = self._power_losses

    def acknowledge(self, payload: bytes, topic: str, offset: int) -> None:
        """The broker has said where a message is stored."""
        self.events += 1
        self.acknowledged_messages += 1
        sent = self._sent[payload]
        if offset < 0:
            return  # it is stored, and the broker does not remember where
        if sent.acked_offset >= 0 and (sent.acked_topic, sent.acked_offset) != (topic, offset):
            self.violation(f"{_name(payload)} was acknowledged at {sent.acked_offset} and at {offset} of {topic}")
        sent.acked_topic, sent.acked_offset = topic, offset
        sent.acked_after_losses = self._power_losses

    # --- Consumers

    def session(self, subscription: str, kind: SubscriptionType, topics: Iterable[str]) -> Session:
        """A consumer was opened."""
        self.events += 1
        self._sessions += 1
        for topic in topics:
            self._places.setdefault((topic, subscription), _Place(kind))
        return Session(subscription, self._sessions, self.events)

    def deliver(
        self, session: Session, generation: int, topic: str, offset: int, payload: bytes, key: str | None
    ) -> None:
        """An application was handed a message."""
        self.events += 1
        self.delivered_messages += 1
        where = f"{topic} @{offset} to {session.subscription}"
        sent = self._sent.get(payload)
        if sent is None:
            self.violation(f"{where}: delivered {payload[:40]!r}, which nobody has published")
            return
        if sent.key != key:
            self.violation(f"{where}: {_name(payload)} was delivered with key {key!r} instead of {sent.key!r}")
        place = self._places[topic, session.subscription]
        known = place.seen.get(offset)
        taken_back = self._taken_back(topic)
        if known is not None and known != sent.checksum and not taken_back:
            self.violation(f"{where}: {_name(payload)} was delivered where another message was before")
        settled = place.settled.get(offset)
        if settled is not None:
            event, number, then = settled
            if session.opened_at > event or (session.number == number and generation > then):
                self.violation(f"{where}: {_name(payload)} came again after its acknowledgement was durable")
        if known is None:
            place.seen[offset] = sent.checksum
            if not taken_back:
                self._first_sight(place, where, topic, offset, key)
        place.ever.add(offset)

    def _first_sight(self, place: _Place, where: str, topic: str, offset: int, key: str | None) -> None:
        if place.kind is SubscriptionType.SHARED:
            return
        ordered_by = key if place.kind is SubscriptionType.KEY_SHARED else None
        last = place.last_new.get(ordered_by, -1)
        if place.kind is SubscriptionType.KEY_SHARED and key is None:
            return  # the producer's name is the key then; its order shows in the audit
        if offset < last:
            self.violation(f"{where}: seen for the first time after {last}" + (f" of key {key}" if key else ""))
            return
        gapless = place.kind is not SubscriptionType.KEY_SHARED and not self._topics[topic].retention
        if gapless and offset != last + 1:
            self.violation(f"{where}: seen for the first time, and {last + 1} was not seen before it")
        place.last_new[ordered_by] = offset

    def confirmed(self, session: Session, topic: str, offsets: Iterable[int], generation: int, losses: int) -> None:
        """The broker has confirmed acknowledgements that were given when there had been ``losses`` power losses."""
        self.events += 1
        place = self._places[topic, session.subscription]
        if losses != self._power_losses and self._topics[topic].durability is Durability.OS:
            return
        for offset in offsets:
            place.settled.setdefault(offset, (self.events, session.number, generation))

    def settled(self, topic: str, subscription: str) -> None:
        """Everything that a subscription was delivered is acknowledged, and all of it is confirmed."""
        self.events += 1
        place = self._places[topic, subscription]
        for offset in place.seen:
            place.settled.setdefault(offset, (self.events, 0, 0))

    @property
    def power_losses(self) -> int:
        """How many there were."""
        return self._power_losses

    # --- The end

    def audit(self, label: str, topic: str, found: Sequence[Audited]) -> None:
        """A topic was read from its first offset to its end."""
        self.events += 1
        self.audited_messages += len(found)
        self._topics[topic].audits.append((label, list(found)))

    def check(self) -> list[str]:
        """Return everything that cannot be true; empty if all is well."""
        logs: dict[str, dict[int, bytes]] = {}
        homes: dict[bytes, tuple[str, int]] = {}
        for name, topic in self._topics.items():
            logs[name] = self._check_log(name, topic, homes)
        self._check_acknowledged(logs, homes)
        self._check_runs(logs)
        self._check_deliveries(logs)
        return self.violations

    def _check_log(self, name: str, topic: _Topic, homes: dict[bytes, tuple[str, int]]) -> dict[int, bytes]:
        first: dict[int, bytes] = {}
        for label, found in topic.audits:
            log: dict[int, bytes] = {}
            expected = None if topic.retention else 0
            for offset, payload, key in found:
                if expected is not None and offset != expected:
                    self.violation(f"audit {label} of {name}: offset {offset} follows where {expected} should")
                expected = offset + 1
                sent = self._sent.get(payload)
                if sent is None:
                    self.violation(f"audit {label} of {name} @{offset}: {payload[:40]!r} was never published")
                elif sent.key != key:
                    self.violation(f"audit {label} of {name} @{offset}: key {key!r} instead of {sent.key!r}")
                elif name != sent.topic and not name.startswith(sent.topic + "-part-"):
                    self.violation(f"audit {label} of {name} @{offset}: {_name(payload)} was sent to {sent.topic}")
                log[offset] = payload
            if not first:
                first = log
                self._check_once(label, name, log, homes)
            else:
                self._check_same(label, name, first, log, topic)
        return first

    def _check_once(self, label: str, name: str, log: dict[int, bytes], homes: dict[bytes, tuple[str, int]]) -> None:
        last: dict[str, tuple[int, int]] = {}
        for offset, payload in log.items():
            home = homes.setdefault(payload, (name, offset))
            if home != (name, offset):
                self.violation(f"audit {label} of {name}: {_name(payload)} is there twice, at {home[1]} and {offset}")
                continue
            sent = self._sent.get(payload)
            if sent is not None:
                if (sent.run, sent.number) < last.get(sent.producer, (-1, -1)):
                    self.violation(
                        f"audit {label} of {name} @{offset}: {_name(payload)} (run {sent.run}, {sent.number}) is behind"
                        f" {last[sent.producer]} of the same producer"
                    )
                last[sent.producer] = sent.run, sent.number

    def _check_same(self, label: str, name: str, first: dict[int, bytes], log: dict[int, bytes], topic: _Topic) -> None:
        for offset, payload in log.items():
            if first.get(offset) != payload:
                self.violation(f"audit {label} of {name} @{offset}: not what the first audit found")
        if not topic.retention and len(log) < len(first):
            missing = next(offset for offset in first if offset not in log)
            self.violation(
                f"audit {label} of {name}: {len(first) - len(log)} messages are gone, the first is @{missing}"
            )

    def _check_acknowledged(self, logs: dict[str, dict[int, bytes]], homes: dict[bytes, tuple[str, int]]) -> None:
        lost: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # of os topics: (power losses, offset)
        kept: defaultdict[str, dict[int, int]] = defaultdict(dict)  # newest surviving offset by power losses
        for payload, sent in self._sent.items():
            if sent.acked_offset < 0:
                continue
            name, offset = sent.acked_topic, sent.acked_offset
            log = logs.get(name)
            if not log and not self._topics[name].audits:
                continue
            assert log is not None
            if log.get(offset) == payload:
                newest = kept[name]
                newest[sent.acked_after_losses] = max(newest.get(sent.acked_after_losses, -1), offset)
            elif payload in homes:
                self.violation(f"{_name(payload)} was acknowledged @{offset} of {name} and is at {homes[payload]}")
            elif self._topics[name].durability is Durability.OS and sent.sent_after_losses < self._power_losses:
                # An acknowledgement may have been on its way for long: it tells of the time after the sending.
                lost[name].append((sent.sent_after_losses, offset))
            elif not (self._topics[name].retention and offset < min(log, default=offset + 1)):
                self.violation(f"{_name(payload)} was acknowledged @{offset} of {name} and is not there")
        for name, messages in lost.items():
            for losses, offset in messages:
                newest_kept = max((last for count, last in kept[name].items() if count <= losses), default=-1)
                if newest_kept > offset and not self._topics[name].retention:
                    self.violation(f"{name} @{offset} is gone, but {newest_kept} behind it is not: not a lost tail")

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
                or (topic.durability is Durability.OS and losses < self._power_losses)
            ):
                continue
            if topic.durability is Durability.OS and losses:
                continue
            found = sum(count for before, count in counts[producer, name].items() if before < run)
            if found != stored:
                self.violation(
                    f"producer {producer} was told that {name} has {stored} messages of its earlier runs;"
                    f" it has {found}"
                )

    def _check_deliveries(self, logs: dict[str, dict[int, bytes]]) -> None:
        for (name, subscription), place in self._places.items():
            topic = self._topics[name]
            log = logs[name]
            if not topic.audits:
                continue
            taken_back = self._taken_back(name)
            for offset, checksum in place.seen.items():
                payload = log.get(offset)
                if taken_back or (payload is None and topic.retention):
                    continue
                if payload is None or zlib.crc32(payload) != checksum:
                    self.violation(f"{name} @{offset} was delivered to {subscription}, and the log has something else")
            if not topic.retention:
                missing = [offset for offset in log if offset not in place.ever]
                if missing:
                    self.violation(
                        f"{name}: {len(missing)} messages were never delivered to {subscription}, the first is"
                        f" @{missing[0]}"
                    )


def _name(payload: bytes) -> str:
    return repr(payload[:32])
