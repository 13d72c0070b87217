"""The table of rights: for each path of every protocol and port, the operation and what a caller needs. Pure.

A path without a row is denied. The tests compare the table with the methods that brokers and storage servers really
serve, and with a matrix of paths and kinds of callers (``tests/security/rights-matrix.md``).

A row has *requirements*: a permission, and the resources on which the caller needs it, which are named by fields of
the request (of a stream: of its first message). A requirement with a *condition* is checked by the operation, which
alone knows whether the condition holds, for example whether opening a producer creates the topic.

Three kinds of refusals:

* DENIED: PERMISSION_DENIED, for calls that change something or move messages.
* HIDDEN: for calls that show one object. A caller that may see nothing of that kind anywhere is denied; any other gets
  NOT_FOUND, as if the object did not exist.
* FILTERED: for lists. They contain what the caller may see. A caller that may see nothing of that kind is denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, Flag, auto
from types import MappingProxyType
from typing import Final, NamedTuple

from danube.model import api
from danube.model.cluster_api import ClusterMethod
from danube.model.connection_api import ConnectionMethod
from danube.model.errors import ConfigurationError
from danube.model.history_api import HistoryMethod
from danube.model.inspect_api import InspectMethod
from danube.model.job_api import JobMethod
from danube.model.log_api import LogMethod
from danube.model.metrics_api import MetricsMethod
from danube.model.overview_api import OverviewMethod
from danube.model.policy_api import PolicyMethod
from danube.model.query_api import QueryMethod
from danube.model.quotas import QuotaMethod
from danube.model.registry_api import RegistryMethod
from danube.model.schema_api import SchemaMethod
from danube.model.security_api import SecurityMethod
from danube.model.stage_api import StageMethod
from danube.model.storage_api import StorageMethod
from danube.security.permissions import Permission
from danube.security.scopes import ScopeKind

__all__ = [
    "RULES",
    "Access",
    "Condition",
    "Named",
    "Port",
    "Refusal",
    "Requirement",
    "Rule",
    "check_served",
    "rules_of",
]


class Port(Flag):
    """The ports on which a path is served."""

    CLIENT = auto()
    """The client port of a broker."""
    ADMIN = auto()
    """The admin port of a broker, for upstream's tools."""
    STORAGE = auto()
    """The port of a storage server."""
    REGISTRY = auto()
    """The schema registry's REST interface, which has a port of its own, and is served on that of HTTP, too."""


class Access(Enum):
    """Who may call a path at all."""

    PUBLIC = "public"
    """Every caller, without a proof. Such calls are throttled by address."""
    PRINCIPAL = "principal"
    """Every caller that has proven who it is."""
    PERMITTED = "permitted"
    """Callers that meet the requirements of the row."""


class Refusal(Enum):
    """How a caller without the permission is answered; see the module."""

    DENIED = "denied"
    HIDDEN = "hidden"
    FILTERED = "filtered"


class Named(Enum):
    """How the fields of a requirement name resources."""

    CLUSTER = "the cluster"
    NAMESPACE = "namespace"
    """One field: a namespace. An empty one means all namespaces."""
    TOPIC = "topic"
    """One field: a topic, a partition or a list of them."""
    SUBSCRIPTION = "subscription"
    """Two fields: a topic and a subscription of it. A third one tells whether the caller reads the topic without a
    subscription: then the resource is the topic."""
    SCHEMA = "schema"
    """One field: a subject; an empty one means the registry: the resource is the cluster."""
    SCHEMA_NUMBER = "schema of a number"
    """One field: the number of a schema, or of a subject. The permission on one of the subjects with the schema is
    enough; the resource of a schema that no subject has is the cluster."""
    PRODUCER = "topic of the producer"
    """One field: the topic to which the caller says that its producer belongs. The broker knows the number of a
    producer in its own topic only, so that it is no way to another one."""
    CONSUMER = "subscription of the consumer"
    """One field: the number of a consumer. The resource is its subscription."""
    STAGES = "topics of the stages"
    """The name of a producer, the numbers of stages, and the id of a write, as far as the request has them. The
    resources are the topics of these stages, and of the last commit of the producer."""
    TARGET = "target"
    """One field: empty for the cluster, else a namespace, or (with a slash) a topic."""
    PLACE = "topic or broker"
    """One field: with a slash a topic, else a broker, for which the resource is the cluster."""
    DEAD_LETTERS = "dead-letter topic"
    """The topic of the dead letters of the subscription that the request opens or changes."""
    BINDING = "scope of the binding"
    """Two fields: a kind of scope in upstream's words, and the name of its resource."""
    ANYTHING = "anything"
    """The caller needs the permission on at least one resource."""


