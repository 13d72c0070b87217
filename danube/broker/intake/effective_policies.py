"""The effective policies of a topic, from those of several levels. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from danube.model import TopicPolicies
from danube.model.errors import LimitExceededError

__all__ = ["EffectivePolicies", "stack"]


class EffectivePolicies(NamedTuple):
    """The effective policies, and the level of each."""

    values: TopicPolicies
    sources: Mapping[str, str]
    """``topic``, ``namespace`` or ``broker``, for each policy that is set."""

    def said(self, policy: str) -> str:
        """Return a policy as printed in error messages: name, value and level."""
        return f"policy {policy} = {getattr(self.values, policy)} (set for the {self.sources[policy]})"

    def check_room(self, where: str, policy: str, taken: int, limit_name: str = "", limit: float = math.inf) -> None:
        """Refuse a further item if the limit is reached.

        Args:
            where: name of the topic or subscription, for the message.
            policy: its name.
            taken: the present number of items.
            limit_name, limit: the broker's own bound, which a policy cannot exceed.

        Raises:
            LimitExceededError: the limit is reached.
        """
        allowed = getattr(self.values, policy)
        if allowed is not None and taken >= allowed:
            raise LimitExceededError(
                f"{where}: {self.said(policy)} is reached; wait until one is gone, or change the policy"
            )
        if taken >= limit:
            raise LimitExceededError(f"{where}: limit {limit_name} = {limit} is reached")


def stack(levels: Sequence[tuple[str, TopicPolicies]]) -> EffectivePolicies:
    """Combine levels (name and policies); the first ones take precedence."""
    values = TopicPolicies()
    sources: dict[str, str] = {}
    for level, policies in reversed(levels):
        values = policies.over(values)
        for name in policies.__struct_fields__:
            if getattr(policies, name) is not None:
                sources[name] = level
    return EffectivePolicies(values, sources)
