"""The schema registry of a broker by its native calls: registering, reading, checking, deleting, settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker

from danube.model.errors import (
    FailedPreconditionError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    InvalidSchemaError,
    SchemaModeError,
    SchemaNotDeletedError,
    SchemaNotFoundError,
    SchemaReferencedError,
    SchemaSettingNotFoundError,
    SchemaVersionDeletedError,
    SchemaVersionNotFoundError,
    SubjectNotFoundError,
)
from danube.model.schema_api import SUBJECTS_PAGE, SchemaReference

pytestmark = pytest.mark.virtual

SUBJECT = "/default/orders-value"


def avro(name: str, *fields: str, **defaults: Any) -> str:
    """Return a record of texts; those with a default have one."""
    rows = [{"name": field, "type": "string"} for field in fields]
    rows += [{"name": field, "type": "string", "default": value} for field, value in defaults.items()]
    return json.dumps({"type": "record", "name": name, "fields": rows})


async def test_a_schema_is_registered_once_and_found_by_number_version_and_content(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        first = await client.schemas.register(SUBJECT, "avro", avro("Order", "id"), description="the first", tags=["a"])
        assert (first.version, first.is_new) == (1, True)
        again = await client.schemas.register(SUBJECT, "AVRO", avro("Order", "id") + "\n")
        assert (again.number, again.version, again.is_new) == (first.number, 1, False), "the same but for white space"
        second = await client.schemas.register(SUBJECT, "avro", avro("Order", "id", note="-"))
        assert (second.version, second.is_new, second.subject_number) == (2, True, first.subject_number)
        other = await client.schemas.register("copy", "avro", avro("Order", "id"))
        assert (other.number, other.version) == (first.number, 1), "equal schemas have one number"

        found = await client.schemas.get(first.number)
        assert (found.schema_type, found.text, found.name) == ("avro", avro("Order", "id"), "Order")
        assert found.carriers == [(SUBJECT, 1), ("copy", 1)]
        latest = await client.schemas.version(SUBJECT)
        assert (latest.number, latest.version, latest.subject) == (second.number, 2, SUBJECT)
        described = await client.schemas.version(SUBJECT, 1)
        assert (described.description, described.tags, described.created_ms > 10**12) == ("the first", ["a"], True)
        assert (await client.schemas.find(SUBJECT, "avro", avro("Order", "id") + " ")).version == 1
        with pytest.raises(SchemaNotFoundError, match="no version of subject"):
            await client.schemas.find(SUBJECT, "avro", avro("Order", "x"))
        for missing in (
            client.schemas.get(99),
            client.schemas.version(SUBJECT, 3),
            client.schemas.version("nothing"),
            client.schemas.find("nothing", "string"),
            client.schemas.subject("nothing"),
        ):
            with pytest.raises((SchemaNotFoundError, SubjectNotFoundError, SchemaVersionNotFoundError)):
                await missing


async def test_what_is_registered_survives_a_crash_and_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        async with running.client() as client:
            number = (await client.schemas.register(SUBJECT, "string")).number
            await client.schemas.set_compatibility("", level="full")
        for crash in (False, True):
            await running.restart(crash=crash)
            async with running.client() as client:
                assert (await client.schemas.get(number)).schema_type == "string"
                assert (await client.schemas.subject(SUBJECT)).effective.level == "full"


async def test_incompatible_and_invalid_schemas_are_refused_with_all_reasons(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.schemas.register(SUBJECT, "avro", avro("Order", "id"))
        with pytest.raises(IncompatibleSchemaError, match=r"(?s)field 'a' has no default.*field 'b' has no default"):
            await client.schemas.register(SUBJECT, "avro", avro("Order", "id", "a", "b"))
        checked = await client.schemas.check(SUBJECT, "avro", avro("Order", "id", "a"))
        assert (checked.is_compatible, checked.level, checked.versions) == (False, "backward", [1])
        assert [(each.version, each.level, each.path) for each in checked.objections] == [(1, "backward", "/fields/a")]
        assert (await client.schemas.check(SUBJECT, "avro", avro("Order", "id", "a"), level="none")).is_compatible
        assert (await client.schemas.check("nothing", "avro", avro("Order", "id"))).is_compatible
        with pytest.raises(SchemaVersionNotFoundError):
            await client.schemas.check(SUBJECT, "avro", avro("Order", "id"), version=7)
        with pytest.raises(InvalidSchemaError):
            await client.schemas.register("x", "avro", "{")
        with pytest.raises(InvalidArgumentError, match="unknown schema type 'xml'"):
            await client.schemas.register("x", "xml", "<a/>")
        assert [row.subject for row in await client.schemas.subjects()] == [SUBJECT]


async def test_deletion_is_soft_first_then_permanent_and_purging_comes_last(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        schemas = client.schemas
        first = await schemas.register(SUBJECT, "avro", avro("Order", "id"))
        await schemas.register(SUBJECT, "avro", avro("Order", "id", note="-"))
        with pytest.raises(SchemaNotDeletedError):
            await schemas.delete(SUBJECT, 1, permanent=True)
        assert await schemas.delete(SUBJECT, -1) == [2]
        with pytest.raises(SchemaVersionDeletedError):
            await schemas.delete(SUBJECT, 2)
        assert (await schemas.version(SUBJECT)).version == 1
        assert (await schemas.version(SUBJECT, 2, deleted=True)).is_deleted
        assert await schemas.delete(SUBJECT) == [1]
        assert await schemas.subjects() == []
        (row,) = await schemas.subjects(deleted=True)
        assert (row.subject, row.versions, row.version) == (SUBJECT, 0, 2)
        assert (await schemas.get(first.number)).carriers == []
        with pytest.raises(FailedPreconditionError, match="is used by version 1"):
            await schemas.purge(first.number)
        assert await schemas.delete(SUBJECT, permanent=True) == [1, 2]
        assert (await schemas.get(first.number)).text, "batches may still carry it"
        await schemas.purge(first.number)
        with pytest.raises(SchemaNotFoundError):
            await schemas.get(first.number)
        assert (await schemas.register(SUBJECT, "avro", avro("Order", "id"))).version == 3, "numbers do not come again"


async def test_references_are_resolved_and_protect_their_targets(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.schemas.register("address", "avro", avro("Address", "street"))
        text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "to", "type": "Address"}]})
        references = [SchemaReference("Address", "address")]
        number = (await client.schemas.register(SUBJECT, "avro", text, references=references)).number
        found = await client.schemas.get(number)
        assert [(each.subject, each.version) for each in found.references] == [("address", 1)]
        assert [each.name for each in found.needs] == ["Address"]
        with pytest.raises(SchemaReferencedError, match=f"referenced by schemas with the numbers {number}"):
            await client.schemas.delete("address")
        assert (await client.schemas.subject("address")).versions[0].referrers == [number]
        missing = [SchemaReference("Address", "nothing")]
        with pytest.raises(InvalidSchemaError, match="has no target"):
            await client.schemas.register(SUBJECT, "avro", text, references=missing)


async def test_settings_are_inherited_and_removed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        schemas = client.schemas
        assert (await schemas.subject()).effective.level == "backward"
        await schemas.set_compatibility("", level="FULL-transitive", json_policy="strict")
        await schemas.set_compatibility(SUBJECT, level="none")
        info = await schemas.subject(SUBJECT)
        assert (info.own.level, info.own.json_policy, info.effective.json_policy) == ("none", "", "strict")
        await schemas.set_compatibility(SUBJECT, level="")
        assert (await schemas.subject()).own.level == "full_transitive"
        with pytest.raises(SchemaSettingNotFoundError):
            await schemas.set_mode(SUBJECT, None)
        await schemas.set_mode(SUBJECT, "read-only")
        with pytest.raises(SchemaModeError, match="READONLY"):
            await schemas.register(SUBJECT, "string")
        await schemas.set_mode(SUBJECT, None)
        await schemas.set_mode("", "import")
        registered = await schemas.register(SUBJECT, "string", number=77, version=5)
        assert (registered.number, registered.version) == (77, 5)


async def test_many_registrations_at_once_all_succeed(tmp_path: Path) -> None:
    numbers: list[int] = []
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.schemas.set_compatibility("", level="none")

        async def register(index: int) -> None:
            subject = "one" if index % 2 else f"subject {index}"
            numbers.append((await client.schemas.register(subject, "avro", avro(f"R{index}", "id"))).number)

        async with trio.open_nursery() as nursery:
            for index in range(40):
                nursery.start_soon(register, index)
        assert len(set(numbers)) == 40
        assert [each.version for each in (await client.schemas.subject("one")).versions] == [*range(1, 21)]


async def test_subjects_come_in_pages(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        book = running.broker.registry.book
        names = [f"s{index:05d}" for index in range(SUBJECTS_PAGE + 5)]
        first = await client.schemas.register(names[0], "string")
        item = await running.broker.metadata.get(f"/schemas/subjects/{names[0]}")
        assert item is not None
        for name in names[1:]:
            await running.broker.metadata.put(f"/schemas/subjects/{name}", item.value)
        await client.schemas.register("last", "string")  # after whose revision all are known
        assert len(book.subjects()) == len(names) + 1
        assert [row.subject for row in await client.schemas.subjects("s")] == names
        assert (await client.schemas.get(first.number)).carriers[-1] == (names[-1], 1)
