"""Dead letters as JSON: the letters of a subscription, how often each reason is, and what is replayed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from danube.model.dead_letters import Selection, failure_of, own_attributes, parse_place
from danube.model.errors import InvalidArgumentError
from danube.web.messages import Delivered, message_row

__all__ = [
    "LOOKED_AT",
    "Choice",
    "DeadLetter",
    "DeadLetterPage",
    "Handled",
    "Letters",
    "ReasonCount",
    "Replayed",
    "ReplayChoice",
    "TargetCount",
    "selection_of",
]

LOOKED_AT: Final = 10_000
"""Most letters that one call looks at, from the first one that was not replayed or dropped."""
MOST_REASONS: Final = 50


class DeadLetter(msgspec.Struct, kw_only=True):
    """A message that a subscription gave up."""

    partition: int
    offset: int
    """In the dead-letter topic."""
    original_topic: str | None
    """Topic or partition; None, here and below: its attributes do not say."""
    original_offset: int | str | None
    original_producer: str | None
    attempts: int | str | None
    reason: str | None
    """Of the last failure."""
    publish_time_us: int
    """Of the original."""
    failed_us: int
    """When the subscription gave it up."""
    handled: bool
    """Whether it was replayed or dropped."""
    key: str | None
    key_base64: str | None
    attributes: dict[str, str]
    """Of the original."""
    size_bytes: int
    payload: str | None
    payload_base64: str | None
    truncated: bool


class ReasonCount(msgspec.Struct, kw_only=True):
    """How many letters have a reason."""

    reason: str
    messages: int


class DeadLetterPage(msgspec.Struct, kw_only=True):
    """The dead letters of a subscription."""

    topic: str
    """The dead-letter topic."""
    exists: bool
    """Whether it exists: it is created with the first dead letter."""
    sends: bool
    """Whether the policy of the subscription sends poison messages there."""
    messages: int
    """In the topic, those that were replayed or dropped included, until its retention removes them."""
    waiting: int
    """Of them, those that were not replayed or dropped; of all subscriptions that send there."""
    letters: list[DeadLetter]
    """Those of this subscription that were asked for, in the order in which they failed."""
    reasons: list[ReasonCount]
    """Of all letters of this subscription that were looked at and wait, the most frequent first."""
    looked_at: int
    more: bool
    """Whether there are letters that were not looked at, or not returned."""


class Choice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which letters are dropped: exactly one of ``offsets``, ``reason`` and ``all``."""

    offsets: list[int | str] | None = None
    """Offsets in the dead-letter topic; of a partitioned one ``PARTITION:OFFSET``."""
    reason: Annotated[str, Meta(min_length=1)] | None = None
    """All whose reason contains this text."""
    all: bool = False
    """All of this subscription."""
    dry_run: bool = False
    """Change nothing, and return what would happen."""


class ReplayChoice(Choice, kw_only=True, forbid_unknown_fields=True):
    """Which letters are replayed, and where they go."""

    to: str | None = None
    """The topic that gets them; None: their original topics."""


class TargetCount(msgspec.Struct, kw_only=True):
    """How many messages go to a topic, or come from it if they are dropped."""

    topic: str
    messages: int


class Replayed(msgspec.Struct, kw_only=True):
    """What was done, or would be."""

    topic: str
    """The dead-letter topic."""
    messages: int
    topics: list[TargetCount]
    left: int
    """Letters that were chosen and stay, because they cannot be sent."""
    reasons: list[str]
    """Why, of the first few."""
    dry_run: bool
    more: bool
    """Whether there are letters that were not looked at: call it again."""


def selection_of(choice: Choice, topic: str, subscription: str) -> Selection:
    """Return which letters are meant.

    Raises:
        InvalidArgumentError: none, or by several rules.
    """
    given = [name for name in ("offsets", "reason") if getattr(choice, name) is not None] + ["all"] * choice.all
    if len(given) != 1:
        raise InvalidArgumentError(
            f"{' and '.join(given) or 'nothing'} says which dead letters are meant; send one of offsets, reason and all"
        )
    offsets = None if choice.offsets is None else frozenset(parse_place(str(each)) for each in choice.offsets)
    return Selection(offsets=offsets, reason=choice.reason, origin=(topic, subscription))


