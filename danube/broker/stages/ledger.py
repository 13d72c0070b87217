"""The ledger of staged batches: the decisions, one record for each producer, in the metadata store.

::

    /stages/{broker}/{quoted name}      ProducerRecord
    /writers/{broker}/stages            guard of the writer

Stages are files of one broker, so that broker decides about them, and each has a ledger of its own.

A record is written when a batch is decided (``shares`` assign its stages to topics) and again when it is complete
(``shares`` are empty, ``offsets`` known). Each write is conditional on the revision before it, so two deciders cannot
both win; and a write whose reply was lost is settled (:mod:`danube.metadata.table`) before anything else happens to
that producer: a decision that is taken for not made never arrives later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote, unquote

import trio

from danube.broker.stages.decisions import ProducerRecord
from danube.metadata import Change, Condition, Delete, MetadataStore, Table, TableWriter
from danube.model.errors import DanubeError, LimitExceededError
from danube.model.limits import Limits

__all__ = ["Known", "Ledger"]


class Known:
    """One producer with its last known record. A decision for it requires ``lock``."""

    __slots__ = ("certain", "lock", "name", "problem", "record")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = trio.Lock()
        self.record: ProducerRecord | None = None
        self.certain = True
        """False after a write whose outcome is unknown, until :meth:`Ledger.reload`."""
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
    """The records of all producers. Must be loaded (:meth:`load`) before anything is written.

    Args:
        store: the metadata store.
        broker: name of the broker whose stages it is about.
        limits: ``max_stage_producers`` and ``stage_producer_expiry_s``.
        clock_us: microseconds since the epoch.
    """

    def __init__(self, store: MetadataStore, broker: str, limits: Limits, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._guard = f"/writers/{broker}/stages"
        self._limits = limits
        self._clock_us = clock_us
        self._known: dict[str, Known] = {}
        self._table = Table(store, f"/stages/{broker}/", ProducerRecord)
        self._writer: TableWriter

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    async def load(self) -> None:
        """Read all records."""
        self._writer = await TableWriter.open(self._store, self._guard)
        await self._table.load()
        for key, record in self._table.values.items():
            known = Known(unquote(key))
            known.record = record
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
        await self._apply(known, self._table.put(_key(known.name), record))

    async def inherit(self, known: Known, record: ProducerRecord, rows: Sequence[Condition]) -> None:
        """Take over the record of a broker that is gone; the caller holds the lock.

        Args:
            known: the producer.
            record: the one that counts.
            rows: keys and revisions of its rows in the ledgers of such brokers, which are removed.

        Raises:
            DanubeError: as :meth:`write`.
        """
        removal = Change(rows, [Delete(row.key) for row in rows], lambda _: None)
        await self._apply(known, self._table.put(_key(known.name), record), removal)

    async def _apply(self, known: Known, *changes: Change) -> None:
        known.certain = False
        async with self._writer.changing():
            try:
                await self._writer.apply(*changes)
            finally:
                self._adopt(known)

    def _adopt(self, known: Known) -> None:
        """Take over the record as it is, unless a write is in doubt: then it may be one of this record."""
        if not self._writer.in_doubt:
            known.record = self._table.values.get(_key(known.name))
            known.certain = True

    async def reload(self, known: Known) -> None:
        """Find the outcome of a write; the caller holds the lock.

        Raises:
            DanubeError: the store cannot answer.
        """
        await self._writer.settle()
        self._adopt(known)

    async def expire(self) -> None:
        """Forget producers that have not committed a batch for a long time."""
        before_us = self._clock_us() - int(self._limits.stage_producer_expiry_s * 1e6)
        for known in list(self._known.values()):
            self.forget_unused(known)
            record = known.record
            if record is None or known.pending or known.lock.locked() or record.time_us >= before_us:
                continue
            async with known.lock:
                # Callers that wait for the lock now continue with an empty record.
                await self._apply(known, self._table.delete(_key(known.name)))
            self.forget_unused(known)


def _key(name: str) -> str:
    return quote(name, safe="")
