"""One task that reads many sockets, and work at the end of its rounds."""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from danube.loop import Poller
from danube.model.errors import OutOfDescriptorsError

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
    made = Poller()
    made.open()
    assert made.polls
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


async def test_work_of_a_round_is_done_at_its_end_and_in_the_order_in_which_it_came(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    subject = poller()
    happened: list[str] = []
    ended = trio.Event()

    def last() -> None:
        happened.append("last")
        ended.set()

    def first() -> None:
        happened.append("first")
        subject.soon(last)

    for near, far in pairs[:2]:
        far.send(b"x")

        def on_readable(near: socket.socket = near) -> None:
            happened.append("read")
            near.recv(1)
            subject.soon(first if happened.count("read") == 1 else lambda: happened.append("second"))

        subject.add(near.fileno(), on_readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.run)
        with trio.fail_after(5):
            await ended.wait()
        nursery.cancel_scope.cancel()
    assert happened == ["read", "read", "first", "second", "last"]


@pytest.mark.parametrize("polls", [True, False])
async def test_work_outside_of_rounds_is_done_in_the_next_turn(polls: bool) -> None:
    subject = Poller(polls=polls)
    happened: list[int] = []
    subject.soon(lambda: happened.append(1))
    assert happened == [], "it does not run yet"
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.run)
        assert subject.polls is polls
        await trio.testing.wait_all_tasks_blocked()
        assert happened == [1]
        for number in (2, 3):
            subject.soon(lambda number=number: happened.append(number))  # type: ignore[misc]
        assert happened == [1], "never within the call"
        await trio.testing.wait_all_tasks_blocked()
        assert happened == [1, 2, 3]
        nursery.cancel_scope.cancel()
    assert not subject.polls


async def test_an_edge_is_reported_once_and_needs_no_reading() -> None:
    subject = poller()
    fd = os.eventfd(0)
    called: list[int] = []
    try:
        subject.add(fd, lambda: called.append(len(called)), each_write=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.run)
            for count in (1, 2, 3):
                os.eventfd_write(fd, 1)
                with trio.fail_after(5):
                    while len(called) < count:  # noqa: ASYNC110 - the kernel has no event to wait for
                        await trio.sleep(0.001)
                await trio.sleep(0.01)
                assert len(called) == count
            nursery.cancel_scope.cancel()
    finally:
        os.close(fd)


async def test_without_a_descriptor_it_says_so_and_can_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Poller()

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(select, "epoll", none_left)
        with pytest.raises(OutOfDescriptorsError, match="poller of sockets"):
            await subject.run()
    assert not subject.polls
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.run)
        assert subject.polls
        nursery.cancel_scope.cancel()
