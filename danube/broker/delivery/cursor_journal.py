"""A cursor's way to the journal.

Cursor changes are written like messages are: at most one entry of a subscription is on its way to the journal, and what
is acknowledged meanwhile becomes the next one. Load makes the batches. Entries of one subscription are applied in the
order in which they were submitted; after one that did not arrive none may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from danube.broker.delivery.receiver import AckWaiter
from danube.broker.delivery.source import Source
from danube.dispatch import Cursor, encode_entry
from danube.log import Entry, EntryType
from danube.model import RangeSet, api
from danube.model.errors import DanubeError

__all__ = ["CursorJournal"]


class CursorJournal:
    """Keeps the cursor of one subscription in the journal; that of a topic of durability ``none`` is kept nowhere."""

    def __init__(self, topic: Source, subscription_id: int, cursor: Cursor) -> None:
        self._topic = topic
        self._subscription_id = subscription_id
        self._cursor = cursor
        self._kept = not topic.lossy
        self._unsaved = RangeSet()
        """Acknowledged, and waiting for the next entry."""
        self._saving = False
        self._entries = self._settled = 0
        """How many entries were submitted, and how many of them are durable."""
        self._quieting = 0
        """How many wait until no entry is on its way; no other one is sent meanwhile."""
        self._flushes: list[tuple[AckWaiter, int]] = []
        self._flushing: list[tuple[AckWaiter, int]] = []
        self._moved: Callable[[], None] | None = None
        """Called when the entry that is on its way is durable: it says that the cursor was moved."""
        self._lost: DanubeError | None = None
        """Set when a cursor change did not reach the journal, which is then at its end: none after it will."""

    def add(self, ranges: Sequence[int]) -> None:
        """Write down that flat ranges were acknowledged."""
        if not self._kept:
            return
        for index in range(0, len(ranges), 2):
            self._unsaved.add(ranges[index], ranges[index + 1])
        if self._lost is None:
            self._go_on()

    def add_for(self, waiter: AckWaiter, ranges: Sequence[int]) -> None:
        """Write down that flat ranges were acknowledged, and answer as :meth:`flush` does when they are durable."""
        if not ranges:
            self.flush(waiter, 0)
        elif self._kept and not self._saving and not self._quieting and self._lost is None:
            self._flushes.append((waiter, 0))  # before the entry goes, so that it need not wait for the next one
            self.add(ranges)
        else:
            self.add(ranges)
            self.flush(waiter, 0)

    def flush(self, consumer: AckWaiter, token: int) -> None:
        """Answer with AcksFlushed once all that was acknowledged is durable; end the consumer if it never will be."""
        if self._lost is not None:
            consumer.end(self._lost)
            return
        if not self._saving and not self._unsaved:
            consumer.send(api.AcksFlushed(token))
            return
        self._flushes.append((consumer, token))
        self._go_on()

    def forget(self, consumer: AckWaiter) -> None:
        """A consumer has gone: it waits for nothing any more."""
        self._flushes = [item for item in self._flushes if item[0] is not consumer]
        self._flushing = [item for item in self._flushing if item[0] is not consumer]

    def snapshot(self) -> bytes:
        """Return what a checkpoint stores of the cursor."""
        return encode_entry(self._cursor.snapshot(self._subscription_id))

    def reset(self, done: Callable[[], None]) -> None:
        """Write down that the cursor was moved, and call ``done`` when that is durable.

        Call it when :meth:`quiet` has returned, without a checkpoint.
        """
        self._unsaved.clear()
        if self._kept:
            self._moved = done
            self._submit(encode_entry(self._cursor.reset(self._subscription_id)))
        else:
            done()

    async def quiet(self) -> None:
        """Wait until no cursor entry is on its way; raise if the last one did not arrive.

        What is acknowledged meanwhile waits: somebody always acknowledges something while a commit is under way, and
        this would never end.
        """
        self._quieting += 1
        quiet = False
        try:
            while self._saving:
                await self._topic.next_commit()
            quiet = True
        finally:
            self._quieting -= 1
            if not quiet:
                self._go_on()
        self._check()

    async def saved(self) -> None:
        """Wait until every cursor entry is durable that is on its way now; raise if one did not arrive."""
        wanted = self._entries
        while self._settled < wanted and self._lost is None:
            await self._topic.next_commit()
        self._check()

    def _check(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(self._lost.message)

    def _go_on(self) -> None:
        """Write down what has gathered, unless something is on its way: then that goes next."""
        if (self._unsaved or self._flushes) and not self._saving and not self._quieting:
            self._save()

    def _save(self) -> None:
        ranges = self._unsaved.to_flat()
        self._unsaved.clear()
        self._submit(encode_entry(self._cursor.delta(self._subscription_id, ranges)))

    def _submit(self, payload: bytes) -> None:
        assert not self._saving
        self._saving = True
        self._entries += 1
        self._flushing, self._flushes = self._flushes, []
        topic = self._topic
        try:
            topic.submit(Entry(EntryType.CURSOR, topic.topic_id, topic.durability, (payload,), self))
        except DanubeError as error:
            self._not_saved(error)

    def _not_saved(self, error: DanubeError) -> None:
        """A cursor entry is not durable and none after it will be: who waits for that must not be told otherwise."""
        self._saving = False
        self._lost = error
        waiting = self._flushing + self._flushes
        self._flushing, self._flushes = [], []
        for consumer, _ in waiting:
            consumer.end(error)

    # --- The journal's owner of an entry ---

    def stalled(self, _entry: Entry, _error: DanubeError) -> None:
        """A cursor entry waits for its storage: whoever has asked for it waits, too, and delivery goes on."""

    def settled(self, _entry: Entry, error: DanubeError | None) -> None:
        """A cursor entry is durable, or the journal has failed or is closing, which ends the broker."""
        if error is not None:
            self._not_saved(error)
            return
        self._saving = False
        self._settled += 1
        moved, self._moved = self._moved, None
        if moved is not None:
            moved()  # first, so that a consumer hears of it before it takes void acknowledgements for durable ones
        flushed, self._flushing = self._flushing, []
        for consumer, token in flushed:
            consumer.send(api.AcksFlushed(token))
        self._go_on()
