"""Failure rules of messages: counts attempts and failures, schedules retries, and detects poison messages.

A message *fails* when it is refused (nack) or not acknowledged in time. When its consumer is lost it is delivered again
as well, but that is not a failure of the message. So every delivered message has two counters: ``attempt`` tells
whether a delivery may be a repeat, ``failures`` decides about pauses and poison::

    deliver ── nack, timeout ──▶ attempt + 1, failures + 1 ──▶ pause of the policy, then deliver again
       │                                                  └──▶ too many: poison
       └────── consumer lost ──▶ attempt + 1               ──▶ deliver again at once
"""

from __future__ import annotations

from typing import Final, NamedTuple

from danube.model.policies import SubscriptionPolicy

__all__ = ["FIRST", "NACKED", "TIMED_OUT", "DeliveryHistory", "retry_at"]

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
