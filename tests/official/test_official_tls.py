"""The official client with TLS and with client certificates, and grpcio at both ports."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trio
from brokers import BrokerProcess
from certificates import Files, make_files
from official_client import Official, Script
from ports import free_port

from danube.compat.proto import danube_admin_pb2 as admin_pb


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


@pytest.fixture
def broker(files: Files) -> Iterator[BrokerProcess]:
    cert, key = files.pair("broker")
    options = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", files.ca, "--tls-client-auth", "optional")
    with BrokerProcess(
        files.directory / "data",
        *options,
        stderr=files.directory / "log",
        admin_listen=f"127.0.0.1:{free_port()}",
    ) as process:
        yield process


@pytest.mark.parametrize("mutual", [False, True])
async def test_messages_of_the_official_client(
    files: Files, broker: BrokerProcess, tmp_path: Path, mutual: bool
) -> None:
    official = Official(broker, "/default/tls", tmp_path)
    job = {"url": f"https://127.0.0.1:{broker.port}", "ca": files.ca}
    if mutual:
        cert, key = files.pair("client", "danube://danube/service/orders")
        job |= {"cert": cert, "key": key}

    def settled(script: Script) -> bool:
        return len(script.acked) == 20

    with trio.fail_after(40):
        async with (
            official.producing(count=20, **job) as producer,
            official.consuming(**job) as consumer,
        ):
            await producer.go()
            await producer.done()
            await consumer.until(settled)
            await consumer.stop()
    assert consumer.texts == producer.sent
    assert consumer.messages[0]["broker_addr"].startswith(f"https://127.0.0.1:{broker.port}")


def test_grpcio_at_the_admin_port_and_a_new_certificate(files: Files, broker: BrokerProcess) -> None:
    note = f"listening on 127.0.0.1:{broker.port} (TLS); admin on {broker.admin_listen} (TLS);"
    assert note in broker.ready_line
    context = ssl.create_default_context(cafile=files.ca)

    def shown() -> str:
        with (
            socket.create_connection(("127.0.0.1", broker.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            return str(secured.getpeercert()["serialNumber"])  # type: ignore[index]

    credentials = grpc.ssl_channel_credentials(Path(files.ca).read_bytes())
    with grpc.secure_channel(broker.admin_listen, credentials) as channel:
        brokers = channel.unary_unary(
            "/danube_admin.BrokerAdmin/ListBrokers",
            request_serializer=admin_pb.Empty.SerializeToString,
            response_deserializer=admin_pb.BrokerListResponse.FromString,
        )
        answer = brokers(admin_pb.Empty(), timeout=10)
        assert answer.brokers[0].broker_addr == f"https://127.0.0.1:{broker.port}"
        assert answer.brokers[0].admin_addr == f"https://{broker.admin_listen}"
        before = shown()
        files.pair("broker")
        os.kill(broker.pid, signal.SIGHUP)
        for _ in range(200):
            if shown() != before:
                break
        else:
            raise AssertionError("the broker still presents its former certificate")
        assert brokers(admin_pb.Empty(), timeout=10).brokers  # over the open connection
    assert "new connections use the certificate in" in (files.directory / "log").read_text()