class Condition(Enum):
    """When a requirement applies."""

    ALWAYS = "always"
    CREATES_TOPIC = "creates the topic"
    """The request would create a topic, or add a partition to one."""
    SETS_DEAD_LETTERS = "sets dead letters"
    """The subscription copies messages to a dead-letter topic because of this request."""
    NAMES_SCHEMA = "names a schema"
    """The request gives the topic a subject of the schema registry."""


class Requirement(NamedTuple):
    """A permission, and where the caller needs it."""

    permission: Permission
    named: Named
    fields: tuple[str, ...] = ()
    """Fields of the request; a dotted one is a field of a field."""
    condition: Condition = Condition.ALWAYS


class Rule(NamedTuple):
    """A row of the table."""

    path: str
    operation: str
    """The operation or stream door that the path leads to. It requires the same permission in all protocols."""
    access: Access
    requirements: tuple[Requirement, ...] = ()
    refusal: Refusal = Refusal.DENIED
    items: ScopeKind | None = None
    """Of a list: the kind of its items. The first requirement is judged for each of them."""
    ports: Port = Port.CLIENT


_P = Permission
_C = Condition
_N = Named
_BOTH = Port.CLIENT | Port.ADMIN


def _on_cluster(permission: Permission) -> Requirement:
    return Requirement(permission, _N.CLUSTER)


def _on_namespace(permission: Permission, field: str) -> Requirement:
    return Requirement(permission, _N.NAMESPACE, (field,))


def _on_topic(permission: Permission, field: str = "topic") -> Requirement:
    return Requirement(permission, _N.TOPIC, (field,))


def _on_subscription(permission: Permission, *fields: str) -> Requirement:
    return Requirement(permission, _N.SUBSCRIPTION, fields or ("topic", "subscription"))


def _on_schema(permission: Permission, field: str = "subject") -> Requirement:
    return Requirement(permission, _N.SCHEMA, (field,))


def _creates(field: str) -> Requirement:
    return Requirement(_P.MANAGE_TOPIC, _N.TOPIC, (field,), _C.CREATES_TOPIC)


_DEAD_LETTERS = Requirement(_P.PRODUCE, _N.DEAD_LETTERS, (), _C.SETS_DEAD_LETTERS)
_NAMES_SCHEMA = Requirement(_P.READ_SCHEMA, _N.SCHEMA, ("schema_subject",), _C.NAMES_SCHEMA)
_REFERS_TO_SCHEMA = _NAMES_SCHEMA._replace(fields=("schema_ref.subject",))


_MANAGES_ANYTHING = Requirement(_P.MANAGE_SECURITY, _N.ANYTHING)
"""The operation judges the scopes of the records: those that it shows, and those that it changes."""


def _changes(path: str, operation: str, *needs: Requirement) -> Rule:
    return Rule(path, operation, Access.PERMITTED, needs)


def _shows(path: str, operation: str, *needs: Requirement) -> Rule:
    return Rule(path, operation, Access.PERMITTED, needs, Refusal.HIDDEN)


def _lists(path: str, operation: str, items: ScopeKind, need: Requirement) -> Rule:
    return Rule(path, operation, Access.PERMITTED, (need,), Refusal.FILTERED, items)


def _principal(path: str, operation: str, ports: Port = Port.CLIENT) -> Rule:
    return Rule(path, operation, Access.PRINCIPAL, ports=ports)


def _public(path: str, operation: str) -> Rule:
    return Rule(path, operation, Access.PUBLIC, ports=_BOTH)


def _at(ports: Port, service: str, *rules: Rule) -> list[Rule]:
    return [rule._replace(path=service + rule.path, ports=ports) for rule in rules]


