"""Handlers of everything but messages: each makes native calls and returns their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import trio

from danube.http import Response, Stream, TextSink, event_text, problem_of, single_error
from danube.model import api, cluster_api, connection_api, history_api, job_api, overview_api, policy_api, stage_api
from danube.model.cluster_api import ClusterMethod
from danube.model.connection_api import ConnectionMethod
from danube.model.errors import ConnectionLostError, DanubeError, InvalidArgumentError, NotFoundError
from danube.model.history_api import HistoryMethod
from danube.model.ids import Offset
from danube.model.job_api import JobMethod
from danube.model.names import partition_name
from danube.model.overview_api import OverviewMethod
from danube.model.policy_api import PolicyMethod
from danube.model.stage_api import StageMethod
from danube.web.bodies import (
    Configuration,
    LimitList,
    NamespacePage,
    NamespaceRow,
    Skipped,
    SubscriptionPage,
    TopicPage,
)
from danube.web.caller import ApiCall
from danube.web.lists import page_of
from danube.web.openapi import openapi
from danube.web.settings import settings_of
from danube.web.twins import as_native, json_response, plain

__all__ = ["HANDLERS", "Handler", "event_stream"]

Handler = Callable[[ApiCall], Awaitable[Any]]
"""Returns a native struct, something that msgspec writes as JSON, a Response, or None for an empty answer."""

_M: Final = api.Method
_MOST_OVERVIEW: Final = 100_000
"""Most subscriptions that one list looks at."""
_EVENT_INTERVAL_S: Final = 1.0


# --- Description


async def describe_api(_call: ApiCall) -> Any:
    """Return the description of the API."""
    await trio.lowlevel.checkpoint()
    return openapi()


# --- The broker and its cluster


async def show_broker(call: ApiCall) -> Any:
    """Return the state of the broker."""
    return await call.native(_M.INFO, api.Empty())


async def show_config(call: ApiCall) -> Configuration:
    """Return the configuration; it needs the same right as the state of the storages, which it names."""
    await call.native(HistoryMethod.STORAGES_STATUS, api.Empty())
    config: Any = call.broker.runtime.config
    return Configuration(settings=settings_of(config, without=frozenset({"limits"})))


async def show_limits(call: ApiCall) -> LimitList:
    """Return the limits."""
    await call.native(_M.INFO, api.Empty())
    return LimitList(limits=settings_of(call.broker.runtime.limits))


async def list_findings(call: ApiCall) -> Any:
    """Return what is not well."""
    return await call.native(OverviewMethod.FINDINGS, overview_api.GetFindings())


async def events(call: ApiCall) -> Response:
    """Send the state of the broker each second; the caller is judged each time."""
    first = await call.native(_M.INFO, api.Empty())

    async def stream(sink: TextSink) -> None:
        info, number = first, 0
        while True:
            number += 1
            await sink.send(event_text(msgspec.json.encode(plain(info)), name="stats", event_id=str(number)))
            await trio.sleep(_EVENT_INTERVAL_S)
            info = await call.native(_M.INFO, api.Empty())

    return event_stream(stream)


def event_stream(stream: Stream) -> Response:
    """Return a stream of events as an answer. An error ends it with an event ``error``, whose data are a problem."""

    async def guarded(sink: TextSink) -> None:
        try:
            await stream(sink)
        except Exception as error:
            found = single_error(error)
            if isinstance(found, ConnectionLostError) or not isinstance(found, DanubeError):
                raise
            body = problem_of(found).body
            assert isinstance(body, bytes)
            await sink.send(event_text(body, name="error"))

    return Response(200, guarded, content_type="text/event-stream", events=True)


async def show_cluster(call: ApiCall) -> Any:
    """Return the state of the cluster."""
    return await call.native(ClusterMethod.STATUS, cluster_api.GetClusterStatus())


async def explain_cluster(call: ApiCall) -> Any:
    """Explain a broker or a topic."""
    return await call.native(ClusterMethod.EXPLAIN, cluster_api.ExplainCluster(call.values["subject"]))


async def drain_broker(call: ApiCall) -> Any:
    """Drain a broker, or say how far it is."""
    return await call.native(ClusterMethod.DRAIN, as_native(call.body, cluster_api.DrainBroker))


async def activate_broker(call: ApiCall) -> Any:
    """Activate a broker."""
    return await call.native(ClusterMethod.ACTIVATE, as_native(call.body, cluster_api.ActivateBroker))


async def balance_cluster(call: ApiCall) -> Any:
    """Even out the load, or show the plan."""
    return await call.native(ClusterMethod.BALANCE, as_native(call.body, cluster_api.BalanceCluster))


async def forget_broker(call: ApiCall) -> Any:
    """Declare a broker gone, or say what is lost."""
    return await call.native(ClusterMethod.FORGET, as_native(call.body, cluster_api.ForgetBroker))


async def forget_gap(call: ApiCall) -> Any:
    """Acknowledge the declared gaps of a topic."""
    request = as_native(call.body, cluster_api.ForgetGaps, topic=call.topic)
    return await call.native(ClusterMethod.FORGET_GAPS, request)


async def move_topic(call: ApiCall) -> Any:
    """Order a topic to move."""
    request = as_native(call.body, cluster_api.MoveTopic, topic=call.topic)
    return await call.native(ClusterMethod.MOVE, request)


async def unload_topic(call: ApiCall) -> Any:
    """Disconnect a topic's clients and seal it."""
    return await call.native(HistoryMethod.UNLOAD_TOPIC, history_api.UnloadTopic(call.topic))


