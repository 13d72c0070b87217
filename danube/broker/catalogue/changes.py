"""Makes the changes of one broker's records in the metadata: one transaction at a time, settled if it is in doubt.

All changes of one broker pass through one writer, so that a check and the change that follows it are atomic for other
tasks. Each change is conditional on the revisions of all rows that it depends on. If another broker was faster, the
rows are read again, and the change is checked and tried once more. What does not exist according to a table is read
again, too, before a change is refused because of that.

A change that fails has no effect, unless the store was unavailable for so long that its outcome is unknown: then it may
turn out later that it was applied, and it takes effect. (A *revocable* one is undone.) A caller may be cancelled at any
time: nothing is shielded, so a broker that ends does not wait for its metadata. The outcome of a change that was
cancelled is unknown, too. It is settled by the next change, after :data:`SETTLE_S` by :meth:`Changes.settle`, or by the
next start of the broker, which fences the change before it reads the tables.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

import trio

from danube.cluster.membership import Membership
from danube.metadata import Change, Table, TableWriter
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    FailedPreconditionError,
    MetadataConflictError,
    NotFoundError,
    OwnerFencedError,
    UnavailableError,
)
from danube.model.log_events import log_event

__all__ = ["MAY_BE_STALE", "SETTLE_S", "Changes", "Row", "Step", "noted"]

_log = logging.getLogger("danube.broker")

T = TypeVar("T")

_ATTEMPTS: Final = 8
"""How often a change is tried while other brokers change the same rows."""
SETTLE_S: Final = 1.0
"""Pause in seconds before a change in doubt is settled, if no other change does that."""
MAY_BE_STALE: Final = (AlreadyExistsError, NotFoundError, FailedPreconditionError)
"""Refusals of a change that may be due to a table that is behind the store."""


class Row(NamedTuple):
    """A row of a table."""

    table: Table[Any]
    name: str


class Step(NamedTuple):
    """A change of one row, or only a condition on it."""

    table: Table[Any]
    name: str
    change: Change


class Changes:
    """The changes of one broker; see the module.

    Args:
        writer: of this broker's guard.
        membership: this broker in the cluster.
    """

    def __init__(self, writer: TableWriter, membership: Membership) -> None:
        self._writer = writer
        self._membership = membership
        self.revision = 0
        """The highest of the changes that were certainly applied."""
        self._undo: Callable[[], list[Change]] = _nothing
        """Makes the changes that undo a change in doubt, should it have been applied; see :meth:`apply`."""
        self._doubt = trio.Event()

    @property
    def in_doubt(self) -> bool:
        """Whether it is unknown whether the last change was applied."""
        return self._writer.in_doubt

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Wait for other changes, and determine the outcome of one that is in doubt.

        Raises:
            OwnerFencedError: another process with the identity of this broker has taken over.
            DanubeError: a change is in doubt, and the store cannot answer.
        """
        async with self._writer.changing():
            undo = self._undo()
            if undo:
                await self._writer.apply(*undo)
            self._undo = _nothing
            yield

    async def change(
        self,
        make: Callable[[], Sequence[Step]],
        *rows: Row,
        revocable: bool = False,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Make a change.

        Args:
            make: checks whether the change is possible, according to the tables, and returns its steps. It is called
                again after the rows were read again.
            rows: that the checks depend on.
            revocable: whether the change is undone if it is applied although this has raised an error.
            prepare: called before each call of ``make``; reads what the tables do not tell.

        Raises:
            UnavailableError: other brokers changed the same rows, again and again; or as :meth:`apply`.
            DanubeError: from ``make``; nothing was changed.
        """
        async with self.changing():
            fresh = self._membership.is_alone
            for _ in range(_ATTEMPTS):
                try:
                    if prepare is not None:
                        await prepare()
                    steps = make()
                    if steps:
                        await self.apply(*steps, revocable=revocable)
                    return
                except MetadataConflictError as error:
                    _log.debug("a change of the metadata is tried again: %s", error)
                except MAY_BE_STALE:
                    if fresh:
                        raise
                fresh = True
                for row in rows:
                    await row.table.refresh(row.name)
                await self._membership.sessions.load()
            raise UnavailableError("other brokers change the same records all the time; try again")

    async def put(self, table: Table[T], name: str, record: T) -> None:
        """Create or replace a record that only this broker changes."""
        await self.change(lambda: [Step(table, name, table.put(name, record))], Row(table, name))

    async def delete(self, table: Table[Any], name: str) -> None:
        """Delete a record; no-op if it does not exist."""
        await self.change(lambda: [Step(table, name, table.delete(name))], Row(table, name))

    async def apply(self, *steps: Step, revocable: bool = False, then: Callable[[int], None] | None = None) -> None:
        """Make some changes, all or none, inside :meth:`changing`.

        Args:
            steps: the changes.
            then: called with the revision as soon as it is certain that they were applied, also if that turns out
                later; must not raise.
            revocable: see :meth:`change`. Rows that have been changed again since remain.

        Raises:
            MetadataConflictError: a row has another revision; nothing was changed.
            DanubeError: nothing was changed, or the outcome is unknown. If this is cancelled it is unknown, too.
        """
        before = [step.table.values.get(step.name) for step in steps]
        applied: list[int] = []

        def undo() -> list[Change]:
            return [
                step.table.put(step.name, value) if value is not None else step.table.delete(step.name)
                for step, value in zip(steps, before, strict=True)
                if applied and step.change.operations and step.table.revision(step.name) == applied[0]
            ]

        def note(revision: int) -> None:
            applied.append(revision)
            self.revision = max(self.revision, revision)

        try:
            own = Change((), (), then or noted)
            await self._writer.apply(Change((), (), note), *(step.change for step in steps), own)
        finally:
            if self._writer.in_doubt:
                self._undo = undo if revocable else _nothing
                self._doubt.set()

    async def settle(self) -> None:
        """Task: settle changes that are in doubt, until cancelled.

        Raises:
            OwnerFencedError: another process with the identity of this broker has taken over.
        """
        failing = False
        while True:
            await self._doubt.wait()
            await trio.sleep(SETTLE_S)
            try:
                async with self.changing():
                    self._doubt = trio.Event()
                failing = False
            except OwnerFencedError:
                raise
            except DanubeError as error:
                if not failing:
                    _log.warning(
                        "a change of the metadata is in doubt until the store answers again: %s",
                        error,
                        extra=log_event("metadata.change_in_doubt"),
                    )
                failing = True


def noted(revision: int) -> None:
    """Callback of a change that is only a condition: it held at this revision."""


def _nothing() -> list[Change]:
    """Nothing is to be undone."""
    return []
