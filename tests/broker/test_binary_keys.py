"""Keys that are not UTF-8, through a broker: consumers of all types, filters, dead letters, requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker.broker_harness import running_broker

from danube.model.batch import Record
from danube.model.errors import InvalidArgumentError

pytestmark = pytest.mark.virtual

TOPIC = "/default/orders"
KEYS = [b"\xff\x00", b"text", "größe".encode(), b"\xc3\x28", b"\xff\x00"]
PAYLOADS = [b"%d" % number for number in range(len(KEYS))]


async def taken(client: Any, subscription: str, kind: str, count: int, **options: Any) -> list[tuple[bytes, Any]]:
    """The payloads and keys that a new subscription gets; it acknowledges them."""
    found: list[tuple[bytes, Any]] = []
    async with client.consumer(TOPIC, subscription=subscription, type=kind, start="earliest", **options) as consumer:
        async for message in consumer:
            found.append((message.payload, message.key_bytes))
            await message.ack()
            if len(found) == count:
                break
        await consumer.flush_acks()
    return found


async def test_every_type_of_subscription_gets_the_same_bytes(tmp_path: Path) -> None:
    expected = list(zip(PAYLOADS, KEYS, strict=True))
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(PAYLOADS[0], key=KEYS[0])
            await producer.send_many(PAYLOADS[1:3], keys=["text", "größe"])
            pending = producer.send_nowait(PAYLOADS[3], key=KEYS[3])
            await pending
            await producer.send(PAYLOADS[4], key="\udcff\x00")  # the first one as text
        for kind in ("exclusive", "failover", "shared", "key_shared"):
            assert sorted(await taken(client, kind, kind, 5)) == expected, kind
        await running.restart()
        matched = await taken(client, "filtered", "key_shared", 3, key_filters=["?\x00", "g*"])
        assert sorted(matched) == [expected[index] for index in (0, 2, 4)]
        async with client.reader(TOPIC, start="earliest") as reader:
            messages = [await reader.receive() for _ in KEYS]
        assert [message.key for message in messages] == ["\udcff\x00", "text", "größe", "\udcc3(", "\udcff\x00"]


async def test_dead_letters_keep_their_key_and_its_partition(tmp_path: Path) -> None:
    policy = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "/default/dead"}
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/dead", partitions=3)
        async with client.producer(TOPIC) as producer:
            await producer.send_many(PAYLOADS, keys=KEYS)
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest", policy=policy) as consumer:
            for _ in KEYS:
                await (await consumer.receive()).nack(reason="no")
            letters = []
            async with client.reader("/default/dead", start="earliest") as reader:
                while len(letters) < len(KEYS):
                    letters.append(await reader.receive())
        async with client.producer("/default/dead") as producer:
            places = {key: producer.partition_for(key) for key in KEYS}
    assert sorted((each.payload, each.key_bytes) for each in letters) == list(zip(PAYLOADS, KEYS, strict=True))
    assert all(each.partition == places[each.key_bytes] for each in letters)


async def test_staged_records_have_keys_of_bytes(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        async with client.stages.open(TOPIC, producer="job", batch_id=1) as stage:
            with pytest.raises(InvalidArgumentError, match="the key of a Record is bytes or None, not str"):
                await stage.add([Record(b"x", "text")])  # type: ignore[arg-type]
            await stage.add([Record(payload, key) for payload, key in zip(PAYLOADS, KEYS, strict=True)])
            staged = await stage.finish()
        await client.stages.commit("job", 1, [staged])
        assert await taken(client, "s", "exclusive", 5) == list(zip(PAYLOADS, KEYS, strict=True))
