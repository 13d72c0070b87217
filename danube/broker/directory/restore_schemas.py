"""Brings the schemas of a bucket back into the registry, before the topics whose batches carry them.

Numbers stay: the batches have them in their headers. Schemas come first, in transactions of a few, and the first one
raises the counter above all numbers of the bucket; then subjects, each whole in one transaction. What exists is left
alone, so an interrupted restore may be repeated. A registry in which one of the numbers means something else is not
touched, and nothing is restored: batches would be decoded with the wrong schema.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from danube.history import read_schemas
from danube.model.errors import FailedPreconditionError, InvalidSchemaNumberError
from danube.model.limits import KIB
from danube.model.log_events import log_event
from danube.storage import Storage

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.schema.objects import SchemaObject

__all__ = ["check_schemas", "restore_schemas", "restore_schemas_of"]

_log = logging.getLogger("danube.broker")

_MOST_PUT: Final = 20
"""Records in one transaction; a schema may take two keys."""
_MOST_PUT_BYTES: Final = 128 * KIB
"""Records in one transaction together, unless one alone is larger."""

K = TypeVar("K")
V = TypeVar("V")


async def check_schemas(directory: Directory, storage: Storage, schemas: Sequence[SchemaObject]) -> None:
    """Check that the registry can take these schemas over.

    Raises:
        FailedPreconditionError: the number of one means something else here.
        DanubeError: the metadata do not answer.
    """
    if not schemas:
        return
    from danube.schema.objects import conflicts  # only if there are schemas

    book = await directory.registry().current()
    found = conflicts(book, {each.number: each.schema for each in schemas})
    if found:
        raise _conflict(storage, found)


def _conflict(storage: Storage, found: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"the history in {storage.url} carries numbers of schemas that mean something else in the schema registry:"
        f" {found}. Restore into a cluster whose registry is empty, or delete these schemas for good and purge them"
        " (danube schemas delete, danube schemas purge), if no messages carry them"
    )


async def restore_schemas(directory: Directory, storage: Storage, schemas: Sequence[SchemaObject]) -> None:
    """Bring schemas and their subjects into the registry, as far as it does not have them.

    Raises:
        FailedPreconditionError: the number of one means something else here.
        DanubeError: the metadata do not answer; some may have been restored.
    """
    if not schemas:
        return
    from danube.schema.book import Book  # only if there are schemas
    from danube.schema.objects import recovered

    found = recovered(schemas)
    registry = directory.registry()
    known = await registry.current()
    numbers = sum(not known.owners(number) for number in found.numbers)
    subjects = len(found.subjects.keys() - known.subjects(deleted=True))
    try:
        for some in _groups(found.numbers):
            await registry.change(partial(Book.restored, numbers=some, subjects={}, following=found.following))
        for few in _groups(found.subjects):
            await registry.change(partial(Book.restored, numbers={}, subjects=few, following=found.following))
    except InvalidSchemaNumberError as error:
        raise _conflict(storage, str(error)) from error
    if numbers or subjects:
        _log.warning(
            "%d schema(s) and %d subject(s) are restored from %s",
            numbers,
            subjects,
            storage.url,
            extra=log_event("restore.schemas", schemas=numbers, subjects=subjects),
        )


async def restore_schemas_of(directory: Directory, cluster: str, storage: Storage) -> None:
    """Bring all schemas of a storage into the registry: for topics that a new broker takes over from it by itself.

    Raises:
        FailedPreconditionError: the number of one means something else here; nothing was restored.
        DanubeError: the storage or the metadata do not answer; some may have been restored.
    """
    schemas = await read_schemas(storage, cluster)
    await check_schemas(directory, storage, schemas)
    await restore_schemas(directory, storage, schemas)


def _groups(records: Mapping[K, V]) -> Iterator[dict[K, V]]:
    """Divide records into groups that fit into a transaction each."""
    group: dict[K, V] = {}
    size = 0
    for key, record in records.items():
        size += (more := len(msgspec.msgpack.encode(record)))
        if group and (len(group) >= _MOST_PUT or size > _MOST_PUT_BYTES):
            yield group
            group, size = {}, more
        group[key] = record
    if group:
        yield group
