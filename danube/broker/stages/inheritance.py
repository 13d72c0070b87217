"""Decisions of brokers that are gone: they count for the next home of their producers.

The ledger of a broker is in the metadata, and outlives it (``danube cluster forget``). The next home of a producer
moves the row to its own ledger before it decides anything, so a batch that was committed is not committed again.

A broker that was forgotten may be alive, and a decision of it under way. So its guard is taken over before its rows are
read (:mod:`danube.metadata.table`): what arrives later is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import msgspec

from danube.broker.stages.decisions import ProducerRecord, inherited
from danube.cluster.records import BrokerState
from danube.metadata import Condition, Delete, TableWriter
from danube.metadata.table import decode_record
from danube.model.errors import MetadataConflictError

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.stages.ledger import Ledger

__all__ = ["Inheritance"]

_RECORD: Final = msgspec.msgpack.Decoder(ProducerRecord)


class _Left(NamedTuple):
    """A row in the ledger of a broker that is gone."""

    broker: str
    row: Condition
    """Its key and revision."""
    record: ProducerRecord


class Inheritance:
    """The ledgers of brokers that are gone, as one broker uses them.

    Args:
        directory: of the broker.
        ledger: of the broker.
        clock_us: microseconds since the epoch.
    """

    def __init__(self, directory: Directory, ledger: Ledger, clock_us: Callable[[], int]) -> None:
        self._store = directory.catalogue.store
        self._brokers = directory.membership.brokers
        self._expiry_s = directory.runtime.limits.stage_producer_expiry_s
        self._ledger = ledger
        self._clock_us = clock_us
        self._fenced: set[str] = set()
        """Brokers that can decide nothing any more."""

    @property
    def exists(self) -> bool:
        """Whether any broker is gone."""
        return bool(self._gone())

    async def has(self, producer: str) -> bool:
        """Whether a broker that is gone has decided a batch of a producer.

        Raises:
            DanubeError: the metadata do not answer.
        """
        return bool(await self._find(producer))

    async def last_batch(self, producer: str) -> int | None:
        """Return the last batch of a producer that was decided by a broker that is gone; None: this one knows better.

        Raises:
            DataLossError: how much of it is in its topics is unknown.
            DanubeError: the metadata do not answer.
        """
        latest = self._latest(producer, await self._find(producer))
        return latest.last_batch if latest is not None else None

    async def take_over(self, producer: str) -> None:
        """Move what was decided about a producer to the ledger of this broker, which is its home.

        Raises:
            DataLossError: how much of its last batch is in its topics is unknown.
            LimitExceededError: this broker knows too many producers.
            MetadataConflictError: the rows were removed meanwhile; look again.
            DanubeError: the metadata do not answer.
        """
        found = await self._find(producer)
        if self._latest(producer, found) is None:
            return
        known = await self._ledger.known(producer)
        try:
            async with known.lock:
                if not known.certain:
                    await self._ledger.reload(known)
                latest = self._latest(producer, found)
                if latest is not None:
                    record = msgspec.structs.replace(latest, time_us=self._clock_us())
                    await self._ledger.inherit(known, record, [each.row for each in found])
        finally:
            self._ledger.forget_unused(known)

    async def expire(self) -> None:
        """Remove what was decided so long ago that a living broker would have forgotten it.

        Raises:
            DanubeError: the metadata do not answer.
        """
        before_us = self._clock_us() - int(self._expiry_s * 1e6)
        for broker in self._gone():
            items, _ = await self._store.list(f"/stages/{broker}/")
            for item in items:
                if decode_record(item, _RECORD.decode).time_us < before_us:
                    try:
                        await self._store.transact([Condition(item.key, item.mod_revision)], [Delete(item.key)])
                    except MetadataConflictError:
                        continue  # another broker was faster

    def _gone(self) -> list[str]:
        return [name for name, record in self._brokers.values.items() if record.state is BrokerState.GONE]

    async def _find(self, producer: str) -> list[_Left]:
        found = []
        for broker in self._gone():
            if broker not in self._fenced:
                await TableWriter.open(self._store, f"/writers/{broker}/stages")
                self._fenced.add(broker)
            item = await self._store.get(f"/stages/{broker}/{quote(producer, safe='')}")
            if item is not None:
                row = Condition(item.key, item.mod_revision)
                found.append(_Left(broker, row, decode_record(item, _RECORD.decode)))
        return found

    def _latest(self, producer: str, found: Sequence[_Left]) -> ProducerRecord | None:
        known = self._ledger.find(producer)
        own = known.last_batch if known is not None else None
        return inherited(producer, own, {each.broker: each.record for each in found})
