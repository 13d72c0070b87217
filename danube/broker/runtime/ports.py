"""The ports of a broker: bound first, so that a taken address ends a start that has changed nothing; served to the end.

::

    async with bind(config, seams) as ports:       # other processes can connect, and wait
        async with ports.serving(...):              # early methods are served, calls of others refused
            ports.open(services, admin_services)    # all are served
            await ports.drain()                     # links of brokers are served
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from msgspec.structs import replace

from danube.broker.runtime.config import (
    DEFAULT_ADMIN_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_REGISTRY_PORT,
    BrokerConfig,
)
from danube.broker.runtime.descriptors import ADMIN_SHARE
from danube.broker.runtime.seams import Seams, shown_address
from danube.log import with_descriptors
from danube.loop import Poller
from danube.model.addresses import is_loopback, refuse_exposed, with_port
from danube.model.connection_api import ConnectionInfo
from danube.model.errors import AddressTakenError, ConfigurationError, ExposedAddressError
from danube.model.log_events import log_event
from danube.wire import Codec, Server, Service

if TYPE_CHECKING:
    from danube.http.server import HttpServer
    from danube.wire._server_connection import ServerConnection
    from danube.wire.tls import ServerTls

__all__ = ["Ports", "bind"]

_log = logging.getLogger("danube.broker")

_STARTING: Final = "broker starting: {}; try again"


class Ports:
    """The client port and, maybe, the admin port, that of HTTP and that of the registry. Create it with :func:`bind`.

    Attributes:
        addresses, admin_addresses, http_addresses, registry_addresses: on which they listen.
        client, admin, http, registry: their servers, while :meth:`serving`.
        tls: what both present; None: they are plain ones.
        poller: reads their sockets, while :meth:`serving`. The journal uses it, too.
    """

    poller: Poller
    client: Server
    admin: Server | None
    http: HttpServer | None
    registry: HttpServer | None

    def __init__(self, config: BrokerConfig, tls: ServerTls | None = None) -> None:
        self.tls = tls
        self.addresses: list[str] = []
        self.admin_addresses: list[str] = []
        self.http_addresses: list[str] = []
        self.registry_addresses: list[str] = []
        self._config = config
        self._http_listeners: list[trio.abc.Listener[Any]] = []
        self._registry_listeners: list[trio.abc.Listener[Any]] = []
        self._listeners: list[list[trio.abc.Listener[Any]]] = []
        self._guarded: Callable[[Service], Service] = _all_allowed
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @asynccontextmanager
    async def serving(
        self,
        services: Iterable[Service],
        admin_services: Iterable[Service],
        codecs: Mapping[str, Codec],
        phase: str,
        guarded: Callable[[Service], Service] | None = None,
        blocks: Callable[[str], bool] | None = None,
        http: Callable[[Ports], HttpServer] | None = None,
        registry: Callable[[Ports], HttpServer] | None = None,
    ) -> AsyncGenerator[None, None]:
        """Serve early methods around the body, and refuse the others until :meth:`open`.

        Args:
            services, admin_services: those of the ports that are known now.
            codecs: by content subtype.
            phase: what the broker does, for the callers that it refuses.
            guarded: returns the methods of a service, each judged before it is served; None: all calls are allowed.
            blocks: whether an address gets no connections now; None: there is no access control, and each one does.
            http: makes the server of HTTP, which serves all requests from now on, and refuses them itself.
            registry: makes that of the registry, in the same way.

        Raises:
            OutOfDescriptorsError: no file descriptor was left for ``start_descriptor_wait_s``.
        """
        if guarded is not None:
            self._guarded = guarded
        services, admin_services = map(self._guarded, services), map(self._guarded, admin_services)
        limits = self._config.limits
        refusal = _STARTING.format(phase)
        poller = self.poller = Poller()
        self.client = Server(services, limits, codecs=codecs, refusal=refusal, poller=poller, tls=self.tls)
        self.admin = None
        servers = [self.client]
        if len(self._listeners) > 1:
            few = replace(limits, max_connections=max(1, limits.max_connections // ADMIN_SHARE))
            self.admin = Server(admin_services, few, codecs=codecs, refusal=refusal, poller=poller, tls=self.tls)
            servers.append(self.admin)
        self.http = http(self) if http is not None and self._http_listeners else None
        self.registry = registry(self) if registry is not None and self._registry_listeners else None
        for server in servers if self.http is not None else ():
            tls = self._config.tls
            server.http_url = f"{'http' if tls is None or tls.plaintext else 'https'}://{self.http_addresses[0]}/"
        if blocks is not None:
            for each in filter(None, (self.http, self.registry)):
                each.blocks = blocks
            for server in servers:
                server.blocks = blocks
                server.bounds_unproven = True
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                start = partial(nursery.start, poller.run)
                await with_descriptors("polling sockets", start, limits.start_descriptor_wait_s)
                await nursery.start(self._run, servers)
                if self.tls is not None:
                    nursery.start_soon(self.tls.watch)
                yield
            except Exception as error:  # noqa: BLE001 - raised again below: the nursery would wrap it into a group
                failure = error
            finally:
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run(self, servers: Sequence[Server], *, task_status: trio.TaskStatus[None]) -> None:
        wait_s = self._config.limits.start_descriptor_wait_s
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for server, listeners in zip(servers, self._listeners, strict=True):
                        start = partial(nursery.start, server.run, listeners)
                        what = f"listening on {', '.join(map(shown_address, listeners))}"
                        await with_descriptors(what, start, wait_s)
                    if self.http is not None:
                        await nursery.start(self.http.run, self._http_listeners)
                    if self.registry is not None:
                        await nursery.start(self.registry.run, self._registry_listeners)
                    task_status.started()
        finally:
            self._ended.set()

    def tell(self, phase: str) -> None:
        """Change what callers are told that the broker does while it starts."""
        for server in filter(None, (self.client, self.admin)):
            server.refusal = _STARTING.format(phase)

    def open(self, services: Iterable[Service], admin_services: Iterable[Service]) -> None:
        """Serve all methods, and these, too."""
        self.client.open(map(self._guarded, services))
        if self.admin is not None:
            self.admin.open(map(self._guarded, admin_services))

    def connections(self, broker: str, now_us: int) -> list[ConnectionInfo]:
        """Return the open connections of both ports.

        Args:
            broker: the name of this broker, with which their ids begin.
            now_us: the wall clock.
        """
        now = trio.current_time()
        return [
            ConnectionInfo(
                id=f"{broker}-{port}{each.connection_id}",
                broker=broker,
                peer=each.peer,
                protocol=_protocol(each),
                client=each.agent,
                principal="" if each.caller is None else str(each.caller),
                streams=each.open_streams,
                received_bytes=each.received_bytes,
                sent_bytes=each.sent_bytes,
                since_us=now_us - int((now - each.since) * 1e6),
                queued_bytes=each.waiting_bytes,
                secure=each.secure,
            )
            for port, server in self._servers()
            for each in server.connection_list()
        ]

    def end_connection(self, broker: str, connection_id: str, reason: str) -> bool:
        """End a connection by its id; return False if it does not exist."""
        for port, server in self._servers():
            number = connection_id.removeprefix(f"{broker}-{port}")
            if number.isascii() and number.isdigit() and server.end_connection(int(number), reason):
                return True
        return False

    def traffic(self) -> tuple[int, int]:
        """Return how many bytes clients have sent to the client port, and received from it."""
        return self.client.received_bytes, self.client.sent_bytes

    def _servers(self) -> list[tuple[str, Server]]:
        """Return the servers, each with what ids of its connections begin with, after the name of the broker."""
        return [("", self.client), *([("admin-", self.admin)] if self.admin is not None else [])]

    async def drain(self) -> None:
        """Stop serving, except for links of brokers.

        Streams and calls with something in flight end when it has settled; the others end at once. The admin port
        is the last, so that its calls are answered until then.
        """
        settle_s = self._config.drain_timeout_s
        for each in filter(None, (self.http, self.registry)):
            each.begin_drain()
        await self.client.drain(0, settle_s)
        if self.admin is not None:
            self.admin.linger_s = 0.0  # admin clients hold no streams
            await self.admin.drain(0, settle_s)
        for each in filter(None, (self.registry, self.http)):
            await each.drain(settle_s)

    async def abort(self) -> None:
        """End all connections, and return when no handler runs."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):  # bounded: by the shields of handlers
            await self._ended.wait()


