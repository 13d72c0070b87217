"""The process of a storage server: opens the backend, listens, prints the ready line, drains on a signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from danube.model.addresses import refuse_exposed
from danube.model.errors import ConfigurationError, ExposedAddressError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.model.tls import TlsConfig
from danube.model.version import __version__
from danube.storage import StorageBackend, open_backend
from danube.storage_server._admission import Admission
from danube.storage_server._service import StorageService
from danube.wire import Server, serve

if TYPE_CHECKING:
    from danube.wire.tls import ServerTls

__all__ = ["StorageServerConfig", "run_storage_server"]

DRAIN_S = 10.0
"""How long running calls may take to end after the first signal."""

_log = logging.getLogger("danube.storage_server")


class StorageServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a storage server: backend, addresses, access."""

    url: str
    """URL of the storage backend."""
    listen: Sequence[tuple[str, int]]
    """Hosts and ports; port 0 takes a free one."""
    token: str | None = None
    """Token that callers must present; None accepts every caller."""
    tls: TlsConfig | None = None
    """Certificate and rules of TLS; None serves without TLS."""
    clients: Sequence[str] = ()
    """Names of which a client's certificate must have one; without any, each of the authority ``client_ca`` counts."""
    insecure: bool = False
    """Whether it may listen on addresses that other machines can reach, although callers need no proof, or it has no
    TLS."""
    limits: Limits = Limits()


def run_storage_server(config: StorageServerConfig, *, log_level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT, then drain. Blocks; main thread only. A second signal ends the process at once.

    Raises:
        ConfigurationError: the URL, an address, the certificate or a name of a client is invalid.
        ExposedAddressError: other machines can reach an address, and callers need no proof, or there is no TLS; see
            ``insecure``.
        StorageError: the backend cannot be opened.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    _admission(config)  # before anything is opened
    tls = None
    if config.tls is not None:
        from danube.wire.tls import ServerTls

        tls = ServerTls(config.tls, time.time)
    trio.run(_main, config, tls)


async def _main(config: StorageServerConfig, tls: ServerTls | None) -> None:
    async with open_backend(config.url, limits=config.limits) as backend, _listening(config) as listeners:
        service = StorageService(backend, config.limits, _admission(config))
        _check_exposure(listeners, config)
        reloading = [signal.SIGHUP] if tls is not None else []  # without TLS it ends the process, as always
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *reloading) as signals:
            async with trio.open_nursery() as nursery:
                start = partial(serve, tls=tls)
                server: Server = await nursery.start(start, listeners, [service.service()], config.limits)
                if tls is not None:
                    nursery.start_soon(tls.watch)
                print(_ready_line(backend, listeners, config), flush=True)  # noqa: T201 - scripts wait for this line
                nursery.start_soon(_heed, signals, server, tls, nursery.cancel_scope)


def _admission(config: StorageServerConfig) -> Admission:
    return Admission(config.token, config.tls.client_auth if config.tls is not None else "none", config.clients)


def _check_exposure(listeners: Sequence[trio.abc.Listener[Any]], config: StorageServerConfig) -> None:
    """Refuse addresses that other machines can reach, unless callers prove themselves, or the risk is accepted."""
    proven = _admission(config).requires_proof
    if proven and config.tls is not None:
        return
    bound = [_bound(listener) for listener in listeners]
    if not proven:
        risk = "no token is required: all of them could read and delete all objects"
    else:
        risk = "there is no TLS: the token is sent unencrypted"
    try:
        refuse_exposed([(each[0], _shown(each)) for each in bound], risk, "give it --token-file and --tls-cert")
    except ExposedAddressError:
        if not config.insecure:
            raise
        _log.warning(
            "other machines can reach this storage server at %s, and %s (insecure)",
            ", ".join(map(_shown, bound)),
            risk,
            extra=log_event("storage_server.exposed"),
        )


def _ready_line(
    backend: StorageBackend, listeners: Sequence[trio.abc.Listener[Any]], config: StorageServerConfig
) -> str:
    trusted = backend.capabilities
    promises = ["durable" if trusted.durable else "not durable"]
    if not trusted.conditional_put:
        promises.append("without if_absent")
    addresses = ", ".join(_shown(_bound(one)) for one in listeners) + ("" if config.tls is None else " (TLS)")
    return (
        f"danube {__version__} storage server ready: listening on {addresses};"
        f" serving {backend.url} ({', '.join(promises)}); pid {os.getpid()}"
    )


def _bound(listener: trio.abc.Listener[Any]) -> tuple[str, int]:
    assert isinstance(listener, trio.SocketListener)
    host, port = listener.socket.getsockname()[:2]
    return host, port


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def _listening(config: StorageServerConfig) -> AsyncIterator[list[trio.abc.Listener[Any]]]:
    listeners: list[trio.abc.Listener[Any]] = []
    try:
        for host, port in config.listen:
            try:
                opened = await trio.open_tcp_listeners(port, host=host)
            except OSError as error:
                raise ConfigurationError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; is another server running there?"
                    " Choose another address with --listen"
                ) from error
            listeners += opened
        yield listeners
    finally:
        with trio.CancelScope(shield=True):
            for one in listeners:
                await one.aclose()


async def _heed(signals: Any, server: Server, tls: ServerTls | None, everything: trio.CancelScope) -> None:
    """First signal: drain. Second: exit at once. SIGHUP, with TLS only, reads the certificates again."""
    async with trio.open_nursery() as nursery:
        async for number in signals:
            if number == signal.SIGHUP:
                if tls is not None:
                    await tls.reload_in_thread(force=True)
                continue
            if server.draining.is_set():
                _log.warning(
                    "second signal %s: exiting at once",
                    signal.Signals(number).name,
                    extra=log_event("storage_server.killed"),
                )
                os._exit(128 + number)
            _log.info("%s: draining", signal.Signals(number).name)
            nursery.start_soon(_drain, server, everything)


async def _drain(server: Server, everything: trio.CancelScope) -> None:
    await server.drain(DRAIN_S)
    everything.cancel()
