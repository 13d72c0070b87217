"""The registry as it is read: built from metadata records, it answers queries. The base of the book."""

from __future__ import annotations

import base64
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from danube.model.errors import (
    DataLossError,
    InvalidSchemaError,
    SchemaModeError,
    SchemaNotFoundError,
    SchemaTooLargeError,
    SchemaVersionNotFoundError,
    SubjectNotFoundError,
)
from danube.schema.entries import (
    LATEST,
    MOST_LISTED,
    NEW_SUBJECT,
    Change,
    Entry,
    Proposal,
    guid_of,
    no_subject,
)
from danube.schema.indexes import Carriers, Schemas
from danube.schema.kinds import Needed, Source
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits
from danube.schema.modes import Level, Mode, Policy
from danube.schema.records import (
    CONFIG,
    HASHES,
    NEXT,
    NUMBERS,
    SUBJECTS,
    NumberRecord,
    Settings,
    StoredReference,
    SubjectRecord,
    VersionRecord,
    decode,
)
from danube.schema.subjects import subject_of_key

__all__ = ["Reading"]


class Reading:
    """All subjects and schemas of a registry, as they are read; see :class:`danube.schema.book.Book`."""

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
            raise no_subject(subject)
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
            raise no_subject(subject)
        if version == LATEST:
            return self._entry(subject, record, counting[-1])
        for each in counting:
            if each.version == version:
                return self._entry(subject, record, each)
        known = ", ".join(str(each.version) for each in counting[-MOST_LISTED:])
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
            raise no_subject(subject)
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
            self._guids = {guid_of(record.hash): number for number, record in self._numbers.items()}
        number = self._guids.get(guid.lower())
        if number is None:
            raise SchemaNotFoundError(f"there is no schema with the GUID {guid}")
        return number

    def guid(self, number: int) -> str:
        """Return the GUID of a schema; it is the same in all registries.

        Raises:
            SchemaNotFoundError: there is no schema with this number.
        """
        return guid_of(self.schema(number).hash)

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
        own = self._subjects.get(subject, NEW_SUBJECT).level
        return own or self._settings.level or Level.BACKWARD

    def policy(self, subject: str) -> Policy:
        """Return the effective compatibility policy of a subject."""
        own = self._subjects.get(subject, NEW_SUBJECT).policy
        return own or self._settings.policy or Policy.STRICT

    def mode(self, subject: str) -> Mode:
        """Return the effective mode of a subject."""
        if self._settings.mode is Mode.READONLY_OVERRIDE:
            return Mode.READONLY_OVERRIDE
        own = self._subjects.get(subject, NEW_SUBJECT).mode
        return own or self._settings.mode or Mode.READWRITE

    def own_settings(self, subject: str | None) -> Settings:
        """Return the settings of a subject itself, without inherited ones; None: the settings of the registry."""
        if subject is None:
            return self._settings
        record = self._subjects.get(subject, NEW_SUBJECT)
        return Settings(record.level, record.policy, record.mode)

    # -----------------------------------------------------------------------------------------------------------------
    # Conversion between upstream's ids and those in the header of a batch

    def to_number(self, subject_number: int, version: int) -> int | None:
        """Return the number of the schema that upstream's clients name by subject and version; None: no such schema."""
        record = self._subjects.get(self._subject_numbers.get(subject_number, ""), NEW_SUBJECT)
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

    def _check_writable(self, subject: str | None) -> None:
        mode = self.mode(subject) if subject is not None else self._settings.mode
        if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            what = "the registry" if subject is None else f"subject {subject!r}"
            raise SchemaModeError(f"{what} is in mode {mode.name}: only its mode can be changed")

    def _record(self, subject: str) -> SubjectRecord:
        return self._subjects.get(subject, NEW_SUBJECT)

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
