"""A broker with the HTTP API and with access control, and proofs for its callers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from web_harness import API, Web, web_broker

from danube.metadata import Delete, Put
from danube.security.book import first_records
from danube.security.keys import signing_key
from danube.security.proofs import mint
from danube.security.records import BINDINGS, BindingRecord, encode_record

KEY = signing_key(bytes(range(32)))
UNTHROTTLED = {
    "failed_proofs_burst": 1_000_000,
    "failed_proofs_per_s": 1e6,
    "failed_proofs_all_per_s": 1e6,
    "refused_proofs_burst": 1_000_000,
    "refused_proofs_per_s": 1e6,
}


class Secured:
    """A broker with the HTTP API and with security on."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self.known: dict[str, str] = {}
        """A proof of the administrator that was used before."""
        self._tokens = 0

    async def write(self, **records: BindingRecord | None) -> None:
        broker = self.web.running.broker
        operations: list[Put | Delete] = [Put("/security-changes", b"")]
        for name, record in records.items():
            key = BINDINGS + name
            operations.append(Delete(key) if record is None else Put(key, encode_record(record)))
        result = await broker.metadata.transact([], operations)
        assert broker._access.gate is not None
        await broker._access.gate.replica.at(result.revision)

    async def bind(self, name: str, role: str, scope: str) -> None:
        await self.write(**{name: BindingRecord(subject=f"service:{name}", roles=(role,), scope=scope)})

    def proof(self, subject: str) -> dict[str, str]:
        running = self.web.running
        self._tokens += 1
        now_s = running.broker.runtime.clock_us() // 1_000_000
        cluster = running.config.cluster
        token = mint(
            KEY,
            issuer=cluster,
            cluster=cluster,
            subject=subject,
            token_id=f"t{self._tokens}",
            issued_at_s=now_s,
            expires_at_s=now_s + 3600,
        )
        return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def secured(directory: Path, **settings: Any) -> AsyncGenerator[Secured, None]:
    throttled = settings.pop("throttled", UNTHROTTLED)
    security = {"enabled": True, "limits": throttled}
    async with web_broker(directory, topics=[], security=security, **settings) as web:
        broker = Secured(web)
        metadata = web.running.broker.metadata
        for key, record in first_records(web.running.config.cluster, KEY.public_bytes, "user:admin", {}, now_us=1):
            assert record is not None
            await metadata.put(key, encode_record(record))
        await broker.write(orders=BindingRecord(subject="service:orders", roles=("producer",), scope="namespace:shop"))
        admin = broker.known = broker.proof("user:admin")
        for namespace in ("shop", "hr"):
            await web.post(f"{API}/namespaces", {"namespace": namespace}, 201, admin)
        for topic in ("/shop/orders", "/hr/salaries"):
            await web.post(f"{API}/topics", {"topic": topic}, 201, admin)
        yield broker
