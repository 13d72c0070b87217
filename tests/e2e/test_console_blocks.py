"""The console blocks of the documents are executed, block after block, and print what is written there.

Each document has a broker of its own, and *scenes*: what happens between its blocks, such as an application that
refuses a message, or a service that answers requests. ``...`` in a document stands for any lines. Times, rates, process
ids and sizes are replaced before the comparison, and so is the width of columns.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from anyio.from_thread import start_blocking_portal
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli.app import app
from danube.client import Message, sync
from danube.model.errors import TopicNotFoundError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
NEEDS_SPARK = ("danube pipeline",)
"""Commands with the flights of 2013 in Spark; tests/spark runs them."""

PATIENCE_S = 30.0
ORDERS = "/default/orders"

Scene = Callable[[str], AbstractContextManager[object]]
"""Receives the broker's URL, and prepares what a block shows, while the block runs."""


class Command(NamedTuple):
    line: str
    output: str


def console_blocks(text: str) -> list[list[Command]]:
    """Return the commands of each console block with a prompt; blocks without one are for the reader's own shell."""
    blocks = []
    for indent, block in re.findall(r"^( *)```console\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        plain = re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)
        found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", plain, re.MULTILINE)
        if found:
            blocks.append([Command(line, output) for line, output in found])
    return blocks


def normalized(output: str) -> str:
    """Replace what differs from run to run: times, rates, ids, sizes in bytes, and the width of columns."""
    lines = []
    in_bytes = False
    for line in output.splitlines():
        text = " ".join(line.split())
        text = re.sub(r"\d+(\.\d+)? s: [\d,.]+ messages/s", "N s: N messages/s", text)
        text = re.sub(r"\b(\d{1,3}\.){3}\d{1,3}:\d+", "ADDRESS", text)
        text = re.sub(r"\bdata in \S+;", "data in DIRECTORY;", text)
        text = re.sub(r"\bpid \d+", "pid N", text)
        text = re.sub(r"\b\d{15,}\b", "N", text)
        text = re.sub(r"\b(producer|consumer)-[0-9a-f]{16}\b", r"\1-X", text)
        text = re.sub(r"\b(since|for) \d+(\.\d+)? s\b", r"\1 N s", text)
        if re.search(r"\bbytes\b", text):
            in_bytes = True
        elif in_bytes:
            text = re.sub(r"\b(\d+\.\d+|\d{2,})\b", "N", text)
        lines.append(text)
    return "\n".join(lines)


def pattern(expected: str) -> str:
    """Return a regular expression for a normalized output, in which a line ``...`` is any number of lines."""
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in expected.splitlines()]
    return "".join(lines)


def run(line: str, url: str, http: str = "", registry: str = "") -> str:
    """Run one command, in this process if it is ours, and return what it prints.

    ``http`` and ``registry`` replace the default URLs.
    A delivery time becomes tomorrow, since the one that is shown is in the past or beyond the limit sooner or later.
    """
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    line = re.sub(r"--deliver-at \S+", f"--deliver-at {tomorrow:%Y-%m-%dT%H:%M:%SZ}", line)
    environment = {"DANUBE_URL": url, "XDG_CONFIG_HOME": "/nonexistent", "NO_COLOR": "1"}
    if not line.startswith("danube "):
        line = line.replace("http://127.0.0.1:8650", http).replace("http://127.0.0.1:8081", registry)
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=os.environ
        )
        return done.stdout
    result = CliRunner().invoke(app, shlex.split(line)[1:], env=environment)
    assert result.exit_code == 0, f"$ {line}\n{result.output}"
    return result.output


# --- Scenes -----------------------------------------------------------------------------------------------------------


def refuse_unreadable(client: sync.Client) -> None:
    """Be the program behind ``billing``: refuse orders whose total is not a number, as often as they are delivered."""
    with client.consumer(ORDERS, subscription="billing") as consumer:
        for message in consumer:
            if b'"much"' not in message.payload:
                message.ack()
                continue
            message.nack(reason="total is no number")
            if message.attempt == 3:
                return


