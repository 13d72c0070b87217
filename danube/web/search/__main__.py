"""The search process: ``python -m danube.web.search``, started by a broker with a socket as its standard input.

It does one search at a time, at the lowest priority, and ends when the broker closes the socket: that is also what the
kernel does when the broker dies. Limits of the operating system bound its memory, and its processor time per search.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections import deque
from contextlib import suppress
from typing import Any, Final

import trio

from danube.client import Environment, connect
from danube.http import event_text, problem_of, single_error
from danube.model.addresses import is_loopback
from danube.model.errors import ConnectionLostError, DanubeError, InternalError
from danube.model.secret import Secret
from danube.web.search.engine import EventReport, Search
from danube.web.search.jobs import EVENTS, JOB, LEFT, STOP, Frames, Job, decode_job, frame

__all__ = ["main"]

_SELF: Final = "broker.invalid"
"""The name under which the client asks for the broker that has started this process."""
_RECONNECT_S: Final = 1.0
_CPU_BEYOND_S: Final = 30
"""Processor time beyond ``max_s`` of a search after which the kernel ends the process."""
_DESCRIPTOR_BYTES: Final = 4
_NICE: Final = 19
"""The lowest priority of the usual scheduling class: any other work of the machine comes first."""


class _Process:
    """The process; one for the whole program."""

    def __init__(self, control: trio.socket.SocketType) -> None:
        self._control = control
        self._frames = Frames()
        self._descriptors: deque[int] = deque()
        self._sending = trio.Lock()
        self._searching: trio.CancelScope | None = None

    async def run(self) -> None:
        """Take jobs until the broker closes the socket."""
        async with trio.open_nursery() as nursery:
            while data := await self._receive():
                for kind, content in self._frames.feed(data):
                    if kind == JOB:
                        job, own, token, has_tls = decode_job(content)
                        connection = socket.socket(fileno=self._descriptors.popleft())
                        self._searching = trio.CancelScope()
                        nursery.start_soon(self._search, self._searching, job, own, token, has_tls, connection)
                    elif kind == STOP and self._searching is not None:
                        self._searching.cancel()
            nursery.cancel_scope.cancel()

    async def _receive(self) -> bytes:
        try:
            data, ancillary, _, _ = await self._control.recvmsg(65536, socket.CMSG_SPACE(_DESCRIPTOR_BYTES))
        except OSError:
            return b""  # the broker is gone
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // _DESCRIPTOR_BYTES * _DESCRIPTOR_BYTES
                self._descriptors.extend(
                    int.from_bytes(content[at : at + _DESCRIPTOR_BYTES], sys.byteorder)
                    for at in range(0, whole, _DESCRIPTOR_BYTES)
                )
        return bytes(data)

    async def _send(self, kind: int, data: bytes = b"") -> None:
        left = memoryview(frame(kind, data))
        async with self._sending:
            # A frame that has begun is completed: what follows it would be read as its rest.
            with trio.CancelScope(shield=True):
                while left:
                    left = left[await self._control.send(left) :]

    async def _search(
        self,
        scope: trio.CancelScope,
        job: Job,
        own: list[str],
        token: Secret | None,
        has_tls: bool,
        connection: socket.socket,
    ) -> None:
        _limit_processor_time(job.max_s)
        last = b""
        try:
            with scope:
                try:
                    last = await self._with_client(job, own, token, has_tls, connection)
                except MemoryError as error:
                    raise InternalError("the search needs more memory than search_memory_bytes") from error
        except Exception as error:  # noqa: BLE001 - reported to the caller, and printed if it is a bug
            found = single_error(error)
            if isinstance(found, OSError):
                return  # the broker is gone
            if not isinstance(found, DanubeError):
                sys.excepthook(type(found), found, found.__traceback__)
            body = problem_of(found).body
            assert isinstance(body, bytes)
            last = event_text(body, name="error")
        finally:
            connection.close()
        with suppress(OSError):
            await self._send(LEFT, last)

    async def _with_client(
        self, job: Job, own: list[str], token: Secret | None, has_tls: bool, connection: socket.socket
    ) -> bytes:
        """Search, and return the last event."""
        given = [connection]

        async def dial(host: str, port: int) -> Any:
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if host == _SELF or shown in own:
                if not given:
                    raise ConnectionLostError("the broker has closed the connection of the search; search again")
                return trio.SocketStream(trio.socket.from_stdlib_socket(given.pop()))
            if has_tls or (token is not None and not is_loopback(host)):
                raise ConnectionLostError(f"the owner of the topic is the broker at {shown}; send the request there")
            return await trio.open_tcp_stream(host, port)

        async def send(data: bytes) -> None:
            await trio.lowlevel.checkpoint()
            await self._send(EVENTS, data)

        async with connect(
            f"danube://{_SELF}",
            token=None if token is None else token.reveal(),
            reconnect_timeout_s=_RECONNECT_S,
            environment=Environment(connect=dial),
        ) as client:
            report = EventReport(send, job.payload_bytes)
            await Search(client, job, report).run()
        return report.last


def _limit_processor_time(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + _CPU_BEYOND_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


async def _run() -> None:
    control = trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(0)))
    with control:
        await _Process(control).run()


def main() -> None:
    """Run the process; its only argument is its options as JSON."""
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    memory = options.get("memory_bytes", 0)
    if memory:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or memory < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.nice(_NICE)
    with suppress(PermissionError):  # a container may forbid it, and the lowest priority is nearly the same
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # it does not interrupt others when it wakes up
    trio.run(_run)


if __name__ == "__main__":
    main()
