"""Keeps the schemas of sealed batches in the bucket, so that the bucket alone decodes its history.

Before an object enters the catalogue, the schemas whose numbers its batches carry, and all that these refer to, are in
the same storage, one object for each (:mod:`danube.schema.objects`). They are put if absent, and never deleted: nothing
counts which batches need them, and they are small. What was found or put is remembered, so the costs are one
look-up per object, and one put per schema and storage.

Numbers that the registry does not have are left out: publishers may put any number into their batches.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import trio

from danube.history.packing import number_of_key, schema_key, schema_prefix
from danube.model.errors import (
    DataLossError,
    SchemaNotFoundError,
    StorageExistsError,
    StorageNotFoundError,
    StorageUnavailableError,
)
from danube.model.log_events import log_event
from danube.storage import Storage

if TYPE_CHECKING:
    from danube.schema.kinds import Source
    from danube.schema.objects import SchemaObject

__all__ = ["NO_SCHEMAS", "SchemaKeeper", "SchemaSource", "read_schema", "read_schemas"]

_log = logging.getLogger("danube.history")

_REMEMBERED: Final = 20_000
"""Numbers of each storage that are known to be in it."""
_AT_ONCE: Final = 8
"""Number of objects read concurrently."""


class SchemaSource(Protocol):
    """Provides schemas by their numbers. Implemented by the broker."""

    async def schema_objects(self, numbers: Collection[int]) -> Mapping[int, SchemaObject]:
        """Return the objects of schemas and of all that they refer to, the latter first; unknown numbers are left out.

        Raises:
            DanubeError: some are not known here, and the metadata do not answer.
        """
        ...


class _NoSchemas:
    async def schema_objects(self, _numbers: Collection[int]) -> Mapping[int, SchemaObject]:
        return {}


NO_SCHEMAS: Final[SchemaSource] = _NoSchemas()
"""Of a history without a registry: all numbers are unknown."""


class SchemaKeeper:
    """Keeps the schemas of one storage.

    Args:
        storage: where they are kept.
        cluster: name of the cluster: the folder in the storage.
        source: the registry.
    """

    def __init__(self, storage: Storage, cluster: str, source: SchemaSource) -> None:
        self._storage = storage
        self._cluster = cluster
        self._source = source
        self._stored: dict[int, None] = {}

    async def keep(self, numbers: Collection[int]) -> None:
        """Return when the storage has these schemas, as far as the registry has them. May be cancelled and repeated.

        Raises:
            StorageError: one could not be stored or read back.
            DanubeError: the metadata do not answer.
        """
        missing = [number for number in numbers if number not in self._stored]
        if not missing:
            return
        for number, content in (await self._source.schema_objects(missing)).items():
            if number not in self._stored:
                await self._keep(content)
                self._stored[number] = None
        while len(self._stored) > _REMEMBERED:
            del self._stored[next(iter(self._stored))]

    async def _keep(self, content: SchemaObject) -> None:
        from danube.schema.objects import decode_object, encode_object  # most brokers have no schemas

        storage, key, data = self._storage, schema_key(self._cluster, content.number), encode_object(content)
        where = f"{storage.url}/{key}"
        try:
            found = await storage.get(key)
        except StorageNotFoundError:
            found = await self._put(key, data, is_new=True)
        try:
            try:
                kept = decode_object(found, where)
            except DataLossError:
                kept = decode_object(await storage.get(key), where)  # it may have been damaged on its way only
        except DataLossError as error:
            _log.warning("%s; it is written again", error, extra=log_event("schemas.rewritten", object=key))
            found = await self._put(key, data, is_new=False)
            if found != data:
                raise StorageUnavailableError(
                    f"{where} differs from the schema that was written; the history that needs it stays in the journal,"
                    " and the upload will be retried"
                ) from error
            return
        if kept.schema.hash != content.schema.hash:
            # The numbers of a registry are not used twice, so it was written with other metadata. It stays: the history
            # from then needs it.
            _log.error(
                "%s is another schema than number %d of the registry: new history in this storage is decoded with the"
                " registry only",
                where,
                content.number,
                extra=log_event("schemas.other_in_storage", storage=storage.name, number=content.number),
            )

    async def _put(self, key: str, data: bytes, *, is_new: bool) -> bytes:
        """Store an object, and return what the storage has then: of several brokers that store it, one succeeds."""
        if_absent = is_new and self._storage.capabilities.conditional_put
        try:
            await self._storage.put(key, data, if_absent=if_absent)
        except StorageExistsError:
            if not if_absent:
                raise
        return await self._storage.get(key)


async def read_schemas(storage: Storage, cluster: str) -> list[SchemaObject]:
    """Return all schemas of a bucket. Damaged ones are logged and left out.

    Raises:
        FailedPreconditionError: one was written by a newer version.
        StorageError: the backend cannot be read.
    """
    from danube.schema.objects import decode_object  # only when history is restored

    pages = storage.list_all(schema_prefix(cluster))
    keys = [item.key async for page in pages for item in page.objects if number_of_key(cluster, item.key) is not None]
    found: list[SchemaObject] = []
    waiting = iter(keys)

    async def read() -> None:
        for key in waiting:
            try:
                found.append(decode_object(await storage.get(key), f"{storage.url}/{key}"))
            except (DataLossError, StorageNotFoundError) as error:
                _log.error("a schema is left out: %s", error, extra=log_event("restore.schema_damaged", object=key))

    async with trio.open_nursery() as nursery:
        for _ in range(min(_AT_ONCE, len(keys))):
            nursery.start_soon(read)
    return sorted(found, key=lambda each: each.number)


async def read_schema(storage: Storage, cluster: str, number: int) -> Source:
    """Return one schema of a bucket, with all that it refers to, for decoding.

    Raises:
        SchemaNotFoundError: the bucket does not have it.
        SchemaTooLargeError: it refers to more than a schema may.
        DataLossError: it is damaged.
        FailedPreconditionError: it was written by a newer version.
        StorageError: the backend cannot be read.
    """
    from danube.schema.limits import DEFAULT_LIMITS  # only when schemas are read
    from danube.schema.objects import decodable_of, decode_object

    found: dict[int, SchemaObject] = {}
    wanted = [number]
    while wanted and len(found) <= DEFAULT_LIMITS.max_schema_references + 1:
        key = schema_key(cluster, wanted.pop())
        try:
            each = decode_object(await storage.get(key), f"{storage.url}/{key}")
        except StorageNotFoundError:
            raise SchemaNotFoundError(f"schema {number} is not in {storage.url}: there is no object {key}") from None
        found[each.number] = each
        wanted += [one.number for one in each.schema.references if one.number not in found]
    return decodable_of(number, found)
