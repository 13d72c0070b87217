"""Round robin among the consumers that have credit, and cutting a batch into their shares."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from danube.dispatch.inflight import Member
from danube.dispatch.spans import Span

__all__ = ["Turns", "cut", "merge", "share_of"]


class Turns:
    """The consumers with credit, in the order of their turns."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: deque[Member] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, member: Member) -> None:
        """Let a consumer with credit queue up at the end, unless it is in the line already."""
        if not member.queued:
            member.queued = True
            self._line.append(member)

    def remove(self, member: Member) -> None:
        """Take a consumer out of the line, if it is in it."""
        if member.queued:
            member.queued = False
            self._line.remove(member)

    def deal(self, count: int, span: Span) -> Iterator[tuple[Member, int]]:
        """Share out ``count`` messages of a batch: yield a consumer and how many it gets, until all are gone.

        Each consumer in the line gets an equal share, less if its credit does not reach; what remains is shared in
        further rounds. The consumer must be charged before the next step. Ends early when nobody has credit any more.
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
    """Join neighbours in a flat, sorted list of ranges."""
    merged = flat[:2]
    for index in range(2, len(flat), 2):
        if flat[index] == merged[-1]:
            merged[-1] = flat[index + 1]
        else:
            merged += flat[index : index + 2]
    return merged