@asynccontextmanager
async def bind(
    config: BrokerConfig, seams: Seams, *, admin: bool, http: bool = False, registry: bool = False
) -> AsyncGenerator[Ports, None]:
    """Listen on the configured addresses; the listeners are closed at the end of the block.

    Args:
        config: the addresses.
        seams: the network.
        admin: whether there is something to serve on the admin port.
        http: whether there is something to serve by HTTP.
        registry: whether there is something to serve on the port of the registry.

    Raises:
        ConfigurationError: an address cannot be bound, or the files of ``[tls]`` cannot be used.
        AddressTakenError: a configured address of HTTP or the registry cannot be bound.
        ExposedAddressError: other machines can reach an address, and neither security nor ``insecure`` is on.
        OutOfDescriptorsError: no file descriptor was left for ``start_descriptor_wait_s``.
    """
    ports = Ports(config, _load_tls(config, seams))
    wanted = [(list(config.listen), ports.addresses)]
    if admin and config.admin_listen:
        wanted.append(([with_port(each, DEFAULT_ADMIN_PORT) for each in config.admin_listen], ports.admin_addresses))
    try:
        for addresses, shown in wanted:
            listeners = await _listen(addresses, seams, config.limits.start_descriptor_wait_s)
            ports._listeners.append(listeners)
            shown += map(shown_address, listeners)
            _check_exposure(listeners, config)
        if http and config.http_addresses:
            ports._http_listeners = await _listen_http(config, seams)
            ports.http_addresses += map(shown_address, ports._http_listeners)
            _check_exposure(ports._http_listeners, config)
        if registry and config.registry_addresses:
            ports._registry_listeners = await _listen_registry(config, seams)
            ports.registry_addresses += map(shown_address, ports._registry_listeners)
            _check_exposure(ports._registry_listeners, config)
        yield ports
    finally:
        # Those of a server that ran are closed.
        for listeners in (*ports._listeners, ports._http_listeners, ports._registry_listeners):
            for listener in listeners:
                await trio.aclose_forcefully(listener)


