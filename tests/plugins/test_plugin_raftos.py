"""``raftos://``: for one broker, as long as raftos answers; refused by every cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from danube_metadata_raftos import RaftosStore

import danube
from danube.metadata import LeaseId, Role, open_store, require_role
from danube.model.errors import ConfigurationError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from danube.model.limits import Limits
from danube.testing.metadata import MetadataStoreConformance

CALM = {"heartbeat_s": 1.0}
"""A pause of five seconds, on a busy machine, is no reason for another leader."""
HISTORY = 40


@pytest.mark.extended
class TestRaftos(MetadataStoreConformance):
    lacks = frozenset({"durable", "linearizable"})
    lease_s = 3.0

    history_revisions = HISTORY

    def open_store(self):
        return open_store("raftos://", options=CALM, limits=Limits(metadata_history_revisions=HISTORY))

    # Its hundreds of changes take raftos a minute and more: it reads its whole log again every five.
    test_list_never_shows_half_a_transaction = None
    test_list_and_watch_are_a_replica = None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("raftos://127.0.0.1:1", "write raftos://, without a place"),
        ("raftos:///directory", "write raftos://, without a place"),
        ("raftos://?heartbeat_s=0", "'heartbeat_s' .* is 0.0; it must be from 0.02 to 10"),
        ("raftos://?timeout_s=0", "'timeout_s' .* must be from 1.0 to 600.0"),
    ],
)
async def test_what_the_plugin_refuses(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        async with open_store(url):
            pass


async def test_raftos_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "raftos", None)
    with pytest.raises(ConfigurationError, match=r"not installed .*: pip install --no-deps\n? ?raftos==0\.2\.6"):
        async with open_store("raftos://"):
            pass


@pytest.mark.extended
async def test_changes_are_bounded_and_a_cluster_refuses() -> None:
    async with open_store("raftos://", options=CALM) as store:
        await store.put("/a", bytes(29_000))
        with pytest.raises(InvalidArgumentError, match="does not fit into a datagram of raftos"):
            await store.put("/a", bytes(30_000))
        assert store.standing().engine == "raftos"
        require_role(Role.ALONE, "raftos", store.capabilities)
        with pytest.raises(FailedPreconditionError, match=r"cannot be used by a cluster.* 41 to 62 % of the writes"):
            require_role(Role.CLUSTER, "raftos", store.capabilities)


@pytest.mark.extended
async def test_a_store_is_over_when_raftos_is_silent() -> None:
    async with open_store("raftos://", options=CALM | {"timeout_s": 1.0}) as store:
        assert isinstance(store, RaftosStore)
        await store.put("/a", b"1")
        nodes = store._nodes._nodes
        for node in nodes[1:]:
            store._nodes._loop.call_soon_threadsafe(node.stop)
        leader_is_left = True
        with trio.fail_after(30):
            while leader_is_left:
                try:
                    await store.put("/a", b"2")
                except UnavailableError as error:
                    assert "restart the broker" in error.message  # noqa: PT017 - it may take some changes
                    leader_is_left = False
        for call in (lambda: store.get("/a"), lambda: store.put("/b", b""), lambda: store.revoke(LeaseId(1))):
            with pytest.raises(UnavailableError, match="raftos is for demonstration only"):
                await call()


@pytest.mark.extended
async def test_one_broker_works_and_a_cluster_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "danube.toml").write_text('[metadata]\nurl = "raftos://"\noptions = { heartbeat_s = 1 }\n')
    config = ("--config", str(tmp_path / "danube.toml"))
    log = tmp_path / "log"
    with BrokerProcess(tmp_path / "one", *config, stderr=log) as broker:
        async with danube.connect(broker.url) as client, client.producer("/default/t") as producer:
            await producer.send_many([b"%d" % number for number in range(100)])
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                assert [int((await consumer.receive()).payload) for _ in range(100)] == list(range(100))
        assert await trio.to_thread.run_sync(broker.terminate) == 0
    assert "is for demonstration only: it loses what it has acknowledged" in log.read_text()
    refused = tmp_path / "refused"
    first = BrokerProcess(tmp_path / "a", *config, stderr=refused)
    second = BrokerProcess(tmp_path / "b", *config, stderr=tmp_path / "b.log")
    listed = ",".join(each.url.removeprefix("danube://") for each in (first, second))
    for each in (first, second):
        each.options = (*each.options, "--peers", listed)
        await trio.to_thread.run_sync(each.launch)
    for each in (first, second):
        assert not await trio.to_thread.run_sync(each.wait_ready)
        assert await trio.to_thread.run_sync(each.wait) == 78
    assert "the metadata engine 'raftos' cannot be used by a cluster: it is not durable" in refused.read_text()
    assert "41 to 62 % of the writes that raftos had acknowledged were lost" in refused.read_text()
