"""Requests of ``gcs://``, and its handling of answers that no emulator gives."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import google_crc32c
import pytest
import trio
from canned_http import Answer, Request, Silence, serve
from storage_servers import FakeGcsServer

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

TOKEN = "ya29.sesame-open-sesame"


def url(endpoint: str, options: str = "") -> str:
    return f"gs://bkt/pre/fix?endpoint_url={endpoint}&token={TOKEN}{options}"


def failing(status: int, reason: str = "") -> Answer:
    error = {"code": status, "message": "It is so.", "errors": [{"reason": reason, "domain": "global"}]}
    return Answer(status, json.dumps({"error": error}).encode(), {"content-type": "application/json"})


def calls(backend: StorageBackend):
    return {
        "put": lambda: backend.put("k", b"data"),
        "get": lambda: backend.get("k"),
        "range": lambda: backend.get("k", 1, 3),
        "head": lambda: backend.head("k"),
        "list": lambda: backend.list("k"),
        "delete": lambda: backend.delete(["k"]),
    }


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (failing(503, "backendError"), StorageThrottledError),
        (failing(429, "rateLimitExceeded"), StorageThrottledError),
        (failing(403, "rateLimitExceeded"), StorageThrottledError),
        (failing(403, "userRateLimitExceeded"), StorageThrottledError),
        (failing(500, "internalError"), StorageUnavailableError),
        (Answer(502, b"<html>Bad Gateway</html>"), StorageUnavailableError),
        (failing(403, "forbidden"), StorageDeniedError),
        (failing(401, "authError"), StorageDeniedError),
        (Answer(401, b"Invalid Credentials"), StorageDeniedError),
        (failing(408, "requestTimeout"), StorageTimeoutError),
        (failing(400, "invalid"), StorageError),
    ],
)
async def test_answers_are_told_apart_and_nothing_is_tried_twice(answer: Answer, kind: type[StorageError]) -> None:
    async with serve(lambda request: answer) as server, open_backend(url(server.endpoint)) as backend:
        for number, (name, call) in enumerate(calls(backend).items(), 1):
            with pytest.raises(StorageError) as caught:
                await call()
            assert type(caught.value) is kind, name
            assert len(server.requests) == number
            assert str(answer.status) in caught.value.message
            assert TOKEN not in caught.value.message
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"


async def test_a_condition_is_lost_or_undecided() -> None:
    answers = iter([failing(412, "conditionNotMet"), failing(409, "conflict"), failing(404, "notFound")])
    async with serve(lambda request: next(answers)) as server, open_backend(url(server.endpoint)) as backend:
        for kind in (StorageExistsError, StorageConflictError, StorageNotFoundError):
            with pytest.raises(kind):
                await backend.put("k", b"", if_absent=True)
        assert [request.query["ifGenerationMatch"] for request in server.requests] == ["0"] * 3


async def test_the_requests_of_a_gcs_put() -> None:
    data = os.urandom(3000)
    async with (
        serve(lambda request: Answer(body=b"{}")) as server,
        open_backend(url(server.endpoint, "&kms_key_name=projects/p/k")) as backend,
    ):
        await backend.put("a/b=c", data)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/upload/storage/v1/b/bkt/o")
    assert request.query == {"uploadType": "multipart", "kmsKeyName": "projects/p/k"}
    boundary = request.headers["content-type"].removeprefix("multipart/related; boundary=").encode()
    _, about, content, end = request.body.split(b"--" + boundary)
    crc = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    assert json.loads(about.partition(b"\r\n\r\n")[2]) == {"name": "pre/fix/a/b=c", "crc32c": crc}
    assert content.partition(b"\r\n\r\n")[2] == data + b"\r\n"
    assert end == b"--"


async def test_a_connection_that_ends_breaks_off_or_says_nothing() -> None:
    answer: Answer | Silence = Silence.CLOSE
    async with (
        serve(lambda request: answer) as server,
        open_backend(url(server.endpoint, "&read_timeout_s=30")) as backend,
        open_backend(url(server.endpoint, "&read_timeout_s=0.3")) as hasty,
    ):
        for call in calls(backend).values():
            with pytest.raises(StorageUnavailableError):
                await call()
        answer = Answer(body=b"12345", cut=5)
        for call in calls(backend).values():
            with pytest.raises(StorageUnavailableError):
                await call()
        answer = Answer(body=b"{broken")
        with pytest.raises(StorageUnavailableError):
            await backend.list()
        answer = Silence.STALL
        for call in calls(hasty).values():
            with trio.fail_after(5), pytest.raises(StorageTimeoutError):
                await call()


async def test_a_cancelled_put_never_reaches_its_end() -> None:
    """The server reads nothing for a while, so it cannot have had the whole object in hand."""
    async with (
        serve(lambda request: Answer(body=b"{}"), reading=False) as server,
        open_backend(url(server.endpoint)) as backend,
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


async def test_a_listing_goes_on_until_the_page_is_full() -> None:
    """The service may give short pages, or pages of what is not ours."""
    pages = {"": (["k/a//b", "k/.x"], "t1"), "t1": ([], "t2"), "t2": (["k/a", "k/b"], "t3"), "t3": (["k/c"], "")}

    def answer(request: Request) -> Answer:
        assert (request.query["prefix"], request.query["maxResults"]) == ("pre/fix/k/", "3")
        assert request.query["startOffset"] == "pre/fix/k/A"
        names, token = pages[request.query.get("pageToken", "")]
        items = [{"name": f"pre/fix/{name}", "size": "5", "updated": "2026-06-01T10:00:00.5Z"} for name in names]
        return Answer(body=json.dumps({"items": items, "nextPageToken": token}).encode())

    async with serve(answer) as server, open_backend(url(server.endpoint)) as backend:
        page = await backend.list("k/", start_after="k/A", limit=2)
        assert ([found.key for found in page.objects], page.more) == (["k/a", "k/b"], True)
        assert page.objects[0].modified_us == 1_780_308_000_500_000
        assert len(server.requests) == 4


async def test_wrong_urls(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"type": "nonsense", "private_key": "sesame"}')
    for rest, reason in [
        ("/prefix", "names no bucket"),
        ("bucket?max_concurrency=0", "max_concurrency"),
        ("bucket?connect_timeout_s=0", "connect_timeout_s"),
        ("bucket?tokn=x", "did you mean 'token'"),
        (f"bucket?token={tmp_path}/key.json", "the option token"),
    ]:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            async with open_backend(f"gs://{rest}"):
                pass
        assert "sesame" not in str(caught.value)


async def test_a_killed_server_is_unavailable(tmp_path: Path) -> None:
    with FakeGcsServer(tmp_path) as server:
        bucket = server.bucket()
        async with open_backend(server.storage_url(bucket, "p")) as backend:
            await backend.put("k", b"data")
            server.kill()
            for call in calls(backend).values():
                with pytest.raises(StorageUnavailableError):
                    await call()
            await trio.to_thread.run_sync(server.start)
            with pytest.raises(StorageNotFoundError):
                await backend.get("k")  # this server forgets
            server.bucket(bucket)
            await backend.put("k", b"data", if_absent=True)
            assert await backend.get("k") == b"data"