async def list_connections(call: ApiCall) -> Any:
    """Return open connections."""
    request = connection_api.ListConnections(call.values["after"] or "", call.values["limit"])
    return await call.native(ConnectionMethod.LIST, request)


async def kill_connection(call: ApiCall) -> None:
    """End a connection."""
    await call.native(ConnectionMethod.KILL, connection_api.KillConnection(call.path["id"]))


# --- Namespaces and policies


async def list_namespaces(call: ApiCall) -> NamespacePage:
    """Return a page of namespaces."""
    found = await call.native(_M.LIST_NAMESPACES, api.ListNamespaces())
    rows = [{"namespace": name} for name in found.namespaces]
    page = page_of(rows, call.values, name=lambda row: str(row["namespace"]), fields=("namespace",))
    items = [NamespaceRow(namespace=row["namespace"]) for row in page.items]
    return NamespacePage(items=items, total=page.total, next=page.next)


async def create_namespace(call: ApiCall) -> NamespaceRow:
    """Create a namespace."""
    request = as_native(call.body, api.CreateNamespace)
    await call.native(_M.CREATE_NAMESPACE, request)
    return NamespaceRow(namespace=request.namespace)


async def delete_namespace(call: ApiCall) -> None:
    """Delete an empty namespace."""
    await call.native(_M.DELETE_NAMESPACE, api.DeleteNamespace(call.path["namespace"]))


def _target(call: ApiCall) -> str:
    return call.topic if "name" in call.path else call.path.get("namespace", "")


async def show_policies(call: ApiCall) -> Any:
    """Return the policies of the broker, a namespace or a topic."""
    return await call.native(PolicyMethod.SHOW, policy_api.ShowPolicies(_target(call)))


async def change_policies(call: ApiCall) -> Any:
    """Change some of them."""
    return await call.native(PolicyMethod.CHANGE, policy_api.ChangePolicies(_target(call), call.body))


# --- Topics

_TOPIC_FIELDS: Final = (
    "topic",
    "partitions",
    "durability",
    "end_offset",
    "stored_bytes",
    "created_us",
    "subscriptions",
    "producers",
)


async def list_topics(call: ApiCall) -> TopicPage:
    """Return a page of topics."""
    found = await call.native(_M.LIST_TOPICS, api.ListTopics(call.values["namespace"] or ""))
    return _topic_page(call, [plain(each) for each in found.topics])


def _topic_page(call: ApiCall, rows: list[dict[str, Any]]) -> TopicPage:
    page = page_of(rows, call.values, name=lambda row: str(row["topic"]), fields=_TOPIC_FIELDS)
    return TopicPage(items=page.items, total=page.total, next=page.next)


async def create_topic(call: ApiCall) -> Any:
    """Create a topic."""
    return await call.native(_M.CREATE_TOPIC, as_native(call.body, api.CreateTopic))


async def show_topic(call: ApiCall) -> Any:
    """Return a topic."""
    info = await call.native(_M.DESCRIBE_TOPIC, api.DescribeTopic(call.topic))
    found = plain(info)
    if info.partitions:
        found["topic_id"] = str(await call.topic_id(call.topic))
    return found


