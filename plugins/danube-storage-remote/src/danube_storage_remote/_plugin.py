"""The ``remote://`` plugin: URL and options."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from danube.model.errors import ConfigurationError
from danube.storage import StorageBackend, StoragePlugin, StorageSurroundings, validate_key
from danube.wire.tls import client_context
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
    cert_file: str = ""
    """PEM file of the client's own certificate, for a server that asks for one. Implies ``tls``."""
    key_file: str = ""
    """PEM file of its key, if it is not in the same file."""


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
        async with connect_remote(
            host,
            port,
            url=surroundings.url,
            limits=surroundings.limits,
            token=_token(config, surroundings.url),
            tls=_tls(config, surroundings.url),
        ) as connection:
            yield RemoteBackend(connection, space)


def _tls(config: RemoteConfig, url: str) -> Callable[[], ssl.SSLContext] | None:
    if not (config.tls or config.ca_file or config.cert_file):
        return None

    def load() -> ssl.SSLContext:
        return client_context(config.ca_file, config.cert_file, config.key_file)

    try:
        load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{url}: {error.message}") from error
    return load


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