_M = api.Method
_NATIVE: Final = (
    _principal(_M.INFO, "info"),
    _changes(LogMethod.CHANGE_LEVEL, "log_levels.change", _on_cluster(_P.MANAGE_BROKER)),
    _changes(MetricsMethod.METRICS, "metrics", _on_cluster(_P.READ_METRICS)),
    # The two doors of messages.
    _changes(_M.PUBLISH, "publish", _on_topic(_P.PRODUCE), _creates("topic")),
    _changes(
        _M.CONSUME,
        "consume",
        _on_subscription(_P.CONSUME, "topic", "subscription", "reader"),
        _creates("topic"),
        _DEAD_LETTERS,
    ),
    # Topics
    _shows(_M.LOOKUP_TOPIC, "topics.lookup_topic", _on_topic(_P.LOOKUP)),
    _shows(_M.DESCRIBE_TOPIC, "topics.describe_topic", _on_topic(_P.DESCRIBE)),
    _shows(InspectMethod.READERS, "topics.list_readers", _on_topic(_P.DESCRIBE)),
    _changes(InspectMethod.EXPAND, "topics.expand_topic", _on_topic(_P.MANAGE_TOPIC)),
    _lists(_M.LIST_TOPICS, "topics.list_topics", ScopeKind.TOPIC, _on_namespace(_P.DESCRIBE, "namespace")),
    _changes(_M.CREATE_TOPIC, "topics.create_topic", _on_topic(_P.MANAGE_TOPIC)),
    _changes(_M.DELETE_TOPIC, "topics.delete_topic", _on_topic(_P.MANAGE_TOPIC)),
    _changes(HistoryMethod.SEAL_TOPIC, "storages.seal_topic", _on_topic(_P.MANAGE_TOPIC)),
    _changes(HistoryMethod.UNLOAD_TOPIC, "storages.unload_topic", _on_topic(_P.MANAGE_TOPIC)),
    _changes(HistoryMethod.CHANGE_RETENTION, "storages.change_retention", _on_topic(_P.MANAGE_TOPIC)),
    _changes(HistoryMethod.RESTORE_TOPICS, "storages.restore_topics", _on_cluster(_P.MANAGE_BROKER)),
    _changes(HistoryMethod.LIST_STRANDED, "storages.list_stranded", _on_cluster(_P.MANAGE_BROKER)),
    _changes(HistoryMethod.FORGET_STRANDED, "storages.forget_stranded", _on_cluster(_P.MANAGE_BROKER)),
    # Namespaces
    _lists(_M.LIST_NAMESPACES, "topics.list_namespaces", ScopeKind.NAMESPACE, Requirement(_P.LOOKUP, _N.CLUSTER)),
    _changes(_M.CREATE_NAMESPACE, "topics.create_namespace", _on_namespace(_P.MANAGE_NAMESPACE, "namespace")),
    _changes(_M.DELETE_NAMESPACE, "topics.delete_namespace", _on_namespace(_P.MANAGE_NAMESPACE, "namespace")),
    _shows(QuotaMethod.SHOW, "topics.show_quota", _on_namespace(_P.DESCRIBE, "namespace")),
    # A tenant that manages its namespace does not raise its quota.
    _changes(QuotaMethod.CHANGE, "topics.change_quota", _on_cluster(_P.MANAGE_NAMESPACE)),
    # Subscriptions
    _lists(_M.LIST_SUBSCRIPTIONS, "subscriptions.list_subscriptions", ScopeKind.SUBSCRIPTION, _on_topic(_P.DESCRIBE)),
    _lists(OverviewMethod.SUBSCRIPTIONS, "overviews.overview", ScopeKind.SUBSCRIPTION, _on_cluster(_P.DESCRIBE)),
    _shows(_M.DESCRIBE_SUBSCRIPTION, "subscriptions.describe_subscription", _on_subscription(_P.DESCRIBE)),
    _shows(_M.EXPLAIN_SUBSCRIPTION, "subscriptions.explain_subscription", _on_subscription(_P.DESCRIBE)),
    _shows(OverviewMethod.PLAN_SEEK, "subscriptions.plan_seek", _on_subscription(_P.DESCRIBE)),
    _changes(_M.CREATE_SUBSCRIPTION, "subscriptions.create_subscription", _on_subscription(_P.MANAGE_SUBSCRIPTION)),
    _lists(OverviewMethod.DELIVERIES, "subscriptions.find_deliveries", ScopeKind.SUBSCRIPTION, _on_topic(_P.DESCRIBE)),
    _changes(_M.SEEK_SUBSCRIPTION, "subscriptions.seek_subscription", _on_subscription(_P.MANAGE_SUBSCRIPTION)),
    _changes(OverviewMethod.SKIP, "subscriptions.skip_messages", _on_subscription(_P.MANAGE_SUBSCRIPTION)),
    _changes(_M.DELETE_SUBSCRIPTION, "subscriptions.delete_subscription", _on_subscription(_P.MANAGE_SUBSCRIPTION)),
    _changes(
        PolicyMethod.CHANGE_SUBSCRIPTION,
        "policies.change_subscription",
        _on_subscription(_P.MANAGE_SUBSCRIPTION),
        _DEAD_LETTERS,
    ),
    # Policies
    _shows(PolicyMethod.SHOW, "policies.show", Requirement(_P.DESCRIBE, _N.TARGET, ("target",))),
    _changes(PolicyMethod.CHANGE, "policies.change", Requirement(_P.MANAGE_TOPIC, _N.TARGET, ("target",))),
    # The broker
    _lists(OverviewMethod.FINDINGS, "overviews.findings", ScopeKind.TOPIC, _on_cluster(_P.DESCRIBE)),
    _changes(InspectMethod.DOCTOR, "inspecting.doctor", _on_cluster(_P.MANAGE_BROKER)),
    _changes(InspectMethod.PLUGINS, "inspecting.plugins", _on_cluster(_P.MANAGE_BROKER)),
    _changes(InspectMethod.TASKS, "inspecting.tasks", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ConnectionMethod.LIST, "connections.list_connections", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ConnectionMethod.KILL, "connections.kill_connection", _on_cluster(_P.MANAGE_BROKER)),
    # Storages
    _changes(HistoryMethod.STORAGES_STATUS, "storages.storages_status", _on_cluster(_P.MANAGE_BROKER)),
    _changes(HistoryMethod.CHECK_STORAGE, "storages.check_storage", _on_cluster(_P.MANAGE_BROKER)),
    _changes(HistoryMethod.REPAIR_STORAGE, "storages.repair_storage", _on_cluster(_P.MANAGE_BROKER)),
    # Logs: the answers locate messages, and executors read them from the storage.
    _lists(QueryMethod.NAMES, "logs.names", ScopeKind.TOPIC, Requirement(_P.LOOKUP, _N.CLUSTER)),
    _changes(QueryMethod.STATE, "logs.states", _on_topic(_P.CONSUME, "topics")),
    _changes(QueryMethod.PARTS, "logs.parts", _on_topic(_P.CONSUME)),
    _changes(QueryMethod.OFFSET_AT, "logs.offset_at", _on_topic(_P.CONSUME)),
    # Stages
    _changes(StageMethod.STAGE, "stages.stage", _on_topic(_P.PRODUCE), _creates("topic")),
    _changes(StageMethod.COMMIT, "stages.commit", Requirement(_P.PRODUCE, _N.STAGES, ("producer", "stage_ids"))),
    _changes(
        StageMethod.ABORT, "stages.abort", Requirement(_P.PRODUCE, _N.STAGES, ("producer", "stage_ids", "write_id"))
    ),
    _changes(StageMethod.LAST_BATCH, "stages.last_batch", Requirement(_P.PRODUCE, _N.STAGES, ("producer",))),
    _changes(StageMethod.LIST, "stages.list", _on_cluster(_P.MANAGE_BROKER)),
    # Jobs
    _changes(JobMethod.REPORT, "jobs.report", _on_topic(_P.PRODUCE)),
    _lists(JobMethod.LIST, "jobs.list", ScopeKind.TOPIC, Requirement(_P.DESCRIBE, _N.CLUSTER)),
    # Schemas
    _shows(SchemaMethod.GET, "schemas.get", Requirement(_P.READ_SCHEMA, _N.SCHEMA_NUMBER, ("number",))),
    _shows(SchemaMethod.VERSION, "schemas.get_version", _on_schema(_P.READ_SCHEMA)),
    _shows(SchemaMethod.FIND, "schemas.find", _on_schema(_P.READ_SCHEMA)),
    _shows(SchemaMethod.SUBJECT, "schemas.show", _on_schema(_P.READ_SCHEMA)),
    _lists(SchemaMethod.SUBJECTS, "schemas.list_subjects", ScopeKind.SCHEMA, _on_cluster(_P.READ_SCHEMA)),
    _shows(SchemaMethod.CHECK, "schemas.check", _on_schema(_P.READ_SCHEMA)),
    _changes(SchemaMethod.REGISTER, "schemas.register", _on_schema(_P.MANAGE_SCHEMA)),
    _changes(SchemaMethod.DELETE, "schemas.delete", _on_schema(_P.MANAGE_SCHEMA)),
    _changes(SchemaMethod.SET_MODE, "schemas.set_mode", _on_schema(_P.MANAGE_SCHEMA)),
    _changes(SchemaMethod.SET_COMPATIBILITY, "schemas.set_compatibility", _on_schema(_P.MANAGE_SCHEMA)),
    _changes(SchemaMethod.BIND, "schemas.bind", _on_topic(_P.MANAGE_TOPIC), _NAMES_SCHEMA),
    _changes(SchemaMethod.PURGE, "schemas.purge", _on_cluster(_P.MANAGE_SCHEMA)),
    # The cluster
    _changes(ClusterMethod.STATUS, "cluster.status", _on_cluster(_P.DESCRIBE)),
    _shows(ClusterMethod.EXPLAIN, "cluster.explain", Requirement(_P.DESCRIBE, _N.PLACE, ("subject",))),
    _changes(ClusterMethod.DRAIN, "moves.drain", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ClusterMethod.ACTIVATE, "moves.activate", _on_cluster(_P.MANAGE_BROKER)),
    # Who manages a topic does not decide which machine bears its load.
    _changes(ClusterMethod.MOVE, "moves.move", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ClusterMethod.BALANCE, "moves.balance", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ClusterMethod.FORGET, "forgetting.forget", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ClusterMethod.GAPS, "filling.gaps", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ClusterMethod.FILL_GAP, "filling.fill", _on_cluster(_P.MANAGE_BROKER)),
    _changes(ClusterMethod.FORGET_GAPS, "forgetting.forget_gaps", _on_topic(_P.MANAGE_TOPIC)),
    _changes(ClusterMethod.BACKUP, "backups.backup", _on_cluster(_P.MANAGE_CLUSTER)),
    _changes(ClusterMethod.UPGRADE, "cluster.upgrade", _on_cluster(_P.MANAGE_CLUSTER)),
    # Access control: lists have what the caller may manage, and each change is judged by the rules of the records.
    _changes(SecurityMethod.LIST_ROLES, "security.list_roles", _MANAGES_ANYTHING),
    _changes(SecurityMethod.PUT_ROLE, "security.put_role", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.DROP_ROLE, "security.drop_role", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.LIST_BINDINGS, "security.list_bindings", _MANAGES_ANYTHING),
    _changes(SecurityMethod.PUT_BINDING, "security.put_binding", _MANAGES_ANYTHING),
    _changes(SecurityMethod.DROP_BINDING, "security.drop_binding", _MANAGES_ANYTHING),
    _changes(SecurityMethod.LIST_PRINCIPALS, "security.list_principals", _MANAGES_ANYTHING),
    _changes(SecurityMethod.SUSPEND, "security.suspend_principal", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.RESUME, "security.resume_principal", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.SHOW_QUOTA, "security.show_quota", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.CHANGE_QUOTA, "security.change_quota", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.LIST_KEYS, "security.list_keys", _MANAGES_ANYTHING),
    _changes(SecurityMethod.ADD_KEY, "security.add_key", _MANAGES_ANYTHING),
    _changes(SecurityMethod.DROP_KEY, "security.drop_key", _MANAGES_ANYTHING),
    _changes(SecurityMethod.LIST_ISSUERS, "security.list_issuers", _MANAGES_ANYTHING),
    _changes(SecurityMethod.ADD_ISSUER, "security.add_issuer", _MANAGES_ANYTHING),
    _changes(SecurityMethod.DROP_ISSUER, "security.drop_issuer", _MANAGES_ANYTHING),
    _changes(SecurityMethod.ISSUE_TOKEN, "security.issue_token", _MANAGES_ANYTHING),
    _changes(SecurityMethod.REVOKE_TOKEN, "security.revoke_token", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.LIST_REVOKED, "security.list_revoked", _on_cluster(_P.MANAGE_SECURITY)),
    _changes(SecurityMethod.EXPLAIN, "security.explain", _MANAGES_ANYTHING),
    _changes(SecurityMethod.RELOAD, "security.reload", _on_cluster(_P.MANAGE_BROKER)),
    _principal(SecurityMethod.WHO_AM_I, "security.who_am_i"),
    # Links between brokers
    _changes("/danube.Peers/Link", "link", _on_cluster(_P.BROKER_INTERNAL)),
    _changes("/danube.Peers/Channel", "channel", _on_cluster(_P.BROKER_INTERNAL)),
)

