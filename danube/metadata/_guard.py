"""Determines whether a metadata change whose answer was lost was applied, with a guard key. Pure: no I/O, no clock.

A request whose answer was lost may have been applied, may have been refused, or may *still be on its way*. So reading
the store decides nothing: the request may arrive after the read. But every change of a writer is conditional on the
revision of one key, its guard, and puts a new :class:`Mark` there. Therefore at most one of the requests sent since the
last known revision can ever be applied: the first one that is applied voids all others::

    known revision r     change 7: if guard is at r: rows, guard := (life, 7)      answer lost
                         fence  8: if guard is at r: guard := (life, 8)            rewrites the guard

      fence answered     change 7 was not applied, and will be refused if it arrives
      fence refused      the guard is no longer at r: read it. (life, 7): applied, at the revision of the guard;
                         a higher number: an earlier fence has arrived; another life: another process has taken over

Only its writer writes a guard, so the answer is exact even if other members of a cluster change the same rows at the
same time. The values of the rows do not matter.

Stored (msgpack, an array)::

    life      number of the writer's process: that of its predecessor plus one
    number    of the request that wrote the mark; unique within a life
"""

from __future__ import annotations

import enum

import msgspec

from danube.metadata._contract import Condition, KeyValue, Put
from danube.model.decoding import UNDECODABLE

__all__ = ["Guard", "Mark", "Verdict"]


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The value of a guard; see the module."""

    life: int
    number: int


_encode = msgspec.msgpack.encode
_MARK = msgspec.msgpack.Decoder(Mark)


class Verdict(enum.Enum):
    """Outcome of the change in doubt, according to a read of the guard."""

    APPLIED = "applied"
    """It was applied, at the revision of the guard."""
    NOT_APPLIED = "not applied"
    """It was not applied, and will be refused if it arrives."""
    OPEN = "open"
    """The guard has not changed since the change was sent: it may still arrive. Rewrite the guard."""
    DISPLACED = "displaced"
    """Another process has taken the guard, or the guard was deleted. Nothing more can be written under it."""


class Guard:
    """State of a writer's guard: the last known revision, and whether a change is in doubt.

    The writer sends one request at a time. A change is in doubt from :meth:`change` until its answer is recorded, or
    until :meth:`fenced` or :meth:`judge` decides about it, even if the caller is cancelled.

    Args:
        key: of the guard.
        life: of this writer; unique among all processes.
        revision: at which this life's first mark was written.
    """

    __slots__ = ("_doubtful", "_number", "key", "life", "revision")

    def __init__(self, key: str, life: int, revision: int) -> None:
        self.key = key
        self.life = life
        self.revision = revision
        """Last known revision of the guard; the change in doubt and all fences are conditional on it."""
        self._number = 0
        self._doubtful = 0

    @classmethod
    def first_mark(cls, key: str, item: KeyValue | None) -> tuple[int, Put, int]:
        """Return the next life, the put of its first mark, and the revision that the put is conditional on.

        Args:
            key: of the guard.
            item: the present guard, None if there is none.

        Raises:
            ValueError: the guard cannot be decoded.
        """
        former = 0
        if item is not None:
            try:
                former = _MARK.decode(item.value).life
            except UNDECODABLE as error:
                raise ValueError(f"metadata key {key!r} does not decode: {error}") from error
        life = former + 1
        return life, cls.mark_of(key, life), item.mod_revision if item is not None else 0

    @staticmethod
    def mark_of(key: str, life: int) -> Put:
        """Return the put of the first mark of a life."""
        return Put(key, _encode(Mark(life, 0)))

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of the last change is unknown."""
        return bool(self._doubtful)

    @property
    def condition(self) -> Condition:
        """The condition of the next request."""
        return Condition(self.key, self.revision)

    def _mark(self) -> Put:
        self._number += 1
        return Put(self.key, _encode(Mark(self.life, self._number)))

    def change(self) -> Put:
        """Begin a change: it is in doubt from now on. Return the operation to add to its transaction."""
        assert not self._doubtful, "the last change is still in doubt"
        mark = self._mark()
        self._doubtful = self._number
        return mark

    def applied(self, revision: int) -> None:
        """Record that the change was applied at ``revision``."""
        assert self._doubtful
        self.revision, self._doubtful = revision, 0

    def withdrawn(self) -> None:
        """Record that the change was not applied: it was not sent, or this very request was refused."""
        self._doubtful = 0

    def fence(self) -> Put:
        """Return the operation that rewrites the guard, to be put under :attr:`condition`."""
        return self._mark()

    def fenced(self, revision: int) -> None:
        """Record that a fence was applied at ``revision``: the change in doubt was not, and will be refused."""
        self.revision, self._doubtful = revision, 0

    def judge(self, item: KeyValue | None) -> Verdict:
        """Determine the outcome of the change in doubt from the guard, read after a fence was refused.

        Args:
            item: the guard as read; None if it does not exist.
        """
        if item is None:
            return Verdict.DISPLACED
        if item.mod_revision == self.revision:
            return Verdict.OPEN
        try:
            mark = _MARK.decode(item.value)
        except UNDECODABLE:
            return Verdict.DISPLACED
        if mark.life != self.life:
            return Verdict.DISPLACED
        happened = mark.number == self._doubtful
        self.revision, self._doubtful = item.mod_revision, 0
        return Verdict.APPLIED if happened else Verdict.NOT_APPLIED
