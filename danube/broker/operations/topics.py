"""Operations on topics and namespaces: create, look up, list, describe, delete."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from danube.broker.directory.directory import names_behind
from danube.broker.directory.policies import bind_subject, change_quota
from danube.broker.operations.across import Across
from danube.broker.operations.merging import known_of
from danube.broker.operations.storages import sealed_part_of
from danube.cluster.gaps import shown_gap
from danube.cluster.ownership import Elsewhere, Mine
from danube.history.tenure import owner_epoch
from danube.log import TopicLog
from danube.model import TopicPolicies, api, validate_topic
from danube.model.errors import CallRefusedError, DanubeError, InvalidArgumentError, TopicNotFoundError
from danube.model.ids import NO_TOPIC, Offset, TopicId
from danube.model.inspect_api import ExpandTopic, ListReaders, ReaderInfo, ReaderList
from danube.model.names import SYSTEM_NAMESPACE
from danube.model.policies import check_policy
from danube.model.quotas import ChangeQuota, QuotaReport, ShowQuota

if TYPE_CHECKING:
    from danube.broker.delivery.topic_reader import TopicReader
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic
    from danube.cluster.membership import Membership

__all__ = ["TopicOperations"]


class TopicOperations:
    """Operations on topics and namespaces.

    Args:
        directory: of the topics.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.across = Across(directory, self._topic_info)
        """Calls about topics that several brokers own."""

    # --- Topics ---

    async def lookup_topic(self, request: api.LookupTopic) -> api.TopicPartitions:
        """Return the topic of a name, or its partitions."""
        validate_topic(request.topic)
        directory, membership = self._directory, self._directory.membership
        catalogue = directory.catalogue
        if request.revision > catalogue.tables.topics.position:
            # The client has created or deleted topics through another broker, and this one may not have heard of it.
            await directory.refresh(request.topic)
        record = catalogue.find(request.topic)
        if record is None:
            try:
                catalogue.locate(request.topic)
            except TopicNotFoundError:
                await directory.refresh(request.topic)
            record = catalogue.find(request.topic)
        if record is None:
            record, topic_id = catalogue.locate(request.topic)
            found = api.TopicPartitions(request.topic, 0, [request.topic], record.durability)
            ids = [topic_id]
        else:
            names, ids = names_behind(request.topic, record), record.topic_ids
            found = api.TopicPartitions(request.topic, record.partitions, names, record.durability)
        if membership.is_alone:
            return found
        owners = [] if all(map(membership.owns, ids)) else [_owner(membership, topic_id) for topic_id in ids]
        brokers = [address for _, address in membership.owners.addresses()]
        return msgspec.structs.replace(found, owners=owners, brokers=brokers, topic_ids=ids)

    async def create_topic(self, request: api.CreateTopic) -> api.TopicInfo:
        """Create a topic."""
        self._directory.membership.check_reach()
        policies = TopicPolicies(retention=request.retention or None)  # an empty rule sets no policy
        check_policy(policies)
        record = await self._directory.create(
            request.topic,
            request.durability,
            request.partitions,
            request.storage,
            policies,
        )
        try:
            info = self._topic_info(request.topic)
        except CallRefusedError:
            info = known_of(request.topic, record)  # other brokers own it, or a part of it
        return msgspec.structs.replace(info, revision=self._directory.catalogue.revision)

    async def delete_topic(self, request: api.DeleteTopic) -> api.Done:
        """Delete a topic with all its messages and subscriptions."""
        self._directory.membership.check_reach()
        await self._directory.delete(request.topic, request.topic_ids)
        return api.Done(self._directory.catalogue.revision)

    async def list_topics(self, request: api.ListTopics) -> api.TopicList:
        """List topics, partitioned ones once. Of unavailable topics only the data in the catalogue is shown."""
        if not self._directory.membership.is_alone:
            return await self.across.list_topics(request)
        found = []
        for name, record in self._directory.catalogue.topics(request.namespace):
            try:
                found.append(self._topic_info(name))
            except DanubeError:
                # Its storage is unavailable, or it is being created or deleted: `describe` states which. Others can be
                # listed.
                found.append(known_of(name, record))
        return api.TopicList(found)

    async def describe_topic(self, request: api.DescribeTopic) -> api.TopicInfo:
        """Describe one topic, one partition, or the sum of a partitioned topic."""
        validate_topic(request.topic)
        directory = self._directory
        record = directory.catalogue.find(request.topic)
        if record is None and not directory.membership.is_alone:
            await directory.refresh(request.topic)
            record = directory.catalogue.find(request.topic)
        if record is not None and record.partitions and not all(map(directory.membership.owns, record.topic_ids)):
            return await self.across.describe(request.topic, record)
        away = self.across.owner_elsewhere(request.topic, record)
        if away is not None:
            return await self.across.describe_elsewhere(request, away)
        return self._topic_info(request.topic)

    async def list_readers(self, request: ListReaders) -> ReaderList:
        """Return the readers of a topic, those of all its partitions."""
        validate_topic(request.topic)
        return ReaderList(
            [
                reader_of(topic.name, topic.end_offset, reader)
                for topic in self._directory.resolve(request.topic)
                for reader in topic.readers
            ]
        )

    async def expand_topic(self, request: ExpandTopic) -> api.TopicInfo:
        """Give a partitioned topic more partitions.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is no partitioned topic.
            InvalidArgumentError, LimitExceededError: it has more partitions already, or there would be too many.
        """
        self._directory.membership.check_reach()
        await self._directory.expand(request.topic, request.partitions)
        return await self.describe_topic(api.DescribeTopic(request.topic))

    def _topic_info(self, name: str) -> api.TopicInfo:
        topics = self._directory.resolve(name)
        record = self._directory.catalogue.find(name)
        first = topics[0]
        partitions = record.partitions if record is not None else 0
        journal_bytes = sum(topic.stored_bytes for topic in topics)
        parts, objects, sealed_bytes = sealed_part_of(self._directory, topics)
        return api.TopicInfo(
            topic=name,
            topic_id=NO_TOPIC if partitions else first.topic_id,
            partitions=partitions,
            durability=first.durability,
            start_offset=sum(topic.start_offset for topic in topics),
            end_offset=sum(topic.end_offset for topic in topics),
            stored_bytes=journal_bytes + sealed_bytes,
            producers=[producer for topic in topics for producer in topic.intake.infos()],
            subscriptions=sorted({name for topic in topics for name in topic.subscriptions}),
            created_us=record.created_us if record is not None else first.created_us,
            storage=first.storage,
            retention=first.retention,
            sealed_offset=sum(_sealed_offset(topic) for topic in topics),
            journal_bytes=journal_bytes,
            sealed_bytes=sealed_bytes,
            parts=parts,
            objects=objects,
            readers=sum(len(topic.readers) for topic in topics),
            schema_subject=first.schema_subject,
            gaps=[shown_gap(topic.name, gap) for topic in topics for gap in topic.gaps],
            missing_messages=sum(map(_missing, topics)),
        )

    def names_with_subject(self, *subjects: str) -> Iterator[str]:
        """Yield the name of each topic with one of the subjects, sorted, and an empty text for each other one.

        Between two of them topics may be created and deleted.
        """
        catalogue = self._directory.catalogue
        for name in sorted(catalogue.tables.topics.values):
            record = catalogue.find(name)
            yield name if record is not None and record.schema_subject in subjects else ""

    async def bind_subject(self, topic: str, subject: str, *, unless_other: bool = False) -> None:
        """Give a topic a subject of the schema registry, whose existence is not checked.

        Args:
            topic: plain or partitioned.
            subject: empty: it has none any more.
            unless_other: refuse if it has another one.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition, or has another subject.
        """
        self._directory.membership.check_reach()
        bind = partial(bind_subject, self._directory, topic, subject, unless_other=unless_other)
        await self._directory.runtime.finish(bind)

    # --- Namespaces ---

    async def create_namespace(self, request: api.CreateNamespace) -> api.Done:
        """Create a namespace."""
        self._directory.membership.check_reach()
        await self._directory.catalogue.create_namespace(request.namespace)
        return api.Done()

    async def delete_namespace(self, request: api.DeleteNamespace) -> api.Done:
        """Delete an empty namespace."""
        self._directory.membership.check_reach()
        await self._directory.catalogue.delete_namespace(request.namespace)
        return api.Done()

    async def show_quota(self, request: ShowQuota) -> QuotaReport:
        """Return the quota of a namespace, and what it uses."""
        catalogue, begin = self._directory.catalogue, f"/{request.namespace}/"
        quota = catalogue.namespace(request.namespace).quota
        names = [topic.name for topic in self._directory.kept_topics() if topic.name.startswith(begin)]
        stored = sum(map(self._directory.stored_bytes, names))
        connections = self._directory.runtime.namespace_connections.used(request.namespace)
        topics, subjects = (
            catalogue.topics_of(request.namespace),
            self._directory.runtime.subjects.used(request.namespace),
        )
        return QuotaReport(request.namespace, quota, topics, stored, connections, subjects)

    async def change_quota(self, request: ChangeQuota) -> QuotaReport:
        """Change the quota of a namespace. What exists stays.

        Raises:
            InvalidArgumentError: it is that of the audit log, which no quota may hold up.
        """
        if request.namespace == SYSTEM_NAMESPACE:
            raise InvalidArgumentError(
                f"the namespace {SYSTEM_NAMESPACE} has no quota: brokers write it, and the audit log is there"
            )
        self._directory.membership.check_reach()
        await self._directory.runtime.finish(partial(change_quota, self._directory, request.namespace, request.changes))
        return await self.show_quota(ShowQuota(request.namespace))

    async def list_namespaces(self, _request: api.ListNamespaces) -> api.NamespaceList:
        """List namespaces."""
        return api.NamespaceList(self._directory.catalogue.namespaces)


