"""Faces: additional protocols served by a broker, built on its shared operations.

The broker serves its native calls itself. A face adds services of another protocol on the same port (distinguished by
their codec), and admin services on the admin port. The broker knows nothing about the protocol of a face::

    run_broker(config, faces=(danube.compat.face,))     # a function: a broker in, its face out

This module is all that faces may know of the broker. It has interfaces only, and no I/O: the parts of the broker that
faces use (:class:`Served`), its topics and subscriptions, and the interface of a consumer, which faces implement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from danube.broker.delivery.connected_consumer import (
    AckWaiter,
    ConnectedConsumer,
    Delivery,
    Feeding,
    Origin,
    StoredBatch,
)
from danube.broker.security.caller import (
    JudgedRight,
    caller_name,
    may_consume,
    may_produce,
    may_read_schema,
    passed_on,
    received,
    require_schema,
)
from danube.wire._context import Context
from danube.wire.codec import Codec
from danube.wire.service import Method, Service

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from danube.dispatch import Machine
    from danube.http._dialect import Dialect
    from danube.http._messages import Handler, Request
    from danube.metadata._contract import MetadataStore
    from danube.model import (
        Durability,
        Limits,
        SubscriptionPolicy,
        SubscriptionType,
        TopicPolicies,
        api,
        cluster_api,
        policy_api,
        security_api,
    )
    from danube.model.batch import CompositeRecord, SchemaRef
    from danube.model.errors import DanubeError
    from danube.model.ids import BrokerId, Offset, ProducerId, TopicId
    from danube.model.records import TopicRecord
    from danube.peers import CallHandler
    from danube.schema.book import Book, Change, Entry, Proposal, Registered
    from danube.schema.examine import Examination, Finding
    from danube.schema.modes import Level, Policy
    from danube.security.roles import Principal

__all__ = [
    "AckWaiter",
    "ConnectedConsumer",
    "Delivery",
    "Face",
    "FaceMaker",
    "Feeding",
    "JudgedRight",
    "Origin",
    "Served",
    "ServedConnections",
    "ServedHealth",
    "ServedProbe",
    "ServedCatalogue",
    "ServedClusterOperations",
    "ServedComposer",
    "ServedComposing",
    "ServedConfig",
    "ServedDirectory",
    "ServedIntake",
    "ServedPeers",
    "ServedRegistry",
    "ServedOperations",
    "ServedPolicies",
    "ServedPolicyOperations",
    "ServedProducers",
    "ServedRuntime",
    "ServedSecurityOperations",
    "ServedSubscription",
    "ServedSubscriptionOperations",
    "ServedTopic",
    "ServedTopicOperations",
    "Started",
    "StoredBatch",
    "caller_name",
    "may_consume",
    "may_produce",
    "may_read_schema",
    "passed_on",
    "received",
    "require_schema",
]

_T = TypeVar("_T")


class Served(Protocol):
    """The part of a broker that a face may use."""

    admin_addresses: list[str]
    """Addresses of the admin port."""
    http_addresses: list[str]
    """Addresses of the HTTP port."""
    registry_addresses: list[str]
    """Addresses of the schema registry's REST interface."""

    @property
    def has_tls(self) -> bool:
        """Whether the ports serve TLS only."""
        ...

    @property
    def has_security(self) -> bool:
        """Whether callers must prove who they are."""
        ...

    @property
    def runtime(self) -> ServedRuntime:
        """Configuration and ids."""
        ...

    @property
    def directory(self) -> ServedDirectory:
        """The topics."""
        ...

    @property
    def operations(self) -> ServedOperations:
        """The use cases that all protocols share."""
        ...

    def http_urls(self) -> Mapping[str, str]:
        """Return the URLs of the HTTP ports of all running brokers, by the addresses of their client ports."""
        ...

    def caller(self, context: Context, /) -> Principal:
        """Return the principal of a call."""
        ...

    @property
    def security_known(self) -> int:
        """The revision of the latest change of access control that this broker knows of; 0 with security off."""
        ...

    async def exchange_key(self, api_key: str, context: Context, /) -> str:
        """Return a token for the holder of an API key; any text, if the broker has no access control.

        Raises:
            UnauthenticatedError: the API key proves nothing.
        """
        ...

    def note_refused(self, peer: str, path: str, reason: str, /) -> None:
        """Enter in the audit log that the face has refused a call, because it was not proven whose it is.

        Args:
            peer: address of the caller.
            path: of the call.
            reason: without secrets.
        """
        ...

    @property
    def own_address(self) -> str:
        """Address at which other brokers reach this one: ``host:port``."""
        ...

    def running_addresses(self) -> Collection[str]:
        """Return the addresses of all brokers of the cluster that have a session, as far as this one knows."""
        ...

    def known_brokers(self) -> Collection[str]:
        """Return the names of all brokers of the cluster."""
        ...

    def open_channel(self, address: str, codec: Codec, /) -> AbstractAsyncContextManager[Any]:
        """Connect to the client port of another broker, as the links do, but with the protocol of a codec.

        The body gets a :class:`danube.wire.Channel`.

        Raises:
            ConnectionLostError: it cannot be reached.
        """
        ...

    def detour(self, choose: Callable[[Method, Mapping[str, str]], Method], /) -> None:
        """Let a function choose, by the headers of a call of a foreign client, what serves it on the client port.

        What it chooses in place of the method is not judged: it must call :meth:`prove` first, and may pass the call on
        to a broker that judges it, and nothing else.
        """
        ...

    async def prove(self, context: Context, /) -> None:
        """Check the credential of a call that is passed on without being judged; with security off there is none.

        Raises:
            UnauthenticatedError: it proves nothing.
            UnavailableError: the metadata are not reachable, so that nothing new can be proven.
        """
        ...

    def native_method(self, path: str, /) -> Method:
        """Return a method of the native protocol as the client port serves it, with its guard.

        Raises:
            CallRefusedError: the broker is starting, and does not serve it yet.
        """
        ...

    def guarded(self, service: Service, /) -> Service:
        """Return methods that a face serves in a way of its own, each judged like those of the ports.

        Raises:
            ConfigurationError: a path has no row in the table of rights.
        """
        ...

    async def serve_inner(self, stream: Any, request: Request, /) -> None:
        """Serve the native protocol on a stream within this process, until it ends.

        Args:
            stream: a ``trio.abc.Stream`` that carries the protocol.
            request: of HTTP, whose caller is the caller of all its calls: address, certificate, TLS.
        """
        ...

    @property
    def registry(self) -> ServedRegistry:
        """The schema registry, once the broker has started."""
        ...

    @property
    def composing(self) -> ServedComposing:
        """Accepts messages that are sent one at a time."""
        ...

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, for records of the face, below a prefix of its own."""
        ...

    @property
    def peers(self) -> ServedPeers | None:
        """The links to the other brokers; None: there are none."""
        ...

    @property
    def started(self) -> bool:
        """Whether the start of the broker is over: its topics are recovered, and calls are served."""
        ...

    async def wait_started(self) -> None:
        """Wait until the start of the broker is over."""
        ...

    def health(self) -> ServedHealth:
        """Return whether the broker lives, is ready, and has started. May be called at any time while it runs."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the broker is shutting down."""
        ...

    async def wait_draining(self) -> None:
        """Wait until the broker starts to shut down."""
        ...


