"""New certificates while clients publish: no message fails, and each new connection gets the new certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker_harness import running_broker
from certificates import make_files

import danube
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
