"""The part of the history checker about subscriptions: deliveries, acknowledgements, and missing messages."""

from __future__ import annotations

import enum
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import msgspec

from danube.model.policies import PoisonPolicy, SubscriptionType

__all__ = [
    "ORDERS",
    "DeadLetter",
    "DeliveryContext",
    "MessageState",
    "Order",
    "Place",
    "Session",
    "Spot",
    "SubscriptionRules",
]

Spot = tuple[int, int]
"""A message at its place: offset and checksum. An offset alone is ambiguous in a topic that may lose a tail."""


class Order(enum.Enum):
    """Which messages of a subscription arrive in the order of the log."""

    LOG = "log"
    """All."""
    KEY = "key"
    """Those of each key."""
    NONE = "none"


ORDERS: Final = {
    SubscriptionType.EXCLUSIVE: Order.LOG,
    SubscriptionType.FAILOVER: Order.LOG,
    SubscriptionType.SHARED: Order.NONE,
    SubscriptionType.KEY_SHARED: Order.KEY,
}
"""What the checker demands of each type. It does not trust the traits that the broker has for the type."""


class SubscriptionRules(NamedTuple):
    """How messages of a subscription may end, other than by being acknowledged."""

    kind: SubscriptionType
    poisons: frozenset[PoisonPolicy] = frozenset()
    """Poison policies that it has at any time; empty: messages may fail any number of times."""
    max_redelivery_count: int = -1
    """Failures after which a message is poison."""
    message_ttl_s: float = 0.0
    """Unacknowledged messages may expire after this time; 0: never."""
    ack_timeout_s: float = 30.0
    """Shortest ack timeout that it has at any time."""
    in_order: bool = True
    """Whether messages arrive in the order of the log; False if some are scheduled for later."""


class Session(msgspec.Struct, eq=False):
    """One consumer of one subscription, from opening to end."""

    subscription: str
    number: int
    opened_at: int
    """Number of events of the history before its opening began: earlier ones are older than all of its streams."""
    filters: tuple[str, ...] = ()
    """Glob patterns, one of which the key must match."""
    last: dict[tuple[str, str], tuple[int, int]] = {}
    """In topics of durability none: newest run and number by topic and producer."""

    def lets_through(self, key: str) -> bool:
        """Whether a key matches the filters."""
        return not self.filters or any(fnmatchcase(key, one) for one in self.filters)


class DeadLetter(NamedTuple):
    """A message of a dead-letter topic."""

    payload: bytes
    key: str | None
    attributes: Mapping[str, str]


class MessageState(NamedTuple):
    """State of a message in the history."""

    checksum: int
    key: str | None
    producer: str
    published_s: float
    due_s: float = 0.0
    """Must not be delivered before this time."""


class DeliveryContext(NamedTuple):
    """Circumstances of a delivery."""

    session: Session
    generation: int
    """Generation of the consumer's stream to the broker."""
    attempt: int
    life: int
    """Number of the broker's run at this time."""
    now_s: float


