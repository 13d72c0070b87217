"""``etcd://`` against real servers: compaction, large revisions, TLS, users, members that die, and a broker on it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from brokers import BrokerProcess
from etcd_servers import QUICK, EtcdCluster

import danube
from danube.metadata import Condition, Delete, MetadataStore, Put, PutEvent, Watch, open_store
from danube.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    PermissionDeniedError,
    UnavailableError,
    WatchCompactedError,
)

pytestmark = [pytest.mark.extended, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One server for all tests that only need some server; each takes a prefix of its own."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), 1, *QUICK) as running:
        yield running


async def take(watch: Watch, count: int) -> list[int]:
    return [(await watch.__anext__()).revision for _ in range(count)]


# One server


async def test_history_that_was_compacted(etcd: EtcdCluster) -> None:
    async with open_store(f"etcd://{etcd.location}/compacted") as store:
        first = await store.put("/w/k", b"")
        gone = await store.delete("/w/k")
        assert gone is not None
        async with store.watch("/w", first) as early, store.watch("/idle") as idle:
            last = [await store.put("/w/k", b"") for _ in range(20)][-1]
            assert (await take(early, 3))[:2] == [first, gone]
            etcd.ctl("compact", str(last))
            # Events that are on their way are delivered; afterwards the watch goes on or says that it cannot.
            seen: list[int] = []
            try:
                while not seen or seen[-1] < last:
                    seen += await take(early, 1)
            except WatchCompactedError:
                assert seen != sorted(seen) or not seen or seen[-1] < last
            assert seen == list(range(gone + 2, gone + 2 + len(seen)))
            for start in (1, first, gone, last):
                with pytest.raises(WatchCompactedError, match=f"needs revision {start}, .*it was compacted"):
                    async with store.watch("/w", start):
                        pass
            revision = await store.put("/idle", b"")
            assert await take(idle, 1) == [revision]
            async with store.watch("/idle", last + 1) as after:
                assert await take(after, 1) == [revision]
        assert (await store.list("/w"))[1] == revision


async def test_a_revision_larger_than_a_message_is_one_batch(etcd: EtcdCluster) -> None:
    """etcd sends it in fragments, live and from the history."""
    async with open_store(f"etcd://{etcd.location}/large") as store:
        keys = [f"/w/{number:03}" for number in range(100)]
        async with store.watch("/w") as live:
            first = (await store.transact([], [Put(key, bytes([1]) * 10_000) for key in keys])).revision
            result = await store.transact(
                [Condition(keys[0], first)], [Put(key, bytes([2]) * 10_000) for key in keys[:-1]] + [Delete(keys[-1])]
            )
            assert result.replaced == (first,) * 100
            async with store.watch("/w", first) as replayed:
                for watch in (live, replayed):
                    one, two = await watch.__anext__(), await watch.__anext__()
                    assert (one.revision, two.revision) == (first, result.revision)
                    assert [event.key for event in one.events] == [event.key for event in two.events] == keys
                    assert {event.previous_revision for event in two.events} == {first}
                    values = {event.item.value for event in two.events if isinstance(event, PutEvent)}
                    assert values == {bytes([2]) * 10_000}


async def test_a_long_list_is_a_snapshot(etcd: EtcdCluster) -> None:
    """Its pages have one revision, while a writer changes all of them."""
    async with open_store(f"etcd://{etcd.location}/long") as store:
        names = [f"/k/{number:04}" for number in range(700)]
        for start in range(0, len(names), 100):
            await store.transact([], [Put(name, b"0") for name in names[start : start + 100]])
        await store.put("/k", b"its own")
        await store.put("/k!", b"no")
        together = (names[0], names[300], names[-1])

        async def write(number: int) -> None:
            await store.transact([], [Put(name, b"%d" % number) for name in together])

        async def write_on() -> None:
            for number in range(2, 100_000):
                await write(number)

        await write(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            for _ in range(5):
                items, revision = await store.list("/k")
                assert [item.key for item in items] == ["/k", *names]
                found = [item for item in items if item.key in together]
                assert len({(item.value, item.mod_revision) for item in found}) == 1
                assert all(item.mod_revision <= revision for item in items)
            nursery.cancel_scope.cancel()


async def test_two_clients_of_one_prefix(etcd: EtcdCluster) -> None:
    """They compete for changes, see each other's, and nothing of a neighbouring prefix."""
    url = f"etcd://{etcd.location}/shared"
    async with open_store(url) as one, open_store(url) as two, open_store(f"{url}-2") as neighbour:
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
        assert [item.key for item in (await neighbour.list("/"))[0]] == ["/k/0"]
        assert "/session" not in {item.key for item in (await one.list("/"))[0]}


