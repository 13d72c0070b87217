"""The book against a model of dictionaries, with a second broker that is behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from schema_helpers import LIMITS, Registry, avro, record, text_of

from danube.model.errors import (
    DanubeError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    MetadataConflictError,
    SchemaModeError,
    SchemaNotDeletedError,
    SchemaReferencedError,
    SchemaVersionDeletedError,
    SchemaVersionNotFoundError,
    SubjectDeletedError,
    SubjectNotFoundError,
)
from danube.schema import Book, Change, Level, Mode, Policy, Proposal, Reference, SchemaType, examine

CONTENTS: dict[str, Any] = {
    "a": record(("a", "int")),
    "long": record(("a", "long")),
    "ab": record(("a", "int"), ("b", "int", 0)),
    "text": record(("a", "string")),
    "user": record(("id", "int"), name="User"),
    "order": record(("user", "User"), name="Order"),
}
REFERS = {"order": "users"}
"""Contents that refer to version 1 of a subject, under the name User."""
SUBJECTS = ("users", "x", "y/z")
LEVELS = (Level.NONE, Level.BACKWARD, Level.FULL, Level.FORWARD_TRANSITIVE)
PARSED = {name: avro(schema, *([CONTENTS["user"]] if name in REFERS else [])) for name, schema in CONTENTS.items()}
READS = {
    (reader, writer): not PARSED[reader].refuses(PARSED[writer], Policy.STRICT)
    for reader in CONTENTS
    for writer in CONTENTS
}


@dataclass
class Subject:
    versions: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """By version: content, and whether it is deleted."""
    following: int = 1
    level: Level | None = None
    mode: Mode | None = None

    def live(self) -> list[int]:
        return [version for version, (_, is_deleted) in self.versions.items() if not is_deleted]

    def forget_settings(self) -> None:
        if not self.live():
            self.level = self.mode = None


def proposal(subject: str, content: str) -> Proposal:
    references = (Reference("User", REFERS[content], 1),) if content in REFERS else ()
    text = text_of(CONTENTS[content])
    return Proposal(subject=subject, type=SchemaType.AVRO, text=text, references=references)


class BookMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.subjects: dict[str, Subject] = {}
        self.numbers: dict[str, int] = {}
        self.given: set[int] = set()

    # -- what should happen

    def referring(self, name: str, version: int, *, deleted: bool) -> bool:
        """Whether a version, live or also deleted, has a content that refers to this one."""
        return any(
            REFERS.get(content) == name and version == 1 and (deleted or not is_deleted)
            for subject in self.subjects.values()
            for content, is_deleted in subject.versions.values()
        )

    def expect_register(self, name: str, content: str) -> type[DanubeError] | tuple[int, bool]:
        users = self.subjects.get("users", Subject())
        if content in REFERS and (1 not in users.live()):
            return InvalidSchemaError
        if content in REFERS and users.versions[1][0] != "user":
            return InvalidSchemaError  # that is no User
        subject = self.subjects.get(name, Subject())
        for version in reversed(subject.live()):
            if subject.versions[version][0] == content:
                return version, False
        if subject.mode is Mode.READONLY:
            return SchemaModeError
        level = subject.level or Level.BACKWARD
        live = subject.live()
        others = [] if level is Level.NONE else live if level.is_transitive else live[-1:]
        for version in others:
            old = subject.versions[version][0]
            if (level.new_reads_old and not READS[content, old]) or (level.old_reads_new and not READS[old, content]):
                return IncompatibleSchemaError
        return subject.following, True

    def expect_delete(self, name: str, version: int, *, permanent: bool) -> type[DanubeError] | None:
        subject = self.subjects.get(name, Subject())
        if subject.mode is Mode.READONLY:
            return SchemaModeError
        if not subject.versions:
            return SubjectNotFoundError
        if version not in subject.versions:
            return SchemaVersionNotFoundError
        is_deleted = subject.versions[version][1]
        if permanent and not is_deleted:
            return SchemaNotDeletedError
        if is_deleted and not permanent:
            return SchemaVersionDeletedError
        return SchemaReferencedError if self.referring(name, version, deleted=permanent) else None

    # -- doing it

    def attempt(
        self, operation: Callable[[Book], tuple[Any, Change]], expected: type[DanubeError] | None, late: bool
    ) -> Any:
        """Return the answer of an operation that went through; None if it did not."""
        answer, change = None, Change()
        if expected is None:
            answer, change = operation(self.registry.book)
        else:
            with pytest.raises(expected) as caught:
                operation(self.registry.book)
            assert caught.type is expected
        if late:
            try:
                told, change = operation(self.registry.late)
            except DanubeError:
                return None  # it is behind, and may be wrong about that
            if change.is_empty:
                return None
            try:
                self.registry.commit(change)
            except MetadataConflictError:
                return None
            assert told == answer, "what goes through is what the book that is not behind would do"
        elif answer is not None:
            self.registry.commit(change)
        return answer

    @rule(name=st.sampled_from(SUBJECTS), content=st.sampled_from(tuple(CONTENTS)), late=st.booleans())
    def register(self, name: str, content: str, late: bool) -> None:
        def operation(book: Book) -> tuple[Any, Change]:
            said = proposal(name, content)
            made = book.register(said, examine(book.examination(said), LIMITS), now_ms=1)
            return (made.number, made.version, made.subject_number, made.is_new), made.change

        expected = self.expect_register(name, content)
        answer = self.attempt(operation, expected if isinstance(expected, type) else None, late)
        if answer is None:
            return
        number, version, subject_number, is_new = answer
        assert (version, is_new) == expected
        assert number == self.numbers.setdefault(content, number)
        self.given |= {number, subject_number}
        subject = self.subjects.setdefault(name, Subject())
        if is_new:
            subject.versions[version] = (content, False)
            subject.following = version + 1

    @rule(name=st.sampled_from(SUBJECTS), version=st.integers(1, 4), permanent=st.booleans(), late=st.booleans())
    def delete_version(self, name: str, version: int, permanent: bool, late: bool) -> None:
        expected = self.expect_delete(name, version, permanent=permanent)
        answer = self.attempt(lambda book: book.delete_version(name, version, permanent=permanent), expected, late)
        if answer is None:
            return
        assert answer == version
        subject = self.subjects[name]
        if permanent:
            del subject.versions[version]
        else:
            subject.versions[version] = (subject.versions[version][0], True)
        subject.forget_settings()

    @rule(name=st.sampled_from(SUBJECTS), permanent=st.booleans(), late=st.booleans())
    def delete_subject(self, name: str, permanent: bool, late: bool) -> None:
        subject = self.subjects.get(name, Subject())
        live = subject.live()
        gone = list(subject.versions) if permanent else live
        expected: type[DanubeError] | None = None
        if subject.mode is Mode.READONLY:
            expected = SchemaModeError
        elif not subject.versions:
            expected = SubjectNotFoundError
        elif permanent and live:
            expected = SchemaNotDeletedError
        elif not permanent and not live:
            expected = SubjectDeletedError
        elif any(self.referring(name, version, deleted=permanent) for version in gone):
            expected = SchemaReferencedError
        answer = self.attempt(lambda book: book.delete_subject(name, permanent=permanent), expected, late)
        if answer is None:
            return
        assert answer == gone
        for version in gone:
            if permanent:
                del subject.versions[version]
            else:
                subject.versions[version] = (subject.versions[version][0], True)
        subject.forget_settings()

    @rule(name=st.sampled_from(SUBJECTS), level=st.sampled_from(LEVELS), late=st.booleans())
    def set_level(self, name: str, level: Level, late: bool) -> None:
        is_readonly = self.subjects.get(name, Subject()).mode is Mode.READONLY
        expected = SchemaModeError if is_readonly else None
        if self.attempt(lambda book: (True, book.set_level(name, level)), expected, late):
            self.subjects.setdefault(name, Subject()).level = level

    @rule(name=st.sampled_from(SUBJECTS), mode=st.sampled_from((Mode.READONLY, Mode.READWRITE)), late=st.booleans())
    def set_mode(self, name: str, mode: Mode, late: bool) -> None:
        if self.attempt(lambda book: (True, book.set_mode(name, mode)), None, late):
            self.subjects.setdefault(name, Subject()).mode = mode

    @precondition(lambda self: self.numbers)
    @rule(data=st.data(), late=st.booleans())
    def purge(self, data: st.DataObject, late: bool) -> None:
        content = data.draw(st.sampled_from(sorted(self.numbers)))
        number = self.numbers[content]
        carried = any(held == content for subject in self.subjects.values() for held, _ in subject.versions.values())
        referred = content == "user" and "order" in self.numbers
        try:
            change = (self.registry.late if late else self.registry.book).purge(number)
            self.registry.commit(change)
        except DanubeError:
            assert late or carried or referred
        else:
            assert not carried
            assert not referred
            del self.numbers[content]

    @rule()
    def catch_up(self) -> None:
        self.registry.catch_up()

    @rule()
    def restart(self) -> None:
        self.registry.book = self.registry.listed()

    # -- what is so at all times

    @invariant()
    def the_book_says_what_the_model_says(self) -> None:
        book = self.registry.book
        assert book.subjects() == sorted(name for name, subject in self.subjects.items() if subject.live())
        assert book.subjects(deleted=True) == sorted(n for n, subject in self.subjects.items() if subject.versions)
        for name, subject in self.subjects.items():
            assert book.level(name) == (subject.level or Level.BACKWARD)
            assert book.mode(name) == (subject.mode or Mode.READWRITE)
            for version, (content, is_deleted) in subject.versions.items():
                entry = book.entry(name, version, deleted=True)
                assert entry.version.is_deleted == is_deleted
                assert entry.number == self.numbers[content]
                assert (name, version) in book.carriers(entry.number, deleted=True)
                assert book.source(entry.number).text == text_of(CONTENTS[content]), "with all that it refers to"
            if subject.live():
                assert book.entry(name).version.version == max(subject.live())

    @invariant()
    def numbers_are_given_once(self) -> None:
        assert len(set(self.numbers.values())) == len(self.numbers)
        assert max(self.given, default=0) == self.registry.book.latest_number


TestBookMachine = BookMachine.TestCase
TestBookMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
