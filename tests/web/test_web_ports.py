"""The HTTP port of a broker: bound first, bounded, guarded like the others, with and without TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import h11
import pytest
import trio
from broker.broker_harness import running_broker, small_config
from brokers import BrokerProcess
from certificates import make_files
from http_callers import Caller
from web_harness import API, Web, web_broker

import danube.web
from danube.broker.runtime import config as config_module
from danube.broker.runtime.config import BrokerConfig, make_config
from danube.model.errors import AddressTakenError, ConfigurationError, ExposedAddressError, exit_code

SMALL_FILES = ("--journal-file-size", "16MiB")


def test_the_ready_line_names_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES, http_listen="127.0.0.1:0") as broker:
        address = broker.ready_line.rstrip("\n").rpartition("; console http://")[2]
        assert address.startswith("127.0.0.1:")
        assert address.endswith("/")
        host, _, port = address.rstrip("/").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 200")
        assert broker.terminate() == 0


def test_a_configured_address_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--admin-listen", "none"]
        command = [sys.executable, "-m", "danube", *words, *SMALL_FILES, "--http-listen", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78 == exit_code(AddressTakenError())
    assert f"cannot listen on {address}" in done.stderr
    assert "--http-listen" in done.stderr
    assert done.stdout == ""


async def test_a_taken_default_address_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for module in (config_module, sys.modules["danube.broker.runtime.ports"]):
            monkeypatch.setattr(module, "DEFAULT_HTTP_PORT", port)
        async with running_broker(tmp_path, faces=(danube.web.face,)) as running:
            assert running.broker.http_addresses == []
    assert f"no HTTP API: port {port} of this machine is taken" in caplog.text


async def test_without_a_face_or_with_an_empty_list_there_is_none(tmp_path: Path) -> None:
    assert BrokerConfig().http_addresses == ("127.0.0.1:8650",)
    assert small_config(tmp_path, http_listen=[]).http_addresses == ()
    assert make_config({"http_listen": ["[::1]", "127.0.0.1:1"]}).http_addresses == ("[::1]:8650", "127.0.0.1:1")
    for wrong in (
        {"http_listen": ["127.0.0.1:99999"]},
        {"http_allowed_hosts": ["http://x"]},
        {"http_allowed_hosts": [""]},
    ):
        with pytest.raises(ConfigurationError):
            make_config(wrong)
    async with running_broker(tmp_path / "a") as running:
        assert running.broker.http_addresses == []
    async with running_broker(tmp_path / "b", faces=(danube.web.face,), http_listen=[]) as running:
        assert running.broker.http_addresses == []


async def test_other_machines_are_kept_out_unless_the_risk_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ExposedAddressError, match=r"other machines can reach 0\.0\.0\.0:"):
        async with web_broker(tmp_path / "a", http_listen=["0.0.0.0:0"]):
            pass
    async with web_broker(tmp_path / "b", http_listen=["0.0.0.0:0"], insecure=True) as web:
        assert (await web.ask("GET", "/livez")).status == 200


async def test_it_answers_while_the_broker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go = trio.Event(), trio.Event()
    recover = sys.modules["danube.broker.broker"].recover  # type: ignore[attr-defined]

    async def waiting(*arguments: object, **named: object) -> object:
        reached.set()
        await go.wait()
        return await recover(*arguments, **named)

    monkeypatch.setattr("danube.broker.broker.recover", waiting)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            from broker.broker_harness import RunningBroker

            config = small_config(tmp_path, http_listen=["127.0.0.1:0"])
            running = RunningBroker(config, nursery, (danube.web.face,))
            nursery.start_soon(running.start)
            await reached.wait()
            web = Web(running)
            assert (await web.ask("GET", "/livez")).status == 200
            unready = await web.ask("GET", "/readyz")
            assert (unready.status, unready.data[:24]) == (503, b"the broker is starting: ")
            assert (await web.ask("GET", "/startupz")).status == 503
            refused = await web.ask("GET", f"{API}/topics")
            assert (refused.status, refused.json["code"]) == (503, "call-refused")
            assert refused.headers["retry-after"] == "1"
            assert (await web.ask("GET", f"{API}/openapi.json")).status == 200
            go.set()
            await running.broker.wait_started()
            assert (await web.ask("GET", "/readyz")).status == 200
            assert (await web.ask("GET", f"{API}/topics")).status == 200
            await running.drain()


async def test_tls_is_that_of_the_other_ports_and_offers_http_1(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    cert, key = files.pair("broker", "127.0.0.1")
    async with web_broker(tmp_path / "data", topics=[], tls={"cert": cert, "key": key}) as web:
        context = ssl.create_default_context(cafile=files.ca)
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with await trio.open_tcp_stream("127.0.0.1", web.port) as plain:
            stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True)
            caller = Caller(stream)
            answer = await caller.ask(
                "POST", f"{API}/topics", {"Content-Type": "application/json"}, b'{"topic":"/default/t"}'
            )
            assert answer.status == 201
            assert stream.selected_alpn_protocol() == "http/1.1", "browsers would choose h2"
            body = b'{"messages":[{"payload":"x"}]}'
            kind = {"Content-Type": "application/json"}
            assert (await caller.ask("POST", f"{API}/topics/default/t/messages", kind, body)).status == 201
        async with web.connection() as unsure:
            await unsure.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            said = await unsure.rest()
            assert said.startswith(b"HTTP/1.1 400")
            assert b"https://" in said


async def test_many_requests_at_once(tmp_path: Path) -> None:
    """Publishers, readers and a caller that asks for everything, on more connections than are served at a time."""
    async with web_broker(tmp_path, patience_s=60, limits={"http_max_connections": 40}) as web:
        statuses: list[int] = []

        async def work(number: int) -> None:
            try:
                body = {"messages": [{"payload": str(number)}]}
                statuses.append((await web.ask("POST", f"{API}/topics/default/orders/messages", body)).status)
                statuses.append((await web.ask("GET", f"{API}/topics/default/orders/messages?limit=1")).status)
            except (h11.RemoteProtocolError, OSError, trio.BrokenResourceError, AssertionError):
                statuses.append(0)  # refused: too many

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(work, number)
        assert statuses.count(201) == 30
        assert statuses.count(200) == 30
        page = await web.get(f"{API}/topics/default/orders/messages")
        assert sorted(int(each["payload"]) for each in page["messages"]) == list(range(30))
