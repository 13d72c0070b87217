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

from collections.abc import Mapping

import msgspec

from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SchemaModeError,
    SchemaNotDeletedError,
    SchemaReferencedError,
    SchemaVersionDeletedError,
    SubjectDeletedError,
)
from danube.schema.entries import (
    LATEST,
    MOST_FORMER,
    MOST_LISTED,
    NEW_SUBJECT,
    Change,
    Entry,
    Proposal,
    Registered,
    content_hash,
    hash_key,
    not_set,
)
from danube.schema.modes import Level, Mode, Policy
from danube.schema.records import (
    CONFIG,
    NEXT,
    NUMBERS,
    SUBJECTS,
    NumberRecord,
    SubjectRecord,
    encode,
)
from danube.schema.registering import Registering
from danube.schema.subjects import key_of, validate_subject

__all__ = ["LATEST", "Book", "Change", "Entry", "Proposal", "Registered", "content_hash"]


class Book(Registering):
    """All subjects and schemas of a registry. Not thread-safe."""

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
            former = tuple(dict.fromkeys((*former, *lost)))[-MOST_FORMER:]
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
            listed = ", ".join(f"version {version} of {name!r}" for name, version in carriers[:MOST_LISTED])
            raise FailedPreconditionError(f"schema {number} is used by {listed}; delete that permanently first")
        referring = sorted(self._referrers.get(number, ()))
        if referring:
            raise self._referenced(f"schema {number}", referring)
        keys = [f"{NUMBERS}{number}", hash_key(record.hash)]
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
            if hash_key(record.hash) not in self._hashes:
                puts.append((hash_key(record.hash), encode(number)))
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
        listed = ", ".join(str(number) for number in referring[:MOST_LISTED]) + (
            " …" if len(referring) > MOST_LISTED else ""
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
            raise not_set("compatibility level", subject)
        return self._set(subject, level=level)

    def set_policy(self, subject: str | None, policy: Policy | None) -> Change:
        """Return the change that sets or (None) removes the policy of a subject, or of the registry.

        Raises:
            InvalidNameError, SchemaSettingNotFoundError, SchemaModeError, LimitExceededError: as :meth:`set_level`.
        """
        self._check_writable(subject)
        if policy is None and self.own_settings(subject).policy is None:
            raise not_set("compatibility policy", subject)
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
            raise not_set("mode", subject)
        if mode is Mode.READONLY_OVERRIDE and subject is not None:
            raise InvalidArgumentError("READONLY_OVERRIDE is a mode of the whole registry, not of a subject")
        if mode is Mode.IMPORT and own.mode is not Mode.IMPORT and not force:
            names = self.subjects() if subject is None else [subject]
            taken = [name for name in names if any(not each.is_deleted for each in self._record(name).versions)]
            if taken:
                listed = ", ".join(repr(name) for name in taken[:MOST_LISTED])
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
        record = msgspec.structs.replace(self._subjects.get(subject, NEW_SUBJECT), **changed)
        return self._change([key, CONFIG], [(key, encode(record))])
