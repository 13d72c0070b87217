"""The broker as a face sees it: addresses, callers, configuration, health and links. Interfaces only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from danube.broker.faces.directory import ServedDirectory
    from danube.broker.faces.operations import ServedOperations
    from danube.broker.faces.registry import ServedRegistry
    from danube.broker.faces.topics import ServedComposing
    from danube.http._messages import Request
    from danube.metadata._contract import MetadataStore
    from danube.model import Durability, Limits, SubscriptionPolicy
    from danube.peers import CallHandler
    from danube.security.roles import Principal
    from danube.wire._context import Context
    from danube.wire.codec import Codec
    from danube.wire.service import Method, Service

__all__ = ["Served", "ServedConfig", "ServedConnections", "ServedHealth", "ServedPeers", "ServedProbe", "ServedRuntime"]


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
