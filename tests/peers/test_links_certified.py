"""Links with TLS: the certificate of each side names the broker that its hello does, and ends the link when it ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from certificates import Files, make_files
from hellos import SECRET, broker

from danube.broker.runtime.seams import shown_address
from danube.model.errors import CallRefusedError
from danube.model.limits import Limits
from danube.model.tls import PeerCertificate, TlsConfig
from danube.peers import Peer
from danube.peers.hello import judge_certificate
from danube.peers.links import WirePeers, open_peers
from danube.wire import Server
from danube.wire.tls import ServerTls

PATIENCE_S = 60.0
LIMITS = Limits(peer_loss_window_s=PATIENCE_S, peer_keepalive_timeout_s=PATIENCE_S)


def certificate(*names: tuple[str, str]) -> PeerCertificate:
    return PeerCertificate(b"", names, 0.0, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("danube://orders/broker/b2", ""),
        ("danube://orders/service/api", ""),
        ("danube://orders/broker/b3", "says that it is b2 of the cluster 'orders', and has the certificate of b3"),
        ("danube://bills/broker/b2", "has the certificate of b2 of the cluster 'bills'"),
    ],
)
def test_what_a_certificate_says_of_a_broker(name: str, said: str) -> None:
    found = judge_certificate(broker(2), certificate(("DNS", "h"), ("URI", name)))
    assert (said in found) if said else not found


def test_a_broker_that_claims_no_number_has_no_certificate_with_one() -> None:
    named = certificate(("URI", "danube://orders/broker/b2"))
    assert "without a number" in judge_certificate(broker(2, broker=0), named)
    assert not judge_certificate(broker(2, broker=0), certificate(("DNS", "h")))
    assert not judge_certificate(broker(2), None)


class Clock:
    """A wall clock that goes with Trio's, and begins shortly before a certificate ends: when it is first asked."""

    def __init__(self, wall_s: float) -> None:
        self._wall_s = wall_s
        self._begun_s: float | None = None

    def __call__(self) -> float:
        if self._begun_s is None:
            self._begun_s = trio.current_time()
        return self._wall_s + trio.current_time() - self._begun_s


@asynccontextmanager
async def running(
    files: Files, number: int, certified: int, before_end_s: float | None = None
) -> AsyncIterator[WirePeers]:
    """Run the links of a broker with the certificate of another one or its own.

    Args:
        before_end_s: how long before the end of its own certificate, and so of the other one's, its wall clock begins.
    """
    cert, key = files.pair(f"of-b{number}", "127.0.0.1", f"danube://orders/broker/b{certified}")
    config = TlsConfig(cert=cert, key=key, broker_ca=files.ca, client_auth="optional")
    tls = ServerTls(config, lambda: 0.0)
    clock = Clock(0.0 if before_end_s is None else tls.expires_at_s - before_end_s)
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
    async with (
        open_peers(own, SECRET, LIMITS, wall_s=clock, tls=tls.for_links) as peers,
        trio.open_nursery() as nursery,
    ):
        peers.on_call("echo", _echo)
        await nursery.start(Server([peers.service()], LIMITS, tls=tls).run, listeners)
        yield peers
        nursery.cancel_scope.cancel()


async def _echo(_peer: Peer, payload: bytes) -> bytes:
    return payload


@pytest.mark.parametrize("liar", [1, 2])
async def test_a_broker_with_the_certificate_of_another_one_gets_no_link(tmp_path: Path, liar: int) -> None:
    files = make_files(tmp_path)
    numbers = {1: 1, 2: 2, liar: 3}
    with trio.fail_after(PATIENCE_S):
        async with running(files, 1, numbers[1]) as one, running(files, 2, numbers[2]) as other:
            with pytest.raises(CallRefusedError, match=f"says that it is b{liar} .* has the certificate of b3"):
                await one.call(other.own.address, "echo", b"hi", PATIENCE_S)
            assert one.peer(other.own.address) is None


@pytest.mark.parametrize("watcher", [1, 2])
async def test_a_link_ends_with_the_certificate_of_either_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, watcher: int
) -> None:
    files = make_files(tmp_path)
    caplog.set_level(logging.INFO, "danube.peers")
    with trio.fail_after(PATIENCE_S):
        async with (
            running(files, 1, 1, 2.0 if watcher == 1 else None) as one,
            running(files, 2, 2, 2.0 if watcher == 2 else None) as other,
        ):
            assert await one.call(other.own.address, "echo", b"hi", PATIENCE_S) == b"hi"
            while one.peer(other.own.address) is not None:  # noqa: ASYNC110
                await trio.sleep(0.01)
    ended = other.own if watcher == 1 else one.own
    broke = [line for line in caplog.messages if line.startswith(f"the link to {other.own.address} broke")]
    assert f"the certificate of {ended.name} has expired" in broke[0]