_UPSTREAM: Final = (
    *_at(
        Port.CLIENT,
        "/danube.",
        _shows("Discovery/TopicLookup", "topics.lookup_topic", _on_topic(_P.LOOKUP)),
        _shows("Discovery/TopicPartitions", "topics.lookup_topic", _on_topic(_P.LOOKUP)),
        _changes(
            "ProducerService/CreateProducer",
            "publish",
            _on_topic(_P.PRODUCE, "topic_name"),
            _creates("topic_name"),
            _REFERS_TO_SCHEMA,
        ),
        _changes(
            "ProducerService/SendMessage",
            "publish",
            Requirement(_P.PRODUCE, _N.PRODUCER, ("msg_id.topic_name",)),
        ),
        _changes(
            "ConsumerService/Subscribe",
            "consume",
            _on_subscription(_P.CONSUME, "topic_name", "subscription"),
            _creates("topic_name"),
        ),
        _changes("ConsumerService/ReceiveMessages", "consume", Requirement(_P.CONSUME, _N.CONSUMER, ("consumer_id",))),
        _changes(
            "ConsumerService/Ack", "consume", _on_subscription(_P.CONSUME, "msg_id.topic_name", "subscription_name")
        ),
        _changes(
            "ConsumerService/Nack", "consume", _on_subscription(_P.CONSUME, "msg_id.topic_name", "subscription_name")
        ),
        _principal("HealthCheck/HealthCheck", "own_health"),
        _changes("StorageService/ListSegmentDescriptors", "logs.parts", _on_topic(_P.CONSUME)),
    ),
    *_at(
        _BOTH,
        "/danube_schema.SchemaRegistry/",
        _shows("GetSchema", "schemas.get", Requirement(_P.READ_SCHEMA, _N.SCHEMA_NUMBER, ("schema_id",))),
        _shows("GetLatestSchema", "schemas.get_version", _on_schema(_P.READ_SCHEMA)),
        _shows("ListVersions", "schemas.show", _on_schema(_P.READ_SCHEMA)),
        _shows("CheckCompatibility", "schemas.check", _on_schema(_P.READ_SCHEMA)),
        _lists("ListSubjects", "schemas.list_subjects", ScopeKind.SCHEMA, _on_cluster(_P.READ_SCHEMA)),
        _changes("RegisterSchema", "schemas.register", _on_schema(_P.MANAGE_SCHEMA)),
        _changes("DeleteSchemaVersion", "schemas.delete", _on_schema(_P.MANAGE_SCHEMA)),
        _changes("SetCompatibilityMode", "schemas.set_compatibility", _on_schema(_P.MANAGE_SCHEMA)),
        _changes(
            "ConfigureTopicSchema",
            "schemas.bind",
            _on_topic(_P.MANAGE_TOPIC, "topic_name"),
            _NAMES_SCHEMA,
        ),
        _changes("UpdateTopicValidationPolicy", "schemas.set_validation", _on_topic(_P.MANAGE_TOPIC, "topic_name")),
        _shows("GetTopicSchemaConfig", "schemas.show_binding", _on_topic(_P.DESCRIBE, "topic_name")),
    ),
    *_at(
        Port.ADMIN,
        "/danube_admin.BrokerAdmin/",
        _changes("ListBrokers", "cluster.status", _on_cluster(_P.DESCRIBE)),
        _changes("GetLeaderBroker", "cluster.status", _on_cluster(_P.DESCRIBE)),
        _changes("GetClusterBalance", "cluster.status", _on_cluster(_P.DESCRIBE)),
        _lists("ListNamespaces", "topics.list_namespaces", ScopeKind.NAMESPACE, Requirement(_P.LOOKUP, _N.CLUSTER)),
        _changes("UnloadBroker", "moves.drain", _on_cluster(_P.MANAGE_BROKER)),
        _changes("ActivateBroker", "moves.activate", _on_cluster(_P.MANAGE_BROKER)),
        _changes("TriggerRebalance", "moves.balance", _on_cluster(_P.MANAGE_BROKER)),
    ),
    *_at(
        Port.ADMIN,
        "/danube_admin.ClusterAdmin/",
        _changes("ClusterStatus", "cluster.status", _on_cluster(_P.DESCRIBE)),
        _changes("AddNode", "cluster.add_member", _on_cluster(_P.MANAGE_CLUSTER)),
        _changes("PromoteNode", "cluster.promote_member", _on_cluster(_P.MANAGE_CLUSTER)),
        _changes("RemoveNode", "cluster.remove_member", _on_cluster(_P.MANAGE_CLUSTER)),
    ),
    *_at(
        Port.ADMIN,
        "/danube_admin.NamespaceAdmin/",
        _lists("GetNamespaceTopics", "logs.names", ScopeKind.TOPIC, _on_namespace(_P.LOOKUP, "name")),
        _shows("GetNamespacePolicies", "policies.show", _on_namespace(_P.DESCRIBE, "name")),
        _changes("CreateNamespace", "topics.create_namespace", _on_namespace(_P.MANAGE_NAMESPACE, "name")),
        _changes("DeleteNamespace", "topics.delete_namespace", _on_namespace(_P.MANAGE_NAMESPACE, "name")),
    ),
    *_at(
        Port.ADMIN,
        "/danube_admin.TopicAdmin/",
        _lists("ListNamespaceTopics", "topics.list_topics", ScopeKind.TOPIC, _on_namespace(_P.DESCRIBE, "name")),
        _lists("ListBrokerTopics", "topics.list_topics", ScopeKind.TOPIC, _on_cluster(_P.DESCRIBE)),
        _changes("CreateTopic", "topics.create_topic", _on_topic(_P.MANAGE_TOPIC, "name"), _NAMES_SCHEMA),
        _changes(
            "CreatePartitionedTopic", "topics.create_topic", _on_topic(_P.MANAGE_TOPIC, "base_name"), _NAMES_SCHEMA
        ),
        _changes("DeleteTopic", "topics.delete_topic", _on_topic(_P.MANAGE_TOPIC, "name")),
        _changes("UnloadTopic", "storages.unload_topic", _on_topic(_P.MANAGE_TOPIC, "name")),
        _shows("DescribeTopic", "topics.describe_topic", _on_topic(_P.DESCRIBE, "name")),
        _lists(
            "ListSubscriptions",
            "subscriptions.list_subscriptions",
            ScopeKind.SUBSCRIPTION,
            _on_topic(_P.DESCRIBE, "name"),
        ),
        _changes("Unsubscribe", "subscriptions.delete_subscription", _on_subscription(_P.MANAGE_SUBSCRIPTION)),
        _shows("GetSubscriptionFailurePolicy", "subscriptions.describe_subscription", _on_subscription(_P.DESCRIBE)),
        _shows("GetSubscriptionDispatchConfig", "subscriptions.describe_subscription", _on_subscription(_P.DESCRIBE)),
        _changes(
            "SetSubscriptionFailurePolicy",
            "policies.change_subscription",
            _on_subscription(_P.MANAGE_SUBSCRIPTION),
            _DEAD_LETTERS,
        ),
        _changes(
            "SetSubscriptionDispatchConfig", "policies.change_subscription", _on_subscription(_P.MANAGE_SUBSCRIPTION)
        ),
    ),
    *_at(
        Port.ADMIN,
        "/danube_admin.SecurityAdmin/",
        _changes("CreateRole", "security.put_role", _on_cluster(_P.MANAGE_SECURITY)),
        _changes("DeleteRole", "security.drop_role", _on_cluster(_P.MANAGE_SECURITY)),
        _changes("GetRole", "security.list_roles", Requirement(_P.MANAGE_SECURITY, _N.ANYTHING)),
        _changes("ListRoles", "security.list_roles", Requirement(_P.MANAGE_SECURITY, _N.ANYTHING)),
        _changes(
            "CreateBinding",
            "security.put_binding",
            Requirement(_P.MANAGE_SECURITY, _N.BINDING, ("binding.scope", "binding.resource_name")),
        ),
        _changes(
            "DeleteBinding",
            "security.drop_binding",
            Requirement(_P.MANAGE_SECURITY, _N.BINDING, ("scope", "resource_name")),
        ),
        _changes(
            "GetBinding",
            "security.show_binding",
            Requirement(_P.MANAGE_SECURITY, _N.BINDING, ("scope", "resource_name")),
        ),
        _changes(
            "ListBindings",
            "security.show_binding",
            Requirement(_P.MANAGE_SECURITY, _N.BINDING, ("scope", "resource_name")),
        ),
        _changes("ListAllBindings", "security.list_bindings", _on_cluster(_P.MANAGE_SECURITY)),
    ),
)

