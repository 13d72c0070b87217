"""Which broker holds the stages of a producer, and decides about them: its *home*.

Tasks of a job run on many machines, and its topics belong to several brokers. A commit is one decision, so all stages
of a producer are held by one broker, which appends them to the topics of other ones over the links::

    /stage-homes/{quoted name}      HomeRecord

The first broker that gets a stage of a producer becomes its home; it is one that owns the topic of that stage. The
others send clients there (NotOwnerError). The home stays the same as long as the producer is known: only its ledger
says which batches were committed. A broker that is forgotten loses its producers to the next one that is asked.

A broker alone has no such records: it claims its producers when others have joined and the next stage arrives. A ledger
that another broker has from before counts as a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import msgspec
import trio

from danube.broker.stages.decisions import ProducerRecord
from danube.broker.stages.inheritance import Inheritance
from danube.cluster.records import BrokerState, broker_name
from danube.metadata import Condition, Delete
from danube.metadata.table import decode_record
from danube.model.errors import MetadataConflictError, NotOwnerError, OwnerAwayError, UnavailableError
from danube.model.ids import BrokerId, ProducerId

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.stages.ledger import Ledger

__all__ = ["HomeRecord", "Homes"]

_PREFIX: Final = "/stage-homes/"
_MOST_ATTEMPTS: Final = 5
_encode: Final = msgspec.msgpack.encode


class HomeRecord(msgspec.Struct, array_like=True, frozen=True):
    """The home of a producer. New fields are added at the end, with a default."""

    broker: BrokerId
    time_us: int
    """When it became that."""


_HOME: Final = msgspec.msgpack.Decoder(HomeRecord)
_LEDGER: Final = msgspec.msgpack.Decoder(ProducerRecord)


class Homes:
    """The homes of producers, as one broker uses them.

    Args:
        directory: of the broker.
        ledger: of the broker.
        clock_us: microseconds since the epoch.
    """

    def __init__(self, directory: Directory, ledger: Ledger, clock_us: Callable[[], int]) -> None:
        self._directory = directory
        self._clock_us = clock_us
        self._inheritance = Inheritance(directory, ledger, clock_us)
        self._mine: set[str] = set()
        self._claiming = trio.Lock()
        """Tasks of one producer that begin at once would take its home from each other, again and again."""

    @property
    def _are_shared(self) -> bool:
        membership = self._directory.membership
        return not membership.is_alone and membership.may_share_stages()

    def is_here(self, producer: str) -> bool:
        """Whether this broker is known to be the home of a producer."""
        return producer in self._mine

    async def require(self, producer: str, elsewhere: NotOwnerError | None = None) -> None:
        """Make sure that this broker is the home of a producer.

        Args:
            producer: its name.
            elsewhere: raised if the producer has no home yet: the broker that it names is to become it.

        Raises:
            NotOwnerError: another broker is its home.
            OwnerAwayError: its home is away.
            DataLossError: its home is gone, and how much of its last batch is in its topics is unknown.
            LimitExceededError: this broker knows too many producers to take over one that has committed.
            UnavailableError: the metadata do not answer.
        """
        if producer in self._mine:
            return
        if not self._are_shared:
            if elsewhere is not None:
                raise elsewhere
            return
        async with self._claiming:
            if producer not in self._mine:
                await self._claim(producer, elsewhere)

    async def _claim(self, producer: str, elsewhere: NotOwnerError | None) -> None:
        store, me = self._directory.catalogue.store, self._directory.membership.me
        key = _PREFIX + quote(producer, safe="")
        for _ in range(_MOST_ATTEMPTS):
            item = await store.get(key)
            claimed = decode_record(item, _HOME.decode).broker if item is not None else None
            if claimed is not None and claimed != me and not self._is_gone(claimed):
                raise self._away(producer, claimed)
            chosen = await self._former(producer) if item is None else me
            if chosen is None and elsewhere is not None:
                raise elsewhere
            chosen = chosen or me
            revision = item.mod_revision if item is not None else 0
            try:
                # Also if it says so already: its removal may be under way, and fails then.
                await store.put(key, _encode(HomeRecord(chosen, self._clock_us())), expected_revision=revision)
                if chosen != me:
                    raise self._away(producer, chosen)
                await self._inheritance.take_over(producer)
            except MetadataConflictError:
                continue
            self._mine.add(producer)
            return
        raise UnavailableError(f"the home of producer {producer!r} changes at the moment; try again")

    async def find(self, producer: str) -> None:
        """As :meth:`require`, but leave a producer alone that has no home, and had none.

        Raises:
            DanubeError: as :meth:`require`.
        """
        if producer in self._mine or not self._are_shared:
            return
        if await self._home(producer) is not None or await self._inheritance.has(producer):
            await self.require(producer)

    async def last_batch_of_gone(self, producer: str) -> int | None:
        """Return the last batch that a broker which is gone has decided; None: the ledger of a living one counts.

        Raises:
            DataLossError: how much of it is in its topics is unknown.
            DanubeError: the metadata do not answer.
        """
        if producer in self._mine or not self._are_shared or not self._inheritance.exists:
            return None
        home = await self._home(producer)
        if home is not None and home != self._directory.membership.me and not self._is_gone(home):
            return None
        async with self._claiming:  # what is being taken over is either still there, or in the ledger of this broker
            return await self._inheritance.last_batch(producer)

    async def _home(self, producer: str) -> BrokerId | None:
        item = await self._directory.catalogue.store.get(_PREFIX + quote(producer, safe=""))
        return decode_record(item, _HOME.decode).broker if item is not None else None

    def _is_gone(self, broker: BrokerId) -> bool:
        record = self._directory.membership.brokers.values.get(broker_name(broker))
        return record is not None and record.state is BrokerState.GONE  # one that is not known yet has just joined

    def _away(self, producer: str, home: BrokerId) -> NotOwnerError | OwnerAwayError:
        name = broker_name(home)
        session = self._directory.membership.sessions.values.get(name)
        if session is None:
            return OwnerAwayError(
                f"producer {producer!r} waits for broker {name}, which holds its stages and decides about them, and is"
                " away"
            )
        return NotOwnerError(
            f"broker {name} at {session.address} holds the stages of producer {producer!r}",
            {"address": session.address},
        )

    async def _former(self, producer: str) -> BrokerId | None:
        """Return the broker with the latest commit of a producer, from before it had a home; None: there is none."""
        latest: tuple[int, BrokerId] | None = None
        membership = self._directory.membership
        for name in membership.brokers.values:
            broker = BrokerId(int(name[1:]))
            item = await self._directory.catalogue.store.get(f"/stages/{name}/{quote(producer, safe='')}")
            if item is not None and not self._is_gone(broker):
                found = decode_record(item, _LEDGER.decode).last_batch, broker
                latest = found if latest is None else max(latest, found)
        return latest[1] if latest is not None else None

    async def release(self, is_used: Callable[[str], bool], before_us: int) -> None:
        """Give up producers that are not used any more, and what brokers have left that are gone.

        Args:
            is_used: whether this broker has stages or commits of a producer.
            before_us: those that were claimed later are kept.

        Raises:
            DanubeError: the metadata do not answer.
        """
        if not self._are_shared:
            return
        store, me = self._directory.catalogue.store, self._directory.membership.me
        items, _ = await store.list(_PREFIX)
        for item in items:
            record, producer = decode_record(item, _HOME.decode), unquote(item.key.removeprefix(_PREFIX))
            if record.broker == me:
                if record.time_us >= before_us or is_used(producer):
                    continue
                self._mine.discard(producer)  # a stage that arrives now claims it again
            elif not self._is_gone(record.broker):
                continue
            try:
                await store.transact([Condition(item.key, item.mod_revision)], [Delete(item.key)])
            except MetadataConflictError:
                continue
        await self._inheritance.expire()

    async def held(self) -> Collection[ProducerId]:
        """Return the producers of commits that other brokers have decided, and not completed.

        Raises:
            DanubeError: the metadata do not answer.
        """
        membership = self._directory.membership
        found: set[ProducerId] = set()
        for name in [] if membership.is_alone else list(membership.brokers.values):
            if name == membership.broker:
                continue
            items, _ = await self._directory.catalogue.store.list(f"/stages/{name}/")
            for item in items:
                found.update(share.producer_id for share in decode_record(item, _LEDGER.decode).shares)
        return found
