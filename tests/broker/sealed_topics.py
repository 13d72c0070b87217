"""Buckets that outlive their brokers, and topics to fill them."""

from __future__ import annotations

import random
import uuid

import danube
from danube.storage import SHARED_SPACES, MemorySpace


def bucket() -> tuple[str, MemorySpace]:
    """A space that survives its brokers, and the URL of it."""
    name = f"bucket-{uuid.uuid4().hex}"
    return f"memory://{name}?durable=true", SHARED_SPACES.space(name)


async def publish(client: danube.Client, topic: str, count: int, size: int = 100, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    payloads = [rng.randbytes(size) for _ in range(count)]
    async with client.producer(topic) as producer:
        await producer.send_many(payloads)
    return payloads


def objects_of(space: MemorySpace, folder: str) -> list[str]:
    return sorted(key for key in space.objects if key.startswith(f"{folder}/"))


def damage(space: MemorySpace, key: str, at: int) -> None:
    data, modified_us = space.objects[key]
    space.store(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], modified_us)
