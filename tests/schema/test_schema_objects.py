"""Schemas as objects of a bucket: their bytes, what they refer to, and the registry that they give back."""

from __future__ import annotations

import msgspec
import pytest
from schema_helpers import Registry

from danube.model.errors import DataLossError, FailedPreconditionError, InvalidSchemaNumberError
from danube.schema import Level, Mode, Reference, SchemaType
from danube.schema.objects import (
    Recovered,
    SchemaObject,
    SubjectNote,
    conflicts,
    decode_object,
    encode_object,
    objects_of,
    recovered,
)
from danube.schema.records import VersionRecord


def fixed(name: str, size: int = 8) -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size}


def holder(name: str) -> dict[str, object]:
    return {"type": "record", "name": f"Has{name}", "fields": [{"name": "it", "type": name}]}


def chain() -> tuple[Registry, list[int]]:
    """A registry with a schema, one that refers to it, and one that refers to that one."""
    registry = Registry()
    numbers = [registry.register("a", fixed("A")).number]
    numbers.append(registry.register("b", holder("A"), references=(Reference("A", "a", 1),)).number)
    needs = (Reference("HasA", "b", 1),)
    numbers.append(registry.register("c", holder("HasA"), references=needs).number)
    return registry, numbers


def give_back(found: Recovered, registry: Registry) -> None:
    registry.commit(registry.book.restored(found.numbers, {}, found.following))
    registry.commit(registry.book.restored({}, found.subjects, found.following))


def test_an_object_has_all_of_a_schema() -> None:
    registry, numbers = chain()
    for number, content in objects_of(registry.book, numbers).items():
        assert decode_object(encode_object(content), "here") == content
        assert (content.number, content.schema) == (number, registry.book.schema(number))


def test_damage_is_found_wherever_it_is() -> None:
    registry, numbers = chain()
    data = encode_object(objects_of(registry.book, numbers)[numbers[0]])
    for at in range(len(data)):
        with pytest.raises(DataLossError, match=r"^here: "):
            decode_object(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "here")
    for end in (0, 10, len(data) - 1):
        with pytest.raises(DataLossError):
            decode_object(data[:end], "here")


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, numbers = chain()
    content = objects_of(registry.book, numbers)[numbers[0]]
    with monkeypatch.context() as patch:
        patch.setattr("danube.schema.objects.FORMAT_VERSION", 2)
        data = encode_object(content)
    with pytest.raises(FailedPreconditionError, match=r"here: format version 2 is newer than 1.*upgrade Danube"):
        decode_object(data, "here")


def test_what_a_schema_refers_to_comes_first_and_unknown_numbers_are_left_out() -> None:
    registry, numbers = chain()
    assert list(objects_of(registry.book, [numbers[2], 999, 2**32 - 1])) == numbers
    assert list(objects_of(registry.book, [numbers[1]])) == numbers[:2]
    assert objects_of(registry.book, [999]) == {}


def test_a_schema_of_very_many_subjects_does_not_make_a_large_object() -> None:
    registry = Registry()
    for index in range(600):
        number = registry.register(f"s{index:03}-{'x' * 300}", fixed("A")).number
    content = objects_of(registry.book, [number])[number]
    assert 100 < len(content.subjects) < 600
    assert len(encode_object(content)) < 70_000


def test_an_empty_registry_gets_the_schemas_and_subjects_back() -> None:
    registry, numbers = chain()
    registry.commit(registry.book.set_level("a", Level.NONE))
    registry.register("a", fixed("A", 9), now_ms=8)  # of no batch
    registry.commit(registry.book.set_level("c", Level.FULL))
    registry.commit(registry.book.set_mode("c", Mode.READONLY))
    found = recovered(objects_of(registry.book, numbers).values())
    new = Registry()
    give_back(found, new)
    for book in (new.book, new.listed()):
        assert [book.schema(number) for number in numbers] == [registry.book.schema(number) for number in numbers]
        assert book.subjects() == ["a", "b", "c"]
        for name in ("b", "c"):
            assert book.entries(name) == registry.book.entries(name)
        assert book.versions("a") == [1]
        assert (book.level("c"), book.mode("c")) == (Level.FULL, Mode.READWRITE)
        assert book.source(numbers[2]) == registry.book.source(numbers[2])
    give_back(found, new)
    assert new.revision == 2, "nothing changes if it is repeated"
    assert not new.register("b", holder("A"), references=(Reference("A", "a", 1),)).is_new
    later = new.register("a", fixed("A", 10))
    assert (later.version, later.number) == (2, found.following)


def test_what_exists_stays_as_it_is() -> None:
    registry, numbers = chain()
    found = recovered(objects_of(registry.book, numbers).values())
    new = Registry()
    new.commit(new.book.restored({}, {}, 100))
    own = new.register("b", fixed("Own"))
    twin = new.register("twin", fixed("A"))
    give_back(found, new)
    assert [each.number for each in new.book.entries("b")] == [own.number]
    assert new.book.schema(numbers[0]) == new.book.schema(twin.number), "one content may have two numbers then"
    assert new.register("third", fixed("A")).number == twin.number
    assert new.book.subjects() == ["a", "b", "c", "third", "twin"]


def test_a_subject_whose_number_is_taken_gets_another_one() -> None:
    registry, numbers = chain()
    found = recovered(objects_of(registry.book, numbers).values())
    taken = found.subjects["a"].number
    new = Registry()
    new.commit(new.book.restored({**found.numbers, taken: found.numbers[numbers[0]]}, {}, 1))
    new.commit(new.book.restored({}, found.subjects, found.following))
    assert new.book.by_subject_number(found.following).subject == "a"


def test_numbers_that_mean_something_else_are_named() -> None:
    registry, numbers = chain()
    found = recovered(objects_of(registry.book, numbers).values())
    assert conflicts(registry.book, found.numbers) == ""
    assert conflicts(Registry().book, found.numbers) == ""
    new = Registry()
    new.register("x", fixed("X"))
    new.register("y", fixed("Y"))
    schema, subject = found.numbers[numbers[0]], new.book.entry("x").subject_number
    wrong = {new.book.entry("x").number: schema, subject: schema}
    assert conflicts(new.book, wrong) == f"1 is another schema of 'x' here; {subject} is the number of subject 'x' here"
    for number in wrong:
        with pytest.raises(InvalidSchemaNumberError, match=f"number {number} belongs to"):
            new.book.restored({number: schema}, {}, 1)
    many = dict.fromkeys([*wrong, 3, 4] * 2, schema)
    assert conflicts(new.book, many).count("here") == 4
    more = Registry()
    for index in range(4):
        more.register(f"s{index}", fixed(f"S{index}"))
    assert conflicts(more.book, dict.fromkeys(range(1, 9), schema)).endswith(
        "; 5 is another schema of 's2' here, and 3 more"
    )


def test_the_settings_beside_the_newest_version_count() -> None:
    registry, numbers = chain()
    schema = registry.book.schema(numbers[0])
    notes = [
        SchemaObject(7, schema, (SubjectNote("s", 3, (VersionRecord(2, 7),), Level.FULL),)),
        SchemaObject(5, schema, (SubjectNote("s", 3, (VersionRecord(4, 5),), Level.NONE),)),
    ]
    found = recovered(notes)
    subject = found.subjects["s"]
    assert [each.version for each in subject.versions] == [2, 4]
    assert (subject.level, subject.next_version, found.following, list(found.numbers)) == (Level.NONE, 5, 8, [5, 7])
    assert recovered([]) == Recovered({}, {}, 1)
    assert msgspec.structs.asdict(schema)["type"] is SchemaType.AVRO
