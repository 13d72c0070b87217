"""The registrations of a book: what is to be examined, and the change that a finding permits."""

from __future__ import annotations

import msgspec

from danube.model.errors import (
    IncompatibleSchemaError,
    InvalidArgumentError,
    InvalidSchemaNumberError,
    LimitExceededError,
    MetadataConflictError,
    SchemaModeError,
    SchemaTooLargeError,
)
from danube.model.quotas import check_subjects
from danube.schema.entries import (
    LARGEST_NUMBER,
    LARGEST_VERSION,
    NEW_SUBJECT,
    Change,
    Entry,
    Proposal,
    Registered,
    content_hash,
    hash_key,
)
from danube.schema.examine import Examination, Finding, Other
from danube.schema.kinds import Source
from danube.schema.modes import Level, Mode, Policy
from danube.schema.reading import Reading
from danube.schema.records import (
    CONFIG,
    NEXT,
    NUMBERS,
    SUBJECTS,
    NumberRecord,
    StoredReference,
    SubjectRecord,
    VersionRecord,
    encode,
)
from danube.schema.subjects import key_of, namespace_of, validate_subject

__all__ = ["Registering"]


class Registering(Reading):
    """A registry in which schemas are registered; see :class:`danube.schema.book.Book`."""

    # -----------------------------------------------------------------------------------------------------------------
    # Registering

    def examination(self, proposal: Proposal, level: Level | None = None) -> Examination:
        """Return the input of :func:`~danube.schema.examine.examine` for registering or checking a schema.

        Args:
            proposal: The schema, and its subject, which need not exist.
            level: Replaces the effective level of the subject.

        Raises:
            InvalidNameError: the name is not valid for a subject.
            InvalidSchemaError: the target of a reference does not exist.
            SchemaTooLargeError: the referenced schemas exceed a limit.
        """
        validate_subject(proposal.subject, self._limits)
        others = self._others(proposal.subject, level or self.level(proposal.subject))
        return self._examination(proposal, others, level)

    def examination_with(self, proposal: Proposal, version: int, level: Level | None = None) -> Examination:
        """Return the input of :func:`~danube.schema.examine.examine` for comparing a schema with one live version.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            InvalidSchemaError, SchemaTooLargeError: as in :meth:`examination`.
        """
        return self._examination(proposal, (self.entry(proposal.subject, version).version,), level)

    def _examination(self, proposal: Proposal, others: tuple[VersionRecord, ...], level: Level | None) -> Examination:
        references = self._resolve(proposal)
        return Examination(
            Source(proposal.type, proposal.text, self._needs(references), proposal.message),
            tuple(Other(each.version, each.number, self.source(each.number)) for each in others),
            level or self.level(proposal.subject),
            self.policy(proposal.subject),
        )

    def same_text(self, proposal: Proposal, *, deleted: bool = False) -> Entry | None:
        """Return the latest version of the proposal's subject that was registered with exactly this text; None: none.

        Such a version has the same content, which is known without parsing the schema. Others may have it, too.

        Raises:
            InvalidSchemaError: the target of a reference does not exist.
        """
        record = self._subjects.get(proposal.subject, NEW_SUBJECT)
        if not record.versions:
            return None
        wanted = sorted((each.name, each.number) for each in self._resolve(proposal))
        for version in reversed(record.versions):
            if version.is_deleted and not deleted:
                continue
            schema = self.schema(version.number)
            if (schema.type, schema.text, schema.message, schema.metadata, schema.rules) == (
                proposal.type, proposal.text, proposal.message, dict(proposal.metadata), proposal.rules,
            ) and sorted((each.name, each.number) for each in schema.references) == wanted:  # fmt: skip
                return self._entry(proposal.subject, record, version)
        return None

    def find(self, proposal: Proposal, finding: Finding, *, deleted: bool = False) -> Entry | None:
        """Return the latest version of the proposal's subject that has the same content; None: no version has it.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            InvalidSchemaError: the target of a reference does not exist.
        """
        self.versions(proposal.subject, deleted=deleted)
        number = self._hashes.get(hash_key(content_hash(proposal, self._resolve(proposal), finding.canonical)))
        record = self._record(proposal.subject)
        for version in reversed(record.versions):
            if version.number == number and (deleted or not version.is_deleted):
                return self._entry(proposal.subject, record, version)
        return None

    def register(
        self,
        proposal: Proposal,
        finding: Finding,
        *,
        now_ms: int,
        born: Policy = Policy.LENIENT,
        created_by: str = "",
        description: str = "",
        tags: tuple[str, ...] = (),
        number: int | None = None,
        version: int | None = None,
        most_subjects: int | None = None,
    ) -> Registered:
        """Prepare a registration: return the existing or new version of a schema, and the change that stores it.

        Args:
            proposal: The schema.
            finding: The result of :func:`~danube.schema.examine.examine` for the :meth:`examination` of this proposal.
            now_ms: Unix time in milliseconds.
            born: Initial policy of a new subject without a policy of its own.
            created_by: The author of the version.
            description: Shown to people.
            tags: Shown to people.
            number: The number of the schema; required in mode IMPORT. In other modes only the number that it has
                already.
            version: The version; in other modes than IMPORT it must be the next one, if given.
            most_subjects: The quota of the namespace of the subject; None: it has none.

        Raises:
            IncompatibleSchemaError: it is not compatible with the versions of the subject.
            SchemaModeError: the mode of the subject does not permit it.
            InvalidSchemaNumberError: the given number or version is taken or out of range.
            InvalidNameError, InvalidSchemaError, SchemaTooLargeError, LimitExceededError: the proposal is invalid, or
                exceeds a limit.
            MetadataConflictError: the subject or its settings have changed since the examination; examine again.
        """
        subject = validate_subject(proposal.subject, self._limits)
        mode = self.mode(subject)
        self._check_notes(proposal, created_by, description, tags)
        record = self._subjects.get(subject, NEW_SUBJECT)
        references = self._resolve(proposal)
        digest = content_hash(proposal, references, finding.canonical)
        known = self._hashes.get(hash_key(digest))
        live = [each for each in record.versions if not each.is_deleted]
        same = next((each for each in reversed(live) if each.number == known), None)
        if same is not None and number in (None, known) and version in (None, same.version):
            return Registered(same.number, same.version, record.number, False, Change())

        self._check_writable(subject)
        if mode is Mode.IMPORT:
            if number is None:
                raise SchemaModeError(
                    f"subject {subject!r} is in mode IMPORT: schemas must come with their numbers; set its mode to"
                    " READWRITE to assign new ones"
                )
        else:
            self._check_finding(subject, finding)
            if number is not None and number != known:
                raise SchemaModeError(
                    f"the number of a schema can only be chosen in mode IMPORT, and subject {subject!r} is in mode"
                    f" {mode.name}"
                )
            if version is not None and version != record.next_version:
                raise InvalidSchemaNumberError(
                    f"the next version of subject {subject!r} is {record.next_version}, not {version}; versions can be"
                    " chosen in mode IMPORT only"
                )
        if most_subjects is not None and not record.versions:
            namespace = namespace_of(subject)
            check_subjects(namespace, most_subjects, self.subjects_of(namespace))
        return self._registered(
            proposal, finding, references, digest, number, version, born, (now_ms, created_by, description, tags)
        )

    def _registered(
        self,
        proposal: Proposal,
        finding: Finding,
        references: tuple[StoredReference, ...],
        digest: bytes,
        number: int | None,
        version: int | None,
        born: Policy,
        notes: tuple[int, str, str, tuple[str, ...]],
    ) -> Registered:
        subject = proposal.subject
        record = self._subjects.get(subject, NEW_SUBJECT)
        version = record.next_version if version is None else version
        if not 1 <= version <= LARGEST_VERSION:
            raise InvalidSchemaNumberError(f"version {version} is out of range: use 1 to {LARGEST_VERSION}")
        if any(each.version == version for each in record.versions):
            raise InvalidSchemaNumberError(f"subject {subject!r} has version {version} already; choose another one")
        self._check_room(subject, record)
        known = self._hashes.get(hash_key(digest))
        following = self._next
        if known is None:
            number = following if number is None else self._imported(number)
            following = max(following, number + 1)
        elif number in (None, known):
            number = known
        else:
            raise InvalidSchemaNumberError(f"the schema has number {known} already, so it cannot get number {number}")
        subject_number = record.number
        if not subject_number:
            subject_number, following = following, following + 1
        if following > LARGEST_NUMBER:
            raise LimitExceededError(f"the registry has assigned all {LARGEST_NUMBER} numbers of schemas and subjects")

        entry = VersionRecord(version, number, *notes)
        is_first = not any(not each.is_deleted for each in record.versions)
        changed = msgspec.structs.replace(
            record,
            number=subject_number,
            versions=tuple(sorted((*record.versions, entry), key=lambda each: each.version)),
            next_version=max(record.next_version, version + 1),
            policy=(record.policy or born) if is_first else record.policy,
        )
        puts = [(SUBJECTS + key_of(subject), encode(changed)), (hash_key(digest), encode(number))]
        if known is None:
            schema = NumberRecord(
                proposal.type,
                proposal.text,
                digest,
                references,
                proposal.message,
                finding.name,
                finding.descriptor,
                dict(proposal.metadata),
                proposal.rules,
            )
            puts.append((f"{NUMBERS}{number}", encode(schema)))
        # Rewriting the counter orders this change among others that depend on what exists: the deletion of versions
        # that are referred to, and the creation of further subjects, which a quota counts.
        if following != self._next or references or not record.versions:
            puts.append((NEXT, encode(following)))
        touched = [key for key, _ in puts] + [CONFIG] + [SUBJECTS + key_of(each.subject) for each in references]
        return Registered(number, version, subject_number, True, self._change(touched, puts))

    def _imported(self, number: int) -> int:
        if not 1 <= number < LARGEST_NUMBER:
            raise InvalidSchemaNumberError(f"schema number {number} is out of range: use 1 to {LARGEST_NUMBER - 1}")
        if number in self._numbers:
            raise InvalidSchemaNumberError(f"number {number} belongs to another schema")
        if number in self._subject_numbers:
            raise InvalidSchemaNumberError(
                f"number {number} belongs to subject {self._subject_numbers[number]!r}: subjects and schemas share one"
                " series of numbers"
            )
        return number

    def _check_finding(self, subject: str, finding: Finding) -> None:
        level, policy = self.level(subject), self.policy(subject)
        others = tuple((each.version, each.number) for each in self._others(subject, level))
        if finding.basis != (level, policy, others):
            raise MetadataConflictError(f"subject {subject!r} has changed while the schema was compared; try again")
        if finding.objections:
            reasons = "; ".join(str(each) for each in finding.objections)
            raise IncompatibleSchemaError(
                f"the schema is not compatible with subject {subject!r}, whose level is {level.title}: {reasons}"
            )

    def _check_room(self, subject: str, record: SubjectRecord) -> None:
        if len(record.versions) >= self._limits.max_versions_per_subject:
            raise LimitExceededError(
                f"subject {subject!r} has {len(record.versions)} versions; max_versions_per_subject is"
                f" {self._limits.max_versions_per_subject}: delete some permanently"
            )
        self._check_subjects(subject)

    def _check_subjects(self, subject: str) -> None:
        if subject not in self._subjects and len(self._subjects) >= self._limits.max_subjects:
            raise LimitExceededError(
                f"the registry has {len(self._subjects)} subjects; max_subjects is {self._limits.max_subjects}"
            )

    def _check_notes(self, proposal: Proposal, created_by: str, description: str, tags: tuple[str, ...]) -> None:
        texts = (created_by, description, *tags, *proposal.metadata.keys(), *proposal.metadata.values(), proposal.rules)
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError:
            raise InvalidArgumentError(
                "a description, author, tag, rule or metadata is not Unicode text: it contains a lone surrogate"
            ) from None
        if size > self._limits.max_schema_notes_bytes:
            raise SchemaTooLargeError(
                f"description, author, tags, rules and metadata have {size} bytes; max_schema_notes_bytes is"
                f" {self._limits.max_schema_notes_bytes}"
            )

    def _others(self, subject: str, level: Level) -> tuple[VersionRecord, ...]:
        """Return the versions that a new one is compared with, the latest first."""
        live = [each for each in self._subjects.get(subject, NEW_SUBJECT).versions if not each.is_deleted]
        if level is Level.NONE or not live:
            return ()
        return tuple(reversed(live)) if level.is_transitive else (live[-1],)
