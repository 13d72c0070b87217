"""The backend ``redis://`` against real servers: required guarantees, failures, and remains of cancelled calls."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from redis_servers import DURABLE, RedisServer

from danube.model.errors import (
    ConfigurationError,
    InvalidArgumentError,
    StorageDeniedError,
    StorageExistsError,
    StorageNotFoundError,
    StorageThrottledError,
    StorageUnavailableError,
)
from danube.model.limits import MIB
from danube.storage import open_backend, open_storage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that only need some server; each takes a prefix of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis"), *DURABLE) as running:
        yield running


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"p{random.SystemRandom().getrandbits(48):x}"


# --- What a server is trusted with ---


@pytest.mark.parametrize(
    ("options", "query", "durable"),
    [
        (DURABLE, "", True),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "", False),
        (("--appendonly", "no"), "", False),
        ((*DURABLE, "--no-appendfsync-on-rewrite", "yes"), "", False),
        ((*DURABLE, "--maxmemory-policy", "allkeys-lru"), "", False),
        ((*DURABLE, "--maxmemory-policy", "volatile-lru"), "", True),
        ((*DURABLE, "--rename-command", "CONFIG", ""), "", False),
        ((*DURABLE, "--rename-command", "CONFIG", ""), "?durable=true", True),
        (DURABLE, "?durable=false", False),
    ],
)
async def test_durable_is_what_the_server_says(
    tmp_path: Path, options: tuple[str, ...], query: str, durable: bool
) -> None:
    with RedisServer(tmp_path, *options) as running:
        async with open_backend(running.url(query=query)) as backend:
            trusted = backend.capabilities
            assert (trusted.durable, trusted.conditional_put, trusted.shared) == (durable, True, True)
            assert trusted.max_object_bytes == 512 * MIB


async def test_the_largest_object_is_the_servers_largest_value(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--proto-max-bulk-len", "2mb") as running:
        async with open_backend(running.url()) as backend:
            assert backend.capabilities.max_object_bytes == 2 * MIB
            await backend.put("fits", bytes(2 * MIB))
            with pytest.raises(InvalidArgumentError, match="more than the 2097152 of one object"):
                await backend.put("large", bytes(2 * MIB + 1))
            assert [one.key for one in (await backend.list()).objects] == ["fits"]


async def test_prefixes_and_databases_do_not_see_each_other(server: RedisServer, prefix: str) -> None:
    async with (
        open_backend(server.url(prefix)) as first,
        open_backend(server.url(prefix + "/below")) as second,
        open_backend(server.url(prefix, query="?db=3")) as third,
    ):
        await first.put("a/b", b"1")
        await second.put("a/b", b"2")
        await third.put("a/b", b"3")
        assert [await one.get("a/b") for one in (first, second, third)] == [b"1", b"2", b"3"]
        await second.delete(["a/b"])
        assert [len((await one.list()).objects) for one in (first, second, third)] == [1, 0, 1]


async def test_the_url_is_checked_before_anything_is_asked() -> None:
    for url, reason in [
        ("redis:///prefix", "names no server"),
        ("redis://127.0.0.1:1/a{b}", "braces"),
        ("redis://127.0.0.1:1/a?connections=0", "connections must be at least 1"),
        ("redis://127.0.0.1:port/a", "[Pp]ort"),
        ("rediss://127.0.0.1:1/a?ca_file=/nowhere", "ca_file"),
        ("redis://127.0.0.1:1/a?databse=1", "databse"),
    ]:
        with pytest.raises(ConfigurationError, match=reason):
            async with open_backend(url):
                pass


# --- Who may ---


async def test_users_and_passwords(tmp_path: Path) -> None:
    with RedisServer(
        tmp_path, "--requirepass", "open sesame", "--user", "reader", "on", ">r", "~*", "+@read"
    ) as running:
        for user in ("", "nobody:wrong@", ":wrong@"):
            with pytest.raises(StorageDeniedError) as caught:
                async with open_backend(running.url(user=user)):
                    pass
            assert "wrong" not in caught.value.message.replace("wrong pass", "").replace("WRONGPASS", "")
        async with open_backend(running.url(user=":open%20sesame@")) as backend:
            await backend.put("k", b"v")
            assert "sesame" not in backend.url
        async with open_backend(running.url(), options={"username": "default", "password": "open sesame"}) as backend:
            assert await backend.get("k") == b"v"


async def test_a_user_without_rights_is_denied_by_operation(tmp_path: Path) -> None:
    acl = tmp_path / "users.acl"
    acl.write_text("user default on nopass ~* &* +@all\nuser reader on >r ~* +@read +ping +@connection +multi +exec\n")
    with RedisServer(tmp_path, "--aclfile", str(acl)) as running:
        async with open_backend(running.url()) as owner, open_backend(running.url(user="reader:r@")) as reader:
            await owner.put("k", b"value")
            assert reader.capabilities.durable is False
            assert await reader.get("k", 1, 3) == b"al"
            for _ in range(3):
                with pytest.raises(StorageDeniedError, match="put other: NOPERM"):
                    await reader.put("other", b"x")
                with pytest.raises(StorageDeniedError, match="delete k: NOPERM"):
                    await reader.delete(["k"])
            assert await reader.get("k") == b"value"


# --- Failures ---


async def test_a_killed_server_is_unavailable_and_comes_back_with_everything(tmp_path: Path) -> None:
    with RedisServer(tmp_path, *DURABLE) as running:
        async with open_backend(running.url()) as backend:
            for number in range(20):
                await backend.put(f"k/{number:02}", b"%d" % number)
            running.kill()
            for operation in (
                partial(backend.put, "new", b"x"),
                partial(backend.get, "k/01"),
                partial(backend.get_ranges, "k/01", [(0, 1)]),
                partial(backend.head, "k/01"),
                partial(backend.list),
                partial(backend.delete, ["k/01"]),
            ):
                with pytest.raises(StorageUnavailableError) as caught:
                    await operation()
                assert caught.value.retryable
                assert backend.url in caught.value.message
            running.start()
            # No connection of before the kill is mistaken for a living one.
            page = await backend.list()
            assert [one.key for one in page.objects] == [f"k/{number:02}" for number in range(20)]
            assert [await backend.get(f"k/{number:02}") for number in range(20)] == [b"%d" % n for n in range(20)]


async def test_a_server_killed_under_load_loses_nothing_answered(tmp_path: Path) -> None:
    answered: list[str] = []
    with RedisServer(tmp_path, *DURABLE) as running:
        async with open_storage(running.url(), random=random.Random(1)) as storage, trio.open_nursery() as nursery:

            async def write(writer: int) -> None:
                for number in range(40):
                    key = f"w/{writer}/{number:03}"
                    await storage.put(key, key.encode() * 100, if_absent=True)
                    answered.append(key)

            for writer in range(6):
                nursery.start_soon(write, writer)
            for _ in range(2):
                enough = len(answered) + 40
                while len(answered) < enough:  # noqa: ASYNC110
                    await trio.sleep(0.005)
                running.kill()
                await trio.to_thread.run_sync(running.start)
        async with open_backend(running.url()) as backend:
            assert len(answered) == 240
            assert [one.key for one in (await backend.list()).objects] == sorted(answered)
            for key in answered:
                assert await backend.get(key) == key.encode() * 100


async def test_no_server_is_unavailable_at_once(tmp_path: Path) -> None:
    running = RedisServer(tmp_path)
    with pytest.raises(StorageUnavailableError), trio.fail_after(5):
        async with open_backend(running.url()):
            pass


async def test_something_else_than_redis_is_told() -> None:
    async def http(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, http, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(StorageUnavailableError, match="is it a Redis server"):
            async with open_backend(f"redis://127.0.0.1:{port}/x"):
                pass
        nursery.cancel_scope.cancel()


async def test_full_memory_and_too_many_clients(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--maxmemory", "12mb", "--maxclients", "4") as running:
        async with open_backend(running.url()) as backend:
            with pytest.raises(StorageUnavailableError, match="memory is full"):  # noqa: PT012
                for number in range(20):
                    await backend.put(f"k{number}", bytes(2 * MIB))
            stored = [one.key for one in (await backend.list()).objects]
            assert len(stored) > 1
            # What frees memory goes on.
            await backend.delete(stored)
            await backend.put("again", b"x")
            taken = [await trio.open_tcp_stream("127.0.0.1", running.port) for _ in range(8)]
            with pytest.raises((StorageThrottledError, StorageUnavailableError)) as caught:
                async with open_backend(running.url()):
                    pass
            assert caught.value.retryable
            for stream in taken:
                await stream.aclose()


# --- Cancelling ---


async def test_a_cancelled_put_leaves_nothing_and_the_connection_is_not_used_again(
    server: RedisServer, prefix: str
) -> None:
    data = random.Random(1).randbytes(48 * MIB)
    async with open_backend(server.url(prefix)) as backend:
        began = trio.current_time()
        await backend.put("large", data)
        whole_s = trio.current_time() - began
        for share in (0.0, 0.01, 0.1, 0.3, 0.5):
            # On a machine that was busy before, this put may be many times as fast as the measured one.
            while True:
                await backend.delete(["large"])
                with trio.move_on_after(share * whole_s) as scope:
                    await backend.put("large", data)
                if scope.cancelled_caught:
                    break
                share /= 2
            with pytest.raises(StorageNotFoundError):
                await backend.head("large")
            assert (await backend.list()).objects == []
        await backend.put("large", data)
        assert await backend.get("large") == data
        for share in (0.0, 0.03, 0.1):
            with trio.move_on_after(share * whole_s):
                await backend.get("large")
            assert (await backend.get("large", 7, 1000)) == data[7:1000]
        await backend.delete(["large"])
        # Whatever a cancelled put has left on the server goes by itself.
        reply = server.command("KEYS", f"{{danube:{prefix}}}:*")
        for line in reply.split(b"\r\n"):
            if line.startswith(b"{"):
                assert b":upload:" in line
                ttl = server.command("TTL", line.decode())
                assert 0 < int(ttl[1:]) <= 60


async def test_of_many_writers_on_many_connections_one_wins(server: RedisServer, prefix: str) -> None:
    async with open_backend(server.url(prefix)) as first, open_backend(server.url(prefix)) as second:
        for round_number in range(10):
            key = f"race/{round_number}"
            won: list[bytes] = []

            async def write(number: int, key: str = key, won: list[bytes] = won, large: int = round_number % 2) -> None:
                data = b"%d" % number * (100 + number + 300_000 * large)
                try:
                    await (first, second)[number % 2].put(key, data, if_absent=True)
                except StorageExistsError:
                    return
                won.append(data)

            async with trio.open_nursery() as nursery:
                for number in range(24):
                    nursery.start_soon(write, number)
            assert len(won) == 1
            assert await first.get(key) == won[0]
            assert (await second.head(key)).size_bytes == len(won[0])
        # The uploads of those who lost are gone: 10 objects and the two collections are left.
        assert (
            server.command("EVAL", "return #redis.call('KEYS', ARGV[1])", "0", f"{{danube:{prefix}}}:*") == b":12\r\n"
        )


async def test_a_reader_sees_one_version(server: RedisServer, prefix: str) -> None:
    sizes = (10_000, 40_000)
    async with open_backend(server.url(prefix)) as backend, trio.open_nursery() as nursery:
        await backend.put("k", b"0" * sizes[0])

        async def write() -> None:
            while True:
                for number, size in enumerate(sizes):
                    await backend.put("k", b"%d" % number * size)

        nursery.start_soon(write)
        for _ in range(200):
            data = await backend.get("k")
            assert len(data) == sizes[int(data[:1])]
            assert data.count(data[:1]) == len(data)
            parts = await backend.get_ranges("k", [(0, 5000), (5000, 10_000)])
            assert parts[0] == parts[1]
        nursery.cancel_scope.cancel()


# --- TLS and cluster ---


@asynccontextmanager
async def tls_in_front_of(port: int, certificate: trustme.LeafCert) -> AsyncIterator[int]:
    """Serve TLS on a port of its own and pass everything on to ``port``."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)

    async def pump(source: trio.abc.Stream, sink: trio.abc.Stream, both: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(65536):
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        both.cancel()

    async def serve(stream: trio.abc.Stream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as behind, trio.open_nursery() as nursery:
            nursery.start_soon(pump, stream, behind, nursery.cancel_scope)
            nursery.start_soon(pump, behind, stream, nursery.cancel_scope)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1"))
        yield listeners[0].transport_listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_tls(server: RedisServer, prefix: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    data = random.Random(2).randbytes(5 * MIB)
    async with tls_in_front_of(server.port, authority.issue_cert("127.0.0.1")) as port:
        trusted = f"ca_file={tmp_path / 'ca.pem'}"
        for url in (
            f"rediss://127.0.0.1:{port}/{prefix}?{trusted}",
            f"redis://127.0.0.1:{port}/{prefix}?tls=1&{trusted}",
        ):
            async with open_backend(url) as backend:
                await backend.put("k", data)
                assert await backend.get("k") == data
        with pytest.raises(StorageUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            async with open_backend(f"rediss://127.0.0.1:{port}/{prefix}"):
                pass


async def test_a_cluster_is_followed_to_the_node_that_has_the_prefix(tmp_path: Path) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
    with RedisServer(tmp_path / "a", *options) as left, RedisServer(tmp_path / "b", *options) as right:
        assert left.command("CLUSTER", "ADDSLOTSRANGE", "0", "8191") == b"+OK\r\n"
        assert right.command("CLUSTER", "ADDSLOTSRANGE", "8192", "16383") == b"+OK\r\n"
        left.meet(right)
        with trio.fail_after(20):
            while any(b"cluster_state:ok" not in one.command("CLUSTER", "INFO") for one in (left, right)):  # noqa: ASYNC110
                await trio.sleep(0.05)
        for name in ("one", "two", "three", "four"):
            for node in (left, right):
                async with open_storage(node.url(name), random=random.Random(1)) as storage:
                    for number in range(5):
                        await storage.put(f"{node.port}/{number}", b"x" * number)
                    keys = [f"{node.port}/{number}" for number in range(5)]
                    page = await storage.list(f"{node.port}/")
                    assert [one.key for one in page.objects] == keys
                    assert await storage.get_ranges(keys[4], [(0, 1), (1, 4)]) == [b"x", b"xxx"]
                    await storage.delete(keys[1:])
                    assert storage.stats().health.consecutive_failures == 0
        counts = [int(one.command("DBSIZE")[1:]) for one in (left, right)]
        # Four keys of each prefix: both collections and the two objects that are left.
        assert sum(counts) == 4 * 4
        assert all(counts)
