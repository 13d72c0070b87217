"""A server and a flood of half-open TLS handshakes, each in a process of its own.

``python half_open.py serve CERT KEY CA`` prints the port. ``python half_open.py drip PORT COUNT SECONDS`` prints
``open`` when COUNT connections are open, sends a byte a second on each of them until the server has ended it, and
prints after how many seconds the last one has ended.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import msgspec
import trio

from danube.model.tls import TlsConfig
from danube.wire import Method, UnaryCall, serve
from danube.wire.tls import ServerTls

_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
_ADDRESSES = 200


class Number(msgspec.Struct):
    value: int


def _add(request: Number, call: UnaryCall) -> None:
    call.reply(Number(request.value + 1))


METHODS = {"/t/add": Method(path="/t/add", kind="unary", start=_add, request_type=Number)}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def run_server(cert: str, key: str) -> None:
    """Serve one method with TLS."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=4096)
    _say(str(listeners[0].socket.getsockname()[1]))
    await serve(listeners, [METHODS], tls=ServerTls(TlsConfig(cert=cert, key=key), time.time))


async def drip(port: int, count: int, seconds: float) -> None:
    """Keep handshakes half-open."""
    longest = 0.0

    async def one(number: int, is_open: trio.Event) -> None:
        nonlocal longest
        stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=f"127.0.0.{2 + number % _ADDRESSES}")
        began = trio.current_time()
        async with stream, trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal longest
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
                longest = max(longest, trio.current_time() - began)
                nursery.cancel_scope.cancel()

            await stream.send_all(_HELLO[:1])
            is_open.set()
            nursery.start_soon(watch)
            for byte in _HELLO[1:]:
                await trio.sleep(1.0)
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(bytes([byte]))

    with trio.move_on_after(seconds) as scope:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                is_open = trio.Event()
                nursery.start_soon(one, number, is_open)
                await is_open.wait()
            _say("open")
    _say(f"{seconds if scope.cancelled_caught else longest:.1f}")


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "serve":
        trio.run(run_server, *arguments)
    else:
        trio.run(drip, int(arguments[0]), int(arguments[1]), float(arguments[2]))
