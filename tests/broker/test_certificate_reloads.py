"""New certificates while clients publish: no message fails, and each new connection gets the new certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker_harness import running_broker
from certificates import make_files

import danube
from danube.model.security_api import ReloadedSecurity
from danube.wire import connect_channel
from danube.wire.tls import client_context

TOPIC = "/default/orders"


@pytest.mark.parametrize("reloads", [5, pytest.param(100, marks=pytest.mark.extended)])
async def test_certificates_are_replaced_under_publish_load(tmp_path: Path, reloads: int) -> None:
    files = make_files(tmp_path)
    cert, key = files.pair("server")
    sent = 0
    async with running_broker(tmp_path / "data", tls={"cert": cert, "key": key}, patience_s=120) as running:
        url, context = f"danube+tls://127.0.0.1:{running.port}", client_context(files.ca)
        done, under_way = trio.Event(), trio.Event()

        async def publish(reconnecting: bool) -> None:
            nonlocal sent
            while not done.is_set():
                async with danube.connect(url, ca=files.ca) as client, client.producer(TOPIC) as producer:
                    while not done.is_set():
                        await producer.send(b"order")
                        sent += 1
                        under_way.set()
                        if reconnecting:
                            break

        async with danube.connect(url, ca=files.ca) as client:
            await client.admin.create_topic(TOPIC)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, False)
            nursery.start_soon(publish, True)
            shown = set()
            for _ in range(reloads):
                under_way = trio.Event()
                await under_way.wait()  # between any two reloads messages are acknowledged
                files.pair("server")
                await running.broker.reload_certificates()
                async with connect_channel("127.0.0.1", running.port, tls=context) as channel:
                    certificate = channel.peer_certificate
                assert certificate is not None
                shown.add(certificate.der)
            done.set()
        assert len(shown) == reloads
        assert running.topic(TOPIC).end_offset == sent


async def test_a_call_says_whether_new_files_can_be_used(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    cert, key = files.pair("server", days=30)
    async with running_broker(tmp_path / "data", tls={"cert": cert, "key": key}) as running:
        async with danube.connect(f"danube+tls://127.0.0.1:{running.port}", ca=files.ca) as client:
            first = await client.security.reload()
            assert first.certificate_names == ["IP Address:127.0.0.1", "DNS:localhost"]
            files.pair("server", "127.0.0.1", "broker.example.org", days=60)
            second = await client.security.reload()
            assert second.certificate_names == ["IP Address:127.0.0.1", "DNS:broker.example.org"]
            assert second.certificate_expires_us > first.certificate_expires_us
            assert second.certificate_problem == ""
            files.pair("server", days=-0.5)  # expired
            third = await client.security.reload()
            assert "expired" in third.certificate_problem
            assert third.certificate_names == second.certificate_names
            files.remove("server")
            assert "server.pem" in (await client.security.reload()).certificate_problem
        context = client_context(files.ca)
        async with connect_channel("127.0.0.1", running.port, tls=context) as channel:
            assert channel.peer_certificate is not None
            assert ("DNS", "broker.example.org") in channel.peer_certificate.names


async def test_a_broker_without_tls_has_nothing_to_reload(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, danube.connect(running.url) as client:
        assert await client.security.reload() == ReloadedSecurity([], 0, "", [])
