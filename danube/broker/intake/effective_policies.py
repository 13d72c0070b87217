"""What counts for a topic, of all that several levels say. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from danube.model import TopicPolicies
from danube.model.errors import LimitExceededError

__all__ = ["EffectivePolicies", "stack"]


class EffectivePolicies(NamedTuple):
    """What counts, and whoever says it."""

    values: TopicPolicies
    sources: Mapping[str, str]
    """``topic``, ``namespace`` or ``broker`` for each policy that is set."""

    def said(self, policy: str) -> str:
        """Return a policy as error messages print it: name, value and level."""
        return f"policy {policy} = {getattr(self.values, policy)} (set for the {self.sources[policy]})"

    def check_room(self, where: str, policy: str, taken: int, limit_name: str = "", limit: float = math.inf) -> None:
        """Refuse one more of something.

        Args:
            where: of which topic or subscription, for the message.
            policy: its name.
            taken: how many there are.
            limit_name, limit: the broker's own bound, which a policy cannot lift.

        Raises:
            LimitExceededError: there are as many as may be.
        """
        allowed = getattr(self.values, policy)
        if allowed is not None and taken >= allowed:
            raise LimitExceededError(
                f"{where}: {self.said(policy)} is reached; wait until one is gone, or change the policy"
            )
        if taken >= limit:
            raise LimitExceededError(f"{where}: limit {limit_name} = {limit} is reached")


def stack(levels: Sequence[tuple[str, TopicPolicies]]) -> EffectivePolicies:
    """Lay levels (name and policies) on top of each other, the nearest first."""
    values = TopicPolicies()
    sources: dict[str, str] = {}
    for level, policies in reversed(levels):
        values = policies.over(values)
        for name in policies.__struct_fields__:
            if getattr(policies, name) is not None:
                sources[name] = level
    return EffectivePolicies(values, sources)
