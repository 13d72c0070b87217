"""``zookeeper://`` against real servers: the conformance kit, killed servers, lost sessions, TLS, users, brokers."""

from __future__ import annotations

import signal
import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trustme
from brokers import BrokerProcess
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from danube_metadata_zookeeper import ZooKeeperStore
from kazoo.client import KazooClient
from zookeeper_servers import ZooKeeperEnsemble

import danube
from danube.metadata import MetadataStore, PutEvent, Watch, open_store
from danube.model.errors import (
    MetadataConflictError,
    PermissionDeniedError,
    UnavailableError,
)
from danube.model.limits import Limits
from danube.testing.metadata import MetadataStoreConformance

pytestmark = [pytest.mark.extended, pytest.mark.timeout(100)]

HISTORY = 200


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One server for all tests that need no more; it serves TLS, too."""
    directory = tmp_path_factory.mktemp("zookeeper")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    for name, certificate in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("c"))):
        # ZooKeeper reads keys of this form only.
        key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
        chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
        (directory / f"{name}.pem").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain
        )
    more = {
        "secureClientPort": "SECURE_PORT",
        "ssl.keyStore.location": str(directory / "server.pem"),
        "ssl.trustStore.location": str(directory / "ca.pem"),
        "ssl.clientAuth": "need",
    }
    with ZooKeeperEnsemble(directory, 1, more) as ensemble:
        yield ensemble


def a_url(ensemble: ZooKeeperEnsemble) -> str:
    return f"zookeeper://{ensemble.location}/danube/{uuid.uuid4().hex}"


def nodes_of(ensemble: ZooKeeperEnsemble, path: str) -> list[str]:
    """Return the names of a node's children, as another client sees them."""
    client = KazooClient(ensemble.location)
    client.start()
    try:
        return sorted(client.get_children(path))
    finally:
        client.stop()
        client.close()


async def take(watch: Watch, count: int) -> list[int]:
    with trio.fail_after(30):
        return [(await watch.__anext__()).revision for _ in range(count)]


class TestZooKeeper(MetadataStoreConformance):
    """Each test has a prefix of its own."""

    lease_s = 3.0
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _place(self, zookeeper):
        self.url = a_url(zookeeper)

    def open_store(self):
        return open_store(self.url, limits=Limits(metadata_history_revisions=HISTORY))


async def test_two_clients_of_one_prefix(zookeeper: ZooKeeperEnsemble) -> None:
    """They compete for changes, see each other's, and nothing of a neighbouring prefix."""
    url = a_url(zookeeper)
    async with open_store(url) as one, open_store(url) as two, open_store(f"{url}-2") as neighbour:  # noqa: SIM117
        async with one.watch("/") as seen_by_one, two.watch("/") as seen_by_two, neighbour.watch("/") as nothing:
            won: list[MetadataStore] = []

            async def compete(store: MetadataStore, number: int) -> None:
                try:
                    await store.put(f"/k/{number}", b"", expected_revision=0)
                except MetadataConflictError:
                    return
                won.append(store)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(compete, one, number)
                    nursery.start_soon(compete, two, number)
            assert len(won) == 20
            assert await take(seen_by_one, 20) == await take(seen_by_two, 20)
            lease = await one.grant_lease(30)
            await one.put("/session", b"", lease=lease)
            await two.keep_alive(lease)
            revoked = await two.revoke(lease)
            assert revoked is not None
            assert (await take(seen_by_one, 2))[-1] == revoked
            revision = await neighbour.put("/k/0", b"")
            assert await take(nothing, 1) == [revision]


async def test_the_log_is_shortened(zookeeper: ZooKeeperEnsemble) -> None:
    """After many changes there is a snapshot, the log is bounded, and a new client reads the same."""
    url = a_url(zookeeper)
    root = url[url.index("/danube") :]
    limits = Limits(metadata_history_revisions=HISTORY)
    async with open_store(url, limits=limits) as store:
        big = bytes(700_000)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.put, f"/big/{number}", big)
        for _ in range(400):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(store.put, f"/k/{number}", b"x" * 3000)
        picture = await store.list("/")
        with trio.fail_after(30):
            while len(await trio.to_thread.run_sync(nodes_of, zookeeper, f"{root}/log")) > 1500:  # noqa: ASYNC110
                await trio.sleep(0.1)
    assert await trio.to_thread.run_sync(nodes_of, zookeeper, f"{root}/pieces")
    async with open_store(url, limits=limits) as again:
        assert await again.list("/") == picture


