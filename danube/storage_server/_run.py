"""The process of a storage server: opens the backend, listens, prints the ready line, drains on a signal."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from danube.model.errors import ConfigurationError
from danube.model.limits import Limits
from danube.model.version import __version__
from danube.storage import StorageBackend, open_backend
from danube.storage_server._service import StorageService
from danube.wire import Server, serve

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
    tls_certificate: Path | None = None
    """PEM file of the certificate chain; None serves without TLS."""
    tls_key: Path | None = None
    """PEM file of its key; None if it is in the certificate's file."""
    limits: Limits = Limits()


def run_storage_server(config: StorageServerConfig, *, log_level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT, then drain. Blocks; main thread only. A second signal ends the process at once.

    Raises:
        ConfigurationError: the URL, an address or the certificate is invalid.
        StorageError: the backend cannot be opened.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    trio.run(_main, config)


async def _main(config: StorageServerConfig) -> None:
    async with open_backend(config.url, limits=config.limits) as backend, _listening(config) as listeners:
        service = StorageService(backend, config.limits, config.token)
        exposed = [one for one in map(_bound, listeners) if not ipaddress.ip_address(one[0]).is_loopback]
        if exposed and config.token is None:
            _log.warning("no token is required: every client of %s can read and delete all objects", _shown(exposed[0]))
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                server: Server = await nursery.start(serve, listeners, [service.service()], config.limits)
                print(_ready_line(backend, listeners), flush=True)  # noqa: T201 - scripts wait for this line
                nursery.start_soon(_drain_on_signal, signals, server, nursery.cancel_scope)


def _ready_line(backend: StorageBackend, listeners: Sequence[trio.abc.Listener[Any]]) -> str:
    trusted = backend.capabilities
    promises = ["durable" if trusted.durable else "not durable"]
    if not trusted.conditional_put:
        promises.append("without if_absent")
    addresses = ", ".join(_shown(_bound(one)) for one in listeners)
    return (
        f"danube {__version__} storage server ready: listening on {addresses};"
        f" serving {backend.url} ({', '.join(promises)}); pid {os.getpid()}"
    )


def _bound(listener: trio.abc.Listener[Any]) -> tuple[str, int]:
    inner = listener.transport_listener if isinstance(listener, trio.SSLListener) else listener
    assert isinstance(inner, trio.SocketListener)
    host, port = inner.socket.getsockname()[:2]
    return host, port


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def _listening(config: StorageServerConfig) -> AsyncIterator[list[trio.abc.Listener[Any]]]:
    context = _tls(config)
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
            listeners += opened if context is None else [trio.SSLListener(one, context) for one in opened]
        yield listeners
    finally:
        with trio.CancelScope(shield=True):
            for one in listeners:
                await one.aclose()


def _tls(config: StorageServerConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except OSError as error:
        raise ConfigurationError(f"the certificate {config.tls_certificate} cannot be used: {error}") from error
    return context


async def _drain_on_signal(signals: Any, server: Server, everything: trio.CancelScope) -> None:
    async with trio.open_nursery() as nursery:
        async for number in signals:
            if server.draining.is_set():
                _log.warning("second signal %s: exiting at once", signal.Signals(number).name)
                os._exit(128 + number)
            _log.info("%s: draining", signal.Signals(number).name)
            nursery.start_soon(_drain, server, everything)


async def _drain(server: Server, everything: trio.CancelScope) -> None:
    await server.drain(DRAIN_S)
    everything.cancel()
