"""Tokens of OIDC issuers: the keys are fetched, renewed, kept while the issuer is away, and refused when stale."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker, small_config
from certificates import Files, make_files
from token_helpers import CLUSTER_KEY, EC_KEY, OIDC_ED, RSA_KEY, jwks, public_pem, signed_by

import danube
import danube.compat
from danube.broker.runtime.fetching import fetch
from danube.broker.security.oidc import OidcIssuer, OidcIssuers
from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2
from danube.metadata import Put
from danube.model import api
from danube.model.errors import ConfigurationError, DanubeError, UnauthenticatedError, UnavailableError
from danube.model.security_api import IssuerKeys
from danube.security.book import Change, SecurityBook, first_records
from danube.security.claims import OidcClaims, Trusted
from danube.security.flaws import NO_PROOF
from danube.security.limits import SecurityLimits
from danube.security.proofs import mint
from danube.security.records import BINDINGS, BindingRecord, IssuerRecord, encode_record
from danube.wire import connect_channel
from danube.wire.client import Channel
from danube.wire.codec import MSGPACK
from danube.wire.tls import client_context

ISSUER = "https://login.example.org"


def answered(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


class Issuer:
    """An HTTPS server; ``answers`` has what it sends for each path, or a function that serves a connection."""

    def __init__(self, files: Files, port: int) -> None:
        self.ca = files.ca
        self.url = f"https://127.0.0.1:{port}"
        self.answers: dict[str, bytes | Callable[[trio.abc.Stream], Any]] = {}
        self.asked: list[str] = []

    def publish(self, *keys: dict[str, Any]) -> None:
        document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.answers["/.well-known/openid-configuration"] = answered(json.dumps(document).encode())
        self.answers["/keys"] = answered(json.dumps({"keys": keys}).encode())

    async def serve(self, stream: trio.abc.Stream) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                more = await stream.receive_some(4096)
                if not more:
                    return
                head += more
            path = head.split()[1].decode()
            self.asked.append(path)
            answer = self.answers.get(path, answered(b"", "404 Not Found"))
            if callable(answer):
                await answer(stream)
            else:
                await stream.send_all(answer)
                await stream.aclose()
        except trio.BrokenResourceError:
            pass  # the client is gone, or refuses the certificate: that is what some tests want
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def issuing(files: Files) -> AsyncGenerator[Issuer, None]:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.pair("issuer", "127.0.0.1"))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
        issuer = Issuer(files, listeners[0].transport_listener.socket.getsockname()[1])
        nursery.start_soon(partial(trio.serve_listeners, issuer.serve, listeners))
        yield issuer
        nursery.cancel_scope.cancel()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


# --- Fetching


async def test_a_document_is_fetched_and_bounded(files: Files, tmp_path: Path) -> None:
    async def endless(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await stream.send_all(b"1000\r\n" + bytes(0x1000) + b"\r\n")

    async def headers(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send_all(b"X: " + b"y" * 1000 + b"\r\n")

    async with issuing(files) as issuer:
        issuer.answers = {
            "/keys?v=1": answered(b"12345"),
            "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n3\r\n345\r\n0\r\n\r\n",
            "/moved": answered(b"", "302 Found", "Location: https://127.0.0.1/other"),
            "/large": answered(bytes(6)),
            "/cut": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12",
            "/text": b"SSH-2.0-server\r\n\r\n",
            "/endless": endless,
            "/headers": headers,
        }
        for path in ("/keys?v=1", "/chunks"):
            assert await fetch(issuer.url + path, issuer.ca, 5) == b"12345"
        for path, why in (
            ("/nothing", "status 404"),
            ("/moved", "redirects"),
            ("/large", "more than 5 bytes"),
            ("/cut", "no valid HTTP"),
            ("/text", "no valid HTTP"),
            ("/endless", "more than 5 bytes"),
            ("/headers", "no valid HTTP"),
        ):
            with trio.fail_after(20), pytest.raises(UnavailableError, match=why):
                await fetch(issuer.url + path, issuer.ca, 5)
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(UnavailableError, match="its authority"):
            await fetch(issuer.url + "/keys?v=1", make_files(other).ca, 5)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            await fetch(issuer.url + "/keys?v=1", str(tmp_path / "none.pem"), 5)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        await fetch(issuer.url, issuer.ca, 5)


async def test_files_are_read_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "the keys.json"
    path.write_bytes(b"12345")
    url = path.as_uri()
    assert await fetch(url, "", 5) == b"12345"
    with pytest.raises(UnavailableError, match="more than 4 bytes"):
        await fetch(url, "", 4)
    with pytest.raises(UnavailableError, match="No such file"):
        await fetch(url + "2", "", 4)
    os.mkfifo(tmp_path / "pipe")
    with trio.fail_after(20):
        assert await fetch((tmp_path / "pipe").as_uri(), "", 4) == b""
    with pytest.raises(ConfigurationError, match="no address of a document"):
        await fetch("ftp://example.org/keys", "", 4)
    with pytest.raises(ConfigurationError, match="no URL"):
        await fetch("https://example.org:port/keys", "", 4)


# --- When


class Documents:
    """The seam: documents, and errors, that issuers answer with."""

    def __init__(self) -> None:
        self.answer: Any = jwks()
        self.times: list[float] = []
        self.used: list[list[str | None]] = []

    async def fetch(self, url: str, ca: str, max_bytes: int) -> bytes:
        self.times.append(trio.current_time())
        await trio.sleep(1)
        if self.answer is None:
            await trio.sleep_forever()
        if isinstance(self.answer, DanubeError):
            raise self.answer
        return json.dumps(self.answer).encode()

    def use(self, trusted: list[tuple[str | None, Trusted]]) -> None:
        self.used.append([kid for kid, _ in trusted])


def issuer(**changed: Any) -> OidcIssuer:
    given = OidcIssuer(
        "login", ISSUER, ("danube",), ("RS256", "ES256", "EdDSA"), f"{ISSUER}/keys", "", OidcClaims("login/"), 3600.0
    )
    return given._replace(**changed)


@asynccontextmanager
async def followed(documents: Documents, *issuers: OidcIssuer) -> AsyncGenerator[OidcIssuers, None]:
    found = OidcIssuers(issuers or [issuer()], SecurityLimits(), documents.fetch, documents.use)
    async with trio.open_nursery() as nursery:
        await nursery.start(found.run)
        yield found
        nursery.cancel_scope.cancel()


@pytest.mark.virtual
async def test_keys_are_read_again_in_time() -> None:
    documents = Documents()
    async with followed(documents) as issuers:
        began = documents.times[0]
        assert documents.used == [["r1", "e1", "o1"]]
        await trio.sleep(1250)
        assert [at - began for at in documents.times] == [0, 601, 1202]
        assert len(documents.used) == 1, "the same keys are no news"
        issuers.unknown_key("https://other.example.org")
        issuers.unknown_key(ISSUER)
        await trio.sleep(0.5)
        assert len(documents.times) == 4
        for _ in range(100):  # a flood of unknown keys
            issuers.unknown_key(ISSUER)
            await trio.sleep(0.6)
        assert len(documents.times) == 6
        documents.answer = {"keys": jwks()["keys"][1:]}
        assert await issuers.reload() == [IssuerKeys("login", 2, "")]
        assert documents.used[1:] == [["e1", "o1"]]
        assert issuers.failures == 0


@pytest.mark.virtual
async def test_keys_stay_while_the_issuer_is_away_until_they_are_stale() -> None:
    documents = Documents()
    async with followed(documents) as issuers:
        documents.answer = UnavailableError("away")
        (reading,) = await issuers.reload()
        assert reading == IssuerKeys("login", 3, "away")
        documents.answer = {"keys": []}
        (reading,) = await issuers.reload()
        assert reading.keys == 3
        assert "no usable key" in reading.problem
        documents.answer = None
        (reading,) = await issuers.reload()
        assert "jwks_timeout_s" in reading.problem
        before = len(documents.times)
        await trio.sleep(23.9 * 3600)
        assert 23.9 * 120 - 20 < len(documents.times) - before <= 23.9 * 120 + 1
        assert len(documents.used) == 1
        await trio.sleep(0.2 * 3600)
        assert documents.used[1:] == [[]]
        documents.answer = jwks()
        await trio.sleep(60)
        assert documents.used[2:] == [["r1", "e1", "o1"]]
        assert issuers.failures > 2800


@pytest.mark.virtual
async def test_an_issuer_that_is_away_delays_the_start_little() -> None:
    documents = Documents()
    documents.answer = None
    began = trio.current_time()
    async with followed(documents):
        assert trio.current_time() - began == pytest.approx(2)
        assert not documents.used


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"issuer": ISSUER + "/", "jwks_uri": f"{ISSUER}/keys"}, "is configured"),
        ({"issuer": ISSUER}, "no jwks_uri"),
        ({"issuer": ISSUER, "jwks_uri": "file:///etc/keys"}, "no jwks_uri"),
        ({"issuer": ISSUER, "jwks_uri": "http://127.0.0.1/keys"}, "no jwks_uri"),
        (["no object"], "not a JSON object"),
    ],
)
async def test_a_discovery_document_is_checked(document: Any, why: str) -> None:
    documents = Documents()
    documents.answer = document
    async with followed(documents, issuer(jwks="")) as issuers:
        (reading,) = await issuers.reload()
        assert why in reading.problem
        assert not documents.used


# --- Configuration

GIVEN = {"name": "login", "issuer": ISSUER, "audiences": ["danube"]}


@pytest.mark.parametrize(
    ("issuers", "why"),
    [
        ([{**GIVEN, "name": "a/b"}], "OIDC issuer"),
        ([{**GIVEN, "name": "dns"}], "in use already"),
        ([{**GIVEN, "issuer": "orders", "jwks": "https://x/"}], "in use already"),
        ([{**GIVEN, "issuer": "danube-auth", "jwks": "https://x/"}], "in use already"),
        ([GIVEN, {**GIVEN, "name": "other"}], "in use already"),
        ([GIVEN, {**GIVEN, "issuer": "https://x"}], "in use already"),
        ([{**GIVEN, "audiences": []}], "needs audiences"),
        ([{**GIVEN, "audiences": [""]}], "needs audiences"),
        ([{**GIVEN, "algorithms": []}], "needs an issuer, algorithms"),
        ([{**GIVEN, "algorithms": ["HS256"]}], "HS256"),
        ([{**GIVEN, "algorithms": ["none"]}], "none"),
        ([{**GIVEN, "longest_life_s": -1}], "longest_life_s"),
        ([{**GIVEN, "issuer": "http://login.example.org"}], "https://HOST"),
        ([{**GIVEN, "issuer": "file:///keys"}], "https://HOST"),
        ([{**GIVEN, "issuer": ""}], "needs an issuer"),
        ([{**GIVEN, "jwks": "http://10.0.0.1/keys"}], "https://HOST"),
        ([{**GIVEN, "jwks": "file://host/keys"}], "https://HOST"),
        ([{**GIVEN, "jwks": "https://user:password@host/keys"}], "without a password"),
        ([{**GIVEN, "jwks": "https://host:x/keys"}], "is no URL"),
        ([{**GIVEN, "name": f"i{n}", "issuer": f"https://i{n}"} for n in range(33)], "max_oidc_issuers is 32"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path: Path, issuers: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        small_config(
            tmp_path,
            cluster="orders",
            security={"enabled": True, "oidc": issuers, "upstream": {"secret": "x" * 32}},
        )


@pytest.mark.parametrize("jwks_url", ["", "https://login/keys", "file:///etc/keys", "http://[::1]:8080/keys"])
def test_settings_of_an_issuer(tmp_path: Path, jwks_url: str) -> None:
    config = small_config(tmp_path, security={"oidc": [{**GIVEN, "jwks": jwks_url}]})
    assert config.security.oidc[0].jwks == jwks_url


def test_records_never_take_the_name_of_an_issuer_without_keys() -> None:
    book = SecurityBook("orders", SecurityLimits())
    record = IssuerRecord(name=ISSUER, public=CLUSTER_KEY.public_bytes, created_us=1, created_by="user:admin")
    book.apply(f"/security/issuers/{CLUSTER_KEY.kid}", encode_record(record))
    assert ISSUER in book.keyring.issuers
    book.configure([], [ISSUER])
    assert ISSUER not in book.keyring.issuers


# --- A broker


class Secured:
    def __init__(self, running: RunningBroker, issuer: Issuer) -> None:
        self.running = running
        self.issuer = issuer

    def token(self, kid: str = "r1", key: Any = RSA_KEY, algorithm: str = "RS256", **changed: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer.url,
            "aud": ["danube", "other"],
            "sub": "1234",
            "email": "ada@example.org",
            "iat": now,
            "exp": now + 600,
            "groups": ["platform"],
        }
        kept = {name: value for name, value in {**claims, **changed}.items() if value is not ...}
        return signed_by(key, {"alg": algorithm, "kid": kid}, kept)

    def admin_token(self) -> str:
        now = int(time.time())
        return mint(
            CLUSTER_KEY,
            issuer="orders",
            cluster="orders",
            subject="user:admin",
            token_id="t",
            issued_at_s=now - 10,
            expires_at_s=now + 600,
        )

    @asynccontextmanager
    async def connected(self, codec: Any = MSGPACK) -> AsyncGenerator[Channel, None]:
        tls = client_context(self.issuer.ca)
        async with connect_channel("127.0.0.1", self.running.port, tls=tls, codec=codec) as channel:
            yield channel

    async def listed(self, channel: Channel, token: str) -> api.TopicList:
        metadata = {"authorization": f"Bearer {token}"}
        return await channel.unary(api.Method.LIST_TOPICS, api.ListTopics(), api.TopicList, metadata=metadata)

    async def accepts(self, channel: Channel, token: str) -> None:
        """Wait until a token is accepted."""
        with trio.fail_after(20):
            while True:
                try:
                    await self.listed(channel, token)
                    return
                except UnauthenticatedError:
                    await trio.sleep(0.02)


@asynccontextmanager
async def secured(files: Files, issuer: Issuer, **oidc: Any) -> AsyncGenerator[Secured, None]:
    cert, key = files.pair("server", "127.0.0.1")
    given = {
        "name": "login",
        "issuer": issuer.url,
        "audiences": ["danube"],
        "algorithms": ["RS256", "EdDSA"],
        "ca": issuer.ca,
        "name_claim": "email",
        "groups_claim": "groups",
        **oidc,
    }
    limits = {"jwks_unknown_key_s": 0.05, "failed_proofs_burst": 1000, "failed_proofs_all_per_s": 1e6}
    async with running_broker(
        files.directory / "data",
        cluster="orders",
        faces=(danube.compat.face,),
        tls={"cert": cert, "key": key},
        security={"enabled": True, "oidc": [given], "limits": limits},
    ) as running:
        changes = first_records("orders", CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=1)
        viewer = BindingRecord(subject="group:login/platform", roles=("viewer", "consumer"), scope="cluster")
        writes = [
            Put(each.key, encode_record(each.record))
            for each in [*changes, Change(f"{BINDINGS}platform", viewer)]
            if each.record is not None
        ]
        result = await running.broker.metadata.transact([], writes)
        assert running.broker._access.gate is not None
        await running.broker._access.gate.replica.at(result.revision)
        yield Secured(running, issuer)


async def test_tokens_of_an_issuer_and_forged_ones(files: Files) -> None:
    async with issuing(files) as issuer:
        issuer.publish(*jwks()["keys"])
        async with secured(files, issuer) as broker, broker.connected() as channel:
            await broker.accepts(channel, broker.token())
            await broker.listed(channel, broker.token("o1", OIDC_ED, "EdDSA"))
            with pytest.raises(DanubeError, match=r"user:login/ada@example\.org may not call"):
                await broker.listed(channel, broker.token(groups=["strangers"]))
            now = int(time.time())
            forged = {
                "iss": broker.token(iss=issuer.url + "/"),
                "iss of the cluster": broker.token(iss="orders"),
                "aud": broker.token(aud="other"),
                "no aud": broker.token(aud=...),
                "no exp": broker.token(exp=...),
                "expired": broker.token(iat=now - 600, exp=now - 60),
                "too long": broker.token(exp=now + 2 * 86400),
                "no name": broker.token(email=...),
                "groups": broker.token(groups="platform"),
                "other kid": broker.token("r2"),
                "kid of another key": broker.token("o1"),
                "another key": broker.token("r1", OIDC_ED, "EdDSA"),
                "not allowed": broker.token("e1", EC_KEY, "ES256"),
                "none": broker.token("r1", b"", "none"),
                "HS256 with the public key": broker.token("r1", public_pem(RSA_KEY), "HS256"),
                "RS256 of EdDSA": broker.token("r1", OIDC_ED, "RS256"),
                "flipped": broker.token()[:-20] + "A" * 20,
            }
            async with broker.connected(PROTO) as official:
                for what, token in forged.items():
                    with pytest.raises(UnauthenticatedError) as refused:
                        await broker.listed(channel, token)
                    assert refused.value.message == NO_PROOF, what
                    with pytest.raises(UnauthenticatedError) as refused:
                        await official.unary(
                            "/danube.Discovery/TopicLookup",
                            danube_api_pb2.TopicLookupRequest(request_id=1, topic="/default/t"),
                            danube_api_pb2.TopicLookupResponse,
                            metadata={"authorization": f"Bearer {token}"},
                        )
                    assert refused.value.message == NO_PROOF, what


async def test_keys_rotate_and_a_stream_ends_with_the_key_of_its_token(files: Files) -> None:
    async with issuing(files) as issuer:
        rsa, _, ed = jwks()["keys"]
        issuer.publish(rsa)
        async with secured(files, issuer) as broker, broker.connected() as channel:
            old, new = broker.token(), broker.token("o1", OIDC_ED, "EdDSA")
            await broker.accepts(channel, old)
            issuer.publish(rsa, ed)
            await broker.accepts(channel, new)  # its unknown key has the document read again
            await broker.listed(channel, old)
            url = f"danube+tls://127.0.0.1:{broker.running.port}"
            async with danube.connect(url, ca=issuer.ca, token=broker.admin_token()) as client:
                await client.admin.create_topic("/default/t")
            async with (
                danube.connect(url, ca=issuer.ca, token=old) as client,
                client.consumer("/default/t", subscription="billing") as consumer,
            ):
                issuer.publish(ed)
                oidc = broker.running.broker._access.oidc
                assert oidc is not None
                assert await oidc.reload() == [IssuerKeys("login", 1, "")]
                with trio.fail_after(10), pytest.raises(UnauthenticatedError):
                    await consumer.receive()
            with pytest.raises(UnauthenticatedError):
                await broker.listed(channel, old)
            issuer.answers = {}
            (reading,) = await oidc.reload()
            assert "status 404" in reading.problem
            await broker.listed(channel, new)
            issuer.publish(ed)
            async with danube.connect(url, ca=issuer.ca, token=broker.admin_token()) as client:
                reloaded = await client.security.reload()
            assert reloaded.issuers == [IssuerKeys("login", 1, "")]
            assert reloaded.certificate_names == ["IP Address:127.0.0.1"]


async def test_keys_in_a_file(files: Files) -> None:
    async with issuing(files) as issuer:
        path = files.directory / "keys.json"
        path.write_text(json.dumps(jwks()))
        async with secured(files, issuer, jwks=path.as_uri()) as broker, broker.connected() as channel:
            await broker.accepts(channel, broker.token())
            assert not issuer.asked
