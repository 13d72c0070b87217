"""One task that reads many sockets."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from danube.wire._poller import Poller, new_poller

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="allowed in CI: there is epoll on Linux only")


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(5)]
    for pair in made:
        for end in pair:
            end.setblocking(False)
    yield made
    for pair in made:
        for end in pair:
            end.close()


def poller() -> Poller:
    made = new_poller()
    assert made is not None
    return made


async def test_every_socket_is_read_to_its_last_byte_by_turns(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    read: list[tuple[int, bytes]] = []
    wanted = trio.Event()
    subject = poller()
    for number, (near, far) in enumerate(pairs):
        far.send(b"abc")

        def on_readable(number: int = number, near: socket.socket = near) -> None:
            read.append((number, near.recv(2)))
            if len(read) == 2 * len(pairs):
                wanted.set()

        subject.add(near.fileno(), on_readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.run)
        with trio.fail_after(5):
            await wanted.wait()
        nursery.cancel_scope.cancel()
    # What is left of the first one comes behind the others.
    assert sorted(read[: len(pairs)]) == [(number, b"ab") for number in range(len(pairs))]
    assert sorted(read[len(pairs) :]) == [(number, b"c") for number in range(len(pairs))]


async def test_a_socket_that_was_removed_is_not_called_in_the_same_round(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    called: list[int] = []
    subject = poller()
    for number, (near, far) in enumerate(pairs):
        far.send(b"x")

        def on_readable(number: int = number) -> None:
            called.append(number)
            for other, _ in pairs:
                subject.remove(other.fileno())

        subject.add(near.fileno(), on_readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert len(called) == 1


async def test_the_end_of_a_poller_disturbs_no_other(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    subject = poller()
    (first, _), (second, far), *_ = pairs
    called: list[str] = []
    subject.add(first.fileno(), lambda: called.append("first"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    far.send(b"x")
    subject.add(second.fileno(), lambda: called.append("second"))
    subject.remove(first.fileno())
    subject.remove(second.fileno())
    assert called == []