async def test_a_request_that_is_too_large_for_etcd(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, 1, *QUICK, "--max-request-bytes", "65536") as small:
        async with open_store(f"etcd://{small.location}") as store:
            with pytest.raises(InvalidArgumentError, match="etcdserver: request is too large"):
                await store.put("/a", bytes(70_000))
            await store.put("/a", bytes(60_000))


# TLS and users


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[EtcdCluster, dict[str, Any]]]:
    """A server that wants a certificate, a user and a password, and forgets tokens after a second."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    for name, certificate in (("server", server), ("client", client)):
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")

    def file(name: str) -> str:
        return str(tmp_path / name)

    options = [*QUICK, "--cert-file", file("server.pem"), "--key-file", file("server.key"), "--client-cert-auth"]
    options += ["--trusted-ca-file", file("ca.pem"), "--bcrypt-cost", "4", "--auth-token-ttl", "1"]
    ctl = ["--cacert", file("ca.pem"), "--cert", file("client.pem"), "--key", file("client.key")]
    with EtcdCluster(tmp_path / "etcd", 1, *options, ctl=ctl) as cluster:
        for command in (
            "user add root:root",
            "user grant-role root root",
            "user add danube:sesame",
            "role add danube",
            "role grant-permission danube --prefix=true readwrite /danube/",
            "user grant-role danube danube",
            "auth enable",
        ):
            cluster.ctl(*command.split())
        yield (
            cluster,
            {
                "username": "danube",
                "password": "sesame",
                "ca_file": file("ca.pem"),
                "cert_file": file("client.pem"),
                "key_file": file("client.key"),
            },
        )


async def test_tls_and_a_user(secured: tuple[EtcdCluster, dict[str, Any]]) -> None:
    cluster, options = secured
    url = f"etcd://{cluster.location}/danube"
    async with open_store(url, options=options) as store, store.watch("/") as watch:
        lease = await store.grant_lease(30)
        first = await store.put("/a", b"x" * 300_000, lease=lease)
        await trio.sleep(2.5)  # the token is forgotten
        second = await store.put("/a", b"y", lease=lease)
        await store.keep_alive(lease)
        assert await take(watch, 2) == [first, second]
        await trio.sleep(2.5)
        async with store.watch("/", first) as again:
            assert await take(again, 2) == [first, second]
        assert (await store.list("/"))[0][0].lease == lease
        assert await store.revoke(lease) is not None
    with pytest.raises(PermissionDeniedError, match="grant the user a role with readwrite permission of the prefix"):
        async with open_store(f"etcd://{cluster.location}/other", options=options):
            pass
    with pytest.raises(PermissionDeniedError, match="correct username and password"):
        async with open_store(url, options=options | {"password": "wrong"}):
            pass
    with pytest.raises(PermissionDeniedError):
        async with open_store(
            url, options={name: value for name, value in options.items() if name not in ("username", "password")}
        ):
            pass
    for untrusted in ({}, {"tls": True}, {"ca_file": options["ca_file"]}):
        with pytest.raises(UnavailableError, match="etcd cannot be reached: "):
            async with open_store(url, options=untrusted):
                pass


# Members that die


async def test_the_leader_is_killed(tmp_path: Path) -> None:
    """Acknowledged changes stay, watches have no gap, and leases do not end because of an election."""
    with EtcdCluster(tmp_path, 3, *QUICK) as cluster:
        async with open_store(f"etcd://{cluster.location}/danube", options={"request_timeout_s": 3}) as store:
            lease = await store.grant_lease(20)
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
                while len(acknowledged) < goal:  # noqa: ASYNC110 - it is a list
                    await trio.sleep(0.01)

            seen: list[tuple[int, int]] = []

            async def follow(watch: Watch) -> None:
                while not seen or seen[-1][0] != 0:
                    try:
                        batch = await watch.__anext__()
                    except UnavailableError:
                        await trio.sleep(0.02)
                        continue
                    (event,) = batch.events
                    assert isinstance(event, PutEvent)
                    seen.append((int(event.item.value), batch.revision))

            async with store.watch("/w") as watch, trio.open_nursery() as nursery:
                nursery.start_soon(write)
                nursery.start_soon(follow, watch)
                await progress(50)
                for _ in range(2):
                    leader = await trio.to_thread.run_sync(cluster.leader)
                    leader.kill()
                    await progress(50)
                    await store.keep_alive(lease)
                    cluster.launch(leader)
                    await trio.to_thread.run_sync(cluster.wait_ready, leader)
                # One that neither answers nor hangs up.
                paused = await trio.to_thread.run_sync(cluster.leader)
                paused.signal(signal.SIGSTOP)
                try:
                    await progress(20)
                finally:
                    paused.signal(signal.SIGCONT)
                stop = True
            assert await store.get("/session") is not None
        assert [revision for _, revision in seen] == sorted({revision for _, revision in seen})
        assert set(acknowledged) <= set(seen)
        assert {number for number, _ in seen} - {number for number, _ in acknowledged} <= uncertain


async def test_a_server_that_restarts(tmp_path: Path) -> None:
    """A watch goes on where it was, and a store that was open is usable again."""
    with EtcdCluster(tmp_path, 1, *QUICK) as cluster:
        (member,) = cluster.members
        async with open_store(f"etcd://{cluster.location}") as store, store.watch("/w") as watch:
            first = await store.put("/w/a", b"")
            member.kill()
            with pytest.raises(UnavailableError):
                await store.put("/w/b", b"")
            cluster.launch(member)
            await trio.to_thread.run_sync(cluster.wait_ready, member)
            second = await store.put("/w/c", b"")
            assert await take(watch, 2) == [first, second]


# A broker


async def test_a_broker_keeps_its_metadata_in_etcd(etcd: EtcdCluster, tmp_path: Path) -> None:
    (tmp_path / "danube.toml").write_text(
        f'[metadata]\nurl = "etcd://{etcd.location}/broker"\noptions = {{ request_timeout_s = 10 }}\n'
    )
    with BrokerProcess(tmp_path / "data", "--config", str(tmp_path / "danube.toml")) as broker:
        async with danube.connect(broker.url) as client:
            async with client.producer("/default/t", name="p") as producer:
                await producer.send_many([b"%d" % number for number in range(100)])
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                for number in range(10):
                    message = await consumer.receive()
                    assert message.payload == b"%d" % number
                    await message.ack()
        broker.kill()
        assert not (tmp_path / "data" / "metadata.db").exists()
        assert b"/broker/topics/" in etcd.ctl("get", "--prefix", "--keys-only", "/broker/").stdout
        await trio.to_thread.run_sync(broker.start)
        async with danube.connect(broker.url) as client:
            async with client.producer("/default/t", name="p") as producer:
                await producer.send(b"100")
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                received = set()
                while b"100" not in received:
                    received.add((await consumer.receive()).payload)
                assert received >= {b"%d" % number for number in range(10, 101)}
        # A broker with another data directory is another member of the cluster.
        with BrokerProcess(tmp_path / "other", "--config", str(tmp_path / "danube.toml")) as other:
            async with danube.connect(other.url) as client:
                assert [each.topic for each in await client.admin.list_topics()] == ["/default/t"]
            assert b"/broker/brokers/b2" in etcd.ctl("get", "--prefix", "--keys-only", "/broker/").stdout
        assert broker.terminate() == 0


async def test_a_broker_whose_etcd_is_away_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "danube.toml").write_text('[metadata]\nurl = "etcd://127.0.0.1:1/broker"\n')
    broker = BrokerProcess(tmp_path / "data", "--config", str(tmp_path / "danube.toml"), stderr=log)
    await trio.to_thread.run_sync(broker.launch)
    assert not await trio.to_thread.run_sync(broker.wait_ready)
    assert await trio.to_thread.run_sync(broker.wait) == 69
    assert "error: etcd cannot be reached: no connection to 127.0.0.1:1" in log.read_text()
    assert "Traceback" not in log.read_text()
