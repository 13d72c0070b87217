"""The unary calls that show and change policies: of the broker, namespaces, topics, and subscriptions.

A change that has begun goes on to its end when the client that asked for it goes away. Changes come one after the
other, so that each begins with what the one before it has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from danube.broker.delivery.dead_letters import first_policy
from danube.broker.directory.policies import change_policies
from danube.broker.runtime.settling import Settling, to_the_end
from danube.history import SubscriptionStored, encode_change
from danube.log import Entry, EntryType
from danube.model import Durability, SubscriptionPolicy, api, policy_api, validate_name, validate_topic
from danube.model.errors import SubscriptionNotFoundError
from danube.model.names import split_partition
from danube.model.policies import change_policy
from danube.model.policy_api import PolicyMethod
from danube.wire import Context, Method, Service, UnaryHandler

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.calls.admin import Administration
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.topic.topic import Topic

__all__ = ["PolicyAdministration"]


class PolicyAdministration:
    """Handlers of the calls of :mod:`danube.model.policy_api`."""

    def __init__(self, broker: Broker, administration: Administration) -> None:
        self._broker = broker
        self._find = administration.find
        self._resolve = administration.resolve
        self._changing = trio.Lock()

    def service(self) -> Service:
        """Return the methods, by path."""
        table: list[tuple[str, UnaryHandler, type]] = [
            (PolicyMethod.SHOW, self.show, policy_api.ShowPolicies),
            (PolicyMethod.CHANGE, self.change, policy_api.ChangePolicies),
            (PolicyMethod.CHANGE_SUBSCRIPTION, self.change_subscription, policy_api.ChangeSubscriptionPolicy),
        ]
        return {
            path: Method(path=path, kind="unary", handler=handler, request_type=request)
            for path, handler, request in table
        }

    async def show(self, request: policy_api.ShowPolicies, _context: Context) -> policy_api.PolicyReport:
        """Return the policies of a target."""
        return self._broker.policies.report(request.target)

    async def change(self, request: policy_api.ChangePolicies, _context: Context) -> policy_api.PolicyReport:
        """Change policies of a target; return when that is stored, and in effect."""
        broker = self._broker

        async def change() -> None:
            async with self._changing:
                await change_policies(broker, request.target, request.changes)

        await to_the_end(broker.nursery, change)
        return broker.policies.report(request.target)

    async def change_subscription(
        self, request: policy_api.ChangeSubscriptionPolicy, _context: Context
    ) -> api.SubscriptionList:
        """Change the policy of a subscription; return when that is durable, and in effect."""
        found = self._find(request.topic, request.subscription)

        async def change() -> None:
            async with self._changing:
                # All of them are looked at before any is changed.
                changed = [(each, change_policy(each.policy, request.changes)) for each in found]
                for each, policy in changed:
                    each.check_policy(policy)
                for each, policy in changed:
                    await self._change(each, policy)
                topics = [each.topic for each in found]
                if any(topic.planned_for(request.subscription) for topic in topics):
                    # Partitions that do not have the subscription yet are to get the same.
                    await self._plan(request.topic, topics, request.subscription, request.changes)

        await to_the_end(self._broker.nursery, change)
        return api.SubscriptionList([each.info() for each in found])

    async def plan_subscription(self, request: policy_api.ChangeSubscriptionPolicy) -> None:
        """Change the policy of a subscription, and of one that does not exist yet, from when it is created.

        It may exist in some partitions and not in others. When this returns, the change is durable, and in effect.

        Raises:
            InvalidArgumentError: a name, or the policy, is invalid.
            TopicNotFoundError: the topic does not exist.
            LimitExceededError: too many policies are kept for subscriptions that do not exist.
            StorageUnavailableError: a topic of durability ``remote``, and its storage does not answer: it may still
                happen.
        """
        name, changes = request.subscription, request.changes
        validate_topic(request.topic)
        validate_name("subscription", name)

        async def change() -> None:
            async with self._changing:
                topics = self._resolve(request.topic)
                for topic in topics:
                    found = topic.subscriptions.get(name)
                    if found is not None:
                        found.check_policy(change_policy(found.policy, changes))
                    else:
                        default = self._broker.config.subscription_policy
                        first_policy(topic.name, name, default, {**topic.planned_for(name), **changes})
                if any(name not in topic.subscriptions or topic.planned_for(name) for topic in topics):
                    await self._plan(request.topic, topics, name, changes)
                for topic in topics:
                    # One that was just being created has begun without what is planned now.
                    found = await topic.created_subscription(name)
                    if found is not None:
                        await self._change(found, change_policy(found.policy, changes))

        await to_the_end(self._broker.nursery, change)

    async def _plan(self, name: str, topics: Sequence[Topic], subscription: str, changes: Mapping[str, Any]) -> None:
        broker = self._broker
        base, topic_id = self._base_of(name, topics)
        existing = {each for topic in topics for each in topic.subscriptions} if base == topics[0].name else ()
        record = await broker.catalogue.plan_subscription(base, topic_id, subscription, changes, existing)
        if record.durability is Durability.REMOTE:
            await broker.remote.changed(base, record)

    async def forget_planned(self, name: str, subscription: str) -> bool:
        """Drop what is kept for the policy of a subscription that does not exist; return whether there was anything.

        Raises:
            TopicNotFoundError: the topic does not exist.
            StorageUnavailableError: as :meth:`plan_subscription`.
        """
        broker = self._broker
        base, topic_id = self._base_of(name, self._resolve(name))
        known = broker.catalogue.find(base)
        if known is None or not known.planned:
            return False
        dropped = False

        async def forget() -> None:
            nonlocal dropped
            async with self._changing:
                record = await broker.catalogue.forget_planned(base, topic_id, subscription)
                dropped = record is not None
                if record is not None and record.durability is Durability.REMOTE:
                    await broker.remote.changed(base, record)

        await to_the_end(broker.nursery, forget)
        return dropped

    def _base_of(self, name: str, topics: Sequence[Topic]) -> tuple[str, int]:
        """Return the name of the record of a topic, and the topic id if the name is that of one partition, else 0."""
        split = split_partition(name)
        return (split[0], topics[0].topic_id) if split else (name, 0)

    async def _change(self, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        topic, name = subscription.topic, subscription.name
        topic.check_not_deleted()
        if topic.subscriptions.get(name) is not subscription:
            raise SubscriptionNotFoundError(f"subscription {name!r} of topic {topic.name!r} was deleted")
        record = subscription.record
        if record is None:
            subscription.change_policy(policy)  # of a topic that keeps nothing
            return
        record = msgspec.structs.replace(record, policy=policy)
        if topic.durability is not Durability.REMOTE:
            await self._broker.catalogue.change_subscription(topic.topic_id, name, record)
            subscription.record = record
            subscription.change_policy(policy)
            return
        # First here, then in its storage: a snapshot of the journal must not know less than its commits.
        subscription.record = record
        subscription.change_policy(policy)
        change = SubscriptionStored(topic.topic_id, name, self._broker.catalogue.encode(record))
        stored = Settling()
        topic.submit(Entry(EntryType.TOPIC, topic.topic_id, topic.durability, (encode_change(change),), stored))
        await stored.wait()
