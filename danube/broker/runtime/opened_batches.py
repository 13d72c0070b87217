"""Opened batches: a cache of batches split into records, for subscriptions that deliver parts of a batch.

Shared and key-shared subscriptions deliver slices. A batch is opened once for all of them and kept while it is among
the most recently used ones, within ``Limits.opened_batches_bytes``. Cutting uses msgspec ``Raw``: no object per field.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from danube.log.cache import StoredBatch
from danube.model import Limits
from danube.model.batch import BatchFlags, open_raw
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CorruptBatchError

__all__ = ["OpenedBatch", "OpenedBatches"]


class _Keyed(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a record, up to its key."""

    payload: msgspec.Raw
    key: bytes | None = None


class _Sent(_Keyed, array_like=True, gc=False):
    """The first fields of a record of a composite batch, up to its producer."""

    attributes: msgspec.Raw = msgspec.Raw()
    publish_delta_us: msgspec.Raw = msgspec.Raw()
    producer: str = ""


_KEYED = msgspec.msgpack.Decoder(_Keyed)
_SENT = msgspec.msgpack.Decoder(_Sent)


class OpenedBatch:
    """One batch, split into raw records; keys are decoded on demand."""

    __slots__ = ("_keys", "batch", "raws")

    def __init__(self, batch: StoredBatch, raws: list[msgspec.Raw]) -> None:
        self.batch = batch
        self.raws = raws
        self._keys: list[bytes] | None = None

    def keys(self, default: bytes) -> Sequence[bytes]:
        """Return the effective key of every record; one without a key has ``default`` (its producer's name).

        Raises:
            CorruptBatchError: a record does not decode.
        """
        if self._keys is None:
            flags = self.batch.header.flags
            if flags & BatchFlags.PAYLOADS_ONLY:
                self._keys = [default] * len(self.raws)
            else:
                try:
                    if flags & BatchFlags.COMPOSITE:
                        self._keys = [(sent := _SENT.decode(raw)).key or sent.producer.encode() for raw in self.raws]
                        return self._keys
                    self._keys = [_KEYED.decode(raw).key or default for raw in self.raws]
                except UNDECODABLE as error:
                    raise CorruptBatchError(f"batch records do not decode: {error}") from error
        return self._keys

    def take(self, ranges: Sequence[int]) -> list[msgspec.Raw]:
        """Return the raw records of flat offset ranges."""
        base = self.batch.base_offset
        if len(ranges) == 2:
            return self.raws[ranges[0] - base : ranges[1] - base]
        return [raw for i in range(0, len(ranges), 2) for raw in self.raws[ranges[i] - base : ranges[i + 1] - base]]


class OpenedBatches:
    """A byte-bounded LRU of opened batches, shared by all subscriptions of a broker.

    Batches are told apart by their stamps: a topic that was another broker's for a while may have another batch at the
    same offset when it comes back.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit_bytes = limits.opened_batches_bytes
        self._max_unpacked = limits.max_batch_bytes
        self.used_bytes = 0
        """Estimate of the memory that the opened batches take."""
        self.hits = 0
        """Batches that were open already."""
        self.misses = 0
        """Batches that had to be opened."""
        self._kept: OrderedDict[bytes, OpenedBatch] = OrderedDict()

    def open(self, batch: StoredBatch) -> OpenedBatch:
        """Return the opened batch.

        Raises:
            CorruptBatchError: the records do not decode, although the checksum is right: the producer made a bad batch.
        """
        key = batch.stamp
        opened = self._kept.get(key)
        if opened is not None:
            self.hits += 1
            self._kept.move_to_end(key)
            return opened
        self.misses += 1
        opened = OpenedBatch(batch, open_raw(batch.part, batch.header, self._max_unpacked))
        self._kept[key] = opened
        self.used_bytes += _cost(batch)
        while self.used_bytes > self._limit_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self.used_bytes -= _cost(oldest.batch)
        return opened


def _cost(batch: StoredBatch) -> int:
    # A Raw object is about 80 bytes beside the buffer that all of them share.
    return len(batch.part) + batch.header.unpacked_size + 80 * batch.header.record_count