class Place(msgspec.Struct):
    """A subscription in one partition."""

    rules: SubscriptionRules
    topic: str
    subscription: str
    deliveries: Counter[Spot] = msgspec.field(default_factory=Counter)
    """Number of deliveries of each message."""
    last_new: dict[tuple[str | None, tuple[int, int]], int] = {}
    """Newest offset delivered as a first attempt, by key (or for all together) and stream of a session."""
    expires: bool = False
    """Whether retention may remove messages that consumers have."""
    former_owners: bool = False
    """Whether superseded brokers may be alive without knowing it: their deliveries are repeated."""
    reached: dict[Spot, int] = {}
    """For each message the number of moves before its last delivery."""
    given: dict[Spot, int] = {}
    """Messages acknowledged by an application, whatever the result; and the number of moves before their delivery."""
    open: set[Spot] = set()
    """Messages delivered and not acknowledged since."""
    settled: dict[Spot, tuple[int, int, int]] = {}
    """Durably acknowledged messages: (event, session number, generation) of the confirmation."""
    moves: int = 0
    """Number of starts and ends of cursor moves."""
    excused_below: int = 0
    """The cursor was, or may have been, moved to this offset: messages below it may have been skipped."""
    doubtful_below: int = 0
    """The same for unconfirmed moves: they may take effect at any time."""
    again_since: int = 0
    """After so many moves the cursor was certainly moved: what came and was acknowledged before does not count."""
    unsynced_below: int = 0
    """The highest ``excused_below`` since the broker was last ready: no sync is certain since then."""
    synced_again_since: int = 0
    """``again_since`` when the broker was last ready."""
    moves_before_loss: int = -1
    """In a topic that may lose a tail: number of moves before the last power loss."""
    stream: tuple[int, int] = (0, 0)
    """Session and generation of the stream that delivers messages."""
    stream_since_s: float = 0.0
    """Start of the present period of deliveries on it, without a long pause."""
    stream_last_s: float = 0.0
    """Time of the last delivery on it."""
    gaps: list[tuple[int, int, float, float]] = []
    """Offsets that were skipped, so they must have expired: start, end, time, and the start of the period in which the
    same stream delivered messages without a long pause. Messages published earlier may be waiting for a redelivery:
    they were lost with another stream, or waited in the client while the application took nothing, and were returned
    or have timed out."""
    letters: dict[bytes, DeadLetter] = {}
    """Dead letters by payload."""

    def take(self, offset: int, message: MessageState, context: DeliveryContext) -> str:
        """Record a delivery; return a violation, if any."""
        found = ""
        session = context.session
        stream = session.number, context.generation
        # A client renews the leases of waiting messages every third of the ack timeout, until the application has
        # taken nothing for the whole of it. Half of it is less than any rest in which a message can time out.
        if self.stream != stream or context.now_s - self.stream_last_s > self.rules.ack_timeout_s / 2:
            self.stream, self.stream_since_s = stream, context.now_s
        self.stream_last_s = context.now_s
        spot = offset, message.checksum
        settled = self.settled.get(spot)
        if settled is not None and not self.former_owners:
            event, number, then = settled
            if session.opened_at > event or (session.number == number and context.generation > then):
                found = "P1: it came again after its acknowledgement was durable"
        if not session.lets_through(message.key or message.producer):
            found = f"P6: the consumer's filters {session.filters} do not match its key"
        if context.now_s < message.due_s:
            found = f"P5: it came at {context.now_s:.6f} s and was due at {message.due_s:.6f} s"
        if spot not in self.deliveries:
            found = self._first_sight(offset, message, context) or found
        self.open.add(spot)
        self.deliveries[spot] += 1
        self.reached[spot] = self.moves
        return found

    def give(self, spot: Spot, moves: int) -> None:
        """Record the acknowledgement of a message that was delivered after this many moves."""
        self.given[spot] = max(self.given.get(spot, 0), moves)
        self.open.discard(spot)

    def _first_sight(self, offset: int, message: MessageState, context: DeliveryContext) -> str:
        """Check the order of first attempts. A delivery lost on its way is repeated later, as a second attempt."""
        rules = self.rules
        order = ORDERS[rules.kind]
        if order is Order.NONE or not rules.in_order or self.moves or context.attempt > 1:
            return ""
        by_key = order is Order.KEY
        key = message.key or message.producer
        ordered_by = key if by_key else None
        before = self.last_new.get((ordered_by, (0, 0)), -1)
        self.last_new[ordered_by, (0, 0)] = max(before, offset)
        if not by_key and 0 <= before < offset and rules.message_ttl_s:
            self.gaps.append((before + 1, offset, context.now_s, self.stream_since_s))
        # A consumer may hand out queued messages after another one has taken over and has received later messages:
        # the queued ones are waiting for redelivery after a timeout, or have expired and are never delivered to the
        # other one. A restarted broker begins with the first unacknowledged message. Then order is checked for each
        # stream by itself.
        if context.life > 1 or rules.kind is SubscriptionType.FAILOVER or rules.message_ttl_s or self.expires:
            stream = context.session.number, context.generation
            before = self.last_new.get((ordered_by, stream), -1)
            self.last_new[ordered_by, stream] = max(before, offset)
        if offset < before:
            return f"P6: seen for the first time after {before}" + (f" of key {key}" if by_key else "")
        return ""

    def moved(self, offset: int, *, failed: bool = False, voids: bool = True) -> int:
        """Record that the cursor is being moved to an offset; return the number of such records.

        ``voids``: acknowledged messages may come again; not if all below the offset is only skipped.
        """
        self.moves += 1
        if failed:
            self.doubtful_below = max(self.doubtful_below, offset)
        self.excused_below = max(self.excused_below, offset)
        self.unsynced_below = max(self.unsynced_below, self.excused_below)
        if voids:
            self.settled.clear()
        return self.moves

    def synced(self) -> None:
        """Record that the position of the cursor is durable: the broker has recovered it."""
        self.unsynced_below, self.synced_again_since = self.excused_below, self.again_since

    def lost_tail(self) -> None:
        """Record a power loss: it may undo moves of the cursor since the broker was last ready."""
        self.moves_before_loss = self.moves
        self.excused_below, self.again_since = max(self.excused_below, self.unsynced_below), self.synced_again_since
        self.settled.clear()

    def sought(self, offset: int, moves: int) -> None:
        """Record that the cursor was moved to an offset, after this many moves: later messages must be redelivered."""
        # By no other client in the meantime; and not confirmed before a power loss, which may have undone it.
        if self.moves == moves + 1 and moves > self.moves_before_loss:
            self.again_since, self.excused_below = moves, max(offset, self.doubtful_below)

    def check(
        self, log: Mapping[int, bytes], sent: Callable[[bytes], MessageState], now_s: float, *, cut: bool
    ) -> Iterable[str]:
        """Yield violations, at the end; ``cut``: messages may be gone from the log's front."""
        if cut:
            return
        where = f"{self.topic}, subscription {self.subscription}"
        for start, end, when_s, since_s in self.gaps:
            for offset in range(start, end):
                message = sent(log[offset]) if offset in log else None
                if (
                    message is not None
                    and not self.deliveries[offset, message.checksum]
                    and since_s <= message.published_s <= when_s < message.published_s + self.rules.message_ttl_s
                ):
                    yield f"P5: {where}: @{offset} was skipped at {when_s:.3f} s, and had not expired"
        since = self.again_since
        came = {spot for spot, moves in self.reached.items() if moves >= since}
        never = [offset for offset in log if not self._is_excused(offset, log, sent, now_s, came)]
        if never:
            what = "were not delivered again after a seek" if since else "were never delivered"
            yield f"P5: {where}: {len(never)} messages {what}, the first is @{never[0]}"
        given = {spot for spot, moves in self.given.items() if moves >= since}
        passed = [offset for offset in log if not self._is_excused(offset, log, sent, now_s, given)]
        if passed:
            times = self.deliveries[passed[0], sent(log[passed[0]]).checksum]
            yield (
                f"P5: {where}: the cursor has passed {len(passed)} unacknowledged messages, the first is"
                f" @{passed[0]}, delivered {times} times"
            )

    def _is_excused(
        self,
        offset: int,
        log: Mapping[int, bytes],
        sent: Callable[[bytes], MessageState],
        now_s: float,
        done: set[Spot],
    ) -> bool:
        if offset < self.excused_below:
            return True
        rules, payload = self.rules, log[offset]
        message = sent(payload)
        spot = offset, message.checksum
        if spot in done or (rules.message_ttl_s and message.published_s + rules.message_ttl_s <= now_s):
            return True
        if self.deliveries[spot] <= rules.max_redelivery_count or rules.max_redelivery_count < 0:
            return False
        return PoisonPolicy.DROP in rules.poisons or payload in self.letters

    def check_letters(
        self, places: Mapping[bytes, tuple[str, int]], found: Sequence[DeadLetter], *, taken_back: bool
    ) -> Iterable[str]:
        """Add the dead letters of the subscription, and yield violations of those of this partition.

        ``taken_back``: a message may have been lost after it became a dead letter, and stored again elsewhere.
        """
        for letter in found:
            attributes = letter.attributes
            home = places.get(letter.payload)
            if home is None or home[0] != self.topic:
                continue
            self.letters[letter.payload] = letter
            where = f"dead letter of {self.topic} @{home[1]}, subscription {self.subscription}"
            wanted = {
                "x-original-topic": self.topic,
                "x-original-subscription": self.subscription,
                "x-original-topic-offset": str(home[1]),
                "x-poison-policy": "dead_letter",
            }
            if taken_back:
                wanted.pop("x-original-topic-offset")
            for name, value in wanted.items():
                if attributes.get(name) != value:
                    yield f"P5: {where}: {name} is {attributes.get(name)!r} instead of {value!r}"
            if not attributes.get("x-failure-reason"):
                yield f"P5: {where}: there is no x-failure-reason"
            if int(attributes.get("x-delivery-attempt", "0")) <= self.rules.max_redelivery_count:
                yield f"P5: {where}: given up in attempt {attributes.get('x-delivery-attempt')}"
            times = self.deliveries[home[1], zlib.crc32(letter.payload)]
            if times <= self.rules.max_redelivery_count and not taken_back:
                yield f"P5: {where}: was handed out only {times} times"
