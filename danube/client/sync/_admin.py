"""Blocking forms of the administrative calls; behaviour and errors as in :class:`danube.client.Client`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from danube.model import api, history_api, policy_api
from danube.model.policies import Durability, Retention

if TYPE_CHECKING:
    from danube.client._client import Client
    from danube.client.sync._loop import Loop

__all__ = ["AdminCalls"]


class AdminCalls:
    """The part of :class:`Client` for administration."""

    _client: Client
    _loop: Loop

    def info(self) -> api.BrokerInfo:
        """Return the status of the broker."""
        return self._loop.run(self._client.info)

    def lookup_topic(self, topic: str) -> api.TopicPartitions:
        """Return the topics that hold the messages of a topic."""
        return self._loop.run(self._client.lookup_topic, topic)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        durability: Durability | str | None = None,
        storage: str = "",
        retention: Retention | None = None,
    ) -> api.TopicInfo:
        """Create a topic."""
        return self._loop.run(
            self._client.create_topic,
            topic,
            partitions=partitions,
            durability=durability,
            storage=storage,
            retention=retention,
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions."""
        self._loop.run(self._client.delete_topic, topic)

    def list_topics(self, namespace: str | None = None) -> list[api.TopicInfo]:
        """Return the topics of a namespace, or of all."""
        return self._loop.run(self._client.list_topics, namespace)

    def describe_topic(self, topic: str) -> api.TopicInfo:
        """Return one topic."""
        return self._loop.run(self._client.describe_topic, topic)

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""
        self._loop.run(self._client.create_namespace, namespace)

    def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        self._loop.run(self._client.delete_namespace, namespace)

    def list_namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return self._loop.run(self._client.list_namespaces)

    def list_subscriptions(self, topic: str) -> list[api.SubscriptionInfo]:
        """Return the subscriptions of a topic."""
        return self._loop.run(self._client.list_subscriptions, topic)

    def describe_subscription(self, topic: str, subscription: str) -> list[api.SubscriptionInfo]:
        """Return the state of a subscription, one row for each partition."""
        return self._loop.run(self._client.describe_subscription, topic, subscription)

    def explain_subscription(self, topic: str, subscription: str) -> api.Explanation:
        """Return, in a sentence, why a subscription moves or does not."""
        return self._loop.run(self._client.explain_subscription, topic, subscription)

    def seek_subscription(self, topic: str, subscription: str, position: str | int | datetime) -> None:
        """Move a subscription."""
        self._loop.run(self._client.seek_subscription, topic, subscription, position)

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription and its cursor."""
        self._loop.run(self._client.delete_subscription, topic, subscription)

    def seal_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Seal all messages of a topic."""
        return self._loop.run(self._client.seal_topic, topic, timeout_s=timeout_s)

    def unload_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Disconnect all clients from a topic, and seal all its messages."""
        return self._loop.run(self._client.unload_topic, topic, timeout_s=timeout_s)

    def change_retention(
        self,
        topic: str,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        now: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RetentionPlans:
        """Change the retention rules of a topic, apply them, or report their effect."""
        return self._loop.run(
            self._client.change_retention, topic, retention, dry_run=dry_run, now=now, timeout_s=timeout_s
        )

    def storages_status(self) -> history_api.StoragesStatus:
        """Return the storages of the broker."""
        return self._loop.run(self._client.storages_status)

    def check_storage(
        self, storage: str = "default", *, deep: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Compare a storage with the broker's catalogue."""
        return self._loop.run(self._client.check_storage, storage, deep=deep, timeout_s=timeout_s)

    def repair_storage(
        self, storage: str = "default", *, adopt: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Check a storage, and remove unreferenced data."""
        return self._loop.run(self._client.repair_storage, storage, adopt=adopt, timeout_s=timeout_s)

    def restore_topics(
        self,
        url: str,
        *,
        storage: str = "",
        topics: Sequence[str] = (),
        give_up_others: bool = False,
        deep: bool = False,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RestoreReport:
        """Restore the topics whose history is in a bucket."""
        return self._loop.run(
            self._client.restore_topics,
            url,
            storage=storage,
            topics=topics,
            give_up_others=give_up_others,
            deep=deep,
            dry_run=dry_run,
            timeout_s=timeout_s,
        )

    def policies(self, target: str = "") -> policy_api.PolicyReport:
        """Return the policies of the broker, a namespace or a topic."""
        return self._loop.run(self._client.policies, target)

    def change_policies(self, target: str, **changes: Any) -> policy_api.PolicyReport:
        """Change policies of the broker, a namespace or a topic."""
        return self._loop.run(self._client.change_policies, target, **changes)

    def change_subscription_policy(self, topic: str, subscription: str, **changes: Any) -> list[api.SubscriptionInfo]:
        """Change the policy of a subscription."""
        return self._loop.run(self._client.change_subscription_policy, topic, subscription, **changes)
