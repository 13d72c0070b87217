"""The unary calls of the native protocol: a table of paths and operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from danube.model import api, cluster_api, connection_api, history_api, inspect_api, overview_api, policy_api, query_api
from danube.model.cluster_api import ClusterMethod
from danube.model.connection_api import ConnectionMethod
from danube.model.history_api import HistoryMethod
from danube.model.inspect_api import InspectMethod
from danube.model.job_api import JobList, JobMethod, ListJobs, ReportJob
from danube.model.log_api import ChangeLogLevel, LogMethod
from danube.model.metrics_api import GetMetrics, MetricsMethod, MetricsText
from danube.model.overview_api import OverviewMethod
from danube.model.policy_api import PolicyMethod
from danube.model.query_api import QueryMethod
from danube.model.quotas import ChangeQuota, QuotaMethod, ShowQuota
from danube.wire import Context, Method, Service

if TYPE_CHECKING:
    from danube.broker.operations import Operations

__all__ = ["unary_calls"]

Operation = Callable[[Any], Awaitable[Any]]


def unary_calls(operations: Operations) -> Service:
    """Return the methods, by path."""
    topics, subscriptions, policies = operations.topics, operations.subscriptions, operations.policies
    storages, logs, cluster = operations.storages, operations.logs, operations.cluster

    async def info(_request: api.Empty) -> api.BrokerInfo:
        return operations.info()

    async def report_job(request: ReportJob) -> api.Done:
        return await operations.jobs.report(request)

    async def list_jobs(request: ListJobs) -> JobList:
        return await operations.jobs.list(request)

    # Their operations are loaded with the first call.
    async def list_connections(request: connection_api.ListConnections) -> connection_api.ConnectionList:
        return await operations.connections.list_connections(request)

    async def kill_connection(request: connection_api.KillConnection) -> api.Done:
        return await operations.connections.kill_connection(request)

    async def overview(request: overview_api.OverviewSubscriptions) -> overview_api.SubscriptionOverview:
        return await operations.overviews.overview(request)

    async def findings(request: overview_api.GetFindings) -> overview_api.FindingList:
        return await operations.overviews.findings(request)

    async def doctor(request: inspect_api.RunDoctor) -> inspect_api.CheckList:
        return await operations.inspecting.doctor(request)

    async def plugins(request: inspect_api.ListPlugins) -> inspect_api.PluginList:
        return await operations.inspecting.plugins(request)

    async def drain(request: cluster_api.DrainBroker) -> cluster_api.BrokerDrain:
        return await operations.moves.drain(request)

    async def activate(request: cluster_api.ActivateBroker) -> cluster_api.BrokerDrain:
        return await operations.moves.activate(request)

    async def move(request: cluster_api.MoveTopic) -> cluster_api.MoveList:
        return await operations.moves.move(request)

    async def forget(request: cluster_api.ForgetBroker) -> cluster_api.Forgotten:
        return await operations.forgetting.forget(request)

    async def forget_gaps(request: cluster_api.ForgetGaps) -> cluster_api.ForgottenGaps:
        return await operations.forgetting.forget_gaps(request)

    async def gaps(request: cluster_api.GetGaps) -> cluster_api.OpenGaps:
        return await operations.filling.gaps(request)

    async def fill_gap(request: cluster_api.FillGap) -> cluster_api.GapFilled:
        return await operations.filling.fill(request)

    async def balance(request: cluster_api.BalanceCluster) -> cluster_api.BalancePlan:
        return await operations.moves.balance(request)

    async def tasks(request: inspect_api.GetTasks) -> inspect_api.TaskTree:
        return await operations.inspecting.tasks(request)

    async def metrics(request: GetMetrics) -> MetricsText:
        return await operations.metrics.read(request)

    table: list[tuple[str, Operation, type]] = [
        (api.Method.INFO, info, api.Empty),
        (LogMethod.CHANGE_LEVEL, operations.log_levels.change, ChangeLogLevel),
        (api.Method.LOOKUP_TOPIC, topics.lookup_topic, api.LookupTopic),
        (api.Method.CREATE_TOPIC, topics.create_topic, api.CreateTopic),
        (api.Method.DELETE_TOPIC, topics.delete_topic, api.DeleteTopic),
        (api.Method.LIST_TOPICS, topics.list_topics, api.ListTopics),
        (api.Method.DESCRIBE_TOPIC, topics.describe_topic, api.DescribeTopic),
        (api.Method.CREATE_NAMESPACE, topics.create_namespace, api.CreateNamespace),
        (api.Method.DELETE_NAMESPACE, topics.delete_namespace, api.DeleteNamespace),
        (api.Method.LIST_NAMESPACES, topics.list_namespaces, api.ListNamespaces),
        (QuotaMethod.SHOW, topics.show_quota, ShowQuota),
        (QuotaMethod.CHANGE, topics.change_quota, ChangeQuota),
        (api.Method.LIST_SUBSCRIPTIONS, subscriptions.list_subscriptions, api.ListSubscriptions),
        (api.Method.DESCRIBE_SUBSCRIPTION, subscriptions.describe_subscription, api.SubscriptionRef),
        (api.Method.EXPLAIN_SUBSCRIPTION, subscriptions.explain_subscription, api.SubscriptionRef),
        (api.Method.CREATE_SUBSCRIPTION, subscriptions.create_subscription, api.CreateSubscription),
        (api.Method.SEEK_SUBSCRIPTION, subscriptions.seek_subscription, api.SeekSubscription),
        (OverviewMethod.PLAN_SEEK, subscriptions.plan_seek, overview_api.PlanSeek),
        (OverviewMethod.SKIP, subscriptions.skip_messages, overview_api.SkipMessages),
        (OverviewMethod.DELIVERIES, subscriptions.find_deliveries, overview_api.FindDeliveries),
        (api.Method.DELETE_SUBSCRIPTION, subscriptions.delete_subscription, api.DeleteSubscription),
        (PolicyMethod.SHOW, policies.show, policy_api.ShowPolicies),
        (PolicyMethod.CHANGE, policies.change, policy_api.ChangePolicies),
        (PolicyMethod.CHANGE_SUBSCRIPTION, policies.change_subscription, policy_api.ChangeSubscriptionPolicy),
        (HistoryMethod.SEAL_TOPIC, storages.seal_topic, history_api.SealTopic),
        (HistoryMethod.UNLOAD_TOPIC, storages.unload_topic, history_api.UnloadTopic),
        (HistoryMethod.CHANGE_RETENTION, storages.change_retention, history_api.ChangeRetention),
        (HistoryMethod.RESTORE_TOPICS, storages.restore_topics, history_api.RestoreTopics),
        (HistoryMethod.LIST_STRANDED, storages.list_stranded, api.Empty),
        (HistoryMethod.FORGET_STRANDED, storages.forget_stranded, history_api.ForgetStranded),
        (HistoryMethod.STORAGES_STATUS, storages.storages_status, api.Empty),
        (HistoryMethod.CHECK_STORAGE, storages.check_storage, history_api.CheckStorage),
        (HistoryMethod.REPAIR_STORAGE, storages.repair_storage, history_api.RepairStorage),
        (QueryMethod.NAMES, logs.names, query_api.GetTopicNames),
        (QueryMethod.STATE, logs.states, query_api.GetLogStates),
        (QueryMethod.PARTS, logs.parts, query_api.GetLogParts),
        (QueryMethod.OFFSET_AT, logs.offset_at, query_api.FindOffset),
        (JobMethod.REPORT, report_job, ReportJob),
        (JobMethod.LIST, list_jobs, ListJobs),
        (ClusterMethod.STATUS, cluster.status, cluster_api.GetClusterStatus),
        (ClusterMethod.EXPLAIN, cluster.explain, cluster_api.ExplainCluster),
        (ClusterMethod.UPGRADE, cluster.upgrade, cluster_api.UpgradeCluster),
        (ConnectionMethod.LIST, list_connections, connection_api.ListConnections),
        (ConnectionMethod.KILL, kill_connection, connection_api.KillConnection),
        (OverviewMethod.SUBSCRIPTIONS, overview, overview_api.OverviewSubscriptions),
        (OverviewMethod.FINDINGS, findings, overview_api.GetFindings),
        (MetricsMethod.METRICS, metrics, GetMetrics),
        (InspectMethod.READERS, topics.list_readers, inspect_api.ListReaders),
        (InspectMethod.EXPAND, topics.expand_topic, inspect_api.ExpandTopic),
        (InspectMethod.DOCTOR, doctor, inspect_api.RunDoctor),
        (InspectMethod.PLUGINS, plugins, inspect_api.ListPlugins),
        (InspectMethod.TASKS, tasks, inspect_api.GetTasks),
        (ClusterMethod.DRAIN, drain, cluster_api.DrainBroker),
        (ClusterMethod.ACTIVATE, activate, cluster_api.ActivateBroker),
        (ClusterMethod.MOVE, move, cluster_api.MoveTopic),
        (ClusterMethod.FORGET, forget, cluster_api.ForgetBroker),
        (ClusterMethod.GAPS, gaps, cluster_api.GetGaps),
        (ClusterMethod.FILL_GAP, fill_gap, cluster_api.FillGap),
        (ClusterMethod.FORGET_GAPS, forget_gaps, cluster_api.ForgetGaps),
        (ClusterMethod.BALANCE, balance, cluster_api.BalanceCluster),
        (ClusterMethod.BACKUP, operations.backups.backup, cluster_api.BackupMetadata),
    ]
    spread = topics.across.spread
    return {path: _method(path, spread(path, operation, request), request) for path, operation, request in table}


def _method(path: str, operation: Operation, request_type: type) -> Method:
    def handler(request: Any, _context: Context) -> Awaitable[Any]:
        return operation(request)

    return Method(path=path, kind="unary", handler=handler, request_type=request_type)
