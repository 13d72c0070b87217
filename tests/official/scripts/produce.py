"""Produce with the official client. The job is one JSON object, the argument; what happens comes out as JSON lines.

Job:
    url, topic      where to.
    producers       names of the producers, each with messages of its own. ["p"]
    partitions      of the topic; 0 for a plain one. 0
    reliable        dispatch strategy. true
    retries         of the client's own retry loop; 0 for its default. 0
    messages        what each producer sends: objects with text, size (the payload is the text, filled up with dots to
                    so many bytes), key and attributes. []
    count, size     instead of messages: so many, named "<producer>-<number>". 0, 0
    endless         go on with numbered messages until the input ends, instead of count. false
    pause_s         between two messages of a producer. 0
    in_flight       sends of one producer at the same time. 1
    total_only      say nothing of each message. false

Lines:
    {"ready": true}                         all producers are there; a line on the input starts them
    {"sent": text, "producer", "sequence"}  the broker has answered
    {"failed": text, "producer", "status", "details"}
    {"done": number of messages sent}
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import grpc
from connecting import builder_of

from danube import DispatchStrategy, ProducerOptions


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def lines_of_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class Sender:
    """One producer, and what it has to send."""

    def __init__(self, job: dict[str, Any], name: str, producer: Any) -> None:
        self.job = job
        self.name = name
        self.producer = producer
        self.stopped = False
        self.sent = 0

    def messages(self) -> Iterator[dict[str, Any]]:
        if "messages" in self.job:
            yield from self.job["messages"]
            return
        numbers = itertools.count() if self.job.get("endless") else range(self.job.get("count", 0))
        for number in numbers:
            if self.stopped:
                return
            yield {"text": f"{self.name}-{number}", "size": self.job.get("size", 0)}

    async def run(self) -> None:
        messages = self.messages()
        await asyncio.gather(*(self.send_all(messages) for _ in range(self.job.get("in_flight", 1))))

    async def send_all(self, messages: Iterator[dict[str, Any]]) -> None:
        for message in messages:
            await self.send(message)
            if self.job.get("pause_s"):
                await asyncio.sleep(self.job["pause_s"])

    async def send(self, message: dict[str, Any]) -> None:
        text = message["text"]
        payload = text.encode().ljust(message.get("size", 0), b".")
        attributes = message.get("attributes")
        try:
            if "key" in message:
                sequence = await self.producer.send_with_key(payload, attributes, message["key"])
            else:
                sequence = await self.producer.send(payload, attributes)
        except grpc.aio.AioRpcError as error:
            say(failed=text, producer=self.name, status=error.code().name, details=error.details())
            return
        self.sent += 1
        if not self.job.get("total_only"):
            say(sent=text, producer=self.name, sequence=sequence)


async def main(job: dict[str, Any]) -> None:
    client = await builder_of(job).build()
    strategy = DispatchStrategy.RELIABLE if job.get("reliable", True) else DispatchStrategy.NON_RELIABLE
    senders = []
    for name in job.get("producers", ["p"]):
        builder = client.new_producer().with_topic(job["topic"]).with_name(name).with_dispatch_strategy(strategy)
        builder = builder.with_partitions(job.get("partitions", 0))
        producer = builder.with_options(ProducerOptions(max_retries=job.get("retries", 0))).build()
        try:
            await producer.create()
        except grpc.aio.AioRpcError as error:
            say(refused=name, status=error.code().name, details=error.details())
            return
        senders.append(Sender(job, name, producer))
    reader = await lines_of_input()
    say(ready=True)
    await reader.readline()

    async def wait_for_end() -> None:
        await reader.read()
        for sender in senders:
            sender.stopped = True

    ending = asyncio.create_task(wait_for_end())
    await asyncio.gather(*(sender.run() for sender in senders))
    ending.cancel()
    say(done=sum(sender.sent for sender in senders))
    for sender in senders:
        await sender.producer.close()


asyncio.run(main(json.loads(sys.argv[1])))
