"""Composes messages that are sent one at a time into batches: one composite batch for all that arrive in one commit.

A unary call carries one message, and a batch for each would cost the journal, every consumer and the history more than
the message itself. So a topic collects such messages and appends them together::

    calls of one turn     x x x | x x x x x x x x x | x x
                                |                   |
    batch 1 appended at the end of the turn         |
               batch 2 appended when batch 1 is durable: nothing could have been committed earlier

There is no timer: a message that finds no batch in flight is appended at the end of the turn of the loop in which it
arrived, and under load the batches grow with the duration of a commit. A full batch is appended at once.

:mod:`danube.broker.intake.packing` decides which messages share a batch. They have no sequence that the broker could
check: retries are not deduplicated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from danube.broker.intake.packing import NO_SCHEMA, PackedBatch, Packing, Told
from danube.log import StoredBatch
from danube.model.batch import CompositeRecord, SchemaRef
from danube.model.errors import BrokerDrainingError, DanubeError

if TYPE_CHECKING:
    from danube.broker.intake.intake import Intake
    from danube.broker.runtime.runtime import Runtime

__all__ = ["Composed", "Composer", "Composing"]


class Composer:
    """Collects the messages of one topic; created by :meth:`Composing.of`."""

    __slots__ = (
        "_composing",
        "_intake",
        "_packing",
        "_scheduled",
        "_submitting",
        "_waiting",
        "in_flight",
    )

    def __init__(self, composing: Composing, intake: Intake) -> None:
        self._composing = composing
        self._intake = intake
        self._packing = Packing(composing.limits)
        self._scheduled = False
        self._submitting = False
        self._waiting = False
        self.in_flight = 0

    @property
    def is_empty(self) -> bool:
        """Whether no message waits to be appended."""
        return not self._packing.is_open and not self._packing.closed

    def add(
        self, record: CompositeRecord, publish_time_us: int, size: int, told: Told, schema: SchemaRef = NO_SCHEMA
    ) -> None:
        """Accept a message.

        Args:
            record: without its ``publish_delta_us``, which is filled in.
            publish_time_us: when it was sent, by its producer's clock.
            size: bytes of its payload, key, attributes and producer's name; within the topic's limits.
            told: called when it has settled, perhaps before this returns.
            schema: a change of schema starts another batch.
        """
        packing = self._packing
        packing.add(record, publish_time_us, size, told, schema)
        if not self._scheduled and not self._waiting and (not self.in_flight or packing.closed):
            self._scheduled = True
            self._composing.schedule(self)

    def submit(self) -> None:
        """Append the batches that may go now; a task appends those that wait for the publish rate or the journal."""
        self._scheduled = False
        if self._submitting or self._waiting:
            return
        self._submitting = True  # a topic that stores nothing settles its batches while they are being submitted
        try:
            while (batch := self._first()) is not None:
                try:
                    if self._asks(batch) or not self._intake.try_admit(len(batch.part)):
                        self._waiting = True
                        self._composing.start_waiting(self)
                        return
                except DanubeError as error:
                    self._refuse(self._packing.closed.popleft(), error)
                else:
                    self._append()
        finally:
            self._submitting = False

    async def wait(self) -> None:
        """Append batches as the publish rate and the journal permit."""
        while (batch := self._first()) is not None:
            try:
                await self._intake.examine(batch.part, batch.header)
                await self._intake.admit(len(batch.part))
            except DanubeError as error:
                self._refuse(self._packing.closed.popleft(), error)
            else:
                self._append()
        self._waiting = False

    def _asks(self, batch: PackedBatch) -> bool:
        """Whether a batch is to be examined before it is appended."""
        rule = self._intake.schema_rule
        return rule is not None and rule.waits_for(batch.part)

    def refuse(self, error: DanubeError) -> None:
        """Refuse the waiting batches; :meth:`wait` was cancelled."""
        packing = self._packing
        if packing.is_open:
            packing.close()
        while packing.closed:
            self._refuse(packing.closed.popleft(), error)
        self._waiting = False

    def _refuse(self, batch: PackedBatch, error: DanubeError) -> None:
        self._intake.note_refused(error, batch.header.record_count)
        batch.tell(error)

    def _first(self) -> PackedBatch | None:
        """Return the next batch that may be appended, without removing it."""
        packing = self._packing
        if not packing.closed and packing.is_open and not self.in_flight:
            packing.close()
        return packing.closed[0] if packing.closed else None

    def _append(self) -> None:
        batch = self._packing.closed.popleft()
        try:
            self._intake.compose(self, batch, batch.part, batch.header)
        except DanubeError as error:
            self._refuse(batch, error)

    def settled(self, batch: PackedBatch, _stored: StoredBatch, error: DanubeError | None, /) -> None:
        """Intake: a batch has reached its durability, or will not, or is delayed."""
        batch.tell(error)
        if not self.is_empty:
            self.submit()


class Composed(Protocol):
    """A topic that accepts messages one at a time."""

    intake: Intake
    composer: Composer | None
    """Created with the first of these messages."""


class Composing:
    """The composers of a broker, and their tasks.

    Args:
        runtime: runs the tasks that wait for batches which cannot be appended at once.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.limits = runtime.limits
        self._wanted: list[Composer] = []
        self._wake = trio.Event()
        self._draining = False
        self._scopes: dict[trio.CancelScope, None] = {}
        """Cancel scopes of the waiting tasks."""

    def of(self, topic: Composed) -> Composer:
        """Return the composer of a topic."""
        composer = topic.composer
        if composer is None:
            composer = topic.composer = Composer(self, topic.intake)
        return composer

    def schedule(self, composer: Composer) -> None:
        """Call a composer at the end of this turn of the loop."""
        self._wanted.append(composer)
        self._wake.set()

    def start_waiting(self, composer: Composer) -> None:
        """Start a task in which a composer waits."""
        self._runtime.start(self._wait, composer)

    async def _wait(self, composer: Composer) -> None:
        if not self._draining:
            with trio.CancelScope() as scope:
                self._scopes[scope] = None
                await composer.wait()
            del self._scopes[scope]
            if not scope.cancelled_caught:
                return
        composer.refuse(
            BrokerDrainingError("the broker is shutting down, and the message was not stored; send it again")
        )

    def drain(self) -> None:
        """From now on, refuse messages that would have to wait for the publish rate or for the journal."""
        self._draining = True
        for scope in self._scopes:
            scope.cancel()

    async def run(self) -> None:
        """Call the scheduled composers, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            wanted, self._wanted = self._wanted, []
            for composer in wanted:
                composer.submit()
