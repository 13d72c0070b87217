"""All routes: one table, from which requests are matched, rights are checked and the API is described. Pure.

A route names the native calls that its handler makes. The table of rights (:mod:`danube.security.rights`) has a row for
each of those, and nothing else gives rights: a route without such a row ends the start of a broker with access control,
and a test fails for a route that nobody has decided on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from danube.http._problem import Problem
from danube.model import (
    api,
    cluster_api,
    connection_api,
    history_api,
    job_api,
    overview_api,
    policy_api,
    stage_api,
)
from danube.model.cluster_api import ClusterMethod
from danube.model.connection_api import ConnectionMethod
from danube.model.history_api import HistoryMethod
from danube.model.job_api import JobMethod
from danube.model.metrics_api import MetricsMethod
from danube.model.overview_api import OverviewMethod
from danube.model.policy_api import PolicyMethod
from danube.model.query_api import QueryMethod
from danube.model.security_api import SecurityMethod
from danube.model.stage_api import StageMethod
from danube.web import bodies, letters
from danube.web.definition_routes import DEFINITION_ROUTES
from danube.web.inspect_routes import INSPECT_ROUTES
from danube.web.lists import MOST
from danube.web.moving_routes import MOVING_ROUTES
from danube.web.route import (
    API,
    BYTES,
    DRY_RUN,
    EVENTS,
    JSON,
    LIST,
    NDJSON,
    PARTITION,
    SUBSCRIPTION,
    TEXT,
    TOPIC,
    Parameter,
    Route,
)
from danube.web.schema_routes import SCHEMA_ROUTES
from danube.web.security_routes import SECURITY_ROUTES
from danube.web.twins import twin, without

__all__ = ["API", "BYTES", "EVENTS", "JSON", "NDJSON", "ROUTES", "TEXT", "Parameter", "Problem", "Route"]

_POSITION: Final = Parameter(
    "from", str, "earliest, latest, an offset, -N for the last N messages, or @TIME in ISO 8601."
)
_PAYLOAD: Final = Parameter(
    "payload_bytes", int, "Bytes of a payload beyond which it is cut; 0 for none of it.", 65_536, 0, 12 << 20
)
_KEY: Final = Parameter(
    "Idempotency-Key",
    str,
    "Unique for what is published, such as a UUID: a repetition within 10 minutes stores nothing twice, and has the"
    " same receipts.",
    header=True,
)
_PUBLISHED: Final = (
    Parameter("Danube-Key", str, "Key of the message (of a raw body).", header=True),
    Parameter("Danube-Deliver-After", str, "Seconds for which it is not delivered (of a raw body).", header=True),
)


def _probe(template: str, operation: str, summary: str) -> Route:
    return Route("GET", template, operation, summary, answer_types=(TEXT,), early=True, guarded=False)


_PULLS: Final = (api.Method.CONSUME,)
_M: Final = api.Method

ROUTES: Final[tuple[Route, ...]] = (
    # Health, at the root, where orchestrators look for it
    _probe("/livez", "livez", "Whether the broker lives: if not, restart it."),
    _probe("/readyz", "readyz", "Whether the broker is ready: if not, send it no clients."),
    _probe("/startupz", "startupz", "Whether the start of the broker is over."),
    Route(
        "GET",
        "/metrics",
        "show_metrics",
        "Metrics for Prometheus, as text or (by Accept) OpenMetrics: totals, and the series of the busiest topics.",
        (MetricsMethod.METRICS,),
        answer_types=(TEXT,),
    ),
    Route(
        "GET",
        "/metrics/detailed",
        "show_detailed_metrics",
        "The series of topics: one for each partition, subscription and consumer.",
        (MetricsMethod.METRICS,),
        (Parameter("topic", str, "A pattern of names of topics; * matches any characters, slashes included.", "*"),),
        answer_types=(TEXT,),
    ),
    Route("GET", f"{API}/openapi.json", "openapi", "This description of the API.", early=True, answer=dict[str, Any]),
    # The broker
    Route("GET", f"{API}/broker", "show_broker", "State of the broker.", (_M.INFO,), answer=twin(api.BrokerInfo)),
    Route(
        "GET",
        f"{API}/config",
        "show_config",
        "The configuration: of each setting its value and where that is from. Secrets are shown as ***.",
        (HistoryMethod.STORAGES_STATUS,),
        answer=bodies.Configuration,
    ),
    Route("GET", f"{API}/limits", "show_limits", "The limits of the broker.", (_M.INFO,), answer=bodies.LimitList),
    Route(
        "GET",
        f"{API}/findings",
        "list_findings",
        "Everything that is not well, a sentence and a remedy each.",
        (OverviewMethod.FINDINGS,),
        answer=twin(overview_api.FindingList),
    ),
    Route(
        "GET",
        f"{API}/events",
        "events",
        "Events `stats`, one each second: the state of the broker.",
        (_M.INFO,),
        answer_types=(EVENTS,),
    ),
    # Sessions of browsers
    Route(
        "GET",
        f"{API}/session",
        "show_session",
        "Who the caller is, and what it may do.",
        (SecurityMethod.WHO_AM_I,),
        answer=bodies.SessionState,
    ),
    Route(
        "POST",
        f"{API}/session",
        "begin_session",
        "Log a browser in: the token or API key of the body is verified, and the answer has a cookie. Calls with it,"
        " other than GET, need the answer's `csrf` as the header Danube-CSRF.",
        (SecurityMethod.WHO_AM_I,),
        body=bodies.Login,
        answer=bodies.SessionState,
        status=201,
    ),
    Route(
        "DELETE",
        f"{API}/session",
        "end_session",
        "Log out: the session of the cookie ends, with its streams.",
        (SecurityMethod.WHO_AM_I,),
        status=204,
    ),
    # The cluster
    Route(
        "GET",
        f"{API}/cluster",
        "show_cluster",
        "The brokers of the cluster, and the metadata that they share.",
        (ClusterMethod.STATUS,),
        answer=twin(cluster_api.ClusterStatus),
    ),
    Route(
        "GET",
        f"{API}/cluster/explain",
        "explain_cluster",
        "What is the matter with a broker or a topic.",
        (ClusterMethod.EXPLAIN,),
        (Parameter("subject", str, "A broker such as b2, or a topic.", required=True),),
        answer=twin(cluster_api.Explained),
    ),
    # Connections
    Route(
        "GET",
        f"{API}/connections",
        "list_connections",
        "Open connections of all brokers.",
        (ConnectionMethod.LIST,),
        (
            Parameter("limit", int, "Most connections of the page.", 1_000, 1, connection_api.MAX_CONNECTION_ROWS),
            Parameter("after", str, "The id after which the page begins."),
        ),
        answer=twin(connection_api.ConnectionList),
    ),
    Route(
        "DELETE",
        f"{API}/connections/{{id}}",
        "kill_connection",
        "End a connection; its client may connect again.",
        (ConnectionMethod.KILL,),
        status=204,
    ),
    # Namespaces
    Route(
        "GET",
        f"{API}/namespaces",
        "list_namespaces",
        "Namespaces.",
        (_M.LIST_NAMESPACES,),
        LIST,
        answer=bodies.NamespacePage,
    ),
    Route(
        "POST",
        f"{API}/namespaces",
        "create_namespace",
        "Create a namespace.",
        (_M.CREATE_NAMESPACE,),
        body=without(api.CreateNamespace),
        answer=bodies.NamespaceRow,
        status=201,
    ),
    Route(
        "DELETE",
        f"{API}/namespaces/{{namespace}}",
        "delete_namespace",
        "Delete an empty namespace.",
        (_M.DELETE_NAMESPACE,),
        status=204,
    ),
    # Policies
    *(
        Route(
            method,
            f"{template}/policies",
            f"{verb}_{level}_policies",
            summary.format(level),
            (call,),
            body=body,
            answer=twin(policy_api.PolicyReport),
        )
        for level, template in (("broker", API), ("namespace", f"{API}/namespaces/{{namespace}}"), ("topic", TOPIC))
        for method, verb, call, body, summary in (
            ("GET", "show", PolicyMethod.SHOW, None, "Policies of the {}: its own, those in force, and their sources."),
            (
                "PATCH",
                "change",
                PolicyMethod.CHANGE,
                dict[str, Any],
                "Change policies of the {}; null removes a value.",
            ),
        )
    ),
    # Topics
    Route(
        "GET",
        f"{API}/topics",
        "list_topics",
        "Topics; partitioned ones once, with the sums of their partitions.",
        (_M.LIST_TOPICS,),
        (Parameter("namespace", str, "Only topics of this namespace."), *LIST),
        answer=bodies.TopicPage,
    ),
    Route(
        "POST",
        f"{API}/topics",
        "create_topic",
        "Create a topic.",
        (_M.CREATE_TOPIC,),
        body=without(api.CreateTopic),
        answer=twin(api.TopicInfo),
        status=201,
    ),
    Route(
        "GET",
        TOPIC,
        "show_topic",
        "A topic. Its `topic_id` (of a partitioned topic: that of partition 0) is what If-Match takes.",
        (_M.DESCRIBE_TOPIC,),
        (PARTITION,),
        answer=twin(api.TopicInfo),
    ),
    Route(
        "DELETE",
        TOPIC,
        "delete_topic",
        "Delete a topic with its messages and subscriptions.",
        (_M.DELETE_TOPIC,),
        status=204,
        matched=True,
    ),
    Route(
        "GET",
        f"{TOPIC}/partitions",
        "list_partitions",
        "The partitions of a topic; of a plain topic, itself.",
        (_M.LOOKUP_TOPIC, _M.DESCRIBE_TOPIC),
        answer=bodies.TopicPage,
    ),
    Route(
        "POST",
        f"{TOPIC}:seal",
        "seal_topic",
        "Move all messages of a topic to its storage.",
        (HistoryMethod.SEAL_TOPIC,),
        answer=twin(history_api.SealedTopics),
        lasting=True,
    ),
    Route(
        "PATCH",
        f"{TOPIC}/retention",
        "change_retention",
        "Change, apply, or (with dry_run) try the retention rules of a topic.",
        (HistoryMethod.CHANGE_RETENTION,),
        (DRY_RUN,),
        body=without(history_api.ChangeRetention, "topic"),
        answer=twin(history_api.RetentionPlans),
        lasting=True,
    ),
    # Messages
    Route(
        "POST",
        f"{TOPIC}/messages",
        "publish",
        "Publish messages; answered once all of them have the topic's durability. JSON: {messages: [...]}; NDJSON: a"
        " message on each line; any other type: the body is one payload, with headers Danube-Key,"
        " Danube-Attribute-NAME and Danube-Deliver-After.",
        (_M.PUBLISH,),
        (Parameter("producer", str, "Name of the producer; without one, each call has its own."), *_PUBLISHED, _KEY),
        body=bodies.Publication,
        body_types=(JSON, NDJSON, BYTES, TEXT),
        answer=bodies.Receipts,
        status=201,
    ),
    Route(
        "GET",
        f"{TOPIC}/messages",
        "read_messages",
        "Read messages without a subscription. To go on, pass `next` as `from`.",
        (QueryMethod.STATE, _M.CONSUME),
        (
            _POSITION._replace(summary=_POSITION.summary + " Or `next` of the page before.", default="earliest"),
            PARTITION,
            Parameter("limit", int, "Most messages.", 100, 1, MOST),
            _PAYLOAD,
        ),
        answer=bodies.MessagePage,
    ),
    Route(
        "GET",
        f"{TOPIC}/messages/{{partition}}/{{offset}}",
        "read_message",
        "One message; with `download` its payload alone, as a file.",
        (QueryMethod.STATE, _M.CONSUME),
        (Parameter("download", str, "Return the payload as a file."),),
        answer=bodies.MessageRow,
        answer_types=(JSON, BYTES),
    ),
    Route(
        "GET",
        f"{TOPIC}/messages/{{partition}}/{{offset}}/deliveries",
        "find_deliveries",
        "Who has a message: for each subscription whether it is acknowledged, in flight, waiting, delayed, poisoned or"
        " dead-lettered.",
        (_M.LOOKUP_TOPIC, OverviewMethod.DELIVERIES),
        answer=twin(overview_api.MessageDeliveries),
    ),
    Route(
        "GET",
        f"{TOPIC}/messages:tail",
        "tail_messages",
        "Follow a topic: events `message`. An event's id is the position behind it: after a reconnect with"
        " Last-Event-ID the stream goes on without gap or repetition.",
        (QueryMethod.STATE, _M.CONSUME),
        (
            _POSITION._replace(default="latest"),
            PARTITION,
            _PAYLOAD,
            Parameter("Last-Event-ID", str, "The id of the last event that was received.", header=True),
        ),
        answer_types=(EVENTS,),
    ),
    Route(
        "POST",
        f"{TOPIC}/messages:search",
        "search_messages",
        "Search a topic, in a process of its own: events `match` (a message), `progress` twice a second, and `end` or"
        ' `error`. The filter is a text such as `value.user == "ada" and key ^= "eu-"`.',
        (QueryMethod.STATE, QueryMethod.PARTS, QueryMethod.OFFSET_AT, _M.CONSUME),
        (PARTITION,),
        body=bodies.SearchMessages,
        answer_types=(EVENTS,),
        lasting=True,
    ),
    # Subscriptions
    Route(
        "GET",
        f"{API}/subscriptions",
        "list_all_subscriptions",
        "The subscriptions of all topics, a row for each partition.",
        (OverviewMethod.SUBSCRIPTIONS,),
        (
            Parameter("namespace", str, "Only topics of this namespace."),
            Parameter("topic", str, "Only this topic."),
            Parameter("state", str, "Only subscriptions in this state."),
            Parameter("min_backlog", int, "Only subscriptions with at least so many unacknowledged messages."),
            Parameter("unwell", bool, "Only subscriptions that need attention.", False),
            *LIST,
        ),
        answer=bodies.SubscriptionPage,
    ),
    Route(
        "GET",
        f"{TOPIC}/subscriptions",
        "list_subscriptions",
        "The subscriptions of a topic, a row for each partition.",
        (_M.LIST_SUBSCRIPTIONS,),
        answer=twin(api.SubscriptionList),
    ),
    Route(
        "GET",
        SUBSCRIPTION,
        "show_subscription",
        "A subscription, a row for each partition.",
        (_M.DESCRIBE_SUBSCRIPTION,),
        answer=twin(api.SubscriptionList),
    ),
    Route(
        "PUT",
        SUBSCRIPTION,
        "create_subscription",
        "Create a subscription without consuming; one that exists with this type stays as it is.",
        (_M.CREATE_SUBSCRIPTION,),
        body=without(api.CreateSubscription, "topic", "subscription"),
        optional_body=True,
        answer=twin(api.SubscriptionList),
    ),
    Route(
        "DELETE",
        SUBSCRIPTION,
        "delete_subscription",
        "Delete a subscription and its position.",
        (_M.DELETE_SUBSCRIPTION,),
        status=204,
        matched=True,
    ),
    Route(
        "GET",
        f"{SUBSCRIPTION}/explain",
        "explain_subscription",
        "Why a subscription moves or does not.",
        (_M.EXPLAIN_SUBSCRIPTION,),
        answer=twin(api.Explanation),
    ),
    Route(
        "PATCH",
        f"{SUBSCRIPTION}/policy",
        "change_subscription_policy",
        "Change the policy of a subscription; GET of the subscription shows it.",
        (PolicyMethod.CHANGE_SUBSCRIPTION,),
        body=dict[str, Any],
        answer=twin(api.SubscriptionList),
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}:seek",
        "seek_subscription",
        "Move a subscription: to earliest, latest, an offset, or a time.",
        (OverviewMethod.PLAN_SEEK, _M.SEEK_SUBSCRIPTION),
        (DRY_RUN,),
        body=without(api.SeekSubscription, "topic", "subscription", "topic_ids"),
        status=204,
        dry_answer=twin(overview_api.SeekPlans),
        matched=True,
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}:skip",
        "skip_messages",
        "Skip the next unacknowledged messages of a subscription of a plain topic or one partition.",
        (OverviewMethod.PLAN_SEEK, OverviewMethod.SKIP),
        (DRY_RUN,),
        body=bodies.Skip,
        answer=bodies.Skipped,
        matched=True,
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}:pull",
        "pull_messages",
        "Receive messages of a subscription, which is created if it does not exist. Each has an `ack_id`.",
        _PULLS,
        (_PAYLOAD._replace(default=12 << 20),),
        body=bodies.Pull,
        optional_body=True,
        answer=bodies.PulledMessages,
        lasting=True,
    ),
    *(
        Route("POST", f"{SUBSCRIPTION}:{verb}", f"{verb}_messages", summary, _PULLS, body=body, answer=bodies.Settled)
        for verb, body, summary in (
            ("ack", bodies.AckIds, "Acknowledge pulled messages; answered when that is durable."),
            ("nack", bodies.Refusal, "Refuse pulled messages: they are delivered again, or become poison."),
            ("extend", bodies.Extension, "Ask for more time for pulled messages."),
        )
    ),
    # Dead letters: of their own topic, too, which the caller must be allowed to consume
    Route(
        "GET",
        f"{SUBSCRIPTION}/dlq",
        "list_dead_letters",
        "The dead letters of a subscription that were not replayed or dropped, and how often each reason is.",
        (_M.DESCRIBE_SUBSCRIPTION,),
        (
            Parameter("reason", str, "Only letters whose reason contains this text."),
            Parameter("handled", bool, "Also letters that were replayed or dropped.", False),
            Parameter("limit", int, "Most letters.", 100, 1, MOST),
            _PAYLOAD._replace(default=1_024),
        ),
        answer=letters.DeadLetterPage,
        lasting=True,
    ),
    *(
        Route(
            "POST",
            f"{SUBSCRIPTION}/dlq:{verb}",
            f"{verb}_dead_letters",
            summary,
            (_M.DESCRIBE_SUBSCRIPTION, _M.CONSUME, *more),
            body=body,
            answer=letters.Replayed,
            lasting=True,
        )
        for verb, summary, more, body in (
            (
                "replay",
                "Send dead letters back to the topics in which they failed, or to another one.",
                (_M.PUBLISH,),
                letters.ReplayChoice,
            ),
            ("drop", "Give dead letters up: they count as done, and are not replayed any more.", (), letters.Choice),
        )
    ),
    # Access control
    *SECURITY_ROUTES,
    *SCHEMA_ROUTES,
    # Jobs, storages and stages
    Route(
        "GET",
        f"{API}/jobs",
        "list_jobs",
        "Jobs of other programs that have reported to this broker: their lag, their rate and their last error.",
        (JobMethod.LIST,),
        answer=twin(job_api.JobList),
    ),
    Route(
        "GET",
        f"{API}/storages",
        "show_storages",
        "State of all storages, and of sealing.",
        (HistoryMethod.STORAGES_STATUS,),
        answer=twin(history_api.StoragesStatus),
    ),
    *(
        Route(
            "POST",
            f"{API}/storages/{{storage}}:{verb}",
            f"{verb}_storage",
            summary,
            (call,),
            body=without(kind, "storage"),
            optional_body=True,
            answer=twin(history_api.StorageFindings),
            lasting=True,
        )
        for verb, call, kind, summary in (
            ("check", HistoryMethod.CHECK_STORAGE, history_api.CheckStorage, "Compare a storage with the catalogue."),
            ("repair", HistoryMethod.REPAIR_STORAGE, history_api.RepairStorage, "Check a storage, and remove orphans."),
        )
    ),
    Route(
        "GET",
        f"{API}/stages",
        "list_stages",
        "Staged batches that wait for their commit.",
        (StageMethod.LIST,),
        (Parameter("producer", str, "Only stages of this producer."),),
        answer=twin(stage_api.StageList),
    ),
    # What is attached to topics, and the broker from within
    *INSPECT_ROUTES,
    *MOVING_ROUTES,
    *DEFINITION_ROUTES,
)
"""The table."""

BY_OPERATION: Final[Mapping[str, Route]] = {each.operation: each for each in ROUTES}
