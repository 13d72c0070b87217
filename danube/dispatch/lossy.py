"""Subscriptions of topics without durability: each batch is delivered at once or dropped.

Nothing is read from a log, acknowledged or delivered again. An offered batch goes to the matching consumers, by the
rules of the subscription's type. Messages that find no consumer with credit are dropped and counted, and the consumer
that would have received them is notified of the gap before its next delivery.

A message that matches no consumer's key filters is skipped, and does not count as lost. A batch cannot be stored
until its delivery time, so that is ignored, and so are all failure policies.
"""

from __future__ import annotations

from collections.abc import Sequence

from danube.dispatch.cursor import Cursor
from danube.dispatch.exclusive import refuse_second
from danube.dispatch.explain import Facts, explain
from danube.dispatch.inflight import Member
from danube.dispatch.machine import Machine
from danube.dispatch.ring import Ring, ring_hash
from danube.dispatch.spans import Delivery, Explanation, Gap, ReadRequest, Span
from danube.dispatch.turns import Turns, cut, merge, share_of
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["LossyMachine"]


class LossyMachine(Machine):
    """Machine of a subscription of any type whose topic stores nothing. Its cursor follows the log."""

    def __init__(self, kind: SubscriptionType, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(kind, cursor, limits, policy)
        self._turns = Turns()
        self._ring = Ring()

    @property
    def active(self) -> int | None:
        """The consumer that gets the messages, None if there is none."""
        if self.traits.has_active:
            return next(iter(self._members), None)
        return None

    def _admit(self, name: str, displaced: Member | None) -> None:
        refuse_second(self.traits, next(iter(self._members.values()), None), name)

    def _joined(self, member: Member, now: float) -> None:
        if self.traits.wants_keys:
            self._ring.add(member)

    def _left(self, member: Member, now: float) -> None:
        self._turns.remove(member)
        if self.traits.wants_keys:
            self._ring.remove(member)

    def _credited(self, member: Member) -> None:
        if not self.traits.has_active and not self.traits.wants_keys:
            self._turns.add(member)

    def _uncredited(self, member: Member) -> None:
        self._turns.remove(member)

    def next_read(self, now: float) -> ReadRequest | None:
        """Return None: batches are offered as they are published."""
        return None

    def offered(self, span: Span, now: float) -> list[Delivery | Gap]:
        """Take a batch: deliver it now, or drop it."""
        out: list[Delivery | Gap] = []
        start, end = max(span.base_offset, self.position), span.end_offset
        if start >= end:
            return out
        self.position = end
        self.cursor.ack(self.cursor.floor, end)
        if self.traits.wants_keys:
            self._by_key(span, start, out)
        elif not self.traits.has_active:
            self._share(span, start, out)
        else:
            member = next(iter(self._members.values()), None)
            if member is not None and member.has_credit:
                self._deliver(member, span, [start, end], end - start, span.size_bytes, out)
            else:
                self._drop(member, start, end, end - start)
        return out

    def _share(self, span: Span, start: int, out: list[Delivery | Gap]) -> None:
        pairs = [(start, span.end_offset)]
        for member, count in self._turns.deal(span.end_offset - start, span):
            self._deliver(member, span, cut(pairs, count), count, share_of(span, count), out)
        if pairs:  # lost to no particular consumer; the first one is notified
            self._drop(next(iter(self._members.values()), None), *pairs[0], pairs[0][1] - pairs[0][0])

    def _by_key(self, span: Span, start: int, out: list[Delivery | Gap]) -> None:
        slices: dict[int, list[int]] = {}
        owners: dict[bytes, Member | None] = {}
        dropped: list[tuple[Member | None, int]] = []
        for offset in range(start, span.end_offset):
            key = span.keys[offset - span.base_offset] if span.keys is not None else b""
            if key not in owners:
                owners[key] = self._ring.owner(ring_hash(key), key)
            member = owners[key]
            if member is None:
                if not self._members:
                    dropped.append((None, offset))
                continue
            ranges = slices.setdefault(member.consumer_id, [])
            if member.credit_messages * 2 <= len(ranges) or member.credit_bytes <= 0:
                dropped.append((member, offset))
            else:
                ranges += (offset, offset + 1)
        for consumer_id, singles in slices.items():
            if singles:
                count = len(singles) // 2
                ranges = merge(singles)
                self._deliver(self._members[consumer_id], span, ranges, count, share_of(span, count), out)
        for member, offset in dropped:  # after the deliveries: a gap reported with them ends before them
            self._drop(member, offset, offset + 1, 1)

    def _deliver(
        self, member: Member, span: Span, ranges: list[int], count: int, size: int, out: list[Delivery | Gap]
    ) -> None:
        if member.gap_end >= 0:
            out.append(Gap(member.consumer_id, member.gap_start, member.gap_end))
            member.gap_start = member.gap_end = -1
        member.charge(count, size)
        whole = count == span.end_offset - span.base_offset
        out.append(Delivery(member.consumer_id, span.token, span.base_offset, ranges, 1, whole, count, size))

    def _drop(self, member: Member | None, start: int, end: int, count: int) -> None:
        self._dropped += count
        if member is not None:
            if member.gap_end < 0:
                member.gap_start = start
            member.gap_end = end

    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Do nothing: there is nothing to acknowledge."""
        return []

    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Do nothing: there is nothing to deliver again."""

    def extend(self, consumer_id: int, ranges: Sequence[int], lease_s: float, now: float) -> None:
        """Do nothing: there are no leases."""

    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Do nothing: there is no log."""
        return []

    def rewind(self, now: float) -> None:
        """Do nothing: nothing is stored that could be read again."""

    def seek(self, offset: int, now: float) -> None:
        """Continue from ``offset``; offered messages below it are ignored."""
        self.cursor.seek(offset)
        self.position = offset

    def tick(self, now: float) -> None:
        """Do nothing: there are no timeouts."""

    def next_deadline(self) -> float | None:
        """Return None."""
        return None

    def explain(self, now: float, end_offset: int) -> Explanation:
        """Explain why the subscription moves or does not."""
        return explain(
            Facts(
                description=self.describe(end_offset),
                now=now,
                end_offset=end_offset,
                wants=None,
                full=None,
                next_due=None,
                oldest=None,
                lossy=True,
            )
        )