class ServedRegistry(Protocol):
    """The schema registry of the cluster."""

    @property
    def book(self) -> Book:
        """The registry as this broker knows it, without a question to the metadata."""
        ...

    async def current(self) -> Book:
        """Return the registry with every change that was answered before this call, at any broker.

        Raises:
            DanubeError: the metadata do not answer.
        """
        ...

    async def fresh(self) -> Book:
        """Return :meth:`current`; while the metadata do not answer, the registry as this broker knows it.

        For lists, and what may be incomplete.
        """
        ...

    async def read(self, query: Callable[[Book], _T]) -> _T:
        """Answer a query from :meth:`fresh`.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            UnavailableError: it is missing here, and the metadata do not answer.
            DanubeError: the query raised it.
        """
        ...

    async def find(self, query: Callable[[Book], _T]) -> _T:
        """Answer a query from the replica; if that raises NotFoundError, again from a current one.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            DanubeError: it is missing here, and the metadata do not answer; or the query raised it.
        """
        ...

    async def examine(self, examination: Examination) -> Finding:
        """Parse a schema, and compare it with others, outside this process.

        Raises:
            InvalidSchemaError, SchemaTooLargeError: a schema is invalid, or exceeds a limit.
        """
        ...

    async def check(self, proposal: Proposal, version: int | None = ..., level: Level | None = ...) -> Finding:
        """Return how a schema compares with the versions of its subject that its level names, or with one version.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            InvalidSchemaError, SchemaTooLargeError: a schema is invalid, or exceeds a limit.
        """
        ...

    async def lookup(self, proposal: Proposal, *, deleted: bool = ...) -> Entry | None:
        """Return the version of the proposal's subject that has the same content; None: no version has it.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            UnavailableError: none is known here, and the metadata do not answer.
            InvalidSchemaError, SchemaTooLargeError: the schema is invalid, or exceeds a limit.
        """
        ...

    async def register(
        self,
        proposal: Proposal,
        *,
        by: str = ...,
        born: Policy = ...,
        description: str = ...,
        tags: tuple[str, ...] = ...,
        number: int | None = ...,
        version: int | None = ...,
    ) -> Registered:
        """Register a schema; return its number and version, which may have been there before.

        Args:
            proposal: the schema, and its subject, which need not exist.
            by: who registers it; :func:`caller_name` tells.
            born: the policy of a subject that is created by this.
            description, tags: for people.
            number, version: given ones, in mode IMPORT.

        Raises:
            IncompatibleSchemaError: it is not compatible with the versions of the subject.
            DanubeError: as :meth:`danube.schema.book.Book.register`.
        """
        ...

    async def change(self, prepare: Callable[[Book], Change]) -> Change:
        """Make a change, which is prepared again if another one came first; return it.

        Raises:
            UnavailableError: the metadata do not answer: it may have been made; or others always came first.
            DanubeError: raised by ``prepare``; nothing was changed.
        """
        ...

    async def change_with(self, prepare: Callable[[Book], tuple[_T, Change]]) -> tuple[_T, Change]:
        """Make a change, as :meth:`change`; return what was prepared with it, and the change."""
        ...


