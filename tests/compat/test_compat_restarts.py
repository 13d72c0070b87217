"""The end of a broker as official clients see it: some treat certain errors as permanent."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import wait_until
from compat_harness import calling, compat_broker
from consumer_harness import SHARED, receiving, subscribe

from danube.model.errors import ConnectionLostError, UnavailableError
from danube.wire.server import LINGER_S

TOPIC = "/default/leaving"


async def test_streams_end_then_calls_are_refused_then_the_connection_ends(tmp_path: Path) -> None:
    """At once they looked like ``Cancelled: connection closed``, and a third of the Rust consumers ended for good."""
    async with compat_broker(tmp_path) as running, calling(running) as caller, trio.open_nursery() as nursery:
        await caller.create(TOPIC)
        first, second = [await subscribe(caller, TOPIC, name, kind=SHARED) for name in ("a", "b")]
        async with receiving(caller, first) as one, receiving(caller, second) as other:
            await wait_until(lambda: len(running.topic(TOPIC).subscriptions["s"].consumers) == 2)
            began = trio.current_time()
            nursery.start_soon(running.drain)
            for each in (one, other):
                with pytest.raises(UnavailableError):
                    await each.next()
            refused = 0
            while not caller.channel.draining:  # until GOAWAY
                try:
                    await subscribe(caller, TOPIC, "a", kind=SHARED)
                except ConnectionLostError:
                    break
                except UnavailableError as error:
                    assert "shutting down" in str(error) or caller.channel.draining  # noqa: PT017 - in a loop
                else:
                    pytest.fail("a broker that ends has taken a call")
                refused += 1
                assert trio.current_time() < began + LINGER_S + 5
                await trio.sleep(0.01)
            assert refused > 5
            assert trio.current_time() >= began + LINGER_S
            await caller.channel.wait_closed()


async def test_a_drain_does_not_wait_when_they_have_left(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, trio.open_nursery() as nursery:
        async with calling(running) as caller:
            await caller.create(TOPIC)
            consumer = await subscribe(caller, TOPIC)
            async with receiving(caller, consumer) as stream:
                await wait_until(lambda: bool(running.topic(TOPIC).subscriptions["s"].consumers))
                server = running.broker._server
                monitored = server.linger_s = 10.0
                began = trio.current_time()
                nursery.start_soon(running.drain)
                with pytest.raises(UnavailableError):
                    await stream.next()
        await wait_until(lambda: not server.connections)
        assert trio.current_time() < began + monitored / 2
