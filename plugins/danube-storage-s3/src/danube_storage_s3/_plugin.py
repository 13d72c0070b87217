"""The ``s3://`` plugin: options, and creation of an s3fs client without retries and caches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, ClassVar

import fsspec.asyn
import s3fs
import trio
from aiobotocore.session import AioSession

from danube.model.limits import GIB
from danube.storage import StorageBackend, StorageCapabilities, StoragePlugin, StorageSurroundings
from danube.storage.fsspec import call_asyncio
from danube_storage_s3._backend import S3Backend
from danube_storage_s3._options import S3Config, place_of, signs_payload

__all__ = ["S3StoragePlugin"]

_MAX_OBJECT_BYTES = 5 * GIB
"""Largest object. S3 accepts larger ones in parts, but objects are held in memory as a whole."""
_POOL = 64
"""Connections of one storage: more than its concurrent calls, and parts or ranges of each call."""
_CLOSE_S = 5.0


class S3StoragePlugin(StoragePlugin[S3Config]):
    """``s3://bucket/prefix``: AWS S3 and services that speak its protocol."""

    name: ClassVar[str] = "s3"
    summary: ClassVar[str] = "AWS S3, and services that speak its protocol"
    config: ClassVar[type[S3Config]] = S3Config

    @asynccontextmanager
    async def open(self, config: S3Config, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Create a client. Whether the server is available is only known after the first call."""
        place = place_of(config, surroundings)
        loop = fsspec.asyn.get_loop()
        fs = s3fs.S3FileSystem(
            anon=config.anon,
            key=config.key or None,
            secret=config.secret or None,
            token=config.token or None,
            session=_session(config.profile),
            endpoint_url=config.endpoint_url or None,
            client_kwargs={
                name: value for name, value in (("region_name", config.region), ("verify", config.ca_file)) if value
            },
            config_kwargs={
                "connect_timeout": config.connect_timeout_s,
                "read_timeout": config.read_timeout_s,
                "retries": {"total_max_attempts": 1, "mode": "standard"},
                "max_pool_connections": _POOL,
                "s3": {
                    "addressing_style": config.addressing_style,
                    "payload_signing_enabled": signs_payload(config),
                },
                # Danube sends its own checksums; compatible services often refuse those of the client.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            },
            # Asynchronous: it neither starts a loop nor closes itself.
            asynchronous=True,
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        try:
            yield S3Backend(
                fs,
                loop,
                place,
                config,
                url=surroundings.url,
                capabilities=StorageCapabilities(
                    durable=True, conditional_put=True, shared=True, max_object_bytes=_MAX_OBJECT_BYTES
                ),
                wall_clock_us=surroundings.wall_clock_us,
            )
        finally:
            with trio.CancelScope(deadline=trio.current_time() + _CLOSE_S, shield=True):
                await call_asyncio(loop, _close, fs)


def _session(profile: str) -> AioSession:
    """Return a separate session, which shares the data read from the library's files: a large description of S3."""
    session = AioSession(profile=profile or None)
    session.register_component("data_loader", _library_files())
    return session


@cache
def _library_files() -> Any:
    return AioSession().get_component("data_loader")


async def _close(fs: s3fs.S3FileSystem) -> None:
    if fs._s3 is not None:
        await fs._s3creator.__aexit__(None, None, None)
