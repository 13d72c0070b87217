"""Brings proposals into the log of the leader, each at most once, and says which of them are certainly void. Pure.

A member hands the proposals of its callers to the leader of its term. Links lose, repeat and reorder messages, and
leaders change, so the same proposal may have to be sent more than once, and must still be appended only once:

* A member numbers its proposals from 1 in each term, and sends all that are not confirmed. A leader appends them in
  their order, without gaps, remembers the last number of each member (and process), and confirms it. What it has taken
  before is not appended again.
* A proposal is sent only to the leader of the term for which it was numbered, and that leader takes it only in that
  term.
* Terms never fall along a log. So once a member has applied an entry of a later term, none of its proposals of earlier
  terms can appear in the log any more: those that it has not seen are **void**. They were never applied, and are
  numbered again for the present leader. This is no retry after a lost answer: it is known that nothing happened.

So a caller never has to be told "perhaps" because of a change of leaders; only if it stops waiting, or its own member
dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Inbox", "Outbox", "Sent"]

T = TypeVar("T")


class Sent(NamedTuple, Generic[T]):
    """A proposal on its way."""

    number: int
    """In its term."""
    data: bytes
    item: T
    """The proposal's owner."""


class Outbox(Generic[T]):
    """The proposals of one member that wait to appear in its log.

    Attributes:
        term: the term for which they are numbered.
    """

    def __init__(self) -> None:
        self.term = 0
        self._sent: deque[Sent[T]] = deque()
        self._old: list[T] = []
        """Of earlier terms: they may still appear."""
        self._number = 0
        self._confirmed = 0

    def __len__(self) -> int:
        return len(self._sent) + len(self._old)

    @property
    def unconfirmed(self) -> int:
        """Number of proposals that the leader has not confirmed."""
        return self._number - self._confirmed

    def enter(self, term: int) -> None:
        """Begin a term. What was sent in earlier ones may still appear."""
        if term > self.term:
            self.term = term
            self._old += [each.item for each in self._sent]
            self._sent.clear()
            self._number = self._confirmed = 0

    def add(self, data: bytes, item: T) -> int:
        """Add a proposal for the leader of the present term; return its number."""
        self._number += 1
        self._sent.append(Sent(self._number, data, item))
        return self._number

    def to_send(self, *, after: int = 0) -> tuple[int, list[bytes]]:
        """Return the first number, and the data, of the proposals behind ``after`` that are not confirmed."""
        after = max(after, self._confirmed)
        waiting = [each for each in self._sent if each.number > after]
        return after + 1, [each.data for each in waiting]

    def confirmed(self, term: int, number: int) -> None:
        """Record that the leader has appended everything up to a number."""
        if term == self.term:
            self._confirmed = max(self._confirmed, min(number, self._number))

    def appeared(self, item: T) -> bool:
        """Record that a proposal of this member was applied; return whether it was waited for."""
        for index, each in enumerate(self._sent):
            if each.item is item:
                del self._sent[index]
                self._confirmed = max(self._confirmed, each.number)
                return True
        if item in self._old:
            self._old.remove(item)
            return True
        return False

    def void(self, applied_term: int) -> list[T]:
        """Return, and forget, the proposals that can no longer appear: an entry of this term was applied."""
        gone: list[T] = []
        if applied_term >= self.term:
            gone, self._old = self._old, []
        if applied_term > self.term:
            gone += [each.item for each in self._sent]
            self.enter(applied_term)
            self._old.clear()
        return gone

    def forget(self, items: Iterable[T]) -> None:
        """Forget proposals: their owner waits no longer. They may still appear."""
        for item in items:
            self.appeared(item)

    def clear(self) -> list[T]:
        """Forget, and return, all."""
        items = [*self._old, *(each.item for each in self._sent)]
        self._old.clear()
        self._sent.clear()
        return items


class Inbox:
    """The leader's memory of what it has taken from each member in its term."""

    def __init__(self) -> None:
        self.term = 0
        self._taken: dict[tuple[int, int], int] = {}

    def enter(self, term: int) -> None:
        """Begin a term."""
        if term != self.term:
            self.term = term
            self._taken.clear()

    def news(self, member: int, life: int, first: int, proposals: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the proposals that follow those taken before; nothing if some in between are missing."""
        taken = self._taken.get((member, life), 0)
        return proposals[taken + 1 - first :] if first <= taken + 1 else ()

    def took(self, member: int, life: int, count: int) -> int:
        """Record that so many more were appended; return the number of the last one."""
        taken = self._taken[member, life] = self._taken.get((member, life), 0) + count
        return taken
