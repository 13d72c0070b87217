"""Policies of topics: combines those of all levels.

Policies of a topic come from four places, the nearest first::

    topic        TopicRecord.policies          /topics/{namespace}/{topic}
    namespace    NamespaceRecord.policies      /namespaces/{namespace}
    broker       set by command                /policies/broker
    broker       the configuration             [policies]

Each sets some policies and not the others; the nearest one that sets a policy applies. A partitioned topic and its
partitions share one record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from danube.broker.intake.effective_policies import EffectivePolicies, stack
from danube.model import TopicPolicies
from danube.model.ids import TopicId
from danube.model.names import validate_namespace, validate_topic
from danube.model.policy_api import PolicyReport

if TYPE_CHECKING:
    from danube.model.records import TopicRecord

__all__ = ["PolicyBook", "StoredPolicies"]


class StoredPolicies(Protocol):
    """The part of the catalogue that has policies."""

    @property
    def broker_policies(self) -> TopicPolicies:
        """The policies of the broker that were set by command."""
        ...

    def namespace_policies(self, name: str, /) -> TopicPolicies:
        """Return the policies of a namespace.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        ...

    def find(self, name: str, /) -> TopicRecord | None:
        """Return the record of a plain or partitioned topic; None if it does not exist."""
        ...

    def locate(self, name: str, /) -> tuple[TopicRecord, TopicId]:
        """Return the record of the topic that a plain topic or a partition belongs to, and its own id.

        Raises:
            TopicNotFoundError: it does not exist.
        """
        ...


class PolicyBook:
    """The policies of all levels.

    Args:
        catalogue: has the stored ones.
        configured: those of the configuration.
    """

    def __init__(self, catalogue: StoredPolicies, configured: TopicPolicies) -> None:
        self._catalogue = catalogue
        self._configured = configured

    def of_topic(self, name: str, record: TopicRecord) -> EffectivePolicies:
        """Return the effective policies of a topic (or a partition of it) with this record."""
        return stack([("topic", record.policies), *self._above(name)])

    def _above(self, name: str) -> list[tuple[str, TopicPolicies]]:
        return [("namespace", self._catalogue.namespace_policies(validate_topic(name).namespace)), *self._broker()]

    def _broker(self) -> list[tuple[str, TopicPolicies]]:
        return [("broker", self._catalogue.broker_policies), ("broker", self._configured)]

    def report(self, target: str) -> PolicyReport:
        """Return the policies of the broker (``""``), a namespace or a topic; of a partition, those of its topic.

        Raises:
            NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
        """
        if target.startswith("/"):
            own, levels = self._topic_levels(target)
        elif target:
            own = self._catalogue.namespace_policies(validate_namespace(target))
            levels = [("namespace", own), *self._broker()]
        else:
            own, levels = self._catalogue.broker_policies, self._broker()
        values, sources = stack(levels)
        return PolicyReport(target, own, values, dict(sources))

    def _topic_levels(self, name: str) -> tuple[TopicPolicies, list[tuple[str, TopicPolicies]]]:
        validate_topic(name)
        record = self._catalogue.find(name) or self._catalogue.locate(name)[0]
        return record.policies, [("topic", record.policies), *self._above(name)]