class ServedPeers(Protocol):
    """The links to the other brokers of the cluster."""

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the handler of a channel at the broker with an address, and return its answer.

        Raises:
            DanubeError: it does not answer, or its handler raised this.
        """
        ...

    def on_call(self, channel: str, handler: CallHandler) -> None:
        """Answer the calls of other brokers on a channel."""
        ...


class ServedConfig(Protocol):
    """The configuration of the broker, as far as faces apply it."""

    @property
    def durability(self) -> Durability:
        """Durability of a topic that is created without one."""
        ...

    @property
    def advertised_address(self) -> str:
        """Address at which clients reach the broker; empty: that of its listener."""
        ...

    @property
    def client_url(self) -> str:
        """Address of a load balancer through which official clients reach all brokers; empty: there is none."""
        ...

    @property
    def subscription_policy(self) -> SubscriptionPolicy:
        """Policy of a subscription that is created without one."""
        ...

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        ...

    @property
    def http_allowed_hosts(self) -> Collection[str]:
        """Names by which the HTTP port may be called, beside addresses and ``localhost``."""
        ...


class ServedRuntime(Protocol):
    """Services of the broker for all its topics, as far as faces use them."""

    addresses: list[str]
    """The addresses on which the broker listens."""

    @property
    def clock_us(self) -> Callable[[], int]:
        """The wall clock, in microseconds since the epoch."""
        ...

    @property
    def config(self) -> ServedConfig:
        """The configuration."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of the broker."""
        ...

    @property
    def namespace_connections(self) -> ServedConnections:
        """Which connections use namespaces here."""
        ...

    def random_bytes(self, count: int, /) -> bytes:
        """Return so many unpredictable bytes."""
        ...

    def new_id(self) -> int:
        """Return a random id; never 0, fits a signed 64-bit integer."""
        ...

    def next_consumer_id(self) -> int:
        """Return a consumer id that is unique in this process."""
        ...


class ServedProbe(Protocol):
    """The answer to one question about the health of a broker."""

    @property
    def ok(self) -> bool:
        """Whether it is well."""
        ...

    @property
    def text(self) -> str:
        """``ok``, or the reasons, a line each."""
        ...


