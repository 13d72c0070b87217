"""Managing topics, namespaces, subscriptions and policies: ``client.admin``.

A call about a topic goes to the topic's owner, any other one to any broker of the cluster. One about a partitioned
topic of several owners is made for each partition, at its owner. Calls that only read are repeated when the connection
breaks; the others are not, because they may have been executed.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio
import msgspec

from danube.client._by_partition import joined_explanation, joined_info, parts_of
from danube.client._checks import (
    as_durability,
    check_count,
    check_list,
    check_offset,
    check_seconds,
    choice,
    plain,
    start_position,
)
from danube.client._retry import Retry
from danube.client._tasks import together
from danube.model import api, history_api
from danube.model.api import DeclaredGap
from danube.model.cluster_api import (
    ActivateBroker,
    BackupMetadata,
    BackupPiece,
    BalanceCluster,
    BalancePlan,
    BrokerDrain,
    ClusterMethod,
    ClusterStatus,
    DrainBroker,
    ExplainCluster,
    Explained,
    FillGap,
    ForgetBroker,
    ForgetGaps,
    Forgotten,
    ForgottenGaps,
    GapFilled,
    GetClusterStatus,
    GetGaps,
    MoveList,
    MoveRow,
    MoveTopic,
    OpenGaps,
    UpgradeCluster,
    Upgraded,
)
from danube.model.connection_api import (
    ConnectionInfo,
    ConnectionList,
    ConnectionMethod,
    KillConnection,
    ListConnections,
)
from danube.model.errors import InvalidArgumentError, SubscriptionNotFoundError
from danube.model.history_api import HistoryMethod
from danube.model.ids import Offset, TopicId
from danube.model.inspect_api import (
    CheckList,
    CheckRow,
    ExpandTopic,
    GetTasks,
    InspectMethod,
    ListPlugins,
    ListReaders,
    PluginList,
    PluginRow,
    ReaderInfo,
    ReaderList,
    RunDoctor,
    TaskTree,
)
from danube.model.log_api import ChangeLogLevel, LogLevel, LogMethod
from danube.model.metrics_api import GetMetrics, MetricsMethod, MetricsText
from danube.model.names import validate_name, validate_namespace, validate_topic
from danube.model.overview_api import (
    ABSENT_PATIENCE_S,
    PATIENCE_S,
    FindDeliveries,
    FindingList,
    GetFindings,
    MessageDeliveries,
    OverviewMethod,
    OverviewSubscriptions,
    PlanSeek,
    SeekPlan,
    SeekPlans,
    SkipMessages,
    Skipped,
    SubscriptionOverview,
    SubscriptionRow,
)
from danube.model.policies import Durability, Retention, SubscriptionType
from danube.model.policy_api import ChangePolicies, ChangeSubscriptionPolicy, PolicyMethod, PolicyReport, ShowPolicies
from danube.model.query_api import GetTopicNames, QueryMethod, TopicNames
from danube.model.quotas import ChangeQuota, QuotaMethod, QuotaReport, ShowQuota

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from danube.client._pool import Pool

__all__ = ["Admin", "Overview"]

_MAX_PARTS_AT_ONCE: Final = 16
"""Calls at a time about the partitions of one topic."""

T = TypeVar("T")


class Overview(NamedTuple):
    """The subscriptions of all topics."""

    subscriptions: list[SubscriptionRow]
    """In the order of topics and subscriptions; a partitioned topic has a row for each partition."""
    silent: list[str]
    """Brokers that are away or did not answer: their subscriptions are missing."""


class Admin:
    """Manages topics, namespaces, subscriptions and policies; it is :attr:`Client.admin`.

    ``timeout_s`` of a method bounds the call: after it the call raises DeadlineExceededError, and the broker stops its
    work. None waits as long as the connection exists.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def info(self) -> api.BrokerInfo:
        """Return the status of the broker."""
        return await self._read(api.Method.INFO, api.Empty(), api.BrokerInfo)

    async def change_log_level(self, level: str, *, logger: str = "danube", for_s: float = 600.0) -> LogLevel:
        """Change the level of the log of the broker that this client is connected to, and return it.

        The former level returns by itself. Of a cluster, connect to the broker by its own address.

        Args:
            level: ``"debug"``, ``"info"``, ``"warning"`` or ``"error"``; empty: the former level returns at once.
            logger: of this logger and those below it, for instance ``"danube.metadata"``.
            for_s: for how long, in seconds; at most the broker's ``limits.log_level_max_s``.

        Raises:
            InvalidArgumentError: the level or the logger does not exist, or the time is not positive.
            LimitExceededError: the time is longer than ``log_level_max_s``, or ``max_log_levels`` loggers are changed.
        """
        return await self._change(LogMethod.CHANGE_LEVEL, ChangeLogLevel(level, logger, for_s), LogLevel)

    async def metrics(self, *, detailed: bool = False, topic: str = "*", openmetrics: bool = False) -> str:
        """Return the metrics of the broker that the client is connected to, as the text that Prometheus reads.

        Args:
            detailed: the series of topics, subscriptions and consumers only, each partition by itself; else those of
                the whole broker, with the busiest topics.
            topic: for ``detailed``: a pattern of names of topics; ``*`` matches any characters, slashes included.
            openmetrics: OpenMetrics 1.0 instead of the Prometheus text format 0.0.4.

        Raises:
            PermissionDeniedError: the caller may not read metrics.
        """
        request = GetMetrics(detailed, topic, openmetrics)
        return (await self._read(MetricsMethod.METRICS, request, MetricsText)).text.decode()

    async def doctor(self) -> list[CheckRow]:
        """Check the machine of the broker that the client is connected to, its sealing and its storages."""
        return (await self._read(InspectMethod.DOCTOR, RunDoctor(), CheckList)).checks

    async def plugins(self) -> list[PluginRow]:
        """Return the storage backends and metadata engines that are installed at the broker."""
        return (await self._read(InspectMethod.PLUGINS, ListPlugins(), PluginList)).plugins

    async def tasks(self, limit: int = 1_000) -> TaskTree:
        """Return the tree of tasks of the broker that the client is connected to: who waits where, without values.

        Args:
            limit: most tasks, from 1 to 5,000.
        """
        return await self._read(InspectMethod.TASKS, GetTasks(limit), TaskTree)

    async def lookup_topic(self, topic: str) -> api.TopicPartitions:
        """Return the topics that hold the messages of a topic: the topic itself, or its partitions.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        validate_topic(topic)
        found = await self._read(
            api.Method.LOOKUP_TOPIC, api.LookupTopic(topic, self._pool.revision), api.TopicPartitions
        )
        self._pool.learn(found)
        return found

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        durability: Durability | str | None = None,
        storage: str = "",
        retention: Retention | None = None,
    ) -> api.TopicInfo:
        """Create a topic.

        Args:
            topic: its name.
            partitions: 0 makes a plain topic.
            durability: when a publish is acknowledged; None takes the broker's default.
            storage: name of the storage of its history; empty for the broker's default.
            retention: how long it keeps messages; None keeps all messages.

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidArgumentError: the broker has no such storage, or the retention is invalid.
        """
        validate_topic(topic)
        rules = Retention() if retention is None else retention
        request = api.CreateTopic(topic, partitions, as_durability(durability), storage, rules)
        created = await self._change(api.Method.CREATE_TOPIC, request, api.TopicInfo)
        self._pool.changed(created.revision)
        return created

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic (all partitions of a partitioned one) with its messages and subscriptions."""
        validate_topic(topic)
        done = await self._change(api.Method.DELETE_TOPIC, api.DeleteTopic(topic), api.Done, topic)
        self._pool.changed(done.revision)

    async def list_topics(self, namespace: str | None = None) -> list[api.TopicInfo]:
        """Return the topics of a namespace, or of all."""
        request = api.ListTopics(namespace or "")
        return (await self._read(api.Method.LIST_TOPICS, request, api.TopicList)).topics

    async def topic_names(self) -> list[str]:
        """Return the names of all topics that the caller may look up, partitions not included."""
        return (await self._read(QueryMethod.NAMES, GetTopicNames(), TopicNames)).names

    async def describe_topic(self, topic: str) -> api.TopicInfo:
        """Return one topic; for a partitioned one, the sums over its partitions."""
        validate_topic(topic)
        request = api.DescribeTopic(topic)
        found = await self._of_parts(self._read, api.Method.DESCRIBE_TOPIC, request, api.TopicInfo)
        return found[0] if len(found) == 1 else joined_info(topic, found)

    async def list_readers(self, topic: str) -> list[ReaderInfo]:
        """Return the readers that are connected to a topic, those of all its partitions."""
        validate_topic(topic)
        found = await self._of_parts(self._read, InspectMethod.READERS, ListReaders(topic), ReaderList)
        return [row for each in found for row in each.readers]

    async def expand_topic(self, topic: str, partitions: int) -> api.TopicInfo:
        """Give a partitioned topic more partitions; return it when that is durable.

        Messages stay where they are. Later messages of a key may be in another partition than earlier ones.

        Args:
            topic: its name.
            partitions: their new number.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is no partitioned topic.
            InvalidArgumentError: it has more partitions already.
            LimitExceededError: there would be too many.
        """
        validate_topic(topic)
        return await self._change(InspectMethod.EXPAND, ExpandTopic(topic, partitions), api.TopicInfo)

    async def seal_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Seal all messages of a topic, and return when they are in its storage; one row for each partition.

        Raises:
            StorageError: the storage failed; the broker continues to retry.
            FailedPreconditionError: the topic stores no messages, or its storage is not durable.
        """
        validate_topic(topic)
        request = history_api.SealTopic(topic)
        call = partial(self._long, timeout_s=timeout_s)
        found = await self._of_parts(call, HistoryMethod.SEAL_TOPIC, request, history_api.SealedTopics)
        return [row for each in found for row in each.topics]

    async def unload_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Disconnect all clients from a topic (they reconnect by themselves), and seal all its messages.

        Raises as :meth:`seal_topic`.
        """
        validate_topic(topic)
        request = history_api.UnloadTopic(topic)
        call = partial(self._long, timeout_s=timeout_s)
        found = await self._of_parts(call, HistoryMethod.UNLOAD_TOPIC, request, history_api.SealedTopics)
        return [row for each in found for row in each.topics]

    async def change_retention(
        self,
        topic: str,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        now: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RetentionPlans:
        """Change the retention rules of a topic, apply them, or report their effect.

        Args:
            topic: a plain or partitioned topic.
            retention: the new rules, replacing all; None leaves them unchanged.
            dry_run: change nothing, only report which messages would be deleted.
            now: apply the rules before returning; otherwise that happens within a minute.
            timeout_s: see the class.
        """
        validate_topic(topic)
        request = history_api.ChangeRetention(topic, retention, dry_run, now)
        return await self._long(
            HistoryMethod.CHANGE_RETENTION, request, history_api.RetentionPlans, topic, timeout_s=timeout_s
        )

    async def list_stranded(self) -> list[history_api.StrandedTopic]:
        """Return the topics that the journal has messages or cursors of, and that the metadata do not know."""
        return (await self._read(HistoryMethod.LIST_STRANDED, api.Empty(), history_api.StrandedTopics)).topics

    async def forget_stranded(
        self, topic_ids: Sequence[TopicId], *, accept_loss: bool, timeout_s: float | None = None
    ) -> list[history_api.StrandedTopic]:
        """Delete for good what the journal holds of stranded topics; return them as they were.

        Args:
            topic_ids: as :meth:`list_stranded` returns them.
            accept_loss: must be True: the messages of these topics are lost.
            timeout_s: see the class.

        Raises:
            NotFoundError: one of them is not stranded; none was deleted.
            FailedPreconditionError: the loss is not accepted.
        """
        request = history_api.ForgetStranded(check_list("topic_ids", topic_ids, "ids"), accept_loss)
        return (
            await self._long(HistoryMethod.FORGET_STRANDED, request, history_api.StrandedTopics, timeout_s=timeout_s)
        ).topics

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""
        validate_namespace(namespace)
        await self._change(api.Method.CREATE_NAMESPACE, api.CreateNamespace(namespace), api.Done)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        validate_namespace(namespace)
        await self._change(api.Method.DELETE_NAMESPACE, api.DeleteNamespace(namespace), api.Done)

    async def list_namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return (await self._read(api.Method.LIST_NAMESPACES, api.ListNamespaces(), api.NamespaceList)).namespaces

    async def quota(self, namespace: str) -> QuotaReport:
        """Return the quota of a namespace, and how many topics it has.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        validate_namespace(namespace)
        return await self._change(QuotaMethod.SHOW, ShowQuota(namespace), QuotaReport)

    async def change_quota(self, namespace: str, **changes: Any) -> QuotaReport:
        """Change the quota of a namespace, and return it. It applies at once, at all brokers; what exists stays.

        Args:
            namespace: its name.
            changes: fields of :class:`danube.model.quotas.NamespaceQuota`; None removes one. Others remain unchanged.

        Raises:
            InvalidArgumentError: an unknown name, or an invalid value.
            NamespaceNotFoundError: it does not exist.
        """
        validate_namespace(namespace)
        return await self._change(QuotaMethod.CHANGE, ChangeQuota(namespace, changes), QuotaReport)

    async def list_subscriptions(self, topic: str) -> list[api.SubscriptionInfo]:
        """Return the subscriptions of a topic, one row for each partition."""
        validate_topic(topic)
        request = api.ListSubscriptions(topic)
        found = await self._of_parts(self._read, api.Method.LIST_SUBSCRIPTIONS, request, api.SubscriptionList)
        return [row for each in found for row in each.subscriptions]

    async def describe_subscription(self, topic: str, subscription: str) -> list[api.SubscriptionInfo]:
        """Return the state of a subscription, one row for each partition."""
        request = _reference(topic, subscription)
        found = await self._of_parts(self._read, api.Method.DESCRIBE_SUBSCRIPTION, request, api.SubscriptionList)
        return [row for each in found for row in each.subscriptions]

    async def explain_subscription(self, topic: str, subscription: str) -> api.Explanation:
        """Return, in a sentence, why a subscription moves or does not."""
        request = _reference(topic, subscription)
        found = await self._of_parts(self._read, api.Method.EXPLAIN_SUBSCRIPTION, request, api.Explanation)
        return found[0] if len(found) == 1 else joined_explanation(topic, found)

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,  # noqa: A002 - the word of the API
        start: str | int | datetime = "latest",
    ) -> list[api.SubscriptionInfo]:
        """Create a subscription without consuming, so that messages are kept for it from now on.

        One that exists with this type stays as it is.

        Args:
            topic: a plain topic, a partition, or a partitioned topic.
            subscription: its name.
            type: how consumers share it.
            start: ``"latest"``, ``"earliest"``, an offset, or the first message at or after a time.

        Returns:
            One row for each partition.

        Raises:
            TopicNotFoundError: the topic does not exist.
            SubscriptionTypeMismatchError: the subscription exists with another type.
            LimitExceededError: the topic has as many subscriptions as it may have.
        """
        _reference(topic, subscription)
        where, time_us = start_position(start)
        request = api.CreateSubscription(
            topic=topic,
            subscription=subscription,
            type=choice(SubscriptionType, "type", type),
            start=where,
            start_time_us=time_us,
        )
        found = await self._of_parts(self._change, api.Method.CREATE_SUBSCRIPTION, request, api.SubscriptionList)
        return [row for each in found for row in each.subscriptions]

    async def find_deliveries(self, topic: str, offset: int) -> MessageDeliveries:
        """Return who has a message: where it is in each subscription of its topic, at this moment.

        Args:
            topic: a plain topic or one partition.
            offset: of the message.

        Raises:
            NotFoundError: there is no message with this offset, or retention has removed it.
            FailedPreconditionError: the topic stores nothing (durability ``none``).
        """
        validate_topic(topic)
        request = FindDeliveries(topic=topic, offset=Offset(check_offset("offset", offset)))
        return await self._read(OverviewMethod.DELIVERIES, request, MessageDeliveries, topic)

    async def seek_subscription(self, topic: str, subscription: str, position: str | int | datetime) -> None:
        """Move a subscription to ``"earliest"``, ``"latest"``, an offset, or the first message at or after a time."""
        _reference(topic, subscription)
        where, time_us = start_position(position)
        request = api.SeekSubscription(topic, subscription, where, time_us)
        await self._of_parts(self._change, api.Method.SEEK_SUBSCRIPTION, request, api.Done)

    async def plan_seek(
        self, topic: str, subscription: str, position: str | int | datetime = "latest", *, by: int = 0
    ) -> list[SeekPlan]:
        """Return what :meth:`seek_subscription` would do, without doing it; one row for each partition.

        Args:
            topic, subscription: the subscription.
            position: as of :meth:`seek_subscription`, if ``by`` is 0.
            by: below 0: so many messages back from the first unacknowledged one; above 0: forward over so many
                unacknowledged ones. In each partition.
        """
        _reference(topic, subscription)
        where, time_us = start_position(position)
        request = PlanSeek(topic=topic, subscription=subscription, position=where, time_us=time_us, by=by)
        found = await self._of_parts(self._read, OverviewMethod.PLAN_SEEK, request, SeekPlans)
        return [row for each in found for row in each.plans]

    async def skip_messages(self, topic: str, subscription: str, messages: int) -> list[Skipped]:
        """Skip the next unacknowledged messages of a subscription, and return when that is durable.

        They count as acknowledged, also those that a consumer has at the moment, and are not delivered again. No other
        message is affected: other than by a seek, what was acknowledged stays so.

        Args:
            topic, subscription: the subscription.
            messages: how many, at most, in each partition. Those that consumers acknowledge meanwhile count.

        Returns:
            A row for each partition.

        Raises:
            InvalidArgumentError: ``messages`` is below 1.
            FailedPreconditionError: the topic stores no messages (durability ``none``), or the subscription was moved
                at the same time. Nothing was skipped, in that partition.
        """
        check_count("messages", messages, 1)
        plans = await self.plan_seek(topic, subscription, by=messages)
        return await self.skip_planned(subscription, plans)

    async def skip_planned(self, subscription: str, plans: Sequence[SeekPlan]) -> list[Skipped]:
        """As :meth:`skip_messages`, but skip what :meth:`plan_seek` has planned: all below each plan's ``target``.

        Args:
            subscription: its name.
            plans: as :meth:`plan_seek` has returned them.

        Raises:
            InvalidArgumentError: a plan is none.
            FailedPreconditionError: as :meth:`skip_messages`.
        """
        wanted = check_list("plans", plans, "what plan_seek() returns")
        for each in wanted:
            if not isinstance(each, SeekPlan):
                kind = type(each).__name__
                raise InvalidArgumentError(f"plans has a {kind}, which is no plan; pass what plan_seek() returns")
            _reference(each.topic, subscription)
        limiter = anyio.CapacityLimiter(_MAX_PARTS_AT_ONCE)

        async def skip(plan: SeekPlan) -> Skipped:
            request = SkipMessages(
                topic=plan.topic, subscription=subscription, below=plan.target, generation=plan.generation
            )
            async with limiter:
                return await self._read(OverviewMethod.SKIP, request, Skipped, plan.topic)

        return await together([partial(skip, plan) for plan in wanted])

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription and its cursor; connected consumers are disconnected."""
        _reference(topic, subscription)
        request = api.DeleteSubscription(topic, subscription)
        await self._of_parts(self._change, api.Method.DELETE_SUBSCRIPTION, request, api.Done)

    async def overview(
        self,
        *,
        namespace: str | None = None,
        topic: str | None = None,
        unwell_only: bool = False,
        patience_s: float = PATIENCE_S,
        absent_patience_s: float = ABSENT_PATIENCE_S,
    ) -> Overview:
        """Return the subscriptions of all topics of the cluster, in the order of their names, with their states.

        Args:
            namespace: only of topics in it; None: of all.
            topic: only of this topic: a plain or partitioned one, or a partition; None: of all.
            unwell_only: leave out those that are well.
            patience_s: subscriptions with work in progress count as well until their oldest unacknowledged message is
                older, in seconds.
            absent_patience_s: the same for subscriptions without a consumer, which may be those of nightly jobs.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        if topic is not None:
            validate_topic(topic)
        check_seconds("patience_s", patience_s)
        check_seconds("absent_patience_s", absent_patience_s)
        request = OverviewSubscriptions(
            namespace=namespace or "",
            topic=topic or "",
            unwell_only=unwell_only,
            patience_s=patience_s,
            absent_patience_s=absent_patience_s,
        )
        rows: list[SubscriptionRow] = []
        silent: set[str] = set()
        while True:
            page = await self._read(OverviewMethod.SUBSCRIPTIONS, request, SubscriptionOverview)
            rows += page.subscriptions
            silent.update(page.silent)
            if page.next is None:
                return Overview(rows, sorted(silent))
            request = msgspec.structs.replace(request, after=page.next)

    async def findings(self) -> FindingList:
        """Return everything about brokers, topics and storages that is not well, but for subscriptions."""
        return await self._read(OverviewMethod.FINDINGS, GetFindings(), FindingList)

    async def list_connections(self) -> list[ConnectionInfo]:
        """Return the open connections of all brokers."""
        found: list[ConnectionInfo] = []
        while True:
            request = ListConnections(found[-1].id if found else "")
            page = await self._read(ConnectionMethod.LIST, request, ConnectionList)
            found += page.connections
            if not page.more or not page.connections:
                return found

    async def kill_connection(self, connection_id: str) -> None:
        """End a connection; its client may connect again.

        Args:
            connection_id: as :meth:`list_connections` returns it, for example ``"b1-12"``.

        Raises:
            NotFoundError: it is not open.
        """
        await self._change(ConnectionMethod.KILL, KillConnection(connection_id), api.Done)

    async def policies(self, target: str = "") -> PolicyReport:
        """Return the policies of a target: its own, the effective ones, and the level of each.

        Args:
            target: ``""`` for the broker, ``"ns"`` for a namespace, ``"/ns/topic"`` for a topic. The broker's own
                policies are those set by command; its configuration comes after them.

        Raises:
            NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
        """
        return await self._change(PolicyMethod.SHOW, ShowPolicies(target), PolicyReport)

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
        return await self._change(PolicyMethod.CHANGE, request, PolicyReport)

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
        found = await self._of_parts(self._change, PolicyMethod.CHANGE_SUBSCRIPTION, request, api.SubscriptionList)
        return [row for each in found for row in each.subscriptions]

    async def cluster_status(self, *, gather: bool = True) -> ClusterStatus:
        """Return the status of the cluster: its brokers, who keeps the metadata, and which topics wait for a broker.

        Args:
            gather: have the broker ask the others for their figures; one that does not answer within 1.5 seconds is
                marked. Otherwise the answer contains only what the tables of this broker say.
        """
        return await self._read(ClusterMethod.STATUS, GetClusterStatus(gather), ClusterStatus)

    async def cluster_explain(self, subject: str) -> Explained:
        """Return, in a sentence, what is the matter with a broker or a topic, and what to do about it.

        Args:
            subject: a broker, such as ``"b2"``, or the name of a topic.

        Raises:
            NotFoundError: there is no such broker or topic.
        """
        return await self._read(ClusterMethod.EXPLAIN, ExplainCluster(subject), Explained)

    async def upgrade_cluster(self) -> Upgraded:
        """Raise the feature level of the cluster to that of its brokers' version, once all of them have it.

        From then on no broker can be set back to the former version.

        Raises:
            FailedPreconditionError: a broker that may return has an older version; the message names it.
            UnavailableError: the metadata do not answer, or brokers start and end at the moment.
        """
        return await self._change(ClusterMethod.UPGRADE, UpgradeCluster(), Upgraded)

    async def drain_broker(self, broker: str, *, dry_run: bool = False) -> BrokerDrain:
        """Have a broker give all its topics to others, and get none from now on; return at once how far it is.

        It stays so until :meth:`activate_broker`, also when it is restarted. Topics that cannot move are named.

        Args:
            broker: such as ``"b2"``.
            dry_run: change nothing; return how far it is.

        Raises:
            NotFoundError: it does not exist.
            FailedPreconditionError: it was declared gone, or no other broker is active.
        """
        request = DrainBroker(broker, dry_run)
        return await (self._read if dry_run else self._change)(ClusterMethod.DRAIN, request, BrokerDrain)

    async def activate_broker(self, broker: str, *, dry_run: bool = False) -> BrokerDrain:
        """Have a broker get topics again. What it has not given away yet, it keeps.

        Args:
            broker: such as ``"b2"``.
            dry_run: change nothing; return what it has.

        Raises:
            NotFoundError: it does not exist.
            FailedPreconditionError: it was declared gone.
        """
        request = ActivateBroker(broker, dry_run)
        return await (self._read if dry_run else self._change)(ClusterMethod.ACTIVATE, request, BrokerDrain)

    async def move_topic(self, topic: str, broker: str, *, dry_run: bool = False) -> list[MoveRow]:
        """Order a topic, a partition, or all partitions of a topic to move to a broker; return what was ordered.

        The moves happen afterwards, as :meth:`cluster_status` shows. Partitions that cannot be ordered to move have the
        reason in ``problem``.

        Args:
            topic: its name.
            broker: such as ``"b2"``.
            dry_run: order nothing; return what would be ordered.

        Raises:
            TopicNotFoundError, NotFoundError: the topic or the broker does not exist.
            FailedPreconditionError: the broker gets no topics, or a single topic cannot move.
        """
        request = MoveTopic(topic, broker, dry_run)
        found = await (self._read if dry_run else self._change)(ClusterMethod.MOVE, request, MoveList)
        return found.moves

    async def forget_broker(self, broker: str, *, accept_loss: bool = False) -> Forgotten:
        """Say what is lost if a broker does not return; or declare it gone, and have others go on with its topics.

        Args:
            broker: such as ``"b2"``; it does not run.
            accept_loss: declare it gone for good: it may not join the cluster again. Its topics of durability ``disk``
                and ``os`` go on at once behind a declared gap. False: change nothing.

        Raises:
            NotFoundError: it does not exist.
            FailedPreconditionError: it runs, or it is the broker that answers, or no broker can take its topics.
        """
        request = ForgetBroker(broker, accept_loss)
        return await (self._change if accept_loss else self._read)(ClusterMethod.FORGET, request, Forgotten)

    async def forget_gaps(self, topic: str, *, dry_run: bool = False) -> list[DeclaredGap]:
        """Have subscriptions of a topic wait no longer for what was lost with a broker; return the gaps.

        After that the messages cannot be given back any more.

        Args:
            topic: a topic, a partition, or a topic with all its partitions.
            dry_run: change nothing; return the gaps for which subscriptions wait.

        Raises:
            TopicNotFoundError: it does not exist.
        """
        request = ForgetGaps(topic, dry_run)
        found = await (self._read if dry_run else self._change)(ClusterMethod.FORGET_GAPS, request, ForgottenGaps)
        return found.gaps

    async def open_gaps(self, identity: str) -> OpenGaps:
        """Return the declared gaps that the data directory of a broker can fill which was declared gone.

        Args:
            identity: of the data directory.

        Raises:
            NotFoundError: the directory is not that of a broker of this cluster.
            FailedPreconditionError: the broker was not declared gone.
        """
        return await self._read(ClusterMethod.GAPS, GetGaps(identity), OpenGaps)

    async def fill_gap(self, request: FillGap) -> int:
        """Send a piece of a transfer of batches into a declared gap; return up to where it is filled.

        Args:
            request: the piece; about a gap that :meth:`open_gaps` has returned.

        Raises:
            FailedPreconditionError: the gap was filled or forgotten, or a piece is missing.
            InvalidArgumentError: a batch does not fit into the gap.
            StorageError: the batches cannot be sealed now.
        """
        if not isinstance(request, FillGap):
            raise InvalidArgumentError(f"a piece of a transfer must be a FillGap, not {type(request).__name__}")
        return (await self._change(ClusterMethod.FILL_GAP, request, GapFilled, request.topic)).end

    async def balance_cluster(self, *, most_moves: int = 64, dry_run: bool = False) -> BalancePlan:
        """Order topics to move at once until the load of all brokers is even; return the plan.

        Args:
            most_moves: most topics of the plan, 1 to 1,000; call again for the rest.
            dry_run: order nothing.

        Raises:
            InvalidArgumentError: ``most_moves`` is out of range.
            FailedPreconditionError: there is no other broker.
        """
        request = BalanceCluster(dry_run, most_moves)
        return await (self._read if dry_run else self._change)(ClusterMethod.BALANCE, request, BalancePlan)

    async def backup_metadata(self) -> bytes:
        """Return a backup of the metadata: the content of a file for ``danube cluster restore``.

        It contains every change that was acknowledged before the call, and no messages.

        Raises:
            UnavailableError: the broker is making another backup, or cannot read the metadata.
            FailedPreconditionError: the broker was restarted meanwhile; try again.
        """
        piece = await self._read(ClusterMethod.BACKUP, BackupMetadata(), BackupPiece)
        pieces = [piece.data]
        while not piece.last:
            request = BackupMetadata(piece.revision, piece.position)
            piece = await self._read(ClusterMethod.BACKUP, request, BackupPiece)
            pieces.append(piece.data)
        return b"".join(pieces)

    async def _change(self, path: str, request: Any, kind: type[T], topic: str = "") -> T:
        """Make a call to any broker, or about a topic to its owner."""
        timeout_s = self._pool.options.request_timeout_s
        return await self._pool.unary(path, request, kind, timeout_s=timeout_s, route=self._pool.route(topic))

    async def _read(self, path: str, request: Any, kind: type[T], topic: str = "") -> T:
        call = partial(self._change, path, request, kind, topic)
        return await Retry(self._pool).repeat(call, self._pool.options.request_timeout_s)

    async def _of_parts(
        self, call: Callable[[str, Any, type[T], str], Awaitable[T]], path: str, request: Any, kind: type[T]
    ) -> list[T]:
        """Make a call about the topic of a request; if its partitions have several owners, about each of them."""
        names = parts_of(await self.lookup_topic(request.topic))
        if len(names) == 1:
            return [await call(path, request, kind, request.topic)]
        limiter = anyio.CapacityLimiter(_MAX_PARTS_AT_ONCE)
        missing: list[SubscriptionNotFoundError] = []

        async def ask(name: str) -> T | None:
            async with limiter:
                try:
                    return await call(path, msgspec.structs.replace(request, topic=name), kind, name)
                except SubscriptionNotFoundError as error:  # some partitions may not have it yet
                    missing.append(error)
                    return None

        found = [each for each in await together([partial(ask, name) for name in names]) if each is not None]
        if not found:
            raise missing[0]
        return found

    async def _long(self, path: str, request: Any, kind: type[T], topic: str = "", *, timeout_s: float | None) -> T:
        """Make a call without a default deadline, because writing a whole topic to a storage may take any time."""
        limit_s = None if timeout_s is None else check_seconds("timeout_s", timeout_s)
        return await self._pool.unary(path, request, kind, timeout_s=limit_s, route=self._pool.route(topic))


def _reference(topic: str, subscription: str) -> api.SubscriptionRef:
    validate_topic(topic)
    validate_name("subscription", subscription)
    return api.SubscriptionRef(topic, subscription)
