"""Changes the policies in the records of the broker, of namespaces and of topics, and planned ones of subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from danube.broker.catalogue.catalogue_records import BROKER, CatalogueRecords, without_planned
from danube.broker.catalogue.changes import Changes, Row, Step
from danube.broker.catalogue.tables import Tables
from danube.model import TopicPolicies, validate_namespace
from danube.model.errors import AlreadyExistsError, FailedPreconditionError
from danube.model.ids import TopicId
from danube.model.policies import change_policy
from danube.model.quotas import NamespaceQuota, change_quota
from danube.model.records import NamespaceRecord, TopicRecord

__all__ = ["PolicyChanges"]

_NAMESPACE = msgspec.msgpack.Decoder(NamespaceRecord)
_POLICIES = msgspec.msgpack.Decoder(TopicPolicies)


class PolicyChanges:
    """The changes of policies; see the module.

    Args:
        tables, records: of the catalogue.
        changes: of this broker.
        create_namespace: creates one.
    """

    def __init__(
        self,
        tables: Tables,
        records: CatalogueRecords,
        changes: Changes,
        create_namespace: Callable[[str], Awaitable[None]],
    ) -> None:
        self._tables = tables
        self._records = records
        self._changes = changes
        self._create_namespace = create_namespace

    async def of_broker(self, changes: Mapping[str, Any]) -> None:
        """Change the policies of the broker; ``changes`` as in :func:`danube.model.policies.change_policy`."""
        table = self._tables.policies
        await self._changes.change(
            lambda: [Step(table, BROKER, table.put(BROKER, change_policy(self._records.broker_policies, changes)))],
            Row(table, BROKER),
        )

    async def of_namespace(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change the policies of a namespace.

        Raises:
            NamespaceNotFoundError: it does not exist.
            InvalidArgumentError: see :func:`danube.model.policies.change_policy`.
        """
        validate_namespace(name)
        table = self._tables.namespaces

        def make() -> list[Step]:
            record = self._records.namespace(name)
            record = msgspec.structs.replace(record, policies=change_policy(record.policies, changes))
            return [Step(table, name, table.put(name, record))]

        await self._changes.change(make, Row(table, name))

    async def quota(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change the quota of a namespace. From then on no broker creates what would exceed it.

        Raises:
            NamespaceNotFoundError: it does not exist.
            InvalidArgumentError: see :func:`danube.model.quotas.change_quota`.
        """
        validate_namespace(name)
        table = self._tables.namespaces

        def make() -> list[Step]:
            record = self._records.namespace(name)
            record = msgspec.structs.replace(record, quota=change_quota(record.quota, changes))
            return [Step(table, name, table.put(name, record))]

        await self._changes.change(make, Row(table, name))

    async def restore(self, records: Mapping[str, bytes]) -> list[str]:
        """Enter policies and quotas of namespaces and the broker from elsewhere; existing ones remain unchanged.

        Args:
            records: as returned by :meth:`CatalogueRecords.records_above`.

        Returns:
            The names for which policies were entered.
        """
        restored: list[str] = []
        policy_table, namespaces = self._tables.policies, self._tables.namespaces

        def enter(name: str, encoded: bytes) -> list[Step]:
            if not name:
                policies = _POLICIES.decode(encoded)
                if self._records.broker_policies == TopicPolicies() != policies:
                    return [Step(policy_table, BROKER, policy_table.put(BROKER, policies))]
                return []
            record = self._records.namespace(name)
            former, changed = _NAMESPACE.decode(encoded), record
            if record.policies == TopicPolicies():
                changed = msgspec.structs.replace(changed, policies=former.policies)
            if record.quota == NamespaceQuota():
                changed = msgspec.structs.replace(changed, quota=former.quota)
            return [Step(namespaces, name, namespaces.put(name, changed))] if changed != record else []

        for name, encoded in sorted(records.items()):
            if name and name not in namespaces.values:
                with suppress(AlreadyExistsError):
                    await self._create_namespace(name)
            if enter(name, encoded):
                row = Row(namespaces, name) if name else Row(policy_table, BROKER)
                await self._changes.change(partial(enter, name, encoded), row)
                restored.append(name)
        return restored

    async def of_topic(self, topic: str, changes: Mapping[str, Any]) -> TopicRecord:
        """Change the policies of a plain or partitioned topic, and return its new record.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition.
            InvalidArgumentError: see :func:`danube.model.policies.change_policy`.
        """

        def changed() -> TopicRecord:
            record = self._records.find(topic)
            if record is None:
                self._records.locate(topic)
                raise FailedPreconditionError(
                    f"topic {topic!r} is a partition; policies belong to the partitioned topic as a whole"
                )
            return msgspec.structs.replace(record, policies=change_policy(record.policies, changes))

        return await self._change_topic(topic, changed)

    async def bind(self, topic: str, subject: str, *, unless_other: bool = False) -> TopicRecord:
        """Give a plain or partitioned topic a subject of the schema registry, and return its new record.

        Args:
            topic: its name.
            subject: empty: it has none any more.
            unless_other: refuse if it has another one.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition, or has another subject.
        """

        def changed() -> TopicRecord:
            record = self._records.find(topic)
            if record is None:
                self._records.locate(topic)
                raise FailedPreconditionError(
                    f"topic {topic!r} is a partition; its subject is that of the partitioned topic as a whole"
                )
            if unless_other and record.schema_subject not in ("", subject):
                raise FailedPreconditionError(
                    f"topic {topic!r} uses schema subject {record.schema_subject!r}, cannot use {subject!r}"
                )
            return msgspec.structs.replace(record, schema_subject=subject)

        return await self._change_topic(topic, changed)

    async def plan(
        self,
        topic: str,
        topic_id: TopicId,
        subscription: str,
        changes: Mapping[str, Any],
        existing: Container[str] = (),
    ) -> TopicRecord:
        """Store planned policy changes of a subscription that does not exist yet, and return the topic's new record.

        Args:
            topic: plain or partitioned.
            topic_id: of the one partition that this is for; 0: for all of them, and the plain topic.
            subscription: its name.
            changes: names and plain values, as in :func:`danube.model.policies.change_policy`; added to the stored
                ones.
            existing: subscriptions whose planned changes are not needed any more.

        Raises:
            TopicNotFoundError: the topic was deleted.
            LimitExceededError: too many are stored.
        """
        return await self._change_topic(
            topic, lambda: self._records.planned_with(topic, topic_id, subscription, changes, existing)
        )

    async def forget_planned(self, topic: str, topic_id: TopicId, subscription: str) -> TopicRecord | None:
        """Remove the planned changes of a subscription, and return the topic's new record; None if there were none.

        Args:
            topic: plain or partitioned.
            topic_id: of the one partition that this is for; 0: of all of them.
            subscription: its name.
        """
        table = self._tables.topics
        found: list[TopicRecord] = []

        def make() -> list[Step]:
            record = self._records.find(topic)
            changed = without_planned(record, topic_id, subscription) if record is not None else None
            found[:] = [changed] if changed is not None else []
            return [Step(table, topic, table.put(topic, changed))] if changed is not None else []

        await self._changes.change(make, Row(table, topic))
        return found[0] if found else None

    async def replace_topic(self, topic: str, record: TopicRecord) -> None:
        """Replace the record of an existing topic by a copy that takes precedence."""
        await self._change_topic(topic, lambda: record)

    async def _change_topic(self, topic: str, changed: Callable[[], TopicRecord]) -> TopicRecord:
        """Replace the record of a topic by the one that ``changed`` returns, and return it."""
        table = self._tables.topics
        made: list[TopicRecord] = []

        def make() -> list[Step]:
            made[:] = [changed()]
            return [Step(table, topic, table.put(topic, made[0]))]

        await self._changes.change(make, Row(table, topic))
        return made[0]
