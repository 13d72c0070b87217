"""Injectable dependencies of a broker: disk, network, other brokers, metadata, storage, clock, random numbers.

Each field is a function; the defaults are the real implementations. A simulation replaces all of them, a test some.
"""

from __future__ import annotations

import logging
import random
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import trio

from danube.broker.runtime.config import BrokerConfig, StorageConfig
from danube.broker.runtime.stage_disk import RealStageDisk, StageDisk
from danube.log import Disk, RealDisk, with_descriptors
from danube.metadata import Group, MetadataStore, Role, open_store, require_role
from danube.metadata.embedded import DIRECTORY
from danube.model.addresses import parse_address
from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors
from danube.model.errors import ConfigurationError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.peers.secret import read_secret
from danube.storage import StorageBackend, open_backend

if TYPE_CHECKING:
    from danube.metrics.process import ProcessFigures
    from danube.peers.links import Connect
    from danube.schema.examine import Examination, Finding

__all__ = ["Seams", "shown_address"]

_log = logging.getLogger("danube.broker")

_T = TypeVar("_T")


@asynccontextmanager
async def _entered(
    what: str, config: BrokerConfig, make: Callable[[], AbstractAsyncContextManager[_T]]
) -> AsyncIterator[_T]:
    """Enter a new context manager; while no file descriptor is left for that, wait, and enter another one."""
    async with AsyncExitStack() as stack:
        yield await with_descriptors(
            what, lambda: stack.enter_async_context(make()), config.limits.start_descriptor_wait_s
        )


def _revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a plugin, with secrets as plain texts."""
    if not options:
        return {}
    from danube.model.secret import revealed  # most brokers have no options

    return revealed(options)


def _open_disk(config: BrokerConfig) -> AbstractAsyncContextManager[Disk]:
    delay_s = config.sync_delay_ms / 1000
    return _entered("the journal", config, lambda: RealDisk(config.data_directory, sync_delay_s=delay_s))


@asynccontextmanager
async def _open_stage_disk(config: BrokerConfig) -> AsyncIterator[StageDisk]:
    yield RealStageDisk(Path(config.data_directory) / "stages", sync_delay_s=config.sync_delay_ms / 1000)


@asynccontextmanager
async def _open_metadata(config: BrokerConfig, group: Group | None) -> AsyncIterator[MetadataStore]:
    engine = config.metadata_engine
    async with _entered(
        "the metadata",
        config,
        lambda: open_store(
            engine.url,
            data_directory=Path(config.data_directory),
            options=_revealed(engine.options),
            group=group,
            limits=config.limits,
        ),
    ) as store:
        role = Role.CLUSTER if config.has_neighbours else Role.ALONE
        require_role(role, config.metadata_scheme, store.capabilities)
        yield store


async def _holds_metadata(config: BrokerConfig) -> bool:
    return await trio.Path(config.data_directory, DIRECTORY).exists()


def _open_backend(
    config: BrokerConfig, storage: StorageConfig, wall_clock_us: Callable[[], int]
) -> AbstractAsyncContextManager[StorageBackend]:
    return _entered(
        f"storage {storage.url}",
        config,
        lambda: open_backend(
            storage.url,
            data_directory=Path(config.data_directory),
            options=_revealed(storage.options),
            limits=config.limits,
            wall_clock_us=wall_clock_us,
        ),
    )


async def _listen(addresses: Sequence[str]) -> list[trio.abc.Listener[Any]]:
    listeners: list[trio.abc.Listener[Any]] = []
    for address in addresses:
        host, port = parse_address(address)
        try:
            listeners += await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            for listener in listeners:
                await listener.aclose()
            if is_out_of_descriptors(error):
                raise out_of_descriptors(f"listening on {address}", error) from error
            raise ConfigurationError(
                f"cannot listen on {address}: {error.strerror or error}; is another broker running there?"
                " Choose another address with --listen, or with --admin-listen, --http-listen or"
                " --registry-listen, which may be none"
            ) from error
    return listeners


async def _own_addresses(host: str) -> Collection[str]:
    try:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _log.warning(
            "the host %r of --peers does not resolve: %s",
            host,
            error,
            extra=log_event("cluster.host_unresolved", host=host),
        )
        return ()
    return {str(address[0]) for family, *_, address in found if _is_own(family, address)}


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    """Whether an address is one of this machine: only then it can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address[0], 0, *address[2:]))
        except OSError as error:
            if is_out_of_descriptors(error):
                raise
            return False
        return True


async def _fetch(url: str, ca: str, max_bytes: int) -> bytes:
    from danube.broker.runtime.fetching import fetch  # not imported without OIDC issuers

    return await fetch(url, ca, max_bytes)


def _read_process() -> ProcessFigures | None:
    from danube.broker.runtime.process_files import read_process  # not imported before metrics are asked for

    return read_process()


