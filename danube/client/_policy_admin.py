"""Client methods for the policies of the broker, namespaces, topics and subscriptions.

This module only makes the calls; the broker enforces the rules.
"""

from __future__ import annotations

from typing import Any, TypeVar

from danube.client._checks import plain
from danube.client._connection import Connection
from danube.model import api
from danube.model.names import validate_name, validate_topic
from danube.model.policy_api import ChangePolicies, ChangeSubscriptionPolicy, PolicyMethod, PolicyReport, ShowPolicies

__all__ = ["PolicyCalls"]

T = TypeVar("T")


class PolicyCalls:
    """The part of :class:`Client` for policies."""

    _connection: Connection

    async def policies(self, target: str = "") -> PolicyReport:
        """Return the policies of a target: its own, the effective ones, and the level of each.

        Args:
            target: ``""`` for the broker, ``"ns"`` for a namespace, ``"/ns/topic"`` for a topic. The broker's own
                policies are those set by command; its configuration comes after them.

        Raises:
            NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
        """
        return await self._ask(PolicyMethod.SHOW, ShowPolicies(target), PolicyReport)

    async def change_policies(self, target: str, **changes: Any) -> PolicyReport:
        """Change policies of a target, and return the new ones. They apply at once, to all topics below it.

        Args:
            target: see :meth:`policies`. A partition is refused: policies belong to the topic as a whole.
            changes: fields of :class:`danube.model.TopicPolicies`; None removes the target's own value, so that the
                next level applies again. Other fields remain unchanged.

        Raises:
            InvalidArgumentError: an unknown name, or an invalid value.
            NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
            FailedPreconditionError: a partition; or history policies of a topic that stores no messages.
            StorageUnavailableError: the topic has durability ``remote`` and its storage does not answer: the change
                applies, and may or may not have been stored.
        """
        request = ChangePolicies(target, plain("policies", changes))
        return await self._ask(PolicyMethod.CHANGE, request, PolicyReport)

    async def change_subscription_policy(
        self, topic: str, subscription: str, **changes: Any
    ) -> list[api.SubscriptionInfo]:
        """Change the policy of a subscription, in all partitions, and return it. The change applies at once.

        Args:
            topic: a plain topic, a partition, or a partitioned topic.
            subscription: of the topic.
            changes: fields of :class:`danube.model.SubscriptionPolicy`. Other fields remain unchanged.

        Raises:
            InvalidArgumentError: an unknown name, or an invalid value.
            TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        request = ChangeSubscriptionPolicy(topic, subscription, plain("policies", changes))
        return (await self._ask(PolicyMethod.CHANGE_SUBSCRIPTION, request, api.SubscriptionList)).subscriptions

    async def _ask(self, path: str, request: Any, kind: type[T]) -> T:
        return await self._connection.unary(path, request, kind, timeout_s=self._connection.options.request_timeout_s)
