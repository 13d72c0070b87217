"""Each route of the REST interface: requests, and exactly the answers that they get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from registry_harness import Rest, avro, descriptor

from danube.registry import listing
from danube.registry.routes import ROUTES, match
from danube.registry.target import registry_target

A1 = avro("Order", ("id", "long"))
A2 = avro("Order", ("id", "long"), ("note", ["null", "string"]))
BAD = avro("Order", ("id", "string"))
P1 = descriptor("Order", ("id", 1))
P1_TEXT = 'syntax = "proto3";\npackage shop;\nmessage Order {\n  int64 id = 1;\n}\n'
J1 = '{"type":"object","properties":{"id":{"type":"integer"}}}'
NOT_THERE = "subject 'none' does not exist, or all its versions are deleted"


class AnyText:
    """Equal to every text: for what is not fixed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and bool(other)


TEXT: Any = AnyText()


def error(code: int, message: Any = TEXT) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def versions(subject: str, version: int, number: int, schema: str, **more: Any) -> dict[str, Any]:
    return {"subject": subject, "version": version, "id": number, "guid": TEXT, "schema": schema, **more}


# Numbers: orders has subject number 2 and schemas 1 and 3; proto 4 (subject 5); json 6 (subject 7); user 8 (9); ref 10.
SETUP: list[tuple[str, str, Any]] = [
    ("POST", "/subjects/orders/versions", {"schema": A1}),
    ("POST", "/subjects/orders/versions", {"schema": A2, "metadata": {"properties": {"owner": "ada"}}}),
    ("POST", "/subjects/proto/versions", {"schema": P1, "schemaType": "PROTOBUF"}),
    ("POST", "/subjects/json/versions", {"schema": J1, "schemaType": "JSON"}),
    ("POST", "/subjects/user/versions", {"schema": avro("User", ("name", "string"))}),
    (
        "POST",
        "/subjects/ref/versions",
        {
            "schema": avro("Ref", ("user", "User")),
            "references": [{"name": "User", "subject": "user", "version": 1}],
        },
    ),
]
REFERENCES = [{"name": "User", "subject": "user", "version": 1}]

