"""Decides which entries a subscription's cursor writes to the journal, and when a flush is answered. Pure.

At most one cursor entry of a subscription is in flight; acknowledgements that arrive meanwhile are collected into the
next one, so batches grow with the load. Entries of one subscription are applied in the order in which they were
submitted; after an entry that was lost none may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from danube.broker.delivery.connected_consumer import AckWaiter
from danube.dispatch import Cursor, encode_entry
from danube.log.format import Entry, EntryType
from danube.model import Durability, RangeSet, api
from danube.model.errors import DanubeError
from danube.model.ids import TopicId

__all__ = ["CursorEntries", "EntryTarget"]


class EntryTarget(Protocol):
    """The part of a topic that its cursors use."""

    @property
    def lossy(self) -> bool:
        """Whether it has no log."""
        ...

    @property
    def topic_id(self) -> TopicId:
        """Its id."""
        ...

    @property
    def durability(self) -> Durability:
        """Its durability, which its cursors share."""
        ...

    def submit(self, entry: Entry, /) -> None:
        """Write an entry to the journal, which calls its owner when it has settled."""
        ...


class CursorEntries:
    """The entries of the cursor of one subscription; topics of durability ``none`` do not store theirs."""

    def __init__(self, topic: EntryTarget, subscription_id: int, cursor: Cursor) -> None:
        self._topic = topic
        self._subscription_id = subscription_id
        self._cursor = cursor
        self._kept = not topic.lossy
        self._unsaved = RangeSet()
        """Acknowledged offsets that wait for the next entry."""
        self._saving = False
        self._entries = self._settled = 0
        """The numbers of submitted and of durable entries."""
        self._quieting = 0
        """Number of callers that wait until no entry is in flight (see :meth:`hold_back`)."""
        self._flushes: list[tuple[AckWaiter, int]] = []
        self._flushing: list[tuple[AckWaiter, int]] = []
        self._moved: Callable[[], None] | None = None
        """Called when the entry in flight is durable, if it states that the cursor was moved."""
        self._lost: DanubeError | None = None
        """Set when a cursor change did not reach the journal, which has failed or ended: later ones will not either."""

    def add(self, ranges: Sequence[int]) -> None:
        """Record that flat ranges were acknowledged."""
        if not self._kept:
            return
        for index in range(0, len(ranges), 2):
            self._unsaved.add(ranges[index], ranges[index + 1])
        if self._lost is None:
            self._go_on()

    def add_for(self, waiter: AckWaiter, ranges: Sequence[int]) -> None:
        """Record that flat ranges were acknowledged, and reply as :meth:`flush` does when they are durable."""
        if not ranges:
            self.flush(waiter, 0)
        elif self._kept and not self._saving and not self._quieting and self._lost is None:
            self._flushes.append((waiter, 0))  # before the entry is submitted, so as not to wait for the next
            self.add(ranges)
        else:
            self.add(ranges)
            self.flush(waiter, 0)

    def flush(self, consumer: AckWaiter, token: int) -> None:
        """Reply with AcksFlushed once all acknowledgements are durable; end the consumer if they never will be."""
        if self._lost is not None:
            consumer.end(self._lost)
            return
        if not self._saving and not self._unsaved:
            consumer.send(api.AcksFlushed(token))
            return
        self._flushes.append((consumer, token))
        self._go_on()

    def forget(self, consumer: AckWaiter) -> None:
        """Remove a consumer that has left: it waits for nothing any more."""
        self._flushes = [item for item in self._flushes if item[0] is not consumer]
        self._flushing = [item for item in self._flushing if item[0] is not consumer]

    def snapshot(self) -> bytes:
        """Return the state of the cursor for a checkpoint."""
        return encode_entry(self._cursor.snapshot(self._subscription_id))

    def reset(self, done: Callable[[], None]) -> None:
        """Record that the cursor was moved, and call ``done`` when that is durable.

        Call it when no entry is in flight, without a checkpoint in between.
        """
        self._unsaved.clear()
        if self._kept:
            self._moved = done
            self._submit(encode_entry(self._cursor.reset(self._subscription_id)))
        else:
            done()

    def hold_back(self) -> None:
        """Submit no further entry, except for :meth:`reset`, until :meth:`release` is called as often."""
        self._quieting += 1

    def release(self, *, go_on: bool) -> None:
        """End a :meth:`hold_back`; with ``go_on``, submit what was collected meanwhile unless others hold it back."""
        self._quieting -= 1
        if go_on:
            self._go_on()

    def give_up(self, error: DanubeError) -> None:
        """Write nothing more, and end those who wait: the topic has moved to another broker, without these changes."""
        self._not_saved(error)

    @property
    def in_flight(self) -> bool:
        """Whether an entry is in flight."""
        return self._saving

    @property
    def submitted(self) -> int:
        """The number of entries that were submitted."""
        return self._entries

    def has_saved(self, number: int) -> bool:
        """Whether that many entries are durable, or will never be."""
        return self._settled >= number or self._lost is not None

    def check(self) -> None:
        """Raise if an entry was lost."""
        if self._lost is not None:
            raise type(self._lost)(self._lost.message)

    def _go_on(self) -> None:
        """Submit the collected changes, unless an entry is in flight: then they are submitted after it."""
        if (self._unsaved or self._flushes) and not self._saving and not self._quieting:
            self._save()

    def _save(self) -> None:
        ranges = self._unsaved.to_flat()
        self._unsaved.clear()
        self._submit(encode_entry(self._cursor.delta(self._subscription_id, ranges)))

    def _submit(self, payload: bytes) -> None:
        assert not self._saving
        assert not self._flushing
        self._saving = True
        self._entries += 1
        self._flushing, self._flushes = self._flushes, []
        topic = self._topic
        try:
            topic.submit(Entry(EntryType.CURSOR, topic.topic_id, topic.durability, (payload,), self))
        except DanubeError as error:
            self._not_saved(error)

    def _not_saved(self, error: DanubeError) -> None:
        """Fail the waiting consumers: an entry was lost, and none after it will be durable."""
        self._saving = False
        self._lost = error
        waiting = self._flushing + self._flushes
        self._flushing, self._flushes = [], []
        for consumer, _ in waiting:
            consumer.end(error)

    # --- The journal's owner of an entry ---

    def stalled(self, _entry: Entry, _error: DanubeError) -> None:
        """A cursor entry waits for its storage: flushes wait as well, and delivery continues."""

    def settled(self, _entry: Entry, error: DanubeError | None) -> None:
        """A cursor entry is durable, or the journal has failed or is closing, which ends the broker."""
        if error is not None:
            self._not_saved(error)
            return
        self._saving = False
        self._settled += 1
        moved, self._moved = self._moved, None
        flushed, self._flushing = self._flushing, []  # before the call: it may submit the next entry
        if moved is not None:
            moved()  # first, so that a consumer learns of it before it takes void acknowledgements for durable ones
        for consumer, token in flushed:
            consumer.send(api.AcksFlushed(token))
        self._go_on()
