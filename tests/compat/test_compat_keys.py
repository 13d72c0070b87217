"""Keys that are not UTF-8, between native and official clients: the upstream protocol has only text."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from compat_harness import calling, compat_broker
from consumer_harness import ack, receiving, subscribe

from danube.model.errors import InvalidArgumentError

TOPIC = "/default/orders"
ENCODED = {"x-danube-key-encoding": "base64"}


async def test_keys_go_both_ways(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, running.client() as client, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        consumer_id = await subscribe(caller, TOPIC)
        async with receiving(caller, consumer_id) as stream:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"1", key=b"\xff\x00", attributes={"a": "b"})
                await producer.send(b"2", key="text")
            first = await stream.next()
            assert (base64.b64decode(first.routing_key), dict(first.attributes)) == (b"\xff\x00", ENCODED | {"a": "b"})
            await ack(caller, first)
            second = await stream.next()
            assert (second.routing_key, dict(second.attributes)) == ("text", {})
            await ack(caller, second)
            # What was received is sent again as it is.
            await caller.send(TOPIC, producer_id, b"3", routing_key=first.routing_key, attributes=first.attributes)
            await caller.send(TOPIC, producer_id, b"4", routing_key="AAAA", attributes=ENCODED)
            await caller.send(TOPIC, producer_id, b"5", routing_key="AAAA")
            with pytest.raises(InvalidArgumentError, match=r"'\?' .*must be 'base64'.*valid in it"):
                await caller.send(TOPIC, producer_id, b"6", routing_key="?", attributes=ENCODED)
        async with client.reader(TOPIC, start="earliest") as reader:
            found = [await reader.receive() for _ in range(5)]
    assert [(each.key_bytes, each.attributes) for each in found[2:]] == [
        (b"\xff\x00", {"a": "b"}),
        (b"\0\0\0", None),
        (b"AAAA", None),
    ]