class ServedHealth(Protocol):
    """The health of a broker."""

    @property
    def live(self) -> ServedProbe:
        """Whether it lives: if not, it is to be restarted."""
        ...

    @property
    def ready(self) -> ServedProbe:
        """Whether clients should come."""
        ...

    @property
    def started(self) -> ServedProbe:
        """Whether its start is over."""
        ...


class ServedConnections(Protocol):
    """Which connections use the topics of namespaces."""

    def using(self, topic: str, connection_id: int) -> AbstractContextManager[None]:
        """Count a stream of a connection on a topic while the context is open.

        Raises:
            LimitExceededError: the connection would be one more than the quota of the namespace.
        """
        ...


class ServedDirectory(Protocol):
    """The topics of the broker."""

    @property
    def catalogue(self) -> ServedCatalogue:
        """The records of namespaces and topics."""
        ...

    @property
    def policies(self) -> ServedPolicies:
        """The policies of topics."""
        ...

    @property
    def broker(self) -> str:
        """The name of the broker in its cluster, such as ``b1``."""
        ...

    def find(self, name: str) -> ServedTopic:
        """Return a plain topic or a partition.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
            NotOwnerError: another broker owns it; the error may have its address.
            OwnerAwayError: it waits for its owner.
            StorageUnavailableError: its storage is unavailable.
        """
        ...

    async def search(self, name: str) -> ServedTopic:
        """As :meth:`find`, but in a cluster read the metadata before saying that it does not exist; raises as that."""
        ...

    async def refresh(self, name: str) -> None:
        """Read the record of a topic again, if other brokers may have changed it.

        Raises:
            DanubeError: the metadata cannot answer.
        """
        ...

    def resolve(self, name: str) -> Sequence[ServedTopic]:
        """Return the topic, or all partitions of a partitioned base name; raises as :meth:`find`."""
        ...

    def kept_topics(self) -> Sequence[ServedTopic]:
        """Return the topics and partitions that have a log."""
        ...

    async def ensure(self, name: str, durability: Durability) -> ServedTopic:
        """Return a topic or a partition; create or enlarge its topic on demand, for clients that never create topics.

        Args:
            name: of a plain topic or of a partition.
            durability: of a topic that is created.

        Raises:
            AlreadyExistsError: a partition of a plain topic, or the base name of a partitioned one.
            TopicNotFoundError: it does not exist, and may not be created.
            UnavailableError: it is being created or deleted; try again.
            InvalidArgumentError, LimitExceededError: there would be too many partitions or topics.
        """
        ...


class ServedCatalogue(Protocol):
    """The records of namespaces and topics."""

    @property
    def namespaces(self) -> list[str]:
        """Names of all namespaces, sorted."""
        ...

    def topics(self, namespace: str = "") -> Iterator[tuple[str, TopicRecord]]:
        """Yield ``(name, record)`` of all topics, sorted; partitioned ones once, under their base name."""
        ...

    def find(self, topic: str) -> TopicRecord | None:
        """Return the record of a plain or base topic, or None."""
        ...

    def locate(self, topic: str) -> tuple[TopicRecord, int]:
        """Return the record of a plain topic or of one partition, and that topic's id.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
        """
        ...

    def namespace_policies(self, name: str) -> TopicPolicies:
        """Return the policies of a namespace; raise NamespaceNotFoundError if it does not exist."""
        ...


class ServedPolicies(Protocol):
    """The policies of topics."""

    def report(self, target: str) -> policy_api.PolicyReport:
        """Return the policies of the broker, a namespace or a topic: its own, and the effective ones."""
        ...


class ServedTopicOperations(Protocol):
    """Use cases of namespaces and topics."""

    async def create_namespace(self, request: api.CreateNamespace) -> object:
        """Create a namespace."""
        ...

    async def delete_namespace(self, request: api.DeleteNamespace) -> object:
        """Delete an empty namespace."""
        ...

    async def create_topic(self, request: api.CreateTopic) -> object:
        """Create a topic."""
        ...

    async def bind_subject(self, topic: str, subject: str, *, unless_other: bool = ...) -> None:
        """Give a topic a subject of the schema registry, whose existence is not checked; empty: it has none any more.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition, or has another subject, and ``unless_other`` is set.
        """
        ...

    async def delete_topic(self, request: api.DeleteTopic) -> object:
        """Delete a topic with all its messages and subscriptions."""
        ...


