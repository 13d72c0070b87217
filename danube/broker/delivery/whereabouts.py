"""Who has a message: where it is in one subscription, as a word and as a sentence. Pure."""

from __future__ import annotations

import math
from typing import Final, Protocol

from danube.broker.delivery.connected_consumer import Origin
from danube.dispatch import Cursor, Machine
from danube.dispatch.spans import ACKNOWLEDGED, DELAYED, IN_FLIGHT, POISONED, UNDELIVERED, WAITING, Place
from danube.model.overview_api import MessageDelivery
from danube.model.policies import PoisonPolicy, SubscriptionPolicy
from danube.model.records import SubscriptionRecord

__all__ = ["Located", "delivery_of"]

_BEFORE_START: Final = "before-start"
_DEAD_LETTERED: Final = "dead-lettered"


class Copies(Protocol):
    """The dead letters of a subscription; see :class:`danube.broker.delivery.dead_letters.DeadLetters`."""

    @property
    def target(self) -> str:
        """Name of the topic that they are copied to."""
        ...

    def has(self, offset: int) -> bool:
        """Whether a message is known to be copied."""
        ...


class Located(Protocol):
    """What of a subscription tells where a message is."""

    name: str
    cursor: Cursor
    machine: Machine
    record: SubscriptionRecord | None

    @property
    def topic(self) -> Origin:
        """The topic or partition."""
        ...

    @property
    def policy(self) -> SubscriptionPolicy:
        """Its policy."""
        ...

    @property
    def dead_letters(self) -> Copies:
        """Its dead letters."""
        ...


def delivery_of(subscription: Located, offset: int, now: float) -> MessageDelivery:
    """Return where a message is in a subscription (``now``: monotonic seconds)."""
    place = subscription.machine.place_of(offset, now)
    state, target = place.state, ""
    if state == ACKNOWLEDGED and subscription.dead_letters.has(offset):
        state = _DEAD_LETTERED
    elif state == ACKNOWLEDGED and _is_before(subscription, offset):
        state = _BEFORE_START
    if state == _DEAD_LETTERED or (state == POISONED and subscription.policy.poison is PoisonPolicy.DEAD_LETTER):
        target = subscription.dead_letters.target
    due_s = None if place.due is None else max(0.0, place.due - now)
    timeout_s = None if place.deadline in (None, math.inf) else max(0.0, (place.deadline or 0.0) - now)
    return MessageDelivery(
        topic=subscription.topic.name,
        subscription=subscription.name,
        state=state,
        sentence=_sentence(subscription, place, state, target, offset, now),
        consumer=place.consumer,
        since_s=None if place.since is None else now - place.since,
        timeout_in_s=timeout_s,
        due_in_s=due_s,
        attempt=place.attempt,
        failures=place.failures,
        reason=place.reason,
        dead_letter_topic=target,
    )


def _is_before(subscription: Located, offset: int) -> bool:
    """Whether a message is older than the subscription, which has not been moved since."""
    record = subscription.record
    return record is not None and subscription.cursor.generation == 0 and offset < record.start_offset


def _sentence(subscription: Located, place: Place, state: str, target: str, offset: int, now: float) -> str:
    if state == _DEAD_LETTERED:
        return f"it failed too often and was copied to {target!r}"
    if state == _BEFORE_START:
        return "it is older than the subscription, which does not receive it"
    if state == ACKNOWLEDGED:
        return "acknowledged, or skipped: it is not delivered again"
    if state == IN_FLIGHT:
        since = 0.0 if place.since is None else now - place.since
        ends = place.deadline is not None and place.deadline < math.inf
        timeout = f", which has {max(0.0, (place.deadline or 0.0) - now):.1f} s left" if ends else ""
        return f"in flight at consumer {place.consumer!r} for {since:.1f} s, attempt {place.attempt}{timeout}"
    if state == DELAYED:
        return f"delayed by its publisher for {max(0.0, (place.due or 0.0) - now):.1f} s more"
    if state == POISONED:
        what = f"waits to be copied to {target!r}" if target else "blocks the messages behind it"
        return f"failed {_times(place.failures)} ({place.reason}); it {what}"
    before = f"; it has failed {_times(place.failures)} ({place.reason})" if place.failures else ""
    if state == WAITING and place.due is not None and place.due > now:
        return f"waits {place.due - now:.1f} s for its redelivery{before}"
    if state == WAITING:
        return f"waits for a consumer that may have it{before}"
    assert state == UNDELIVERED
    position = subscription.machine.position
    ahead = offset - position
    queue = "it is the next one" if not ahead else f"{ahead:,} message{'s' if ahead > 1 else ''} before it"
    return f"not delivered yet: {queue}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
