"""Brokers link to each other from their start on, before their metadata are open, and until these are closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from broker.broker_harness import VirtualMachine, running_broker, small_config, wait_until

from danube.broker import BrokerConfig, Seams
from danube.broker.directory.identity_file import BROKER_NAME, decode_broker_file
from danube.broker.runtime.own_address import foreign_hosts, own_address
from danube.cluster.features import FEATURE_LEVEL
from danube.metadata import Group
from danube.model.errors import ConfigurationError
from danube.peers import Peer
from danube.peers.links import open_peers
from danube.testing.simulation.node import Life
from danube.wire import Server

pytestmark = pytest.mark.virtual

HERE, THERE = "127.0.0.1:6650", "b2:6650"
SECRET = b"the secret of simulated brokers"


class Watched:
    """A machine that stops where its broker opens its metadata, and where it closes them."""

    def __init__(self, config: BrokerConfig) -> None:
        self.machine = VirtualMachine(config)
        self.node = self.machine.node
        self.opening, self.closing = trio.Event(), trio.Event()
        self.go_on = trio.Event()
        seams_of = self.node._seams

        def seams(life: Life) -> Seams:
            real = seams_of(life)

            @asynccontextmanager
            async def open_metadata(config: BrokerConfig, group: Group | None) -> AsyncGenerator[Any, None]:
                await self._stop(self.opening)
                async with real.open_metadata(config, group) as store:
                    yield store
                    await self._stop(self.closing)

            return real._replace(open_metadata=open_metadata)

        self.node._seams = seams  # type: ignore[method-assign]

    async def _stop(self, there: trio.Event) -> None:
        there.set()
        await self.go_on.wait()
        self.go_on = trio.Event()


@asynccontextmanager
async def watched_broker(directory: Path, **settings: Any) -> AsyncGenerator[Watched, None]:
    watched = Watched(small_config(directory, listen=[HERE], **settings))
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watched.machine.run)
            await watched.opening.wait()
            yield watched
            nursery.cancel_scope.cancel()


async def echo(peer: Peer, payload: bytes) -> bytes:
    await trio.lowlevel.checkpoint()
    return peer.address.encode() + b" " + payload


async def test_links_work_before_the_metadata_are_open_and_until_they_are_closed(tmp_path: Path) -> None:
    settings = {"peers": f"{HERE},b2", "cluster_secret": "file", "cluster": "orders"}
    own = Peer(cluster="orders", identity="2", life=1, address=THERE, level=FEATURE_LEVEL)
    async with watched_broker(tmp_path, **settings) as watched:
        network = watched.machine.network
        async with (
            open_peers(
                own,
                SECRET,
                connect=lambda host, port: network.connect("b2", host, port),
                random_bytes=Random(1).randbytes,
            ) as others,
            trio.open_nursery() as nursery,
        ):
            others.on_call("echo", echo, strangers=True)
            await nursery.start(Server([others.service()]).run, network.listen("b2", [THERE]))

            async def both() -> None:
                for peers, to, answer in ((others, HERE, b"b2:6650 hi"), (here, THERE, b"127.0.0.1:6650 hi")):
                    assert await peers.call(to, "echo", b"hi", 5.0) == answer

            life = watched.node.life
            assert life is not None
            here = life.broker.peers
            assert here.own.address == HERE
            here.on_call("echo", echo, strangers=True)
            await both()
            known = others.peer(HERE)
            assert known == here.own
            assert known is not None
            assert (known.cluster, known.identity, known.life) == ("orders", life.broker.identity.identity, 1)
            stored = decode_broker_file(bytes(watched.node.disk.content(BROKER_NAME)))
            assert stored is not None
            assert (stored.identity, stored.life) == (known.identity, 1), "before others hear of it"
            watched.go_on.set()
            await watched.node.ready.wait()
            await both()
            known = others.peer(HERE)
            assert known is not None
            assert known.incarnation, "it belongs to a cluster now"
            watched.node.drain()
            await watched.closing.wait()
            await both()
            assert others.peer(HERE) == known, "the same link"
            watched.go_on.set()
            await life.ended.wait()
            await wait_until(lambda: others.peer(HERE) is None)
            nursery.cancel_scope.cancel()


async def test_a_broker_alone_can_be_linked_to(tmp_path: Path) -> None:
    """Others may join it."""
    async with running_broker(tmp_path / "data") as running:
        own = Peer(cluster="danube", identity="2", life=1, address=THERE, level=FEATURE_LEVEL)
        machine = running.machine
        assert machine is not None
        async with open_peers(own, None, connect=machine.connect, random_bytes=Random(1).randbytes) as others:
            assert running.broker.peers.own.address == f"127.0.0.1:{running.port}"
            others.link(f"127.0.0.1:{running.port}")
            await trio.sleep(1)
            # A simulated machine is no loopback: without a secret it takes no link.
            assert others.peer(f"127.0.0.1:{running.port}") is None


@pytest.mark.real("sockets, with addresses of this machine")
async def test_a_broker_alone_can_be_linked_to_on_its_machine(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "data") as running:
        own = Peer(cluster="danube", identity="2", life=1, address="127.0.0.1:1", level=FEATURE_LEVEL)
        async with open_peers(own, None) as others:
            others.link(f"127.0.0.1:{running.port}")
            await wait_until(lambda: others.peer(f"127.0.0.1:{running.port}") == running.broker.peers.own)


@pytest.mark.real("resolves names")
async def test_which_addresses_are_those_of_this_machine() -> None:
    own_addresses = Seams(lambda: 0, Random()).own_addresses
    assert "127.0.0.1" in await own_addresses("localhost")
    assert await own_addresses("127.0.0.1") == {"127.0.0.1"}
    for other in ("192.0.2.1", "no.such.host.invalid", "a" * 300):
        assert not await own_addresses(other)


@pytest.mark.parametrize(
    ("settings", "bound", "resolved", "own"),
    [
        ({}, ["127.0.0.1:7000"], {}, "127.0.0.1:7000"),
        ({"listen": ["0.0.0.0:0"]}, ["0.0.0.0:7000"], {}, "127.0.0.1:7000"),
        ({"listen": ["[::]:0"]}, ["[::]:7000"], {}, "[::1]:7000"),
        ({"advertise": "here"}, ["127.0.0.1:7000"], {}, "here:6650"),
        ({"join": "127.0.0.1"}, ["127.0.0.1:7000"], {}, "127.0.0.1:7000"),
        ({"peers": "127.0.0.1:6650-6652"}, ["127.0.0.1:6651"], {}, "127.0.0.1:6651"),
        (
            {"peers": "a,b,c", "cluster_secret": "f"},
            ["10.0.0.2:6650"],
            {"a": ["10.0.0.1"], "b": ["10.0.0.2"]},
            "b:6650",
        ),
        ({"peers": "a,b", "cluster_secret": "f", "advertise": "b"}, ["10.0.0.2:7000"], {}, "b:6650"),
    ],
)
@pytest.mark.real("no event loop")
def test_own_addresses(
    tmp_path: Path, settings: dict[str, Any], bound: list[str], resolved: dict[str, list[str]], own: str
) -> None:
    config = small_config(tmp_path, **settings)
    assert own_address(config, bound, resolved) == own
    assert set(foreign_hosts(config, bound)) >= set(resolved)


@pytest.mark.parametrize(
    ("peers", "said"),
    [("127.0.0.1:1-3", "none of 127.0.0.1:1"), (f"{HERE},localhost", "are both addresses of this broker")],
)
async def test_a_list_without_this_broker_ends_the_start(tmp_path: Path, peers: str, said: str) -> None:
    machine = VirtualMachine(small_config(tmp_path, listen=[HERE], peers=peers))

    def seams(life: Life) -> Seams:
        async def own_addresses(host: str) -> list[str]:
            await trio.lowlevel.checkpoint()
            return ["127.0.0.1"] if host == "localhost" else []

        return real(life)._replace(own_addresses=own_addresses)

    real, machine.node._seams = machine.node._seams, seams  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as refused:
        await machine.run()
    (error,) = refused.value.exceptions
    assert isinstance(error, ConfigurationError)
    assert said in str(error)
    assert machine.node.disk.names() == []
