"""Requests of ``s3://`` and ``s3+obstore://``, and their handling of answers that no emulator gives."""

from __future__ import annotations

import base64
import hashlib
import ssl
from pathlib import Path
from random import Random

import google_crc32c
import pytest
import trio
import trustme
from aiohttp.http_writer import StreamWriter
from canned_http import Answer, Request, Silence, serve
from danube_storage_s3._bodies import PIECE_BYTES
from storage_servers import SeaweedServer

from danube.model.errors import (
    ConfigurationError,
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import MIB
from danube.storage import StorageBackend, open_backend

SCHEMES = ("s3", "s3+obstore")
SECRET = "sesame-open-sesame"


def url(endpoint: str, scheme: str = "s3", options: str = "") -> str:
    return f"{scheme}://bkt/pre/fix?endpoint_url={endpoint}&region=eu-west-1&key=KEYID&secret={SECRET}{options}"


def failing(status: int, code: str, **headers: str) -> Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>It is so.</Message></Error>"
    return Answer(status, body.encode(), {"content-type": "application/xml"} | headers)


def calls(backend: StorageBackend):
    return {
        "put": lambda: backend.put("k", b"data"),
        "create": lambda: backend.put("k", b"data", if_absent=True),
        "get": lambda: backend.get("k"),
        "range": lambda: backend.get("k", 1, 3),
        "head": lambda: backend.head("k"),
        "list": lambda: backend.list("k"),
        "delete": lambda: backend.delete(["k"]),
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", StorageThrottledError),
        (503, "ServiceUnavailable", StorageThrottledError),
        (429, "TooManyRequests", StorageThrottledError),
        (500, "InternalError", StorageUnavailableError),
        (502, "", StorageUnavailableError),
        (403, "AccessDenied", StorageDeniedError),
        (403, "InvalidAccessKeyId", StorageDeniedError),
        (403, "RequestTimeTooSkewed", StorageDeniedError),
        (400, "ExpiredToken", StorageDeniedError),
        (400, "RequestTimeout", StorageTimeoutError),
        (404, "NoSuchBucket", StorageNotFoundError),
        (400, "MalformedXML", StorageError),
    ],
)
async def test_codes_are_told_apart_and_nothing_is_tried_twice(
    scheme: str, status: int, code: str, kind: type[StorageError]
) -> None:
    async with (
        serve(lambda request: failing(status, code)) as server,
        open_backend(url(server.endpoint, scheme)) as backend,
    ):
        for name, call in calls(backend).items():
            if name == "head" and status == 400:
                continue  # without a body the code is not known
            before = len(server.requests)
            with pytest.raises(StorageError) as caught:
                await call()
            assert type(caught.value) is kind, name
            assert len(server.requests) == before + 1
            message = caught.value.message
            assert message.startswith(f"s3{scheme[2:]}://bkt/pre/fix?")
            assert SECRET not in message
            assert "KEYID" not in message
            assert status != 503 or str(status) in message or code in message


