"""The official client at a broker with access control: tokens, a supplier of tokens, and client certificates."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerProcess
from certificates import Files, make_files
from official_client import Official, Script

import danube
from danube.client import Client
from danube.security.keys import SigningKey, signing_key
from danube.security.proofs import mint

TOPIC = "/default/orders"
ADMIN = "user:admin"
API = "service:orders-api"


class Secured:
    """A broker with TLS and access control, and what proves who calls."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.key: SigningKey = signing_key(secrets.token_bytes(32))
        data = files.directory / "data"
        (data / "security").mkdir(parents=True, mode=0o700)
        written = data / "security" / "signing.key"
        written.touch(mode=0o600)
        written.write_text(self.key.private_pem())
        cert, key = files.pair("broker")
        config = files.directory / "danube.toml"
        config.write_text(
            f'[tls]\ncert = "{cert}"\nkey = "{key}"\nclient_ca = "{files.ca}"\nclient_auth = "optional"\n'
            f'[security]\nenabled = true\nadministrator = "{ADMIN}"\n'
        )
        self.broker = BrokerProcess(data, "--config", str(config), stderr=files.directory / "log")

    def token(self, subject: str, life_s: float = 3600.0) -> str:
        now_s = int(time.time())
        return mint(
            self.key,
            issuer="danube",
            cluster="danube",
            subject=subject,
            token_id=secrets.token_hex(16),
            issued_at_s=now_s,
            expires_at_s=now_s + round(life_s),
        )

    @asynccontextmanager
    async def admin(self) -> AsyncGenerator[Client, None]:
        url = f"danube+tls://127.0.0.1:{self.broker.port}"
        async with danube.connect(url, ca=self.files.ca, token=self.token(ADMIN)) as client:
            yield client

    async def begin(self, subject: str) -> None:
        """Create the topic, and let a subject produce and consume there."""
        async with self.admin() as client:
            await client.admin.create_topic(TOPIC)
            await client.security.grant(subject, ["producer", "consumer"], TOPIC)

    def job(self, **more: Any) -> dict[str, Any]:
        return {"url": f"https://127.0.0.1:{self.broker.port}", "ca": self.files.ca, **more}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    found = Secured(make_files(tmp_path))
    with found.broker:
        yield found


def settled(count: int) -> Any:
    def enough(script: Script) -> bool:
        return len(script.acked) == count

    return enough


@pytest.mark.parametrize("proof", ["token", "supplier", "certificate"])
async def test_messages_of_the_official_client_with_a_proof(secured: Secured, tmp_path: Path, proof: str) -> None:
    official = Official(secured.broker, TOPIC, tmp_path)
    if proof == "token":
        job = secured.job(token=secured.token(API))
    elif proof == "supplier":
        (tmp_path / "token").write_text(secured.token(API))
        job = secured.job(token_file=str(tmp_path / "token"))
    else:
        cert, key = secured.files.pair("client", "danube://danube/service/orders-api")
        job = secured.job(cert=cert, key=key)
    with trio.fail_after(60):
        await secured.begin(API)
        async with official.producing(count=20, **job) as producer, official.consuming(**job) as consumer:
            await producer.go()
            await producer.done()
            await consumer.until(settled(20))
            await consumer.stop()
    assert consumer.texts == producer.sent


async def refusal(official: Official, job: dict[str, Any]) -> str:
    """Return what a client has said that could not create its producer."""
    told: list[str] = []
    try:
        async with official.producing(count=1, **job):
            pass
    except* AssertionError as group:
        told = [str(error) for error in group.exceptions]
    assert len(told) == 1, "it has created its producer"
    return told[0]


async def test_the_official_client_is_told_what_it_may_not_do(secured: Secured, tmp_path: Path) -> None:
    official = Official(secured.broker, TOPIC, tmp_path)
    token = secured.token(API)
    with trio.fail_after(60):
        await secured.begin("service:other")
        assert "'status': 'UNAUTHENTICATED'" in await refusal(official, secured.job(token=f"{token[:-4]}AAAA"))
        assert "'status': 'PERMISSION_DENIED'" in await refusal(official, secured.job(token=token))
        async with secured.admin() as client:
            await client.security.grant(API, ["consumer"], TOPIC)
        said = await refusal(official, secured.job(token=token))
        assert "'status': 'PERMISSION_DENIED'" in said
        assert f"{API} may not call" in said


@pytest.mark.extended
async def test_a_supplier_of_tokens_outlives_each_of_them(secured: Secured, tmp_path: Path) -> None:
    """Tokens end after four seconds; the application writes another one to its file each second."""
    official = Official(secured.broker, TOPIC, tmp_path)
    path = tmp_path / "token"

    async def renew() -> None:
        while True:
            fresh = tmp_path / "token.new"
            fresh.write_text(secured.token(API, life_s=4.0))
            fresh.rename(path)
            await trio.sleep(1.0)

    path.write_text(secured.token(API, life_s=4.0))
    job = secured.job(token_file=str(path))
    with trio.fail_after(90):
        await secured.begin(API)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(renew)
            async with (
                official.producing(count=40, pause_s=0.4, **job) as producer,
                official.consuming(**job) as consumer,
            ):
                await producer.go()
                await producer.done()
                await consumer.until(lambda script: len(script.distinct_texts) == 40)
                await consumer.stop()
            nursery.cancel_scope.cancel()
    assert consumer.distinct_texts == set(producer.sent)
