"""Publish and consume under Trio.

::

    danube serve &
    python docs/examples/client_trio.py

On a new broker it prints::

    stored at offset 0
    stored at offsets 1-2
    0 ada 12.5
    1 bob 7
    2 bob 30
    done: 3 orders
"""

from __future__ import annotations

import sys

import trio

import danube
from danube.client import Client

TOPIC = "/default/trio-orders"


async def publish(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        receipt = await producer.send(b"12.5", key="ada")  # returns when the broker has synced the message to disk
        print(f"stored at offset {receipt.offset}")
        receipts = await producer.send_many([b"7", b"30"], key="bob")  # many messages, one call
        first, last = receipts.ranges[0].start, receipts.ranges[-1].end - 1
        print(f"stored at offsets {first}-{last}")


async def consume(client: Client) -> None:
    count = 0
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        async for batch in consumer.batches(until_caught_up=True):  # without until_caught_up it waits for more
            for message in batch:
                print(message.offset, message.key, message.payload.decode())
            await batch.ack()
            count += len(batch)
    print(f"done: {count} orders")  # leaving the block has made the acknowledgements durable


async def main(url: str) -> None:
    async with danube.connect(url) as client:
        await publish(client)
        with trio.fail_after(30):  # every call may be cancelled at any await
            await consume(client)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "danube://127.0.0.1:6650")
