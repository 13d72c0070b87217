"""``gcs://``: objects in Google Cloud Storage, using its JSON interface.

A **put** is one request with two parts, whatever the object's size::

    POST /upload/storage/v1/b/BUCKET/o?uploadType=multipart[&ifGenerationMatch=0]

    --BOUNDARY
    Content-Type: application/json              {"name": ..., "crc32c": ...}
    --BOUNDARY
    Content-Type: application/octet-stream      the bytes
    --BOUNDARY--

The other kinds of upload (in one part, or resumable) can leave remains when they are interrupted, and not every
emulator evaluates their condition. ``ifGenerationMatch=0`` lets exactly one writer of a key win. The service compares
the checksum with the received bytes.
"""

from __future__ import annotations

import asyncio
import base64
import io
import secrets
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import aiohttp
import google.auth.exceptions
import google_crc32c
import msgspec

from danube.model.errors import (
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.storage import ListPage, ObjectInfo, StorageCapabilities, is_key
from danube.storage.fsspec import FsspecBackend, call_asyncio
from danube_storage_gcs._client import AnswerError, GcsClient

__all__ = ["GcsBackend"]

_Result = TypeVar("_Result")

_MAX_LIST = 1000
_OBJECTS = "b/{}/o"
_OBJECT = "b/{}/o/{}"

_BY_REASON: dict[str, type[StorageError]] = {
    "rateLimitExceeded": StorageThrottledError,
    "userRateLimitExceeded": StorageThrottledError,
    "quotaExceeded": StorageThrottledError,
    "requestTimeout": StorageTimeoutError,
    # The object was replaced at the same moment.
    "conflict": StorageConflictError,
}
_BY_STATUS: dict[int, type[StorageError]] = {
    401: StorageDeniedError,
    403: StorageDeniedError,
    404: StorageNotFoundError,
    408: StorageTimeoutError,
    409: StorageConflictError,
    412: StorageExistsError,
    416: StorageRangeError,
    429: StorageThrottledError,
    503: StorageThrottledError,
    504: StorageTimeoutError,
}


class _Item(msgspec.Struct):
    name: str
    size: str = "0"
    updated: str = ""


class _Page(msgspec.Struct, rename={"next_page_token": "nextPageToken"}):
    items: list[_Item] = []
    next_page_token: str = ""


class GcsBackend(FsspecBackend):
    """A backend over one bucket. All objects are below ``prefix`` (without slashes at its ends).

    ``client`` sends each request once, without retries.
    """

    tells_range_errors: ClassVar[bool] = True

    def __init__(
        self,
        client: GcsClient,
        loop: asyncio.AbstractEventLoop,
        bucket: str,
        prefix: str,
        *,
        url: str,
        capabilities: StorageCapabilities,
        concurrency: int,
        kms_key_name: str = "",
    ) -> None:
        super().__init__(client, f"{bucket}/{prefix}", url=url, capabilities=capabilities, concurrency=concurrency)
        self._client = client
        self._loop = loop
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._kms_key_name = kms_key_name or None

    async def call(self, function: Callable[..., Coroutine[Any, Any, _Result]], *args: Any, **kwargs: Any) -> _Result:
        """Run a coroutine function on the client's loop."""
        return await call_asyncio(self._loop, function, *args, **kwargs)

    async def _request(self, method: str, path: str, *names: str, **options: Any) -> bytes:
        # ``names`` fill the places of ``path``, quoted; options that are not None become parameters of the query.
        answer: tuple[int, Any, Any, bytes] = await self.call(self._client._request, method, path, *names, **options)
        return answer[3]

    def translate(self, error: Exception, operation: str, key: str) -> StorageError:
        """Return the storage error for an answer, or for an exception of the client without one."""
        kind: type[StorageError]
        if isinstance(error, AnswerError):
            other = StorageUnavailableError if error.status >= 500 else StorageError
            kind = _BY_REASON.get(error.reason) or _BY_STATUS.get(error.status, other)
            return self.error(kind, operation, key, str(error))
        if isinstance(error, google.auth.exceptions.GoogleAuthError):
            # The token server may be unavailable, or may have refused.
            kind = StorageUnavailableError if error.retryable else StorageDeniedError
        elif isinstance(error, asyncio.TimeoutError):
            kind = StorageTimeoutError
        elif isinstance(error, aiohttp.ClientError | msgspec.DecodeError):
            kind = StorageUnavailableError
        else:
            return super().translate(error, operation, key)
        return self.error(kind, operation, key, error)

    async def _put(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        body = bytes(data)
        checksum = base64.b64encode(google_crc32c.value(body).to_bytes(4, "big")).decode()
        about = msgspec.json.encode({"name": self._prefix + key, "crc32c": checksum})
        boundary = secrets.token_hex(16).encode()
        parts = (
            b"--%b\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%b\r\n" % (boundary, about),
            b"--%b\r\nContent-Type: application/octet-stream\r\n\r\n" % boundary,
            body,
            b"\r\n--%b--" % boundary,
        )
        await self._request(
            "POST",
            f"{self._client._location}/upload/storage/v1/b/{quote(self._bucket, safe='')}/o",
            uploadType="multipart",
            ifGenerationMatch="0" if if_absent else None,
            kmsKeyName=self._kms_key_name,
            headers={"Content-Type": f"multipart/related; boundary={boundary.decode()}"},
            # As a file: then the client sends it piece by piece, and other tasks can run in between.
            data=io.BytesIO(b"".join(parts)),
        )

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        headers = {}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        return await self._request("GET", _OBJECT, self._bucket, self._prefix + key, alt="media", headers=headers)

    async def _head(self, key: str) -> ObjectInfo:
        body = await self._request("GET", _OBJECT, self._bucket, self._prefix + key, fields="name,size,updated")
        return _info(key, msgspec.json.decode(body, type=_Item))

    async def _delete(self, keys: Sequence[str]) -> None:
        async def remove(key: str) -> None:
            try:
                await self._request("DELETE", _OBJECT, self._bucket, self._prefix + key)
            except AnswerError as error:
                if error.status != 404:
                    raise self.translate(error, "delete", key) from error

        await self.each(remove, list(dict.fromkeys(keys)))

    async def _list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        found: list[ObjectInfo] = []
        token = ""
        while True:
            # startOffset is inclusive: request one more, and leave it out.
            body = await self._request(
                "GET",
                _OBJECTS,
                self._bucket,
                prefix=self._prefix + prefix,
                startOffset=self._prefix + start_after if start_after else None,
                maxResults=str(min(limit + 1, _MAX_LIST)),
                pageToken=token or None,
                fields="items(name,size,updated),nextPageToken",
            )
            page = msgspec.json.decode(body, type=_Page)
            for item in page.items:
                key = item.name[len(self._prefix) :]
                if key > start_after and is_key(key):
                    found.append(_info(key, item))
            token = page.next_page_token
            if len(found) > limit or not token:
                return ListPage(found[:limit], len(found) > limit)

    async def _abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        return 0


def _info(key: str, item: _Item) -> ObjectInfo:
    when = datetime.fromisoformat(item.updated).timestamp() if item.updated else 0
    return ObjectInfo(key, int(item.size), int(when * 1_000_000))
