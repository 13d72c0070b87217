"""The program in docs/schemas.md does what the page says: its assertions hold."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from broker.broker_harness import running_broker

PAGE = Path(__file__).parents[2] / "docs" / "schemas.md"

pytestmark = pytest.mark.virtual


async def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) == text.count("```python") >= 6
    async with running_broker(tmp_path) as running, running.client() as client:
        names = {"client": client, "__name__": "page"}
        for block in blocks:
            # The lines in a traceback are those of the page.
            source = "\n" * text[: block.start(1)].count("\n") + block[1]
            code = compile(source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if inspect.iscoroutine(result):
                await result
        assert {row.subject for row in await client.schemas.subjects()} == {"/default/orders-value"}
