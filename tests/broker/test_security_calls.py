"""Access control administered by the client, at a broker that does not enforce it yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.broker_harness import running_broker

from danube.model.errors import FailedPreconditionError, NotFoundError
from danube.model.security_api import CeilingGrant
from danube.security.api_keys import parse_api_key
from danube.security.keys import signing_key

pytestmark = pytest.mark.virtual

ORDERS = "/shop/orders"


async def test_everything_is_administered_by_the_client(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        security = client.security
        await security.put_role("tap", ["Lookup", "Consume"], "reads")
        assert (await security.roles())[-1].name == "tap"
        granted = await security.grant("service:api", ["tap"], ORDERS)
        assert granted.scope == f"topic:{ORDERS}"
        assert [each.id for each in await security.bindings("service:api", ORDERS)] == [granted.id]
        assert (await security.explain("service:api", "consume", ORDERS)).allowed
        await security.suspend("service:api", "left")
        assert [(each.subject, each.suspended) for each in await security.principals()] == [("service:api", True)]
        assert (await security.explain("service:api", "consume", ORDERS)).reason == "service:api is suspended"
        await security.resume("service:api")
        assert await security.revoke("service:api", ORDERS, ["tap"]) == []
        with pytest.raises(NotFoundError):
            await security.drop_binding(granted.id)
        await security.drop_role("tap")
        key = await security.create_key("service:api", ceiling=[CeilingGrant(ORDERS, ["Produce"])], life_s=60)
        assert key.text not in repr(key)
        assert parse_api_key(key.text).id == key.id
        (row,) = await security.keys("service:api")
        assert (row.id, row.expires_us) == (key.id, key.expires_us)
        await security.drop_key(key.id)
        team = signing_key(bytes(range(32)))
        shop = [CeilingGrant("namespace:shop", roles=["producer"])]
        await security.add_issuer("shop-team", team.public_bytes, shop, longest_life_s=3600)
        assert [each.kid for each in await security.issuers()] == [team.kid]
        await security.drop_issuer(team.kid)
        await security.revoke_token("t-1", reason="lost")
        assert [each.id for each in await security.revoked_tokens()] == ["t-1"]
        with pytest.raises(FailedPreconditionError, match="signs no tokens"):
            await security.issue_token("service:api", life_s=60)


async def test_lists_of_several_pages_are_read_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube.model.security_api.PAGE_ROWS", 2)
    async with running_broker(tmp_path) as running, running.client() as client:
        for number in range(5):
            subject = f"service:s{number}"
            await client.security.grant(subject, ["viewer"], "cluster")
            await client.security.create_key(subject)
            await client.security.revoke_token(f"t-{number}")
        assert len(await client.security.bindings()) == 5
        assert len(await client.security.keys()) == 5
        assert len(await client.security.principals()) == 5
        assert len(await client.security.revoked_tokens()) == 5
