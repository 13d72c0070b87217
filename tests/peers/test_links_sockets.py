"""Links over real sockets and the real clock: the two sides, the addresses in the log, connecting and refusing."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hellos import SECRET

from danube.broker.runtime.seams import shown_address
from danube.model.errors import CallRefusedError
from danube.model.limits import MIB, Limits
from danube.peers import Lost, Peer
from danube.peers._outgoing import connect_tcp
from danube.peers.links import WirePeers, open_peers
from danube.peers.secret import read_secret
from danube.wire import Server

PATIENCE_S = 60.0


@asynccontextmanager
async def running(
    number: int, secret: bytes | None, limits: Limits | None = None, servers: list[Server] | None = None
) -> AsyncIterator[WirePeers]:
    """Run the links of a broker on a free port of 127.0.0.1."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    own = Peer(
        cluster="orders",
        identity=f"identity-{number}",
        life=1,
        address=shown_address(listeners[0]),
        level=1,
        incarnation=77,
        broker=number,
    )
    # Links answer late on a busy machine; none of these tests is about time.
    limits = limits or Limits(peer_loss_window_s=PATIENCE_S, peer_keepalive_timeout_s=PATIENCE_S)
    async with open_peers(own, secret, limits) as peers, trio.open_nursery() as nursery:
        server = Server([peers.service()], limits)
        server.bounds_unproven = True
        if servers is not None:
            servers.append(server)
        await nursery.start(server.run, listeners)
        yield peers
        nursery.cancel_scope.cancel()


async def echo(peer: Peer, payload: bytes) -> bytes:
    return peer.address.encode() + payload


async def test_a_link_is_no_connection_of_an_unknown_peer() -> None:
    """Else strangers that connect could end the links of a cluster."""
    servers: list[Server] = []
    with trio.fail_after(PATIENCE_S):
        async with running(1, SECRET) as one, running(2, SECRET, servers=servers) as other:
            other.on_call("echo", echo)
            async with await trio.open_tcp_stream("127.0.0.1", int(other.own.address.rsplit(":", 1)[1])):
                await one.call(other.own.address, "echo", b"", PATIENCE_S)
                assert (servers[0].connections, servers[0].unproven) == (2, 1)


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_brokers_are_linked_and_a_closed_port_is_a_loss(secret: bytes | None) -> None:
    with trio.fail_after(PATIENCE_S):
        async with running(1, secret) as one:
            lost: list[Lost] = []
            one.on_lost(lost.append)
            async with running(2, secret) as other:
                other.on_call("echo", echo)
                answer = await one.call(other.own.address, "echo", bytes(MIB), PATIENCE_S)
                assert answer == one.own.address.encode() + bytes(MIB)
                assert one.peer(other.own.address) == other.own
            while not lost:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert lost == [Lost(other.own.address, other.own)]


async def test_the_log_says_from_where_a_broker_without_the_secret_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text("another secret of the cluster\n")
    file.chmod(0o600)
    with trio.fail_after(PATIENCE_S):
        async with running(1, read_secret(file)) as one, running(2, SECRET) as other:
            other.on_call("echo", echo)
            text = f"a broker on 127.0.0.1 has another cluster secret than the broker at {other.own.address}"
            with pytest.raises(CallRefusedError, match=text):
                await one.call(other.own.address, "echo", b"", PATIENCE_S)
            assert not other.incoming
            assert one.peer(other.own.address) is None
    (line,) = [line for line in caplog.messages if line.startswith("refused a link from 127.0.0.1:")]
    assert line.partition(": ")[2].startswith(text)


async def test_a_refused_port_is_reported_as_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await connect_tcp("127.0.0.1", taken.getsockname()[1], 10)


async def test_names_that_are_no_names_are_errors_of_the_link() -> None:
    for name in ("a..b", "x" * 64, "ä" * 64):
        with pytest.raises(OSError, match="is not a valid name of a host"):
            await connect_tcp(name, 1, 10)


async def test_an_address_without_an_answer_is_given_up() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)),  # takes the only place
            pytest.raises(TimeoutError, match="peer_connect_timeout_s"),
        ):
            await connect_tcp("127.0.0.1", port, 0.1)


async def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(*_args: object, **_named: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", each)) for each in ports]

    monkeypatch.setattr(trio.socket, "getaddrinfo", addresses)
    with socket.socket() as taken, socket.socket() as full:
        taken.bind(("127.0.0.1", 0))
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        refused, hanging = taken.getsockname()[1], full.getsockname()[1]
        ports = [refused, hanging]
        async with await connect_tcp("name", 1, 10) as stream:
            assert stream.socket.getpeername()[1] == hanging
            # One that does not answer may be where the process is: the name as a whole is not refused.
            with pytest.raises(TimeoutError):
                await connect_tcp("name", 1, 0.1)
    ports = [refused, refused]
    with pytest.raises(ConnectionRefusedError):
        await connect_tcp("name", 1, 10)


async def test_giving_up_closes_the_socket() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            before = len(os.listdir("/proc/self/fd"))
            with trio.move_on_after(0.1) as scope:
                await connect_tcp("127.0.0.1", port, PATIENCE_S)
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError):
                await connect_tcp("127.0.0.1", port, 0.1)
            assert len(os.listdir("/proc/self/fd")) == before
