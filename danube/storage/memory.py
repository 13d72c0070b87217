"""The ``memory://`` backend: objects in process memory, for tests, simulations, and brokers without durability.

``memory://`` is a separate space, gone when it is closed. ``memory://NAME`` is the space of that name in a
:class:`MemorySpaces` registry: all users in the same process see the same objects, as two brokers see one
bucket.

A change is made between two checkpoints of the event loop, after the injected latency: a cancelled call has no
effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import trio

from danube.model.errors import (
    ConfigurationError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
)
from danube.model.limits import GIB
from danube.storage._contract import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.storage._memory_space import MemorySpace, MemorySpaces
from danube.storage._plugins import StoragePlugin, StorageSurroundings, WallClock, system_wall_clock_us

__all__ = ["SHARED_SPACES", "MemoryBackend", "MemoryConfig", "MemorySpace", "MemorySpaces", "MemoryStoragePlugin"]


SHARED_SPACES = MemorySpaces()
"""The registry behind ``memory://NAME`` URLs. Lives as long as the process."""


class MemoryBackend(StorageBackend):
    """A backend over a :class:`MemorySpace`.

    Each call first sleeps for ``latency_s``. ``durable`` is the declared capability, for tests of a broker that
    requires a durable storage: the space survives a simulated broker. So is ``shared``: several brokers have it.
    """

    def __init__(
        self,
        space: MemorySpace | None = None,
        *,
        url: str = "memory://",
        durable: bool = False,
        shared: bool = False,
        latency_s: float = 0.0,
        max_object_bytes: int = 1 * GIB,
        wall_clock_us: WallClock = system_wall_clock_us,
    ) -> None:
        self.space = space if space is not None else MemorySpace()
        self.latency_s = latency_s
        self._url = url
        self._wall_clock_us = wall_clock_us
        self._capabilities = StorageCapabilities(
            durable=durable, conditional_put=True, shared=shared, max_object_bytes=max_object_bytes
        )

    @property
    def url(self) -> str:
        """``memory://NAME``."""
        return self._url

    @property
    def capabilities(self) -> StorageCapabilities:
        """Durable, and shared with other brokers, if declared so."""
        return self._capabilities

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object."""
        await trio.sleep(self.latency_s)
        if if_absent and key in self.space.objects:
            raise StorageExistsError(f"{self._url}: put {key}: the object already exists")
        self.space.store(key, bytes(data), self._wall_clock_us())

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of an object."""
        if start == end:
            return b""
        await trio.sleep(self.latency_s)
        data, _ = self._find("get", key)
        if start > len(data) or (end is not None and end > len(data)):
            raise StorageRangeError(f"{self._url}: get {key}: [{start}, {end}) is not within its {len(data)} bytes")
        return data[start:end]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of an object, after the latency of one call."""
        await trio.sleep(self.latency_s)
        data, _ = self._find("get", key)
        for start, end in ranges:
            if start < end and end > len(data):
                raise StorageRangeError(f"{self._url}: get {key}: [{start}, {end}) is not within its {len(data)} bytes")
        return [data[start:end] for start, end in ranges]

    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object."""
        await trio.sleep(self.latency_s)
        data, modified_us = self._find("head", key)
        return ObjectInfo(key, len(data), modified_us)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return a page of the listing."""
        await trio.sleep(self.latency_s)
        keys = self.space.keys(prefix, start_after, limit + 1)
        objects = self.space.objects
        return ListPage(
            [ObjectInfo(key, len(objects[key][0]), objects[key][1]) for key in keys[:limit]], len(keys) > limit
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        await trio.sleep(self.latency_s)
        for key in keys:
            self.space.remove(key)

    def _find(self, operation: str, key: str) -> tuple[bytes, int]:
        try:
            return self.space.objects[key]
        except KeyError:
            raise StorageNotFoundError(f"{self._url}: {operation} {key}: there is no such object") from None


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of ``memory://``."""

    durable: bool = False
    """Declare the storage durable, although nothing survives the process: for tests only."""
    shared: bool = False
    """Declare that other brokers reach it, although only those of this process do: for tests only."""
    latency_ms: float = 0.0
    """Milliseconds that each call takes."""
    max_object_bytes: int = 1 * GIB
    """Largest object."""


class MemoryStoragePlugin(StoragePlugin[MemoryConfig]):
    """``memory://``: objects in the memory of the broker."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "in memory; lost when the broker stops"
    config: ClassVar[type[MemoryConfig]] = MemoryConfig

    @asynccontextmanager
    async def open(self, config: MemoryConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Open the space of the URL, or a new one."""
        if surroundings.path.strip("/"):
            raise ConfigurationError(f"{surroundings.url}: write memory:// or memory://NAME, without a path")
        name = surroundings.location
        yield MemoryBackend(
            SHARED_SPACES.space(name) if name else None,
            url=surroundings.url,
            durable=config.durable,
            shared=config.shared,
            latency_s=config.latency_ms / 1000,
            max_object_bytes=config.max_object_bytes,
            wall_clock_us=surroundings.wall_clock_us,
        )
