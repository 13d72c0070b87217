"""Stores objects in Redis: one string for each object, and two collections that index the keys.

All keys carry the prefix of the URL in braces, so that Redis Cluster puts them into one slot, on one node::

    {danube:<prefix>}:object:<key>    string   the bytes
    {danube:<prefix>}:index           zset     all keys, score 0: in the order of their bytes
    {danube:<prefix>}:about           hash     key -> "<size> <microseconds since the epoch>"
    {danube:<prefix>}:upload:<id>     string   an object being uploaded; expires by itself

A put first sets the upload, then a script renames it and enters it in both collections, in one step and without copying
the bytes. So an interrupted put either has taken effect or has left an upload that expires. Small objects are sent with
the script, in one round trip; for a large one the script follows the answer, so that a put that is cancelled while
the server is still receiving the bytes has no effect. Reads of several values are transactions (MULTI), so they
see one version of an object.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import count
from typing import Any

from danube.model.errors import (
    InvalidArgumentError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
    StorageUnavailableError,
)
from danube.storage import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube_storage_redis._client import RedisClient
from danube_storage_redis._resp import Command, Reply

__all__ = ["RedisBackend"]

_UPLOAD_EXPIRY_S = 60
_KEYS_AT_ONCE = 1000
_SMALL_BYTES = 256 * 1024

_ENTER = """\
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('DEL', KEYS[1])
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return -1
end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('PERSIST', KEYS[2])
local now = redis.call('TIME')
redis.call('ZADD', KEYS[3], 0, ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2] .. ' ' .. now[1] .. string.format('%06d', now[2]))
return 1
"""

_LIST = """\
local keys = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local about = {}
for start = 1, #keys, 1000 do
  for _, value in ipairs(redis.call('HMGET', KEYS[2], unpack(keys, start, math.min(start + 999, #keys)))) do
    about[#about + 1] = value
  end
end
return {keys, about}
"""


_Replies = list[Reply]


class RedisBackend(StorageBackend):
    """A backend over one Redis or Valkey server."""

    def __init__(self, client: RedisClient, url: str, prefix: str, capabilities: StorageCapabilities) -> None:
        self._client = client
        self._url = url
        self._capabilities = capabilities
        root = f"{{danube:{prefix}}}:"
        self._object = root + "object:"
        self._upload = f"{root}upload:{secrets.token_hex(8)}-"
        self._index = root + "index"
        self._about = root + "about"
        self._uploads = count()

    @property
    def url(self) -> str:
        """The URL without secrets."""
        return self._url

    @property
    def capabilities(self) -> StorageCapabilities:
        """The guarantees of the server, according to its configuration when the backend was opened."""
        return self._capabilities

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object; see :meth:`StorageBackend.put`."""
        limit = self._capabilities.max_object_bytes
        if len(data) > limit:
            raise InvalidArgumentError(
                f"{self._url}: put {key}: {len(data)} bytes are more than the {limit} of one object"
            )
        upload = f"{self._upload}{next(self._uploads)}"
        enter: Command = (
            *("EVAL", _ENTER, 4, upload, self._object + key, self._index, self._about),
            *(key, len(data), int(if_absent)),
        )
        store: Command = ("SET", upload, data, "EX", _UPLOAD_EXPIRY_S)
        if len(data) <= _SMALL_BYTES:
            _, entered = await self._client.call("put", key, [store, enter])
        else:
            await self._client.call("put", key, [store])
            (entered,) = await self._client.call("put", key, [enter])
        if entered == 0:
            raise StorageExistsError(f"{self._url}: put {key}: the object already exists")
        if entered != 1:
            raise StorageUnavailableError(f"{self._url}: put {key}: the upload was evicted or has expired; try again")

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a part of an object; see :meth:`StorageBackend.get`."""
        if start == 0 and end is None:
            (data,) = await self._client.call("get", key, [("GET", self._object + key)])
            if data is None:
                raise self._missing("get", key)
            assert isinstance(data, bytes)
            return data
        return (await self._ranges(key, [(start, end)]))[0]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several parts of an object in one round trip; see :meth:`StorageBackend.get_ranges`."""
        return await self._ranges(key, ranges)

    async def _ranges(self, key: str, ranges: Sequence[tuple[int, int | None]]) -> list[bytes]:
        wanted = [(start, end) for start, end in ranges if start != end]
        if not wanted:
            return [b""] * len(ranges)
        name = self._object + key
        commands: list[Command] = [("EXISTS", name), ("STRLEN", name)]
        commands += [("GETRANGE", name, start, -1 if end is None else end - 1) for start, end in wanted]
        exists, size, *found = await self._transaction("get", key, commands)
        if not exists:
            raise self._missing("get", key)
        assert isinstance(size, int)
        for start, end in wanted:
            if max(start, end or 0) > size:
                raise StorageRangeError(f"{self._url}: get {key}: [{start}, {end}) is not within its {size} bytes")
        parts: Any = iter(found)
        return [b"" if start == end else next(parts) for start, end in ranges]

    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object; see :meth:`StorageBackend.head`."""
        (about,) = await self._client.call("head", key, [("HGET", self._about, key)])
        if about is None:
            raise self._missing("head", key)
        return _info(key, about)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return one page of a listing; see :meth:`StorageBackend.list`."""
        lowest = f"({start_after}" if start_after >= prefix else f"[{prefix}"
        # Keys are ASCII, so all keys with the prefix sort below the prefix and a non-ASCII byte.
        highest = b"(" + prefix.encode() + b"\xff"
        command: Command = (
            *("EVAL", _LIST, 2, self._index, self._about),
            *(lowest, highest, limit + 1),
        )
        page: Any = (await self._client.call("list", prefix, [command]))[0]
        keys, about = page
        objects = [_info(key.decode(), text) for key, text in zip(keys[:limit], about, strict=False)]
        return ListPage(objects, len(keys) > limit)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand in each transaction; see :meth:`StorageBackend.delete`."""
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[first : first + _KEYS_AT_ONCE]
            commands: list[Command] = [
                ("UNLINK", *(self._object + key for key in some)),
                ("ZREM", self._index, *some),
                ("HDEL", self._about, *some),
            ]
            await self._transaction("delete", some[0], commands)

    async def _transaction(self, operation: str, key: str, commands: Sequence[Command]) -> _Replies:
        replies = (await self._client.call(operation, key, [("MULTI",), *commands, ("EXEC",)]))[-1]
        assert isinstance(replies, list)
        return replies

    def _missing(self, operation: str, key: str) -> StorageNotFoundError:
        return StorageNotFoundError(f"{self._url}: {operation} {key}: there is no such object")


def _info(key: str, about: Reply) -> ObjectInfo:
    assert isinstance(about, bytes)
    size, modified = about.split()
    return ObjectInfo(key, int(size), int(modified))
