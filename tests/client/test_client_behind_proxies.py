"""Clients continue when proxies reset streams or close connections, on the same connection or another one."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from fake_broker import FakeBroker, running_broker, wait_until
from msgspec.structs import replace

import danube
from danube.client import Client
from danube.model import Durability, api
from danube.model.errors import CallRefusedError, ConnectionLostError
from danube.wire import Context
from danube.wire._server_connection import ServerConnection
from danube.wire.client import LAST_STREAM_ID

TOPIC = "/default/t"
NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 2, 7, 8, 11
GRACEFUL = 2**31 - 1


def goaway(connection: ServerConnection, last_stream_id: int, code: int = NO_ERROR) -> None:
    """Say what a proxy says: the broker behind it knows nothing of that and goes on."""
    connection.protocol._outgoing.raw(struct.pack(">HBBBL", 0, 8, 7, 0, 0) + struct.pack(">LL", last_stream_id, code))
    connection.wake_writer()


def reset_streams(broker: FakeBroker, code: int) -> int:
    count = 0
    for connection in broker.server._connections:
        for stream_id, stream in list(connection._streams.items()):
            connection.protocol.reset(stream_id, code)
            stream.abandon(None)
            count += 1
        connection.wake_writer()
    return count


def serve(broker: FakeBroker, handler: Callable[[api.LookupTopic, Context], Awaitable[api.TopicPartitions]]) -> None:
    path = api.Method.LOOKUP_TOPIC
    broker.server.methods[path] = replace(broker.server.methods[path], handler=handler)


@asynccontextmanager
async def working() -> AsyncIterator[tuple[FakeBroker, Client]]:
    with trio.fail_after(20):
        async with (
            running_broker() as broker,
            danube.connect(broker.url, reconnect_initial_s=0.02, reconnect_max_s=0.1) as client,
        ):
            yield broker, client


async def test_a_graceful_goaway_leaves_long_streams_and_moves_the_rest() -> None:
    async with working() as (broker, client):
        async with client.producer(TOPIC, name="old") as old, client.consumer(TOPIC, subscription="s") as consumer:
            await old.send(b"1")
            (first,) = broker.server._connections
            goaway(first, GRACEFUL)
            await wait_until(lambda: len(broker.server._connections) == 2)
            await old.send(b"2")
            async with client.producer(TOPIC, name="new") as new:
                await new.send(b"3")
                assert len(await client.admin.list_topics()) == 1
            assert [(await consumer.receive()).payload for _ in range(3)] == [b"1", b"2", b"3"]
            assert len(broker.opens) == 3, "what was open has gone on where it was"
        await wait_until(lambda: first not in broker.server._connections)
        assert len(broker.server._connections) == 1


async def test_a_connection_that_is_retired_again_and_again() -> None:
    """As by a limit of calls for each connection."""
    async with working() as (broker, client), client.producer(TOPIC) as producer:
        for number in range(10):
            await producer.send(b"%d" % number)
            for connection in list(broker.server._connections):
                goaway(connection, GRACEFUL)
            assert len(await client.admin.list_topics()) == 1
        await wait_until(lambda: len(broker.server._connections) <= 2)


async def test_a_goaway_below_an_open_stream() -> None:
    async with working() as (broker, client):
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC, subscription="s") as consumer:
            await producer.send(b"0")
            broker.hold_acks = trio.Event()
            receipt = producer.send_nowait(b"1")
            await wait_until(lambda: len(broker.received) == 2)
            (first,) = broker.server._connections
            goaway(first, 0)
            broker.hold_acks.set()
            await receipt
            await wait_until(lambda: len(broker.opens) == 4)
            received = [(await consumer.receive()).payload]
            while received[-1] != b"1":
                received.append((await consumer.receive()).payload)
            # The first one was not acknowledged: it may have been taken before the stream was opened again.
            assert received in ([b"0", b"1"], [b"0", b"0", b"1"])
            await wait_until(lambda: first not in broker.server._connections)
        assert broker.topic(TOPIC).payloads() == [b"0", b"1"]


@pytest.mark.parametrize("code", [NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM])
async def test_streams_that_are_reset(code: int) -> None:
    async with working() as (broker, client):
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC, subscription="s") as consumer:
            for number in range(3):
                await producer.send(b"%d" % number)
                message = await consumer.receive()
                assert message.payload == b"%d" % number
                await message.ack()
                await consumer.flush_acks()
                assert reset_streams(broker, code) == 2
                await wait_until(lambda expected=2 * number + 4: len(broker.opens) == expected)
        assert len(broker.server._connections) == 1


async def test_a_call_that_was_refused_is_made_again_and_one_that_was_reset_is_not() -> None:
    async with working() as (broker, client):
        calls = 0
        fate = REFUSED_STREAM

        async def lookup(_request: api.LookupTopic, _context: Context) -> api.TopicPartitions:
            nonlocal calls
            calls += 1
            if calls == 1:
                reset_streams(broker, fate)
                await trio.sleep_forever()
            return api.TopicPartitions(TOPIC, 0, [TOPIC], Durability.DISK)

        serve(broker, lookup)
        await client.admin._change(api.Method.LOOKUP_TOPIC, api.LookupTopic(TOPIC), api.TopicPartitions)
        assert calls == 2
        calls, fate = 0, CANCEL
        with pytest.raises(ConnectionLostError, match="HTTP/2 code 8"):
            await client.admin._change(api.Method.LOOKUP_TOPIC, api.LookupTopic(TOPIC), api.TopicPartitions)
        assert calls == 1


async def test_calls_that_are_always_refused_give_up() -> None:
    with trio.fail_after(20):
        async with (
            running_broker() as broker,
            danube.connect(broker.url, reconnect_initial_s=0.02, request_timeout_s=0.2) as client,
        ):

            async def lookup(_request: api.LookupTopic, _context: Context) -> api.TopicPartitions:
                reset_streams(broker, REFUSED_STREAM)
                await trio.sleep_forever()

            serve(broker, lookup)
            with pytest.raises(CallRefusedError, match="refused"):
                await client.admin._change(api.Method.LOOKUP_TOPIC, api.LookupTopic(TOPIC), api.TopicPartitions)


async def test_a_connection_is_renewed_before_its_stream_ids_are_used_up() -> None:
    async with working() as (broker, client):
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            (first,) = broker.server._connections
            channel = await client._pool.channel()
            channel.protocol._h2.highest_outbound_stream_id = LAST_STREAM_ID - 4
            for _ in range(10):
                assert len(await client.admin.list_topics()) == 1
            await producer.send(b"1")
            assert len(broker.server._connections) == 2
            assert len(broker.opens) == 1
        await wait_until(lambda: first not in broker.server._connections)
