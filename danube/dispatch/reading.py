"""Machine of a reader: one consumer that reads the log from a given offset on, without a subscription.

It delivers whole batches in order, as far as the credit goes, and keeps no state: no acknowledgements, no timeouts, no
redelivery. Messages read count as acknowledged. It reads the log as it is, so batches with a future delivery time
are delivered, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from danube.dispatch.cursor import Cursor
from danube.dispatch.exclusive import refuse_second
from danube.dispatch.explain import Facts, explain
from danube.dispatch.inflight import Member
from danube.dispatch.machine import Machine
from danube.dispatch.spans import Delivery, Explanation, ReadRequest, Span
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["ReaderMachine"]


class ReaderMachine(Machine):
    """Machine of a reader. It resembles that of an exclusive subscription; its cursor follows the position."""

    def __init__(self, limits: Limits, start: int = 0) -> None:
        """Build a machine that starts at offset ``start``."""
        super().__init__(SubscriptionType.EXCLUSIVE, Cursor(start), limits, SubscriptionPolicy(ack_timeout_s=0.0))

    @property
    def active(self) -> int | None:
        """Return the consumer, if it is connected."""
        return next(iter(self._members), None)

    def _admit(self, name: str, displaced: Member | None) -> None:
        refuse_second(self.traits, next(iter(self._members.values()), None), name)

    def next_read(self, now: float) -> ReadRequest | None:
        """Return the next batch, if there is credit for it."""
        member = next(iter(self._members.values()), None)
        return ReadRequest(self.position, False) if member is not None and member.has_credit else None

    def offered(self, span: Span, now: float) -> list[Delivery]:
        """Take a batch; see :meth:`Machine.offered`."""
        member = next(iter(self._members.values()), None)
        start, end = self.position, span.end_offset
        if member is None or not member.has_credit or not span.base_offset <= start < end:
            return []
        self._move(end)
        member.charge(end - start, span.size_bytes)
        member.acked += end - start
        whole = start == span.base_offset
        ranges = [start, end]
        return [
            Delivery(member.consumer_id, span.token, span.base_offset, ranges, 1, whole, end - start, span.size_bytes)
        ]

    def _move(self, offset: int) -> None:
        self.position = offset
        self.cursor.ack(self.cursor.floor, offset)

    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Do nothing: there is nothing to acknowledge."""
        return []

    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Do nothing: nothing is delivered again."""

    def extend(self, consumer_id: int, ranges: Sequence[int], lease_s: float, now: float) -> None:
        """Do nothing: there are no leases."""

    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Skip messages at the position that the log no longer holds; return nothing: there is nothing to journal."""
        for index in range(0, len(ranges), 2):
            if ranges[index] <= self.position < ranges[index + 1]:
                self._move(ranges[index + 1])
        return []

    def pass_over(self, end: int) -> None:
        """Go on at ``end``: a reader has nothing to acknowledge."""
        self._move(max(self.position, end))

    def rewind(self, now: float) -> None:
        """Do nothing: a reader goes on where it is."""

    def seek(self, offset: int, now: float) -> None:
        """Continue from ``offset``."""
        self.cursor.seek(offset)
        self.position = offset

    def tick(self, now: float) -> None:
        """Do nothing: there are no timeouts."""

    def next_deadline(self) -> float | None:
        """Return None."""
        return None

    def explain(self, now: float, end_offset: int) -> Explanation:
        """Explain why the reader moves or does not."""
        return explain(
            Facts(
                description=self.describe(end_offset),
                now=now,
                end_offset=end_offset,
                wants=self.next_read(now),
                full=None,
                next_due=None,
                oldest=None,
            )
        )