PayloadCheckCall = Callable[[bytes, int, Collection[int], bool, Callable[[int], Any]], Awaitable[None]]
"""Checks the payloads of a batch: :data:`danube.broker.schemas.payloads.Check`."""


def _examine_here(_start: object, limits: Limits) -> Callable[[Examination], Awaitable[Finding]]:
    from danube.checker.compiling import compile_proto  # most brokers have no schemas
    from danube.schema.examine import examine
    from danube.schema.limits import limits_of

    async def examined(examination: Examination) -> Finding:
        await trio.lowlevel.checkpoint()
        return examine(examination, limits_of(limits), compile_proto)

    return examined


def _check_payloads_here(_start: object, _limits: Limits) -> PayloadCheckCall:
    from danube.checker.compiling import compile_proto  # most brokers have no schemas
    from danube.schema.payloads import PayloadCheck, PayloadChecks

    checks = PayloadChecks(compile_proto)

    async def checked(
        part: bytes, max_unpacked_bytes: int, numbers: Collection[int], is_framed: bool, source_of: Callable[[int], Any]
    ) -> None:
        await trio.lowlevel.checkpoint()
        new = tuple((number, source_of(number)) for number in sorted(numbers))
        checks.check(PayloadCheck(part, max_unpacked_bytes, is_framed, new, forgets=True))

    return checked


class InThread(Protocol):
    """Runs what blocks outside the event loop."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Return what ``work`` returns."""


async def _in_thread(work: Callable[[], _T], /) -> _T:
    return await trio.to_thread.run_sync(work)


class Seams(NamedTuple):
    """Injectable dependencies of a broker; see the module."""

    wall_clock_us: Callable[[], int]
    """Microseconds since the epoch, for timestamps; delays use Trio's clock."""
    random: random.Random
    """The only source of randomness."""
    open_disk: Callable[[BrokerConfig], AbstractAsyncContextManager[Disk]] = _open_disk
    """The disk of the journal."""
    open_metadata: Callable[[BrokerConfig, Group | None], AbstractAsyncContextManager[MetadataStore]] = _open_metadata
    """Opens the metadata; the group is this broker's place among those that keep them, None if no broker does."""
    holds_metadata: Callable[[BrokerConfig], Awaitable[bool]] = _holds_metadata
    """Whether the data directory holds metadata of the embedded engine."""
    has_groups: bool = True
    """Whether brokers keep the metadata together, if their engine is one for that."""
    open_backend: Callable[
        [BrokerConfig, StorageConfig, Callable[[], int]], AbstractAsyncContextManager[StorageBackend]
    ] = _open_backend
    """The backend of one storage. The broker wraps it with retries and statistics."""
    listen: Callable[[Sequence[str]], Awaitable[list[trio.abc.Listener[Any]]]] = _listen
    """Listens on addresses (``host:port``); raises ConfigurationError for an address that cannot be bound, and
    OutOfDescriptorsError if no file descriptor is left."""
    open_stage_disk: Callable[[BrokerConfig], AbstractAsyncContextManager[StageDisk]] = _open_stage_disk
    """The disk of staged files; opened after the journal's disk, which locks the data directory."""
    connect: Connect | None = None
    """Connects to the host and port of another broker; None: by TCP."""
    own_addresses: Callable[[str], Awaitable[Collection[str]]] = _own_addresses
    """Returns the addresses of this machine among those to which a host resolves; none if it does not resolve."""
    read_secret: Callable[[Path], bytes] = read_secret
    """Reads the file of the cluster's secret; raises ClusterConfigurationError."""
    fetch: Callable[[str, str, int], Awaitable[bytes]] = _fetch
    """Returns the document at a URL, such as the keys of an OIDC issuer; see
    :func:`danube.broker.runtime.fetching.fetch`."""
    read_process: Callable[[], ProcessFigures | None] = _read_process
    """Returns figures of the process, for metrics; None if they are not known."""
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Returns so many unpredictable bytes, for the proofs between brokers."""
    checker: Callable[[Callable[..., object], Limits], Callable[[Examination], Awaitable[Finding]]] = _examine_here
    """Makes what parses and compares schemas, from a function that starts a task of the broker, and its limits. The
    default works within this process, for trusted schemas; a broker that serves strangers has a process for it."""
    payload_checker: Callable[[Callable[..., object], Limits], PayloadCheckCall] = _check_payloads_here
    """Makes what checks the payloads of batches, likewise; see :data:`danube.broker.schemas.payloads.Check`."""
    in_thread: InThread = _in_thread
    """Runs what blocks and belongs to no other seam: imports, checks of this machine."""
    process_usage: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
    """Returns the resident memory of the process in bytes and the processor time that it has used, in seconds; 0 of
    both, where a broker is not alone in its process."""


def shown_address(listener: trio.abc.Listener[Any]) -> str:
    """Return the ``host:port`` of a listener, for people and for scripts that asked for port 0."""
    socket = getattr(listener, "socket", None)
    if socket is None:
        return str(listener)
    host, port = socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
