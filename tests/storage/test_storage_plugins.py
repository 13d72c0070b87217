"""Choosing a backend by URL, its options, and errors."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from random import Random
from types import ModuleType

import msgspec
import pytest

from danube.model.errors import ConfigurationError, StorageNotFoundError
from danube.model.limits import Limits
from danube.storage import (
    SHARED_SPACES,
    MemoryBackend,
    StoragePlugin,
    _plugins,
    installed_plugins,
    open_storage,
)


async def test_memory_by_url():
    async with open_storage("memory://", random=Random(1), wall_clock_us=lambda: 17) as storage:
        assert not storage.capabilities.durable
        await storage.put("a/b", b"1")
        assert (await storage.head("a/b")).modified_us == 17
    async with open_storage("memory://", random=Random(1)) as storage:
        with pytest.raises(StorageNotFoundError):
            await storage.get("a/b")
    async with open_storage("memory://?durable=true", random=Random(1)) as storage:
        assert storage.capabilities.durable
        assert storage.url == "memory://?durable=true"


async def test_two_that_open_one_memory_space():
    async with (
        open_storage("memory://bucket-of-this-test", random=Random(1)) as first,
        open_storage("memory://bucket-of-this-test", random=Random(2)) as second,
    ):
        await first.put("a", b"1")
        assert await second.get("a") == b"1"
    async with open_storage("memory://bucket-of-this-test", random=Random(1)) as third:
        assert await third.get("a") == b"1"
        SHARED_SPACES.forget("bucket-of-this-test")
    async with open_storage("memory://bucket-of-this-test", random=Random(1)) as fourth:
        assert (await fourth.list()).objects == []
        SHARED_SPACES.forget("bucket-of-this-test")


async def test_latency_by_url(autojump_clock):
    async with open_storage("memory://?latency_ms=1500", random=Random(1)) as storage:
        await storage.put("a", b"1")
        assert storage.stats().operations["put"].busy_s == pytest.approx(1.5)


def test_built_in_backends():
    found = {plugin.scheme: plugin for plugin in installed_plugins()}
    assert found["memory"].built_in
    assert found["disk"].target == "danube.storage.disk:DiskStoragePlugin"
    assert "fsspec" in found


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "toy://b",
            r"no storage backend for 'toy'; installed: .*disk, fsspec, .*memory.*: pip install danube-storage-toy$",
        ),
        ("toy+fast://b", r": pip install danube-storage-toy\+fast$"),
        ("memory", "write scheme://"),
        ("memory://a/b", "without a path"),
        (
            "memory://?speed=9",
            "the storage backend 'memory' has no option 'speed'; it has: durable, shared, latency_ms, max_object",
        ),
        ("memory://?latency_m=9", "has no option 'latency_m'; did you mean 'latency_ms'[?]"),
        (
            "memory://?latency_ms=fast",
            "options of the storage backend 'memory' are wrong: Expected `float`.*latency_ms",
        ),
    ],
)
async def test_wrong_urls(url, message):
    with pytest.raises(ConfigurationError, match=message):
        async with open_storage(url, random=Random(1)):
            pass


def no_entry_points(group):
    return []


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("s3://b", "danube-storage-s3"),
        ("s3+obstore://b", "'danube-storage-s3[obstore]'"),
        ("gs://b", "danube-storage-gcs"),
        ("gcs://b", "danube-storage-gcs"),
        ("az://b", "danube-storage-azure"),
        ("abfs://b", "danube-storage-azure"),
        ("redis://h", "danube-storage-redis"),
        ("remote://h", "danube-storage-remote"),
    ],
)
async def test_a_known_scheme_that_is_not_installed(url, package, monkeypatch):
    monkeypatch.setattr(_plugins, "entry_points", no_entry_points)
    with pytest.raises(ConfigurationError) as caught:
        async with open_storage(url, random=Random(1)):
            pass
    assert str(caught.value).endswith(f"to add one: pip install {package}")


async def test_an_installed_plugin_gets_its_options(monkeypatch, tmp_path):
    class Config(msgspec.Struct, forbid_unknown_fields=True):
        retries: int = 1
        zone: str = ""
        secret_key: str = ""

    class Plugin(StoragePlugin):
        name, summary, config = "toy", "a toy", Config

        @asynccontextmanager
        async def open(self, config, surroundings):
            given.append((config, surroundings))
            yield MemoryBackend(url=surroundings.url)

    given = []
    module = ModuleType("toy_backend")
    module.Plugin, module.NotOne = Plugin, dict
    monkeypatch.setitem(sys.modules, "toy_backend", module)
    entries = [EntryPoint(name, f"toy_backend:{target}", _plugins.GROUP) for name, target in
               [("toy", "Plugin"), ("toy+fast", "Plugin"), ("s3", "Missing"), ("alien", "NotOne")]]  # fmt: skip
    monkeypatch.setattr(_plugins, "entry_points", lambda group: entries)
    url = "toy://me:pass@host:1/some%20path?retries=5&secret_key=geheim"
    limits = Limits(storage_max_concurrency=4)
    async with open_storage(
        url,
        random=Random(1),
        options={"retries": 3, "zone": "b"},
        limits=limits,
        data_directory=tmp_path,
        name="cold",
        max_concurrency=2,
    ) as storage:
        assert storage.url == "toy://host:1/some%20path?retries=5"
        assert (storage.stats().name, storage.stats().max_concurrency) == ("cold", 2)
    config, surroundings = given[0]
    assert config == Config(retries=5, zone="b", secret_key="geheim")
    assert (surroundings.scheme, surroundings.location, surroundings.path) == ("toy", "me:pass@host:1", "/some path")
    assert (surroundings.limits, surroundings.data_directory) == (limits, tmp_path)
    async with open_storage("toy+fast://b", random=Random(1), max_concurrency=9) as storage:
        assert storage.stats().max_concurrency == Limits().storage_max_concurrency
    assert given[1][1].scheme == "toy+fast"
    with pytest.raises(ConfigurationError, match=r"cannot be loaded.*try: pip install danube-storage-s3"):
        async with open_storage("s3://", random=Random(1)):
            pass
    with pytest.raises(ConfigurationError, match="not a StoragePlugin"):
        async with open_storage("alien://", random=Random(1)):
            pass
    with pytest.raises(ConfigurationError, match="retries") as caught:
        async with open_storage("toy://h?secret_key=geheim&retries=geheim", random=Random(1)):
            pass
    assert "geheim" not in str(caught.value)
    assert {"toy", "toy+fast"} <= {plugin.scheme for plugin in installed_plugins()}