class Handled:
    """Which offsets of one log were replayed or dropped.

    Args:
        floor: all before it were.
        ranges: and these: start and end of each.
    """

    def __init__(self, floor: int = 0, ranges: Sequence[int] = ()) -> None:
        self.floor = floor
        self._ranges = list(zip(ranges[::2], ranges[1::2], strict=True))

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        return offset < self.floor or any(start <= offset < end for start, end in self._ranges)

    def waiting(self, start: int, end: int, gaps: Iterable[tuple[int, int]] = ()) -> int:
        """Return how many messages of a log from ``start`` to ``end`` were not handled; gaps have no messages."""
        start = max(start, self.floor)
        done = sum(max(0, min(end, last) - max(start, first)) for first, last in self._ranges)
        missing = sum(self.waiting(max(start, low), min(end, high)) for low, high in gaps)
        return max(0, end - start - done - missing)


class Letters:
    """Collects the letters of a subscription.

    Args:
        origin: topic and subscription that gave them up.
        limit: most that are returned.
        reason: only those whose reason contains this text are returned; empty: any.
        handled_too: whether those that were replayed or dropped are returned as well.
        payload_bytes: beyond which payloads are cut.
    """

    def __init__(
        self, origin: tuple[str, str], *, limit: int, reason: str, handled_too: bool, payload_bytes: int
    ) -> None:
        self._mine = Selection(origin=origin)
        self._limit = limit
        self._reason = reason
        self._handled_too = handled_too
        self._payload_bytes = payload_bytes
        self._reasons: Counter[str] = Counter()
        self.looked_at = 0
        self.left_out = False
        self.letters: list[DeadLetter] = []

    @property
    def room(self) -> int:
        """How many more are looked at."""
        return LOOKED_AT - self.looked_at

    def add(self, partition: int, messages: Iterable[Delivered], handled: Handled) -> None:
        """Look at messages of a dead-letter topic."""
        for message in messages:
            self.looked_at += 1
            if not self._mine.takes(partition, message.offset, message.attributes):
                continue
            is_handled, failure = message.offset in handled, failure_of(message.attributes)
            if not is_handled:
                self._reasons[failure.reason or ""] += 1
            if (is_handled and not self._handled_too) or self._reason not in (failure.reason or ""):
                continue
            if len(self.letters) == self._limit:
                self.left_out = True
                continue
            row = message_row(message, partition, self._payload_bytes)
            self.letters.append(
                DeadLetter(
                    partition=partition,
                    offset=message.offset,
                    original_topic=failure.topic,
                    original_offset=failure.offset,
                    original_producer=failure.producer,
                    attempts=failure.attempts,
                    reason=failure.reason,
                    publish_time_us=row.publish_time_us,
                    failed_us=row.append_time_us,
                    handled=is_handled,
                    key=row.key,
                    key_base64=row.key_base64,
                    attributes=own_attributes(message.attributes) or {},
                    size_bytes=row.size_bytes,
                    payload=row.payload,
                    payload_base64=row.payload_base64,
                    truncated=row.truncated,
                )
            )

    def page(self, topic: str, *, exists: bool, sends: bool, messages: int, waiting: int, more: bool) -> DeadLetterPage:
        """Return them; arguments as the fields of :class:`DeadLetterPage`."""
        found: list[Any] = [
            ReasonCount(reason=reason, messages=number) for reason, number in self._reasons.most_common(MOST_REASONS)
        ]
        return DeadLetterPage(
            topic=topic,
            exists=exists,
            sends=sends,
            messages=messages,
            waiting=waiting,
            letters=self.letters,
            reasons=found,
            looked_at=self.looked_at,
            more=more or self.left_out,
        )
