"""Choosing an engine by URL, lease time under a virtual clock, and the faulty store."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from random import Random
from types import ModuleType

import msgspec
import pytest
import trio

from danube.metadata import MemoryStore, MetadataPlugin, _plugins, installed_plugins, open_store
from danube.model.errors import ConfigurationError, LimitExceededError, NotFoundError, UnavailableError
from danube.model.limits import Limits
from danube.testing.metadata import FaultyMetadataStore


async def test_built_in_engines_by_url():
    async with open_store("memory://") as store:
        assert not store.capabilities.durable
        assert await store.put("/a", b"1") == 1
    found = {plugin.scheme: plugin for plugin in installed_plugins()}
    assert found["memory"].built_in
    assert found["embedded"].target == "danube.metadata.embedded:EmbeddedPlugin"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("consul://host", "for 'consul'; installed: embedded,.*memory.*pip install danube-metadata-consul"),
        ("memory", "write scheme://"),
        ("://x", "write scheme://"),
        ("memory://?speed=9", "the metadata engine 'memory' has no option 'speed'; it has: none"),
        ("memory://[::1/x", "the metadata URL is not valid: Invalid IPv6 URL"),
    ],
)
async def test_wrong_urls(url, message):
    with pytest.raises(ConfigurationError, match=message):
        async with open_store(url):
            pass


async def test_an_installed_plugin_gets_its_options(monkeypatch):
    class Config(msgspec.Struct, forbid_unknown_fields=True):
        retries: int = 1
        zone: str = ""
        password: str = ""

    class Plugin(MetadataPlugin):
        name, summary, config, secrets = "toy", "a toy", Config, frozenset({"password"})

        def open(self, config, surroundings):
            given.append((config, surroundings))
            return MemoryStore(limits=surroundings.limits)

    given = []
    module = ModuleType("toy_engine")
    module.Plugin, module.NotOne = Plugin, dict
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    entries = [EntryPoint(name, f"toy_engine:{target}", _plugins.GROUP) for name, target in
               [("toy", "Plugin"), ("broken", "Missing"), ("alien", "NotOne")]]  # fmt: skip
    monkeypatch.setattr(_plugins, "entry_points", lambda group: entries)
    url = "toy://user@host:1/some%20path?retries=5"
    options = {"retries": 3, "zone": "b", "password": "sesame"}
    async with open_store(url, options=options, limits=Limits(metadata_max_leases=1)) as store:
        await store.grant_lease(5)
        with pytest.raises(LimitExceededError, match="metadata_max_leases"):
            await store.grant_lease(5)
    config, surroundings = given[0]
    assert config == Config(retries=5, zone="b", password="sesame")
    assert (surroundings.location, surroundings.path) == ("user@host:1", "/some path")
    for wrong, options, message in [
        ("toy://?retires=5", {}, "'toy' has no option 'retires'; did you mean 'retries'?"),
        ("toy://", {"colour": "blue"}, "'toy' has no option 'colour'; it has: retries, zone, password"),
        ("toy://", {"retries": "sesame"}, r"options of the metadata engine 'toy' are wrong: .*at `\$.retries`"),
        ("toy://?password=sesame", {}, r"'password' .* must not be in the URL.*\[metadata\] options = { password = "),
    ]:
        with pytest.raises(ConfigurationError, match=message) as refusal:
            async with open_store(wrong, options=options):
                pass
        assert "sesame" not in str(refusal.value)
    assert len(given) == 1
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        async with open_store("broken://"):
            pass
    with pytest.raises(ConfigurationError, match="not a MetadataPlugin"):
        async with open_store("alien://"):
            pass
    assert "toy" in {plugin.scheme for plugin in installed_plugins()}


async def test_leases_follow_the_virtual_clock(autojump_clock):
    async with MemoryStore() as store:
        start = trio.current_time()
        long, short = await store.grant_lease(3000), await store.grant_lease(100)
        await store.put("/long", b"", lease=long)
        await store.put("/short", b"", lease=short)
        async with store.watch("/") as watch:
            await trio.sleep(60)
            await store.keep_alive(short)
            assert (await watch.__anext__()).events[0].key == "/short"
            assert trio.current_time() - start == pytest.approx(160)
            assert (await watch.__anext__()).events[0].key == "/long"
            assert trio.current_time() - start == pytest.approx(3000)
        with pytest.raises(NotFoundError):
            await store.keep_alive(long)


async def count_through_faults(seed):
    """Increment a counter through lost answers; revisions decide whether a lost change has happened."""
    trace = []
    async with FaultyMetadataStore(
        MemoryStore(), Random(seed), latency_s=0.01, refuse=0.2, lose_answer=0.3, break_watch=0.3
    ) as store:

        async def insist(call, *arguments, **options):
            while True:
                try:
                    return await call(*arguments, **options)
                except UnavailableError:
                    trace.append(trio.current_time())

        for number in range(1, 31):
            item = await insist(store.get, "/count")
            before = item.mod_revision if item else 0
            while True:
                try:
                    await store.put("/count", b"%d" % number, expected_revision=before)
                except UnavailableError:
                    trace.append(trio.current_time())
                    item = await insist(store.get, "/count")
                    if item is None or item.mod_revision == before:
                        continue
                break
        assert (await insist(store.get, "/count")).version == 30
        async with store.watch("/count", 1) as watch:
            for revision in range(1, 31):
                assert (await insist(watch.__anext__)).revision == revision
    return trace


async def test_faulty_store_repeats_its_faults(autojump_clock):
    start = trio.current_time()
    first = [at - start for at in await count_through_faults(3)]
    start = trio.current_time()
    second = [at - start for at in await count_through_faults(3)]
    assert len(first) > 20
    assert first == pytest.approx(second)
