"""The state of the schema registry in memory: built from metadata records, it answers queries and prepares changes.

A book mirrors the metadata keys below ``/schemas``; :meth:`Book.apply` keeps it current, and queries read only the
book. A method that modifies the registry returns a :class:`Change`: the keys to write, and the revisions that they must
have. It does not modify the book. If the store accepts the change, the book receives it through :meth:`Book.apply`; if
the store refuses it because the book was out of date, the caller computes it again.

Registration takes two steps, because untrusted schemas are parsed and compared in another process::

    examination = book.examination(proposal)
    finding = examine(examination)                     # in another process
    registered = book.register(proposal, finding, now_ms=...)

Why concurrent changes of two brokers cannot conflict, although each condition covers a single key:

* Versions are created and deleted in the record of their subject, so two changes of one subject exclude each other.
* A new schema takes its number from the counter and creates the key of its hash, so equal schemas have one number.
* A registration with references is conditional on the referenced subjects, and writes the counter even if it takes no
  number; a deletion is conditional on the counter. So nothing is deleted while a reference to it is registered.
* Registering a known schema for a subject rewrites the key of its hash, and purging is conditional on that key. So no
  schema is purged while it is registered.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from danube.model.errors import (
    DataLossError,
    FailedPreconditionError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    InvalidSchemaError,
    InvalidSchemaNumberError,
    LimitExceededError,
    MetadataConflictError,
    SchemaModeError,
    SchemaNotDeletedError,
    SchemaNotFoundError,
    SchemaReferencedError,
    SchemaSettingNotFoundError,
    SchemaTooLargeError,
    SchemaVersionDeletedError,
    SchemaVersionNotFoundError,
    SubjectDeletedError,
    SubjectNotFoundError,
)
from danube.model.quotas import check_subjects
from danube.schema.examine import Examination, Finding, Other
from danube.schema.indexes import Carriers, Schemas
from danube.schema.kinds import Needed, Source
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits
from danube.schema.modes import Level, Mode, Policy, SchemaType
from danube.schema.records import (
    CONFIG,
    HASHES,
    NEXT,
    NUMBERS,
    SUBJECTS,
    NumberRecord,
    Reference,
    Settings,
    StoredReference,
    SubjectRecord,
    VersionRecord,
    decode,
    encode,
)
from danube.schema.subjects import key_of, namespace_of, subject_of_key, validate_subject

__all__ = ["LATEST", "Book", "Change", "Entry", "Proposal", "Registered", "content_hash"]

LATEST: Final = -1
"""In place of a version: the latest live version of the subject."""

_LARGEST_NUMBER: Final = 2**31 - 1
"""The highest schema number: clients of Confluent's registry use 31 bits."""
_LARGEST_VERSION: Final = 2**31 - 1
_GUIDS: Final = uuid.UUID("6f0d1c4e-3b0a-5a55-9c1b-2f6b8f7d9a11")
_MOST_LISTED: Final = 5
"""Maximum number of items of a list in an error message."""


_MOST_FORMER: Final = 1_000
"""Most numbers that a subject remembers of its permanently deleted versions."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A schema to register, check or look up."""

    subject: str
    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    """Versions may be :data:`LATEST`."""
    message: str = ""
    metadata: Mapping[str, str] = {}
    rules: str = ""


class Change(msgspec.Struct, frozen=True):
    """A transaction of the metadata store: all writes are applied if all conditions hold, otherwise none."""

    conditions: tuple[tuple[str, int], ...] = ()
    """Keys and their required modification revisions; 0: the key must not exist."""
    puts: tuple[tuple[str, bytes], ...] = ()
    deletes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.puts and not self.deletes


class Entry(msgspec.Struct, frozen=True):
    """A version of a subject, with its schema."""

    subject: str
    subject_number: int
    version: VersionRecord
    schema: NumberRecord

    @property
    def number(self) -> int:
        """Of the schema."""
        return self.version.number

    @property
    def fingerprint(self) -> str:
        """The fingerprint shown to upstream's clients."""
        return self.schema.type.value if self.schema.type.is_plain else f"sha256:{self.schema.hash.hex()}"


