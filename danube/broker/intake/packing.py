"""Packs messages that are sent one at a time into composite batches of bounded size and of one schema. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from danube.model.batch import PART_OVERHEAD, BatchHeader, CompositeRecord, SchemaRef, encode_composite, read_header
from danube.model.errors import DanubeError
from danube.model.limits import MIB, Limits

__all__ = ["NO_SCHEMA", "PackedBatch", "Packing", "Told"]

Told = Callable[[DanubeError | None], None]
"""Called once with the outcome of a message: None when it has reached its topic's durability."""

NO_SCHEMA: Final = SchemaRef()
_RECORD_OVERHEAD: Final = 64
"""Upper bound of the bytes of a record besides payload, key, attributes and the name of its producer."""
_BATCH_BYTES: Final = MIB
"""Maximum size of a batch of more than one message."""


class PackedBatch(NamedTuple):
    """A batch that is closed for further messages."""

    part: bytes
    header: BatchHeader
    told: list[Told]

    def tell(self, error: DanubeError | None) -> None:
        """Tell the outcome of its messages."""
        for told in self.told:
            told(error)


class Packing:
    """The messages of one topic that are not appended yet: closed batches, and at most one open one.

    Attributes:
        closed: the closed batches, oldest first; the caller removes them.
    """

    __slots__ = ("_base_us", "_limits", "_records", "_schema", "_size", "_told", "closed")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: list[CompositeRecord] = []
        self._told: list[Told] = []
        self._schema = NO_SCHEMA
        self._base_us = 0
        self._size = 0
        self.closed: deque[PackedBatch] = deque()

    @property
    def is_open(self) -> bool:
        """Whether a batch is open for further messages."""
        return bool(self._records)

    def add(self, record: CompositeRecord, publish_time_us: int, size: int, told: Told, schema: SchemaRef) -> None:
        """Add a message to the open batch; close that one first if it is full or has another schema.

        Args:
            record: without its ``publish_delta_us``, which is filled in.
            publish_time_us: when it was sent, by its producer's clock.
            size: bytes of its payload, key, attributes and producer's name.
            told: called with its outcome.
            schema: of the message.
        """
        limits, records = self._limits, self._records
        size += _RECORD_OVERHEAD
        if not records:
            self._schema, self._base_us = schema, publish_time_us
        elif (
            self._size + size > min(_BATCH_BYTES, limits.max_batch_bytes - PART_OVERHEAD)
            or len(records) >= limits.max_batch_records
            or schema != self._schema
        ):
            self.close()
            self._schema, self._base_us = schema, publish_time_us
        record.publish_delta_us = publish_time_us - self._base_us
        self._records.append(record)
        self._told.append(told)
        self._size += size

    def close(self) -> None:
        """Close the open batch, which has messages."""
        part = encode_composite(
            self._records,
            publish_time_us=self._base_us,
            schema_id=self._schema.schema_id,
            schema_version=self._schema.schema_version,
        )
        self.closed.append(PackedBatch(part, read_header(part), self._told))
        self._records, self._told, self._size = [], [], 0
