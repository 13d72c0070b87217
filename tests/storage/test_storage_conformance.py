"""The conformance kit over the built-in backends."""

from __future__ import annotations

import shutil
import uuid
from contextlib import asynccontextmanager

import pytest

from danube.model.limits import MIB
from danube.storage import MemoryBackend, MemorySpace, open_backend
from danube.storage._uploads import UPLOADS, upload_name
from danube.storage.disk import open_disk
from danube.testing.storage import StorageConformance


class TestMemory(StorageConformance):
    lacks = frozenset({"durable", "shared"})
    cancel_bytes = 1 * MIB

    @pytest.fixture(autouse=True)
    def _space(self):
        self.space = MemorySpace()

    @asynccontextmanager
    async def open_backend(self):
        yield MemoryBackend(self.space)


class TestSlowMemory(TestMemory):
    many = 50

    @asynccontextmanager
    async def open_backend(self):
        yield MemoryBackend(self.space, latency_s=0.001)


class TestDisk(StorageConformance):
    lacks = frozenset({"shared"})

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.directory = tmp_path / "objects"

    def open_backend(self):
        return open_disk(self.directory)

    @asynccontextmanager
    async def open_missing(self):
        async with open_disk(self.directory) as backend:
            shutil.rmtree(self.directory)
            yield backend

    async def leave_upload(self, backend, key):
        (self.directory / UPLOADS / upload_name(key)).write_bytes(b"partial")


class TestFsspecMemory(StorageConformance):
    lacks = frozenset({"durable", "conditional_put", "shared"})
    many = 100

    @pytest.fixture(autouse=True)
    def _place(self):
        self.place = uuid.uuid4().hex

    def open_backend(self):
        return open_backend(f"fsspec+memory://{self.place}/some/prefix")


class TestFsspecFile(StorageConformance):
    lacks = frozenset({"durable", "conditional_put", "shared"})
    many = 100

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.place = tmp_path

    def open_backend(self):
        return open_backend(f"fsspec+file://{self.place}/objects")

    async def leave_upload(self, backend, key):
        uploads = self.place / "objects" / UPLOADS
        uploads.mkdir(exist_ok=True)
        (uploads / upload_name(key)).write_bytes(b"partial")