def await_letter(client: sync.Client) -> None:
    """Wait until there is a message in the dead-letter topic, which the first one creates."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with client.reader(f"{ORDERS}-billing-dlq", start="earliest") as letters:
                letters.receive(timeout_s=PATIENCE_S)
                return
        except TopicNotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def a_letter(url: str) -> Iterator[None]:
    """A message that was refused too often is in the dead-letter topic."""
    with sync.connect(url) as client:
        refuse_unreadable(client)
        await_letter(client)
    yield


@contextmanager
def three_orders(url: str) -> Iterator[None]:
    """Three orders, all of them billed."""
    with sync.connect(url) as client:
        with client.producer(ORDERS) as producer:
            producer.send_many([b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'])
        with client.consumer(ORDERS, subscription="billing", start="earliest") as consumer:
            for batch in consumer.batches(until_caught_up=True):
                batch.ack()
    yield


@contextmanager
def a_letter_and_a_block(url: str) -> Iterator[None]:
    """One message is a dead letter, and the next one blocks its subscription."""
    with sync.connect(url) as client, client.producer(ORDERS) as producer:
        producer.send(b'{"id": 4, "user": "bob", "total": "much"}', key="bob")
        refuse_unreadable(client)
        await_letter(client)
        run(f"danube subscriptions policy {ORDERS} billing --poison block --max-redelivery 0", url)
        producer.send(b'{"id": 5, "user": "bob", "total": "much"}', key="bob")
        with client.consumer(ORDERS, subscription="billing") as consumer:
            consumer.receive(timeout_s=PATIENCE_S).nack(reason="total is no number")
            consumer.flush_acks()
            yield


@contextmanager
def a_price_service(url: str) -> Iterator[None]:
    """The responder of the text runs."""

    async def handle(message: Message) -> bytes:
        return b"12.50 " + message.payload

    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(danube.connect(url)) as client,
        portal.wrap_async_context_manager(client.responder("/default/prices", handle)),
    ):
        yield


SCENES: dict[tuple[str, str], Scene] = {
    ("README.md", "danube dlq list"): a_letter,
    ("docs/delivery.md", "danube subscriptions policy"): three_orders,
    ("docs/delivery.md", "danube subscriptions explain"): a_letter_and_a_block,
    ("docs/delivery.md", "danube request"): a_price_service,
}
"""By document and the beginning of the command that they precede."""


def scene(document: str, line: str, url: str) -> AbstractContextManager[object]:
    for (where, command), prepare in SCENES.items():
        if where == document and line.startswith(command):
            return prepare(url)
    return nullcontext()


@pytest.mark.extended
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if console_blocks((ROOT / name).read_text())])
def test_console_blocks_print_what_they_show(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = console_blocks((ROOT / document).read_text())
    monkeypatch.chdir(tmp_path)
    differences = []
    data, quiet, address = tmp_path / "data", ("--log-level", "warning"), "127.0.0.1:0"
    with BrokerProcess(data, *quiet, http_listen=address, registry_listen=address) as broker:
        found = re.search(r"; schema registry (\S+)/;", broker.ready_line)
        assert found is not None
        http = broker.ready_line.rstrip().rpartition("; console ")[2].rstrip("/")
        for command in (command for block in blocks for command in block):
            if command.line.startswith(NEEDS_SPARK):
                continue
            with scene(document, command.line, broker.url):
                output = run(command.line, broker.url, http, found.group(1))
            if re.fullmatch(pattern(normalized(command.output)), normalized(output) + "\n" if output else "") is None:
                differences.append(f"$ {command.line}\n{output}")
    assert not differences, f"{document} does not show what these commands print:\n" + "\n".join(differences)


def test_the_ready_line_is_the_one_that_is_shown(shared_broker: BrokerProcess) -> None:
    shown = re.findall(r"^danube .* ready: .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(shown) == 1
    alone = re.sub(r" admin on [^;]*;|; schema registry [^;]*|; console .*$", "", shown[0])  # it has none of the two
    assert normalized(shared_broker.ready_line) == normalized(alone)


def test_differences_are_found() -> None:
    shown = "3 messages, 112 B in 0.00 s: 753 messages/s\ntopic  stored bytes\n/a               252\n...\nend\n"
    same = "3 messages, 112 B in 1.25 s: 7 messages/s\ntopic stored bytes\n/a  97\nfirst\nsecond\nend\n"
    assert re.fullmatch(pattern(normalized(shown)), normalized(same) + "\n")
    for change in (("3 messages", "4 messages"), ("/a", "/b"), ("end", "other"), ("112 B", "113 B")):
        assert not re.fullmatch(pattern(normalized(shown)), normalized(same.replace(*change)) + "\n")