def _load_tls(config: BrokerConfig, seams: Seams) -> ServerTls | None:
    if config.tls is None:
        return None
    from danube.wire.tls import ServerTls

    return ServerTls(config.tls, lambda: seams.wall_clock_us() / 1e6)


async def _listen(addresses: Sequence[str], seams: Seams, wait_s: float) -> list[trio.abc.Listener[Any]]:
    return await with_descriptors(f"listening on {', '.join(addresses)}", lambda: seams.listen(addresses), wait_s)


async def _listen_http(config: BrokerConfig, seams: Seams) -> list[trio.abc.Listener[Any]]:
    """Listen for HTTP; without a configured address, go without it if another process has the default one."""
    try:
        return await _listen(config.http_addresses, seams, config.limits.start_descriptor_wait_s)
    except ConfigurationError as error:
        if config.http_listen is not None:
            raise AddressTakenError(error.message) from error
        _log.warning(
            "no HTTP API: port %d of this machine is taken, perhaps by another broker; choose one with --http-listen"
            " HOST:PORT, or none with --http-listen none",
            DEFAULT_HTTP_PORT,
            extra=log_event("http.port_taken"),
        )
        return []


async def _listen_registry(config: BrokerConfig, seams: Seams) -> list[trio.abc.Listener[Any]]:
    """Listen for the registry; without a configured address, go without it if another process has the default one."""
    try:
        return await _listen(config.registry_addresses, seams, config.limits.start_descriptor_wait_s)
    except ConfigurationError as error:
        if config.registry_listen is not None:
            raise AddressTakenError(error.message) from error
        _log.warning(
            "no REST interface of the schema registry: port %d of this machine is taken, perhaps by another broker;"
            " choose one with --registry-listen HOST:PORT, or none with --registry-listen none",
            DEFAULT_REGISTRY_PORT,
            extra=log_event("registry.port_taken"),
        )
        return []


def _check_exposure(listeners: Iterable[trio.abc.Listener[Any]], config: BrokerConfig) -> None:
    """Refuse addresses that other machines can reach, unless the configuration accepts the risk."""
    if config.security.enabled:
        exposed = [shown for host, shown in _bound(listeners) if not is_loopback(host)]
        if exposed and config.tls is None:
            _log.warning(
                "other machines can reach this broker at %s, but without [tls] it accepts no credentials of theirs",
                ", ".join(exposed),
                extra=log_event("security.no_credentials"),
            )
        return
    try:
        refuse_exposed(
            _bound(listeners),
            "security is off: all of them could read, write and delete everything",
            "set up security with `danube security init`",
        )
    except ExposedAddressError:
        if not config.insecure:
            raise
        _log.warning(
            "security is off, and other machines can reach this broker at %s: all of them may do everything (insecure)",
            ", ".join(map(shown_address, listeners)),
            extra=log_event("security.off_exposed"),
        )


def _bound(listeners: Iterable[trio.abc.Listener[Any]]) -> Iterator[tuple[str, str]]:
    """Yield the IP address and the whole address of each listener that is an internet socket."""
    for listener in listeners:
        bound = getattr(listener, "socket", None)
        if bound is not None and bound.family in (socket.AF_INET, socket.AF_INET6):
            yield bound.getsockname()[0], shown_address(listener)


def _protocol(connection: ServerConnection) -> str:
    if connection.lasting:
        return "link"
    if not connection.protocol.is_used:
        return "new"
    return "grpc" if connection.foreign else "native"


def _all_allowed(service: Service) -> Service:
    """With security off: the methods as they are."""
    return service
