"""Requests of ``azure://``, and its handling of answers that no emulator gives."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
import trio
from canned_http import Answer, Request, Silence, serve
from storage_servers import AzuriteServer

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

SECRET = base64.b64encode(b"sesame-open-sesame").decode()


def url(endpoint: str, options: str = "") -> str:
    connection = f"DefaultEndpointsProtocol=http;AccountName=me;AccountKey={SECRET};BlobEndpoint={endpoint}/me;"
    return f"az://box/pre/fix?connection_string={quote(connection, safe='')}{options}"


def failing(status: int, code: str) -> Answer:
    body = f"<?xml version='1.0' encoding='utf-8'?><Error><Code>{code}</Code><Message>It is so.</Message></Error>"
    return Answer(status, body.encode(), {"content-type": "application/xml", "x-ms-error-code": code})


CREATED = Answer(201, b"", {"etag": '"0x1"', "last-modified": "Mon, 01 Jun 2026 10:00:00 GMT"})


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
    ("status", "code", "kind"),
    [
        (503, "ServerBusy", StorageThrottledError),
        (500, "OperationTimedOut", StorageTimeoutError),
        (500, "InternalError", StorageUnavailableError),
        (403, "AuthenticationFailed", StorageDeniedError),
        (403, "AuthorizationPermissionMismatch", StorageDeniedError),
        (401, "InvalidAuthenticationInfo", StorageDeniedError),
        (409, "ContainerBeingDeleted", StorageNotFoundError),
        (409, "BlobImmutableDueToPolicy", StorageDeniedError),
        (409, "SomethingElse", StorageConflictError),
        (400, "Md5Mismatch", StorageUnavailableError),
        (400, "InvalidHeaderValue", StorageError),
    ],
)
async def test_codes_are_told_apart_and_nothing_is_tried_twice(
    status: int, code: str, kind: type[StorageError]
) -> None:
    async with (
        serve(lambda request: failing(status, code)) as server,
        open_backend(url(server.endpoint)) as backend,
    ):
        for number, (name, call) in enumerate(calls(backend).items(), 1):
            with pytest.raises(StorageError) as caught:
                await call()
            assert type(caught.value) is kind, name
            assert len(server.requests) == number
            assert code in caught.value.message
            assert SECRET not in caught.value.message


async def test_a_condition_is_lost_or_undecided() -> None:
    answers = iter(
        [failing(409, "BlobAlreadyExists"), failing(412, "ConditionNotMet"), failing(409, "PendingCopyOperation")]
    )
    async with serve(lambda request: next(answers)) as server, open_backend(url(server.endpoint)) as backend:
        for kind in (StorageExistsError, StorageExistsError, StorageConflictError):
            with pytest.raises(kind):
                await backend.put("k", b"", if_absent=True)
        assert [request.headers["if-none-match"] for request in server.requests] == ["*"] * 3


async def test_the_requests_of_an_azure_put() -> None:
    data = bytes(range(256)) * 8000  # more than what is sent at once
    async with serve(lambda request: CREATED) as server:
        async with open_backend(url(server.endpoint)) as backend:
            await backend.put("a/b=c", data)
        async with open_backend(url(server.endpoint, "&checksum=false")) as backend:
            await backend.put("a", bytearray(data))
    first, second = server.requests
    assert (first.method, first.path, first.body) == ("PUT", "/me/box/pre/fix/a/b=c", data)
    assert first.headers["x-ms-blob-type"] == "BlockBlob"
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    assert first.headers["content-md5"] == base64.b64encode(md5).decode()
    assert "if-none-match" not in first.headers
    assert (second.body, second.headers.get("content-md5")) == (data, None)


async def test_a_large_object_goes_in_blocks_and_its_condition_with_the_last_request() -> None:
    size = 64 * MIB + 1
    async with serve(lambda request: CREATED) as server, open_backend(url(server.endpoint)) as backend:
        await backend.put("k", bytes(size), if_absent=True)
        *blocks, last = server.requests
        assert {block.query["comp"] for block in blocks} == {"block"}
        assert sum(len(block.body) for block in blocks) == size
        assert last.query["comp"] == "blocklist"
        assert last.headers["if-none-match"] == "*"


async def test_a_connection_that_ends_or_says_nothing() -> None:
    silence = Silence.CLOSE
    async with (
        serve(lambda request: silence) as server,
        open_backend(url(server.endpoint, "&read_timeout_s=30")) as backend,
        open_backend(url(server.endpoint, "&read_timeout_s=0.3")) as hasty,
    ):
        for call in calls(backend).values():
            with pytest.raises(StorageUnavailableError):
                await call()
        silence = Silence.STALL
        for call in calls(hasty).values():
            with trio.fail_after(5), pytest.raises(StorageTimeoutError):
                await call()


async def test_a_cancelled_put_never_reaches_its_end() -> None:
    """The server reads nothing for a while, so it cannot have had the whole object in hand."""
    async with serve(lambda request: CREATED, reading=False) as server, open_backend(url(server.endpoint)) as backend:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.put, "k", bytes(32 * MIB))
                await server.arrived.wait()
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
            server.reading.set()
            await server.broken.wait()
        assert server.requests == []


async def test_a_listing_begins_at_its_key() -> None:
    """The service can; what it gives nevertheless from before the key is passed over, and so is what is not ours."""
    names = ["k/A", "k/B", "k/a//b", "k/a", "k/b", "k/c"]
    item = (
        "<Blob><Name>pre/fix/{}</Name><Properties><Last-Modified>Mon, 01 Jun 2026 10:00:00 GMT</Last-Modified>"
        "<Content-Length>5</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
    )

    def answer(request: Request) -> Answer:
        assert request.query["startFrom"] == "pre/fix/k/B"
        items = "".join(item.format(name) for name in names)
        body = f"<?xml version='1.0'?><EnumerationResults><Blobs>{items}</Blobs><NextMarker/></EnumerationResults>"
        return Answer(body=body.encode(), headers={"content-type": "application/xml"})

    async with serve(answer) as server, open_backend(url(server.endpoint)) as backend:
        page = await backend.list("k/", start_after="k/B", limit=2)
        assert ([found.key for found in page.objects], page.more) == (["k/a", "k/b"], True)
        assert page.objects[0].modified_us == 1_780_308_000_000_000
        assert len(server.requests) == 1


async def test_wrong_urls() -> None:
    for rest, reason in [
        ("/prefix", "names no container"),
        ("container@account.dfs.core.windows.net/prefix", "account_name"),
        ("container?max_concurrency=0", "max_concurrency"),
        ("container?account_name=a&client_id=b", "belong together"),
        ("container?connection_string=sesame", "do not define a client"),
        ("container?acount_name=x", "did you mean 'account_name'"),
    ]:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            async with open_backend(f"az://{rest}"):
                pass
        assert "sesame" not in str(caught.value)


async def test_a_killed_server_is_unavailable_and_comes_back(tmp_path: Path, azurite: AzuriteServer) -> None:
    with AzuriteServer(tmp_path, azurite.cache) as server:
        container = server.bucket()
        async with open_backend(server.storage_url(container, "p")) as backend:
            await backend.put("k", b"data")
            server.kill()
            for call in calls(backend).values():
                with pytest.raises(StorageUnavailableError):
                    await call()
            await trio.to_thread.run_sync(server.start)
            # This server promises nothing of what it had not yet written down, not even the container.
            with suppress(HTTPError):
                server.bucket(container)
            await backend.put("k", b"again")
            assert await backend.get("k") == b"again"
