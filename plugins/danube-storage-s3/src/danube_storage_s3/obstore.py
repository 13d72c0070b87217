"""``s3+obstore://``: the storage of ``s3://`` with another client, obstore, which is written in Rust.

Its requests need a fraction of the CPU time of Python clients, and its listings do not block the broker's loop. It has
fewer features: every put is one request (up to 5 GiB), and it sends no CRC32C. Since there are no uploads in parts,
``abandon_uploads`` has nothing to do.

Its calls are asyncio awaitables; they run on the loop of fsspec and are cancelled like all others. It lists by folder,
with an offset: a page is read from the folder of the prefix, starting just before the prefix.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

import fsspec.asyn
import obstore
import trio
from obstore import exceptions
from obstore.store import S3Store

from danube.model.errors import (
    ConfigurationError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import GIB, MIB
from danube.storage import (
    LEGAL_CHARACTERS,
    ListPage,
    ObjectInfo,
    StorageBackend,
    StorageCapabilities,
    StoragePlugin,
    StorageSurroundings,
    is_key,
)
from danube.storage.fsspec import FsspecBackend, call_asyncio
from danube_storage_s3._errors import kind_of_answer
from danube_storage_s3._options import Place, S3Config, place_of, signs_payload

__all__ = ["ObstoreBackend", "ObstoreStoragePlugin"]

_MAX_OBJECT_BYTES = 5 * GIB
"""Maximum size of one S3 request."""
_MAX_DELETE = 1000
_LEGAL = sorted(LEGAL_CHARACTERS)

_KINDS: dict[type[Exception], type[StorageError]] = {
    exceptions.NotFoundError: StorageNotFoundError,
    exceptions.AlreadyExistsError: StorageExistsError,
    exceptions.PreconditionError: StorageExistsError,
    exceptions.PermissionDeniedError: StorageDeniedError,
    exceptions.UnauthenticatedError: StorageDeniedError,
}
# Most errors have one class: status and code of the answer, or the kind of failure, are only in the text.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TIMEOUT = re.compile(r"kind: Timeout|TimedOut|timed out")
_BROKEN = re.compile(r"HTTP error|error sending request|error decoding response body|[Cc]onnection")
_DETAILS = "\n\nDebug source:"
_BYTES_PER_S = 1 * MIB
"""Minimum speed of a transfer, for its timeout."""


class ObstoreBackend(FsspecBackend):
    """A backend over one bucket. ``store`` sends each request once; ``read_timeout_s`` bounds a silent server."""

    tells_range_errors: ClassVar[bool] = True

    def __init__(
        self,
        store: S3Store,
        loop: asyncio.AbstractEventLoop,
        place: Place,
        config: S3Config,
        *,
        url: str,
        capabilities: StorageCapabilities,
    ) -> None:
        super().__init__(
            store,
            f"{place.bucket}/{place.prefix}",
            url=url,
            capabilities=capabilities,
            concurrency=config.max_concurrency,
        )
        self._store = store
        self._loop = loop
        self._place = place
        self._read_timeout_s = config.read_timeout_s

    async def _run(self, function: Callable[..., Any], *args: Any, size: int = 0, **kwargs: Any) -> Any:
        """Await the result of one of obstore's functions, which transfers ``size`` bytes."""

        async def run() -> Any:
            return await function(*args, **kwargs)

        with trio.move_on_after(self._read_timeout_s + size / _BYTES_PER_S):
            return await call_asyncio(self._loop, run)
        raise TimeoutError("the server does not answer")

    def translate(self, error: Exception, operation: str, key: str) -> StorageError:
        """Return the storage error for one of obstore's."""
        text, _, details = str(error).partition(_DETAILS)
        status, code = _STATUS.search(text), _CODE.search(text)
        kind: type[StorageError] | None
        if status:
            kind = kind_of_answer(code[1] if code else "", int(status[1]))
            text = f"the server answered {status[1]}{f' {code[1]}' if code else ''}"
        else:
            kind = _KINDS.get(type(error))
            if kind is None and isinstance(error, exceptions.BaseError):
                kind = (
                    StorageTimeoutError
                    if _TIMEOUT.search(text + details)
                    else StorageUnavailableError
                    if _BROKEN.search(text)
                    else StorageError
                )
        return self.error(kind, operation, key, text) if kind else super().translate(error, operation, key)

    async def _put(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        mode = "create" if if_absent else "overwrite"
        await self._run(
            obstore.put_async,
            self._store,
            self._place.key(key),
            bytes(data),
            mode=mode,
            use_multipart=False,
            size=len(data),
        )

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        name = self._place.key(key)
        if end is not None:
            part = await self._run(obstore.get_range_async, self._store, name, start=start, end=end, size=end - start)
            return bytes(part)
        options = {"range": {"offset": start}} if start else {}
        answer = await self._run(obstore.get_async, self._store, name, options=options)
        return bytes(await self._run(answer.bytes_async, size=answer.meta["size"]))

    async def _head(self, key: str) -> ObjectInfo:
        return _info(key, await self._run(obstore.head_async, self._store, self._place.key(key)))

    async def _delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _MAX_DELETE):
            names = [self._place.key(key) for key in dict.fromkeys(keys[first : first + _MAX_DELETE])]
            await self._run(obstore.delete_async, self._store, names)

    async def _list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        folder = self._place.key(prefix.rpartition("/")[0]).strip("/")
        after = max(start_after, _just_before(prefix))
        stream = obstore.list(
            self._store, folder or None, offset=self._place.key(after) if after else None, chunk_size=limit + 1
        )
        own = len(self._place.key(""))
        found: list[ObjectInfo] = []
        try:
            while len(found) <= limit:
                for item in await self._run(stream.__anext__):
                    key = item["path"][own:]
                    if key.startswith(prefix):
                        if key > start_after and is_key(key):
                            found.append(_info(key, item))
                    elif key > prefix and key.split("/") > prefix.split("/"):
                        # Behind the prefix, in the order of S3 as well as in that of services with folders.
                        return ListPage(found[:limit], len(found) > limit)
        except StopAsyncIteration:
            return ListPage(found[:limit], len(found) > limit)
        return ListPage(found[:limit], True)

    async def _abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        return 0