async def delete_topic(call: ApiCall) -> None:
    """Delete a topic."""
    await call.native(_M.DELETE_TOPIC, api.DeleteTopic(call.topic, call.topic_ids))


async def list_partitions(call: ApiCall) -> TopicPage:
    """Return the partitions of a topic in order."""
    found = await call.native(_M.LOOKUP_TOPIC, api.LookupTopic(call.topic))
    rows = [plain(await call.native(_M.DESCRIBE_TOPIC, api.DescribeTopic(name))) for name in found.topics]
    return TopicPage(items=rows, total=len(rows))


async def seal_topic(call: ApiCall) -> Any:
    """Seal a topic."""
    return await call.native(HistoryMethod.SEAL_TOPIC, history_api.SealTopic(call.topic))


async def change_retention(call: ApiCall) -> Any:
    """Change, apply or try retention rules."""
    request = as_native(call.body, history_api.ChangeRetention, topic=call.topic)
    request.dry_run = request.dry_run or call.values["dry_run"]
    return await call.native(HistoryMethod.CHANGE_RETENTION, request)


# --- Subscriptions

_SUBSCRIPTION_FIELDS: Final = ("topic", "subscription", "state", "backlog_messages", "oldest_age_s", "consumers")


async def list_all_subscriptions(call: ApiCall) -> SubscriptionPage:
    """Return a page of the subscriptions of all topics that the caller may describe."""
    values = call.values
    rows: list[dict[str, Any]] = []
    silent: set[str] = set()
    after: tuple[str, str] | None = ("", "")
    while after is not None and len(rows) < _MOST_OVERVIEW:
        request = overview_api.OverviewSubscriptions(
            namespace=values["namespace"] or "",
            topic=values["topic"] or "",
            after=after,
            unwell_only=bool(values["unwell"]),
        )
        found = await call.native(OverviewMethod.SUBSCRIPTIONS, request)
        silent.update(found.silent)
        rows += [
            plain(row)
            for row in found.subscriptions
            if values["state"] in (None, row.state) and row.backlog_messages >= (values["min_backlog"] or 0)
        ]
        after = found.next
    page = page_of(rows, values, name=lambda row: f"{row['topic']}#{row['subscription']}", fields=_SUBSCRIPTION_FIELDS)
    return SubscriptionPage(items=page.items, total=page.total, next=page.next, silent=sorted(silent))


async def list_subscriptions(call: ApiCall) -> Any:
    """Return the subscriptions of a topic."""
    return await call.native(_M.LIST_SUBSCRIPTIONS, api.ListSubscriptions(call.topic))


def _reference(call: ApiCall) -> api.SubscriptionRef:
    return api.SubscriptionRef(call.topic, call.path["subscription"])


async def show_subscription(call: ApiCall) -> Any:
    """Return a subscription."""
    return await call.native(_M.DESCRIBE_SUBSCRIPTION, _reference(call))


async def create_subscription(call: ApiCall) -> Any:
    """Create a subscription."""
    request = as_native(call.body, api.CreateSubscription, topic=call.topic, subscription=call.path["subscription"])
    return await call.native(_M.CREATE_SUBSCRIPTION, request)


async def delete_subscription(call: ApiCall) -> None:
    """Delete a subscription."""
    request = api.DeleteSubscription(call.topic, call.path["subscription"], call.topic_ids)
    await call.native(_M.DELETE_SUBSCRIPTION, request)


async def explain_subscription(call: ApiCall) -> Any:
    """Explain a subscription."""
    return await call.native(_M.EXPLAIN_SUBSCRIPTION, _reference(call))


