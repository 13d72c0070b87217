"""Subjects and schemas of the schema registry: ``client.schemas``.

Any broker answers. Types, levels and modes are texts, see :mod:`danube.model.schema_api`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from danube.client._checks import check_count, check_list, check_mapping, check_text
from danube.client._retry import Retry
from danube.model import api, schema_api
from danube.model.names import validate_topic
from danube.model.schema_api import SchemaMethod

if TYPE_CHECKING:
    from danube.client._pool import Pool

__all__ = ["Schemas"]

T = TypeVar("T")


class Schemas:
    """Manages and reads the schema registry; it is :attr:`Client.schemas`.

    Reading needs ReadSchema on the subject (``schema:/shop/orders-value``), changes need ManageSchema. A schema that
    these credentials may not see raises NotFoundError, as one that does not exist.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    # --- Reading

    async def get(self, number: int, *, topics: bool = False) -> schema_api.SchemaInfo:
        """Return a schema by its number, which headers of batches carry. It never changes.

        Args:
            number: of the schema.
            topics: whether to look for topics whose messages may have it.

        Raises:
            SchemaNotFoundError: there is none.
        """
        request = schema_api.GetSchema(check_count("number", number), topics)
        return await self._read(SchemaMethod.GET, request, schema_api.SchemaInfo)

    async def version(self, subject: str, version: int = -1, *, deleted: bool = False) -> schema_api.SchemaInfo:
        """Return a version of a subject, with its schema.

        Args:
            subject: its name.
            version: from 1; -1: the latest one that is not deleted.
            deleted: whether to include deleted versions.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
        """
        request = schema_api.GetSchemaVersion(check_text("subject", subject), version, deleted)
        return await self._read(SchemaMethod.VERSION, request, schema_api.SchemaInfo)

    async def find(
        self,
        subject: str,
        schema_type: str,
        text: str = "",
        *,
        references: Sequence[schema_api.SchemaReference] = (),
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        deleted: bool = False,
    ) -> schema_api.SchemaInfo:
        """Return the version of a subject that has the same content as a schema; registers nothing.

        Args:
            subject, schema_type, text, references, message, metadata: as for :meth:`register`.
            deleted: whether to include deleted versions.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            SchemaNotFoundError: none of them has this content.
            InvalidSchemaError, SchemaTooLargeError: the schema is invalid, or exceeds a limit.
        """
        schema = _proposed(schema_type, text, references, message, metadata)
        request = schema_api.FindSchema(check_text("subject", subject), schema, deleted)
        return await self._read(SchemaMethod.FIND, request, schema_api.SchemaInfo)

    async def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[schema_api.SubjectRow]:
        """Return the subjects that these credentials may see, sorted by name.

        Args:
            prefix: only those whose names begin with it.
            deleted: include those whose versions are all deleted.
        """
        found: list[schema_api.SubjectRow] = []
        more = True
        while more:
            request = schema_api.ListSubjects(check_text("prefix", prefix), found[-1].subject if found else "", deleted)
            page = await self._read(SchemaMethod.SUBJECTS, request, schema_api.SubjectList)
            found += page.subjects
            more = page.more
        return found

    async def subject(self, subject: str = "", *, deleted: bool = False) -> schema_api.SubjectInfo:
        """Return the versions and settings of a subject; of an empty one: the settings of the registry.

        Args:
            subject: its name.
            deleted: include deleted versions.

        Raises:
            SubjectNotFoundError: there is no such subject, and no settings for it.
        """
        request = schema_api.ShowSubject(check_text("subject", subject), deleted)
        return await self._read(SchemaMethod.SUBJECT, request, schema_api.SubjectInfo)

    async def check(
        self,
        subject: str,
        schema_type: str,
        text: str = "",
        *,
        references: Sequence[schema_api.SchemaReference] = (),
        message: str = "",
        version: int = 0,
        level: str = "",
    ) -> schema_api.CheckedSchema:
        """Return whether a schema is compatible with a subject, and why not; with one without versions every one is.

        Args:
            subject, schema_type, text, references, message: as for :meth:`register`.
            version: compare with this one only; 0: with those that the level names.
            level: instead of that of the subject; empty: that one.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            InvalidSchemaError, SchemaTooLargeError: the schema is invalid, or exceeds a limit.
            InvalidArgumentError: an unknown type or level.
        """
        schema = _proposed(schema_type, text, references, message, None)
        request = schema_api.CheckSchema(check_text("subject", subject), schema, version, check_text("level", level))
        return await self._read(SchemaMethod.CHECK, request, schema_api.CheckedSchema)

    # --- Changing

    async def register(
        self,
        subject: str,
        schema_type: str,
        text: str = "",
        *,
        references: Sequence[schema_api.SchemaReference] = (),
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        description: str = "",
        tags: Sequence[str] = (),
        number: int = 0,
        version: int = 0,
    ) -> schema_api.RegisteredSchema:
        """Register a schema as the next version of a subject, unless the subject has the same content already.

        Args:
            subject: its name; it is created with its first version.
            schema_type: ``avro``, ``json_schema``, ``protobuf``, ``string``, ``bytes`` or ``number``.
            text: of the schema; empty for the last three types.
            references: schemas that it refers to.
            message: of protobuf: the full name of the message type of payloads; empty: the first one of the file.
            metadata: any texts, which are a part of the content.
            description, tags: for people.
            number, version: only in mode ``import``: given numbers; 0: the next ones.

        Raises:
            IncompatibleSchemaError: it is not compatible with versions of the subject; the message has all reasons.
            SchemaModeError: the mode of the subject does not permit it.
            InvalidSchemaError: it is not a schema of this type, or the target of a reference does not exist.
            SchemaTooLargeError, LimitExceededError: it exceeds a limit, which the message names.
            InvalidArgumentError: an unknown type.
            DanubeError: it may have been registered; registering it again does no harm.
        """
        request = schema_api.RegisterSchema(
            check_text("subject", subject),
            _proposed(schema_type, text, references, message, metadata),
            check_text("description", description),
            check_list("tags", tags, "texts"),
            check_count("number", number),
            check_count("version", version),
        )
        return await self._read(SchemaMethod.REGISTER, request, schema_api.RegisteredSchema)  # repeating it is harmless

    async def delete(self, subject: str, version: int = 0, *, permanent: bool = False) -> list[int]:
        """Delete a version of a subject, or all; return what was deleted. Numbers of schemas still find them.

        Args:
            subject: its name.
            version: from 1; -1: the latest one; 0: all.
            permanent: remove what is deleted already. Its version numbers are never used again.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            SubjectDeletedError, SchemaVersionDeletedError: it is deleted already.
            SchemaNotDeletedError: ``permanent``, and it is not deleted yet.
            SchemaReferencedError: other schemas refer to it.
            SchemaModeError: the mode of the subject does not permit it.
        """
        request = schema_api.DeleteSchema(check_text("subject", subject), version, permanent)
        return (await self._change(SchemaMethod.DELETE, request, schema_api.DeletedVersions)).versions

    async def purge(self, number: int) -> None:
        """Remove a schema that no version has any more. Stored batches with its number cannot be decoded after that.

        Raises:
            SchemaNotFoundError: there is none.
            FailedPreconditionError: a version, also a deleted one, has it.
            SchemaReferencedError: other schemas refer to it.
        """
        await self._change(SchemaMethod.PURGE, schema_api.PurgeSchema(check_count("number", number)), api.Done)

    async def bind(self, topic: str, subject: str) -> None:
        """Give a topic, plain or partitioned, the subject of the schemas of its messages.

        The policy ``schema_validation`` of the topic says whether messages must have one of its schemas. Needs
        ManageTopic on the topic, and ReadSchema on the subject.

        Args:
            topic: ``/namespace/topic``.
            subject: its name; empty: the topic has none any more.

        Raises:
            SubjectNotFoundError, TopicNotFoundError: there is no such subject or topic.
            FailedPreconditionError: it is a partition.
        """
        validate_topic(topic)
        request = schema_api.BindSchema(topic, check_text("subject", subject))
        await self._read(SchemaMethod.BIND, request, api.Done)  # repeating it is harmless

    async def set_mode(self, subject: str, mode: str | None, *, force: bool = False) -> None:
        """Set what may change in a subject, or in the registry.

        Args:
            subject: its name; empty: the registry.
            mode: ``readwrite``, ``readonly``, ``import``, or for the registry ``readonly_override``; None: remove the
                one of its own, so that it inherits one.
            force: change to ``import`` although there are versions.

        Raises:
            SchemaSettingNotFoundError: there is none to remove.
            SchemaModeError: ``import``, and there are versions.
            InvalidArgumentError: an unknown mode.
        """
        request = schema_api.SetSchemaMode(check_text("subject", subject), check_text("mode", mode or ""), force)
        await self._change(SchemaMethod.SET_MODE, request, api.Done)

    async def set_compatibility(
        self, subject: str, *, level: str | None = None, json_policy: str | None = None
    ) -> None:
        """Set with what new versions of a subject, or of all, must be compatible.

        Args:
            subject: its name; empty: the registry.
            level: ``none``, ``backward``, ``forward`` or ``full``, the last three also with ``_transitive``; empty:
                remove the one of its own; None: leave it as it is.
            json_policy: the rules for JSON Schema: ``strict``, ``lenient`` or ``upstream``; else as ``level``.

        Raises:
            SchemaSettingNotFoundError: there is none to remove.
            SchemaModeError: the mode of the subject does not permit it.
            InvalidArgumentError: an unknown level or policy.
        """
        request = schema_api.SetCompatibility(check_text("subject", subject), level, json_policy)
        await self._change(SchemaMethod.SET_COMPATIBILITY, request, api.Done)

    async def _change(self, path: str, request: Any, kind: type[T]) -> T:
        """Make a call to any broker; it is not repeated, because it may have been executed."""
        return await self._pool.unary(path, request, kind, timeout_s=self._pool.options.request_timeout_s)

    async def _read(self, path: str, request: Any, kind: type[T]) -> T:
        call = partial(self._change, path, request, kind)
        return await Retry(self._pool).repeat(call, self._pool.options.request_timeout_s)


def _proposed(
    schema_type: str,
    text: str,
    references: Sequence[schema_api.SchemaReference],
    message: str,
    metadata: Mapping[str, str] | None,
) -> schema_api.ProposedSchema:
    return schema_api.ProposedSchema(
        check_text("schema_type", schema_type),
        check_text("text", text),
        check_list("references", references, "schema references"),
        check_text("message", message),
        check_mapping("metadata", metadata or {}, "texts"),
    )
