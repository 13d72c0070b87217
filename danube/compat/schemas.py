"""``danube_schema.SchemaRegistry``: the schema registry for official clients and tools, on both ports.

These name a schema by the number of its *subject* and a version. Subjects that are created here get the policy
``upstream``: their clients rely on upstream's rules for JSON Schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from danube.broker.faces import caller_name, may_read_schema, require_schema
from danube.compat.methods import unary
from danube.compat.proto import danube_schema_pb2 as pb
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidSchemaError,
    SchemaNotFoundError,
    SubjectNotFoundError,
)
from danube.model.names import validate_topic
from danube.model.policies import SchemaPayloads, SchemaValidation
from danube.model.policy_api import ChangePolicies
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.model.records import TopicRecord
    from danube.schema.book import Book, Change, Entry, Proposal

__all__ = ["SchemaRegistry"]

_SERVICE: Final = "/danube_schema.SchemaRegistry/"
_MS: Final = 1000


class SchemaRegistry:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        handlers: list[tuple[str, Callable[[Any, Context], Awaitable[Any]], Any]] = [
            ("RegisterSchema", self.register, pb.RegisterSchemaRequest),
            ("GetSchema", self.get, pb.GetSchemaRequest),
            ("GetLatestSchema", self.get_latest, pb.GetLatestSchemaRequest),
            ("ListVersions", self.list_versions, pb.ListVersionsRequest),
            ("CheckCompatibility", self.check, pb.CheckCompatibilityRequest),
            ("DeleteSchemaVersion", self.delete_version, pb.DeleteSchemaVersionRequest),
            ("SetCompatibilityMode", self.set_mode, pb.SetCompatibilityModeRequest),
            ("ConfigureTopicSchema", self.configure_topic, pb.ConfigureTopicSchemaRequest),
            ("UpdateTopicValidationPolicy", self.update_validation, pb.UpdateTopicValidationPolicyRequest),
            ("GetTopicSchemaConfig", self.topic_config, pb.GetTopicSchemaConfigRequest),
            ("ListSubjects", self.list_subjects, pb.ListSubjectsRequest),
        ]
        return dict(unary(f"{_SERVICE}{name}", handler, request) for name, handler, request in handlers)

    # --- Schemas

    async def register(self, request: pb.RegisterSchemaRequest, _context: Context) -> pb.RegisterSchemaResponse:
        """Register a schema as the next version of a subject, unless the subject has the same content already.

        Raises:
            InvalidArgumentError: the type is unknown, or the schema is invalid or too large.
            FailedPreconditionError: it is not compatible with the subject, or that is read-only.
        """
        from danube.schema.modes import Policy  # most brokers have no schemas

        proposal = _proposal(request.subject, request.schema_type, request.schema_definition)
        found = await self._broker.registry.register(
            proposal,
            by=caller_name() or request.created_by,
            born=Policy.UPSTREAM,
            description=request.description,
            tags=tuple(request.tags),
        )
        entry = self._broker.registry.book.entry(request.subject, found.version, deleted=True)
        return pb.RegisterSchemaResponse(
            schema_id=found.subject_number,
            version=found.version,
            is_new_version=found.is_new,
            fingerprint=entry.fingerprint,
        )

    async def get(self, request: pb.GetSchemaRequest, _context: Context) -> pb.GetSchemaResponse:
        """Return a version of the subject with a number, or a schema with that number.

        Raises:
            NotFoundError: there is neither.
        """
        number, version = request.schema_id, request.version if request.HasField("version") else None

        entry = await self._broker.registry.find(lambda book: _numbered(book, number, version))
        # The call was judged by the registry as it was known; the subject may have been found after that.
        if not may_read_schema(entry.subject):
            raise SchemaNotFoundError(f"no subject has the number {number}")
        return _shown(self._broker.registry.book, entry, number)

    async def get_latest(self, request: pb.GetLatestSchemaRequest, _context: Context) -> pb.GetSchemaResponse:
        """Return the latest version of a subject.

        Raises:
            SubjectNotFoundError: it has none.
        """

        def latest(book: Book) -> pb.GetSchemaResponse:
            entry = book.entry(request.subject)
            return _shown(book, entry, entry.subject_number)

        return await self._broker.registry.read(latest)

    async def list_versions(self, request: pb.ListVersionsRequest, _context: Context) -> pb.ListVersionsResponse:
        """List the versions of a subject, in order.

        Raises:
            SubjectNotFoundError: it has none.
        """
        entries = await self._broker.registry.read(lambda book: book.entries(request.subject))
        return pb.ListVersionsResponse(
            versions=[
                pb.SchemaVersionInfo(
                    version=each.version.version,
                    created_at=each.version.created_ms // _MS,
                    created_by=each.version.created_by,
                    description=each.version.description,
                    fingerprint=each.fingerprint,
                    schema_id=each.subject_number,
                )
                for each in entries
            ]
        )

    async def list_subjects(self, _request: pb.ListSubjectsRequest, _context: Context) -> pb.ListSubjectsResponse:
        """List the subjects, by name."""
        book = await self._broker.registry.fresh()
        latest = [book.entry(name) for name in book.subjects()]
        return pb.ListSubjectsResponse(
            subjects=[
                pb.SubjectSummary(
                    subject=each.subject,
                    schema_type=each.schema.type.value,
                    latest_version=each.version.version,
                    compatibility_mode=book.level(each.subject).base.value,
                    schema_id=each.subject_number,
                    tags=each.version.tags,
                )
                for each in latest
            ]
        )

    async def check(self, request: pb.CheckCompatibilityRequest, _context: Context) -> pb.CheckCompatibilityResponse:
        """Return whether a schema is compatible with a subject, and all reasons why not.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            InvalidArgumentError: the type or mode is unknown, or the schema is invalid.
        """
        from danube.schema.modes import parse_level

        registry = self._broker.registry
        mode = request.compatibility_mode if request.HasField("compatibility_mode") else ""
        level = parse_level(mode) if mode else None
        proposal = _proposal(request.subject, request.schema_type, request.new_schema_definition)
        await registry.read(lambda book: book.versions(request.subject))
        finding = await registry.check(proposal, None, level)
        return pb.CheckCompatibilityResponse(
            is_compatible=not finding.objections, errors=[str(each) for each in finding.objections]
        )

    async def delete_version(
        self, request: pb.DeleteSchemaVersionRequest, _context: Context
    ) -> pb.DeleteSchemaVersionResponse:
        """Delete a version of a subject; messages with it can still be decoded.

        Raises:
            NotFoundError: there is no such version, or it is deleted already.
            FailedPreconditionError: other schemas refer to it, or the subject is read-only.
        """
        subject, version = request.subject, request.version

        def prepare(book: Book) -> tuple[int, Change]:
            return book.delete_version(subject, version)

        await self._broker.registry.change_with(prepare)
        return pb.DeleteSchemaVersionResponse(success=True, message=f"version {version} of {subject} is deleted")

    async def set_mode(
        self, request: pb.SetCompatibilityModeRequest, _context: Context
    ) -> pb.SetCompatibilityModeResponse:
        """Set with which versions new ones of a subject must be compatible.

        Raises:
            InvalidArgumentError: the mode is unknown.
            SubjectNotFoundError: the subject has no versions.
            FailedPreconditionError: it is read-only.
        """
        from danube.schema.modes import parse_level

        subject, level = request.subject, parse_level(request.compatibility_mode)

        def prepare(book: Book) -> Change:
            book.versions(subject)
            return book.set_level(subject, level)

        await self._broker.registry.change(prepare)
        return pb.SetCompatibilityModeResponse(success=True, message=f"{subject} is {level.value} now")

    # --- Topics

    async def configure_topic(
        self, request: pb.ConfigureTopicSchemaRequest, _context: Context
    ) -> pb.ConfigureTopicSchemaResponse:
        """Give a topic a subject, and say what happens to messages without one of its schemas.

        Raises:
            InvalidArgumentError: the policy is unknown.
            SubjectNotFoundError, TopicNotFoundError: there is no such subject or topic.
        """
        topic, subject = request.topic_name, request.schema_subject
        _policies(request)
        require_schema(subject)
        await self._broker.registry.read(lambda book: book.versions(subject))
        operations = self._broker.operations
        await operations.topics.bind_subject(topic, subject)
        await operations.policies.change(ChangePolicies(topic, _policies(request)))
        return pb.ConfigureTopicSchemaResponse(success=True, message=f"{topic} has schema subject {subject}")

    async def update_validation(
        self, request: pb.UpdateTopicValidationPolicyRequest, _context: Context
    ) -> pb.UpdateTopicValidationPolicyResponse:
        """Say what happens to messages of a topic without a schema of its subject.

        Raises:
            InvalidArgumentError: the policy is unknown.
            TopicNotFoundError: there is no such topic.
            FailedPreconditionError: it has no subject.
        """
        topic, changes = request.topic_name, _policies(request)
        if not self._record(topic).schema_subject:
            raise FailedPreconditionError(f"topic {topic!r} has no schema subject; configure one first")
        await self._broker.operations.policies.change(ChangePolicies(topic, changes))
        return pb.UpdateTopicValidationPolicyResponse(success=True, message=f"{topic}: {changes['schema_validation']}")

    async def topic_config(
        self, request: pb.GetTopicSchemaConfigRequest, _context: Context
    ) -> pb.GetTopicSchemaConfigResponse:
        """Return the subject of a topic (empty: it has none), and what happens to messages without its schemas.

        Raises:
            TopicNotFoundError: there is no such topic.
        """
        subject = self._record(request.topic_name).schema_subject
        effective = self._broker.directory.policies.report(request.topic_name).effective
        number = 0
        if subject:
            with suppress(SubjectNotFoundError):  # all its versions were deleted permanently
                entry = await self._broker.registry.read(lambda book: book.entry(subject, deleted=True))
                number = entry.subject_number
        return pb.GetTopicSchemaConfigResponse(
            schema_subject=subject,
            validation_policy=(effective.schema_validation or SchemaValidation.NONE).value,
            enable_payload_validation=effective.schema_payloads is SchemaPayloads.BROKER,
            schema_id=number,
        )

    def _record(self, topic: str) -> TopicRecord:
        validate_topic(topic)
        catalogue = self._broker.directory.catalogue
        return catalogue.find(topic) or catalogue.locate(topic)[0]


def _policies(request: pb.ConfigureTopicSchemaRequest | pb.UpdateTopicValidationPolicyRequest) -> dict[str, str]:
    """Return the policies that a request sets: both, since the requests cannot leave one out.

    Raises:
        InvalidArgumentError: the policy is unknown.
    """
    payloads = SchemaPayloads.BROKER if request.enable_payload_validation else SchemaPayloads.CLIENT
    try:
        validation = SchemaValidation(request.validation_policy.lower())
    except ValueError:
        known = ", ".join(each.value for each in SchemaValidation)
        raise InvalidArgumentError(
            f"unknown validation policy {request.validation_policy!r}; use one of: {known}"
        ) from None
    return {"schema_validation": validation.value, "schema_payloads": payloads.value}


def _proposal(subject: str, schema_type: str, definition: bytes) -> Proposal:
    from danube.schema.book import Proposal
    from danube.schema.modes import parse_type

    try:
        text = definition.decode()
    except UnicodeDecodeError:
        raise InvalidSchemaError(f"the schema for subject {subject!r} is not UTF-8 text") from None
    return Proposal(subject=subject, type=parse_type(schema_type), text=text)


def _numbered(book: Book, number: int, version: int | None) -> Entry:
    """Return what a number and a version stand for: a subject's version, or a schema in some subject."""
    from danube.schema.book import LATEST

    try:
        return book.by_subject_number(number, LATEST if version is None else version)
    except SchemaNotFoundError:
        carriers = [each for each in book.carriers(number, deleted=True) if version in (None, each[1])]
        if not carriers:
            raise
    return book.entry(*carriers[-1], deleted=True)


def _shown(book: Book, entry: Entry, number: int) -> pb.GetSchemaResponse:
    version = entry.version
    return pb.GetSchemaResponse(
        schema_id=number,
        version=version.version,
        subject=entry.subject,
        schema_type=entry.schema.type.value,
        schema_definition=entry.schema.text.encode(),
        description=version.description,
        created_at=version.created_ms // _MS,
        created_by=version.created_by,
        tags=version.tags,
        fingerprint=entry.fingerprint,
        compatibility_mode=book.level(entry.subject).base.value,
    )
