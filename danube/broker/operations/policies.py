"""Operations on policies of the broker, of namespaces, topics and subscriptions: show and change.

A change that has begun completes even if the client that requested it disconnects. Changes are serialized, so that each
starts from the result of the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from danube.broker.delivery.explain import info_of
from danube.broker.directory.policies import change_policies
from danube.broker.security.caller import require_dead_letters
from danube.model import SubscriptionPolicy, api, policy_api, validate_name, validate_topic
from danube.model.dead_letters import dead_letter_topic, first_policy, sets_dead_letters
from danube.model.errors import SubscriptionNotFoundError
from danube.model.ids import NO_TOPIC, TopicId
from danube.model.names import split_partition
from danube.model.policies import change_policy

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic

__all__ = ["PolicyOperations"]


class PolicyOperations:
    """Operations on policies; see the module.

    Args:
        directory: of the topics.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._changing = trio.Lock()

    async def show(self, request: policy_api.ShowPolicies) -> policy_api.PolicyReport:
        """Return the policies of a target."""
        return self._directory.policies.report(request.target)

    async def change(self, request: policy_api.ChangePolicies) -> policy_api.PolicyReport:
        """Change policies of a target; return when they are stored and applied."""
        directory = self._directory
        directory.membership.check_reach()

        async def change() -> None:
            async with self._changing:
                await change_policies(directory, request.target, request.changes)

        await directory.runtime.finish(change)
        return directory.policies.report(request.target)

    async def change_subscription(self, request: policy_api.ChangeSubscriptionPolicy) -> api.SubscriptionList:
        """Change the policy of a subscription; return when that is durable and applied."""
        found = self._directory.subscriptions(request.topic, request.subscription)

        async def change() -> None:
            async with self._changing:
                # All of them are checked before any is changed.
                changed = [(*each, change_policy(each[1].policy, request.changes)) for each in found]
                for topic, subscription, policy in changed:
                    subscription.check_policy(policy)
                    _judge_dead_letters(topic.name, subscription.name, policy, request.changes)
                for topic, subscription, policy in changed:
                    await self._change(topic, subscription, policy)
                topics = [topic for topic, _ in found]
                if any(topic.planned_for(request.subscription) for topic in topics):
                    # Partitions without the subscription get the same policy when it is created there.
                    await self._plan(request.topic, topics, request.subscription, request.changes)

        await self._directory.runtime.finish(change)
        return api.SubscriptionList([info_of(each) for _, each in found])

    async def judge_subscription(
        self, request: policy_api.ChangeSubscriptionPolicy
    ) -> policy_api.ChangeSubscriptionPolicy:
        """Judge a change before any broker makes its part, as far as the request alone tells where dead letters go.

        What depends on the policy that a subscription has is judged before its owner changes that one.

        Raises:
            InvalidArgumentError: the changes are invalid.
            PermissionDeniedError: the caller may not produce to the topic of the dead letters.
        """
        await trio.lowlevel.checkpoint()
        if {"poison", "dead_letter_topic"} <= request.changes.keys():
            policy = change_policy(self._directory.runtime.config.subscription_policy, request.changes)
            _judge_dead_letters(request.topic, request.subscription, policy, request.changes)
        return request

    async def plan_subscription(self, request: policy_api.ChangeSubscriptionPolicy) -> None:
        """Change the policy of a subscription; where it does not exist yet, the change applies once it is created.

        It may exist in some partitions and not in others. When this returns, the change is durable and applied.

        Raises:
            InvalidArgumentError: a name, or the policy, is invalid.
            TopicNotFoundError: the topic does not exist.
            LimitExceededError: policies are planned for too many subscriptions that do not exist.
            StorageUnavailableError: the topic has durability ``remote`` and its storage does not answer: the change may
                still take effect.
        """
        name, changes = request.subscription, request.changes
        validate_topic(request.topic)
        validate_name("subscription", name)

        async def change() -> None:
            async with self._changing:
                topics = self._directory.resolve(request.topic)
                for topic in topics:
                    found = topic.subscriptions.get(name)
                    if found is not None:
                        policy = change_policy(found.policy, changes)
                        found.check_policy(policy)
                    else:
                        default = self._directory.runtime.config.subscription_policy
                        policy = first_policy(topic.name, name, default, {**topic.planned_for(name), **changes})
                    _judge_dead_letters(topic.name, name, policy, changes)
                if any(name not in topic.subscriptions or topic.planned_for(name) for topic in topics):
                    await self._plan(request.topic, topics, name, changes)
                for topic in topics:
                    # A subscription that was being created has started without the policy planned now.
                    found = await topic.created_subscription(name)
                    if found is not None:
                        await self._change(topic, found, change_policy(found.policy, changes))

        await self._directory.runtime.finish(change)

    async def _plan(self, name: str, topics: Sequence[Topic], subscription: str, changes: Mapping[str, Any]) -> None:
        directory = self._directory
        base, topic_id = self._base_of(name, topics)
        existing = {each for topic in topics for each in topic.subscriptions} if base == topics[0].name else ()
        record = await directory.catalogue.policy_changes.plan(base, topic_id, subscription, changes, existing)
        await directory.level(record).changed(base, record)

    async def forget_planned(self, name: str, subscription: str) -> bool:
        """Remove the planned policy of a subscription that does not exist; return whether there was one.

        Raises:
            TopicNotFoundError: the topic does not exist.
            StorageUnavailableError: as :meth:`plan_subscription`.
        """
        directory = self._directory
        base, topic_id = self._base_of(name, self._directory.resolve(name))
        known = directory.catalogue.find(base)
        if known is None or not known.planned:
            return False
        dropped = False

        async def forget() -> None:
            nonlocal dropped
            async with self._changing:
                record = await directory.catalogue.policy_changes.forget_planned(base, topic_id, subscription)
                dropped = record is not None
                if record is not None:
                    await directory.level(record).changed(base, record)

        await directory.runtime.finish(forget)
        return dropped

    def _base_of(self, name: str, topics: Sequence[Topic]) -> tuple[str, TopicId]:
        """Return the name of a topic's record, and the topic id if the name is that of one partition, else none."""
        split = split_partition(name)
        return (split[0], topics[0].topic_id) if split else (name, NO_TOPIC)

    async def _change(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        await topic.until_thawed()
        if not topic.serves(subscription.name, subscription):
            raise SubscriptionNotFoundError(f"subscription {subscription.name!r} of topic {topic.name!r} was deleted")
        await topic.level.change_subscription(topic, subscription, policy)


def _judge_dead_letters(topic: str, subscription: str, policy: SubscriptionPolicy, changes: Mapping[str, Any]) -> None:
    """Raise PermissionDeniedError if a change sends messages to a topic to which its caller may not produce."""
    if sets_dead_letters(policy, changes):
        require_dead_letters(dead_letter_topic(topic, subscription, policy))
