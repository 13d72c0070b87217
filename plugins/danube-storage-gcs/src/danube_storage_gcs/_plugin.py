"""The ``gcs://`` plugin: options, and creation of the client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import aiohttp
import fsspec.asyn
import google.auth.exceptions
import google.oauth2.credentials
import msgspec
import trio

from danube.model.errors import ConfigurationError, StorageUnavailableError
from danube.model.limits import GIB
from danube.storage import StorageBackend, StorageCapabilities, StoragePlugin, StorageSurroundings
from danube.storage.fsspec import call_asyncio
from danube_storage_gcs._backend import GcsBackend
from danube_storage_gcs._client import GcsClient

__all__ = ["GcsConfig", "GcsStoragePlugin"]

_MAX_OBJECT_BYTES = 5 * GIB
"""Largest object. The service accepts larger ones, but objects are held in memory as a whole."""
_SOURCES = ("google_default", "cloud", "cache", "anon")
_CLOSE_S = 5.0


class GcsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``gcs://bucket/prefix`` (or ``gs://``)."""

    token: str = ""
    """Source of credentials: ``google_default``, ``cloud`` (the machine's account), ``cache``, ``anon``, the path of a
    key file, or an access token. Not set: the first of Google's default sources that has credentials."""
    project: str = ""
    """Project that is billed if ``requester_pays``; not set: that of the credentials."""
    requester_pays: bool = False
    """The caller's project pays for the requests, not the bucket's."""
    kms_key_name: str = ""
    """Key of the key service to encrypt objects with; not set: the bucket's default."""
    endpoint_url: str = ""
    """Address of another server than Google's, an emulator: ``http://host:port``."""
    max_concurrency: int = 8
    """Maximum number of concurrent ranges, or deletions, of one call."""
    connect_timeout_s: float = 5.0
    """Timeout for opening a connection, in seconds."""
    read_timeout_s: float = 20.0
    """Timeout for a server that sends nothing in response to a request, in seconds."""


class GcsStoragePlugin(StoragePlugin[GcsConfig]):
    """``gcs://bucket/prefix``: Google Cloud Storage."""

    name: ClassVar[str] = "gcs"
    summary: ClassVar[str] = "Google Cloud Storage; gs:// is the same"
    config: ClassVar[type[GcsConfig]] = GcsConfig

    @asynccontextmanager
    async def open(self, config: GcsConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Find the credentials. Whether the bucket exists is only known after the first call."""
        url = surroundings.url
        if not surroundings.location or "@" in surroundings.location:
            raise ConfigurationError(f"{url} names no bucket; write gs://bucket/prefix")
        if config.max_concurrency < 1:
            raise ConfigurationError(f"{url}: max_concurrency must be at least 1")
        if config.connect_timeout_s <= 0 or config.read_timeout_s <= 0:
            raise ConfigurationError(f"{url}: connect_timeout_s and read_timeout_s must be more than 0")
        client = await _connect(config, url)
        loop = fsspec.asyn.get_loop()
        try:
            yield GcsBackend(
                client,
                loop,
                surroundings.location,
                surroundings.path.strip("/"),
                url=url,
                capabilities=StorageCapabilities(
                    durable=True, conditional_put=True, shared=True, max_object_bytes=_MAX_OBJECT_BYTES
                ),
                concurrency=config.max_concurrency,
                kms_key_name=config.kms_key_name,
            )
        finally:
            with trio.CancelScope(deadline=trio.current_time() + _CLOSE_S, shield=True):
                await call_asyncio(loop, client.close)


def _credentials(token: str) -> str | google.oauth2.credentials.Credentials | None:
    """Return the credentials for gcsfs. A token is wrapped, because gcsfs would first query its lifetime."""
    if not token or token in _SOURCES or os.path.exists(token) or "/" in token:
        return token or None
    return google.oauth2.credentials.Credentials(token)  # type: ignore[no-untyped-call] # it has types only in part


async def _connect(config: GcsConfig, url: str) -> GcsClient:
    options: dict[str, Any] = {"project": config.project} if config.project else {}
    make = partial(
        GcsClient,
        token=_credentials(config.token),
        requester_pays=config.requester_pays,
        endpoint_url=config.endpoint_url.rstrip("/") or None,
        requests_timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_timeout_s, sock_read=config.read_timeout_s
        ),
        asynchronous=True,
        skip_instance_cache=True,
        use_listings_cache=False,
        **options,
    )
    try:
        # In a thread: the search for credentials reads files and may query the machine's metadata server.
        client: GcsClient = await trio.to_thread.run_sync(make, abandon_on_cancel=True)
    except google.auth.exceptions.TransportError as error:
        raise StorageUnavailableError(f"{url}: open: the credentials server does not answer") from error
    except (google.auth.exceptions.GoogleAuthError, ValueError, TypeError, LookupError, OSError):
        # The message may contain the token.
        raise ConfigurationError(
            f"{url}: the option token gives no credentials: the path cannot be read, or the file is not a key file"
        ) from None
    return client
