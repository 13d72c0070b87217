"""Three brokers with TLS: they verify each other, and clients follow them with TLS and their credentials."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from certificates import make_files
from cluster_processes import Cluster

import danube


def with_tls(directory: Path, *, stranger: bool) -> Cluster:
    """Return three brokers that are not started; the last one's certificate may be of an authority of its own."""
    files = make_files(directory)
    (directory / "strange").mkdir()
    others = make_files(directory / "strange")
    brokers = [BrokerProcess(directory / f"b{n}", stderr=directory / f"b{n}.log") for n in (1, 2, 3)]
    listed = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    for broker in brokers:
        cert, key = (others if stranger and broker is brokers[-1] else files).pair(f"of-{broker.port}")
        broker.options = ("--peers", listed, "--tls-cert", cert, "--tls-key", key, "--tls-broker-ca", files.ca)
        broker.options += ("--tls-client-auth", "optional")
    return Cluster(directory, brokers)


def was_refused(log: Path, refusal: str) -> bool:
    """Whether a line of the log has this refusal, because of a certificate."""
    return any(refusal in line and "the certificate is not accepted" in line for line in log.read_text().splitlines())


@pytest.mark.extended
async def test_a_cluster_with_tls(tmp_path: Path) -> None:
    with with_tls(tmp_path, stranger=False) as cluster, trio.fail_after(60):
        url = f"danube+tls://127.0.0.1:{cluster.brokers[0].port}"
        topics = [f"/default/t{number}" for number in range(6)]
        async with danube.connect(url, ca=tmp_path / "ca.pem") as client:
            while [row.state for row in (await client.admin.cluster_status()).brokers].count("active") < 3:  # noqa: ASYNC110
                await trio.sleep(0.05)
            for topic in topics:
                await client.admin.create_topic(topic)
                async with client.producer(topic) as producer:
                    await producer.send(b"hello")
            for topic in topics:
                async with client.consumer(topic, subscription="s", start="earliest") as consumer:
                    message = await consumer.receive()
                    assert message.payload == b"hello"
                    await message.ack()
            status = await client.admin.cluster_status()
        owners = [broker for broker in status.brokers if broker.topics]
        assert len(owners) == 3


async def test_a_broker_of_another_authority_gets_no_link(tmp_path: Path) -> None:
    cluster = with_tls(tmp_path, stranger=True)
    first, *_, stranger = cluster.brokers
    log = first.stderr
    assert log is not None
    for broker in (first, stranger):
        broker.launch()
    try:
        with trio.fail_after(20):
            # Each refuses the other, in either order. Before the stranger listens, its port refuses connections.
            refusals = ("a connection of 127.0.0.1:", f"no link to 127.0.0.1:{stranger.port}")
            while not all(was_refused(log, refusal) for refusal in refusals):  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert "linked to" not in log.read_text()
    finally:
        first.kill()
        stranger.kill()
