"""Request and reply over topics: a service that knows prices, and a client that asks for them.

::

    danube serve &
    python docs/examples/request_reply.py

It prints::

    tea costs 12.50
    coffee: the service has no price: LookupError: coffee is not sold here
    no answer within 0.2 s: is the service running?

Start the service in as many processes as needed: they share the requests. ``danube request /default/prices tea`` asks
it from the command line. A request may be handled twice, so a handler should be idempotent.
"""

from __future__ import annotations

import sys

import trio

import danube
from danube.client import Client, Message
from danube.model.errors import DeadlineExceededError, RequestFailedError

TOPIC = "/default/prices"
PRICES = {"tea": "12.50"}


async def price(request: Message) -> bytes:
    """Answer one request. The exception of a handler is raised where the request was made."""
    item = request.payload.decode()
    if item not in PRICES:
        raise LookupError(f"{item} is not sold here")
    return PRICES[item].encode()


async def ask(client: Client) -> None:
    async with client.requester(TOPIC) as prices:
        reply = await prices.request(b"tea", timeout_s=10)
        print(f"tea costs {reply.payload.decode()}")
        try:
            await prices.request(b"coffee", timeout_s=10)
        except RequestFailedError as error:
            print(f"coffee: the service has no price: {error.message.partition('failed: ')[2]}")


async def ask_without_a_service(client: Client) -> None:
    async with client.requester("/default/prices-elsewhere") as prices:
        try:
            await prices.request(b"tea", timeout_s=0.2)
        except DeadlineExceededError:
            print("no answer within 0.2 s: is the service running?")


async def main(url: str) -> None:
    async with danube.connect(url) as service, danube.connect(url) as client:
        async with service.responder(TOPIC, price):  # answers while the block lasts, 16 requests at a time
            await ask(client)
        await ask_without_a_service(client)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "danube://127.0.0.1:6650")
