"""The calls about policies: of the broker, namespaces, topics and subscriptions. A part of the client's administration.

Here are calls only; the rules are the broker's.
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
    """The part of :class:`Client` that is about policies."""

    _connection: Connection

    async def policies(self, target: str = "") -> PolicyReport:
        """Return the policies of a target: what it says itself, what counts, and who says that.

        Args:
            target: ``""`` for the broker, ``"ns"`` for a namespace, ``"/ns/topic"`` for a topic. What the broker says
                itself is what was set by command; its configuration comes after that.

        Raises:
            NamespaceNotFoundError, TopicNotFoundError: there is no such target.
        """
        return await self._ask(PolicyMethod.SHOW, ShowPolicies(target), PolicyReport)

    async def change_policies(self, target: str, **changes: Any) -> PolicyReport:
        """Change policies of a target, and return the new ones. They count at once, for all topics below it.

        Args:
            target: see :meth:`policies`. A partition is refused: policies belong to the topic as a whole.
            changes: fields of :class:`danube.model.TopicPolicies`; None takes away what the target says, so that the
                next level counts again. What is not named stays as it is.

        Raises:
            InvalidArgumentError: an unknown name, or a value that cannot be.
            NamespaceNotFoundError, TopicNotFoundError: there is no such target.
            FailedPreconditionError: a partition; or history of a topic that keeps none.
            StorageUnavailableError: a topic of durability ``remote``, and its storage does not answer: the change
                counts, and may or may not have been stored.
        """
        request = ChangePolicies(target, plain("policies", changes))
        return await self._ask(PolicyMethod.CHANGE, request, PolicyReport)

    async def change_subscription_policy(
        self, topic: str, subscription: str, **changes: Any
    ) -> list[api.SubscriptionInfo]:
        """Change the policy of a subscription, in all partitions, and return it. It counts at once.

        Args:
            topic: a plain topic, a partition, or a partitioned topic.
            subscription: of it.
            changes: fields of :class:`danube.model.SubscriptionPolicy`. What is not named stays as it is.

        Raises:
            InvalidArgumentError: an unknown name, or a value that cannot be.
            TopicNotFoundError, SubscriptionNotFoundError: there is no such thing.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        request = ChangeSubscriptionPolicy(topic, subscription, plain("policies", changes))
        return (await self._ask(PolicyMethod.CHANGE_SUBSCRIPTION, request, api.SubscriptionList)).subscriptions

    async def _ask(self, path: str, request: Any, kind: type[T]) -> T:
        return await self._connection.unary(path, request, kind, timeout_s=self._connection.options.request_timeout_s)