class ServedSubscriptionOperations(Protocol):
    """Use cases of subscriptions."""

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription of a topic, or of all partitions, and its planned policies where it does not exist.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
        """
        ...


class ServedPolicyOperations(Protocol):
    """Use cases of policies."""

    async def change(self, request: policy_api.ChangePolicies) -> policy_api.PolicyReport:
        """Change policies of the broker, a namespace or a topic.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError: the target does not exist.
            InvalidArgumentError: an unknown name, or an invalid value.
        """
        ...

    async def plan_subscription(self, request: policy_api.ChangeSubscriptionPolicy) -> None:
        """Change the policy of a subscription; where it does not exist yet, the change applies once it is created.

        Raises:
            InvalidArgumentError: a name, or the policy, is invalid.
            TopicNotFoundError: the topic does not exist.
            LimitExceededError: policies are planned for too many subscriptions that do not exist.
            StorageUnavailableError: the storage of the topic does not answer: the change may still take effect.
        """
        ...


class ServedClusterOperations(Protocol):
    """Use cases of the cluster."""

    @property
    def me(self) -> BrokerId:
        """The number of this broker."""
        ...

    def owner(self, topic_id: TopicId) -> BrokerId | None:
        """Return the broker to which a topic or partition is assigned, whether it runs or not; None: to none."""
        ...

    async def status(self, request: cluster_api.GetClusterStatus) -> cluster_api.ClusterStatus:
        """Return the status of the cluster."""
        ...


class ServedMoveOperations(Protocol):
    """Use cases that move topics between brokers."""

    async def drain(self, request: cluster_api.DrainBroker) -> cluster_api.BrokerDrain:
        """Have a broker give all its topics away, or say how far it is.

        Raises:
            InvalidArgumentError, NotFoundError: there is no such broker.
            FailedPreconditionError: it was declared gone, or no other broker is active.
        """
        ...

    async def activate(self, request: cluster_api.ActivateBroker) -> cluster_api.BrokerDrain:
        """Have a broker get topics again; raises as :meth:`drain`."""
        ...

    async def balance(self, request: cluster_api.BalanceCluster) -> cluster_api.BalancePlan:
        """Order topics to move until the load is even.

        Raises:
            FailedPreconditionError: there is no other broker.
        """
        ...


class ServedSecurityOperations(Protocol):
    """Use cases of access control; the first argument of each is the principal that asks."""

    async def list_roles(self, by: Principal, /) -> security_api.RoleList:
        """Return all roles."""
        ...

    async def put_role(self, by: Principal, request: security_api.PutRole, /) -> object:
        """Add or replace a role.

        Raises:
            FailedPreconditionError: the role is built in.
        """
        ...

    async def drop_role(self, by: Principal, request: security_api.DropRole, /) -> object:
        """Remove a role.

        Raises:
            NotFoundError: there is no such role.
            FailedPreconditionError: it is built in, or in use.
        """
        ...

    async def list_bindings(self, by: Principal, request: security_api.ListBindings, /) -> security_api.BindingList:
        """Return a page of bindings."""
        ...

    async def show_binding(self, by: Principal, binding_id: str, /) -> security_api.BindingRow:
        """Return a binding; raise NotFoundError if there is none that the caller may see."""
        ...

    async def put_binding(self, by: Principal, request: security_api.PutBinding, /) -> object:
        """Add or replace a binding.

        Raises:
            FailedPreconditionError: it would replace the last administrator.
        """
        ...

    async def drop_binding(self, by: Principal, request: security_api.DropBinding, /) -> object:
        """Remove a binding.

        Raises:
            NotFoundError: there is no such binding.
            FailedPreconditionError: it is that of the last administrator.
        """
        ...


class ServedOperations(Protocol):
    """The use cases of the broker, as far as faces offer them."""

    @property
    def cluster(self) -> ServedClusterOperations:
        """Of the cluster."""
        ...

    @property
    def moves(self) -> ServedMoveOperations:
        """Of moves between brokers."""
        ...

    @property
    def topics(self) -> ServedTopicOperations:
        """Of namespaces and topics."""
        ...

    @property
    def subscriptions(self) -> ServedSubscriptionOperations:
        """Of subscriptions."""
        ...

    @property
    def policies(self) -> ServedPolicyOperations:
        """Of policies."""
        ...

    @property
    def security(self) -> ServedSecurityOperations:
        """Of access control."""
        ...


class ServedComposer(Protocol):
    """Collects the messages of one topic that are sent one at a time."""

    def add(
        self,
        record: CompositeRecord,
        publish_time_us: int,
        size: int,
        told: Callable[[DanubeError | None], None],
        schema: SchemaRef = ...,
    ) -> None:
        """Accept a message.

        Args:
            record: without its ``publish_delta_us``, which is filled in.
            publish_time_us: when it was sent, by its producer's clock.
            size: bytes of its payload, key, attributes and producer's name; within the topic's limits.
            told: called when it has settled, perhaps before this returns.
            schema: a change of schema starts another batch.
        """
        ...


class ServedComposing(Protocol):
    """The composers of the broker's topics."""

    def of(self, topic: Any, /) -> ServedComposer:
        """Return the composer of a topic, a :class:`ServedTopic` of this broker."""
        ...


