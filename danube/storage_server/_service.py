"""Handlers of a storage server: each call makes one attempt at the storage backend, within limits.

The server adds no guarantees to those of the backend. Clients are responsible for deadlines and retries. A call is
cancelled when its caller resets it or its connection ends, and a put is passed to the backend only after it was
received completely. The server protects itself: objects held in memory count against one budget, and a call whose peer
stops sending or reading ends after a timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from danube.model import storage_api as api
from danube.model.errors import InvalidArgumentError, StorageTimeoutError
from danube.model.limits import Limits
from danube.model.version import __version__
from danube.storage import StorageBackend, validate_key, validate_prefix
from danube.storage_server._admission import Admission
from danube.storage_server._budget import ByteBudget
from danube.wire import Context, Message, Method, ServerStream, Service, UnaryHandler

__all__ = ["StorageService"]

T = TypeVar("T")

_PAGE = 1000
_REQUEST_BYTES = api.PIECE_BYTES + 64 * 1024


class StorageService:
    """Handlers of the storage API over one backend.

    Args:
        backend: that is served.
        limits: of the server.
        admission: who may use it; None: every caller.
        wall_s: returns the Unix time in seconds, by which certificates end.
    """

    def __init__(
        self,
        backend: StorageBackend,
        limits: Limits,
        admission: Admission | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._admission = admission if admission is not None else Admission()
        self._wall_s = wall_s
        self._memory = ByteBudget(limits.storage_server_memory_bytes)
        self._puts = trio.Semaphore(limits.storage_server_max_puts)
        self._calls = trio.Semaphore(limits.storage_server_max_calls)
        self.max_object_bytes = min(
            backend.capabilities.max_object_bytes,
            limits.storage_server_max_object_bytes,
            limits.storage_server_memory_bytes,
        )

    def service(self) -> Service:
        """Return the methods, by path."""
        unary: list[tuple[str, UnaryHandler, type]] = [
            (api.StorageMethod.DESCRIBE, self.describe, api.Describe),
            (api.StorageMethod.HEAD, self.head, api.HeadObject),
            (api.StorageMethod.LIST, self.list, api.ListObjects),
            (api.StorageMethod.DELETE, self.delete, api.DeleteObjects),
            (api.StorageMethod.ABANDON_UPLOADS, self.abandon_uploads, api.AbandonUploads),
        ]
        methods = [Method(path=path, kind="unary", handler=handler, request_type=kind) for path, handler, kind in unary]
        methods += [
            Method(path=api.StorageMethod.PUT, kind="bidi", handler=self.put, max_request_bytes=_REQUEST_BYTES),
            Method(path=api.StorageMethod.GET, kind="server_stream", handler=self.get),
            Method(path=api.StorageMethod.GET_RANGES, kind="server_stream", handler=self.get_ranges),
        ]
        return {method.path: method for method in methods}

    # --- Calls without object data ---

    async def describe(self, _request: api.Describe, context: Context) -> api.StorageDescription:
        """Return the description of the backend."""
        self._admit(context)
        trusted = self._backend.capabilities
        return api.StorageDescription(
            self._backend.url,
            trusted.durable,
            trusted.conditional_put,
            self.max_object_bytes,
            __version__,
            trusted.mounted,
        )

    async def head(self, request: api.HeadObject, context: Context) -> api.Object:
        """Return the metadata of an object."""
        self._admit(context)
        key = _key(request.space, request.key)
        async with self._calls:
            found = await self._backend.head(key)
        return api.Object(request.key, found.size_bytes, found.modified_us)

    async def list(self, request: api.ListObjects, context: Context) -> api.ObjectPage:
        """Return a page of a listing."""
        self._admit(context)
        root = _root(request.space)
        validate_prefix(request.prefix)
        validate_prefix(request.start_after)
        if request.limit < 1:
            raise InvalidArgumentError(f"limit of a listing must be at least 1, not {request.limit}")
        async with self._calls:
            page = await self._backend.list(
                root + request.prefix,
                start_after=root + request.start_after if request.start_after else "",
                limit=min(request.limit, _PAGE),
            )
        skipped = len(root)
        return api.ObjectPage(
            [api.Object(one.key[skipped:], one.size_bytes, one.modified_us) for one in page.objects], page.more
        )

    async def delete(self, request: api.DeleteObjects, context: Context) -> api.Done:
        """Delete objects."""
        self._admit(context)
        keys = [_key(request.space, key) for key in request.keys]
        async with self._calls:
            await self._backend.delete(keys)
        return api.Done()

    async def abandon_uploads(self, request: api.AbandonUploads, context: Context) -> api.Count:
        """Remove the remains of interrupted uploads."""
        self._admit(context)
        prefix = _root(request.space) + validate_prefix(request.prefix)
        async with self._calls:
            return api.Count(await self._backend.abandon_uploads(prefix, request.older_than_s))

    # --- Calls with object data ---

    async def put(self, stream: ServerStream, context: Context) -> None:
        """Receive an object completely, then store it."""
        self._admit(context)
        request = await self._request(stream, api.PutObject)
        key = _key(request.space, request.key)
        size = request.size_bytes
        if not 0 <= size <= self.max_object_bytes:
            raise InvalidArgumentError(
                f"{request.key} has {size} bytes, and this storage server takes at most {self.max_object_bytes} (limits"
                " storage_server_max_object_bytes and storage_server_memory_bytes, and what the backend can hold)"
            )
        if request.data and len(request.data) != size:
            raise InvalidArgumentError(
                f"{request.key}: received {len(request.data)} bytes with an announced size of {size}"
            )
        async with self._puts, self._memory.reserve(size):
            if len(request.data) == size:
                data: bytes | bytearray = request.data
            else:
                stream.send_nowait(stream.encode(api.Admitted()))
                data = await self._object(stream, size)
            async with self._calls:
                await self._backend.put(key, data, if_absent=request.if_absent)
        stream.send_nowait(stream.encode(api.Done()))

    async def get(self, stream: ServerStream, context: Context) -> None:
        """Send a part of an object."""
        self._admit(context)
        request = await self._request(stream, api.GetObject)
        key = _key(request.space, request.key)
        _check_range(request.start, request.end)
        end = request.end
        if end is None:
            # The size is only needed to reserve memory; the get below returns the object.
            async with self._calls:
                end = max(request.start, (await self._backend.head(key)).size_bytes)
        async with self._memory.reserve(end - request.start):
            async with self._calls:
                data = await self._backend.get(key, request.start, request.end)
            await self._send(stream, [data])

    async def get_ranges(self, stream: ServerStream, context: Context) -> None:
        """Send several parts of an object, one after the other."""
        self._admit(context)
        request = await self._request(stream, api.GetRanges)
        key = _key(request.space, request.key)
        if len(request.ranges) % 2:
            raise InvalidArgumentError("ranges must be pairs of start and end")
        ranges = list(zip(request.ranges[::2], request.ranges[1::2], strict=True))
        for start, end in ranges:
            _check_range(start, end)
        async with self._memory.reserve(sum(end - start for start, end in ranges)):
            async with self._calls:
                parts = await self._backend.get_ranges(key, ranges)
            await self._send(stream, parts)

    # --- Streams ---

    async def _request(self, stream: ServerStream, kind: type[T]) -> T:
        message = await self._next(stream)
        if message is None:
            raise InvalidArgumentError(f"a call of {stream.context.path} needs a request, and ended without one")
        request = stream.decode(kind, message.data)
        message.release()
        return request

    async def _object(self, stream: ServerStream, size: int) -> bytearray:
        data = bytearray(size)
        position = 0
        while (message := await self._next(stream)) is not None:
            piece = message.data
            if position + len(piece) > size:
                raise InvalidArgumentError(f"received more than the announced {size} bytes")
            data[position : position + len(piece)] = piece
            position += len(piece)
            message.release()
        if position != size:
            raise InvalidArgumentError(f"the object ended after {position} of {size} bytes")
        return data

    async def _next(self, stream: ServerStream) -> Message | None:
        with trio.move_on_after(self._limits.storage_server_stall_timeout_s):
            return await stream.receive()
        raise self._stalled("sent")

    async def _send(self, stream: ServerStream, parts: Sequence[bytes]) -> None:
        """Send the bytes of a reply; small parts share a message."""
        stream.send_nowait(stream.encode(api.ObjectBytes(sum(map(len, parts)))))
        gathered: list[bytes] = []
        room = api.PIECE_BYTES
        for part in parts:
            for start in range(0, len(part), api.PIECE_BYTES):
                piece = part[start : start + api.PIECE_BYTES]
                if len(piece) > room:
                    await self._send_piece(stream, gathered)
                    gathered, room = [], api.PIECE_BYTES
                gathered.append(piece)
                room -= len(piece)
        if gathered:
            await self._send_piece(stream, gathered)

    async def _send_piece(self, stream: ServerStream, gathered: Sequence[bytes]) -> None:
        with trio.move_on_after(self._limits.storage_server_stall_timeout_s):
            await stream.send(tuple(gathered))
            return
        raise self._stalled("read")

    def _stalled(self, what: str) -> StorageTimeoutError:
        seconds = self._limits.storage_server_stall_timeout_s
        return StorageTimeoutError(f"the caller {what} nothing for {seconds:g} s (storage_server_stall_timeout_s)")

    def _admit(self, context: Context) -> None:
        if self._admission.requires_proof:
            authorization = context.metadata.get("authorization", "")
            self._admission.check(authorization, context.peer_certificate, self._wall_s())


def _root(space: str) -> str:
    return f"{validate_key(space)}/" if space else ""


def _key(space: str, key: str) -> str:
    return _root(space) + validate_key(key)


def _check_range(start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise InvalidArgumentError(f"[{start}, {end}) is not a range: use 0 <= start <= end")
