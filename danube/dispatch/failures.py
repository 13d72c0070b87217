"""Failure rules of messages: counts attempts and failures, schedules retries, and detects poison messages.

A message *fails* when it is refused (nack) or not acknowledged in time. When its consumer is lost it is delivered again
as well, but that is not a failure of the message. So every delivered message has two counters: ``attempt`` tells
whether a delivery may be a repeat, ``failures`` decides about pauses and poison::

    deliver ── nack, timeout ──▶ attempt + 1, failures + 1 ──▶ pause of the policy, then deliver again
       │                                                  └──▶ too many: poison
       └────── consumer lost ──▶ attempt + 1               ──▶ deliver again at once
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from danube.model.policies import SubscriptionPolicy

__all__ = ["FIRST", "MOST_PAST", "NACKED", "TIMED_OUT", "DeliveryHistory", "PastDelivery", "Recalled", "retry_at"]

MOST_PAST: Final = 10_000
"""Most ranges of messages that were delivered before, of all subscriptions of a topic, whose history moves with it to
another broker: about 300 KB. What is beyond, the highest offsets of each subscription, is delivered as if for the first
time."""

NACKED: Final = "nack"
"""Reason of a nack without one."""
TIMED_OUT: Final = "ack timeout"
"""Reason of a failure by timeout."""


class DeliveryHistory(NamedTuple):
    """Delivery history of a range of messages."""

    attempt: int
    """Of a delivery: its number. Of waiting messages: the number of the next delivery."""
    failures: int
    reason: str
    """Reason of the last failure."""

    def failed(self, reason: str) -> DeliveryHistory:
        """Return the history after one more failure."""
        return DeliveryHistory(self.attempt + 1, self.failures + 1, reason)

    def lost(self) -> DeliveryHistory:
        """Return the history after the loss of the consumer."""
        return DeliveryHistory(self.attempt + 1, self.failures, self.reason)


FIRST: Final = DeliveryHistory(1, 0, "")
"""The history of a message at its first delivery."""


class PastDelivery(NamedTuple):
    """What a machine knows of messages that were delivered before, for a machine on another broker."""

    start: int
    end: int
    attempt: int
    """The number of the delivery that is under way, or else of the next one."""
    failures: int
    reason: str
    ago_s: float
    """How long ago they were returned."""
    delay_s: float | None
    """The requested pause since then; None: the policy's."""

    @property
    def history(self) -> DeliveryHistory:
        """Its delivery history."""
        return DeliveryHistory(self.attempt, self.failures, self.reason)


class Recalled:
    """Past deliveries that were taken over from another machine, until the messages are reached.

    Attributes:
        items: disjoint, in the order of their offsets; in each ``ago_s`` is the time when they were returned
            (monotonic seconds).
    """

    def __init__(self, past: Iterable[PastDelivery], now: float) -> None:
        self.items = deque(each._replace(ago_s=now - each.ago_s) for each in sorted(past))

    def __bool__(self) -> bool:
        return bool(self.items)

    def until(self, position: int) -> PastDelivery | None:
        """Remove and return the first one that begins at a position or before it; None: there is none."""
        return self.items.popleft() if self.items and self.items[0].start <= position else None

    def at(self, offset: int) -> PastDelivery | None:
        """Return that of an offset; those before it are dropped: offsets are asked for in their order."""
        while self.items and self.items[0].end <= offset:
            self.items.popleft()
        return self.items[0] if self.items and self.items[0].start <= offset else None

    def before(self, end: int) -> int:
        """Return ``end``, or where the first one begins if that is lower."""
        return min(end, self.items[0].start) if self.items else end


def retry_at(policy: SubscriptionPolicy, failures: int, delay_s: float | None, failed_at: float) -> float | None:
    """Return when a failed message may be delivered again (monotonic seconds); None: never, it is poison.

    Args:
        policy: of the subscription.
        failures: number of failures so far; 0 if it only lost its consumer.
        delay_s: the requested pause; None: the policy's.
        failed_at: time of the last failure.
    """
    if failures and policy.is_poison(failures):
        return None
    if delay_s is None:
        delay_s = policy.redelivery_delay(failures) if failures else 0.0
    return failed_at + delay_s
