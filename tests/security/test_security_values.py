# ruff: noqa: SIM117 - a nested "async with" shows what is inside of what
"""Producers and consumers with schemas have the rights on subjects that their roles give them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from security.test_security_gate import secured

from danube.model.errors import PermissionDeniedError, SchemaError

pytestmark = pytest.mark.virtual

ORDERS = "/shop/orders"


class Order(msgspec.Struct):
    id: int


class Changed(msgspec.Struct):
    id: int
    user: str = "-"


async def test_a_schema_that_is_there_is_written_without_the_right_to_register(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", "namespace:shop")
        await broker.bind("service:billing", "consumer", "namespace:shop")
        await broker.bind("service:narrow", "consumer", ORDERS)
        producing = broker.running.client(token=broker.token("service:api"))
        async with producing as api, broker.running.client(token=broker.token("user:admin")) as admin:
            with pytest.raises(PermissionDeniedError, match="ManageSchema"):
                async with api.producer(ORDERS, schema=Order):
                    pass
            async with admin.producer(ORDERS, schema=Order):
                pass
            async with api.producer(ORDERS, schema=Order) as producer:
                await producer.send(Order(1))
            with pytest.raises(PermissionDeniedError, match="ManageSchema"):
                async with api.producer(ORDERS, schema=Changed):
                    pass
        async with broker.running.client(token=broker.token("service:billing")) as client:
            async with client.consumer(ORDERS, subscription="s", start="earliest", schema=Changed) as consumer:
                assert (await consumer.receive()).value == Changed(1)
        async with broker.running.client(token=broker.token("service:narrow")) as client:
            async with client.consumer(ORDERS, subscription="t", start="earliest", schema=Changed) as consumer:
                message = await consumer.receive()
                with pytest.raises(SchemaError, match="these credentials may not see it"):
                    _ = message.value
