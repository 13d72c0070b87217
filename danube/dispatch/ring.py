"""Which consumer owns which key: a consistent hashing ring.

Each consumer has 100 points on a ring of 32-bit numbers; a key belongs to the first point at or after its own hash.
When a consumer joins or leaves, only the keys next to its points move, about one in N. The hash is that of upstream:
FNV-1a 64, folded to 32 bits, then the finaliser of MurmurHash3 (https://github.com/aappleby/smhasher), which spreads
the points evenly. The points are made from the consumer's *name* (upstream: a number that is new at each connect), so a
consumer that reconnects gets its keys back.
"""

from __future__ import annotations

from bisect import bisect_left

from danube.dispatch.inflight import Member
from danube.model.names import fnv1a_64

__all__ = ["POINTS", "Ring", "ring_hash"]

POINTS = 100
"""Points of one consumer on the ring."""


def ring_hash(text: str) -> int:
    """Return the place of a key, or of ``{consumer name}-{point}``, on the ring: 0 to 2**32 - 1."""
    digest = fnv1a_64(text.encode("utf-8", "surrogatepass"))
    folded = (digest >> 32) ^ (digest & 0xFFFFFFFF)
    folded = ((folded ^ (folded >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    folded = ((folded ^ (folded >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return folded ^ (folded >> 16)


class Ring:
    """The points of all consumers, sorted."""

    __slots__ = ("_owners", "_points")

    def __init__(self) -> None:
        self._points: list[tuple[int, str]] = []
        self._owners: list[Member] = []

    def add(self, member: Member) -> None:
        """Put a consumer on the ring."""
        for point in range(POINTS):
            place = (ring_hash(f"{member.name}-{point}"), member.name)
            index = bisect_left(self._points, place)
            self._points.insert(index, place)
            self._owners.insert(index, member)

    def remove(self, member: Member) -> None:
        """Take a consumer off the ring."""
        kept = [(place, owner) for place, owner in zip(self._points, self._owners, strict=True) if owner is not member]
        self._points = [place for place, _ in kept]
        self._owners = [owner for _, owner in kept]

    def owner(self, place: int) -> Member | None:
        """Return the owner of what hashes to ``place``; None if the ring is empty."""
        if not self._owners:
            return None
        index = bisect_left(self._points, (place, ""))
        return self._owners[index if index < len(self._owners) else 0]
