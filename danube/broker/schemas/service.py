"""Changes of the schema registry: prepared on the book, and written in one conditional transaction each.

Schemas are parsed and compared outside the broker's process, see :mod:`danube.broker.schemas.checker`. Of two changes
of the same records one comes first; the other one is prepared again, on the book as it is then.

**Lost answers.** The metadata may apply a transaction whose answer is lost. A change is therefore prepared again on a
current book, which tells whether it was applied; if it arrives still later, the repeated transaction is refused,
because both have the same conditions, and the book tells it after that. What is deleted when its deletion is prepared
again was deleted as it should be, also if the record has been changed since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import trio

from danube.broker.runtime.named_locks import NamedLocks
from danube.broker.schemas.replica import CHANGES, Replica
from danube.metadata import Condition, Delete, MetadataStore, Put
from danube.model.errors import (
    DanubeError,
    LimitExceededError,
    MetadataConflictError,
    NotFoundError,
    SchemaVersionDeletedError,
    SubjectDeletedError,
    UnavailableError,
)
from danube.schema.book import Book, Change, Entry, Proposal, Registered
from danube.schema.examine import Examination, Finding
from danube.schema.modes import Level, Policy
from danube.schema.subjects import namespace_of

if TYPE_CHECKING:
    from danube.schema.records import NumberRecord

__all__ = ["TRIES", "Examine", "SchemaService"]

TRIES: Final = 10
"""Attempts of one change, while others come first, or the metadata do not answer."""
_PAUSE_S: Final = 0.05
"""Before the metadata are asked again after a failure; doubles with each."""
_LONGEST_PAUSE_S: Final = 1.0

Examine = Callable[[Examination], Awaitable[Finding]]
"""Parses and compares schemas; raises what :func:`danube.schema.examine.examine` does, and LimitExceededError."""

T = TypeVar("T")


class SchemaService:
    """The schema registry of one broker, for all protocols.

    Args:
        store: the metadata.
        replica: of the records, which is followed.
        clock_us: the wall clock.
        examine: parses and compares schemas.
        quota_of: returns how many subjects a namespace may have; None: any number.
    """

    def __init__(
        self,
        store: MetadataStore,
        replica: Replica,
        clock_us: Callable[[], int],
        examine: Examine,
        quota_of: Callable[[str], int | None] = lambda _namespace: None,
    ) -> None:
        self._store = store
        self._replica = replica
        self._clock_us = clock_us
        self._examine = examine
        self._quota_of = quota_of
        self._lock = trio.Lock()
        self._subjects = NamedLocks()

    # --- Reading

    @property
    def book(self) -> Book:
        """The registry as this broker knows it, without a question to the metadata."""
        return self._replica.book

    async def current(self) -> Book:
        """Return the registry with every change that was answered before this call, at any broker.

        Raises:
            DanubeError: the metadata do not answer.
        """
        return await self._replica.current()

    async def fresh(self) -> Book:
        """Return :meth:`current`; while the metadata do not answer, the registry as this broker knows it.

        For lists, and what may be incomplete. That something is missing does not follow from it: see :meth:`read`.
        """
        book, _ = await self._as_known()
        return book

    async def read(self, query: Callable[[Book], T]) -> T:
        """Answer a query from :meth:`fresh`.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            UnavailableError: it is missing here, and the metadata do not answer.
            DanubeError: the query raised it.
        """
        book, unanswered = await self._as_known()
        try:
            return query(book)
        except NotFoundError as error:
            if unanswered is None:
                raise
            raise _unknown(error.message, unanswered) from error

    async def _as_known(self) -> tuple[Book, DanubeError | None]:
        """Return the registry, and why it may not be current; None: it is."""
        try:
            return await self._replica.current(), None
        except DanubeError as error:
            if not error.retryable:
                raise
            return self._replica.book, error

    async def find(self, query: Callable[[Book], T]) -> T:
        """Answer a query from the replica; if that raises NotFoundError, again from a current one.

        For what never changes, such as a schema by its number.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            DanubeError: it is missing here, and the metadata do not answer; or the query raised it.
        """
        return await self._replica.find(query)

    async def schema(self, number: int) -> NumberRecord:
        """Return a schema by its number.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
        """
        return await self.find(lambda book: book.schema(number))

    # --- Examining

    async def examine(self, examination: Examination) -> Finding:
        """Parse a schema, and compare it with others, outside this process.

        Raises:
            InvalidSchemaError: the schema, or one of the others, is invalid.
            SchemaTooLargeError: a limit was hit; the message names it.
        """
        return await self._examine(examination)

    async def check(self, proposal: Proposal, version: int | None = None, level: Level | None = None) -> Finding:
        """Return how a schema compares with the versions of its subject that its level names, or with one version.

        Args:
            proposal: the schema, and its subject, which need not exist unless a version is given.
            version: from 1, or :data:`~danube.schema.book.LATEST`; None: as the level requires.
            level: instead of the subject's.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            InvalidSchemaError, SchemaTooLargeError: as :meth:`examine`.
        """

        def examination(book: Book) -> Examination:
            if version is None:
                return book.examination(proposal, level)
            return book.examination_with(proposal, version, level)

        return await self.examine(await self.read(examination))

    async def lookup(self, proposal: Proposal, *, deleted: bool = False) -> Entry | None:
        """Return the version of the proposal's subject that has the same content; None: no version has it.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            UnavailableError: none is known here, and the metadata do not answer.
            InvalidSchemaError, SchemaTooLargeError: as :meth:`examine`.
        """
        book, unanswered = await self._as_known()
        same = book.same_text(proposal, deleted=deleted)
        if same is not None:
            return same
        try:
            book.versions(proposal.subject, deleted=deleted)  # a subject that does not exist costs no examination
        except NotFoundError as error:
            if unanswered is None:
                raise
            raise _unknown(error.message, unanswered) from error
        finding = await self.examine(book.examination(proposal, Level.NONE))
        found = book.find(proposal, finding, deleted=deleted)
        if found is None and unanswered is not None:
            raise _unknown(f"subject {proposal.subject!r} has no version with this content", unanswered)
        return found

    # --- Changing

    async def register(
        self,
        proposal: Proposal,
        *,
        by: str = "",
        born: Policy = Policy.LENIENT,
        description: str = "",
        tags: tuple[str, ...] = (),
        number: int | None = None,
        version: int | None = None,
    ) -> Registered:
        """Register a schema; return its number and version, which may have been there before.

        Args:
            proposal: the schema, and its subject, which need not exist.
            by: who registers it.
            born, description, tags, number, version: as for :meth:`danube.schema.book.Book.register`.

        Raises:
            IncompatibleSchemaError: it is not compatible with the versions of the subject.
            UnavailableError: the metadata do not answer: it may have been registered; or others always came first.
            DanubeError: as :meth:`danube.schema.book.Book.register`.
        """
        now_ms = self._clock_us() // 1000
        doubtful: set[tuple[int, int]] = set()
        """Numbers and versions that transactions without an answer would have given it."""

        async def attempt(book: Book) -> Registered:
            same = book.same_text(proposal) if number is None and version is None else None
            if same is not None:
                return told(Registered(same.number, same.version.version, same.subject_number, False, Change()))
            finding = await self.examine(book.examination(proposal))
            async with self._lock:
                found = self.book.register(
                    proposal, finding, now_ms=now_ms, born=born, created_by=by, description=description, tags=tags,
                    number=number, version=version, most_subjects=self._quota_of(namespace_of(proposal.subject)),
                )  # fmt: skip
                if not found.is_new:
                    return told(found)
                try:
                    await self._write(found.change)
                except MetadataConflictError:
                    raise
                except DanubeError:
                    doubtful.add((found.number, found.version))
                    raise
                return found

        def told(found: Registered) -> Registered:
            is_own = (found.number, found.version) in doubtful
            return msgspec.structs.replace(found, is_new=True) if is_own else found

        async with self._subjects.hold(proposal.subject):
            return await self._repeated(attempt, f"the registration for subject {proposal.subject!r}")

    async def change(self, prepare: Callable[[Book], Change]) -> Change:
        """Make a change of the registry; return it.

        Args:
            prepare: returns the change, for the registry as it is; called again if another change came first.

        Raises:
            UnavailableError: the metadata do not answer: it may have been made; or others always came first.
            DanubeError: raised by ``prepare``; nothing was changed.
        """
        _, change = await self.change_with(lambda book: (None, prepare(book)))
        return change

    async def change_with(self, prepare: Callable[[Book], tuple[T, Change]]) -> tuple[T, Change]:
        """Make a change of the registry, as :meth:`change`; return what was prepared with it, and the change."""
        doubtful: list[tuple[T, Change]] = []
        """What was sent, and was refused or not answered; a store may refuse what it has applied before, unanswered."""

        unanswered: list[tuple[T, Change]] = []

        async def attempt(_book: Book) -> tuple[T, Change]:
            for made in doubtful:
                if await self._is_applied(made[1]):
                    return made
            async with self._lock:
                try:
                    prepared = prepare(self.book)
                except (SchemaVersionDeletedError, SubjectDeletedError):
                    if not unanswered:
                        raise
                    return unanswered[-1]
                if prepared[1].is_empty:
                    return prepared
                doubtful.append(prepared)
                try:
                    await self._write(prepared[1])
                except MetadataConflictError:
                    raise
                except DanubeError:
                    unanswered.append(prepared)
                    raise
                return prepared

        return await self._repeated(attempt, "the change of the schema registry")

    async def _repeated(self, attempt: Callable[[Book], Awaitable[T]], what: str) -> T:
        """Attempt a change on a current book until it is neither refused as outdated, nor without an answer."""
        pause_s = _PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                return await attempt(await self.current())
            except MetadataConflictError:
                continue
            except LimitExceededError:
                raise  # a registry that is full has no more room a second later
            except DanubeError as error:
                if not error.retryable or not left:
                    raise
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise UnavailableError(f"{what} was prepared {TRIES} times, and another one came first each time; try again")

    async def _write(self, change: Change) -> None:
        """Write a change, and wait until the replica has it.

        Raises:
            MetadataConflictError: the book was not current; nothing was changed.
            DanubeError: it may have been written.
        """
        operations: list[Put | Delete] = [Put(key, value) for key, value in change.puts]
        operations += [Delete(key) for key in change.deletes]
        operations.append(Put(CHANGES, b""))
        conditions = [Condition(key, revision) for key, revision in change.conditions]
        result = await self._store.transact(conditions, operations)
        await self._replica.reached(result.revision)

    async def _is_applied(self, change: Change) -> bool:
        """Whether the metadata have what a change writes."""
        if change.puts:
            key, value = change.puts[0]
            item = await self._store.get(key)
            return item is not None and item.value == value
        return await self._store.get(change.deletes[0]) is None


def _unknown(missing: str, unanswered: DanubeError) -> UnavailableError:
    return UnavailableError(
        f"this broker knows no more than that {missing}, and the metadata, which may have it, do not answer:"
        f" {unanswered.message}; try again"
    )
