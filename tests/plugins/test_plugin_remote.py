"""The backend ``remote://`` and the storage server: in one process over memory, and as processes over a disk."""

from __future__ import annotations

import random
import signal
import ssl
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from certificates import make_files
from storage_server_harness import StorageServerProcess, read_all, serving, until
from typer.testing import CliRunner

from danube.cli.app import app
from danube.model import storage_api as api
from danube.model.errors import (
    ConfigurationError,
    InvalidArgumentError,
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import MIB, Limits
from danube.storage import MemoryBackend, open_backend, open_storage
from danube.storage_server import Admission
from danube.wire import connect_channel

# --- What is promised ---


@pytest.mark.parametrize("durable", [False, True])
async def test_promises_are_those_of_what_is_served(durable: bool) -> None:
    backend = MemoryBackend(durable=durable)
    async with serving(backend, storage_server_max_object_bytes=3 * MIB) as one, open_backend(one.url()) as remote:
        trusted = remote.capabilities
        assert (trusted.durable, trusted.conditional_put, trusted.shared) == (durable, True, True)
        assert trusted.max_object_bytes == 3 * MIB
        assert remote.url == one.url()


async def test_spaces_do_not_see_each_other() -> None:
    async with serving() as one, AsyncExitStack() as stack:
        spaces = ["", "a", "a/b", "b"]
        remotes = [await stack.enter_async_context(open_backend(one.url(space))) for space in spaces]
        for space, remote in zip(spaces, remotes, strict=True):
            await remote.put("k/x", space.encode())
            await remote.put("k/y", b"")
        for space, remote in list(zip(spaces, remotes, strict=True))[1:]:
            assert await remote.get("k/x") == space.encode()
            assert [found.key for found in (await remote.list("k/")).objects] == ["k/x", "k/y"]
            assert [found.key for found in (await remote.list(start_after="k/x", limit=1)).objects] == ["k/y"]
        assert len((await remotes[0].list()).objects) == 8
        await remotes[1].delete(["k/x", "b/k/x"])
        with pytest.raises(StorageNotFoundError):
            await remotes[2].head("k/x")
        assert (await remotes[3].head("k/x")).size_bytes == 1


class Failing(MemoryBackend):
    """Raises what it is told to."""

    error: StorageError | None = None

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        assert self.error is not None
        raise self.error


@pytest.mark.parametrize(
    "kind",
    [
        StorageError,
        StorageNotFoundError,
        StorageDeniedError,
        StorageConflictError,
        StorageThrottledError,
        StorageTimeoutError,
        StorageUnavailableError,
    ],
)
async def test_errors_of_the_backend_arrive_as_what_they_are(kind: type[StorageError]) -> None:
    backend = Failing()
    async with serving(backend) as one, open_backend(one.url()) as remote:
        backend.error = kind("the reason, ünd more")
        with pytest.raises(kind) as caught:
            await remote.get("k", 0, 5)
        assert type(caught.value) is kind
        assert caught.value.retryable is kind.retryable
        assert caught.value.message == f"{one.url()}: get k: the reason, ünd more"


async def test_a_bug_of_the_backend_costs_one_call(caplog: pytest.LogCaptureFixture) -> None:
    backend = Failing()
    async with serving(backend) as one, open_backend(one.url()) as remote:
        with pytest.raises(StorageError, match="internal error") as caught:
            await remote.get("k", 0, 5)
        assert caught.value.retryable is False
        await remote.put("k", b"x")
    assert "failed" in caplog.text


async def test_of_many_clients_one_wins() -> None:
    async with serving() as one, AsyncExitStack() as stack:
        remotes = [await stack.enter_async_context(open_backend(one.url())) for _ in range(6)]
        for round_number in range(8):
            won: list[bytes] = []

            async def write(number: int, key: str, size: int, won: list[bytes] = won) -> None:
                data = bytes([number]) * size
                try:
                    await remotes[number % 6].put(key, data, if_absent=True)
                except StorageExistsError:
                    return
                won.append(data)

            key = f"race/{round_number}"
            async with trio.open_nursery() as nursery:
                for number in range(18):
                    nursery.start_soon(write, number, key, 100 if round_number % 2 else 300_000 + number)
            assert len(won) == 1
            assert await remotes[0].get(key) == won[0]


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("edge", [0, api.SMALL_OBJECT_BYTES, api.PIECE_BYTES, 3 * api.PIECE_BYTES])
async def test_sizes_around_the_edges_of_messages(edge: int, extra: int) -> None:
    data = random.Random(edge).randbytes(max(0, edge + extra))
    async with serving() as one, open_backend(one.url()) as remote:
        await remote.put("k", bytearray(data))
        assert await remote.get("k") == data
        assert (await remote.head("k")).size_bytes == len(data)
        middle = len(data) // 2
        ranges = [(0, len(data)), (middle, middle), (middle, len(data)), (0, min(3, len(data))), (0, middle)]
        assert await remote.get_ranges("k", ranges) == [data[start:end] for start, end in ranges]
        assert one.memory_held == 0


# --- Cancelling and memory ---


async def test_a_cancelled_put_leaves_nothing() -> None:
    data = random.Random(3).randbytes(40 * MIB)
    async with serving() as one, open_backend(one.url()) as remote:
        for share in (0.0, 0.01, 0.1, 0.3, 0.5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(remote.put, "large", data)
                # By what the server has got, not by time: a put is many times faster when the machine is not busy.
                await until(lambda: one.memory_held >= share * len(data), every_s=0.0)  # noqa: B023
                nursery.cancel_scope.cancel()
            await until(lambda: one.memory_held == 0)
            assert (await one.backend.list()).objects == []
        await remote.put("large", data)
        for delay_s in (0.0, 0.001, 0.02):
            with trio.move_on_after(delay_s):
                await remote.get("large")
            await until(lambda: one.memory_held == 0)
        assert await remote.get("large") == data


async def test_more_objects_than_memory_wait_in_line_on_one_connection() -> None:
    # Together far more than the window of the connection: what waits must not use it up.
    objects = {f"k/{number}": random.Random(number).randbytes(3 * MIB) for number in range(24)}
    highest = 0
    async with serving(storage_server_memory_bytes=7 * MIB) as one, open_backend(one.url()) as remote:

        async def watch() -> None:
            nonlocal highest
            while True:
                highest = max(highest, one.memory_held)
                await trio.sleep(0.001)

        async def check(key: str) -> None:
            assert await remote.get(key) == objects[key]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            with trio.fail_after(30):
                async with trio.open_nursery() as writers:
                    for key, data in objects.items():
                        writers.start_soon(remote.put, key, data)
                async with trio.open_nursery() as readers:
                    for key in objects:
                        readers.start_soon(check, key)
            nursery.cancel_scope.cancel()
        assert 0 < highest <= 7 * MIB
        assert one.memory_held == 0


async def test_too_large_an_object_is_refused_by_the_name_of_the_limit() -> None:
    async with serving(storage_server_max_object_bytes=MIB) as one, open_backend(one.url()) as remote:
        await remote.put("k", bytes(MIB))
        with pytest.raises(InvalidArgumentError, match="storage_server_max_object_bytes"):
            await remote.put("k", bytes(MIB + 1))
        assert (await remote.head("k")).size_bytes == MIB


async def test_a_caller_that_sends_nothing_is_cut_off_and_its_memory_goes_to_the_next() -> None:
    async with (
        serving(storage_server_memory_bytes=4 * MIB, storage_server_stall_timeout_s=1.0) as one,
        open_backend(one.url()) as remote,
        connect_channel("127.0.0.1", one.port) as channel,
        channel.open_stream(api.StorageMethod.PUT) as silent,
    ):
        silent.send_nowait(silent.encode(api.PutObject("space", "k", 4 * MIB)))
        assert await silent.receive() is not None
        assert one.memory_held == 4 * MIB
        with trio.fail_after(10):
            await remote.put("k", bytes(4 * MIB))
        with pytest.raises(StorageTimeoutError, match="sent nothing for 1 s"):
            await silent.receive()


async def test_a_caller_that_reads_nothing_is_cut_off() -> None:
    async with (
        serving(storage_server_stall_timeout_s=0.3) as one,
        connect_channel("127.0.0.1", one.port) as channel,
        channel.open_stream(api.StorageMethod.GET) as deaf,
    ):
        # More than the windows of the stream and what may wait for it.
        size = 24 * MIB
        await one.backend.put("space/wide", bytes(size))
        deaf.send_nowait(deaf.encode(api.GetObject("space", "wide")))
        deaf.end()
        await until(lambda: one.memory_held == size)
        await until(lambda: one.memory_held == 0)
        # The others on the connection are served meanwhile.
        assert (
            await channel.unary(api.StorageMethod.HEAD, api.HeadObject("space", "wide"), api.Object)
        ).size_bytes == size
        with pytest.raises(StorageTimeoutError, match=r"read nothing for 0\.3 s"):
            await read_all(deaf)


async def test_nonsense_is_refused_and_costs_nothing_else() -> None:
    async with serving() as one, connect_channel("127.0.0.1", one.port) as channel:

        async def put(request: api.PutObject, *pieces: bytes) -> None:
            async with channel.open_stream(api.StorageMethod.PUT) as stream:
                stream.send_nowait(stream.encode(request))
                for piece in pieces:
                    stream.send_nowait(piece)
                stream.end()
                await read_all(stream)

        large = 100_000
        for request, pieces in [
            (api.PutObject("space", "../../etc/passwd", 1, data=b"x"), []),
            (api.PutObject("..", "k", 1, data=b"x"), []),
            (api.PutObject("/etc", "k", 1, data=b"x"), []),
            (api.PutObject("space", "", 1, data=b"x"), []),
            (api.PutObject("space", "k", -1), []),
            (api.PutObject("space", "k", 2, data=b"x"), []),
            (api.PutObject("space", "k", large), [bytes(large - 1)]),
            (api.PutObject("space", "k", large), [bytes(large), b"x"]),
        ]:
            with pytest.raises(InvalidArgumentError):
                await put(request, *pieces)
        for path, bad in [
            (api.StorageMethod.LIST, api.ListObjects("space", "../")),
            (api.StorageMethod.LIST, api.ListObjects("space", limit=0)),
            (api.StorageMethod.HEAD, api.HeadObject("a/../..", "k")),
            (api.StorageMethod.DELETE, api.DeleteObjects("space", ["ok", "a//b"])),
            (api.StorageMethod.ABANDON_UPLOADS, api.AbandonUploads("space", "/", 1.0)),
            (api.StorageMethod.GET, api.GetObject("space", "k", 5, 4)),
            (api.StorageMethod.GET_RANGES, api.GetRanges("space", "k", [1, 2, 3])),
            (api.StorageMethod.GET_RANGES, api.GetRanges("space", "k", [-1, 2])),
        ]:
            with pytest.raises(InvalidArgumentError):
                await channel.unary(path, bad, bytes)
        assert (await one.backend.list()).objects == []
        assert one.memory_held == 0


# --- Who may ---


async def test_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "empty").write_text("\n")
    async with serving(token="s3cret") as one:
        for query in ("", "?token=wrong", "?token=s3cret-"):
            with pytest.raises(StorageDeniedError, match="requires a token"):
                async with open_backend(one.url(query=query)):
                    pass
        for query in ("?token=s3cret", f"?token_file={tmp_path / 'token'}"):
            async with open_backend(one.url(query=query)) as remote:
                await remote.put("k", b"x" * 100_000)
                assert await remote.get("k") == b"x" * 100_000
                assert "s3cret" not in remote.url
        for query in (f"?token_file={tmp_path / 'empty'}", f"?token_file={tmp_path / 'none'}", "?token=two%20words"):
            with pytest.raises(ConfigurationError, match=r"token.* (one word|cannot be read)") as caught:
                async with open_backend(one.url(query=query)):
                    pass
            assert "two" not in caught.value.message
        async with connect_channel("127.0.0.1", one.port) as channel:
            for path, request in [
                (api.StorageMethod.DESCRIBE, api.Describe()),
                (api.StorageMethod.HEAD, api.HeadObject("space", "k")),
                (api.StorageMethod.LIST, api.ListObjects("space")),
                (api.StorageMethod.DELETE, api.DeleteObjects("space", ["k"])),
                (api.StorageMethod.ABANDON_UPLOADS, api.AbandonUploads("space", "", 0.0)),
                (api.StorageMethod.PUT, api.PutObject("space", "k", 0)),
                (api.StorageMethod.GET, api.GetObject("space", "k")),
                (api.StorageMethod.GET_RANGES, api.GetRanges("space", "k", [0, 1])),
            ]:
                with pytest.raises(StorageDeniedError):
                    await channel.unary(path, request, bytes)


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    data = random.Random(4).randbytes(5 * MIB)
    async with serving(tls=context) as one:
        async with open_backend(one.url(query=f"?tls=true&ca_file={tmp_path / 'ca.pem'}")) as remote:
            await remote.put("k", data)
            assert await remote.get("k") == data
        with pytest.raises(StorageUnavailableError, match="pass the file of its authority"):
            async with open_backend(one.url(query="?tls=true")):
                pass
        with pytest.raises(StorageUnavailableError):
            async with open_backend(one.url()):
                pass


async def test_the_url_is_checked() -> None:
    for url, reason in [
        ("remote:///space", "names no server"),
        ("remote://user:x@127.0.0.1:1/space", "has no users"),
        ("remote://127.0.0.1:port/space", "[Pp]ort"),
        ("remote://127.0.0.1:1/?ca_file=/nowhere", "ca_file"),
    ]:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            async with open_backend(url):
                pass
        assert "user:x" not in caught.value.message
    with pytest.raises(InvalidArgumentError):
        async with open_backend("remote://127.0.0.1:1/a/../b"):
            pass


# --- Connections ---


async def test_all_wait_for_one_connection_and_a_cancelled_caller_disturbs_no_other() -> None:
    async with serving() as one, open_backend(one.url()) as remote:
        await remote.put("k", b"x")
        channel = await remote._connection.channel()  # type: ignore[attr-defined]
        channel.close()
        results: list[bytes] = []

        async def read() -> None:
            results.append(await remote.get("k"))

        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as cancelled:
                    cancelled.start_soon(remote.get, "k")
                    await trio.testing.wait_all_tasks_blocked()
                    for _ in range(10):
                        nursery.start_soon(read)
                    scope.cancel()
        assert results == [b"x"] * 10
        await until(lambda: one.server.connections == 1)


async def test_a_draining_server_finishes_what_is_under_way() -> None:
    slow = MemoryBackend(latency_s=0.3)
    async with serving(slow) as one, open_backend(one.url()) as remote, trio.open_nursery() as nursery:
        nursery.start_soon(remote.put, "k", b"x" * 200_000)
        await until(lambda: one.memory_held > 0)
        await trio.sleep(0.05)
        await one.server.drain(5)
        await until(lambda: "space/k" in slow.space.objects)
        with pytest.raises(StorageUnavailableError):
            await remote.head("k")


# --- Processes ---


async def test_a_killed_server_comes_back_with_everything(tmp_path: Path) -> None:
    objects = {f"w/{number:02}": random.Random(number).randbytes(number * 40_000) for number in range(12)}
    with StorageServerProcess(f"disk://{tmp_path}/data") as process:
        assert f"listening on 127.0.0.1:{process.port}; serving disk://{tmp_path}/data (durable)" in process.ready_line
        async with open_backend(process.remote()) as remote:
            assert remote.capabilities.durable
            for key, data in objects.items():
                await remote.put(key, data, if_absent=True)
            process.kill()
            for operation in (
                partial(remote.put, "new", b"x"),
                partial(remote.put, "new", bytes(MIB)),
                partial(remote.get, "w/01"),
                partial(remote.get_ranges, "w/01", [(0, 1)]),
                partial(remote.head, "w/01"),
                partial(remote.list),
                partial(remote.delete, ["w/01"]),
                partial(remote.abandon_uploads, "", 1.0),
            ):
                with pytest.raises(StorageUnavailableError) as caught:
                    await operation()
                assert caught.value.retryable
            await trio.to_thread.run_sync(process.start)
            assert [found.key for found in (await remote.list()).objects] == sorted(objects)
            for key, data in objects.items():
                assert await remote.get(key) == data
                with pytest.raises(StorageExistsError):
                    await remote.put(key, b"other", if_absent=True)


async def test_kills_under_load_lose_nothing_answered(tmp_path: Path) -> None:
    answered: list[str] = []

    def content(key: str) -> bytes:
        return key.encode() * (20_000 if key.endswith("5") else 20)

    with StorageServerProcess(f"disk://{tmp_path}/data") as process:
        # A restart of Python takes seconds on a busy machine.
        patient = Limits(storage_max_attempts=200, storage_max_backoff_s=0.2)
        async with (
            open_storage(process.remote(), random=random.Random(1), limits=patient) as storage,
            trio.open_nursery() as nursery,
        ):

            async def write(writer: int) -> None:
                for number in range(30):
                    key = f"w/{writer}/{number:03}"
                    await storage.put(key, content(key), if_absent=True)
                    answered.append(key)

            for writer in range(4):
                nursery.start_soon(write, writer)
            for count in (25, 60):
                await until(lambda count=count: len(answered) >= count)
                process.kill()
                await trio.to_thread.run_sync(process.start)
        async with open_backend(process.remote()) as remote:
            assert len(answered) == 120
            assert [found.key for found in (await remote.list()).objects] == sorted(answered)
            for key in answered:
                assert await remote.get(key) == content(key)


async def test_a_server_that_comes_back_with_other_promises_is_refused(tmp_path: Path) -> None:
    with StorageServerProcess(f"disk://{tmp_path}/data") as process:
        async with open_backend(process.remote()) as remote:
            await remote.put("k", b"x")
            process.kill()
            good, process.url = process.url, "memory://"
            await trio.to_thread.run_sync(process.start)
            for _ in range(2):
                with pytest.raises(StorageError, match="has changed: it serves") as caught:
                    await remote.put("k", b"y")
                assert caught.value.retryable is False
            process.kill()
            process.url = good
            await trio.to_thread.run_sync(process.start)
            assert await remote.get("k") == b"x"


async def test_a_process_with_tls_and_token(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    (tmp_path / "token").write_text("s3cret\n")
    options = ("--token-file", str(tmp_path / "token"), "--tls-cert", str(tmp_path / "server.pem"))
    with StorageServerProcess("memory://", *options, "--max-object-size", "1MiB") as process:
        assert "serving memory:// (not durable)" in process.ready_line
        query = f"?ca_file={tmp_path / 'ca.pem'}"
        async with open_backend(process.remote(query=f"{query}&token_file={tmp_path / 'token'}")) as remote:
            assert remote.capabilities.max_object_bytes == MIB
            await remote.put("k", bytes(MIB))
            assert await remote.get("k", 5, 10) == bytes(5)
        with pytest.raises(StorageDeniedError):
            async with open_backend(process.remote(query=query)):
                pass


async def test_a_process_that_asks_for_certificates_of_clients(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    cert, key = files.pair("server")
    own, own_key = files.pair("client", "danube://danube/broker/b1")
    options = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", files.ca)
    with StorageServerProcess("memory://", *options) as process:
        assert f"127.0.0.1:{process.port} (TLS);" in process.ready_line
        query = f"?ca_file={files.ca}&cert_file={own}&key_file={own_key}"
        async with open_backend(process.remote(query=query)) as remote:
            await remote.put("k", b"x")
            files.pair("server", days=20)
            process.signal(signal.SIGHUP)
            assert await remote.get("k", 0, 1) == b"x"
        with pytest.raises(StorageUnavailableError, match="pass one with cert and key"):
            async with open_backend(process.remote(query=f"?ca_file={files.ca}")):
                pass


async def test_a_process_with_a_list_of_clients(tmp_path: Path) -> None:
    """The names of certificates replace a token; with one they replace it if that is said."""
    files = make_files(tmp_path)
    cert, key = files.pair("server")
    (tmp_path / "token").write_text("s3cret")

    def query(name: str, *hosts: str, token: bool = False) -> str:
        own, own_key = files.pair(name, *hosts)
        told = f"&token_file={tmp_path / 'token'}" if token else ""
        return f"?ca_file={files.ca}&cert_file={own}&key_file={own_key}{told}"

    async def works(process: StorageServerProcess, query: str) -> None:
        async with open_backend(process.remote(query=query)) as remote:
            await remote.put("k", b"x")
            assert await remote.get("k") == b"x"

    broker, other = query("b1", "danube://shop/broker/b1"), query("b9", "danube://other/broker/b9")
    executor = query("executor", "spark.example.org", "10.0.0.1")
    options = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", files.ca]
    options += ["--client", "danube://shop/broker/*", "--client", "Spark.example.org"]
    with StorageServerProcess("memory://", *options) as process:
        await works(process, broker)
        await works(process, executor)
        with pytest.raises(StorageDeniedError, match="does not accept certificates for danube://other/broker/b9; add"):
            await works(process, other)
        with pytest.raises(StorageUnavailableError, match="pass one with cert and key"):
            await works(process, f"?ca_file={files.ca}")
    options += ["--token-file", str(tmp_path / "token")]
    with StorageServerProcess("memory://", *options) as process:
        with pytest.raises(StorageDeniedError, match="requires a token"):
            await works(process, broker)
        await works(process, query("b2", "danube://shop/broker/b2", token=True))
        with pytest.raises(StorageDeniedError, match="does not accept certificates"):
            await works(process, query("b3", "danube://other/broker/b3", token=True))
    with StorageServerProcess("memory://", *options, "--tls-client-auth", "optional") as process:
        await works(process, broker)
        await works(process, f"?ca_file={files.ca}&token_file={tmp_path / 'token'}")
        with pytest.raises(StorageDeniedError, match="requires a token"):
            await works(process, f"?ca_file={files.ca}")


async def test_a_certificate_that_ends_is_replaced_by_a_renewed_one(tmp_path: Path) -> None:
    """The connection ends with it; the next one reads the files again."""
    files = make_files(tmp_path)
    own, own_key = files.pair("client", "danube://shop/broker/b1")
    now_s = [time.time()]
    config = files.server(client_ca=files.ca, client_auth="required")
    admission = Admission(None, "required", ["danube://shop/broker/*"])
    async with serving(server_tls=config, admission=admission, wall_s=lambda: now_s[0]) as one:
        query = f"?ca_file={files.ca}&cert_file={own}&key_file={own_key}"
        async with open_backend(one.url(query=query)) as remote:
            await remote.put("k", b"x")
            now_s[0] += 40 * 24 * 3600  # its certificate lasts for thirty days
            files.pair("client", "danube://shop/broker/b1", days=100)
            with pytest.raises(StorageUnavailableError, match="has ended; connect with a renewed one"):
                await remote.get("k")
            assert await remote.get("k") == b"x"


async def test_a_signal_drains(tmp_path: Path) -> None:
    with StorageServerProcess("memory://?latency_ms=600") as process:
        async with open_backend(process.remote()) as remote, trio.open_nursery() as nursery:
            nursery.start_soon(remote.put, "k", b"x" * 300_000)
            await trio.sleep(0.3)
            process.signal(signal.SIGTERM)
            # The put is answered well, or this block would raise.
        assert await trio.to_thread.run_sync(process.wait) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nothing"], 65, "storage URL is not valid"),
        (["s3x://bucket"], 65, "pip install danube-storage-s3x"),
        (["memory://", "--listen", "here:port"], 65, "is not host:port, for example 127.0.0.1:6660"),
        (["memory://", "--listen", "203.0.113.1:6660"], 65, "cannot listen on 203.0.113.1:6660"),
        (["memory://", "--token-file", "empty"], 65, "one word"),
        (["memory://", "--tls-key", "empty"], 65, "--tls-key needs --tls-cert"),
        (["memory://", "--tls-cert", "empty"], 65, "certificate"),
        (["memory://", "--tls-client-auth", "optional"], 65, "--tls-client-auth needs --tls-cert"),
        (["memory://", "--tls-cert", "empty", "--tls-client-auth", "some"], 65, "is not none, optional or required"),
        (["memory://", "--client", "danube://shop/broker/b1"], 65, "which are not asked for"),
        (
            ["memory://", "--tls-cert", "empty", "--tls-client-ca", "empty", "--client", "danube://*"],
            65,
            "is no name of clients",
        ),
        (
            ["memory://", "--tls-cert", "empty", "--tls-client-ca", "empty", "--tls-client-auth", "optional"],
            65,
            "callers without one need a token",
        ),
        (["memory://", "--memory", "much"], 65, "not a size"),
        (["memory://", "--max-object-size", "0"], 65, "must be greater than 0"),
        (["memory://", "--log-level", "loud"], 65, "loud"),
        (["remote://127.0.0.1:1/x"], 69, "no connection"),
    ],
)
def test_a_storage_that_cannot_be_served_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("")
    done = CliRunner().invoke(app, ["storage-server", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert reason in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
