"""Many connections and few file descriptors: the journal keeps enough, and excess peers are refused early."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
import trio
from broker.broker_harness import running_broker, small_config, wait_until
from brokers import BrokerProcess
from descriptors import descriptors_left

import danube
from danube.broker import Broker, BrokerConfig, Seams
from danube.broker.run import run_broker
from danube.broker.runtime.descriptors import RESERVE, fit_to_descriptors, most_connections
from danube.model.errors import OutOfDescriptorsError, exit_code
from danube.model.limits import MIB, Limits

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
def test_connections_leave_descriptors_for_other_uses(descriptors: int) -> None:
    most = most_connections(descriptors)
    assert most >= 1
    admin = max(1, most // 16)
    if descriptors >= 16:
        assert descriptors - most - admin >= min(RESERVE, descriptors // 4)
        assert most > descriptors // 2 or descriptors < 600


def test_a_large_journal_raises_the_limit_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its files stay open: a start would find no descriptor for them, however few connections there may be."""
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda what: (1024, 500_000))
    monkeypatch.setattr("resource.setrlimit", lambda what, limits: raised.append(limits))
    config = small_config(tmp_path, limits={"max_connections": 160, "journal_max_bytes": 4000 * MIB})
    assert config.journal_files == 2000 + 64
    assert fit_to_descriptors(config.limits, config.journal_files) is config.limits
    assert raised == [(160 + 10 + RESERVE + 2064, 500_000)]


def test_limits_that_fit_stay_as_they_are() -> None:
    limits = Limits(max_connections=20)
    assert fit_to_descriptors(limits) is limits


@pytest.mark.timeout(180)  # each of some fifty starts
async def test_a_start_that_finds_no_descriptor_at_any_of_its_opens_is_refused_as_such(tmp_path: Path) -> None:
    """Lock, journal, metadata, storage, stages, listener: each of them meets the end of the descriptors in turn."""
    settings = {"storage": f"disk://{tmp_path}/bucket", "durability": "os"}
    config = small_config(
        tmp_path, **settings, listen=["127.0.0.1:0", "127.0.0.1:0"], limits={"start_descriptor_wait_s": 0.001}
    )
    async with (
        running_broker(tmp_path, **settings) as broker,
        danube.connect(broker.url) as client,
        client.producer(TOPIC) as producer,
    ):
        await producer.send_many([b"a", b"b"])
    missing = {"data directory", "metadata.db", "recovery of the journal", "disk", "listening on", "poller"}
    spare = 0
    for _ in range(300):
        try:
            with trio.fail_after(20), descriptors_left(spare):
                await start_once(config)
        except* OutOfDescriptorsError as error:
            found = leaf(error)
            assert exit_code(found) == 75
            assert "ulimit -n" in str(found)
            missing -= {step for step in missing if step in str(found).split(":")[0]}
            spare += 1
        else:
            if not missing:
                break
            spare -= 1  # of those that open at the same time, another one may meet the end
    else:
        raise AssertionError(f"it never starts, or is never refused by {missing}")
    async with running_broker(tmp_path, **settings) as broker, danube.connect(broker.url) as client:
        assert (await client.admin.describe_topic(TOPIC)).end_offset == 2


async def start_once(config: BrokerConfig) -> None:
    """Run a broker until it is ready."""
    seams = Seams(wall_clock_us=lambda: time.time_ns() // 1000, random=Random(1))
    broker = Broker(config, seams)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        broker.drain()


def leaf(error: BaseException) -> BaseException:
    """Return the first exception in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def test_a_process_without_a_descriptor_for_its_event_loop_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("danube.broker.run.fit_to_descriptors", lambda limits, files: limits)  # would raise it
    monkeypatch.setattr("danube.broker.run.keep_large_buffers", lambda: None)
    config = small_config(tmp_path)
    with descriptors_left(0):
        assert run_broker(config) == 75
    assert "error: the broker cannot run: no file descriptor is left" in capsys.readouterr().err
