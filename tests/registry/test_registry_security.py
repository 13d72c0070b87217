"""Access control of the REST interface: each request has the rights of its caller, and no others."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker
from certificates import make_files
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from http_callers import Caller
from registry_harness import Answer, avro
from security import rights_matrix

import danube.registry
from danube.metadata import Put
from danube.model.errors import ExposedAddressError
from danube.registry.errors import CONTENT_TYPE
from danube.registry.routes import ROUTES, Route
from danube.security.book import first_records
from danube.security.keys import signing_key
from danube.security.proofs import mint
from danube.security.records import BINDINGS, BindingRecord, encode_record
from danube.security.rights import RULES, Port, check_served
from danube.security.verdicts import Verdict, judge
from danube.web import face as web_face

KEY = signing_key(bytes(range(32)))
SUBJECT = "/shop/orders"
PATH = "/subjects/%2Fshop%2Forders"
LIMITS = {
    "failed_proofs_burst": 1_000_000,
    "failed_proofs_per_s": 1e6,
    "failed_proofs_all_per_s": 1e6,
    "refused_proofs_burst": 1_000_000,
    "refused_proofs_per_s": 1e6,
}
FACES = (danube.registry.face,)


class Secured:
    """A broker with the registry, and with security on."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self._tokens = 0

    async def bind(self, name: str, role: str, scope: str) -> None:
        broker = self.running.broker
        record = BindingRecord(subject=f"service:{name}", roles=(role,), scope=scope)
        result = await broker.metadata.transact(
            [], [Put("/security-changes", b""), Put(BINDINGS + name, encode_record(record))]
        )
        assert broker._access is not None
        await broker._access.gate.replica.at(result.revision)

    def token(self, subject: str) -> str:
        self._tokens += 1
        now_s = self.running.broker.runtime.clock_us() // 1_000_000
        cluster = self.running.config.cluster
        return mint(
            KEY,
            issuer=cluster,
            cluster=cluster,
            subject=subject,
            token_id=f"t{self._tokens}",
            issued_at_s=now_s,
            expires_at_s=now_s + 3600,
        )

    def proof(self, subject: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(subject)}"}

    async def send(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None, *, door: str = ""
    ) -> Answer:
        address = door or self.running.broker.registry_addresses[0]
        given = {"Content-Type": CONTENT_TYPE, **(headers or {})}
        data = b"" if body is None else json.dumps(body).encode()
        async with await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) as stream:
            found = await Caller(stream).ask(method, target, given, data)
        return Answer(found.status, json.loads(found.body), found.headers)


@asynccontextmanager
async def secured(directory: Path, **settings: Any) -> AsyncGenerator[Secured, None]:
    settings = {"faces": FACES, "registry_listen": ["127.0.0.1:0"], "http_listen": []} | settings
    security = {"enabled": True, "limits": LIMITS}
    async with running_broker(directory, security=security, **settings) as running:
        broker = Secured(running)
        metadata = running.broker.metadata
        for key, record in first_records(running.config.cluster, KEY.public_bytes, "user:admin", {}, now_us=1):
            assert record is not None
            await metadata.put(key, encode_record(record))
        await broker.bind("first", "viewer", "namespace:nothing")  # waits until the gate knows all of it
        admin = broker.proof("user:admin")
        for name, subject in (("Order", PATH), ("Pay", "/subjects/%2Fhr%2Fpay")):
            made = await broker.send("POST", f"{subject}/versions", {"schema": avro(name)}, admin)
            assert made.status == 200, made
        yield broker


def target_of(route: Route) -> str:
    """Return a path of a route, about the subject of the matrix."""
    values = {
        "subject": "%2Fshop%2Forders",
        "version": "1",
        "id": "1",
        "guid": "none",
        "namespace": "-",
        "name": "orders",
    }
    return route.template.format(**values)


def test_every_route_is_judged_by_a_row_and_every_row_by_a_route() -> None:
    check_served(Port.REGISTRY, {route.right for route in ROUTES})


