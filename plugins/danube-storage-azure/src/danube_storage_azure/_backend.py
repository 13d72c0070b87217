"""``azure://``: objects in Azure Blob Storage, using adlfs and its client.

adlfs finds the credentials and creates the client; the requests are made with the client directly, because adlfs lists
whole folders, checks before it writes, and cannot disable retries.

* A **put** up to 64 MiB is one request: cancelled or failed, it leaves nothing. A larger one is sent in blocks, which
  are invisible before the last request; blocks without it are removed by the service after a week.
* ``if_absent`` is ``If-None-Match: *`` on the put, or on the last request: the server decides.
* **Listings** ask the service to begin at a key. A server without this feature (an emulator) begins at the prefix,
  and names before the key are skipped.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from aiohttp import ClientError as AiohttpError
from azure.core import exceptions
from azure.storage.blob import BlobProperties

from danube.model.errors import (
    StorageDeniedError,
    StorageError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.storage import ListPage, ObjectInfo, StorageCapabilities, is_key
from danube.storage.fsspec import FsspecBackend, call_asyncio
from danube_storage_azure._errors import kind_of_answer

__all__ = ["AzureBackend"]

_Result = TypeVar("_Result")

_MAX_LIST = 5000

# In this order: the classes overlap. Exceptions without an answer of the server.
_KINDS: dict[type[StorageError], tuple[type[Exception], ...]] = {
    StorageTimeoutError: (
        exceptions.ServiceRequestTimeoutError,
        exceptions.ServiceResponseTimeoutError,
        asyncio.TimeoutError,
    ),
    StorageDeniedError: (exceptions.ClientAuthenticationError,),
    StorageUnavailableError: (
        exceptions.ServiceRequestError,
        exceptions.ServiceResponseError,
        exceptions.DecodeError,
        AiohttpError,
    ),
    StorageError: (exceptions.AzureError,),
}


class AzureBackend(FsspecBackend):
    """A backend over one container. All objects are below ``prefix`` (without slashes at its ends).

    ``each_request`` is passed to every request of the client: timeouts, and no retries.
    """

    tells_range_errors: ClassVar[bool] = True

    def __init__(
        self,
        fs: Any,
        loop: asyncio.AbstractEventLoop,
        container: str,
        prefix: str,
        *,
        url: str,
        capabilities: StorageCapabilities,
        concurrency: int,
        each_request: dict[str, Any],
        checksum: bool,
    ) -> None:
        super().__init__(fs, f"{container}/{prefix}", url=url, capabilities=capabilities, concurrency=concurrency)
        # A ContainerClient; the declarations of its methods do not help here.
        self._container: Any = fs.service_client.get_container_client(container)
        self._loop = loop
        self._prefix = f"{prefix}/" if prefix else ""
        self._max_concurrency = concurrency
        self._each_request = each_request
        self._checksum = checksum

    async def call(self, function: Callable[..., Coroutine[Any, Any, _Result]], *args: Any, **kwargs: Any) -> _Result:
        """Run a coroutine function on the client's loop."""
        return await call_asyncio(self._loop, function, *args, **kwargs)

    def translate(self, error: Exception, operation: str, key: str) -> StorageError:
        """Return the storage error for one of the client's, by the code of the answer if there was one."""
        if isinstance(error, exceptions.HttpResponseError) and error.status_code:
            code = getattr(error, "error_code", None) or ""
            code = str(getattr(code, "value", code))
            text = f"the server answered {error.status_code}{f' {code}' if code else ''}: {error.reason or ''}"
            return self.error(kind_of_answer(operation, code, error.status_code), operation, key, text)
        for kind, classes in _KINDS.items():
            if isinstance(error, classes):
                return self.error(kind, operation, key, error)
        return super().translate(error, operation, key)

    def _blob(self, key: str) -> Any:
        return self._container.get_blob_client(self._prefix + key)

    async def _put(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        await self.call(
            self._blob(key).upload_blob,
            bytes(data),
            length=len(data),
            overwrite=not if_absent,
            max_concurrency=self._max_concurrency,
            validate_content=self._checksum,
            raw_request_hook=_send_in_pieces,
            **self._each_request,
        )

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        return await self.call(self._read, key, start, end)

    async def _read(self, key: str, start: int, end: int | None) -> bytes:
        whole = start == 0 and end is None
        stream = await self._blob(key).download_blob(
            None if whole else start,
            None if end is None else end - start,
            max_concurrency=self._max_concurrency,
            **self._each_request,
        )
        data: bytes = await stream.readall()
        return data

    async def _head(self, key: str) -> ObjectInfo:
        return _info(key, await self.call(self._blob(key).get_blob_properties, **self._each_request))

    async def _delete(self, keys: Sequence[str]) -> None:
        async def remove(key: str) -> None:
            try:
                await self.call(self._blob(key).delete_blob, **self._each_request)
            except exceptions.ResourceNotFoundError:
                return
            except exceptions.AzureError as error:
                raise self.translate(error, "delete", key) from error

        await self.each(remove, list(dict.fromkeys(keys)))

    async def _list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        return await self.call(self._pages, prefix, start_after, limit)

    async def _pages(self, prefix: str, start_after: str, limit: int) -> ListPage:
        # A start key is inclusive: request one more, and leave it out.
        options = {"start_from": self._prefix + start_after} if start_after else {}
        blobs = self._container.list_blobs(
            name_starts_with=self._prefix + prefix,
            results_per_page=min(limit + 1, _MAX_LIST),
            **options,
            **self._each_request,
        )
        found: list[ObjectInfo] = []
        async for blob in blobs:
            key = blob.name[len(self._prefix) :]
            if key > start_after and is_key(key):
                found.append(_info(key, blob))
                if len(found) > limit:
                    return ListPage(found[:limit], True)
        return ListPage(found, False)

    async def _abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        return 0


def _send_in_pieces(request: Any) -> None:
    """Pass the bytes of a request as a file: then they are sent piece by piece, and other tasks can run."""
    body = request.http_request.data
    if isinstance(body, bytes):
        request.http_request.data = io.BytesIO(body)


def _info(key: str, blob: BlobProperties) -> ObjectInfo:
    return ObjectInfo(key, blob.size, int(blob.last_modified.timestamp() * 1_000_000))