@pytest.mark.parametrize("extra_bytes", [-1, 0, 1, 3 * MIB + 7])
async def test_a_large_body_is_sent_in_pieces_with_its_length_and_checksums(
    extra_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a copy of the whole, which the broker's event loop would wait for."""
    written: list[int] = []
    write = StreamWriter.write

    async def note(writer: StreamWriter, chunk: bytes, **options: object) -> None:
        written.append(len(chunk))
        await write(writer, chunk, **options)

    monkeypatch.setattr(StreamWriter, "write", note)
    data = bytearray(Random(1).randbytes(PIECE_BYTES + extra_bytes))
    async with serve(lambda request: Answer(200)) as server, open_backend(url(server.endpoint)) as backend:
        await backend.put("k", data)
        (request,) = server.requests
        assert request.body == data
        assert request.headers["content-length"] == str(len(data))
        assert request.headers["x-amz-content-sha256"] == hashlib.sha256(data).hexdigest()
        assert (
            base64.b64decode(request.headers["x-amz-checksum-crc32c"]) == google_crc32c.Checksum(bytes(data)).digest()
        )
        data.extend(b"more")  # nothing holds on to it
    assert sum(written) == len(data) - 4
    assert max(written) <= PIECE_BYTES


@pytest.mark.parametrize("size_bytes", [100, PIECE_BYTES, 24 * MIB])
async def test_a_put_that_is_given_up_lets_go_of_its_buffer(size_bytes: int) -> None:
    """The sealer's, which it changes and makes longer for the next object."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    data = bytearray(size_bytes)

    async def read_nothing(_stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery, open_backend(url(f"http://127.0.0.1:{port}")) as backend:
        nursery.start_soon(trio.serve_listeners, read_nothing, listeners)
        for give_up_after_s in (0.05, 0.3):
            with trio.move_on_after(give_up_after_s) as scope:
                await backend.put("k", data)
            assert scope.cancelled_caught
            data.extend(b"more")
            del data[1:]
            data.extend(bytes(size_bytes))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_condition_is_lost_or_undecided(scheme: str) -> None:
    answers = {"lost": failing(412, "PreconditionFailed"), "undecided": failing(409, "ConditionalRequestConflict")}

    def answer(request: Request) -> Answer:
        assert request.headers["if-none-match"] == "*"
        return answers[request.path.rpartition("/")[2]]

    async with serve(answer) as server, open_backend(url(server.endpoint, scheme)) as backend:
        with pytest.raises(StorageExistsError):
            await backend.put("lost", b"", if_absent=True)
        with pytest.raises(StorageConflictError):
            await backend.put("undecided", b"", if_absent=True)
        assert len(server.requests) == 2


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_connection_that_ends_or_says_nothing(scheme: str) -> None:
    silence = Silence.CLOSE
    async with (
        serve(lambda request: silence) as server,
        open_backend(url(server.endpoint, scheme, "&read_timeout_s=30")) as backend,
        open_backend(url(server.endpoint, scheme, "&read_timeout_s=0.3")) as hasty,
    ):
        for name, call in calls(backend).items():
            with pytest.raises(StorageUnavailableError):
                await call()
            assert name
        silence = Silence.STALL
        for call in calls(hasty).values():
            with trio.fail_after(5), pytest.raises(StorageTimeoutError):
                await call()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_answer_that_breaks_off_is_not_an_object(scheme: str) -> None:
    about = {"last-modified": "Mon, 01 Jun 2026 10:00:00 GMT", "etag": '"x"', "content-range": "bytes 0-9/10"}

    def answer(request: Request) -> Answer:
        return Answer(206 if "range" in request.headers else 200, b"12345", about, cut=5)

    async with serve(answer) as server, open_backend(url(server.endpoint, scheme)) as backend:
        with pytest.raises(StorageUnavailableError):
            await backend.get("k")
        with pytest.raises(StorageUnavailableError):
            await backend.get("k", 0, 10)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_cancelled_put_never_reaches_its_end(scheme: str) -> None:
    """The server reads nothing for a while, so it cannot have had the whole object in hand."""
    async with (
        serve(lambda request: Answer(headers={"etag": '"x"'}), reading=False) as server,
        open_backend(url(server.endpoint, scheme)) as backend,
    ):
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.put, "k", bytes(32 * MIB))
                await server.arrived.wait()
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
            server.reading.set()
            await server.broken.wait()
        assert server.requests == []


async def test_the_requests_of_an_s3_put() -> None:
    data = b"some data"
    async with serve(lambda request: Answer(headers={"etag": '"x"'})) as server:
        async with open_backend(url(server.endpoint, options="&sse=aws:kms&sse_kms_key_id=mykey")) as backend:
            await backend.put("a/b=c", data)
        async with open_backend(url(server.endpoint, options="&checksum=false&token=session")) as backend:
            await backend.put("a", bytearray(data))
        async with open_backend(f"s3://bkt?endpoint_url={server.endpoint}&region=eu-west-1&anon=true") as backend:
            await backend.put("a", data)
    first, second, third = server.requests
    assert (first.method, first.path, first.body) == ("PUT", "/bkt/pre/fix/a/b=c", data)
    crc = google_crc32c.value(data).to_bytes(4, "big")
    assert first.headers["x-amz-checksum-crc32c"] == base64.b64encode(crc).decode()
    assert first.headers["x-amz-server-side-encryption"] == "aws:kms"
    assert first.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "mykey"
    assert "if-none-match" not in first.headers
    assert second.body == data
    assert second.headers["x-amz-security-token"] == "session"
    assert not [name for name in second.headers if "checksum" in name or "server-side" in name]
    assert third.path == "/bkt/a"
    assert "authorization" not in third.headers


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_payloads_over_tls_are_not_hashed_for_the_signature(scheme: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    stored = Answer(headers={"etag": '"x"'})
    async with serve(lambda request: stored, tls=tls) as server:
        async with open_backend(url(server.endpoint, scheme, f"&ca_file={tmp_path}/ca.pem")) as backend:
            await backend.put("k", b"data")
        async with open_backend(url(server.endpoint, scheme)) as backend:
            with pytest.raises(StorageUnavailableError):
                await backend.put("k", b"the authority is not known")
    async with serve(lambda request: stored) as plain, open_backend(url(plain.endpoint, scheme)) as backend:
        await backend.put("k", b"data")
    (through_tls,) = server.requests
    assert through_tls.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert through_tls.body == b"data"
    assert plain.requests[0].headers["x-amz-content-sha256"] == hashlib.sha256(b"data").hexdigest()


async def test_a_bulk_deletion_tells_of_each_key() -> None:
    failed = {"gone": "NoSuchKey", "slow": "SlowDown", "kept": "AccessDenied"}

    def answer(request: Request) -> Answer:
        errors = "".join(
            f"<Error><Key>pre/fix/{key}</Key><Code>{code}</Code><Message>m</Message></Error>"
            for key, code in failed.items()
            if f"<Key>pre/fix/{key}</Key>" in request.body.decode()
        )
        return Answer(body=f"<?xml version='1.0'?><DeleteResult>{errors}</DeleteResult>".encode())

    async with serve(answer) as server, open_backend(url(server.endpoint)) as backend:
        await backend.delete(["a", "gone", "a"])
        with pytest.raises(StorageThrottledError, match="delete slow"):
            await backend.delete(["a", "slow"])
        with pytest.raises(StorageDeniedError, match="delete kept"):
            await backend.delete(["kept"])
        sent = len(server.requests)
        await backend.delete([f"k{number}" for number in range(2500)])
        assert [request.body.count(b"<Key>") for request in server.requests[sent:]] == [1000, 1000, 500]


async def test_a_page_of_foreign_objects_is_passed_over() -> None:
    item = "<Contents><Key>pre/fix/{}</Key><Size>1</Size><LastModified>2026-06-01T10:00:00Z</LastModified></Contents>"
    pages = {"": (["a//b", ".hidden"], True), "pre/fix/.hidden": (["b", "c"], False)}

    def answer(request: Request) -> Answer:
        names, more = pages[request.query.get("start-after", "")]
        items = "".join(item.format(name) for name in names)
        truncated = str(more).lower()
        return Answer(
            body=f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{items}</ListBucketResult>".encode()
        )

    async with serve(answer) as server, open_backend(url(server.endpoint)) as backend:
        page = await backend.list()
        assert ([found.key for found in page.objects], page.more) == (["b", "c"], False)
        assert len(server.requests) == 2


async def test_a_put_in_parts_that_fails_takes_its_parts_away() -> None:
    parts_are_taken = True

    def answer(request: Request) -> Answer:
        if request.method == "POST" and "uploads" in request.query:
            return Answer(
                body=b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
            )
        if request.method == "DELETE":
            return Answer(204)
        if request.method == "PUT":
            return Answer(headers={"etag": '"x"'}) if parts_are_taken else failing(503, "SlowDown")
        assert request.headers["if-none-match"] == "*"
        return failing(412, "PreconditionFailed")

    options = f"&single_put_bytes={5 * MIB}&part_bytes={5 * MIB}"
    async with serve(answer) as server, open_backend(url(server.endpoint, options=options)) as backend:
        for taken, kind in ((True, StorageExistsError), (False, StorageThrottledError)):
            parts_are_taken = taken
            before = len(server.requests)
            with pytest.raises(kind):
                await backend.put("k", bytes(11 * MIB), if_absent=True)
            removed = [request for request in server.requests[before:] if request.method == "DELETE"]
            assert [request.query["uploadId"] for request in removed] == ["u1"]
        parts = [request for request in server.requests if request.method == "PUT"][:3]
        assert sorted(len(part.body) for part in parts) == [1 * MIB, 5 * MIB, 5 * MIB]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_wrong_urls(scheme: str) -> None:
    for rest, reason in [
        ("/prefix", "names no bucket"),
        ("key:secret@bucket/prefix", "credentials as options"),
        ("bucket?key=a", "belong together"),
        ("bucket?key=a&secret=b&anon=true", "anon=true"),
        ("bucket?sse_kms_key_id=k", "sse=aws:kms"),
        ("bucket?max_concurrency=0", "max_concurrency"),
        ("bucket?part_bytes=1000", "part_bytes"),
        ("bucket?ca_file=/nowhere", "ca_file"),
        ("bucket?read_timeout_s=0", "read_timeout_s"),
        ("bucket?regoin=x", "did you mean 'region'"),
    ]:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            async with open_backend(f"{scheme}://{rest}"):
                pass
        assert "secret@" not in caught.value.message


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_server_is_killed_frozen_and_comes_back(scheme: str, tmp_path: Path) -> None:
    """What was answered is there afterwards; what was not fails in a way that may be tried again."""
    with SeaweedServer(tmp_path / "seaweed") as server:
        target = server.storage_url(server.bucket(), "p").replace("s3://", f"{scheme}://")
        async with (
            open_backend(f"{target}&read_timeout_s=30") as backend,
            open_backend(f"{target}&read_timeout_s=1") as hasty,
        ):
            answered: list[str] = []
            failed: list[StorageError] = []
            under_way = trio.Event()

            async def write(writer: int) -> None:
                for number in range(1000):
                    try:
                        await backend.put(f"{writer}/{number:04}", b"%d" % number * 1000)
                    except StorageError as error:
                        failed.append(error)
                        return
                    answered.append(f"{writer}/{number:04}")
                    if len(answered) == 40:
                        under_way.set()

            async with trio.open_nursery() as nursery:
                for writer in range(4):
                    nursery.start_soon(write, writer)
                await under_way.wait()
                server.kill()
            assert [type(error) for error in failed] == [StorageUnavailableError] * 4
            with pytest.raises(StorageUnavailableError):
                await backend.get(answered[0])
            await trio.to_thread.run_sync(server.start)
            for key in answered:
                assert await backend.get(key) == b"%d" % int(key[2:]) * 1000
            server.freeze()
            with trio.fail_after(20), pytest.raises(StorageTimeoutError):
                await hasty.get(answered[0])
            server.thaw()
            assert await backend.get(answered[0], 0, 1) == b"0"
