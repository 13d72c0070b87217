"""``s3://``: objects in S3, using s3fs and its client.

s3fs finds the credentials, holds the connections and provides the event loop; the requests are made with its client
directly. The methods of s3fs itself retry, put objects without a condition or a checksum, and convert the service's
codes into ambiguous ``OSError`` exceptions.

* A **put** up to ``single_put_bytes`` is one request: cancelled or failed, it leaves nothing. A larger one is sent in
  parts, several at a time; if it ends early, the parts are removed, unless the server cannot be reached: then
  :meth:`~danube.storage.StorageBackend.abandon_uploads` removes them later.
* ``if_absent`` is ``If-None-Match: *``, on the put or on the completion of the parts: the server decides.
* **Listings** are ListObjectsV2 with StartAfter, so a page costs one request wherever it begins.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import botocore.exceptions
import botocore.parsers
import google_crc32c
import s3fs
import trio
from aiohttp import ClientError as AiohttpError

from danube.model.errors import (
    StorageDeniedError,
    StorageError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.storage import ListPage, ObjectInfo, StorageCapabilities, WallClock, is_key
from danube.storage.fsspec import FsspecBackend, call_asyncio
from danube_storage_s3._bodies import PIECE_BYTES, pieces_of, send_in_pieces
from danube_storage_s3._errors import kind_of_answer
from danube_storage_s3._options import Place, S3Config

__all__ = ["S3Backend"]

_Result = TypeVar("_Result")

_MAX_PARTS = 10_000
_MAX_LIST = 1000
_MAX_DELETE = 1000
_ABORT_S = 5.0
"""How long a cancelled put may take to remove its parts."""

# In this order: the classes overlap.
_KINDS: dict[type[StorageError], tuple[type[Exception], ...]] = {
    StorageDeniedError: (
        botocore.exceptions.NoCredentialsError,
        botocore.exceptions.PartialCredentialsError,
        botocore.exceptions.NoAuthTokenError,
        botocore.exceptions.UnauthorizedSSOTokenError,
    ),
    StorageTimeoutError: (
        botocore.exceptions.ConnectTimeoutError,
        botocore.exceptions.ReadTimeoutError,
        asyncio.TimeoutError,
    ),
    StorageUnavailableError: (
        botocore.exceptions.ConnectionError,
        botocore.exceptions.HTTPClientError,
        botocore.exceptions.IncompleteReadError,
        botocore.exceptions.CredentialRetrievalError,
        botocore.exceptions.MetadataRetrievalError,
        botocore.parsers.ResponseParserError,
        AiohttpError,
    ),
    StorageError: (botocore.exceptions.BotoCoreError,),
}
"""Exceptions of the client without an error answer of the server."""
_ANY = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, AiohttpError, OSError)


class S3Backend(FsspecBackend):
    """A backend over one bucket. ``fs`` sends each request once, on ``loop``; its creator closes it."""

    tells_range_errors: ClassVar[bool] = True

    def __init__(
        self,
        fs: s3fs.S3FileSystem,
        loop: asyncio.AbstractEventLoop,
        place: Place,
        config: S3Config,
        *,
        url: str,
        capabilities: StorageCapabilities,
        wall_clock_us: WallClock,
    ) -> None:
        super().__init__(
            fs, f"{place.bucket}/{place.prefix}", url=url, capabilities=capabilities, concurrency=config.max_concurrency
        )
        self._loop = loop
        self._client: object = None
        """The client that sends bodies in pieces."""
        self._place = place
        self._config = config
        self._wall_clock_us = wall_clock_us
        self._stored: dict[str, str] = {}
        """Parameters of every created object."""
        if config.sse:
            self._stored["ServerSideEncryption"] = config.sse
        if config.sse_kms_key_id:
            self._stored["SSEKMSKeyId"] = config.sse_kms_key_id

    async def call(self, function: Callable[..., Coroutine[Any, Any, _Result]], *args: Any, **kwargs: Any) -> _Result:
        """Run a coroutine function on the client's loop."""
        return await call_asyncio(self._loop, function, *args, **kwargs)

    async def request(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one request of the client (``put_object``, say) to the bucket and return its answer."""
        return await self.call(self._request, operation, parameters)

    async def _request(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        client = await self.fs.set_session()
        if client is not self._client:
            self._client = client
            for event in ("PutObject", "UploadPart"):
                client.meta.events.register(f"before-send.s3.{event}", send_in_pieces)
        method: Callable[..., Coroutine[Any, Any, dict[str, Any]]] = getattr(client, operation)
        return await method(Bucket=self._place.bucket, **parameters)

    def translate(self, error: Exception, operation: str, key: str) -> StorageError:
        """Return the storage error for one of botocore's, by its code."""
        if isinstance(error, botocore.exceptions.ClientError):
            answer = error.response.get("Error", {})
            code, status = answer.get("Code", ""), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            text = f"the server answered {code}: {answer.get('Message', '')}"
            return self.error(kind_of_answer(str(code), status), operation, key, text)
        for kind, classes in _KINDS.items():
            if isinstance(error, classes):
                return self.error(kind, operation, key, error)
        return super().translate(error, operation, key)

    # Objects

    async def _put(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        if len(data) > self._config.single_put_bytes:
            await self._put_parts(key, data, condition)
            return
        checks = await self._checksum(data)
        body = data if len(data) > PIECE_BYTES else bytes(data)  # a small one is not replaced, and may be sent later
        await self.request("put_object", Key=self._place.key(key), Body=body, **self._stored, **condition, **checks)

    async def _put_parts(self, key: str, data: bytes | bytearray, condition: dict[str, str]) -> None:
        checksum = {"ChecksumAlgorithm": "CRC32C"} if self._config.checksum else {}
        name = {"Key": self._place.key(key)}
        upload = {
            **name,
            "UploadId": (await self.request("create_multipart_upload", **name, **self._stored, **checksum))["UploadId"],
        }
        size = max(self._config.part_bytes, -(-len(data) // _MAX_PARTS))

        async def put_part(number: int) -> dict[str, Any]:
            body = bytearray()
            for piece in pieces_of(data, (number - 1) * size, number * size):
                body += piece
                await trio.lowlevel.checkpoint()
            checks = await self._checksum(body)
            answer = await self.request("upload_part", **upload, PartNumber=number, Body=body, **checks)
            return {"PartNumber": number, "ETag": answer["ETag"], **checks}

        try:
            parts = await self.each(put_part, range(1, -(-len(data) // size) + 1))
            await self.request("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            # Report the error that ended the put; abandon_uploads finds remaining parts.
            with trio.CancelScope(deadline=trio.current_time() + _ABORT_S, shield=True), suppress(*_ANY):
                await self.request("abort_multipart_upload", **upload)
            raise

    async def _checksum(self, body: bytes | bytearray) -> dict[str, str]:
        if not self._config.checksum:
            return {}
        crc = 0
        for piece in pieces_of(body):
            crc = google_crc32c.extend(crc, piece)
            await trio.lowlevel.checkpoint()
        return {"ChecksumCRC32C": base64.b64encode(crc.to_bytes(4, "big")).decode()}

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        span = {}
        if start or end is not None:
            span["Range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        return await self.call(self._read, {"Key": self._place.key(key), **span})

    async def _read(self, parameters: dict[str, Any]) -> bytes:
        answer = await self._request("get_object", parameters)
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data

    async def _head(self, key: str) -> ObjectInfo:
        answer = await self.request("head_object", Key=self._place.key(key))
        return ObjectInfo(key, answer["ContentLength"], _microseconds(answer["LastModified"]))

    async def _delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _MAX_DELETE):
            names = [{"Key": self._place.key(key)} for key in dict.fromkeys(keys[first : first + _MAX_DELETE])]
            answer = await self.request("delete_objects", Delete={"Objects": names, "Quiet": True})
            for failed in answer.get("Errors", ()):
                kind = kind_of_answer(failed.get("Code", ""), 0)
                if failed.get("Code") != "NoSuchKey":
                    text = f"{failed.get('Code')}: {failed.get('Message', '')}"
                    raise self.error(kind, "delete", failed.get("Key", "")[len(self._place.key("")) :], text)

    # Listings

    async def _list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        own = len(self._place.key(""))
        while True:
            bounds = {"StartAfter": self._place.key(start_after)} if start_after else {}
            answer = await self.request(
                "list_objects_v2", Prefix=self._place.key(prefix), MaxKeys=min(limit, _MAX_LIST), **bounds
            )
            contents, more = answer.get("Contents", ()), answer.get("IsTruncated", False)
            found = [
                ObjectInfo(key, item["Size"], _microseconds(item["LastModified"]))
                for item in contents
                if is_key(key := item["Key"][own:])
            ]
            # A page may contain only foreign objects; then continue at its end.
            if found or not more or not contents:
                return ListPage(found, more)
            start_after = contents[-1]["Key"][own:]

    async def _abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        before_us = self._wall_clock_us() - int(older_than_s * 1_000_000)
        count = 0
        marker: dict[str, str] = {}
        while True:
            page = await self.request("list_multipart_uploads", Prefix=self._place.key(prefix), **marker)
            for upload in page.get("Uploads", ()):
                if _microseconds(upload["Initiated"]) <= before_us:
                    count += await self._abandon(upload["Key"], upload["UploadId"])
            if not page.get("IsTruncated"):
                return count
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def _abandon(self, name: str, upload_id: str) -> int:
        try:
            await self.request("abort_multipart_upload", Key=name, UploadId=upload_id)
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchUpload":
                raise
            return 0  # it has ended in the meantime
        return 1


def _microseconds(when: Any) -> int:
    return int(when.timestamp() * 1_000_000)