class ServedIntake(Protocol):
    """The producers of a topic."""

    max_message_bytes: int
    """Largest message, in bytes."""

    def said_max_message_bytes(self) -> str:
        """Return the limit of messages, and where it is set, for an error."""
        ...

    async def register(self, name: str) -> ProducerId:
        """Return the id of a producer without sessions; create it if it does not exist.

        Raises:
            LimitExceededError: too many producers.
        """
        ...

    def seen(self, producer_id: ProducerId) -> str:
        """Note that a producer is alive; return its name, or an empty string if the id is unknown."""
        ...


class ServedProducers(Protocol):
    """The known producers of a topic."""

    def ids(self) -> Iterable[ProducerId]:
        """Return the ids of all known producers."""
        ...

    def name_of(self, producer_id: ProducerId) -> str:
        """Return the name of a producer; empty if its state has expired."""
        ...


class ServedTopic(Protocol):
    """A plain topic or a partition, as seen by a face."""

    name: str
    topic_id: TopicId
    durability: Durability
    deleted: DanubeError | None
    """Why it is gone, if it was deleted."""

    @property
    def intake(self) -> ServedIntake:
        """Its producers and their batches."""
        ...

    @property
    def producers(self) -> ServedProducers:
        """Its known producers."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, ServedSubscription]:
        """Its subscriptions by name."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether it has no log: messages without a consumer that has credit are lost."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it was deleted, or has stopped because stored data is damaged."""
        ...

    @property
    def end_offset(self) -> Offset:
        """The offset after the last message that consumers may see."""
        ...

    def check_alive(self) -> None:
        """Raise if it was deleted, or has stopped because stored data is damaged.

        Raises:
            TopicNotFoundError: it was deleted.
            DataLossError: it has stopped.
        """
        ...

    def check_subscription(self) -> None:
        """Raise LimitExceededError if no further subscription may be created."""
        ...

    def check_consumer(self, subscription: str, name: str) -> None:
        """Raise LimitExceededError if no further consumer may connect to a subscription.

        Args:
            subscription: its name.
            name: of the consumer; it replaces a connected one of the same name, which does not add to the number.
        """
        ...

    def check_subscription_consumers(
        self, subscription: str, name: str, expected: Collection[tuple[str, str]] = ()
    ) -> None:
        """Raise LimitExceededError if the limit of a subscription forbids a further consumer.

        Args:
            subscription, name: as for :meth:`check_consumer`.
            expected: consumers that have places while they are not connected, as pairs of subscription and name.
        """
        ...

    def check_topic_consumers(self, subscription: str, name: str, expected: Collection[tuple[str, str]] = ()) -> None:
        """Raise LimitExceededError if the limit of the topic forbids a further consumer.

        Args:
            subscription, name, expected: as for :meth:`check_subscription_consumers`.
        """
        ...

    async def subscribe(self, request: api.ConsumeOpen) -> ServedSubscription:
        """Return the subscription that a consumer requests; create it if it does not exist.

        Raises:
            SubscriptionTypeMismatchError: it exists with another type.
            LimitExceededError: too many subscriptions.
        """
        ...

    def planned_for(self, subscription: str) -> Mapping[str, Any]:
        """Return the policy changes that were planned for a subscription before it was created."""
        ...


class ServedSubscription(Protocol):
    """A subscription of one topic or partition, as seen by a face: consumers join it, and answer for messages."""

    name: str
    subscription_id: int
    kind: SubscriptionType
    machine: Machine
    """Its state machine, which receives credit while messages are delivered."""

    @property
    def topic(self) -> Origin:
        """Its topic."""
        ...

    @property
    def consumers(self) -> Mapping[int, ConnectedConsumer]:
        """Its connected consumers, by their ids."""
        ...

    @property
    def generation(self) -> int:
        """Number of times that it was moved; acknowledgements of earlier deliveries are void."""
        ...

    @property
    def policy(self) -> SubscriptionPolicy:
        """Its policy for redelivery, poison and rates."""
        ...

    def join(self, consumer: ConnectedConsumer) -> None:
        """Connect a consumer; a connected one of the same name is displaced.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: it was deleted while it was being opened.
            SubscriptionBusyError: exclusive, and another consumer is connected.
            DataLossError: the subscription stopped because stored data is damaged, and it still is.
        """
        ...

    def leave(self, consumer: ConnectedConsumer) -> None:
        """Disconnect a consumer; its messages are redelivered to others. No-op if it has been displaced."""
        ...

    def credit(self, consumer: ConnectedConsumer, messages: int, size_bytes: int) -> None:
        """Allow a consumer to receive more."""
        ...

    def ack_for(self, waiter: AckWaiter, offset: int, consumer: ConnectedConsumer | None, generation: int) -> None:
        """Acknowledge a message on behalf of a caller, which is notified when that is durable."""
        ...

    def nack_for(self, offset: int, least_delay_s: float | None, reason: str, generation: int) -> None:
        """Redeliver a message; the delay is that of the policy, but at least ``least_delay_s``."""
        ...

    def refuse(self, consumer: ConnectedConsumer, offset: int, reason: str) -> None:
        """Record a failure that a consumer has reported during delivery: it cannot take the message."""
        ...

    def extend(
        self, consumer: ConnectedConsumer, ranges: Sequence[int], lease_s: float | None, generation: int
    ) -> None:
        """Move the ack timeout of flat ranges to ``lease_s`` seconds from now; None: the policy's ack timeout."""
        ...


