"""The same client under asyncio: workers share a subscription, each task with a consumer of its own.

::

    danube serve &
    python docs/examples/client_asyncio.py

On a new broker it prints::

    stored 100 jobs
    done: 100 jobs, the sum of their numbers is 4950

The client is built on AnyIO, so nothing has to be switched on: it uses the event loop in which it is opened. Tasks,
timeouts and cancellation are asyncio's own. A client belongs to its loop; open another one in another loop or thread.
"""

from __future__ import annotations

import asyncio
import sys

import danube
from danube.client import Client
from danube.model import SubscriptionType

TOPIC = "/default/asyncio-jobs"
COUNT = 100


async def publish(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        pending = [producer.send_nowait(b"%d" % number) for number in range(COUNT)]  # does not wait for the broker
        await asyncio.gather(*(message.receipt() for message in pending))
    print(f"stored {COUNT} jobs")


async def work(client: Client, done: list[int], enough: asyncio.Event) -> None:
    async with client.consumer(TOPIC, subscription="workers", type=SubscriptionType.SHARED, start="earliest") as jobs:
        async for job in jobs:
            async with asyncio.timeout(5):
                await asyncio.sleep(0)  # the work itself
            await job.ack()
            done.append(int(job.payload))
            if len(done) == COUNT:
                enough.set()


async def main(url: str) -> None:
    done: list[int] = []
    enough = asyncio.Event()
    async with danube.connect(url) as client:
        await publish(client)
        workers = [asyncio.create_task(work(client, done, enough)) for _ in range(3)]
        async with asyncio.timeout(30):
            await enough.wait()
        for worker in workers:
            worker.cancel()  # safe at any await; leaving the consumer's block makes its acknowledgements durable
        await asyncio.gather(*workers, return_exceptions=True)
    print(f"done: {len(done)} jobs, the sum of their numbers is {sum(done)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "danube://127.0.0.1:6650"))
