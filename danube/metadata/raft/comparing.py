"""Whether the tables of all members are equal: compared by the leader from time to time. Pure: the time is passed in.

Equal logs make equal tables, unless memory, a disk or the code is at fault; and Raft never looks at tables. So the
leader puts an entry into the log that asks for a checksum; every member computes it when it applies that entry, so all
of them describe the same moment, and tells the leader. What a majority has is right. A member with another table is
told, and replaces it by a copy; a leader that finds itself among the few leaves the leadership to one of the others.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from danube.raft import Conf, NodeId

__all__ = ["Comparison", "Finding", "Verdict"]


class Verdict(Enum):
    """What a checksum has shown."""

    DIFFERS = "its table is not that of the majority"
    NO_MAJORITY = "no majority of the voters has the same table"


class Finding(NamedTuple):
    """A difference."""

    verdict: Verdict
    member: NodeId
    """Whose table it is; of NO_MAJORITY, the member that answered last."""


class Comparison:
    """The comparisons of a leader.

    Args:
        interval_s: between two of them.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_at = math.inf
        self._index = 0
        self._digests: dict[NodeId, int] = {}
        self._found: set[NodeId] = set()
        self._is_undecided = False

    def lead(self, now: float) -> None:
        """Begin to count the time."""
        self._next_at = now + self._interval_s

    def is_due(self, now: float) -> bool:
        """Return whether to propose a comparison now; the next one follows later."""
        if now < self._next_at:
            return False
        self._next_at = now + self._interval_s
        return True

    def take(self, member: NodeId, index: int, digest: int, conf: Conf) -> list[Finding]:
        """Take the checksum of a member; return the differences that this shows.

        Args:
            member: whose table it is.
            index: of the entry that asked for it.
            digest: the checksum.
            conf: the members.
        """
        if index < self._index or member not in conf.members:
            return []
        if index > self._index:
            self._index = index
            self._digests.clear()
            self._found.clear()
            self._is_undecided = False
        self._digests[member] = digest
        right = next((each for each in set(self._digests.values()) if self._is_of_majority(each, conf)), None)
        if right is None:
            if self._is_undecided or not conf.electors <= self._digests.keys():
                return []
            self._is_undecided = True
            return [Finding(Verdict.NO_MAJORITY, member)]
        others = [each for each, found in self._digests.items() if found != right and each not in self._found]
        self._found.update(others)
        return [Finding(Verdict.DIFFERS, each) for each in sorted(others)]

    def _is_of_majority(self, digest: int, conf: Conf) -> bool:
        return conf.won({each: True for each, found in self._digests.items() if found == digest}) is True
