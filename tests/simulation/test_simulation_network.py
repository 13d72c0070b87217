"""The simulated network: latency, order, windows, and every way in which a connection ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest
import trio

from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.network import WINDOW_BYTES, ClientStream, Network, ServerStream
from danube.testing.simulation.trace import Trace


def simulate(work: Callable[[Network, ClientStream, ServerStream], Awaitable[None]]) -> None:
    """Run ``work`` with a connection from host ``a`` to port 1 of host ``b``."""

    async def main() -> None:
        network = Network(Random(1), Trace())
        (listener,) = network.listen("b", ["b:1"])
        client = await network.connect("a", "b", 1)
        with trio.fail_after(100):
            await work(network, client, await listener.accept())

    run_seeded(main, 1)


def test_bytes_arrive_in_order_and_late() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        network.link("a", "b").latency_s = 1.0
        network.short_reads = 0.5
        began = trio.current_time()
        for number in range(50):
            await client.send(bytes([number]) * 10)
        await client.aclose()
        got = bytearray()
        while data := await server.receive_some(7):
            got += data
        assert got == b"".join(bytes([number]) * 10 for number in range(50))
        assert 0.5 <= trio.current_time() - began <= 1.5

    simulate(work)


@pytest.mark.parametrize("joins", [False, True])
def test_a_read_returns_one_write_or_all_that_has_arrived(joins: bool) -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        network.joins_reads = joins
        for piece in (b"ab", b"cd", b"ef"):
            await client.send(piece)
        await trio.sleep(1)
        await client.send(b"late")
        assert await server.receive_some(5) == (b"abcde" if joins else b"ab")
        assert await server.receive_some(5) == (b"f" if joins else b"cd")
        await client.aclose()
        await trio.sleep(1)
        rest = [await server.receive_some(100) for _ in range(2 if joins else 3)]
        assert rest == ([b"late", b""] if joins else [b"ef", b"late", b""])

    simulate(work)


def test_a_reader_that_does_not_read_stops_its_writer() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        with trio.move_on_after(10) as scope:
            await client.send(bytes(WINDOW_BYTES + 1))
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, b"x")
            got = 0
            while got < WINDOW_BYTES + 1:
                got += len(await server.receive_some(65536))

    simulate(work)


def test_a_cut_link_delays() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        network.set_cut("a", "b", cut=True)
        await client.send(b"late")
        with trio.move_on_after(5) as scope:
            await server.receive_some()
        assert scope.cancelled_caught
        network.set_cut("b", "a", cut=False)
        assert await server.receive_some() == b"late"

    simulate(work)


def test_a_one_way_cut_delays_one_direction() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        network.set_one_way_cut("a", "b", cut=True)
        await client.send(b"late")
        await server.send_all(b"in time")
        assert await client.receive() == b"in time"
        for source, target in (("a", "b"), ("b", "a")):
            with trio.move_on_after(5) as scope:
                await network.connect(source, target, 1)
            assert scope.cancelled_caught, "a connection needs both directions"
        with trio.move_on_after(5) as scope:
            await server.receive_some()
        assert scope.cancelled_caught
        network.set_one_way_cut("a", "b", cut=False)
        assert await server.receive_some() == b"late"

    simulate(work)


def test_a_reset_breaks_both_sides() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        await client.send(b"lost")
        network.reset("a", "b")
        with pytest.raises(anyio.BrokenResourceError):
            await client.receive()
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some()

    simulate(work)


def test_a_half_open_connection_swallows_everything() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        network.half_open("a", "b")
        await client.send(b"lost")
        await client.aclose()
        with trio.move_on_after(50) as scope:
            await server.receive_some()
        assert scope.cancelled_caught

    simulate(work)


def test_a_killed_host_says_so_and_a_dead_one_does_not() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        network.crash("b", silently=False)
        with pytest.raises(anyio.BrokenResourceError):
            await client.receive()
        with pytest.raises(ConnectionRefusedError):
            await network.connect("a", "b", 1)
        (listener,) = network.listen("b", ["b:1"])
        other = await network.connect("a", "b", 1)
        await listener.accept()
        network.crash("b", silently=True)
        await other.send(b"into the void")
        with trio.move_on_after(20) as scope:
            await other.receive()
        assert scope.cancelled_caught
        network.power_on("b")
        await other.send(b"anybody there?")
        with pytest.raises(anyio.BrokenResourceError):
            await other.receive()

    simulate(work)


def test_closing_with_unread_bytes_resets() -> None:
    async def work(network: Network, client: ClientStream, server: ServerStream) -> None:
        await client.send(b"unread")
        await trio.sleep(1)
        await server.aclose()
        with pytest.raises(anyio.BrokenResourceError):
            await client.receive()

    simulate(work)