async def test_each_route_needs_a_proof(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        for headers in (
            {},
            {"Authorization": "Bearer nonsense"},
            {"Authorization": "Basic " + base64.b64encode(b"any:dnb_x_y").decode()},
            {"Authorization": "Digest x"},
        ):
            for route in ROUTES:
                found = await broker.send(route.method, target_of(route), {}, headers)
                assert (found.status, found.value["error_code"]) == (401, 40101), (route, headers)
                assert found.headers["www-authenticate"]


@pytest.mark.parametrize(
    ("role", "scope"),
    [
        ("", ""),
        ("viewer", "namespace:shop"),
        ("producer", "namespace:shop"),
        ("admin", "namespace:shop"),
        ("viewer", "namespace:hr"),
        ("admin", "cluster"),
    ],
)
async def test_each_route_is_judged_as_the_matrix_says(tmp_path: Path, role: str, scope: str) -> None:
    async with secured(tmp_path) as broker:
        if role:
            await broker.bind("caller", role, scope)
        proof = broker.proof("service:caller")
        assert broker.running.broker._access is not None
        rights = broker.running.broker._access.gate._guard.book.rights
        principal = rights_matrix.Principal(rights_matrix.PrincipalType.SERVICE, "caller")
        for route in ROUTES:
            rule = RULES[route.right]
            verdict = judge(rule, principal, rights, rights_matrix.request_of(rule), rights_matrix.Belongings())
            if verdict is Verdict.ALLOWED and route.method == "DELETE":
                continue  # the other routes need what it deletes; their empty bodies change nothing
            found = await broker.send(route.method, target_of(route), {}, proof)
            if verdict is Verdict.DENIED:
                assert (found.status, found.value["error_code"]) == (403, 40301), route
            elif verdict is Verdict.HIDDEN:
                assert (found.status, found.value["error_code"]) == (404, 40401), route
            else:
                assert found.status not in (401, 403), (route, found)


async def test_a_reader_reads_its_own_namespace_and_registers_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("reader", "viewer", "namespace:shop")
        reader = broker.proof("service:reader")
        assert (await broker.send("GET", "/subjects", headers=reader)).value == [SUBJECT]
        shown = (await broker.send("GET", f"{PATH}/versions/1", headers=reader)).value
        assert (await broker.send("GET", f"/schemas/ids/{shown['id']}", headers=reader)).status == 200
        assert [each["subject"] for each in (await broker.send("GET", "/schemas", headers=reader)).value] == [SUBJECT]
        body = {"schema": avro("Order")}
        assert (await broker.send("POST", PATH, body, reader)).value["version"] == 1
        checked = await broker.send("POST", f"/compatibility{PATH}/versions/latest", body, reader)
        assert checked.value == {"is_compatible": True}
        for method, target in (
            ("POST", f"{PATH}/versions"),
            ("DELETE", PATH),
            ("PUT", "/config/%2Fshop%2Forders"),
            ("PUT", "/mode"),
        ):
            refused = await broker.send(method, target, body, reader)
            assert (refused.status, refused.value["error_code"]) == (403, 40301)
        # What belongs to others is not there.
        other = (await broker.send("GET", "/subjects/%2Fhr%2Fpay/versions/1", headers=broker.proof("user:admin"))).value
        for target, code in (
            ("/subjects/%2Fhr%2Fpay/versions", 40401),
            (f"/schemas/ids/{other['id']}", 40403),
            (f"/schemas/guids/{other['guid']}", 40403),
            (f"/schemas/ids/{other['id']}/versions", 40403),
        ):
            hidden = await broker.send("GET", target, headers=reader)
            assert (hidden.status, hidden.value["error_code"]) == (404, code), target


async def test_a_schema_cannot_refer_to_what_its_author_may_not_read(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("author", "admin", "namespace:shop")
        body = {
            "schema": avro("Slip", ("pay", "Pay")),
            "references": [{"name": "Pay", "subject": "/hr/pay", "version": 1}],
        }
        target = "/subjects/%2Fshop%2Fslip/versions"
        refused = await broker.send("POST", target, body, broker.proof("service:author"))
        assert refused.value["error_code"] == 42201
        assert "has no target" in refused.value["message"]
        assert (await broker.send("POST", target, body, broker.proof("user:admin"))).status == 200


async def test_keys_and_tokens_are_passwords(tmp_path: Path) -> None:
    """Confluent's clients send a user and a password: ``basic.auth.user.info``."""
    async with secured(tmp_path) as broker:
        await broker.bind("orders", "viewer", "namespace:shop")
        async with broker.running.client(token=broker.token("user:admin")) as client:
            made = await client.security.create_key("service:orders")
        for password in (made.text, broker.token("service:orders")):
            basic = base64.b64encode(f"any:{password}".encode()).decode()
            for proof in (f"Basic {basic}", f"Bearer {password}"):
                found = await broker.send("GET", "/subjects", headers={"Authorization": proof})
                assert found.value == [SUBJECT]


def subjects_by_confluent(conf: dict[str, Any]) -> list[str]:
    with SchemaRegistryClient(conf) as client:
        return client.get_subjects()


@pytest.mark.parametrize("tls", [False, True])
async def test_confluents_client_proves_who_it_is_with_and_without_tls(tmp_path: Path, tls: bool) -> None:
    files = make_files(tmp_path)
    cert, key = files.pair("broker")
    settings = {"tls": {"cert": cert, "key": key, "plaintext": True}} if tls else {}
    async with secured(tmp_path / "data", **settings) as broker:
        await broker.bind("orders", "viewer", "namespace:shop")
        address = broker.running.broker.registry_addresses[0]
        conf: dict[str, Any] = {"url": f"{'https' if tls else 'http'}://{address}", "max.retries": 0}
        if tls:
            conf["ssl.ca.location"] = files.ca
        token = broker.token("service:orders")
        bearer = {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": token,
            "bearer.auth.logical.cluster": "any",
            "bearer.auth.identity.pool.id": "any",
        }
        for proof in ({"basic.auth.user.info": f"any:{token}"}, bearer):
            assert await trio.to_thread.run_sync(subjects_by_confluent, conf | proof) == [SUBJECT]
        for wrong in ({}, {"basic.auth.user.info": "any:nonsense"}):
            with pytest.raises(SchemaRegistryError) as refused:
                await trio.to_thread.run_sync(subjects_by_confluent, conf | wrong)
            assert (refused.value.http_status_code, refused.value.error_code) == (401, 40101)


async def test_who_registered_a_version_is_noted(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        assert broker.running.broker.registry.book.entry(SUBJECT).version.created_by == "user:admin"


async def test_it_is_served_on_the_http_port_with_the_same_rights(tmp_path: Path) -> None:
    async with secured(tmp_path, faces=(web_face, *FACES), http_listen=["127.0.0.1:0"]) as broker:
        door = broker.running.broker.http_addresses[0]
        assert (await broker.send("GET", "/registry/subjects", door=door)).value["error_code"] == 40101
        admin = broker.proof("user:admin")
        assert (await broker.send("GET", f"/registry{PATH}/versions", headers=admin, door=door)).value == [1]
        assert (await broker.send("GET", "/registry/none", headers=admin, door=door)).value["error_code"] == 404


async def test_any_name_of_the_server_will_do_where_callers_prove_who_they_are(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        admin = broker.proof("user:admin")
        assert (await broker.send("GET", "/subjects", headers={**admin, "Host": "schemas.internal"})).status == 200
        foreign = {**admin, "Host": "schemas.internal", "Origin": "http://elsewhere.example.org"}
        assert (await broker.send("GET", "/subjects", headers=foreign)).status == 403


async def test_other_machines_are_not_served_without_access_control(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"faces": FACES, "http_listen": [], "registry_listen": ["0.0.0.0:0"]}
    with pytest.raises(ExposedAddressError):
        async with running_broker(tmp_path / "a", **settings):
            pass
    async with running_broker(tmp_path / "b", insecure=True, **settings) as running:
        assert running.broker.registry_addresses