class Registered(msgspec.Struct, frozen=True):
    """The result of a registration, and the change that stores it."""

    number: int
    version: int
    subject_number: int
    is_new: bool
    """Whether a version is created. If not, there is nothing to write."""
    change: Change


def content_hash(proposal: Proposal, references: tuple[StoredReference, ...], canonical: str) -> bytes:
    """Return the hash that identifies a schema: equal for texts with the same meaning and the same references."""
    identity = (
        proposal.type.value,
        canonical,
        sorted((each.name, each.number) for each in references),
        proposal.message,
        sorted(proposal.metadata.items()),
        proposal.rules,
    )
    return hashlib.sha256(msgspec.msgpack.encode(identity)).digest()


def _hash_key(digest: bytes) -> str:
    return HASHES + digest.hex()


class Book:
    """All subjects and schemas of a registry. Not thread-safe."""

    def __init__(self, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._revisions: dict[str, int] = {}
        self._settings = Settings()
        self._next = 1
        self._numbers = Schemas()
        self._hashes: dict[str, int] = {}
        """Numbers by the keys of hashes, which are the same objects as those of the revisions."""
        self._subjects: dict[str, SubjectRecord] = {}
        self._names: list[str] = []
        """Names of all subjects, sorted."""
        self._subject_numbers: dict[int, str] = {}
        self._carriers = Carriers()
        """Subjects by the number of a schema that they have, deleted versions included."""
        self._referrers: dict[int, set[int]] = {}
        """By the number of a schema, the schemas that refer to it."""
        self._guids: dict[str, int] | None = None

    # -----------------------------------------------------------------------------------------------------------------
    # Changes of the store

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        """Apply a change of one key. Unknown keys, of later versions of Danube, are ignored.

        Args:
            key: Below ``/schemas``.
            value: The new value; None: the key was deleted.
            revision: Revision of the change.

        Raises:
            DataLossError: the value is damaged; the book is unchanged.
        """
        try:
            if not self._take_over(key, value):
                return
        except ValueError as error:
            raise DataLossError(f"the metadata key {key} is not a key of the schema registry: {error}") from error
        if value is None:
            self._revisions.pop(key, None)
        else:
            self._revisions[key] = revision

    def _take_over(self, key: str, value: bytes | None) -> bool:
        if key == CONFIG:
            self._settings = Settings() if value is None else decode(key, value, Settings)
        elif key == NEXT:
            self._next = 1 if value is None else decode(key, value, int)
        elif key.startswith(NUMBERS):
            self._apply_number(int(key.removeprefix(NUMBERS)), key, value)
        elif key.startswith(HASHES):
            bytes.fromhex(key.removeprefix(HASHES))  # raises ValueError for other keys
            if value is None:
                self._hashes.pop(key, None)
            else:
                self._hashes[key] = decode(key, value, int)
        elif key.startswith(SUBJECTS):
            self._apply_subject(subject_of_key(key.removeprefix(SUBJECTS)), key, value)
        else:
            return False
        return True

    def _apply_number(self, number: int, key: str, value: bytes | None) -> None:
        record = None if value is None else decode(key, value, NumberRecord)
        old = self._numbers.get(number)
        self._numbers.put(number, value)
        for reference in old.references if old is not None else ():
            self._referrers[reference.number].discard(number)
        self._guids = None
        if record is not None:
            for reference in record.references:
                self._referrers.setdefault(reference.number, set()).add(number)

    def _apply_subject(self, name: str, key: str, value: bytes | None) -> None:
        record = None if value is None else decode(key, value, SubjectRecord)
        old = self._subjects.pop(name, None)
        if old is not None:
            self._subject_numbers.pop(old.number, None)
            for version in old.versions:
                self._carriers.discard(version.number, name)
        if record is None:
            if old is not None:
                del self._names[bisect_left(self._names, name)]
            return
        if old is None:
            insort(self._names, name)
        self._subjects[name] = record
        if record.number:
            self._subject_numbers[record.number] = name
        for version in record.versions:
            self._carriers.add(version.number, name)

    # -----------------------------------------------------------------------------------------------------------------
    # Reading

    def subjects(self, prefix: str = "", *, deleted: bool = False, only_deleted: bool = False) -> list[str]:
        """Return the sorted names of the subjects with a live version.

        Args:
            prefix: Return only names that begin with it.
            deleted: Include subjects whose versions are all deleted, but not permanently.
            only_deleted: Return only such subjects.
        """
        found = []
        for index in range(bisect_left(self._names, prefix), len(self._names)):
            name = self._names[index]
            if not name.startswith(prefix):
                break
            versions = self._subjects[name].versions
            is_live = any(not version.is_deleted for version in versions)
            if versions and (not is_live if only_deleted else is_live or deleted):
                found.append(name)
        return found

    def subjects_of(self, namespace: str) -> int:
        """Return how many subjects the quota of a namespace counts: those that are not deleted permanently."""
        return len(self.subjects(f"/{namespace}/", deleted=True))

    def versions(self, subject: str, *, deleted: bool = False, only_deleted: bool = False) -> list[int]:
        """Return the sorted version numbers of a subject.

        Raises:
            SubjectNotFoundError: the subject has no such version.
        """
        found = [
            version.version
            for version in self._record(subject).versions
            if (version.is_deleted if only_deleted else deleted or not version.is_deleted)
        ]
        if not found:
            raise _no_subject(subject)
        return found

    def entry(self, subject: str, version: int = LATEST, *, deleted: bool = False) -> Entry:
        """Return a version of a subject.

        Args:
            subject: Its name.
            version: From 1, or :data:`LATEST`.
            deleted: Whether to include deleted versions.

        Raises:
            SubjectNotFoundError: the subject has no versions.
            SchemaVersionNotFoundError: the subject has no such version.
        """
        record = self._record(subject)
        counting = [each for each in record.versions if deleted or not each.is_deleted]
        if not counting:
            raise _no_subject(subject)
        if version == LATEST:
            return self._entry(subject, record, counting[-1])
        for each in counting:
            if each.version == version:
                return self._entry(subject, record, each)
        known = ", ".join(str(each.version) for each in counting[-_MOST_LISTED:])
        raise SchemaVersionNotFoundError(
            f"subject {subject!r} has no version {version}; its latest versions are: {known}"
        )

    def entries(self, subject: str, *, deleted: bool = False) -> list[Entry]:
        """Return the versions of a subject, in order.

        Raises:
            SubjectNotFoundError: the subject has no versions.
        """
        record = self._record(subject)
        found = [self._entry(subject, record, each) for each in record.versions if deleted or not each.is_deleted]
        if not found:
            raise _no_subject(subject)
        return found

    def by_subject_number(self, number: int, version: int = LATEST) -> Entry:
        """Return a version, live or deleted, of the subject that upstream's clients name by a number.

        :data:`LATEST` is the latest live version.

        Raises:
            SchemaNotFoundError: no subject has this number.
            SubjectNotFoundError: the subject has no versions.
            SchemaVersionNotFoundError: the subject has no such version.
        """
        subject = self._subject_numbers.get(number)
        if subject is None:
            raise SchemaNotFoundError(f"no subject has the number {number}")
        return self.entry(subject, version, deleted=version != LATEST)

    def schema(self, number: int) -> NumberRecord:
        """Return a schema by its number, including schemas that no subject has.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
        """
        record = self._numbers.get(number)
        if record is None:
            raise SchemaNotFoundError(f"there is no schema with the number {number}")
        return record

    def known(self, numbers: Iterable[int]) -> list[int]:
        """Return those numbers that are numbers of schemas, sorted; fast also for very many that are not."""
        return sorted(self._numbers.keys() & set(numbers))

    def number_of_guid(self, guid: str) -> int:
        """Return the number of the schema with a GUID.

        Raises:
            SchemaNotFoundError: there is no such schema.
        """
        if self._guids is None:
            self._guids = {_guid(record.hash): number for number, record in self._numbers.items()}
        number = self._guids.get(guid.lower())
        if number is None:
            raise SchemaNotFoundError(f"there is no schema with the GUID {guid}")
        return number

    def guid(self, number: int) -> str:
        """Return the GUID of a schema; it is the same in all registries.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
        """
        return _guid(self.schema(number).hash)

    def source(self, number: int) -> Source:
        """Return a schema and all schemas that are needed to parse it.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
        """
        record = self.schema(number)
        return Source(record.type, record.text, self._needs(record.references), record.message)

    def decodable(self, number: int) -> Source:
        """Return :meth:`source` in the form with which payloads are decoded: of protobuf the descriptor.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
        """
        record, source = self.schema(number), self.source(number)
        if not record.descriptor:
            return source
        return msgspec.structs.replace(source, text=base64.b64encode(record.descriptor).decode())

    def carriers(self, number: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """Return the sorted subjects and versions that have a schema."""
        return [
            (name, version.version)
            for name in sorted(self._carriers.of(number))
            for version in self._subjects[name].versions
            if version.number == number and (deleted or not version.is_deleted)
        ]

    def carrying(self, number: int) -> dict[str, SubjectRecord]:
        """Return the subjects that have a schema, also in a deleted version, by name and in order."""
        return {name: self._subjects[name] for name in sorted(self._carriers.of(number))}

    def writers(self, number: int) -> list[str]:
        """Return the sorted subjects that have a schema, or had it in a version that is deleted, also permanently.

        Messages of topics with one of these subjects may have its number. This looks at all subjects.
        """
        former = {name for name, record in self._subjects.items() if number in record.former}
        return sorted(former.union(self._carriers.of(number)))

    def owners(self, number: int) -> list[str]:
        """Return the sorted subjects that a number stands for: the one with it, or those with the schema, also deleted.

        An empty name stands for a schema that no subject has any more. An empty list: the number is not assigned.
        """
        subject = self._subject_numbers.get(number)
        if subject is not None:
            return [subject]
        return sorted(self._carriers.of(number)) or ([""] if number in self._numbers else [])

    def referrers(self, subject: str, version: int = LATEST) -> list[int]:
        """Return the sorted numbers of the schemas that refer to a version and that a subject has.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: as in :meth:`entry`.
        """
        entry = self.entry(subject, version, deleted=True)
        return self._referring(subject, entry.version, deleted=False)

    def numbers_of(self, subject: str) -> frozenset[int]:
        """Return the numbers of all schemas of a subject that batches may name, including those of deleted versions."""
        record = self._subjects.get(subject)
        return frozenset() if record is None else frozenset(version.number for version in record.versions)

    def by_metadata(self, subject: str, wanted: Mapping[str, str]) -> Entry:
        """Return the latest live version whose metadata contain all of the given pairs.

        Raises:
            SubjectNotFoundError: the subject has no live version.
            SchemaVersionNotFoundError: no live version has these pairs.
        """
        for version in reversed(self.versions(subject)):
            entry = self.entry(subject, version)
            if wanted.items() <= entry.schema.metadata.items():
                return entry
        listed = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise SchemaVersionNotFoundError(f"no live version of subject {subject!r} has the metadata {listed}")

    @property
    def latest_number(self) -> int:
        """The last assigned number; 0 if none was assigned."""
        return self._next - 1

    def level(self, subject: str) -> Level:
        """Return the effective compatibility level of a subject, which need not exist."""
        own = self._subjects.get(subject, _NEW).level
        return own or self._settings.level or Level.BACKWARD

    def policy(self, subject: str) -> Policy:
        """Return the effective compatibility policy of a subject."""
        own = self._subjects.get(subject, _NEW).policy
        return own or self._settings.policy or Policy.STRICT

    def mode(self, subject: str) -> Mode:
        """Return the effective mode of a subject."""
        if self._settings.mode is Mode.READONLY_OVERRIDE:
            return Mode.READONLY_OVERRIDE
        own = self._subjects.get(subject, _NEW).mode
        return own or self._settings.mode or Mode.READWRITE

    def own_settings(self, subject: str | None) -> Settings:
        """Return the settings of a subject itself, without inherited ones; None: the settings of the registry."""
        if subject is None:
            return self._settings
        record = self._subjects.get(subject, _NEW)
        return Settings(record.level, record.policy, record.mode)

    # -----------------------------------------------------------------------------------------------------------------
    # Conversion between upstream's ids and those in the header of a batch

    def to_number(self, subject_number: int, version: int) -> int | None:
        """Return the number of the schema that upstream's clients name by subject and version; None: no such schema."""
        record = self._subjects.get(self._subject_numbers.get(subject_number, ""), _NEW)
        return next((each.number for each in record.versions if each.version == version), None)

    def from_number(self, number: int, subject: str) -> tuple[int, int] | None:
        """Return the subject number and version by which upstream's clients name a schema; None: no subject has it.

        The given subject is preferred; if it does not have the schema, the first one that does is used.
        """
        carriers = self._carriers.of(number)
        if not carriers:
            return None
        name = subject if subject in carriers else min(carriers)
        record = self._subjects[name]
        # the latest one: the same schema may have been deleted and registered again
        version = next(each.version for each in reversed(record.versions) if each.number == number)
        return record.number, version

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
        record = self._subjects.get(proposal.subject, _NEW)
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
        number = self._hashes.get(_hash_key(content_hash(proposal, self._resolve(proposal), finding.canonical)))
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
        record = self._subjects.get(subject, _NEW)
        references = self._resolve(proposal)
        digest = content_hash(proposal, references, finding.canonical)
        known = self._hashes.get(_hash_key(digest))
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
        record = self._subjects.get(subject, _NEW)
        version = record.next_version if version is None else version
        if not 1 <= version <= _LARGEST_VERSION:
            raise InvalidSchemaNumberError(f"version {version} is out of range: use 1 to {_LARGEST_VERSION}")
        if any(each.version == version for each in record.versions):
            raise InvalidSchemaNumberError(f"subject {subject!r} has version {version} already; choose another one")
        self._check_room(subject, record)
        known = self._hashes.get(_hash_key(digest))
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
        if following > _LARGEST_NUMBER:
            raise LimitExceededError(f"the registry has assigned all {_LARGEST_NUMBER} numbers of schemas and subjects")

        entry = VersionRecord(version, number, *notes)
        is_first = not any(not each.is_deleted for each in record.versions)
        changed = msgspec.structs.replace(
            record,
            number=subject_number,
            versions=tuple(sorted((*record.versions, entry), key=lambda each: each.version)),
            next_version=max(record.next_version, version + 1),
            policy=(record.policy or born) if is_first else record.policy,
        )
        puts = [(SUBJECTS + key_of(subject), encode(changed)), (_hash_key(digest), encode(number))]
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
        if not 1 <= number < _LARGEST_NUMBER:
            raise InvalidSchemaNumberError(f"schema number {number} is out of range: use 1 to {_LARGEST_NUMBER - 1}")
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
        live = [each for each in self._subjects.get(subject, _NEW).versions if not each.is_deleted]
        if level is Level.NONE or not live:
            return ()
        return tuple(reversed(live)) if level.is_transitive else (live[-1],)

    # -----------------------------------------------------------------------------------------------------------------
    # References

    def _resolve(self, proposal: Proposal) -> tuple[StoredReference, ...]:
        if len(proposal.references) > self._limits.max_schema_references:
            raise self._too_many()
        found = []
        for each in proposal.references:
            try:
                entry = self.entry(each.subject, each.version)
            except (SubjectNotFoundError, SchemaVersionNotFoundError) as error:
                raise InvalidSchemaError(f"reference {each.name!r} has no target: {error}") from error
            if entry.schema.type is not proposal.type:
                raise InvalidSchemaError(
                    f"reference {each.name!r} names version {entry.version.version} of {each.subject!r}, which has type"
                    f" {entry.schema.type.value} instead of {proposal.type.value}"
                )
            found.append(StoredReference(each.name, each.subject, entry.version.version, entry.number))
        names = [each.name for each in found]
        for name in names:
            if names.count(name) > 1:
                raise InvalidSchemaError(f"reference {name!r} is given twice")
        return tuple(found)

    def _needs(self, references: tuple[StoredReference, ...]) -> tuple[Needed, ...]:
        """Return all directly and indirectly referenced schemas, each before the schemas that refer to it."""
        found: dict[tuple[str, int], Needed] = {}
        size = 0
        # Depth first, without recursion: a schema is added after all schemas that it refers to.
        waiting: list[tuple[StoredReference, bool]] = [(each, False) for each in reversed(references)]
        while waiting:
            reference, is_ready = waiting.pop()
            key = (reference.name, reference.number)
            if key in found:
                continue
            record = self.schema(reference.number)
            if not is_ready:
                waiting.append((reference, True))
                waiting += [(each, False) for each in reversed(record.references)]
                continue
            found[key] = Needed(reference.name, record.text)
            size += len(record.text.encode())
            if len(found) > self._limits.max_schema_references:
                raise self._too_many()
            if size > self._limits.max_schema_references_bytes:
                raise SchemaTooLargeError(
                    "the directly and indirectly referenced schemas have more bytes in total than"
                    f" max_schema_references_bytes = {self._limits.max_schema_references_bytes}"
                )
        names = [needed.name for needed in found.values()]
        for name in names:
            if names.count(name) > 1:
                raise InvalidSchemaError(
                    f"reference {name!r} names two schemas: a referenced schema refers to another version of it"
                )
        return tuple(found.values())

    def _too_many(self) -> SchemaTooLargeError:
        return SchemaTooLargeError(
            "the schema refers, directly or indirectly, to more schemas than max_schema_references ="
            f" {self._limits.max_schema_references}"
        )

    def _referring(self, subject: str, version: VersionRecord, *, deleted: bool) -> list[int]:
        """Return the schemas that refer to a version and that a subject has in a live version, or in any version."""
        return sorted(
            number
            for number in self._referrers.get(version.number, ())
            if any(
                (each.subject, each.version) == (subject, version.version) for each in self.schema(number).references
            )
            and self.carriers(number, deleted=deleted)
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Deleting

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> tuple[int, Change]:
        """Prepare the deletion of a version: return its number, and the change that deletes it.

        Args:
            subject: Its name.
            version: From 1, or :data:`LATEST`.
            permanent: Remove the record of a deleted version. Its number is never used again, and the schema remains.

        Raises:
            SubjectNotFoundError, SchemaVersionNotFoundError: there is no such version.
            SchemaVersionDeletedError: it is deleted already.
            SchemaNotDeletedError: permanent deletion of a live version.
            SchemaReferencedError: other schemas refer to it.
            SchemaModeError: the mode of the subject does not permit it.
        """
        self._check_writable(subject)
        entry = self.entry(subject, version, deleted=version != LATEST)
        found = entry.version
        if permanent and not found.is_deleted:
            raise SchemaNotDeletedError(
                f"version {found.version} of subject {subject!r} is live; delete it first, then permanently"
            )
        if not permanent and found.is_deleted:
            raise SchemaVersionDeletedError(
                f"version {found.version} of subject {subject!r} is deleted already; delete it permanently to remove it"
            )
        return found.version, self._deletion(subject, {found.version}, permanent=permanent)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[list[int], Change]:
        """Prepare the deletion of a subject: return its deleted versions, and the change that deletes them.

        Raises:
            SubjectNotFoundError: there is no such subject.
            SubjectDeletedError: all its versions are deleted already.
            SchemaNotDeletedError: permanent deletion of a subject with live versions.
            SchemaReferencedError: other schemas refer to one of its versions.
            SchemaModeError: the mode of the subject does not permit it.
        """
        self._check_writable(subject)
        everything = self.versions(subject, deleted=True)
        live = [each.version for each in self._record(subject).versions if not each.is_deleted]
        if permanent and live:
            raise SchemaNotDeletedError(f"subject {subject!r} has live versions; delete it first, then permanently")
        if not permanent and not live:
            raise SubjectDeletedError(
                f"subject {subject!r} is deleted already; delete it permanently to remove its versions"
            )
        gone = everything if permanent else live
        return gone, self._deletion(subject, set(gone), permanent=permanent)

    def _deletion(self, subject: str, gone: set[int], *, permanent: bool) -> Change:
        record = self._record(subject)
        for version in record.versions:
            if version.version in gone:
                # A deleted version can still be read, so its references must not be deleted permanently either.
                referring = self._referring(subject, version, deleted=permanent)
                if referring:
                    raise self._referenced(f"version {version.version} of subject {subject!r}", referring)
        former = record.former
        if permanent:
            versions = tuple(each for each in record.versions if each.version not in gone)
            lost = (each.number for each in record.versions if each.version in gone)
            former = tuple(dict.fromkeys((*former, *lost)))[-_MOST_FORMER:]
        else:
            versions = tuple(
                msgspec.structs.replace(each, is_deleted=True) if each.version in gone else each
                for each in record.versions
            )
        changed = msgspec.structs.replace(record, versions=versions, former=former)
        if all(each.is_deleted for each in versions):
            # A subject that is created again starts with the settings of the registry, as in Confluent's registry.
            changed = msgspec.structs.replace(changed, level=None, policy=None, mode=None)
        key = SUBJECTS + key_of(subject)
        return self._change([key, CONFIG, NEXT], [(key, encode(changed))])

    def purge(self, number: int) -> Change:
        """Return the change that removes an unused schema. Batches with its number can no longer be decoded.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
            SchemaReferencedError: other schemas refer to it.
            FailedPreconditionError: a live or deleted version of a subject has the schema.
            SchemaModeError: the mode of the registry does not permit it.
        """
        record = self.schema(number)
        if self._settings.mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            raise SchemaModeError(f"the registry is in mode {self._settings.mode.name}; schemas cannot be purged")
        carriers = self.carriers(number, deleted=True)
        if carriers:
            listed = ", ".join(f"version {version} of {name!r}" for name, version in carriers[:_MOST_LISTED])
            raise FailedPreconditionError(f"schema {number} is used by {listed}; delete that permanently first")
        referring = sorted(self._referrers.get(number, ()))
        if referring:
            raise self._referenced(f"schema {number}", referring)
        keys = [f"{NUMBERS}{number}", _hash_key(record.hash)]
        return self._change([*keys, NEXT, CONFIG], [], keys)

    # -----------------------------------------------------------------------------------------------------------------
    # Restoring

    def restored(
        self, numbers: Mapping[int, NumberRecord], subjects: Mapping[str, SubjectRecord], following: int
    ) -> Change:
        """Return the change that brings back schemas with their numbers, and subjects; modes do not forbid it.

        Schemas and subjects that exist stay as they are. A subject whose number is taken gets a new one.

        Args:
            numbers: Schemas by number.
            subjects: By name; their schemas exist, or are among ``numbers``.
            following: No later schema or subject gets a number below this one.

        Raises:
            InvalidSchemaNumberError: a number belongs to another schema, or to a subject.
        """
        following = max(following, self._next)
        puts: list[tuple[str, bytes]] = []
        for number, record in numbers.items():
            known = self._numbers.get(number)
            if known is not None and known.hash == record.hash:
                continue
            following = max(following, self._imported(number) + 1)
            puts.append((f"{NUMBERS}{number}", encode(record)))
            if _hash_key(record.hash) not in self._hashes:
                puts.append((_hash_key(record.hash), encode(number)))
        for name, subject in subjects.items():
            if name in self._subjects:
                continue
            owner = self._subject_numbers.get(subject.number)
            if owner is not None or subject.number in self._numbers:
                subject = msgspec.structs.replace(subject, number=following)
                following += 1
            puts.append((SUBJECTS + key_of(name), encode(subject)))
        if following != self._next:
            puts.append((NEXT, encode(following)))
        return self._change([*(key for key, _ in puts), NEXT], puts)

    @staticmethod
    def _referenced(what: str, referring: list[int]) -> SchemaReferencedError:
        listed = ", ".join(str(number) for number in referring[:_MOST_LISTED]) + (
            " …" if len(referring) > _MOST_LISTED else ""
        )
        return SchemaReferencedError(f"{what} is referenced by schemas with the numbers {listed}; delete these first")

    # -----------------------------------------------------------------------------------------------------------------
    # Settings

    def set_level(self, subject: str | None, level: Level | None) -> Change:
        """Return the change that sets or (None) removes the level of a subject, or of the registry.

        Raises:
            InvalidNameError: the name is not valid for a subject.
            SchemaSettingNotFoundError: there is no level to remove.
            SchemaModeError: the mode of the subject does not permit it.
            LimitExceededError: there are too many subjects.
        """
        self._check_writable(subject)
        if level is None and self.own_settings(subject).level is None:
            raise _not_set("compatibility level", subject)
        return self._set(subject, level=level)

    def set_policy(self, subject: str | None, policy: Policy | None) -> Change:
        """Return the change that sets or (None) removes the policy of a subject, or of the registry.

        Raises:
            InvalidNameError, SchemaSettingNotFoundError, SchemaModeError, LimitExceededError: as :meth:`set_level`.
        """
        self._check_writable(subject)
        if policy is None and self.own_settings(subject).policy is None:
            raise _not_set("compatibility policy", subject)
        return self._set(subject, policy=policy)

    def set_compatibility(self, subject: str | None, level: Level | None, policy: Policy | None) -> Change:
        """Return the change that sets level and policy of a subject, or of the registry; None leaves the present one.

        Raises:
            InvalidNameError, SchemaModeError, LimitExceededError: as :meth:`set_level`.
        """
        self._check_writable(subject)
        own = self.own_settings(subject)
        return self._set(subject, level=level or own.level, policy=policy or own.policy)

    def set_mode(self, subject: str | None, mode: Mode | None, *, force: bool = False) -> Change:
        """Return the change that sets or (None) removes the mode of a subject, or of the registry.

        Args:
            subject: Its name; None: the registry.
            mode: The new mode; None removes the present one.
            force: Change to IMPORT although there are live versions.

        Raises:
            SchemaModeError: IMPORT without force, and there are live versions.
            InvalidArgumentError: READONLY_OVERRIDE is a mode of the registry only.
            InvalidNameError, SchemaSettingNotFoundError, LimitExceededError: as :meth:`set_level`.
        """
        own = self.own_settings(subject)
        if mode is None and own.mode is None:
            raise _not_set("mode", subject)
        if mode is Mode.READONLY_OVERRIDE and subject is not None:
            raise InvalidArgumentError("READONLY_OVERRIDE is a mode of the whole registry, not of a subject")
        if mode is Mode.IMPORT and own.mode is not Mode.IMPORT and not force:
            names = self.subjects() if subject is None else [subject]
            taken = [name for name in names if any(not each.is_deleted for each in self._record(name).versions)]
            if taken:
                listed = ", ".join(repr(name) for name in taken[:_MOST_LISTED])
                raise SchemaModeError(
                    f"mode IMPORT requires subjects without versions, but there are {listed}; delete them, or use force"
                )
        return self._set(subject, mode=mode)

    def _set(self, subject: str | None, **changed: Level | Policy | Mode | None) -> Change:
        if subject is None:
            settings = msgspec.structs.replace(self._settings, **changed)
            return self._change([CONFIG], [(CONFIG, encode(settings))])
        validate_subject(subject, self._limits)
        self._check_subjects(subject)
        key = SUBJECTS + key_of(subject)
        record = msgspec.structs.replace(self._subjects.get(subject, _NEW), **changed)
        return self._change([key, CONFIG], [(key, encode(record))])

    # -----------------------------------------------------------------------------------------------------------------

    def _check_writable(self, subject: str | None) -> None:
        mode = self.mode(subject) if subject is not None else self._settings.mode
        if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            what = "the registry" if subject is None else f"subject {subject!r}"
            raise SchemaModeError(f"{what} is in mode {mode.name}: only its mode can be changed")

    def _record(self, subject: str) -> SubjectRecord:
        return self._subjects.get(subject, _NEW)

    def _entry(self, subject: str, record: SubjectRecord, version: VersionRecord) -> Entry:
        return Entry(subject, record.number, version, self.schema(version.number))

    def _change(self, touched: list[str], puts: list[tuple[str, bytes]], deletes: list[str] | None = None) -> Change:
        conditions = tuple((key, self._revisions.get(key, 0)) for key in dict.fromkeys(touched))
        return Change(conditions, tuple(puts), tuple(deletes or ()))

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all live versions of all subjects, in order."""
        for name in self.subjects():
            record = self._subjects[name]
            for version in record.versions:
                if not version.is_deleted:
                    yield self._entry(name, record, version)


_NEW: Final = SubjectRecord()


def _guid(digest: bytes) -> str:
    return str(uuid.uuid5(_GUIDS, digest.hex()))


def _no_subject(subject: str) -> SubjectNotFoundError:
    return SubjectNotFoundError(f"subject {subject!r} does not exist, or all its versions are deleted")


def _not_set(what: str, subject: str | None) -> SchemaSettingNotFoundError:
    return SchemaSettingNotFoundError(
        f"{'the registry' if subject is None else f'subject {subject!r}'} has no {what} of its own"
    )
