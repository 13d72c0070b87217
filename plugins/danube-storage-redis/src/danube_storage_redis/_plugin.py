"""The ``redis://`` and ``rediss://`` plugin: URL, options, and a check of the server's guarantees."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import msgspec

from danube.model.errors import ConfigurationError, StorageDeniedError, StorageError
from danube.model.limits import MIB
from danube.storage import StorageBackend, StorageCapabilities, StoragePlugin, StorageSurroundings
from danube_storage_redis._backend import RedisBackend
from danube_storage_redis._client import RedisClient, ServerAddress

__all__ = ["RedisConfig", "RedisStoragePlugin"]

_DEFAULT_PORT = 6379
_MAX_VALUE_BYTES = 512 * MIB
"""Maximum size of a string in Redis."""


class RedisConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``redis://[user:password@]host[:port]/prefix``."""

    db: int = 0
    """Number of the database. Redis Cluster has only 0."""
    username: str = ""
    """User of the server's ACL; the URL's user information takes precedence."""
    password: str = ""
    """Password; the URL's user information takes precedence."""
    tls: bool = False
    """Encrypt the connection and check the server's certificate; ``rediss://`` does so too."""
    ca_file: str = ""
    """PEM file of the authorities that sign the server's certificate, instead of the system's."""
    durable: bool | None = None
    """Whether an acknowledged put survives a power loss. Not set: query the server (CONFIG GET); a server that refuses
    that counts as not durable. Set it for servers without CONFIG that are known to sync before they answer."""
    connections: int = 16
    """Maximum number of connections to the server."""


class RedisStoragePlugin(StoragePlugin[RedisConfig]):
    """``redis://``: objects in a Redis or Valkey server."""

    name: ClassVar[str] = "redis"
    summary: ClassVar[str] = "a Redis or Valkey server; durable with appendonly and appendfsync always"
    config: ClassVar[type[RedisConfig]] = RedisConfig

    @asynccontextmanager
    async def open(self, config: RedisConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Connect, log in, query the server's configuration, and close the connections at the end."""
        prefix = surroundings.path.strip("/")
        if "{" in prefix or "}" in prefix:
            raise ConfigurationError(f"{surroundings.url}: the prefix {prefix!r} must not contain braces")
        if config.connections < 1 or config.db < 0:
            raise ConfigurationError(f"{surroundings.url}: connections must be at least 1 and db at least 0")
        client = RedisClient(_address(config, surroundings), config.connections)
        try:
            durable, max_object_bytes = await _ask(client)
            capabilities = StorageCapabilities(
                durable=durable if config.durable is None else config.durable,
                conditional_put=True,
                shared=True,
                max_object_bytes=max_object_bytes,
            )
            yield RedisBackend(client, surroundings.url, prefix, capabilities)
        finally:
            await client.close()


def _address(config: RedisConfig, surroundings: StorageSurroundings) -> ServerAddress:
    try:
        parts = urlsplit(f"//{surroundings.location}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"{surroundings.url}: {error}") from None
    if not host:
        raise ConfigurationError(f"{surroundings.url} names no server; write redis://host:port/prefix")
    tls = None
    if config.tls or surroundings.scheme == "rediss":
        try:
            tls = ssl.create_default_context(cafile=config.ca_file or None)
        except OSError as error:
            raise ConfigurationError(
                f"{surroundings.url}: ca_file {config.ca_file!r} cannot be used: {error}"
            ) from error
    return ServerAddress(
        host,
        port if port is not None else _DEFAULT_PORT,
        url=surroundings.url,
        username=unquote(parts.username or "") or config.username,
        password=unquote(parts.password or "") or config.password,
        database=config.db,
        tls=tls,
    )


async def _ask(client: RedisClient) -> tuple[bool, int]:
    """Return whether the server syncs each write before it answers and evicts nothing, and its largest value."""
    await client.call("open", "", [("PING",)])
    settings = {}
    try:
        for name in (
            "appendonly",
            "appendfsync",
            "no-appendfsync-on-rewrite",
            "maxmemory-policy",
            "proto-max-bulk-len",
        ):
            (pair,) = await client.call("open", "", [("CONFIG", "GET", name)])
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], bytes):
                settings[name] = pair[1].decode("ascii", "replace")
    except StorageDeniedError:
        return False, _MAX_VALUE_BYTES
    except StorageError as error:
        if error.retryable:
            raise
        # Hosted servers often have no CONFIG at all.
        return False, _MAX_VALUE_BYTES
    durable = (
        settings.get("appendonly") == "yes"
        and settings.get("appendfsync") == "always"
        and settings.get("no-appendfsync-on-rewrite") == "no"
        and not settings.get("maxmemory-policy", "").startswith("allkeys-")
    )
    limit = settings.get("proto-max-bulk-len", "")
    return durable, min(_MAX_VALUE_BYTES, int(limit)) if limit.isdecimal() else _MAX_VALUE_BYTES
