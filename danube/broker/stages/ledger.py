"""The ledger of staged batches: the decisions, one record for each producer, in the metadata store.

::

    /stages/producers/{quoted name}     ProducerRecord

A record is written when a batch is decided (``shares`` assign its stages to topics) and again when it is complete
(``shares`` are empty, ``offsets`` known). Each write is conditional on the revision before it, so two deciders cannot
both win; and after a write whose reply was lost, the record is read back before anything else happens to that producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import trio

from danube.metadata import MetadataStore
from danube.model.errors import DanubeError, LimitExceededError
from danube.model.limits import Limits

__all__ = ["Known", "Ledger", "ProducerRecord", "Share"]

_PREFIX: Final = "/stages/producers/"

_encode = msgspec.msgpack.Encoder().encode


class Share(msgspec.Struct, array_like=True, frozen=True):
    """The part of a decided batch for one topic or partition."""

    topic: str
    topic_id: int
    producer_id: int
    base_sequence: int
    """Sequence of the first message of the first stage; the others follow without a gap."""
    start_offset: int
    """The topic's end when the batch was decided: all messages of the batch are after it."""
    stage_ids: list[int]


class ProducerRecord(msgspec.Struct, array_like=True, frozen=True):
    """The state of a producer of staged batches."""

    last_batch: int
    time_us: int
    """When it was written."""
    committing: bool
    """Whether the last batch is still being appended to its topics."""
    shares: list[Share]
    """Shares of a batch that is being appended."""
    offsets: dict[str, tuple[int, int]]
    """Offsets of a completed batch, as in :class:`danube.model.stage_api.StageCommit`."""
    label: str = ""
    """Label of the last commit."""


_DECODER: Final = msgspec.msgpack.Decoder(ProducerRecord)


class Known:
    """One producer with its last known record. A decision for it requires :attr:`lock`."""

    __slots__ = ("certain", "lock", "name", "problem", "record", "revision")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = trio.Lock()
        self.record: ProducerRecord | None = None
        self.revision = 0
        self.certain = True
        """False after a write whose outcome is unknown."""
        self.problem: DanubeError | None = None
        """Why a decided batch is not complete yet."""

    @property
    def last_batch(self) -> int | None:
        """The last batch that was decided."""
        return None if self.record is None else self.record.last_batch

    @property
    def pending(self) -> bool:
        """Whether a decided batch is not complete, or that is unknown."""
        return not self.certain or (self.record is not None and self.record.committing)


class Ledger:
    """The records of all producers.

    Args:
        store: the metadata store.
        limits: ``max_stage_producers`` and ``stage_producer_expiry_s``.
        clock_us: microseconds since the epoch.
    """

    def __init__(self, store: MetadataStore, limits: Limits, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._limits = limits
        self._clock_us = clock_us
        self._known: dict[str, Known] = {}

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    async def load(self) -> None:
        """Read all records."""
        for item in (await self._store.list(_PREFIX))[0]:
            known = Known(unquote(item.key.removeprefix(_PREFIX)))
            known.record, known.revision = _DECODER.decode(item.value), item.mod_revision
            self._known[known.name] = known

    def find(self, name: str) -> Known | None:
        """Return a producer that has committed a batch, or None."""
        return self._known.get(name)

    async def known(self, name: str) -> Known:
        """Return a producer that is about to commit a batch.

        Raises:
            LimitExceededError: there are too many.
        """
        if name not in self._known and len(self._known) >= self._limits.max_stage_producers:
            await self.expire()
            if len(self._known) >= self._limits.max_stage_producers:
                raise LimitExceededError(
                    f"producer {name!r} cannot commit: limit max_stage_producers ="
                    f" {self._limits.max_stage_producers} is reached; use fewer names, or raise the limit"
                )
        return self._known.setdefault(name, Known(name))

    def forget_unused(self, known: Known) -> None:
        """Release the place of a producer that has not committed a batch after all."""
        if known.record is None and known.certain and not known.lock.locked() and known.name in self._known:
            del self._known[known.name]

    async def write(self, known: Known, record: ProducerRecord) -> None:
        """Replace a record; the caller holds the lock.

        Raises:
            DanubeError: it was not written; or, if ``known.certain`` is False afterwards, it may have been.
        """
        value = _encode(record)
        known.certain = False
        try:
            known.revision = await self._store.put(_key(known.name), value, expected_revision=known.revision)
        except DanubeError:
            await self.reload(known)
            if known.record is None or _encode(known.record) != value:
                raise
        known.record, known.certain = record, True

    async def reload(self, known: Known) -> None:
        """Read a record back, to find the outcome of a write; the caller holds the lock."""
        item = await self._store.get(_key(known.name))
        known.record = None if item is None else _DECODER.decode(item.value)
        known.revision = 0 if item is None else item.mod_revision
        known.certain = True

    async def expire(self) -> None:
        """Forget producers that have not committed a batch for a long time."""
        before_us = self._clock_us() - int(self._limits.stage_producer_expiry_s * 1e6)
        for known in list(self._known.values()):
            self.forget_unused(known)
            record = known.record
            if record is None or known.pending or known.lock.locked() or record.time_us >= before_us:
                continue
            async with known.lock:
                await self._store.delete(_key(known.name), expected_revision=known.revision)
                # Callers that wait for the lock now continue with an empty record.
                known.record, known.revision = None, 0
            self.forget_unused(known)


def _key(name: str) -> str:
    return _PREFIX + quote(name, safe="")
