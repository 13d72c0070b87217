"""The schema registry over HTTP, by the native names."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from web_harness import API, web_broker

SUBJECT = f"{API}/schemas/{quote('/default/orders-value', safe='')}"


def order(*more: dict[str, object]) -> dict[str, object]:
    fields = [{"name": "id", "type": "long"}, *more]
    return {"schema_type": "avro", "text": json.dumps({"type": "record", "name": "Order", "fields": fields})}


NOTE = {"name": "note", "type": "string"}


async def test_schemas_are_registered_compared_shown_and_deleted(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        first = await web.post(f"{SUBJECT}/versions", {"schema": order(), "description": "the first"})
        assert (first["version"], first["is_new"]) == (1, True)
        again = await web.post(f"{SUBJECT}/versions", {"schema": order()})
        assert (again["version"], again["number"], again["is_new"]) == (1, first["number"], False)

        refused = await web.ask("POST", f"{SUBJECT}/versions", {"schema": order(NOTE)})
        assert (refused.status, refused.json["code"]) == (409, "incompatible-schema")
        checked = await web.post(f"{SUBJECT}:check", {"schema": order(NOTE)})
        assert not checked["is_compatible"]
        assert "note" in checked["objections"][0]["text"]
        second = await web.post(f"{SUBJECT}/versions", {"schema": order({**NOTE, "default": ""}), "tags": ["draft"]})
        assert second["version"] == 2

        (row,) = (await web.get(f"{API}/schemas?prefix=/default/"))["subjects"]
        assert (row["subject"], row["versions"], row["level"]) == ("/default/orders-value", 2, "backward")
        assert (await web.get(f"{API}/schemas?after=/default/orders-value"))["subjects"] == []
        shown = await web.get(SUBJECT)
        assert [(each["version"], each["tags"]) for each in shown["versions"]] == [(1, []), (2, ["draft"])]
        latest = await web.get(f"{SUBJECT}/versions/-1")
        assert (latest["version"], json.loads(latest["text"])["fields"][1]["default"]) == (2, "")

        changed = await web.ask("PATCH", SUBJECT, {"level": "none", "mode": "read-only"})
        assert (changed.json["own"]["level"], changed.json["effective"]["mode"]) == ("none", "readonly")
        assert (await web.ask("POST", f"{SUBJECT}/versions", {"schema": order(NOTE)})).json["code"] == "schema-mode"
        await web.ask("PATCH", SUBJECT, {"mode": ""})

        assert (await web.ask("DELETE", f"{SUBJECT}/versions/1")).json == {"versions": [1]}
        assert [each["version"] for each in (await web.get(SUBJECT))["versions"]] == [2]
        assert [each["version"] for each in (await web.get(f"{SUBJECT}?deleted=true"))["versions"]] == [1, 2]
        assert (await web.ask("DELETE", SUBJECT)).json == {"versions": [2]}
        assert (await web.get(f"{API}/schemas"))["subjects"] == []


async def test_what_is_no_version_or_subject_is_told(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        missing = await web.ask("GET", SUBJECT)
        assert (missing.status, missing.json["code"]) == (404, "subject-not-found")
        for version in ("0", "x", "-2", "9" * 12):
            said = await web.ask("GET", f"{SUBJECT}/versions/{version}")
            assert (said.status, said.json["code"]) == (400, "invalid-argument"), version
        broken = {"schema": {"schema_type": "avro", "text": "{"}}
        assert (await web.ask("POST", f"{SUBJECT}/versions", broken)).status == 400
        assert (await web.ask("PATCH", SUBJECT, {"level": "sideways"})).status == 400
