"""Consistent hashing ring of a key-shared subscription: assigns each key to one consumer.

Each consumer has 100 points on a ring of 32-bit numbers; a key belongs to the first point at or after its own hash
whose consumer is eligible: its key filters match the key, and it is not suspended unless all matching ones
are. When a consumer joins, leaves, is suspended or resumed, only keys next to its points move, about one in N.

The hash is that of upstream: FNV-1a 64, folded to 32 bits, then the finaliser of MurmurHash3
(https://github.com/aappleby/smhasher), which spreads the points evenly. The points are derived from the consumer's
*name* (upstream: a number that is new at each connect), so a consumer that reconnects gets its keys back.
"""

from __future__ import annotations

from bisect import bisect_left

from danube.dispatch.globs import Glob, matches_any
from danube.dispatch.inflight import Member
from danube.model.keys import key_to_text
from danube.model.names import fnv1a_64

__all__ = ["POINTS", "Ring", "ring_hash"]

POINTS = 100
"""Points per consumer on the ring."""


def ring_hash(data: bytes) -> int:
    """Return the place of a key, or of ``{consumer name}-{point}``, on the ring: 0 to 2**32 - 1."""
    digest = fnv1a_64(data)
    folded = (digest >> 32) ^ (digest & 0xFFFFFFFF)
    folded = ((folded ^ (folded >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    folded = ((folded ^ (folded >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return folded ^ (folded >> 16)


class Ring:
    """The points of all consumers, sorted.

    Attributes:
        version: incremented whenever keys may have moved. Read-only for other objects.
        filtered: True if some consumer has key filters, so that keys without owner may exist. Read-only for other
            objects.
    """

    __slots__ = ("_globs", "_members", "_owners", "_points", "_suspended", "filtered", "version")

    def __init__(self) -> None:
        self.version = 0
        self.filtered = False
        self._points: list[tuple[int, str]] = []
        self._owners: list[Member] = []
        self._members: list[Member] = []
        self._suspended: set[Member] = set()
        self._globs: dict[tuple[str, ...], list[Glob]] = {}
        """The compiled filters, shared by consumers with equal filters."""

    def add(self, member: Member) -> None:
        """Put a consumer on the ring, with its key filters; not suspended."""
        for point in range(POINTS):
            place = (ring_hash(f"{member.name}-{point}".encode("utf-8", "surrogatepass")), member.name)
            index = bisect_left(self._points, place)
            self._points.insert(index, place)
            self._owners.insert(index, member)
        self._members.append(member)
        self._changed()

    def remove(self, member: Member) -> None:
        """Take a consumer off the ring."""
        kept = [(place, owner) for place, owner in zip(self._points, self._owners, strict=True) if owner is not member]
        self._points = [place for place, _ in kept]
        self._owners = [owner for _, owner in kept]
        self._members.remove(member)
        self._suspended.discard(member)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        known = self._globs
        self._globs = {
            filters: known.get(filters) or [Glob(pattern) for pattern in filters]
            for filters in (member.filters for member in self._members)
        }
        self.filtered = any(self._globs)

    def suspend(self, member: Member) -> None:
        """Give the keys of a consumer to other matching consumers, if there are any."""
        self._suspended.add(member)
        self.version += 1

    def resume(self, member: Member) -> None:
        """Give a consumer its keys back."""
        self._suspended.discard(member)
        self.version += 1

    def owner(self, place: int, key: bytes = b"") -> Member | None:
        """Return the owner of ``key``, which hashes to ``place``; None if there is no consumer or none matches."""
        owners = self._owners
        if not owners:
            return None
        index = bisect_left(self._points, (place, ""))
        if index == len(owners):
            index = 0
        if not self.filtered and not self._suspended:
            return owners[index]
        able = self._able(key)
        if not able:
            return None
        # With M of N consumers to be found, this takes about N / M steps.
        while owners[index] not in able:
            index = index + 1 if index + 1 < len(owners) else 0
        return owners[index]

    def _able(self, key: bytes) -> set[Member]:
        """Return the consumers eligible for a key."""
        text = key_to_text(key)
        verdicts = {filters: matches_any(globs, text) for filters, globs in self._globs.items()}
        able = {member for member in self._members if verdicts[member.filters]}
        return able - self._suspended or able
