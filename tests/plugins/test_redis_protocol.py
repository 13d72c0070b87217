"""RESP as bytes: replies cut into pieces in any way, and invalid bytes."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from danube_storage_redis._resp import ConnectionEndedError, RespConnection, ServerError
from hypothesis import given, settings
from hypothesis import strategies as st

REPLIES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40), st.just(ServerError("NOAUTH no"))),
    lambda children: st.lists(children, max_size=4),
    max_leaves=12,
)


def encode(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if isinstance(reply, ServerError):
        return f"-{reply.message}\r\n".encode()
    return b"*%d\r\n" % len(reply) + b"".join(map(encode, reply))


def plain(reply: Any) -> Any:
    """Errors compare by their text."""
    if isinstance(reply, list):
        return [plain(one) for one in reply]
    return (reply.code, reply.message) if isinstance(reply, ServerError) else reply


class Script(trio.abc.Stream):
    """A stream that says what it was given, in pieces of the sizes it was given, and keeps what it is told."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data = data
        self.sizes = sizes
        self.told = bytearray()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.told += data

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        size = min(self.sizes.pop(0) if self.sizes else 10_000, max_bytes or 10_000)
        piece, self.data = self.data[:size], self.data[size:]
        return piece

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def exchange(script: Script, *commands: list[Any]) -> list[Any]:
    async def run() -> list[Any]:
        return list(await RespConnection(script, 0).exchange(commands))

    return trio.run(run)


@settings(deadline=None, max_examples=200)
@given(st.lists(REPLIES, min_size=1, max_size=4), st.lists(st.integers(1, 7), max_size=200))
def test_replies_are_read_however_they_are_cut(replies: list[Any], sizes: list[int]) -> None:
    script = Script(b"".join(map(encode, replies)), sizes)
    found = exchange(script, *[["PING"]] * len(replies))
    assert plain(found) == plain(replies)
    assert script.data == b""


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=30) | st.integers() | st.sampled_from(["GET", "é"]), min_size=1), st.booleans())
def test_commands_are_arrays_of_byte_strings(arguments: list[Any], large: bool) -> None:
    if large:
        arguments = [*arguments, bytearray(b"x" * 2_500_000), b"end"]
    script = Script(b":1\r\n", [])
    assert exchange(script, arguments) == [1]
    data = [one if isinstance(one, bytes | bytearray) else str(one).encode() for one in arguments]
    expected = b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in data)
    assert bytes(script.told) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "not RESP"),
        (b"$3\r\nabcdef\r\n", "longer than announced"),
        (b"$3\r\nab", "closed the connection"),
        (b"+OK", "closed the connection"),
        (b"+" + b"x" * 100_000, "without end"),
    ],
)
def test_bytes_that_are_not_resp_end_the_connection(data: bytes, reason: str) -> None:
    with pytest.raises(ConnectionEndedError, match=reason):
        exchange(Script(data, []), ["PING"])


def test_a_simple_string_is_bytes() -> None:
    assert exchange(Script(b"+OK\r\n+PONG\r\n", [1, 1, 1, 2]), ["A"], ["B"]) == [b"OK", b"PONG"]