async def find_deliveries(call: ApiCall) -> Any:
    """Return where a message is in each subscription."""
    numbers = {}
    for name in ("partition", "offset"):
        text = call.path[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise InvalidArgumentError(f"{name} {ascii(text)[:80]} is no number")
        numbers[name] = int(text)
    found = await call.native(_M.LOOKUP_TOPIC, api.LookupTopic(call.topic))
    if numbers["partition"] >= len(found.topics):
        raise NotFoundError(f"topic {call.topic} has no partition {numbers['partition']}")
    request = overview_api.FindDeliveries(
        topic=found.topics[numbers["partition"]], offset=Offset(min(numbers["offset"], 2**63 - 1))
    )
    return await call.native(OverviewMethod.DELIVERIES, request)


async def change_subscription_policy(call: ApiCall) -> Any:
    """Change the policy of a subscription."""
    request = policy_api.ChangeSubscriptionPolicy(call.topic, call.path["subscription"], call.body)
    return await call.native(PolicyMethod.CHANGE_SUBSCRIPTION, request)


async def seek_subscription(call: ApiCall) -> Response | None:
    """Move a subscription; with ``dry_run`` return what that would do."""
    path = {"topic": call.topic, "subscription": call.path["subscription"]}
    if call.values["dry_run"]:
        plans = await call.native(OverviewMethod.PLAN_SEEK, as_native(call.body, overview_api.PlanSeek, **path))
        return json_response(plans)
    request = as_native(call.body, api.SeekSubscription, **path, topic_ids=call.topic_ids)
    await call.native(_M.SEEK_SUBSCRIPTION, request)
    return None


async def skip_messages(call: ApiCall) -> Skipped:
    """Acknowledge the next unacknowledged messages; with ``dry_run`` return which they would be."""
    name = call.path["subscription"]
    asked = overview_api.PlanSeek(topic=call.topic, subscription=name, by=call.body.messages)
    plans = (await call.native(OverviewMethod.PLAN_SEEK, asked)).plans
    if len(plans) != 1:
        raise InvalidArgumentError(
            f"topic {call.topic} has {len(plans)} partitions, each with a position of its own; name one of them, such"
            f" as {partition_name(call.topic, 0)}"
        )
    (plan,) = plans
    if call.values["dry_run"]:
        return Skipped(position=plan.target, skipped_messages=plan.skipped_messages)
    request = overview_api.SkipMessages(
        topic=plan.topic,
        subscription=name,
        below=plan.target,
        generation=plan.generation,
        topic_ids=call.topic_ids,
    )
    done = await call.native(OverviewMethod.SKIP, request)
    return Skipped(position=plan.target, skipped_messages=done.skipped_messages)


# --- Storages and stages


async def show_storages(call: ApiCall) -> Any:
    """Return the state of the storages."""
    return await call.native(HistoryMethod.STORAGES_STATUS, api.Empty())


async def check_storage(call: ApiCall) -> Any:
    """Check a storage."""
    request = as_native(call.body, history_api.CheckStorage, storage=call.path["storage"])
    return await call.native(HistoryMethod.CHECK_STORAGE, request)


async def repair_storage(call: ApiCall) -> Any:
    """Repair a storage."""
    request = as_native(call.body, history_api.RepairStorage, storage=call.path["storage"])
    return await call.native(HistoryMethod.REPAIR_STORAGE, request)


async def list_jobs(call: ApiCall) -> Any:
    """Return the jobs that have reported to this broker."""
    return await call.native(JobMethod.LIST, job_api.ListJobs())


async def list_stages(call: ApiCall) -> Any:
    """Return stages."""
    return await call.native(StageMethod.LIST, stage_api.ListStages(call.values["producer"] or ""))


HANDLERS: Final[Mapping[str, Handler]] = {
    "openapi": describe_api,
    **{
        f"{verb}_{level}_policies": handler
        for level in ("broker", "namespace", "topic")
        for verb, handler in (("show", show_policies), ("change", change_policies))
    },
    **{
        handler.__name__: handler
        for handler in (
            show_broker,
            show_config,
            show_limits,
            list_findings,
            events,
            show_cluster,
            explain_cluster,
            drain_broker,
            forget_broker,
            forget_gap,
            activate_broker,
            balance_cluster,
            move_topic,
            unload_topic,
            list_connections,
            kill_connection,
            list_namespaces,
            create_namespace,
            delete_namespace,
            list_topics,
            create_topic,
            show_topic,
            delete_topic,
            list_partitions,
            seal_topic,
            change_retention,
            list_all_subscriptions,
            list_subscriptions,
            show_subscription,
            create_subscription,
            delete_subscription,
            explain_subscription,
            find_deliveries,
            change_subscription_policy,
            seek_subscription,
            skip_messages,
            show_storages,
            check_storage,
            repair_storage,
            list_stages,
            list_jobs,
        )
    },
}
"""By the operation of the route."""