TABLE: list[tuple[str, str, Any, int, Any]] = [
    ("GET", "/", None, 200, {}),
    ("GET", "/schemas/types", None, 200, ["JSON", "PROTOBUF", "AVRO"]),
    ("GET", "/contexts", None, 200, ["."]),
    (
        "GET",
        "/v1/metadata/id",
        None,
        200,
        {
            "id": "",
            "scope": {"path": [], "clusters": {"kafka-cluster": "test", "schema-registry-cluster": "test"}},
        },
    ),
    ("GET", "/v1/metadata/version", None, 200, {"version": "7.9.0", "commitId": TEXT}),
    ("GET", "/associations/resources/-/orders?associationType=value", None, 200, []),
    # Subjects
    ("GET", "/subjects", None, 200, ["json", "orders", "proto", "ref", "user"]),
    ("GET", "//subjects/", None, 200, ["json", "orders", "proto", "ref", "user"]),
    ("GET", "/subjects?subjectPrefix=or", None, 200, ["orders"]),
    ("GET", "/subjects?subjectPrefix=:*:or", None, 200, ["orders"]),
    ("GET", "/subjects?offset=1&limit=2&unknown=1", None, 200, ["orders", "proto"]),
    ("GET", "/subjects?offset=x", None, 422, error(422, "the parameter offset = 'x' is not a number from 0 on, or -1")),
    ("GET", "/subjects?deletedOnly=True", None, 200, []),
    # Versions
    ("GET", "/subjects/orders/versions", None, 200, [1, 2]),
    ("GET", "/subjects/none/versions", None, 404, error(40401, NOT_THERE)),
    ("GET", "/subjects/orders/versions/1", None, 200, versions("orders", 1, 1, A1)),
    (
        "GET",
        "/subjects/orders/versions/latest",
        None,
        200,
        versions("orders", 2, 3, A2, metadata={"properties": {"owner": "ada"}}),
    ),
    (
        "GET",
        "/subjects/:.:orders/versions/-1",
        None,
        200,
        versions("orders", 2, 3, A2, metadata={"properties": {"owner": "ada"}}),
    ),
    ("GET", "/subjects/json/versions/1", None, 200, versions("json", 1, 6, J1, schemaType="JSON")),
    ("GET", "/subjects/proto/versions/1", None, 200, versions("proto", 1, 4, P1_TEXT, schemaType="PROTOBUF")),
    (
        "GET",
        "/subjects/ref/versions/1",
        None,
        200,
        versions("ref", 1, 10, avro("Ref", ("user", "User")), references=REFERENCES),
    ),
    ("GET", "/subjects/orders/versions/9", None, 404, error(40402)),
    ("GET", "/subjects/orders/versions/0", None, 422, error(42202)),
    ("GET", "/subjects/orders/versions/first", None, 422, error(42202)),
    ("GET", "/subjects/none/versions/latest", None, 404, error(40401, NOT_THERE)),
    ("GET", "/subjects/proto/versions/1/schema", None, 200, P1_TEXT),
    ("GET", "/subjects/user/versions/1/referencedby", None, 200, [10]),
    (
        "GET",
        "/subjects/orders/metadata?key=owner&value=ada",
        None,
        200,
        versions("orders", 2, 3, A2, metadata={"properties": {"owner": "ada"}}),
    ),
    ("GET", "/subjects/orders/metadata?key=owner&value=bob", None, 404, error(40402)),
    ("GET", "/subjects/orders/metadata", None, 422, error(422)),
    # Schemas
    ("GET", "/schemas/ids/1", None, 200, {"schema": A1, "guid": TEXT}),
    ("GET", "/schemas/ids/1?fetchMaxId=true&subject=orders", None, 200, {"schema": A1, "guid": TEXT, "maxId": 11}),
    ("GET", "/schemas/ids/4?format=serialized", None, 200, {"schema": TEXT, "schemaType": "PROTOBUF", "guid": TEXT}),
    ("GET", "/schemas/ids/1?format=resolved", None, 422, error(422)),
    ("GET", "/schemas/ids/2", None, 404, error(40403, "there is no schema with the number 2")),
    ("GET", "/schemas/ids/x", None, 404, error(404)),
    ("GET", "/schemas/ids/1/schema", None, 200, json.loads(A1)),
    ("GET", "/schemas/ids/1/subjects", None, 200, ["orders"]),
    ("GET", "/schemas/ids/1/versions", None, 200, [{"subject": "orders", "version": 1}]),
    ("GET", "/schemas/ids/1/versions?subject=other", None, 200, []),
    ("GET", "/schemas/guids/00000000-0000-0000-0000-000000000000", None, 404, error(40403)),
    ("GET", "/schemas?subjectPrefix=or", None, 200, [versions("orders", 1, 1, A1), TEXT]),
    (
        "GET",
        "/schemas?subjectPrefix=or&latestOnly=true",
        None,
        200,
        [versions("orders", 2, 3, A2, metadata={"properties": {"owner": "ada"}})],
    ),
    ("GET", "/schemas?limit=0", None, 200, []),
    # Looking up
    ("POST", "/subjects/orders", {"schema": json.dumps(json.loads(A1), indent=1)}, 200, versions("orders", 1, 1, A1)),
    ("POST", "/subjects/orders?normalize=true", {"schema": BAD}, 404, error(40403)),
    ("POST", "/subjects/none", {"schema": A1}, 404, error(40401, NOT_THERE)),
    ("POST", "/subjects/orders", {"schema": "{"}, 422, error(42201)),
    # Registering
    (
        "POST",
        "/subjects/orders/versions",
        {"schema": A1},
        200,
        {"subject": "orders", "version": 1, "id": 1, "guid": TEXT},
    ),
    ("POST", "/subjects/orders/versions", {"schema": BAD}, 409, error(409)),
    ("POST", "/subjects/orders/versions", {"schema": A1, "schemaType": "XML"}, 422, error(42201)),
    ("POST", "/subjects/orders/versions", {"schema": ""}, 422, error(42201)),
    ("POST", "/subjects/orders/versions", {}, 422, error(42201)),
    ("POST", "/subjects/orders/versions", {"schema": "{"}, 422, error(42201)),
    ("POST", "/subjects/orders/versions", {"schema": 7}, 400, error(400)),
    ("POST", "/subjects/orders/versions", b"not json", 400, error(400)),
    ("POST", "/subjects/orders/versions", b"[" * 100_000, 400, error(400)),
    ("POST", "/subjects/orders/versions", {"schema": A1, "id": 99}, 422, error(42205)),
    ("POST", f"/subjects/{'n' * 600}/versions", {"schema": A1}, 422, error(42208)),
    ("POST", "/subjects/big/versions", {"schema": '"' + "x" * 600_000 + '"'}, 422, error(42209)),
    (
        "POST",
        "/subjects/x/versions",
        {"schema": avro("X", ("u", "User")), "references": [{"name": "User", "subject": "none", "version": 1}]},
        422,
        error(42201),
    ),
    # Comparing
    ("POST", "/compatibility/subjects/orders/versions/latest", {"schema": A1}, 200, {"is_compatible": True}),
    ("POST", "/compatibility/subjects/orders/versions/1", {"schema": BAD}, 200, {"is_compatible": False}),
    (
        "POST",
        "/compatibility/subjects/orders/versions?verbose=1",
        {"schema": BAD},
        200,
        {"is_compatible": False, "messages": [TEXT]},
    ),
    ("POST", "/compatibility/subjects/none/versions", {"schema": A1}, 200, {"is_compatible": True}),
    ("POST", "/compatibility/subjects/none/versions/latest", {"schema": A1}, 404, error(40401, NOT_THERE)),
    ("POST", "/compatibility/subjects/orders/versions/7", {"schema": A1}, 404, error(40402)),
    # Settings
    ("GET", "/config", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("GET", "/config/orders", None, 404, error(40408)),
    ("GET", "/config/orders?defaultToGlobal=true", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("PUT", "/config/orders", {"compatibility": "NEVER"}, 422, error(42203)),
    ("PUT", "/config/orders", {}, 422, error(42203)),
    ("PUT", "/config/orders", {"compatibility": "FULL", "alias": "x"}, 422, error(42205)),
    ("DELETE", "/config/orders", None, 404, error(40408)),
    ("PUT", "/config", {"compatibility": "full_transitive"}, 200, {"compatibility": "FULL_TRANSITIVE"}),
    ("GET", "/config", None, 200, {"compatibilityLevel": "FULL_TRANSITIVE"}),
    ("DELETE", "/config", None, 200, {"compatibilityLevel": "FULL_TRANSITIVE"}),
    (
        "PUT",
        "/config/json",
        {"compatibility": "FORWARD", "compatibilityPolicy": "LENIENT"},
        200,
        {"compatibility": "FORWARD", "compatibilityPolicy": "LENIENT"},
    ),
    ("GET", "/config/json", None, 200, {"compatibilityLevel": "FORWARD", "compatibilityPolicy": "LENIENT"}),
    ("DELETE", "/config/json", None, 200, {"compatibilityLevel": "FORWARD", "compatibilityPolicy": "LENIENT"}),
    ("GET", "/mode", None, 200, {"mode": "READWRITE"}),
    ("GET", "/mode/orders", None, 404, error(40409)),
    ("GET", "/mode/orders?defaultToGlobal=1", None, 200, {"mode": "READWRITE"}),
    ("PUT", "/mode/orders", {"mode": "SOMETIMES"}, 422, error(42204)),
    ("PUT", "/mode/orders", {}, 422, error(42204)),
    ("PUT", "/mode/orders", {"mode": "READONLY_OVERRIDE"}, 422, error(42204)),
    ("PUT", "/mode/orders", {"mode": "IMPORT"}, 422, error(42205)),
    ("DELETE", "/mode/orders", None, 404, error(40409)),
    ("PUT", "/mode/orders", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("POST", "/subjects/orders/versions", {"schema": BAD}, 422, error(42205)),
    ("DELETE", "/subjects/orders/versions/1", None, 422, error(42205)),
    ("DELETE", "/mode/orders", None, 200, {"mode": "READONLY"}),
    ("PUT", "/mode", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("POST", "/subjects/orders/versions", {"schema": BAD}, 422, error(42205)),
    ("DELETE", "/mode", None, 200, {"mode": "READONLY"}),
    # Importing
    ("PUT", "/mode/copy", {"mode": "IMPORT"}, 200, {"mode": "IMPORT"}),
    (
        "POST",
        "/subjects/copy/versions",
        {"schema": avro("Copy"), "id": 4711, "version": 3},
        200,
        {"subject": "copy", "version": 3, "id": 4711, "guid": TEXT},
    ),
    ("POST", "/subjects/copy/versions", {"schema": avro("Copy2"), "id": 4711, "version": 4}, 422, error(42207)),
    ("POST", "/subjects/copy/versions", {"schema": avro("Copy2")}, 422, error(42205)),
    # Deleting
    ("DELETE", "/subjects/user/versions/1", None, 422, error(42206)),
    ("DELETE", "/subjects/user", None, 422, error(42206)),
    ("DELETE", "/subjects/orders/versions/9", None, 404, error(40402)),
    ("DELETE", "/subjects/none", None, 404, error(40401)),
    ("DELETE", "/subjects/orders/versions/1?permanent=true", None, 404, error(40407)),
    ("DELETE", "/subjects/orders/versions/1", None, 200, 1),
    ("DELETE", "/subjects/orders/versions/1", None, 404, error(40406)),
    ("GET", "/subjects/orders/versions", None, 200, [2]),
    ("GET", "/subjects/orders/versions?deleted=true", None, 200, [1, 2]),
    ("GET", "/subjects/orders/versions?deletedOnly=true", None, 200, [1]),
    ("GET", "/subjects/orders/versions/1", None, 404, error(40402)),
    ("GET", "/subjects/orders/versions/1?deleted=true", None, 200, versions("orders", 1, 1, A1)),
    ("GET", "/schemas/ids/1", None, 200, {"schema": A1, "guid": TEXT}),
    ("GET", "/schemas/ids/1/versions", None, 200, []),
    ("GET", "/schemas/ids/1/versions?deleted=true", None, 200, [{"subject": "orders", "version": 1}]),
    ("DELETE", "/subjects/orders/versions/1?permanent=true", None, 200, 1),
    ("DELETE", "/subjects/orders?permanent=true", None, 404, error(40405)),
    ("DELETE", "/subjects/orders", None, 200, [2]),
    ("DELETE", "/subjects/orders", None, 404, error(40404)),
    ("GET", "/subjects?deleted_only=True", None, 200, ["orders"]),
    ("DELETE", "/subjects/orders?permanent=true", None, 200, [2]),
    ("GET", "/subjects?deleted=true", None, 200, ["copy", "json", "proto", "ref", "user"]),
    ("GET", "/schemas/ids/1", None, 200, {"schema": A1, "guid": TEXT}),
    # What is not served
    ("GET", "/nothing", None, 404, error(404, "nothing is served at /nothing")),
    ("GET", "/subjects/a/b/c/d/e/f", None, 404, error(404)),
    ("PUT", "/subjects", {}, 405, error(405, "/subjects has no PUT; use GET, HEAD")),
    ("DELETE", "/schemas/ids/1", None, 405, error(405)),
]


async def test_requests_get_exactly_these_answers() -> None:
    """One registry, from the first request to the last."""
    rest = Rest()
    for method, target, body in SETUP:
        assert (await rest.send(method, target, body)).status == 200
    wrong = []
    for method, target, body, status, wanted in TABLE:
        found = await rest.send(method, target, body)
        value = wanted == found.value if not isinstance(wanted, list) else _same(wanted, found.value)
        if found.status != status or not value:
            wrong.append((method, target, found.status, found.value))
    assert wrong == []


def _same(wanted: list[Any], found: Any) -> bool:
    """Compare lists; TEXT stands for any item of a list."""
    return (
        isinstance(found, list)
        and len(wanted) == len(found)
        and all(each is TEXT or each == given for each, given in zip(wanted, found, strict=True))
    )


def test_the_table_has_every_route() -> None:
    asked = {match(method, registry_target(target.encode()).segments).route for method, target, *_ in [*SETUP, *TABLE]}
    missing = [f"{each.method} {each.template}" for each in ROUTES if each not in asked]
    assert missing == ["GET /schemas/guids/{guid}/ids"]  # below: its path is known only then


async def test_a_schema_is_found_by_its_guid_whatever_its_case() -> None:
    rest = Rest()
    guid = (await rest.send("POST", "/subjects/a/versions", {"schema": A1})).value["guid"]
    assert (await rest.send("GET", f"/schemas/guids/{guid.upper()}")).value == {"schema": A1, "guid": guid}
    assert (await rest.send("GET", f"/schemas/guids/{guid}/ids")).value == [{"context": ".", "id": 1}]


async def test_tags_and_rules_are_kept_and_make_another_schema() -> None:
    rest = Rest()
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}]}
    body = {"schema": A1, "metadata": {"tags": {"**.id": ["PII"]}, "sensitive": ["s"]}, "ruleSet": rules}
    assert (await rest.send("POST", "/subjects/a/versions", {"schema": A1})).value["version"] == 1
    assert (await rest.send("POST", "/subjects/a/versions", body)).value["version"] == 2
    found = (await rest.send("GET", "/subjects/a/versions/2")).value
    assert found["ruleSet"] == rules
    assert found["metadata"] == {"tags": {"**.id": ["PII"]}, "sensitive": ["s"]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/vnd.schemaregistry+json"}, 200),
        ({"content-type": "application/octet-stream"}, 200),
        ({"content-type": ""}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"host": "registry.example.org:8081"}, 200),
        ({"host": "evil.example.org"}, 421),
        ({"origin": "http://evil.example.org"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_content_types_and_browsers(headers: dict[str, str], status: int) -> None:
    found = await Rest().send("POST", "/subjects/a/versions", {"schema": A1}, headers)
    assert found.status == status
    if status != 200:
        assert found.value == error(status)


async def test_a_broker_that_starts_says_so() -> None:
    rest = Rest()
    rest.broker.started = False
    assert (await rest.send("GET", "/subjects")).value == error(503, "the broker is starting; try again")


async def test_lists_of_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_TEXT_BYTES", 11 * len(avro("S10")))
    rest = Rest()
    for index in range(10, 30):
        assert (await rest.send("POST", f"/subjects/s{index}/versions", {"schema": avro(f"S{index}")})).status == 200
    assert (await rest.send("GET", "/schemas")).value == error(422)
    assert len((await rest.send("GET", "/schemas?limit=10&offset=10")).value) == 10
