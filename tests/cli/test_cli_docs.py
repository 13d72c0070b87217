"""README.md and docs/ name only existing commands, options, policies and limits. Examples compile."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from danube.cli.app import app
from danube.model import Limits
from danube.model.policies import SubscriptionPolicy, TopicPolicies

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
DELIVERY = TEXTS["delivery.md"]


def blocks(kind: str) -> Iterator[str]:
    for text in TEXTS.values():
        for indent, block in re.findall(rf"^( *)```{kind}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words begin with, and the words behind its name."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "get_command"):
        found = command.get_command(typer.Context(command), words[0])
        assert found is not None, f"there is no command {words[0]!r} in {command.name!r}"
        command, words = found, words[1:]
    return command, words


RUN = sorted({line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ danube ")})
NAMED = sorted({code for text in TEXTS.values() for code in re.findall(r"`(danube [a-z][^`\n]*)`", text)})


@pytest.mark.parametrize("line", RUN)
def test_commands_that_are_shown_can_be_run(line: str) -> None:
    command, words = find_command(shlex.split(line)[1:])
    command.make_context(line, words)  # raises what the command line would say


@pytest.mark.parametrize("code", NAMED)
def test_commands_that_are_named_exist(code: str) -> None:
    words = code.split()[1:]
    known = {option for parameter in find_command(words)[0].params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z=-]*", word)}
    assert used - {"--help"} <= known


def test_examples_compile() -> None:
    examples = list(blocks("python"))
    assert len(examples) >= 3
    for example in examples:
        compile(example, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of rows that begin with a name."""
    return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+)`", cell)


def test_every_policy_is_printed() -> None:
    printed = {name for row in table_rows(DELIVERY) for name in names_in(row[0])}
    assert set(SubscriptionPolicy.__struct_fields__) | set(TopicPolicies.__struct_fields__) <= printed


def test_limits_are_printed_as_they_are() -> None:
    checked = 0
    for names, values, _ in table_rows(DELIVERY.split("\n## Limits\n")[1]):
        for name, value in zip(names_in(names), values.split(", "), strict=True):
            limit = getattr(Limits(), name)
            if re.fullmatch(r"[\d,]+", value.strip()):
                assert int(value.replace(",", "")) == limit, name
                checked += 1
    assert checked > 10