# TLS, users, options


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # kazoo forgets sockets that were refused
async def test_tls_and_a_user(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    directory = zookeeper.servers[0].directory.parent
    options = {"ca_file": str(directory / "ca.pem"), "cert_file": str(directory / "client.pem")}
    user = {"username": "danube", "password": "sesame"}
    secure = f"zookeeper://127.0.0.1:{zookeeper.servers[0].secure_port}/secret/{uuid.uuid4().hex}"
    async with open_store(secure, options=options | user) as store, store.watch("/") as watch:
        revision = await store.put("/a", b"x" * 300_000)
        assert await take(watch, 1) == [revision]
    # A certificate is a user, too; who comes without it, over the other port, is not.
    plain = secure.replace(str(zookeeper.servers[0].secure_port), str(zookeeper.servers[0].port))
    async with open_store(plain, options=user) as store:
        assert (await store.get("/a")) is not None
    for wrong in ({}, {"username": "danube", "password": "wrong"}):
        with pytest.raises(PermissionDeniedError, match="the user may not do that; give it all rights on the nodes"):
            async with open_store(plain, options=wrong):
                pass
    async with open_store(secure, options=options | user) as store:
        assert (await store.get("/a")) is not None
    other = trustme.CA()
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    for untrusted in ({"ca_file": options["ca_file"]}, options | {"ca_file": str(tmp_path / "other.pem")}):
        with pytest.raises(UnavailableError, match=r"no connection within 0\.5 s"):
            async with open_store(secure, options=untrusted | {"request_timeout_s": 0.5}):
                pass


# Servers that die


def end_session(store: ZooKeeperStore) -> None:
    """Let the session of a store expire: another client takes it over, and closes it."""
    identity = store.nodes._client.client_id  # type: ignore[attr-defined]
    client = KazooClient(store.nodes.place, client_id=identity)
    client.start()
    client.stop()
    client.close()


def cut_connection(store: ZooKeeperStore) -> None:
    """Break the connection of a store, as a network does."""
    link = store.nodes._client._connection._socket  # type: ignore[attr-defined]
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.shutdown(socket.SHUT_RDWR)


async def test_sessions_that_expire_and_connections_that_break(zookeeper: ZooKeeperEnsemble) -> None:
    """Nothing hangs on a session: leases, keys and watches go on."""
    async with open_store(a_url(zookeeper)) as store, store.watch("/w") as watch:
        assert isinstance(store, ZooKeeperStore)
        lease = await store.grant_lease(30)
        await store.put("/session", b"", lease=lease)
        revisions = []
        for disturb in (cut_connection, end_session, cut_connection):
            await trio.to_thread.run_sync(disturb, store)
            with trio.fail_after(30):
                while True:
                    try:
                        revisions.append(await store.put("/w/k", b""))
                    except UnavailableError:
                        await trio.sleep(0.02)
                    else:
                        break
            await store.keep_alive(lease)
        items, revision = await store.list("/")
        assert [item.key for item in items] == ["/session", "/w/k"]
        # A put whose answer was lost may be among them.
        seen = await take(watch, revision - 1)
        assert set(revisions) <= set(seen)
        assert seen == list(range(2, revision + 1))


async def test_leaders_are_killed(tmp_path: Path) -> None:
    """Acknowledged changes stay, watches have no gap, and leases do not end because of an election."""
    with ZooKeeperEnsemble(tmp_path, 3) as ensemble:
        url = f"zookeeper://{ensemble.location}/danube"
        options = {"request_timeout_s": 5, "session_timeout_s": 2}
        async with open_store(url, options=options) as store, open_store(url, options=options) as reader:
            lease = await store.grant_lease(60)
            await store.put("/session", b"", lease=lease)
            acknowledged: list[tuple[int, int]] = []
            uncertain: set[int] = set()
            stop = False

            async def write() -> None:
                number = 0
                while not stop:
                    number += 1
                    try:
                        acknowledged.append((number, await store.put(f"/w/{number % 10}", b"%d" % number)))
                    except UnavailableError:
                        uncertain.add(number)
                        await trio.sleep(0.02)
                acknowledged.append((0, await store.put("/w/end", b"0")))

            async def progress(count: int) -> None:
                goal = len(acknowledged) + count
                with trio.fail_after(60):
                    while len(acknowledged) < goal:  # noqa: ASYNC110 - it is a list
                        await trio.sleep(0.01)

            seen: list[tuple[int, int]] = []

            async def follow(watch: Watch) -> None:
                async for batch in watch:
                    (event,) = batch.events
                    assert isinstance(event, PutEvent)
                    seen.append((int(event.item.value), batch.revision))
                    if seen[-1][0] == 0:
                        return

            async with reader.watch("/w") as watch, trio.open_nursery() as nursery:
                nursery.start_soon(write)
                nursery.start_soon(follow, watch)
                await progress(50)
                for _ in range(2):
                    leader = await trio.to_thread.run_sync(ensemble.leader)
                    leader.kill()
                    await progress(50)
                    await store.keep_alive(lease)
                    await trio.to_thread.run_sync(ensemble.restart, leader)
                # One that neither answers nor hangs up.
                paused = await trio.to_thread.run_sync(ensemble.leader)
                paused.signal(signal.SIGSTOP)
                try:
                    await progress(20)
                finally:
                    paused.signal(signal.SIGCONT)
                stop = True
            assert await store.get("/session") is not None
            assert await reader.list("/") == await store.list("/")
    assert [revision for _, revision in seen] == sorted({revision for _, revision in seen})
    assert set(acknowledged) <= set(seen)
    assert {number for number, _ in seen} - {number for number, _ in acknowledged} <= uncertain


# Brokers


async def test_a_cluster_publishes_through_a_restart_of_zookeeper(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """Two brokers share the metadata; topics are served while ZooKeeper is away, and new ones after it is back."""
    url = a_url(zookeeper)
    (tmp_path / "danube.toml").write_text(f'[metadata]\nurl = "{url}"\n')
    brokers = [
        BrokerProcess(tmp_path / name, "--config", str(tmp_path / "danube.toml"), stderr=tmp_path / f"{name}.log")
        for name in ("b1", "b2")
    ]
    (server,) = zookeeper.servers
    with ExitStack() as stack:
        for broker in brokers:
            await trio.to_thread.run_sync(broker.launch)
            stack.push(broker.__exit__)
        for broker in brokers:
            assert await trio.to_thread.run_sync(broker.wait_ready), (tmp_path / "b1.log").read_text()
        both = ",".join(broker.url.removeprefix("danube://") for broker in brokers)
        async with danube.connect(f"danube://{both}") as client:
            async with client.producer("/default/t", name="p") as producer:
                sent = 0
                stop = False

                async def publish() -> None:
                    nonlocal sent
                    while not stop:
                        await producer.send(b"%d" % sent)
                        sent += 1
                        await trio.sleep(0.005)

                async def reach(count: int) -> None:
                    with trio.fail_after(60):
                        while sent < count:  # noqa: ASYNC110 - it is a number
                            await trio.sleep(0.01)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(publish)
                    await reach(20)
                    server.kill()
                    await reach(sent + 50)
                    await trio.to_thread.run_sync(zookeeper.restart, server)
                    await reach(sent + 50)
                    stop = True
            with trio.fail_after(60):
                while True:
                    try:
                        await client.admin.create_topic("/default/new")
                    except UnavailableError:
                        await trio.sleep(0.1)
                    else:
                        break
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                with trio.fail_after(60):
                    received = [int((await consumer.receive()).payload) for _ in range(sent)]
            assert received == list(range(sent))
            status = await client.admin.cluster_status()
            assert status.metadata.engine == "zookeeper"
            assert status.metadata.kept_by == f"ZooKeeper at {server.endpoint}"
            assert len(status.brokers) == 2
        for broker in brokers:
            assert await trio.to_thread.run_sync(broker.terminate) == 0


async def test_a_broker_whose_zookeeper_is_away_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "danube.toml").write_text(
        '[metadata]\nurl = "zookeeper://127.0.0.1:1/broker"\noptions = { request_timeout_s = 0.5 }\n'
    )
    broker = BrokerProcess(tmp_path / "data", "--config", str(tmp_path / "danube.toml"), stderr=log)
    await trio.to_thread.run_sync(broker.launch)
    assert not await trio.to_thread.run_sync(broker.wait_ready)
    assert await trio.to_thread.run_sync(broker.wait) == 69
    said = log.read_text()
    assert "error: ZooKeeper at 127.0.0.1:1: read of /broker/revision: no connection within 0.5 s" in said
    assert "(Connection dropped: Connection refused)" in said
    assert "Traceback" not in said
