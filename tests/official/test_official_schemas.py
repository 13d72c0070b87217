"""The official Python client with the schema registry: its whole interface, and what its producers do with it."""

from __future__ import annotations

import pytest
import trio
from official_client import Official

pytestmark = pytest.mark.timeout(300)


async def test_the_registry_as_the_client_uses_it(official: Official) -> None:
    subject = "official-subject"
    with trio.fail_after(120):
        async with official.schemas(subject=subject) as script:
            await script.until(lambda script: script.with_field("done"))
    steps = {line.pop("step"): line for line in script.with_field("step")}
    number = steps["register"]["ids"][0]
    assert number > 0
    assert steps["register"] == {"ids": [number] * 3, "versions": [1, 2]}
    assert steps["get"] == {"latest": [number, 2, "json_schema"], "old": [number, 1, True]}
    assert steps["compatibility"] == {"checked": [True, False, False, True, True], "refused": "FAILED_PRECONDITION"}
    assert steps["none"] == {"id": number, "versions": [1, 2, 3]}
    assert steps["deleted"] == {"success": True}
    producers = steps["producers"]
    assert "not found" in producers["unknown"] or producers["unknown"] == "FAILED_PRECONDITION"
    assert "cannot use" in producers["elsewhere"] or producers["elsewhere"] == "FAILED_PRECONDITION"
    assert producers["pinned"] != ""
    assert steps["messages"]["found"][:3] == [["1", number, 1], ["2", number, 2], ["3", number, 2]]
    assert steps["messages"]["found"][3][0] == "4"
    assert not steps["messages"]["found"][3][1]
    assert steps["configured"] == {"success": True, "config": [subject, "enforce", number]}
    assert steps["enforced"]["schema"] == ""
    assert steps["enforced"]["none"] != ""
    assert steps["warned"] == {"none": ""}
