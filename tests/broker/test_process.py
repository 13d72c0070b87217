"""The broker as a process: signals, locks, addresses, exit codes, and restarts after ``kill -9``."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RawConsumer, raw_consumer, read_all, wait_until
from brokers import BrokerProcess

import danube
from danube.model import api
from danube.model.batch import count_records
from danube.model.errors import BrokerDrainingError
from danube.wire import connect_channel

TOPIC = "/default/t"
SMALL_FILES = ("--journal-file-size", "16MiB", "--log-level", "warning")


def serve(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to end by itself."""
    command = [sys.executable, "-m", "danube", "serve", "--admin-listen", "none", "--http-listen", "none", *options]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=cwd, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_nothing_acknowledged_is_lost(tmp_path: Path, number: signal.Signals) -> None:
    acknowledged: list[bytes] = []
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker, trio.fail_after(40):
        assert "durability disk" in broker.ready_line
        assert f"pid {broker.pid}" in broker.ready_line
        async with connect_channel("127.0.0.1", broker.port) as channel, danube.connect(broker.url) as client:
            async with client.producer(TOPIC, name="p") as producer, trio.open_nursery() as nursery:

                async def produce() -> None:
                    number = 0
                    while not stop:
                        await producer.send(b"%d" % number)
                        acknowledged.append(b"%d" % number)
                        number += 1

                stop = False
                nursery.start_soon(produce)
                async with raw_consumer(channel, TOPIC) as consumer:
                    await wait_until(lambda: len(acknowledged) >= 200)
                    os.kill(broker.pid, number)
                    # Streams close with a status that tells to come back.
                    with pytest.raises(BrokerDrainingError) as caught:
                        await consumer.reply_of(api.AcksFlushed)
                    assert caught.value.retryable
                code = await trio.to_thread.run_sync(wait_for_end, broker)
                assert code == 0
                count = len(acknowledged)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", broker.port), timeout=1).close()
                broker._close()
                await trio.to_thread.run_sync(broker.start)
                await wait_until(lambda: len(acknowledged) >= count + 50)
                stop = True
            assert await read_all(client, TOPIC) == acknowledged == [b"%d" % one for one in range(len(acknowledged))]


def wait_for_end(broker: BrokerProcess) -> int:
    assert broker._process is not None
    return broker._process.wait(20)


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker:
        done = serve("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", cwd=tmp_path)
        assert done.returncode == 78
        assert f"process {broker.pid}" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        assert broker.poll() is None


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve("--data-dir", str(tmp_path / "data"), "--listen", address, *SMALL_FILES, cwd=tmp_path)
    assert done.returncode == 65
    assert f"cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr
    # The lock was given back.
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker:
        assert broker.terminate() == 0


def test_an_admin_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = BrokerProcess(tmp_path / "data", *SMALL_FILES, stderr=tmp_path / "log", admin_listen=address)
        broker.launch()
        assert not broker.wait_ready()
        assert broker.wait() == 65
    said = (tmp_path / "log").read_text()
    assert f"cannot listen on {address}" in said
    assert "--admin-listen" in said
    assert "Traceback" not in said


def test_the_admin_port_can_be_switched_off(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker:
        assert "; admin on" not in broker.ready_line
    with BrokerProcess(tmp_path / "data", *SMALL_FILES, admin_listen="127.0.0.1:0") as broker:
        found = re.search(r"; admin on 127\.0\.0\.1:(\d+); data in", broker.ready_line)
        assert found is not None
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=5).close()


def test_a_data_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for where in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/danube-data")):
        done = serve("--data-dir", str(where), "--listen", "127.0.0.1:0", cwd=tmp_path)
        assert done.returncode == 78
        assert f"data directory {where}" in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "not a directory"


