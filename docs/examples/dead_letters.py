"""A dead-letter handler: it repairs what it can, sends it back to its topic, and reports the rest.

::

    danube serve &
    python docs/examples/dead_letters.py

On a new broker it prints::

    message 1: bob's total is '7,00' -> sent back
    message 2: eve's total is 'much' -> cannot be repaired
    billed: {'ada': 12.5, 'bob': 7.0}

The subscription ``billing`` tries a message twice and then moves it to its dead-letter topic. That is an ordinary topic
with a subscription of the handler's own, so a handler may stop and continue later. Dead letters stay in it until its
retention removes them; ``danube dlq list`` shows them, ``danube dlq replay`` sends them back as they are.
"""

from __future__ import annotations

import json
import re
import sys

import trio

import danube
from danube.client import Client, Message, Producer

TOPIC = "/default/letter-orders"
LETTERS = "/default/letter-orders-billing-dlq"
ORDERS = [{"user": "ada", "total": "12.50"}, {"user": "bob", "total": "7,00"}, {"user": "eve", "total": "much"}]
POLICY = {"max_redelivery_count": 1, "redelivery_delay_s": 0.1, "poison": "dead_letter"}


async def bill(client: Client, billed: dict[str, float], enough: trio.Event) -> None:
    """The application: refuses orders whose total is not a number."""
    async with client.consumer(TOPIC, subscription="billing", start="earliest", policy=POLICY) as orders:
        async for message in orders:
            order = json.loads(message.payload)
            try:
                billed[order["user"]] = float(order["total"])
            except ValueError:
                await message.nack(reason=f"{order['user']}'s total is {order['total']!r}")
            else:
                await message.ack()
            if len(billed) == 2:
                enough.set()


async def repair(letter: Message, producer: Producer) -> bool:
    """Send a repaired copy back, if possible. A crash before the letter's acknowledgement repeats it."""
    order = json.loads(letter.payload)
    total = order["total"].replace(",", ".")
    if re.fullmatch(r"\d+\.\d\d", total) is None:
        return False
    await producer.send(json.dumps(order | {"total": total}).encode(), key=letter.key)
    return True


async def handle_letters(client: Client, count: int) -> None:
    async with client.producer(LETTERS):
        pass  # creates the topic, so that the handler may start before there are letters
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(LETTERS, subscription="handler", start="earliest") as letters,
    ):
        for _ in range(count):
            letter = await letters.receive()
            origin = letter.attributes or {}
            outcome = "sent back" if await repair(letter, producer) else "cannot be repaired"
            print(f"message {origin['x-original-topic-offset']}: {origin['x-failure-reason']} -> {outcome}")
            await letter.ack()  # at the end: a letter that was not handled is delivered again


async def main(url: str) -> None:
    billed: dict[str, float] = {}
    enough = trio.Event()
    async with danube.connect(url) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([json.dumps(order).encode() for order in ORDERS])
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bill, client, billed, enough)
                await handle_letters(client, count=2)
                await enough.wait()
                nursery.cancel_scope.cancel()
    print(f"billed: {billed}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "danube://127.0.0.1:6650")
