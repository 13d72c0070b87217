"""Accesses the objects of a storage server: each backend method is one call of :mod:`danube.model.storage_api`.

Large objects are sent in pieces on the call's own stream, so flow control reaches from the server's memory to the
caller. A cancelled call resets its stream: the server drops the received part of an incomplete put.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from danube.model import storage_api as api
from danube.model.errors import DanubeError, StorageUnavailableError
from danube.storage import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.wire import ClientStream
from danube_storage_remote._connection import RemoteConnection

__all__ = ["RemoteBackend"]

T = TypeVar("T")

_DELETES_AT_ONCE = 1000


class RemoteBackend(StorageBackend):
    """A backend over one space of a storage server."""

    def __init__(self, connection: RemoteConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    @property
    def url(self) -> str:
        """The URL without secrets."""
        return self._connection.url

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the backend behind the server, and always shared."""
        description = self._connection.description
        assert description is not None, "connect_remote() has queried it"
        return StorageCapabilities(
            durable=description.durable,
            conditional_put=description.conditional_put,
            shared=True,
            max_object_bytes=description.max_object_bytes,
            mounted=description.mounted,
        )

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object; see :meth:`StorageBackend.put`."""
        size = len(data)
        request = api.PutObject(self._space, key, size, if_absent)
        small = size <= api.SMALL_OBJECT_BYTES
        if small:
            request.data = bytes(data)
        async with self._call(api.StorageMethod.PUT, f"put {key}") as stream:
            stream.send_nowait(stream.encode(request))
            if small:
                stream.end()
            reply = await self._reply(stream)
            if isinstance(reply, api.Admitted):
                with memoryview(data) as view:
                    for start in range(0, size, api.PIECE_BYTES):
                        await stream.wait_send_capacity()
                        # False if the server has ended the call; its answer has the reason.
                        if not stream.send_nowait(bytes(view[start : start + api.PIECE_BYTES])):
                            break
                stream.end()
                reply = await self._reply(stream)
            if not isinstance(reply, api.Done):
                raise StorageUnavailableError("the server requested the object twice")

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a part of an object; see :meth:`StorageBackend.get`."""
        if start == end:
            return b""
        async with self._call(api.StorageMethod.GET, f"get {key}") as stream:
            stream.send_nowait(stream.encode(api.GetObject(self._space, key, start, end)))
            stream.end()
            pieces = await _pieces(stream)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several parts of an object in one call; see :meth:`StorageBackend.get_ranges`."""
        if all(start == end for start, end in ranges):
            return [b""] * len(ranges)
        async with self._call(api.StorageMethod.GET_RANGES, f"get {key}") as stream:
            flat = [bound for one in ranges for bound in one]
            stream.send_nowait(stream.encode(api.GetRanges(self._space, key, flat)))
            stream.end()
            data = b"".join(await _pieces(stream))
            if len(data) != sum(end - start for start, end in ranges):
                raise StorageUnavailableError(
                    f"the server answered with {len(data)} bytes, which are not the requested ranges"
                )
        parts = []
        position = 0
        for start, end in ranges:
            parts.append(data[position : position + end - start])
            position += end - start
        return parts

    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object; see :meth:`StorageBackend.head`."""
        found = await self._unary(api.StorageMethod.HEAD, f"head {key}", api.HeadObject(self._space, key), api.Object)
        return ObjectInfo(found.key, found.size_bytes, found.modified_us)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return one page of a listing; see :meth:`StorageBackend.list`."""
        request = api.ListObjects(self._space, prefix, start_after, limit)
        page = await self._unary(api.StorageMethod.LIST, f"list {prefix}*", request, api.ObjectPage)
        return ListPage([ObjectInfo(one.key, one.size_bytes, one.modified_us) for one in page.objects], page.more)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand in each call; see :meth:`StorageBackend.delete`."""
        for first in range(0, len(keys), _DELETES_AT_ONCE):
            some = list(keys[first : first + _DELETES_AT_ONCE])
            await self._unary(
                api.StorageMethod.DELETE, f"delete {some[0]}", api.DeleteObjects(self._space, some), api.Done
            )

    async def abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Make the server remove remains of interrupted uploads in its backend."""
        request = api.AbandonUploads(self._space, prefix, older_than_s)
        return (
            await self._unary(api.StorageMethod.ABANDON_UPLOADS, f"abandon_uploads {prefix}*", request, api.Count)
        ).count

    @asynccontextmanager
    async def _call(self, path: str, operation: str) -> AsyncIterator[ClientStream]:
        connection = self._connection
        channel = await connection.channel()
        try:
            async with channel.open_stream(path, metadata=connection.metadata) as stream:
                yield stream
        except DanubeError as error:
            raise connection.translate(error, operation) from error

    async def _unary(self, path: str, operation: str, request: object, kind: type[T]) -> T:
        connection = self._connection
        channel = await connection.channel()
        try:
            return await channel.unary(path, request, kind, metadata=connection.metadata)
        except DanubeError as error:
            raise connection.translate(error, operation) from error

    @staticmethod
    async def _reply(stream: ClientStream) -> api.PutReply:
        message = await stream.receive()
        if message is None:
            raise StorageUnavailableError("the server ended the call without an answer")
        reply: api.PutReply = stream.decode(api.PutReply, message.data)  # type: ignore[arg-type]
        message.release()
        return reply


async def _pieces(stream: ClientStream) -> list[bytes]:
    """Receive an answer of bytes completely."""
    pieces: list[bytes] = []
    missing: int | None = None
    while (message := await stream.receive()) is not None:
        if missing is None:
            missing = stream.decode(api.ObjectBytes, message.data).size_bytes
        else:
            pieces.append(message.data)
            missing -= len(message.data)
        message.release()
    if missing != 0:
        raise StorageUnavailableError("the server's answer has another size than announced")
    return pieces
