"""The unary calls that show and change policies: of the broker, namespaces, topics, and subscriptions.

A change that has begun goes on to its end when the client that asked for it goes away. Changes come one after the
other, so that each begins with what the one before it has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.policies import change_policies
from danube.broker.settling import Settling, to_the_end
from danube.history import SubscriptionStored, encode_change
from danube.log import Entry, EntryType
from danube.model import Durability, SubscriptionPolicy, api, policy_api
from danube.model.errors import SubscriptionNotFoundError
from danube.model.policies import change_policy
from danube.model.policy_api import PolicyMethod
from danube.wire import Context, Method, Service, UnaryHandler

if TYPE_CHECKING:
    from danube.broker.admin import Administration
    from danube.broker.broker import Broker
    from danube.broker.subscription import Subscription

__all__ = ["PolicyAdministration"]


class PolicyAdministration:
    """Handlers of the calls of :mod:`danube.model.policy_api`."""

    def __init__(self, broker: Broker, administration: Administration) -> None:
        self._broker = broker
        self._find = administration.find
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

        await to_the_end(self._broker.nursery, change)
        return api.SubscriptionList([each.info() for each in found])

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
