"""Round robin among the consumers with credit: shares of a batch, and cutting ranges into them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from danube.dispatch.inflight import Member
from danube.dispatch.spans import Span

__all__ = ["Turns", "cut", "merge", "share_of"]


class Turns:
    """A queue of the consumers with credit, in the order of their turns."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: deque[Member] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, member: Member) -> None:
        """Add a consumer with credit at the end of the queue, unless it is queued already."""
        if not member.queued:
            member.queued = True
            self._line.append(member)

    def remove(self, member: Member) -> None:
        """Remove a consumer from the queue, if it is queued."""
        if member.queued:
            member.queued = False
            self._line.remove(member)

    def deal(self, count: int, span: Span) -> Iterator[tuple[Member, int]]:
        """Share out ``count`` messages of a batch: yield a consumer and its number of messages, until all are assigned.

        Each queued consumer gets an equal share, less if its credit does not suffice; the rest is shared in
        further rounds. The consumer must be charged before the next step. Ends early when no consumer has credit any
        more.
        """
        line = self._line
        while count and line:
            quota = -(-count // len(line))
            for _ in range(len(line)):
                member = line.popleft()
                average = max(1, span.size_bytes // (span.end_offset - span.base_offset))
                taken = min(quota, count, member.credit_messages, -(-member.credit_bytes // average))
                yield member, taken
                count -= taken
                if member.has_credit:
                    line.append(member)
                else:
                    member.queued = False
                if not count:
                    return


def share_of(span: Span, messages: int) -> int:
    """Return the byte credit for ``messages`` of a batch: their share of its size, rounded up."""
    return -(-span.size_bytes * messages // (span.end_offset - span.base_offset))


def cut(pairs: list[tuple[int, int]], count: int) -> list[int]:
    """Remove the first ``count`` offsets from ``pairs`` (in reverse order: the lowest is last) as a flat list."""
    ranges: list[int] = []
    while count:
        start, end = pairs.pop()
        if end - start > count:
            pairs.append((start + count, end))
            end = start + count
        ranges += (start, end)
        count -= end - start
    return ranges


def merge(flat: list[int]) -> list[int]:
    """Merge adjacent ranges in a flat, sorted list."""
    merged = flat[:2]
    for index in range(2, len(flat), 2):
        if flat[index] == merged[-1]:
            merged[-1] = flat[index + 1]
        else:
            merged += flat[index : index + 2]
    return merged
