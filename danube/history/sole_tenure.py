"""The tenure of a broker that is alone on its metadata, and owns all topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from danube.metadata import Condition, MetadataStore, decode_record
from danube.model.errors import MetadataConflictError, OwnerFencedError
from danube.model.ids import NO_OWNER_EPOCH, OwnerEpoch, TopicId

__all__ = ["SoleTenure"]

_FIRST_EPOCH: Final = OwnerEpoch(1)


class TenureRecord(msgspec.Struct, frozen=True, array_like=True):
    """The last life of a broker that owns everything."""

    epoch: OwnerEpoch
    life: int


_encode = msgspec.msgpack.encode
_RECORD = msgspec.msgpack.Decoder(TenureRecord)


class SoleTenure:
    """The tenure of a broker that owns all topics of its metadata. Create it with :meth:`begin`.

    Its epochs are counted in the metadata, in ``/tenures/{broker}``: each life has a higher one.

    Attributes:
        broker, life: as in :class:`Tenure`.
    """

    def __init__(self, store: MetadataStore, broker: str, record: TenureRecord, revision: int) -> None:
        self._store = store
        self._record = record
        self._revision = revision
        self.broker = broker
        self.life = record.life

    @classmethod
    async def begin(cls, store: MetadataStore, broker: str = "b1", at_least: OwnerEpoch = _FIRST_EPOCH) -> SoleTenure:
        """Begin a life under a new epoch, which is at least ``at_least``.

        Raises:
            DanubeError: the store cannot answer.
        """
        while True:
            item = await store.get(_key(broker))
            former = decode_record(item, _RECORD.decode).epoch if item is not None else NO_OWNER_EPOCH
            epoch = max(OwnerEpoch(former + 1), at_least)
            record = TenureRecord(epoch, epoch)
            try:
                revision = await store.put(
                    _key(broker), _encode(record), expected_revision=item.mod_revision if item is not None else 0
                )
            except MetadataConflictError:
                continue  # another life begins at the same time
            return cls(store, broker, record, revision)

    def owns(self, topic_id: TopicId) -> bool:
        """As :meth:`Tenure.owns`: always."""
        return True

    def epoch(self, topic_id: TopicId) -> OwnerEpoch:
        """As :meth:`Tenure.epoch`: the same for all topics."""
        return self._record.epoch

    def assigned_at(self, topic_id: TopicId) -> int:
        """As :meth:`Tenure.assigned_at`: 0, because no row assigns a topic."""
        return 0

    def conditions(self, topic_id: TopicId) -> Sequence[Condition]:
        """As :meth:`Tenure.conditions`: none, since no other broker can become the owner."""
        return ()

    def session(self) -> Sequence[Condition]:
        """As :meth:`Tenure.session`: none."""
        return ()

    async def raise_epoch(self, at_least: OwnerEpoch) -> None:
        """As :meth:`Tenure.raise_epoch`; the epoch of all topics rises."""
        while self._record.epoch < at_least:
            wanted = TenureRecord(at_least, self.life)
            try:
                self._revision = await self._store.put(
                    _key(self.broker), _encode(wanted), expected_revision=self._revision
                )
                self._record = wanted
            except MetadataConflictError:
                item = await self._store.get(_key(self.broker))
                found = decode_record(item, _RECORD.decode) if item is not None else None
                if item is None or found is None or found.life != self.life:
                    raise OwnerFencedError(
                        f"another process has begun a later life of broker {self.broker}; this one stops"
                    ) from None
                self._record, self._revision = found, item.mod_revision  # the answer to an earlier call was lost


def _key(broker: str) -> str:
    return f"/tenures/{broker}"