def _owner(membership: Membership, topic_id: TopicId) -> api.TopicOwner:
    """Return where clients find a topic or partition."""
    owner = membership.owners.owner_of(topic_id)
    if isinstance(owner, Mine):
        session = membership.sessions.values.get(membership.broker)
        return api.TopicOwner(session.address if session is not None else "", membership.epoch(topic_id))
    if isinstance(owner, Elsewhere):
        return api.TopicOwner(owner.address, owner_epoch(owner.epoch, owner.life))
    return api.TopicOwner()


def reader_of(topic: str, end_offset: Offset, reader: TopicReader) -> ReaderInfo:
    """Return the state of a reader of a topic or partition."""
    facts = reader.machine.describe(end_offset)
    (state,) = facts.consumers
    return ReaderInfo(
        topic=topic,
        name=state.name,
        reader_id=state.consumer_id,
        start_offset=reader.start_offset,
        position=Offset(facts.position),
        end_offset=end_offset,
        credit_messages=state.credit_messages,
        credit_bytes=state.credit_bytes,
        delivered_messages=state.delivered_messages,
    )


def _missing(topic: Topic) -> int:
    gaps = [shown_gap(topic.name, gap) for gap in topic.gaps]
    return sum(max(0, gap.end - max(gap.start, topic.start_offset)) for gap in gaps)


def _sealed_offset(topic: Topic) -> Offset:
    return topic.kept.journal_start if isinstance(topic.kept, TopicLog) else topic.end_offset
