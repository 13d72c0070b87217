"""The native API of policies: calls that show and change them.

A change is a table of names and plain values, so that one call changes only the named policies: concurrent changes of
different policies do not overwrite each other.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from danube.model.policies import TopicPolicies

__all__ = ["ChangePolicies", "ChangeSubscriptionPolicy", "PolicyMethod", "PolicyReport", "ShowPolicies"]


class PolicyMethod:
    """Paths of the calls."""

    SHOW: Final = "/danube.native.v1.Policies/Show"
    CHANGE: Final = "/danube.native.v1.Policies/Change"
    CHANGE_SUBSCRIPTION: Final = "/danube.native.v1.Subscriptions/ChangePolicy"


class ShowPolicies(msgspec.Struct, array_like=True, gc=False):
    """Asks for the policies of a target: ``""`` is the broker, ``"ns"`` a namespace, ``"/ns/topic"`` a topic."""

    target: str


class ChangePolicies(msgspec.Struct, array_like=True, gc=False):
    """Changes policies of a target (as in ShowPolicies). Answered with the new PolicyReport."""

    target: str
    changes: dict[str, Any]
    """Fields of :class:`danube.model.TopicPolicies`; None removes the target's own value."""


class PolicyReport(msgspec.Struct, array_like=True, gc=False):
    """The policies of a target."""

    target: str
    own: TopicPolicies
    """Values set at this level."""
    effective: TopicPolicies
    """Values in force, including inherited ones."""
    sources: dict[str, str]
    """For each field of ``effective`` that is set: the level that sets it, ``topic``, ``namespace`` or ``broker``."""


class ChangeSubscriptionPolicy(msgspec.Struct, array_like=True, gc=False):
    """Changes the policy of a subscription, in all partitions. Answered with a SubscriptionList."""

    topic: str
    subscription: str
    changes: dict[str, Any]
    """Fields of :class:`danube.model.SubscriptionPolicy`."""
