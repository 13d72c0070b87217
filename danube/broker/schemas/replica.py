"""The records of the schema registry, as the metadata have them: listed, then followed by a watch.

Each change of the registry rewrites the key :data:`CHANGES` in the same transaction. So reading that key tells whether
the replica has every change that was answered before: it has if it has seen the revision at which the key was written.

A broker without schemas does not import the registry: the book is made with the first record, or the first question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote

import trio

from danube.broker.runtime.subjects import Subjects
from danube.metadata import MetadataStore, RowChange, Table
from danube.model.errors import DanubeError, NotFoundError, SchemaNotFoundError, UnavailableError
from danube.model.limits import Limits
from danube.model.log_events import log_event

if TYPE_CHECKING:
    from danube.schema.book import Book
    from danube.schema.objects import SchemaObject

__all__ = ["CHANGES", "PREFIX", "REACH_S", "Replica"]

_log = logging.getLogger("danube.broker")

PREFIX: Final = "/schemas"
"""Of the keys; the same as :data:`danube.schema.records.PREFIX`, which is not imported for it."""
CHANGES: Final = "/schemas/changes"
"""Key that each change of the registry rewrites."""
REACH_S: Final = 5.0
"""How long a change that is known to exist may take to arrive by the watch, in seconds."""
NEGATIVE_S: Final = 1.0
"""How long an object that the metadata do not have is taken for missing without another question, in seconds."""
_DEFAULT_LIMITS: Final = Limits()
_SUBJECTS: Final = "subjects/"
"""Beginning of the names of the records of subjects, below :data:`PREFIX`."""
_NEGATIVES: Final = 1_000
"""Most answers of that kind that are kept."""

T = TypeVar("T")


class _Value:
    """The value of a key, until the book has taken it over: what the table keeps is empty."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def take(self) -> bytes:
        content, self.content = self.content, b""
        return content


class Replica:
    """The registry of one broker, up to date as far as the metadata are reachable.

    Args:
        store: the metadata.
        subjects: those that topics have, whose schemas are kept current.
        limits: of the broker.
    """

    def __init__(
        self, store: MetadataStore, subjects: Subjects | None = None, limits: Limits = _DEFAULT_LIMITS
    ) -> None:
        self._store = store
        self._limits = limits
        self._subjects = subjects if subjects is not None else Subjects()
        self._subjects.read, self._subjects.learn = self._numbers_of, self._learn
        self._subjects.used = self._used
        self._table: Table[_Value] = Table(
            store, PREFIX + "/", _Value, encode=lambda value: value.content, decode=_Value, watched=True,
            on_change=self._apply,
        )  # fmt: skip
        self._book: Book | None = None
        self._missing: dict[str, float] = {}
        """When the metadata were asked for what they do not have, by the error."""

    @property
    def book(self) -> Book:
        """The registry as this broker knows it; always the same object, which changes."""
        if self._book is None:
            from danube.schema.book import Book  # most brokers have no schemas
            from danube.schema.limits import limits_of

            self._book = Book(limits_of(self._limits))
        return self._book

    @property
    def is_empty(self) -> bool:
        """Whether there was never a schema, so that :attr:`book` need not be made to know that it has none."""
        return self._book is None

    def owners(self, number: int) -> Sequence[str]:
        """Return the subjects that a number stands for; see :meth:`danube.schema.book.Book.owners`."""
        return () if self._book is None else self._book.owners(number)

    def _apply(self, change: RowChange[_Value]) -> None:
        key = f"{PREFIX}/{change.name}"
        if key == CHANGES:
            return
        value = None if change.after is None else change.after.take()
        try:
            self.book.apply(key, value, self._table.revision(change.name))
        except DanubeError as error:
            _log.error(
                "the record %s of the schema registry is unusable: %s",
                key,
                error,
                extra=log_event("schemas.record_unusable", record=key),
            )
            return
        if change.name.startswith(_SUBJECTS):
            self._subjects.changed(unquote(change.name.removeprefix(_SUBJECTS)))

    def _numbers_of(self, subject: str) -> frozenset[int]:
        return frozenset() if self._book is None else self._book.numbers_of(subject)

    def _used(self, namespace: str) -> int:
        return 0 if self._book is None else self._book.subjects_of(namespace)

    async def _learn(self, subject: str, number: int) -> None:
        def found(book: Book) -> None:
            if number not in book.numbers_of(subject):
                raise SchemaNotFoundError(f"subject {subject!r} has no schema with the number {number}")

        with suppress(SchemaNotFoundError):
            await self.find(found)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Task: follow the records until cancelled; started once they are loaded.

        Raises:
            DanubeError: the metadata failed for good, or have refused the first query.
        """
        await self._table.follow(task_status=task_status)

    async def reached(self, revision: int) -> None:
        """Wait until the replica includes a change of the registry that was made at a revision.

        Raises:
            UnavailableError: it does not arrive within :data:`REACH_S`.
        """
        with trio.move_on_after(REACH_S) as patience:
            await self._table.reached(revision)
        if patience.cancelled_caught:
            raise UnavailableError(
                f"the metadata report no changes of the schema registry: one is missing after {REACH_S:g} s; try again"
            )

    async def current(self) -> Book:
        """Return the registry with every change that was answered before this call, at any broker.

        Raises:
            DanubeError: the metadata do not answer.
        """
        known = await self._store.get(CHANGES)
        if known is not None:
            await self.reached(known.mod_revision)
        return self.book

    async def schema_objects(self, numbers: Collection[int]) -> Mapping[int, SchemaObject]:
        """Return the objects of schemas for a bucket, with all that they refer to; unknown numbers are left out.

        Raises:
            DanubeError: some are missing here, and the metadata do not answer.
        """
        from danube.schema.objects import objects_of  # most brokers have no schemas

        found = objects_of(self.book, numbers)
        if any(number not in found for number in numbers):
            found = objects_of(await self.current(), numbers)
        return found

    async def find(self, query: Callable[[Book], T]) -> T:
        """Answer a query; if what it asks for is missing, ask the metadata first whether the replica is current.

        That something is missing is remembered for :data:`NEGATIVE_S`: repeated questions cost one call a second.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            DanubeError: it is missing here, and the metadata do not answer; or the query raised it.
        """
        try:
            return query(self.book)
        except NotFoundError as error:
            missing, now = str(error), trio.current_time()
            asked = self._missing.get(missing)
            if asked is not None and now - asked < NEGATIVE_S:
                raise
        book = await self.current()
        try:
            return query(book)
        except NotFoundError as error:
            if len(self._missing) >= _NEGATIVES:
                self._missing.clear()
            self._missing[str(error)] = now
            raise
