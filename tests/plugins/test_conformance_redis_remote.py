"""The conformance kit over ``redis://`` and ``remote://``, with real servers behind them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar

import pytest
from redis_servers import DURABLE, RedisServer
from storage_server_harness import Serving, StorageServerProcess, serving, until

from danube.storage import MemoryBackend, MemorySpace, StorageBackend, open_backend
from danube.storage_server._admission import Admission
from danube.testing.storage import StorageConformance


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), *DURABLE) as server:
        yield server


@pytest.fixture(scope="module")
def disk_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageServerProcess]:
    with StorageServerProcess(f"disk://{tmp_path_factory.mktemp('remote')}/data") as server:
        yield server


class TestRedis(StorageConformance):
    @pytest.fixture(autouse=True)
    def _place(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        self.place = uuid.uuid4().hex

    def open_backend(self) -> AbstractAsyncContextManager[StorageBackend]:
        return open_backend(self.server.url(self.place))

    @asynccontextmanager
    async def open_unreachable(self) -> AsyncIterator[StorageBackend]:
        with RedisServer(self.server.directory / "killed") as server:
            async with open_backend(server.url(self.place)) as backend:
                server.kill()
                yield backend

    @asynccontextmanager
    async def open_denied(self) -> AsyncIterator[StorageBackend]:
        assert self.server.command("ACL", "SETUSER", "guest", "on", ">word", "~*", "+@all") == b"+OK\r\n"
        async with open_backend(self.server.url(self.place, user="guest:word@")) as backend:
            assert self.server.command("ACL", "SETUSER", "guest", "-@all") == b"+OK\r\n"
            yield backend


class TestRemoteMemory(StorageConformance):
    """A server in this process, so its backend can be looked into."""

    lacks: ClassVar[frozenset[str]] = frozenset({"durable"})
    cancelled_may_be_whole = True  # all of it may be on its way; see test_plugin_remote.py for what was not sent

    @pytest.fixture(autouse=True)
    def _space(self) -> None:
        self.objects = MemorySpace()

    @asynccontextmanager
    async def _serving(self, **options: str) -> AsyncIterator[Serving]:
        async with serving(MemoryBackend(self.objects), token=options.get("token")) as one:
            yield one

    @asynccontextmanager
    async def open_backend(self) -> AsyncIterator[StorageBackend]:
        async with self._serving() as one, open_backend(one.url()) as backend:
            yield backend
            # Whatever happened to the calls, the server holds on to nothing.
            await until(lambda: one.memory_held == 0)

    @asynccontextmanager
    async def open_denied(self) -> AsyncIterator[StorageBackend]:
        async with self._serving(token="right") as one, open_backend(one.url(query="?token=right")) as backend:
            one.service._admission = Admission("changed")
            yield backend


class TestRemoteDisk(StorageConformance):
    """A process of its own over a disk."""

    @pytest.fixture(autouse=True)
    def _place(self, disk_server: StorageServerProcess) -> None:
        self.server = disk_server
        self.place = uuid.uuid4().hex

    def open_backend(self) -> AbstractAsyncContextManager[StorageBackend]:
        return open_backend(self.server.remote(self.place))

    @asynccontextmanager
    async def open_unreachable(self) -> AsyncIterator[StorageBackend]:
        with StorageServerProcess("memory://") as server:
            async with open_backend(server.remote(self.place)) as backend:
                server.kill()
                yield backend
