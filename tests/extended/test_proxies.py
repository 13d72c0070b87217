"""Real proxies between client and broker: they end connections and streams for reasons of their own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from ports import free_port

import danube
from danube.client import Client

pytestmark = pytest.mark.extended

TOPIC = "/default/t"
PATIENCE_S = 60.0
READY_S = 10.0

NGINX = """
daemon off;
worker_processes 1;
error_log {directory}/error.log info;
pid {directory}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port} http2;
        keepalive_requests {requests};
        client_max_body_size 0;
        location / {{
            grpc_pass grpc://127.0.0.1:{broker};
            grpc_read_timeout {idle_s}s;
            grpc_send_timeout {idle_s}s;
        }}
    }}
}}
"""

HAPROXY = """
global
    hard-stop-after 3s
defaults
    mode http
    timeout connect 5s
    timeout client {idle_s}s
    timeout server {idle_s}s
frontend front
    bind 127.0.0.1:{port} proto h2
    default_backend back
backend back
    server broker 127.0.0.1:{broker} proto h2
"""


class Proxy:
    """One of the two, in front of a broker, on a port of its own."""

    def __init__(self, name: str, directory: Path, broker: BrokerProcess, *, idle_s: int, requests: int = 1000) -> None:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is missing: run tests/extended/install-debian-packages")
        self.name = name
        self.port = free_port()
        self._file = directory / f"{name}.conf"
        settings = {"directory": directory, "port": self.port, "broker": broker.port}
        text = NGINX if name == "nginx" else HAPROXY
        self._file.write_text(text.format(**settings, idle_s=idle_s, requests=requests))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"danube://127.0.0.1:{self.port}"

    def _start(self, *more: str) -> None:
        if self.name == "nginx":
            command = ["nginx", "-c", str(self._file)]
        else:
            command = ["haproxy", "-f", str(self._file), *more]
        self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        self._start()
        try:
            deadline = time.monotonic() + READY_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, f"{self.name} does not listen"
                    time.sleep(0.05)
            yield self
        finally:
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def reload(self) -> None:
        """Put a new process in the place of the old one, which lets go of its connections."""
        if self.name == "nginx":
            self._processes[0].send_signal(signal.SIGHUP)
        else:
            self._start("-sf", str(self._processes[-1].pid))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as found:
        yield found


async def publish(client: Client, first: int, count: int, pause_s: float) -> None:
    async with client.producer(TOPIC, name="publisher") as producer:
        for number in range(first, first + count):
            await producer.send(b"%d" % number)
            await trio.sleep(pause_s)


async def consume(client: Client, count: int, done: trio.Event) -> None:
    """Take messages in their order; what was acknowledged does not come again."""
    acknowledged = -1
    async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
        while acknowledged < count - 1:
            message = await consumer.receive()
            assert message.offset <= acknowledged + 1
            assert message.payload == b"%d" % message.offset
            acknowledged = max(acknowledged, message.offset)
            await message.ack()
        await consumer.flush_acks()
    done.set()


def test_nginx_retires_a_connection_after_so_many_requests(broker: BrokerProcess, tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with danube.connect(proxy.url) as client, trio.open_nursery() as nursery:
                await client.admin.create_topic(TOPIC)
                done = trio.Event()
                nursery.start_soon(consume, client, 100, done)
                with trio.fail_after(PATIENCE_S / 3):  # the consumer's stream stays on the first connection
                    for _ in range(30):
                        assert (await client.admin.describe_topic(TOPIC)).topic == TOPIC
                    await publish(client, 0, 100, 0)
                    await done.wait()

    with Proxy("nginx", tmp_path, broker, idle_s=60, requests=5).running() as proxy:
        trio.run(main)


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_proxy_ends_streams_that_are_silent(name: str, broker: BrokerProcess, tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with danube.connect(proxy.url) as client:
                await client.admin.create_topic(TOPIC)
                async with (
                    client.producer(TOPIC) as producer,
                    client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
                ):
                    for number in range(4):
                        assert (await producer.send(b"%d" % number)).offset == number
                        message = await consumer.receive()
                        assert message.payload == b"%d" % number
                        await message.ack()
                        await consumer.flush_acks()
                        await trio.sleep(2.5)

    with Proxy(name, tmp_path, broker, idle_s=1).running() as proxy:
        trio.run(main)


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_proxy_is_reloaded_under_load(name: str, broker: BrokerProcess, tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with danube.connect(proxy.url) as client, trio.open_nursery() as nursery:
                await client.admin.create_topic(TOPIC)
                done = trio.Event()
                nursery.start_soon(consume, client, 300, done)
                nursery.start_soon(publish, client, 0, 300, 0.03)
                for _ in range(2):
                    await trio.sleep(1.5)
                    proxy.reload()
                await done.wait()
                assert (await client.admin.describe_topic(TOPIC)).end_offset == 300

    with Proxy(name, tmp_path, broker, idle_s=60).running() as proxy:
        trio.run(main)


def test_a_broker_restarts_behind_a_proxy(broker: BrokerProcess, tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with danube.connect(proxy.url) as client, trio.open_nursery() as nursery:
                await client.admin.create_topic(TOPIC)
                done = trio.Event()
                nursery.start_soon(consume, client, 200, done)
                nursery.start_soon(publish, client, 0, 200, 0.03)
                await trio.sleep(1)
                await trio.to_thread.run_sync(broker.terminate)
                await trio.sleep(1)
                await trio.to_thread.run_sync(broker.start)
                await done.wait()
                assert (await client.admin.describe_topic(TOPIC)).end_offset == 200

    with Proxy("nginx", tmp_path, broker, idle_s=60).running() as proxy:
        trio.run(main)