def test_bad_configuration_is_one_line_and_exit_code_65(tmp_path: Path) -> None:
    (tmp_path / "danube.toml").write_text('listn = ["127.0.0.1:0"]\n')
    done = serve("--config", "danube.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    assert "danube.toml: unknown setting 'listn'; did you mean 'listen'?" in done.stderr


def test_an_engine_that_lacks_a_guarantee_is_exit_code_78(tmp_path: Path) -> None:
    """Its reason is said, and the journal is not touched."""
    (tmp_path / "toy.py").write_text(
        "from danube.metadata import Capabilities, MemoryStore\n"
        "from danube.metadata.memory import MemoryPlugin\n"
        "class Store(MemoryStore):\n"
        "    capabilities = Capabilities(durable=True, linearizable=False, watch_replay=True, leases=True)\n"
        "class Plugin(MemoryPlugin):\n"
        "    def open(self, config, surroundings):\n"
        "        return Store()\n"
    )
    package = tmp_path / "toy-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[danube.metadata]\ntoy = toy:Plugin\n")
    (tmp_path / "danube.toml").write_text('[metadata]\nurl = "toy"\n')
    done = serve("--config", "danube.toml", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    assert "error: the metadata engine 'toy' cannot be used by one broker: it is not linearizable" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "danube-data").glob("journal-*"))


async def test_flushed_acks_are_exact_after_kill_9(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker, trio.fail_after(40):
        async with danube.connect(broker.url) as client, client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(100)])
        async with (
            connect_channel("127.0.0.1", broker.port) as channel,
            raw_consumer(channel, TOPIC, "ordered") as ordered,
            raw_consumer(channel, TOPIC, "ranges", kind="shared") as ranges,
        ):
            for consumer in (ordered, ranges):
                consumer.credit(1000)
                await received(consumer, 100)
            ordered.send(api.AckCumulative(41))
            ranges.send(api.Ack([0, 10, 20, 30]))
            ranges.send(api.Ack([50, 51, 60, 70]))
            ordered.send(api.FlushAcks(1))
            ranges.send(api.FlushAcks(1))
            await ordered.reply_of(api.AcksFlushed)
            await ranges.reply_of(api.AcksFlushed)
            broker.kill()
        await trio.to_thread.run_sync(broker.start)
        async with danube.connect(broker.url) as client, connect_channel("127.0.0.1", broker.port) as channel:
            (ordered_info,) = await client.admin.describe_subscription(TOPIC, "ordered")
            (ranges_info,) = await client.admin.describe_subscription(TOPIC, "ranges")
            assert ordered_info.floor == 42
            assert (ranges_info.floor, ranges_info.acked_ranges) == (10, 3)
            assert ranges_info.backlog_messages == 100 - 31
            async with raw_consumer(channel, TOPIC, "ranges", kind="shared") as ranges_again:
                ranges_again.credit(1000)
                offsets = await received(ranges_again, 69)
        acked = {*range(10), *range(20, 30), 50, *range(60, 70)}
        assert offsets == [offset for offset in range(100) if offset not in acked]


async def received(consumer: RawConsumer, count: int) -> list[int]:
    """Return the offsets of the next ``count`` messages."""
    offsets: list[int] = []
    while len(offsets) < count:
        delivery = await consumer.reply_of(api.ConsumeBatch)
        records = count_records(delivery.part)
        flat = delivery.ranges or [delivery.base_offset, delivery.base_offset + records]
        for start, end in zip(flat[::2], flat[1::2], strict=True):
            offsets.extend(range(start, end))
    return offsets


DEFAULT_PORTS = (6650, 50051, 8650, 8081)


def ready_line_of_defaults(directory: Path) -> tuple[str, str]:
    """Start and stop ``danube serve`` without options; return its ready line and its log."""
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "danube", "serve"]
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=20)[1]
        finally:
            process.kill()
    assert process.returncode == (0 if line else 65), log
    return line, log


def test_without_configuration_the_defaults_hold(tmp_path: Path) -> None:
    """``danube serve`` alone: port 6650, admin port 50051, HTTP 8650, registry 8081, ./danube-data, durability disk."""
    deadline = time.monotonic() + 90
    while True:
        line, log = ready_line_of_defaults(tmp_path)
        # A port that another process of this machine has for a moment (another test, a connection whose own end it is)
        # is refused or left out, and the log names it. Then the start is repeated.
        taken = [port for port in DEFAULT_PORTS if f"127.0.0.1:{port}" in log or f"port {port} of" in log]
        if not taken or time.monotonic() > deadline:
            break
        time.sleep(1)
    assert "listening on 127.0.0.1:6650; admin on 127.0.0.1:50051; data in ./danube-data; durability disk" in line, log
    assert line.endswith("; schema registry http://127.0.0.1:8081/; console http://127.0.0.1:8650/\n"), log
    assert (tmp_path / "danube-data" / "lock").exists()
