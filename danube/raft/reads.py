"""Linearizable reads without writing: which reads wait for which round of heartbeats (Raft thesis, section 6.4).

A leader gives all reads that were asked for since the last one a *round*, notes its commit index, and sends heartbeats
that carry the round. An answer from a majority proves that it still led after the reads were asked for. Rounds only
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
    """The reads of one node: those that it has to confirm as a leader, and those of its own that were answered.

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
        """Begin to lead. Rounds start again: answers of another term are dropped before they come here."""
        self.round = 0
        self._rounds.clear()

    def ask(self, node: NodeId, token: ReadToken) -> None:
        """Let a read wait for the next round."""
        self._asking.append((node, token))

    def start_round(self, commit: int) -> None:
        """Give the reads that were asked for a round, and the index from which they may be answered."""
        self.round += 1
        self._rounds.append(_Round(self.round, commit, tuple(self._asking)))
        self._asking.clear()

    def confirm(self, round_number: int) -> list[tuple[NodeId, ReadToken, int]]:
        """Return the reads, with their index, of all rounds up to one that a majority has answered."""
        found = []
        while self._rounds and self._rounds[0].number <= round_number:
            first = self._rounds.popleft()
            found += [(node, token, first.commit) for node, token in first.reads]
        return found

    def answer(self, token: ReadToken, index: int) -> None:
        """Note the answer to a read of this node."""
        self._answered.append((token, index))

    def lose(self, own: NodeId) -> None:
        """Give up everything that waits: this node does not lead any more."""
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