class Started(Protocol):
    """Told by a background task that it is ready; a ``trio.TaskStatus``."""

    def started(self, /) -> None:
        """Report that the task is ready."""
        ...


class Face(Protocol):
    """One face of one broker. It is created once, before the broker has topics, and its services are known then.

    While the broker starts, only those of its methods are served that are :attr:`danube.wire.Method.early`. These must
    not use more of the broker than its configuration and state.
    """

    @property
    def services(self) -> Service:
        """Methods served on the client port."""
        ...

    @property
    def admin_services(self) -> Service:
        """Methods served on the admin port."""
        ...

    @property
    def http(self) -> Handler | None:
        """Answers the requests of the HTTP port, also while the broker starts and drains; None: the face has no HTTP.

        Of several faces for one port the first one gets it.
        """
        ...

    @property
    def http_door(self) -> Literal["http", "registry"]:
        """Which port :attr:`http` answers: that of HTTP, or that of the schema registry."""
        ...

    @property
    def http_dialect(self) -> Dialect | None:
        """How targets are read on that port, and problems worded; None: as always."""
        ...

    @property
    def http_headers(self) -> Sequence[tuple[str, str]]:
        """Headers of each answer of the HTTP port, also of those that the server gives itself."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs by content subtype, in addition to the native codec."""
        ...

    def subscription_of_consumer(self, consumer_id: int, /) -> tuple[str, str] | None:
        """Return topic and subscription of a consumer that requests name by its number; None if it is not known."""
        ...

    async def run(self, *, task_status: Started = ...) -> None:
        """Run the background work of the face until cancelled. It begins when the topics are loaded.

        All calls are served once ``task_status`` has been started. The task is cancelled after the last call has ended.
        """
        ...


FaceMaker = Callable[["Served"], Face]
"""Factory of the face of a broker."""
