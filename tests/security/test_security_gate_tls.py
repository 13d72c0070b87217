"""Who calls over TLS: by the client's certificate, or by a credential that no other machine can read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import SSLContext
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker, wait_until
from certificates import Files, make_files
from token_helpers import CLUSTER_KEY

from danube.broker.security.gate import _is_local
from danube.metadata import Put
from danube.model import api
from danube.model.errors import DanubeError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from danube.security.book import first_records
from danube.security.records import BINDINGS, BindingRecord, encode_record
from danube.wire import connect_channel
from danube.wire.client import Channel
from danube.wire.tls import client_context

CLUSTER = "orders"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


@asynccontextmanager
async def secured(files: Files, *, cluster_secret: bool = False, **tls: Any) -> AsyncGenerator[RunningBroker, None]:
    cert, key = files.pair("server", "127.0.0.1", f"danube://{CLUSTER}/broker/b1")
    settings: dict[str, Any] = {"cert": cert, "key": key, "client_auth": "optional", **tls}
    secret = files.directory / "secret"
    secret.write_text("a secret of the brokers in this test, long enough\n")
    secret.chmod(0o600)
    async with running_broker(
        files.directory / "data",
        cluster=CLUSTER,
        tls=settings,
        security={"enabled": True},
        **({"cluster_secret": str(secret)} if cluster_secret else {}),
    ) as running:
        changes = first_records(CLUSTER, CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=1)
        operations = [Put(each.key, encode_record(each.record)) for each in changes if each.record is not None]
        viewer = BindingRecord(subject="service:api", roles=("viewer",), scope="cluster")
        operations.append(Put(f"{BINDINGS}api", encode_record(viewer)))
        result = await running.broker.metadata.transact([], operations)
        assert running.broker._access.gate is not None
        await running.broker._access.gate.replica.at(result.revision)
        yield running


@asynccontextmanager
async def connected(running: RunningBroker, tls: SSLContext | None) -> AsyncGenerator[Channel, None]:
    async with connect_channel("127.0.0.1", running.port, tls=tls) as channel:
        yield channel


async def test_a_client_certificate_is_a_proof(files: Files) -> None:
    async with secured(files, client_ca=files.ca) as running:
        for name, error in (
            (f"danube://{CLUSTER}/service/api", None),
            (f"danube://{CLUSTER}/service/other", PermissionDeniedError),
            ("danube://bills/service/api", UnauthenticatedError),
            (f"danube://{CLUSTER}/broker/b2", UnauthenticatedError),
            ("spiffe://example.org/api", UnauthenticatedError),
            ("api.example.org", UnauthenticatedError),
        ):
            pair = files.pair(name.replace("/", "_").replace(":", "_"), name)
            async with connected(running, client_context(files.ca, *pair)) as channel:
                request = api.ListTopics()
                if error is None:
                    await channel.unary(api.Method.LIST_TOPICS, request, api.TopicList)
                    # A credential that is sent counts, and only it.
                    with pytest.raises(UnauthenticatedError):
                        await channel.unary(
                            api.Method.LIST_TOPICS, request, api.TopicList, metadata={"authorization": "Bearer x.y.z"}
                        )
                    with pytest.raises(NotFoundError):
                        await channel.unary(api.Method.DESCRIBE_TOPIC, api.DescribeTopic("/default/t"), api.TopicInfo)
                else:
                    with pytest.raises(error):
                        await channel.unary(api.Method.LIST_TOPICS, request, api.TopicList)
        async with connected(running, client_context(files.ca)) as channel:
            with pytest.raises(UnauthenticatedError):
                await channel.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)


async def test_links_need_the_certificate_of_a_broker(files: Files) -> None:
    async with secured(files, broker_ca=files.ca, cluster_secret=True) as running:
        for name, wanted in (
            (f"danube://{CLUSTER}/broker/b2", "hello"),
            (f"danube://{CLUSTER}/service/api", "needs the certificate of a broker"),
            ("", "needs the certificate of a broker"),
        ):
            pair = files.pair(name.rpartition("/")[2] or "none", name or "none.example.org") if name else ("", "")
            async with (
                connected(running, client_context(files.ca, *pair)) as channel,
                channel.open_stream("/danube.Peers/Link") as stream,
            ):
                stream.send_nowait(b"x")
                with trio.fail_after(5), pytest.raises(DanubeError, match=wanted):
                    await stream.receive()
            # The first one is in the audit log, the others are counted.
            await wait_until(lambda: running.topic("/system/audit-b1").end_offset == 1)


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("127.0.0.1:4711", True),
        ("::1:4711", True),
        ("::ffff:127.0.0.1:4711", True),
        ("unix", True),
        ("ServerStream", True),
        ("10.0.0.1:4711", False),
        ("::ffff:10.0.0.1:4711", False),
        ("fe80::1%eth0:4711", False),
        ("(gone)", False),
    ],
)
def test_peers_on_this_machine(peer: str, here: bool) -> None:
    assert _is_local(peer) is here
