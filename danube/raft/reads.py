"""Linearizable reads without log writes, confirmed by rounds of heartbeats (Raft thesis, section 6.4).

A leader assigns all new reads to a *round*, records its commit index, and sends heartbeats
that carry the round. Answers from a majority prove that it still led after the reads were requested. Rounds only
grow, so an answer confirms every lower round as well.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from danube.raft.conf import NodeId
from danube.raft.messages import ReadToken

__all__ = ["Reads"]


class _Round(NamedTuple):
    number: int
    commit: int
    reads: tuple[tuple[NodeId, ReadToken], ...]


class Reads:
    """The reads that a node confirms as leader, and the answers to its own reads.

    Attributes:
        round: the newest round.
    """

    __slots__ = ("_answered", "_asking", "_lost", "_rounds", "round")

    def __init__(self) -> None:
        self.round = 0
        self._asking: list[tuple[NodeId, ReadToken]] = []
        self._rounds: deque[_Round] = deque()
        self._answered: list[tuple[ReadToken, int]] = []
        self._lost: list[ReadToken] = []

    @property
    def is_asking(self) -> bool:
        """Whether there are reads without a round."""
        return bool(self._asking)

    @property
    def is_waiting(self) -> bool:
        """Whether a round waits for a majority."""
        return bool(self._rounds)

    @property
    def has_news(self) -> bool:
        """Whether :meth:`take_news` has any."""
        return bool(self._answered or self._lost)

    def begin(self) -> None:
        """Become leader. Rounds start again: answers of other terms are dropped before they reach this object."""
        self.round = 0
        self._rounds.clear()

    def ask(self, node: NodeId, token: ReadToken) -> None:
        """Queue a read for the next round."""
        self._asking.append((node, token))

    def start_round(self, commit: int) -> None:
        """Assign the queued reads to a round, with the index from which they may be answered."""
        self.round += 1
        self._rounds.append(_Round(self.round, commit, tuple(self._asking)))
        self._asking.clear()

    def confirm(self, round_number: int) -> list[tuple[NodeId, ReadToken, int]]:
        """Return the reads, with their index, of all rounds up to one answered by a majority."""
        found = []
        while self._rounds and self._rounds[0].number <= round_number:
            first = self._rounds.popleft()
            found += [(node, token, first.commit) for node, token in first.reads]
        return found

    def answer(self, token: ReadToken, index: int) -> None:
        """Record the answer to a read of this node."""
        self._answered.append((token, index))

    def lose(self, own: NodeId) -> None:
        """Fail all waiting reads: this node is no longer the leader."""
        waiting = [read for each in self._rounds for read in each.reads] + self._asking
        self._lost += [token for node, token in waiting if node == own]
        self._rounds.clear()
        self._asking.clear()

    def take_news(self) -> tuple[tuple[tuple[ReadToken, int], ...], tuple[ReadToken, ...]]:
        """Return the reads of this node that were answered, and those that were lost, since the last call."""
        news = tuple(self._answered), tuple(self._lost)
        self._answered.clear()
        self._lost.clear()
        return news