_STANDARD: Final = (
    # An API key proves what its token will: the operation verifies and throttles it as the header of any other call.
    Rule("/danube.AuthService/Authenticate", "exchange_key", Access.PUBLIC, ports=Port.CLIENT),
    _public("/grpc.health.v1.Health/Check", "health"),
    _public("/grpc.health.v1.Health/List", "health"),
    _public("/grpc.health.v1.Health/Watch", "health"),
    _principal("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "reflection", _BOTH),
    _principal("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "reflection", _BOTH),
)

_STORAGE_SERVER: Final = tuple(
    Rule(
        getattr(StorageMethod, name),
        f"objects.{name.lower()}",
        Access.PERMITTED,
        (_on_cluster(_P.BROKER_INTERNAL),),
        ports=Port.STORAGE,
    )
    for name in ("PUT", "GET", "GET_RANGES", "HEAD", "LIST", "DELETE", "ABANDON_UPLOADS", "DESCRIBE")
)


_REGISTRY: Final = tuple(
    rule._replace(ports=Port.REGISTRY)
    for rule in (
        _principal(RegistryMethod.INFO, "registry.info"),
        # The operation limits its answers to what the caller may read.
        _changes(RegistryMethod.FIND, "registry.find", Requirement(_P.READ_SCHEMA, _N.ANYTHING)),
        _shows(RegistryMethod.READ, "registry.read", _on_schema(_P.READ_SCHEMA)),
        _changes(RegistryMethod.REGISTER, "registry.register", _on_schema(_P.MANAGE_SCHEMA)),
        _changes(RegistryMethod.DELETE, "registry.delete", _on_schema(_P.MANAGE_SCHEMA)),
        _changes(RegistryMethod.CONFIGURE, "registry.configure", _on_schema(_P.MANAGE_SCHEMA)),
        _changes(RegistryMethod.CONFIGURE_ALL, "registry.configure_all", _on_cluster(_P.MANAGE_SCHEMA)),
    )
)


def _table(rules: Iterable[Rule]) -> Mapping[str, Rule]:
    found: dict[str, Rule] = {}
    for rule in rules:
        assert rule.path not in found, rule.path
        assert (rule.access is Access.PERMITTED) == bool(rule.requirements), rule.path
        found[rule.path] = rule
    return MappingProxyType(found)


_OWN: Final = ("/danube.native.v1.", "/danube.Peers/")
"""How paths of Danube's own protocol begin."""

RULES: Final = _table((*_NATIVE, *_UPSTREAM, *_STANDARD, *_STORAGE_SERVER, *_REGISTRY))
"""All rows, by path."""


def rules_of(port: Port) -> Mapping[str, Rule]:
    """Return the rows of the paths that are served on a port."""
    return {path: rule for path, rule in RULES.items() if port in rule.ports}


def check_served(port: Port, paths: Iterable[str], *, native_only: bool = False) -> None:
    """Check that each path that a port serves has a row, and that each row of the port is served.

    Args:
        port: the port.
        paths: that it serves.
        native_only: whether it serves Danube's own protocol only, so that rows of other ones need not be served.

    Raises:
        ConfigurationError: otherwise. A server with such a port must not start.
    """
    served, rows = set(paths), rules_of(port).keys()
    for unruled in sorted(served - rows):
        raise ConfigurationError(
            f"path {unruled} has no row in the table of rights (danube/security/rights.py); add it"
        )
    missing = rows - served
    for unserved in sorted(each for each in missing if not native_only or each.startswith(_OWN)):
        raise ConfigurationError(f"the table of rights has a row for {unserved}, which is not served; remove it")
