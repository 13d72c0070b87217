"""The schema registry as faces use it. Interfaces only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from danube.schema.book import Book, Change, Entry, Proposal, Registered
    from danube.schema.examine import Examination, Finding
    from danube.schema.modes import Level, Policy

__all__ = ["ServedRegistry"]

_T = TypeVar("_T")


class ServedRegistry(Protocol):
    """The schema registry of the cluster."""

    @property
    def book(self) -> Book:
        """The registry as this broker knows it, without a question to the metadata."""
        ...

    async def current(self) -> Book:
        """Return the registry with every change that was answered before this call, at any broker.

        Raises:
            DanubeError: the metadata do not answer.
        """
        ...

    async def fresh(self) -> Book:
        """Return :meth:`current`; while the metadata do not answer, the registry as this broker knows it.

        For lists, and what may be incomplete.
        """
        ...

    async def read(self, query: Callable[[Book], _T]) -> _T:
        """Answer a query from :meth:`fresh`.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            UnavailableError: it is missing here, and the metadata do not answer.
            DanubeError: the query raised it.
        """
        ...

    async def find(self, query: Callable[[Book], _T]) -> _T:
        """Answer a query from the replica; if that raises NotFoundError, again from a current one.

        Raises:
            NotFoundError: raised by the query: the registry does not have it.
            DanubeError: it is missing here, and the metadata do not answer; or the query raised it.
        """
        ...

    async def examine(self, examination: Examination) -> Finding:
        """Parse a schema, and compare it with others, outside this process.

        Raises:
            InvalidSchemaError, SchemaTooLargeError: a schema is invalid, or exceeds a limit.
        """
        ...

    async def check(self, proposal: Proposal, version: int | None = ..., level: Level | None = ...) -> Finding:
        """Return how a schema compares with the versions of its subject that its level names, or with one version.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            InvalidSchemaError, SchemaTooLargeError: a schema is invalid, or exceeds a limit.
        """
        ...

    async def lookup(self, proposal: Proposal, *, deleted: bool = ...) -> Entry | None:
        """Return the version of the proposal's subject that has the same content; None: no version has it.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            UnavailableError: none is known here, and the metadata do not answer.
            InvalidSchemaError, SchemaTooLargeError: the schema is invalid, or exceeds a limit.
        """
        ...

    async def register(
        self,
        proposal: Proposal,
        *,
        by: str = ...,
        born: Policy = ...,
        description: str = ...,
        tags: tuple[str, ...] = ...,
        number: int | None = ...,
        version: int | None = ...,
    ) -> Registered:
        """Register a schema; return its number and version, which may have been there before.

        Args:
            proposal: the schema, and its subject, which need not exist.
            by: who registers it; :func:`caller_name` tells.
            born: the policy of a subject that is created by this.
            description, tags: for people.
            number, version: given ones, in mode IMPORT.

        Raises:
            IncompatibleSchemaError: it is not compatible with the versions of the subject.
            DanubeError: as :meth:`danube.schema.book.Book.register`.
        """
        ...

    async def change(self, prepare: Callable[[Book], Change]) -> Change:
        """Make a change, which is prepared again if another one came first; return it.

        Raises:
            UnavailableError: the metadata do not answer: it may have been made; or others always came first.
            DanubeError: raised by ``prepare``; nothing was changed.
        """
        ...

    async def change_with(self, prepare: Callable[[Book], tuple[_T, Change]]) -> tuple[_T, Change]:
        """Make a change, as :meth:`change`; return what was prepared with it, and the change."""
        ...
