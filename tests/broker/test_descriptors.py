"""Many connections and few file descriptors: the journal gets what it needs, and peers are told early."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from broker_harness import wait_until
from brokers import BrokerProcess

import danube
from danube.broker.runtime.descriptors import RESERVE, fit_to_descriptors, most_connections
from danube.model.limits import Limits

TOPIC = "/default/t"


def limited(directory: Path, soft: int, hard: int) -> BrokerProcess:
    """A broker whose process may open so many files."""
    shell = ["bash", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "bash"]
    options = ("--journal-file-size", "16MiB", "--durability", "os")
    return BrokerProcess(directory / "data", *options, prefix=shell, stderr=directory / "stderr")


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    with limited(tmp_path, 200, 700) as broker:
        limits = Path(f"/proc/{broker.pid}/limits").read_text()
        assert re.search(r"Max open files +700 +700 ", limits)


async def test_connections_leave_descriptors_to_the_journal(tmp_path: Path) -> None:
    """The default of 1,024 and 1,500 idle connections ended a broker at the next roll of its journal."""
    with limited(tmp_path, 200, 200) as broker, ExitStack() as idle, trio.fail_after(60):
        async with danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
            for _ in range(400):
                idle.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            for _ in range(5):  # several files of the journal
                await producer.send_many([bytes(1_000_000)] * 8)
            assert (await client.admin.describe_topic(TOPIC)).end_offset == 40
            await wait_until(lambda: refused(tmp_path)[0] == 400 + 1 - most_connections(200))
        assert broker.poll() is None
    said = (tmp_path / "stderr").read_text()
    assert f"it takes {most_connections(200)} connections and not max_connections = 10000" in said
    assert "Too many open files" not in said
    _, lines, opened = refused(tmp_path)
    assert lines < 30
    assert opened == {most_connections(200)}


def refused(directory: Path) -> tuple[int, int, set[int]]:
    """Return how many connections were refused, in how many lines, and how many were open then."""
    found = re.findall(r"(\d+) connections were refused: (\d+) are open", (directory / "stderr").read_text())
    return sum(int(count) for count, _ in found), len(found), {int(opened) for _, opened in found}


@pytest.mark.parametrize("descriptors", [1, 2, 16, 100, 1024, 4096, 11_000])
def test_what_connections_leave(descriptors: int) -> None:
    most = most_connections(descriptors)
    assert most >= 1
    admin = max(1, most // 16)
    if descriptors >= 16:
        assert descriptors - most - admin >= min(RESERVE, descriptors // 4)
        assert most > descriptors // 2 or descriptors < 600


def test_limits_that_fit_stay_as_they_are() -> None:
    limits = Limits(max_connections=20)
    assert fit_to_descriptors(limits) is limits
