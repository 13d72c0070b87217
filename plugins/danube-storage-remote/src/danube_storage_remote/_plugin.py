"""The ``remote://`` plugin: URL and options."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import anyio
import anyio.abc
import msgspec

from danube.model.errors import ConfigurationError
from danube.storage import StorageBackend, StoragePlugin, StorageSurroundings, validate_key
from danube.wire import Connect
from danube_storage_remote._backend import RemoteBackend
from danube_storage_remote._connection import connect_remote

__all__ = ["RemoteConfig", "RemoteStoragePlugin"]

_DEFAULT_PORT = 6660


class RemoteConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``remote://host[:port]/space``."""

    token: str = ""
    """Token that the server requires."""
    token_file: str = ""
    """File with the token, which keeps it out of the configuration and the process list."""
    tls: bool = False
    """Encrypt the connection and check the server's certificate."""
    ca_file: str = ""
    """PEM file of the authorities that sign the server's certificate, instead of the system's. Implies ``tls``."""


class RemoteStoragePlugin(StoragePlugin[RemoteConfig]):
    """``remote://``: objects on a storage server."""

    name: ClassVar[str] = "remote"
    summary: ClassVar[str] = "a danube storage-server on another machine; as durable as its backend"
    config: ClassVar[type[RemoteConfig]] = RemoteConfig

    @asynccontextmanager
    async def open(self, config: RemoteConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Connect, query the server's description, and close the connection at the end."""
        try:
            parts = urlsplit(f"//{surroundings.location}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError(f"{surroundings.url}: {error}") from None
        if not host:
            raise ConfigurationError(f"{surroundings.url} names no server; write remote://host:port/space")
        if parts.username is not None:
            raise ConfigurationError(f"{surroundings.url}: a storage server has no users; use the option token_file")
        space = surroundings.path.strip("/")
        if space:
            validate_key(space)
        port = port if port is not None else _DEFAULT_PORT
        connect: Connect | None = None
        if config.tls or config.ca_file:
            connect = partial(_connect_tls, host, port, _tls(config, surroundings.url))
        async with connect_remote(
            host,
            port,
            url=surroundings.url,
            limits=surroundings.limits,
            token=_token(config, surroundings.url),
            connect=connect,
        ) as connection:
            yield RemoteBackend(connection, space)


async def _connect_tls(host: str, port: int, context: ssl.SSLContext) -> anyio.abc.ByteStream:
    try:
        return await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)
    except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
        raise OSError(f"the TLS handshake failed: {error.__cause__ or 'the server ended it'}") from error


def _tls(config: RemoteConfig, url: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
    except OSError as error:
        raise ConfigurationError(f"{url}: ca_file {config.ca_file!r} cannot be used: {error}") from error
    context.set_alpn_protocols(["h2"])
    return context


def _token(config: RemoteConfig, url: str) -> str:
    token, source = config.token, "token"
    if config.token_file:
        source = f"token_file {config.token_file!r}"
        try:
            token = Path(config.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{url}: {source} cannot be read: {error}") from error
    elif not token:
        return ""
    if not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise ConfigurationError(f"{url}: {source} must be one word of printable ASCII")
    return token
