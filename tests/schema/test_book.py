"""The book of subjects, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from schema_helpers import Registry, avro, record, text_of

from danube.model.errors import (
    DataLossError,
    FailedPreconditionError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    InvalidNameError,
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
from danube.schema import (
    LATEST,
    Level,
    Mode,
    Policy,
    Proposal,
    Reference,
    SchemaLimits,
    SchemaType,
    Settings,
    Strategy,
    examine,
    parse_level,
    parse_mode,
    parse_policy,
    parse_type,
    subject_for,
)
from danube.schema.subjects import key_of, subject_of_key

A = record(("a", "int"))
A_LONG = record(("a", "long"))
A_STRING = record(("a", "string"))
AB = record(("a", "int"), ("b", "int", 0))
AC = record(("a", "int"), ("c", "int", 0))
USER = record(("id", "int"), name="User")
ORDER = record(("user", "User"), name="Order")
S = "/default/orders-value"


def test_the_first_version_has_numbers_from_one_counter() -> None:
    registry = Registry()
    first = registry.register(S, A)
    assert (first.number, first.version, first.subject_number, first.is_new) == (1, 1, 2, True)
    second = registry.register(S, AB)
    assert (second.number, second.version, second.subject_number) == (3, 2, 2)
    other = registry.register("other", A)
    assert (other.number, other.version, other.subject_number) == (1, 1, 4), "one content, one number"
    assert registry.book.latest_number == 4
    assert registry.book.carriers(1) == [(S, 1), ("other", 1)]
    assert registry.book.numbers_of(S) == {1, 3}
    assert registry.book.numbers_of("none") == frozenset()


def test_a_known_schema_is_not_written_again() -> None:
    registry = Registry()
    registry.register(S, A)
    spaced = '{ "name": "R",  "type": "record", "fields": [{"type": {"type": "int"}, "name": "a"}] }'
    again = registry.register(S, spaced)
    assert (again.number, again.version, again.subject_number, again.is_new) == (1, 1, 2, False)
    assert again.change.is_empty
    entry = registry.book.entry(S)
    assert entry.schema.text == '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}', "as it was"
    assert (entry.schema.name, entry.number, entry.fingerprint) == ("R", 1, f"sha256:{entry.schema.hash.hex()}")


def test_an_old_version_is_known_though_the_latest_would_refuse_it() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.register(S, A_LONG)
    assert registry.register(S, A).version == 1


def test_who_and_when_is_kept() -> None:
    registry = Registry()
    registry.register(S, A, created_by="ada", description="first", tags=("x", "y"), now_ms=99)
    version = registry.book.entry(S).version
    assert (version.created_ms, version.created_by, version.description, version.tags) == (
        99,
        "ada",
        "first",
        ("x", "y"),
    )


@pytest.mark.parametrize(
    ("level", "versions", "new", "told"),
    [
        (Level.NONE, [A, A_STRING], A_LONG, []),
        (Level.BACKWARD, [A], A_LONG, []),
        (Level.BACKWARD, [A_LONG], A, ["BACKWARD with version 1: /fields/a is int, the writer's is long"]),
        (Level.FORWARD, [A_LONG], A, []),
        (Level.FORWARD, [A], A_LONG, ["FORWARD with version 1: /fields/a is int, the writer's is long"]),
        (Level.FULL, [A], AB, []),
        (Level.FULL, [A], A_LONG, ["FORWARD with version 1: /fields/a is int, the writer's is long"]),
        # Only the latest counts, or all do, the latest first.
        (Level.BACKWARD, [A_STRING, A_LONG], record(("a", "double")), []),
        (Level.BACKWARD_TRANSITIVE, [A_STRING, A_LONG], record(("a", "double")),
         ["BACKWARD with version 1: /fields/a is double, the writer's is string"]),
        (Level.FORWARD_TRANSITIVE, [A_STRING, A_LONG], A,
         ["FORWARD with version 1: /fields/a is string, the writer's is int"]),
        (Level.FULL_TRANSITIVE, [A_STRING, A], A_LONG,
         ["FORWARD with version 2: /fields/a is int, the writer's is long",
          "BACKWARD with version 1: /fields/a is long, the writer's is string",
          "FORWARD with version 1: /fields/a is string, the writer's is long"]),
    ],
)  # fmt: skip
def test_levels(level: Level, versions: list[Any], new: Any, told: list[str]) -> None:
    registry = Registry()
    registry.commit(registry.book.set_level(S, Level.NONE))
    for each in versions:
        registry.register(S, each)
    registry.commit(registry.book.set_level(S, level))
    finding = registry.examined(registry.proposal(S, new))
    assert [str(each) for each in finding.objections] == told
    if told:
        with pytest.raises(IncompatibleSchemaError) as caught:
            registry.register(S, new)
        assert str(caught.value).endswith(f"subject '{S}', whose level is {level.title}: {'; '.join(told)}")
    else:
        assert registry.register(S, new).version == len(versions) + 1


def test_another_type_is_incompatible_unless_nothing_is_asked() -> None:
    registry = Registry()
    registry.register(S, A)
    with pytest.raises(
        IncompatibleSchemaError, match="FULL with version 1: the schema has type string, that version avro"
    ):
        registry.register(S, "", SchemaType.STRING)
    registry.commit(registry.book.set_level(S, Level.NONE))
    assert registry.register(S, "", SchemaType.STRING).version == 2


def test_plain_types_are_one_schema_each() -> None:
    registry = Registry()
    numbers = {}
    for kind in (SchemaType.STRING, SchemaType.BYTES, SchemaType.NUMBER):
        numbers[kind] = registry.register(kind.value, "", kind).number
        assert registry.register(kind.value, "whatever", kind).is_new is False
        assert registry.book.entry(kind.value).fingerprint == kind.value
    assert len(set(numbers.values())) == 3


def test_a_schema_is_checked_with_one_version_or_another_level_and_nothing_is_changed() -> None:
    registry = Registry()
    proposal = registry.proposal("new", A)
    assert registry.examined(proposal).objections == ()
    with pytest.raises(SubjectNotFoundError):
        registry.book.examination_with(proposal, 1)
    registry.register(S, A)
    registry.register(S, AB)
    narrow = registry.proposal(S, A_STRING)
    assert [each.version for each in examine(registry.book.examination_with(narrow, 1)).objections] == [1]
    assert registry.examined(narrow, Level.NONE).objections == ()
    with pytest.raises(SchemaVersionNotFoundError, match="no version 9; its latest versions are: 1, 2"):
        registry.book.examination_with(narrow, 9)


def test_a_subject_that_has_changed_meanwhile_is_examined_again() -> None:
    registry = Registry()
    registry.register(S, A)
    proposal = registry.proposal(S, AB)
    finding = registry.examined(proposal)
    registry.commit(registry.book.set_level(S, Level.FULL))
    with pytest.raises(MetadataConflictError, match="has changed while the schema was compared"):
        registry.book.register(proposal, finding, now_ms=1)
    finding = registry.examined(proposal)
    registry.register(S, AC)
    with pytest.raises(MetadataConflictError):
        registry.book.register(proposal, finding, now_ms=1)
    finding = registry.examined(proposal, Level.NONE)
    with pytest.raises(MetadataConflictError):
        registry.book.register(proposal, finding, now_ms=1)


def test_two_brokers_that_register_at_once_make_one_number_and_one_version() -> None:
    registry = Registry()
    registry.register("other", AB)
    registry.catch_up()
    proposal = registry.proposal(S, A)
    finding = registry.examined(proposal)
    late = registry.late.register(proposal, finding, now_ms=1)
    assert registry.register(S, A).is_new
    with pytest.raises(MetadataConflictError):
        registry.commit(late.change)
    registry.catch_up()
    again = registry.late.register(proposal, finding, now_ms=1)
    assert (again.number, again.version, again.is_new) == (3, 1, False)


def test_deletion_is_soft_and_then_permanent() -> None:
    registry = Registry()
    book = registry.book
    registry.register(S, A)
    registry.register(S, AB)
    version, change = book.delete_version(S, LATEST)
    registry.commit(change)
    assert version == 2
    assert book.versions(S) == [1]
    assert book.versions(S, deleted=True) == [1, 2]
    assert book.versions(S, only_deleted=True) == [2]
    assert book.entry(S).version.version == 1, "latest moves back"
    with pytest.raises(SchemaVersionNotFoundError):
        book.entry(S, 2)
    assert book.entry(S, 2, deleted=True).version.is_deleted
    assert book.schema(3).name == "R", "found by its number"
    assert (book.carriers(3), book.carriers(3, deleted=True)) == ([], [(S, 2)])
    assert book.numbers_of(S) == {1, 3}, "batches may carry it"
    assert book.writers(3) == [S]

    with pytest.raises(SchemaVersionDeletedError, match="delete it permanently"):
        book.delete_version(S, 2)
    with pytest.raises(SchemaNotDeletedError, match=r"version 1 .* is live"):
        book.delete_version(S, 1, permanent=True)
    registry.commit(book.delete_version(S, 2, permanent=True)[1])
    assert book.versions(S, deleted=True) == [1]
    assert (book.carriers(3, deleted=True), book.writers(3), book.writers(1)) == ([], [S], [S]), "messages may have it"
    assert book.writers(2) == [], "the number of the subject is none of a schema"
    with pytest.raises(SchemaVersionNotFoundError):
        book.delete_version(S, 2, permanent=True)
    assert book.schema(3).name == "R", "still there for batches that carry it"
    assert registry.register(S, AB).version == 3, "numbers of versions never come again"


def test_a_deleted_subject_comes_back_with_the_next_version_and_the_settings_of_all() -> None:
    registry = Registry()
    book = registry.book
    registry.register(S, A)
    registry.commit(book.set_level(S, Level.FULL))
    registry.commit(book.set_mode(S, Mode.READWRITE))
    registry.register(S, AB)
    gone, change = book.delete_subject(S)
    registry.commit(change)
    assert gone == [1, 2]
    assert (book.subjects(), book.subjects(deleted=True)) == ([], [S])
    assert book.own_settings(S) == Settings()
    with pytest.raises(SubjectNotFoundError):
        book.versions(S)
    with pytest.raises(SubjectDeletedError, match="delete it permanently"):
        book.delete_subject(S)
    again = registry.register(S, A_STRING)
    assert (again.version, again.subject_number) == (3, 2), "what is deleted is not compared with"
    with pytest.raises(SchemaNotDeletedError):
        book.delete_subject(S, permanent=True)
    registry.commit(book.delete_subject(S)[1])
    gone, change = book.delete_subject(S, permanent=True)
    registry.commit(change)
    assert gone == [1, 2, 3]
    assert book.subjects(deleted=True) == []
    with pytest.raises(SubjectNotFoundError):
        book.delete_subject(S, permanent=True)
    assert registry.register(S, A).version == 4


def test_subjects_are_listed_in_order_by_prefix_and_state() -> None:
    registry = Registry()
    for name in ("b", "a", "ab", "gone"):
        registry.register(name, A)
    registry.commit(registry.book.delete_subject("gone")[1])
    registry.commit(registry.book.set_level("only-a-level", Level.NONE))
    assert registry.book.subjects() == ["a", "ab", "b"]
    assert registry.book.subjects("a") == ["a", "ab"]
    assert registry.book.subjects(deleted=True) == ["a", "ab", "b", "gone"]
    assert registry.book.subjects(only_deleted=True) == ["gone"]
    assert [entry.subject for entry in registry.book] == ["a", "ab", "b"]


def test_references_are_resolved_kept_and_protected() -> None:
    registry = Registry()
    book = registry.book
    registry.register("users", USER)
    refers = (Reference("User", "users", LATEST),)
    with pytest.raises(InvalidSchemaError, match="User"):
        registry.register(S, ORDER)
    order = registry.register(S, ORDER, references=refers)
    stored = book.schema(order.number).references
    assert [(each.name, each.subject, each.version, each.number) for each in stored] == [("User", "users", 1, 1)]
    assert [need.name for need in book.source(order.number).needs] == ["User"]
    assert registry.register(S, ORDER, references=(Reference("User", "users", 1),)).is_new is False
    assert book.referrers("users") == [order.number]
    for delete in (lambda: book.delete_version("users", 1), lambda: book.delete_subject("users")):
        with pytest.raises(SchemaReferencedError, match=rf"version 1 of subject 'users' .* numbers {order.number};"):
            delete()

    registry.commit(book.delete_subject(S)[1])
    assert book.referrers("users") == []
    registry.commit(book.delete_version("users", 1)[1])
    with pytest.raises(SchemaReferencedError):
        book.delete_version("users", 1, permanent=True)  # what is deleted can still be asked for
    with pytest.raises(InvalidSchemaError, match=r"reference 'User' has no target: .*'users' does not exist"):
        registry.register("new", ORDER, references=refers)
    registry.commit(book.delete_subject(S, permanent=True)[1])
    registry.commit(book.delete_version("users", 1, permanent=True)[1])
    assert [need.text for need in book.source(order.number).needs] == [book.schema(1).text], "stays decodable"
    with pytest.raises(SchemaReferencedError, match="schema 1 is referenced by"):
        book.purge(1)
    registry.commit(book.purge(order.number))
    registry.commit(book.purge(1))
    with pytest.raises(SchemaNotFoundError, match="no schema with the number 1"):
        book.schema(1)


def test_references_to_what_does_not_fit_are_refused() -> None:
    registry = Registry()
    registry.register("users", USER)
    registry.register("text", "", SchemaType.STRING)
    for references, why in [
        ((Reference("User", "users", 2),), "no version 2"),
        ((Reference("User", "text", 1),), "type string instead of avro"),
        ((Reference("User", "users", 1), Reference("User", "users", LATEST)), "reference 'User' is given twice"),
    ]:
        with pytest.raises(InvalidSchemaError, match=why):
            registry.register(S, ORDER, references=references)
    with pytest.raises(SchemaTooLargeError, match="max_schema_references = 100"):
        registry.register(S, ORDER, references=tuple(Reference(f"n{n}", "users", 1) for n in range(101)))


def test_references_come_before_their_users_and_are_limited() -> None:
    registry = Registry(SchemaLimits(max_schema_references=3, max_schema_references_bytes=10_000))
    registry.register("n0", record(name="N0"))
    for n in range(1, 5):
        schema = record(("x", f"N{n - 1}"), name=f"N{n}")
        references = (Reference(f"N{n - 1}", f"n{n - 1}", 1),)
        if n == 4:
            with pytest.raises(SchemaTooLargeError, match="max_schema_references"):
                registry.register(f"n{n}", schema, references=references)
        else:
            made = registry.register(f"n{n}", schema, references=references)
            assert [need.name for need in registry.book.source(made.number).needs] == [f"N{m}" for m in range(n)]
    tight = Registry(SchemaLimits(max_schema_references_bytes=20))
    tight.register("n0", record(name="N0"))
    with pytest.raises(SchemaTooLargeError, match="max_schema_references_bytes = 20"):
        tight.register("n1", record(("x", "N0"), name="N1"), references=(Reference("N0", "n0", 1),))


def test_one_name_leads_to_one_schema() -> None:
    registry = Registry()
    registry.register("users", USER)
    registry.register("users", record(("id", "int"), ("b", "int", 0), name="User"))
    registry.register(S, ORDER, references=(Reference("User", "users", 1),))
    with pytest.raises(InvalidSchemaError, match="reference 'User' names two schemas"):
        registry.register(
            "both",
            record(("o", "Order"), ("u", "User"), name="Both"),
            references=(Reference("Order", S, 1), Reference("User", "users", 2)),
        )


def test_a_reference_that_is_being_made_holds_off_the_deletion() -> None:
    registry = Registry()
    registry.register("users", USER)
    registry.catch_up()
    deletion = registry.late.delete_version("users", 1)[1]
    registry.register(S, ORDER, references=(Reference("User", "users", 1),))
    with pytest.raises(MetadataConflictError):
        registry.commit(deletion)


def test_so_does_one_of_a_schema_that_is_known() -> None:
    registry = Registry()
    registry.register("users", USER)
    refers = (Reference("User", "users", 1),)
    registry.register(S, ORDER, references=refers)
    registry.commit(registry.book.delete_subject(S)[1])
    registry.catch_up()
    deletion = registry.late.delete_version("users", 1)[1]
    assert registry.register("new", ORDER, references=refers).is_new
    with pytest.raises(MetadataConflictError):
        registry.commit(deletion)


def test_a_deletion_holds_off_the_reference() -> None:
    registry = Registry()
    registry.register("users", USER)
    proposal = registry.proposal(S, ORDER, references=(Reference("User", "users", 1),))
    finding = registry.examined(proposal)
    registered = registry.book.register(proposal, finding, now_ms=1)
    registry.commit(registry.book.delete_version("users", 1)[1])
    with pytest.raises(MetadataConflictError):
        registry.commit(registered.change)


def test_a_schema_that_a_subject_is_about_to_have_is_not_purged() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.commit(registry.book.delete_subject(S)[1])
    with pytest.raises(FailedPreconditionError, match=f"schema 1 is used by version 1 of '{S}'"):
        registry.book.purge(1)
    registry.commit(registry.book.delete_subject(S, permanent=True)[1])
    registry.catch_up()
    purge = registry.late.purge(1)
    assert registry.register("other", A).number == 1
    with pytest.raises(MetadataConflictError):
        registry.commit(purge)
    registry.catch_up()
    with pytest.raises(FailedPreconditionError, match="version 1 of 'other'"):
        registry.late.purge(1)


def test_nor_one_that_a_subject_with_other_versions_is_about_to_have() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.register("other", AB)
    registry.commit(registry.book.set_level("other", Level.NONE))
    registry.commit(registry.book.delete_subject(S)[1])
    registry.commit(registry.book.delete_subject(S, permanent=True)[1])
    registry.catch_up()
    purge = registry.late.purge(1)
    assert registry.register("other", A).number == 1
    with pytest.raises(MetadataConflictError):
        registry.commit(purge)


def test_a_purged_schema_that_comes_again_has_another_number() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.commit(registry.book.delete_subject(S)[1])
    registry.commit(registry.book.delete_subject(S, permanent=True)[1])
    registry.commit(registry.book.purge(1))
    assert registry.register(S, A).number == 3


def test_settings_of_a_subject_hold_before_those_of_all() -> None:
    registry = Registry()
    book = registry.book
    assert (book.level(S), book.policy(S), book.mode(S)) == (Level.BACKWARD, Policy.STRICT, Mode.READWRITE)
    registry.commit(book.set_level(None, Level.NONE))
    registry.commit(book.set_policy(None, Policy.LENIENT))
    registry.commit(book.set_mode(None, Mode.IMPORT))
    assert (book.level(S), book.policy(S), book.mode(S)) == (Level.NONE, Policy.LENIENT, Mode.IMPORT)
    registry.commit(book.set_level(S, Level.FULL))
    registry.commit(book.set_policy(S, Policy.UPSTREAM))
    registry.commit(book.set_mode(S, Mode.READWRITE))
    assert (book.level(S), book.policy(S), book.mode(S)) == (Level.FULL, Policy.UPSTREAM, Mode.READWRITE)
    assert book.level("other") is Level.NONE
    registry.commit(book.set_level(S, None))
    assert book.level(S) is Level.NONE
    for call, what in [
        (lambda: book.set_level(S, None), "subject .* has no compatibility level of its own"),
        (lambda: book.set_policy("other", None), "no compatibility policy"),
        (lambda: book.set_mode("other", None), "no mode"),
    ]:
        with pytest.raises(SchemaSettingNotFoundError, match=what):
            call()
    registry.commit(book.set_mode(None, None))
    with pytest.raises(SchemaSettingNotFoundError, match="the registry has no mode"):
        book.set_mode(None, None)


def test_level_and_policy_are_set_together_and_what_is_not_given_stays() -> None:
    registry = Registry()
    book = registry.book
    for subject in (S, None):
        registry.commit(book.set_compatibility(subject, Level.FULL, Policy.LENIENT))
        registry.commit(book.set_compatibility(subject, Level.FORWARD, None))
        assert book.own_settings(subject) == Settings(Level.FORWARD, Policy.LENIENT)
        registry.commit(book.set_compatibility(subject, None, Policy.UPSTREAM))
        assert book.own_settings(subject) == Settings(Level.FORWARD, Policy.UPSTREAM)
    registry.commit(book.set_mode(S, Mode.READONLY))
    with pytest.raises(SchemaModeError):
        book.set_compatibility(S, Level.NONE, None)


def test_a_subject_is_born_with_the_policy_of_the_door_it_came_through() -> None:
    registry = Registry()
    registry.register(S, A, born=Policy.UPSTREAM)
    assert registry.book.policy(S) is Policy.UPSTREAM
    registry.register(S, AB, born=Policy.STRICT)
    assert registry.book.policy(S) is Policy.UPSTREAM
    registry.commit(registry.book.set_policy("set", Policy.LENIENT))
    registry.register("set", A, born=Policy.STRICT)
    assert registry.book.policy("set") is Policy.LENIENT


@pytest.mark.parametrize(
    ("subject", "mode"), [(S, Mode.READONLY), (None, Mode.READONLY), (None, Mode.READONLY_OVERRIDE)]
)
def test_readonly_refuses_all_but_the_mode(subject: str | None, mode: Mode) -> None:
    registry = Registry()
    book = registry.book
    registry.register(S, A)
    registry.commit(book.set_mode(subject, mode))
    assert registry.register(S, A).is_new is False
    refused: list[Callable[[], object]] = [
        lambda: registry.register(S, AB),
        lambda: book.delete_version(S, 1),
        lambda: book.delete_subject(S),
        lambda: book.set_level(S, Level.NONE),
        lambda: book.set_policy(S, Policy.STRICT),
    ]
    if subject is None:
        refused += [lambda: book.set_level(None, Level.NONE), lambda: book.purge(1)]
    for call in refused:
        with pytest.raises(SchemaModeError, match=mode.name):
            call()
    registry.commit(book.set_mode(subject, Mode.READWRITE))
    assert registry.register(S, AB).is_new


def test_readonly_override_counts_more_than_what_a_subject_says() -> None:
    registry = Registry()
    registry.commit(registry.book.set_mode(S, Mode.READWRITE))
    registry.commit(registry.book.set_mode(None, Mode.READONLY))
    assert registry.register(S, A).is_new
    registry.commit(registry.book.set_mode(None, Mode.READONLY_OVERRIDE))
    with pytest.raises(SchemaModeError, match="READONLY_OVERRIDE"):
        registry.register(S, AB)
    with pytest.raises(InvalidArgumentError, match="a mode of the whole registry"):
        registry.book.set_mode(S, Mode.READONLY_OVERRIDE)


def test_import_keeps_numbers_and_versions_and_compares_nothing() -> None:
    registry = Registry()
    book = registry.book
    registry.commit(book.set_mode(S, Mode.IMPORT))
    with pytest.raises(SchemaModeError, match="must come with their numbers"):
        registry.register(S, A)
    assert (registry.register(S, A, number=100, version=5).number, book.versions(S)) == (100, [5])
    assert registry.register(S, A, number=100, version=5).is_new is False
    assert registry.register(S, A_STRING, number=50, version=3).version == 3
    assert book.versions(S) == [3, 5]
    assert book.entry(S).number == 100
    assert registry.register(S, AB, number=60).version == 6
    for number, version, schema, why in [
        (100, 9, AC, "number 100 belongs to another schema"),
        (101, 9, AC, f"number 101 belongs to subject '{S}'"),
        (7, 9, A, "has number 100 already, so it cannot get number 7"),
        (200, 5, AC, "has version 5 already"),
        (0, 9, AC, "use 1 to"),
        (2**31, 9, AC, "use 1 to"),
        (200, 0, AC, "use 1 to"),
    ]:
        with pytest.raises(InvalidSchemaNumberError, match=why):
            registry.register(S, schema, number=number, version=version)
    registry.commit(book.set_mode(S, None))
    assert registry.register("new", AC).number == 102, "past all that were imported"


def test_import_is_for_subjects_without_versions_or_by_force() -> None:
    registry = Registry()
    registry.register(S, A)
    for subject in (S, None):
        with pytest.raises(SchemaModeError, match=f"there are '{S}'"):
            registry.book.set_mode(subject, Mode.IMPORT)
        registry.commit(registry.book.set_mode(subject, Mode.IMPORT, force=True))
        registry.commit(registry.book.set_mode(subject, Mode.IMPORT))


def test_numbers_and_versions_are_not_chosen_outside_import() -> None:
    registry = Registry()
    with pytest.raises(SchemaModeError, match="can only be chosen in mode IMPORT"):
        registry.register(S, A, number=7)
    with pytest.raises(InvalidSchemaNumberError, match=r"the next version of subject .* is 1, not 2"):
        registry.register(S, A, version=2)
    made = registry.register(S, A, version=1)
    assert registry.register("other", A, number=made.number).number == made.number


def test_upstreams_clients_call_schemas_by_subject_and_version() -> None:
    registry = Registry()
    book = registry.book
    registry.register(S, A)
    registry.register(S, AB)
    registry.register("other", AB)
    assert book.by_subject_number(2).version.version == 2
    assert book.by_subject_number(2, 1).number == 1
    assert [book.to_number(2, 1), book.to_number(2, 2), book.to_number(2, 3), book.to_number(9, 1)] == [
        1,
        3,
        None,
        None,
    ]
    assert book.from_number(3, "other") == (4, 1)
    assert book.from_number(3, "none") == (2, 2), "of the first subject that has it"
    assert book.from_number(99, S) is None
    with pytest.raises(SchemaNotFoundError, match="no subject has the number 1"):
        book.by_subject_number(1)
    registry.commit(book.delete_version(S, 1)[1])
    assert book.to_number(2, 1) == 1, "what is on its way arrives"
    assert book.by_subject_number(2, 1).version.is_deleted
    registry.commit(book.delete_version(S, 1, permanent=True)[1])
    assert (book.to_number(2, 1), book.from_number(1, S)) == (None, None)


def test_lookup_finds_content_however_it_is_written() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.register(S, AB)
    proposal = registry.proposal(S, '{"name":"R","type":"record","fields":[{"name":"a","type":"int"}]}')
    finding = registry.examined(proposal, Level.NONE)
    found = registry.book.find(proposal, finding)
    assert found is not None
    assert found.version.version == 1
    registry.commit(registry.book.delete_version(S, 1)[1])
    assert registry.book.find(proposal, finding) is None
    assert registry.book.find(proposal, finding, deleted=True) is not None
    with pytest.raises(SubjectNotFoundError):
        registry.book.find(registry.proposal("other", A), finding)


def test_metadata_and_rules_make_another_schema_and_are_found() -> None:
    registry = Registry()
    registry.register(S, A, metadata={"team": "x", "tier": "1"})
    plain = registry.register(S, A)
    ruled = registry.register(S, A, rules='{"domainRules":[]}')
    assert (plain.version, ruled.version) == (2, 3)
    assert registry.book.by_metadata(S, {"team": "x"}).version.version == 1
    assert registry.book.by_metadata(S, {}).version.version == 3
    with pytest.raises(SchemaVersionNotFoundError, match="the metadata team=y"):
        registry.book.by_metadata(S, {"team": "y"})


def test_guids_are_the_same_in_all_registries() -> None:
    one, other = Registry(), Registry()
    one.register(S, A)
    other.register("first", AB)
    number = other.register(S, A).number
    guid = one.book.guid(1)
    assert other.book.guid(number) == guid
    assert other.book.number_of_guid(guid.upper()) == number
    unknown = other.book.guid(1)
    with pytest.raises(SchemaNotFoundError, match="GUID"):
        one.book.number_of_guid(unknown)
    made = one.register(S, AB)
    assert one.book.number_of_guid(unknown) == made.number


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 513, "\ud800"])
def test_names_of_subjects_are_checked(name: str) -> None:
    registry = Registry()
    with pytest.raises(InvalidNameError):
        registry.register(name, A)
    with pytest.raises(InvalidNameError):
        registry.book.set_level(name, Level.NONE)


@pytest.mark.parametrize("name", ["a", "/default/orders-value", "a b%2F", "ä.:ü", "..", "-1"])
def test_any_printable_name_is_one_segment_of_a_key(name: str) -> None:
    assert "/" not in key_of(name)
    assert subject_of_key(key_of(name)) == name
    registry = Registry()
    registry.register(name, A)
    assert registry.listed().subjects() == [name]


def test_limits_are_named() -> None:
    registry = Registry(SchemaLimits(max_subjects=1, max_versions_per_subject=1, max_schema_notes_bytes=10))
    registry.register(S, A)
    for call, error, name in [
        (lambda: registry.register(S, AB), LimitExceededError, "max_versions_per_subject is 1"),
        (lambda: registry.register("other", A), LimitExceededError, "max_subjects is 1"),
        (lambda: registry.book.set_level("other", Level.NONE), LimitExceededError, "max_subjects is 1"),
        (lambda: registry.register(S, A, description="x" * 11), SchemaTooLargeError, "max_schema_notes_bytes is 10"),
        (lambda: registry.register(S, A, metadata={"x": "x" * 10}), SchemaTooLargeError, "max_schema_notes_bytes"),
        (lambda: registry.register(S, A, created_by="\ud800"), InvalidArgumentError, "not Unicode"),
    ]:
        with pytest.raises(error, match=name):
            call()


def test_numbers_end() -> None:
    registry = Registry()
    registry.commit(registry.book.set_mode(S, Mode.IMPORT))
    with pytest.raises(LimitExceededError, match="has assigned all"):
        registry.register(S, A, number=2**31 - 2)


def test_damaged_records_are_told_and_change_nothing() -> None:
    registry = Registry()
    registry.register(S, A)
    book = registry.book
    for key in ("/schemas/subjects/x", "/schemas/numbers/1", "/schemas/config", "/schemas/next", "/schemas/hashes/00"):
        with pytest.raises(DataLossError, match=key):
            book.apply(key, b"\xc1", 99)
    for key in ("/schemas/numbers/x", "/schemas/hashes/xx", "/schemas/subjects/%ff"):
        with pytest.raises(DataLossError, match=key):
            book.apply(key, b"\x01", 99)
    book.apply("/schemas/later", b"\xc1", 99)
    assert book.entry(S).schema == registry.listed().entry(S).schema


def test_words_are_read_as_people_write_them() -> None:
    assert [parse_level(text) for text in ("FULL_TRANSITIVE", "full-transitive", " none ")] == [
        Level.FULL_TRANSITIVE, Level.FULL_TRANSITIVE, Level.NONE,
    ]  # fmt: skip
    assert parse_level("backward_transitive").base is Level.BACKWARD
    assert [parse_type(text) for text in ("JSON", "json_schema", "proto", "int64", "AVRO")] == [
        SchemaType.JSON, SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.NUMBER, SchemaType.AVRO,
    ]  # fmt: skip
    assert [parse_mode(text) for text in ("READONLY", "read-only", "readonly_override", "READ_WRITE")] == [
        Mode.READONLY, Mode.READONLY, Mode.READONLY_OVERRIDE, Mode.READWRITE,
    ]  # fmt: skip
    assert parse_policy("Lenient") is Policy.LENIENT
    with pytest.raises(InvalidArgumentError, match="unknown compatibility level 'up'; use one of: none, backward"):
        parse_level("up")


def test_subjects_follow_from_topics() -> None:
    assert subject_for("/default/orders", Strategy.TOPIC) == "/default/orders-value"
    assert subject_for("/default/orders-part-3", Strategy.TOPIC, is_key=True) == "/default/orders-key"
    assert subject_for("/default/orders", Strategy.RECORD, "shop.Order") == "shop.Order"
    assert subject_for("/default/orders", Strategy.TOPIC_RECORD, "shop.Order") == "/default/orders-shop.Order"
    with pytest.raises(InvalidNameError, match="the schema of /default/orders has no name"):
        subject_for("/default/orders", Strategy.RECORD)


def test_a_proposal_is_not_looked_at_before_its_subject() -> None:
    with pytest.raises(InvalidNameError):
        Registry().book.examination(Proposal(subject="", type=SchemaType.AVRO, text="no schema"))
    assert avro(A).name == "R"


def avro_proposal(subject: str, schema: Any, references: tuple[Reference, ...] = ()) -> Proposal:
    return Proposal(subject=subject, type=SchemaType.AVRO, text=text_of(schema), references=references)


def test_a_text_that_was_registered_before_is_known_without_parsing_it() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.register(S, AB)
    found = registry.book.same_text(avro_proposal(S, A))
    assert found is not None
    assert (found.number, found.version.version) == (1, 1)
    assert registry.book.same_text(avro_proposal("other", A)) is None
    assert registry.book.same_text(avro_proposal(S, AC)) is None
    assert (
        registry.book.same_text(Proposal(subject=S, type=SchemaType.AVRO, text=found.schema.text, rules="[]")) is None
    )
    assert registry.book.same_text(Proposal(subject=S, type=SchemaType.JSON, text=found.schema.text)) is None
    registry.commit(registry.book.delete_version(S, 1)[1])
    assert registry.book.same_text(avro_proposal(S, A)) is None
    assert registry.book.same_text(avro_proposal(S, A), deleted=True) is not None


def test_the_same_text_with_another_reference_is_another_schema() -> None:
    registry = Registry()
    registry.register("user", USER)
    registry.register("user", record(("id", "int"), ("name", "string", ""), name="User"))
    old = avro_proposal(S, ORDER, (Reference("User", "user", 1),))
    registry.register(S, ORDER, references=(Reference("User", "user", 1),))
    assert registry.book.same_text(old) is not None
    assert registry.book.same_text(avro_proposal(S, ORDER, (Reference("User", "user", LATEST),))) is None


def test_a_number_stands_for_subjects() -> None:
    registry = Registry()
    registry.register("b", A)
    registry.register("a", A)
    assert registry.book.owners(1) == ["a", "b"]
    assert registry.book.owners(2) == ["b"], "the number of the subject"
    assert registry.book.owners(9) == []
    for subject in ("a", "b"):
        registry.commit(registry.book.delete_subject(subject)[1])
    assert registry.book.owners(1) == ["a", "b"], "deleted versions are read by their numbers"
    for subject in ("a", "b"):
        registry.commit(registry.book.delete_subject(subject, permanent=True)[1])
    assert registry.book.owners(1) == [""], "no subject has it, and it is still there"


def test_the_versions_of_a_subject_are_listed() -> None:
    registry = Registry()
    registry.register(S, A)
    registry.register(S, AB)
    registry.commit(registry.book.delete_version(S, 1)[1])
    assert [each.version.version for each in registry.book.entries(S)] == [2]
    assert [each.version.version for each in registry.book.entries(S, deleted=True)] == [1, 2]
    with pytest.raises(SubjectNotFoundError):
        registry.book.entries("none")
