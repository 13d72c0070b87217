"""What fails, when it is tried again, and when it is poison.

A message *fails* when it is refused (nack) or not acknowledged in time. When its consumer is lost it is delivered again
as well, but that says nothing about the message. So two counters go with whatever was delivered: ``attempt`` says
whether a delivery may be a repeat, ``failures`` decides about pauses and poison::

    deliver ── nack, timeout ──▶ attempt + 1, failures + 1 ──▶ pause of the policy, then deliver again
       │                                                  └──▶ too many: poison
       └────── consumer lost ──▶ attempt + 1               ──▶ deliver again at once
"""

from __future__ import annotations

from typing import Final, NamedTuple

from danube.model.policies import SubscriptionPolicy

__all__ = ["FIRST", "NACKED", "TIMED_OUT", "History", "retry_at"]

NACKED: Final = "nack"
"""Reason of a nack that gives none."""
TIMED_OUT: Final = "ack timeout"
"""Reason of a failure by timeout."""


class History(NamedTuple):
    """What has become of some messages so far."""

    attempt: int
    """Of a delivery: which one it is. Of what waits: which one the next will be."""
    failures: int
    reason: str
    """What was said about the last failure."""

    def failed(self, reason: str) -> History:
        """Return the history after one more failure."""
        return History(self.attempt + 1, self.failures + 1, reason)

    def lost(self) -> History:
        """Return the history after the loss of the consumer."""
        return History(self.attempt + 1, self.failures, self.reason)


FIRST: Final = History(1, 0, "")
"""The history of a message at its first delivery."""


def retry_at(policy: SubscriptionPolicy, failures: int, delay_s: float | None, failed_at: float) -> float | None:
    """Return when a message that has failed so often may be delivered again (monotonic seconds); None: never, poison.

    Args:
        policy: of the subscription.
        failures: how often it has failed; 0 if it only lost its consumer.
        delay_s: the pause that was asked for; None: as the policy says.
        failed_at: when that was.
    """
    if failures and policy.is_poison(failures):
        return None
    if delay_s is None:
        delay_s = policy.redelivery_delay(failures) if failures else 0.0
    return failed_at + delay_s
