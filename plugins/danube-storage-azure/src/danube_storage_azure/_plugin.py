"""The ``azure://`` plugin: options, and creation of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import adlfs
import fsspec.asyn
import msgspec
import trio

from danube.model.errors import ConfigurationError
from danube.model.limits import GIB
from danube.storage import StorageBackend, StorageCapabilities, StoragePlugin, StorageSurroundings
from danube.storage.fsspec import call_asyncio
from danube_storage_azure._backend import AzureBackend

__all__ = ["AzureConfig", "AzureStoragePlugin"]

_MAX_OBJECT_BYTES = 5 * GIB
"""Largest object. The service accepts larger ones, but objects are held in memory as a whole."""
_CLOSE_S = 5.0


class AzureConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``azure://container/prefix`` (or ``az://``, ``abfs://``).

    Options that are not set are taken from the environment (``AZURE_STORAGE_ACCOUNT_NAME`` and so on).
    """

    connection_string: str = ""
    """Account, credentials and address in one string, as shown by the portal; overrides the other options."""
    account_name: str = ""
    """Storage account."""
    account_host: str = ""
    """Host of the account's Blob service, where it does not end with ``.blob.core.windows.net``."""
    account_key: str = ""
    """Key of the account."""
    sas_token: str = ""
    """Shared access signature."""
    tenant_id: str = ""
    """Directory of a service principal."""
    client_id: str = ""
    """Service principal."""
    client_secret: str = ""
    """Secret of the service principal."""
    anon: bool = False
    """Send unsigned requests; for public containers."""
    checksum: bool = True
    """Send an MD5 with each put, which the server checks."""
    max_concurrency: int = 8
    """Maximum number of concurrent ranges, blocks or deletions of one call."""
    connect_timeout_s: float = 5.0
    """Timeout for opening a connection, in seconds."""
    read_timeout_s: float = 20.0
    """Timeout for a server that sends nothing in response to a request, in seconds."""


class AzureStoragePlugin(StoragePlugin[AzureConfig]):
    """``azure://container/prefix``: Azure Blob Storage."""

    name: ClassVar[str] = "azure"
    summary: ClassVar[str] = "Azure Blob Storage; az:// and abfs:// are the same"
    config: ClassVar[type[AzureConfig]] = AzureConfig

    @asynccontextmanager
    async def open(self, config: AzureConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Create a client. Whether the container exists is only known after the first call."""
        _check(config, surroundings)
        loop = fsspec.asyn.get_loop()
        fs = await _connect(config, surroundings.url)
        try:
            yield AzureBackend(
                fs,
                loop,
                surroundings.location,
                surroundings.path.strip("/"),
                url=surroundings.url,
                capabilities=StorageCapabilities(
                    durable=True, conditional_put=True, shared=True, max_object_bytes=_MAX_OBJECT_BYTES
                ),
                concurrency=config.max_concurrency,
                each_request={
                    "retry_total": 0,
                    "connection_timeout": config.connect_timeout_s,
                    "read_timeout": config.read_timeout_s,
                },
                checksum=config.checksum,
            )
        finally:
            with trio.CancelScope(deadline=trio.current_time() + _CLOSE_S, shield=True):
                await call_asyncio(loop, _close, fs)


def _check(config: AzureConfig, surroundings: StorageSurroundings) -> None:
    url = surroundings.url
    if not surroundings.location:
        raise ConfigurationError(f"{url} names no container; write az://container/prefix")
    if "@" in surroundings.location:
        raise ConfigurationError(f"{url}: write az://container/prefix, and the account as the option account_name")
    if config.max_concurrency < 1:
        raise ConfigurationError(f"{url}: max_concurrency must be at least 1")
    if config.connect_timeout_s <= 0 or config.read_timeout_s <= 0:
        raise ConfigurationError(f"{url}: connect_timeout_s and read_timeout_s must be more than 0")
    principal = (config.tenant_id, config.client_id, config.client_secret)
    if any(principal) and not all(principal):
        raise ConfigurationError(f"{url}: tenant_id, client_id and client_secret belong together; one is missing")


async def _connect(config: AzureConfig, url: str) -> Any:
    names = (
        "connection_string",
        "account_name",
        "account_host",
        "account_key",
        "sas_token",
        "tenant_id",
        "client_id",
        "client_secret",
    )
    make = partial(
        adlfs.AzureBlobFileSystem,
        **{name: getattr(config, name) or None for name in names},
        anon=config.anon or None,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    try:
        # In a thread: the credentials of a machine are searched in files and processes.
        return await trio.to_thread.run_sync(make, abandon_on_cancel=True)
    except ValueError:
        # The message may contain a secret.
        raise ConfigurationError(
            f"{url}: these options do not define a client: give connection_string, or account_name and credentials"
        ) from None


async def _close(fs: Any) -> None:
    await fs.service_client.close()
    if hasattr(fs.credential, "close"):
        await fs.credential.close()