def _just_before(prefix: str) -> str:
    """Return a text that sorts before every key with the prefix, with few keys between them."""
    if not prefix or prefix.endswith("/"):
        return ""  # the prefix is a folder: only that folder is read
    before = [character for character in _LEGAL if character < prefix[-1]]
    return prefix[:-1] + before[-1] + _LEGAL[-1] * 8 if before else ""


def _info(key: str, item: Any) -> ObjectInfo:
    return ObjectInfo(key, item["size"], int(item["last_modified"].timestamp() * 1_000_000))


class ObstoreStoragePlugin(StoragePlugin[S3Config]):
    """``s3+obstore://bucket/prefix``: AWS S3 and services that speak its protocol, through obstore."""

    name: ClassVar[str] = "s3+obstore"
    summary: ClassVar[str] = "the same as s3, with a faster client without multipart uploads and checksums"
    config: ClassVar[type[S3Config]] = S3Config

    @asynccontextmanager
    async def open(self, config: S3Config, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Create a client. Whether the server is available is only known after the first call."""
        place = place_of(config, surroundings)
        if config.profile:
            raise ConfigurationError(f"{surroundings.url}: obstore has no profiles; use s3://, or key and secret")
        authorities = await trio.Path(config.ca_file).read_bytes() if config.ca_file else b""
        try:
            store = S3Store(
                place.bucket,
                config=_store_options(config),  # type: ignore[arg-type] # a TypedDict with Literals for regions
                client_options={
                    **({"root_certificate": authorities} if authorities else {}),
                    "allow_http": config.endpoint_url.startswith("http://"),
                    "connect_timeout": timedelta(seconds=config.connect_timeout_s),
                    # The timeout here depends on the size; obstore's would be the same for all.
                    "timeout": timedelta(days=1),
                },
                retry_config={"max_retries": 0},
            )
        except (exceptions.BaseError, ValueError) as error:
            text = str(error).partition(_DETAILS)[0]
            raise ConfigurationError(f"{surroundings.url}: obstore does not accept these options: {text}") from None
        yield ObstoreBackend(
            store,
            fsspec.asyn.get_loop(),
            place,
            config,
            url=surroundings.url,
            capabilities=StorageCapabilities(
                durable=True, conditional_put=True, shared=True, max_object_bytes=_MAX_OBJECT_BYTES
            ),
        )


def _store_options(config: S3Config) -> dict[str, Any]:
    options: dict[str, Any] = {
        "endpoint": config.endpoint_url,
        "region": config.region,
        "access_key_id": config.key,
        "secret_access_key": config.secret,
        "session_token": config.token,
        "server_side_encryption": config.sse,
        "sse_kms_key_id": config.sse_kms_key_id,
    }
    given = {name: value for name, value in options.items() if value}
    virtual = config.addressing_style == "virtual" or (config.addressing_style == "auto" and not config.endpoint_url)
    return given | {
        "virtual_hosted_style_request": virtual,
        "skip_signature": config.anon,
        "unsigned_payload": not signs_payload(config),
    }
