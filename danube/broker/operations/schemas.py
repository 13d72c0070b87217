"""Operations on schemas and subjects, for the native protocol: requests to the schema registry, and its answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from danube.broker.security.caller import caller_name, may_describe, may_read_schema, require_schema
from danube.model import api
from danube.model import schema_api as native
from danube.model.errors import SchemaNotFoundError, SubjectNotFoundError
from danube.schema.book import Book, Change, Entry, Proposal
from danube.schema.modes import parse_level, parse_mode, parse_policy, parse_type
from danube.schema.records import NumberRecord, Reference, Settings

if TYPE_CHECKING:
    from danube.broker.operations.topics import TopicOperations
    from danube.broker.schemas.service import SchemaService

__all__ = ["SchemaOperations"]

_MOST_TOPICS = 100
"""Most topics that a subject is shown with."""
_TURN = 500
"""Subjects or topics that are looked at before other tasks run."""


class SchemaOperations:
    """Operations on schemas and subjects.

    Args:
        service: the registry.
        topics: operations on topics.
    """

    def __init__(self, service: SchemaService, topics: TopicOperations) -> None:
        self._service = service
        self._topics = topics

    # --- Reading

    async def get(self, request: native.GetSchema) -> native.SchemaInfo:
        """Return a schema by its number, with the subjects that the caller may see.

        Raises:
            SchemaNotFoundError: there is none, or none that the caller may see.
        """
        number = request.number
        record = await self._service.schema(number)
        book = self._service.book
        # The gate has judged by the registry as it was known; the schema may have been found after that.
        if not any(map(may_read_schema, book.owners(number))):
            raise SchemaNotFoundError(f"there is no schema with the number {number}")
        found = _schema(book, number, record)
        found.carriers = [each for each in book.carriers(number) if may_read_schema(each[0])]
        if request.topics:
            found.topics = await self._bound_topics(*filter(may_read_schema, book.writers(number)))
        return found

    async def get_version(self, request: native.GetSchemaVersion) -> native.SchemaInfo:
        """Return a version of a subject.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
        """

        def shown(book: Book) -> native.SchemaInfo:
            return _version(book, book.entry(request.subject, request.version, deleted=request.deleted))

        return await self._service.read(shown)

    async def find(self, request: native.FindSchema) -> native.SchemaInfo:
        """Return the version of a subject that has the same content.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            SchemaNotFoundError: none of them has it.
            InvalidSchemaError, SchemaTooLargeError: the schema is invalid, or exceeds a limit.
        """
        entry = await self._service.lookup(_proposal(request.subject, request.schema), deleted=request.deleted)
        if entry is None:
            raise SchemaNotFoundError(
                f"no version of subject {request.subject!r} has this content; 'danube schemas register' registers it"
            )
        return _version(self._service.book, entry)

    async def list_subjects(self, request: native.ListSubjects) -> native.SubjectList:
        """Return a page of subjects that the caller may see."""
        book = await self._service.fresh()
        rows: list[native.SubjectRow] = []
        for count, name in enumerate(book.subjects(request.prefix, deleted=request.deleted), 1):
            if not count % _TURN:
                await trio.lowlevel.checkpoint()
            if name <= request.after or not may_read_schema(name):
                continue
            if len(rows) == native.SUBJECTS_PAGE:
                return native.SubjectList(rows, more=True)
            row = _row(book, name)
            if row is not None:
                rows.append(row)
        return native.SubjectList(rows)

    async def show(self, request: native.ShowSubject) -> native.SubjectInfo:
        """Return a subject, or the settings of the registry.

        Raises:
            SubjectNotFoundError: there is no such subject, and no settings for it.
        """
        found = await self._service.read(partial(_shown, name=request.subject, deleted=request.deleted))
        if request.subject:
            found.topics = await self._bound_topics(request.subject)
        return found

    async def _bound_topics(self, *subjects: str) -> list[str]:
        """Return some topics with one of the subjects that the caller may see."""
        found = []
        for count, topic in enumerate(self._topics.names_with_subject(*subjects), 1):
            if not count % _TURN:
                await trio.lowlevel.checkpoint()
            if topic and may_describe(topic):
                found.append(topic)
                if len(found) == _MOST_TOPICS:
                    break
        return found

    async def check(self, request: native.CheckSchema) -> native.CheckedSchema:
        """Return whether a schema is compatible with a subject, or with one version of it.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            InvalidSchemaError, SchemaTooLargeError: the schema is invalid, or exceeds a limit.
            InvalidArgumentError: an unknown type or level.
        """
        level = parse_level(request.level) if request.level else None
        proposal = _proposal(request.subject, request.schema)
        finding = await self._service.check(proposal, request.version or None, level)
        used, _, compared = finding.basis
        return native.CheckedSchema(
            not finding.objections,
            used.value,
            [version for version, _ in compared],
            [
                native.SchemaObjection(
                    each.version, each.level.value, each.reason.kind, each.reason.path, each.reason.text
                )
                for each in finding.objections
            ],
        )

    # --- Changing

    async def register(self, request: native.RegisterSchema) -> native.RegisteredSchema:
        """Register a schema as a version of a subject.

        Raises:
            IncompatibleSchemaError: it is not compatible with the versions of the subject.
            DanubeError: as :meth:`danube.schema.book.Book.register`.
        """
        found = await self._service.register(
            _proposal(request.subject, request.schema),
            by=caller_name(),
            description=request.description,
            tags=tuple(request.tags),
            number=request.number or None,
            version=request.version or None,
        )
        return native.RegisteredSchema(found.number, found.version, found.subject_number, found.is_new)

    async def delete(self, request: native.DeleteSchema) -> native.DeletedVersions:
        """Delete a version of a subject, or all of them.

        Raises:
            DanubeError: as :meth:`danube.schema.book.Book.delete_version` and
                :meth:`~danube.schema.book.Book.delete_subject`.
        """
        version = request.version

        def prepare(book: Book) -> tuple[list[int], Change]:
            nonlocal version  # the latest one may be another one when this is repeated
            if not version:
                return book.delete_subject(request.subject, permanent=request.permanent)
            version, change = book.delete_version(request.subject, version, permanent=request.permanent)
            return [version], change

        gone, _ = await self._service.change_with(prepare)
        return native.DeletedVersions(gone)

    async def purge(self, request: native.PurgeSchema) -> api.Done:
        """Remove a schema that no version has; raises as :meth:`danube.schema.book.Book.purge`."""
        await self._service.change(lambda book: book.purge(request.number))
        return api.Done()

    async def bind(self, request: native.BindSchema) -> api.Done:
        """Give a topic the subject of the schemas of its messages.

        Raises:
            SubjectNotFoundError: there is no such subject.
            TopicNotFoundError: there is no such topic.
            FailedPreconditionError: it is a partition.
            PermissionDeniedError: the caller may not read the schemas of the subject.
        """
        if request.schema_subject:
            require_schema(request.schema_subject)
            await self._service.read(lambda book: book.entries(request.schema_subject))
        await self._topics.bind_subject(request.topic, request.schema_subject)
        return api.Done()

    async def set_mode(self, request: native.SetSchemaMode) -> api.Done:
        """Set the mode of a subject, or of the registry; raises as :meth:`danube.schema.book.Book.set_mode`."""
        mode = parse_mode(request.mode) if request.mode else None
        await self._service.change(lambda book: book.set_mode(request.subject or None, mode, force=request.force))
        return api.Done()

    async def set_compatibility(self, request: native.SetCompatibility) -> api.Done:
        """Set level and policy of a subject, or of the registry.

        Raises:
            DanubeError: as :meth:`danube.schema.book.Book.set_level`.
        """
        subject = request.subject or None
        level = parse_level(request.level) if request.level else None
        policy = parse_policy(request.json_policy) if request.json_policy else None
        if request.level is not None:
            await self._service.change(lambda book: book.set_level(subject, level))
        if request.json_policy is not None:
            await self._service.change(lambda book: book.set_policy(subject, policy))
        return api.Done()


# --- Conversions


def _proposal(subject: str, schema: native.ProposedSchema) -> Proposal:
    return Proposal(
        subject=subject,
        type=parse_type(schema.schema_type),
        text=schema.text,
        references=tuple(Reference(each.name, each.subject, each.version) for each in schema.references),
        message=schema.message,
        metadata=schema.metadata,
        rules=schema.rules,
    )


def _schema(book: Book, number: int, record: NumberRecord) -> native.SchemaInfo:
    return native.SchemaInfo(
        number,
        record.type.value,
        record.text,
        [native.SchemaReference(each.name, each.subject, each.version, each.number) for each in record.references],
        [native.NeededSchema(each.name, each.text) for each in book.source(number).needs],
        record.message,
        record.name,
        record.descriptor,
        dict(record.metadata),
        record.rules,
        book.guid(number),
    )


def _version(book: Book, entry: Entry) -> native.SchemaInfo:
    found = _schema(book, entry.number, entry.schema)
    version = entry.version
    found.subject, found.subject_number, found.version = entry.subject, entry.subject_number, version.version
    found.created_ms, found.created_by = version.created_ms, version.created_by
    found.description, found.tags, found.is_deleted = version.description, list(version.tags), version.is_deleted
    return found


def _row(book: Book, name: str) -> native.SubjectRow | None:
    """Return the row of a subject; None if it was deleted permanently meanwhile."""
    try:
        every = book.entries(name, deleted=True)
    except SubjectNotFoundError:
        return None
    live = [each for each in every if not each.version.is_deleted]
    latest = (live or every)[-1]
    return native.SubjectRow(
        name,
        latest.subject_number,
        latest.schema.type.value,
        latest.version.version,
        len(live),
        book.level(name).value,
        book.mode(name).value,
    )


def _shown(book: Book, *, name: str, deleted: bool) -> native.SubjectInfo:
    """Return a subject, without its topics; or the settings of the registry."""
    own = _settings(book.own_settings(name or None))
    if not name:
        return native.SubjectInfo("", 0, [], own, _effective(book, ""))
    try:
        entries = book.entries(name, deleted=deleted)
    except SubjectNotFoundError:
        if own == native.SchemaSettings():
            raise
        entries = []
    return native.SubjectInfo(
        name,
        entries[0].subject_number if entries else 0,
        [
            native.VersionRow(
                each.version.version,
                each.number,
                each.schema.type.value,
                each.version.created_ms,
                each.version.created_by,
                each.version.description,
                list(each.version.tags),
                each.version.is_deleted,
                book.referrers(name, each.version.version),
            )
            for each in entries
        ],
        own,
        _effective(book, name),
    )


def _settings(own: Settings) -> native.SchemaSettings:
    def shown(value: Any) -> str:
        return "" if value is None else str(value.value)

    return native.SchemaSettings(shown(own.level), shown(own.policy), shown(own.mode))


def _effective(book: Book, subject: str) -> native.SchemaSettings:
    """Return what is in effect for a subject; for the registry that of a subject without settings of its own."""
    return native.SchemaSettings(book.level(subject).value, book.policy(subject).value, book.mode(subject).value)
