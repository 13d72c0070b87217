"""Raft configurations, simple and joint: members, voters and majorities (Raft thesis, section 4.3).

A change of voters goes through a *joint* configuration, in which each decision requires a majority of the old voters
and a majority of the new ones::

    {1 2 3}  --change-->  {1 2 4} + {1 2 3}  --leave-->  {1 2 4}
                          voters    outgoing

Every entry of kind CONF holds the whole configuration, so applying one requires no earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NewType

import msgspec

__all__ = ["Conf", "NodeId"]

NodeId = NewType("NodeId", int)
"""Identifies a member of the group. Not the id of a broker: a broker whose disk was wiped becomes a new member."""


class Conf(msgspec.Struct, frozen=True, array_like=True):
    """A configuration of the group. All members are sorted tuples without repeats.

    Raises:
        ValueError: a member has two roles, or there is no voter.
    """

    voters: tuple[NodeId, ...]
    outgoing: tuple[NodeId, ...] = ()
    """Joint: the voters before the change, whose majority is needed as well. Empty: not joint."""
    learners: tuple[NodeId, ...] = ()
    """Members that receive the log and have no vote."""
    next_learners: tuple[NodeId, ...] = ()
    """Voters of ``outgoing`` that become learners when the joint configuration is left."""

    def __post_init__(self) -> None:
        for members in (self.voters, self.outgoing, self.learners, self.next_learners):
            if tuple(sorted(set(members))) != members:
                raise ValueError(f"members must be sorted and named once: {members}")
        if not self.voters:
            raise ValueError("a configuration needs a voter")
        voting = {*self.voters, *self.outgoing}
        if voting & set(self.learners):
            raise ValueError(f"a member cannot vote and learn: {sorted(voting & set(self.learners))}")
        if not set(self.next_learners) <= set(self.outgoing) - set(self.voters):
            raise ValueError("only a voter that leaves can become a learner")

    @property
    def is_joint(self) -> bool:
        """Whether a majority of the old voters is needed as well."""
        return bool(self.outgoing)

    @property
    def electors(self) -> frozenset[NodeId]:
        """Members whose votes count: the voters of both halves."""
        return frozenset((*self.voters, *self.outgoing))

    @property
    def members(self) -> frozenset[NodeId]:
        """All members that receive the log."""
        return frozenset((*self.voters, *self.outgoing, *self.learners))

    def is_only(self, member: NodeId) -> bool:
        """Whether this is the only member."""
        return self.voters == (member,) and not self.outgoing and not self.learners

    def changed(self, voters: Iterable[NodeId], learners: Iterable[NodeId]) -> Conf:
        """Return the first step from this simple configuration to the given members: joint if the voters differ.

        Raises:
            ValueError: this configuration is joint, or the members are invalid.
        """
        if self.is_joint:
            raise ValueError("a joint configuration is left before it is changed again")
        new_voters, new_learners = tuple(sorted(set(voters))), tuple(sorted(set(learners)))
        if new_voters == self.voters:
            return Conf(self.voters, learners=new_learners)
        Conf(new_voters, learners=new_learners)
        waiting = tuple(each for each in new_learners if each in self.voters)
        return Conf(
            voters=new_voters,
            outgoing=self.voters,
            learners=tuple(each for each in new_learners if each not in self.voters),
            next_learners=waiting,
        )

    def left(self) -> Conf:
        """Return the simple configuration that follows this joint one."""
        assert self.is_joint
        return Conf(self.voters, learners=tuple(sorted((*self.learners, *self.next_learners))))

    def agreed(self, value_of: Callable[[NodeId], int]) -> int:
        """Return the highest value that a majority of each half has reached.

        Values only grow, so a majority has *at least* the value at the median position.
        """
        agreed = _middle(self.voters, value_of)
        return min(agreed, _middle(self.outgoing, value_of)) if self.outgoing else agreed

    def won(self, votes: dict[NodeId, bool]) -> bool | None:
        """Return whether votes win (True), lose (False), or are still undecided (None)."""
        results = [_won(self.voters, votes)]
        if self.outgoing:
            results.append(_won(self.outgoing, votes))
        if False in results:
            return False
        return None if None in results else True


def _middle(voters: tuple[NodeId, ...], value_of: Callable[[NodeId], int]) -> int:
    values = sorted((value_of(each) for each in voters), reverse=True)
    return values[len(values) // 2]


def _won(voters: tuple[NodeId, ...], votes: dict[NodeId, bool]) -> bool | None:
    majority = len(voters) // 2 + 1
    granted = sum(votes.get(each, False) for each in voters)
    missing = sum(each not in votes for each in voters)
    if granted >= majority:
        return True
    return None if granted + missing >= majority else False
