"""Consume with the official client. The job is one JSON object, the argument; what happens comes out as JSON lines.

Job:
    url, topic, subscription    where from.
    type            EXCLUSIVE, SHARED, FAILOVER or KEY_SHARED. "EXCLUSIVE"
    consumers       objects with the name, and the key filters if any. [{"name": "c"}]
    ack             acknowledge what comes. true
    nack            texts that are not acknowledged when they come for the first time, and the delay in ms. {}
    in_flight       acknowledgements at the same time. 1

Lines:
    {"ready": true}
    {"refused": name, "status", "details"}  a consumer could not subscribe
    {"text", ...}                           a message: see ``described``
    {"acked": offset} | {"nacked": offset}  the broker has answered
    {"failed": offset, "status", "details"}

It ends when the input ends, or at once if no consumer could subscribe.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from typing import Any

import grpc
from connecting import builder_of

from danube import SubType

logging.getLogger("danube").setLevel(logging.CRITICAL)  # while the broker is away it warns as fast as it can


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def described(message: Any, consumer: str) -> dict[str, Any]:
    payload = message.payload
    return {
        "text": payload[:100].rstrip(b".").decode(),
        "size": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest() if len(payload) > 100 else "",
        "consumer": consumer,
        "topic": message.msg_id.topic_name,
        "offset": message.msg_id.topic_offset,
        "producer_id": message.msg_id.producer_id,
        "broker_addr": message.msg_id.broker_addr,
        "request_id": message.request_id,
        "producer": message.producer_name,
        "publish_time": message.publish_time,
        "attributes": dict(message.attributes),
        "key": message.routing_key if message.HasField("routing_key") else None,
    }


class Receiver:
    """One consumer."""

    def __init__(self, job: dict[str, Any], name: str, consumer: Any, nacks: dict[str, int]) -> None:
        self.job = job
        self.name = name
        self.consumer = consumer
        self.nacks = nacks

    async def run(self) -> None:
        queue = await self.consumer.receive()
        await asyncio.gather(*(self.settle_all(queue) for _ in range(self.job.get("in_flight", 1))))

    async def settle_all(self, queue: Any) -> None:
        while True:
            message = await queue.get()
            line = described(message, self.name)
            say(**line)
            if not self.job.get("ack", True):
                continue
            delay_ms = self.nacks.pop(line["text"], None)
            try:
                if delay_ms is None:
                    await self.consumer.ack(message)
                    say(acked=line["offset"])
                else:
                    await self.consumer.nack(message, delay_ms=delay_ms, reason="as the test asked")
                    say(nacked=line["offset"])
            except grpc.aio.AioRpcError as error:
                say(failed=line["offset"], status=error.code().name, details=error.details())


async def main(job: dict[str, Any]) -> None:
    client = await builder_of(job).build()
    receivers = []
    nacks = dict(job.get("nack", {}))
    for wanted in job.get("consumers", [{"name": "c"}]):
        builder = client.new_consumer().with_topic(job["topic"]).with_consumer_name(wanted["name"])
        builder = builder.with_subscription(job["subscription"])
        builder = builder.with_subscription_type(SubType[job.get("type", "EXCLUSIVE")])
        consumer = builder.with_key_filters(wanted.get("filters", [])).build()
        try:
            await consumer.subscribe()
        except grpc.aio.AioRpcError as error:
            say(refused=wanted["name"], status=error.code().name, details=error.details())
            continue
        receivers.append(Receiver(job, wanted["name"], consumer, nacks))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = [asyncio.create_task(receiver.run()) for receiver in receivers]
    say(ready=True)
    if running:
        await reader.read()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for receiver in receivers:
        await receiver.consumer.close()


asyncio.run(main(json.loads(sys.argv[1])))
