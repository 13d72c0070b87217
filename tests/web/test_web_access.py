"""Access control over HTTP: it is shown without secrets, and taken away, as far as the caller manages it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from web_harness import API, web_broker
from web_secured import Secured, secured

ACCESS = f"{API}/security"
LISTS = {
    "principals": "principals",
    "roles": "roles",
    "bindings": "bindings",
    "keys": "keys",
    "issuers": "issuers",
    "revoked-tokens": "tokens",
}


async def rows(broker: Secured, name: str, query: str = "", proof: dict[str, str] | None = None) -> list[Any]:
    said = await broker.web.ask("GET", f"{ACCESS}/{name}{query}", headers=proof or broker.known)
    assert said.status == 200, said
    found: list[Any] = said.json[LISTS[name]]
    return found


async def test_principals_keys_and_tokens_are_shown_and_taken_away(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        web, admin = broker.web, broker.known
        token = admin["Authorization"].removeprefix("Bearer ")
        async with web.running.client(token=token) as client:
            made = await client.security.create_key("service:orders", description="of the shop")
            await client.security.change_quota("service:orders", max_streams=7)
        keys = await rows(broker, "keys")
        assert [(key["id"], key["subject"], key["description"]) for key in keys] == [
            (made.id, "service:orders", "of the shop")
        ]
        secret = made.text.rpartition("_")[2]
        for name in LISTS:
            said = await web.ask("GET", f"{ACCESS}/{name}", headers=admin)
            assert secret not in said.data.decode()
            assert "hash" not in said.data.decode()
        assert {each["name"] for each in await rows(broker, "roles")} >= {"admin", "producer", "consumer"}
        (orders,) = await rows(broker, "bindings", "?subject=service:orders")
        assert (orders["roles"], orders["scope"]) == (["producer"], "namespace:shop")
        principals = {each["subject"]: each for each in await rows(broker, "principals")}
        assert (principals["service:orders"]["bindings"], principals["service:orders"]["keys"]) == (1, 1)
        quota = await web.ask("GET", f"{ACCESS}/principals/service:orders/quota", headers=admin)
        assert quota.json["quota"]["max_streams"] == 7
        (issuer,) = [each for each in await rows(broker, "issuers") if each["name"] == web.running.config.cluster][:1]
        assert issuer["ceiling"] is None

        body = {"description": "it floods"}
        suspend = f"{ACCESS}/principals/service:orders:suspend"
        assert (await web.ask("POST", suspend, body, admin)).status == 204
        principals = {each["subject"]: each for each in await rows(broker, "principals")}
        assert (principals["service:orders"]["suspended"], principals["service:orders"]["description"]) == (
            True,
            "it floods",
        )
        message = {"messages": [{"payload": "x"}]}
        proof = {"Authorization": f"Bearer {made.text}"}
        publish = f"{API}/topics/shop/orders/messages"
        assert (await web.ask("POST", publish, message, proof)).status == 403
        assert (await web.ask("POST", f"{ACCESS}/principals/service:orders:resume", None, admin)).status == 204
        assert (await web.ask("POST", publish, message, proof)).status == 201

        assert (await web.ask("DELETE", f"{ACCESS}/keys/{made.id}", headers=admin)).status == 204
        assert (await web.ask("POST", publish, message, proof)).status == 401
        assert (await web.ask("DELETE", f"{ACCESS}/keys/{made.id}", headers=admin)).status == 404
        other = broker.proof("service:orders")
        assert (await web.ask("POST", publish, message, other)).status == 201
        said = await web.ask("POST", f"{ACCESS}/tokens/t{broker._tokens}:revoke", {"reason": "it was lost"}, admin)
        assert said.status == 204
        assert (await web.ask("POST", publish, message, other)).status == 401
        (revoked,) = await rows(broker, "revoked-tokens")
        assert (revoked["id"], revoked["reason"]) == (f"t{broker._tokens}", "it was lost")
        assert (await web.ask("DELETE", f"{ACCESS}/bindings/{orders['id']}", headers=admin)).status == 204
        assert await rows(broker, "bindings", "?subject=service:orders") == []


async def test_the_last_administrator_stays(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        (binding,) = await rows(broker, "bindings", "?subject=user:admin")
        said = await broker.web.ask("DELETE", f"{ACCESS}/bindings/{binding['id']}", headers=broker.known)
        assert said.status == 409
        assert await rows(broker, "bindings", "?subject=user:admin") == [binding]


async def test_who_manages_nothing_sees_nothing_of_it(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("viewer", "viewer", "cluster")
        await broker.bind("lead", "namespace-admin", "namespace:shop")
        viewer, lead = broker.proof("service:viewer"), broker.proof("service:lead")
        for name in LISTS:
            assert (await broker.web.ask("GET", f"{ACCESS}/{name}", headers=viewer)).status == 403, name
        seen = await rows(broker, "bindings", proof=lead)
        assert {each["scope"] for each in seen} == {"namespace:shop"}
        (other,) = await rows(broker, "bindings", "?subject=service:viewer")
        refused = await broker.web.ask("DELETE", f"{ACCESS}/bindings/{other['id']}", headers=lead)
        assert refused.status in (403, 404)


async def test_a_cluster_without_access_control_is_prepared(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        roles = (await web.get(f"{ACCESS}/roles"))["roles"]
        assert "admin" in {each["name"] for each in roles}
        assert (await web.get(f"{ACCESS}/bindings"))["bindings"] == []
