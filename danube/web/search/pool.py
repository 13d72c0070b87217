"""Search processes of one broker: started on demand, ended when they are idle, hang, or lose their caller."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import trio

from danube.model.errors import LimitExceededError, UnavailableError
from danube.model.log_events import log_event
from danube.web.search.jobs import EVENTS, JOB, LEFT, STOP, Frames, encode_job, frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from danube.broker.faces import Served
    from danube.http import Request, TextSink
    from danube.model.secret import Secret
    from danube.web.search.jobs import Job

__all__ = ["SearchPool"]

log = logging.getLogger(__name__)

_STOP_S: Final = 5.0
"""How long a search may take to stop before its process is killed."""
_PROGRAM: Final = (sys.executable, "-m", "danube.web.search")


class _Process:
    """One search process, and the socket to it."""

    def __init__(self, process: trio.Process, control: trio.socket.SocketType) -> None:
        self.process = process
        self._control = control
        self._frames = Frames()
        self.idle_since_s = trio.current_time()

    @property
    def runs(self) -> bool:
        return self.process.returncode is None

    async def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Send frames, the first byte with a descriptor.

        Raises:
            OSError: the process has ended.
        """
        left = memoryview(data)
        if descriptor is not None:
            ancillary = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))
            left = left[await self._control.sendmsg([left], [ancillary]) :]
        while left:
            left = left[await self._control.send(left) :]

    async def receive(self) -> list[tuple[int, bytes]]:
        """Return the next frames; an empty list at the end."""
        try:
            while data := await self._control.recv(1 << 18):
                found = [(each.kind, each.data) for each in self._frames.feed(data)]
                if found:
                    return found
        except OSError:
            pass  # it was killed with bytes on their way to it; the same as an end
        return []

    def kill(self) -> None:
        """End it at once; :meth:`SearchPool._hold` reaps it."""
        if self.runs:
            self.process.kill()

    def close(self) -> None:
        """Close the socket, which ends the process."""
        self._control.close()


class SearchPool:
    """The search processes of one broker.

    Args:
        broker: whose limits ``search_*`` apply.
        nursery: holds the processes; they end when it is cancelled.
        program: the command of the process; None: the search process.
    """

    def __init__(self, broker: Served, nursery: trio.Nursery, program: Sequence[str] | None = None) -> None:
        self._broker = broker
        self._limits = broker.runtime.limits
        self._nursery = nursery
        self._program = tuple(program or _PROGRAM)
        self._processes: set[_Process] = set()
        self._idle: list[_Process] = []
        self._starting = 0

    @property
    def processes(self) -> list[int]:
        """Ids of the processes that run."""
        return [each.process.pid for each in self._processes if each.runs]

    async def search(self, job: Job, request: Request, token: Secret | None, sink: TextSink) -> None:
        """Do a search on behalf of the caller of a request, and pass on its events. Cancellation ends the search.

        Raises:
            LimitExceededError: ``search_processes`` searches are under way.
            UnavailableError: the process has ended, or was killed because it was silent.
        """
        process = await self._process()
        ours, theirs = socket.socketpair()
        left = False
        async with AsyncExitStack() as stack:
            stack.callback(ours.close)  # also if nothing serves it yet when the search is cancelled
            nursery = await stack.enter_async_context(trio.open_nursery())
            try:
                with theirs:
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                    nursery.start_soon(self._broker.serve_inner, stream, request)
                    data = encode_job(job, self._broker.runtime.addresses, token, self._broker.has_tls)
                    try:
                        with trio.CancelScope(shield=True):  # of half a frame, what follows would be the rest
                            await process.send(frame(JOB, data), theirs.fileno())
                    except OSError as error:
                        raise self._ended(process) from error
                last = await self._pass_on(process, sink)
                left = True
            finally:
                self._release(process, left)
            nursery.cancel_scope.cancel()
        await sink.send(last)  # now the process is free for what the caller does next

    async def _pass_on(self, process: _Process, sink: TextSink) -> bytes:
        """Pass on events until the search is over; return the last ones."""
        while True:
            with trio.move_on_after(self._limits.search_silence_s) as waiting:
                frames = await process.receive()
            if waiting.cancelled_caught:
                process.kill()
                log.warning(
                    "search process %d was silent for search_silence_s = %g s and was killed",
                    process.process.pid,
                    self._limits.search_silence_s,
                    extra=log_event("search.killed", repeating=True, pid=process.process.pid),
                )
                raise UnavailableError(
                    f"the search process was silent for search_silence_s = {self._limits.search_silence_s:g} s and was"
                    " ended; search again"
                )
            if not frames:
                raise self._ended(process)
            events = b"".join(data for kind, data in frames if kind in (EVENTS, LEFT))
            if any(kind == LEFT for kind, _ in frames):
                return events
            if events:
                await sink.send(events)

    def _ended(self, process: _Process) -> UnavailableError:
        return UnavailableError(
            f"the search process {process.process.pid} has ended during the search, perhaps because it needed more than"
            f" search_memory_bytes = {self._limits.search_memory_bytes}; search for less at a time"
        )

    # --- Processes ---

    def check_room(self) -> None:
        """Check that there is a process for another search, or that one may be started.

        Raises:
            LimitExceededError: ``search_processes`` searches are under way.
        """
        most = self._limits.search_processes
        busy = len(self._processes) - len(self._idle) + self._starting
        if busy >= most:
            raise LimitExceededError(
                f"{most} searches are under way, and search_processes is {most}; try again when one has ended"
            )

    async def _process(self) -> _Process:
        """Return a process that has nothing to do."""
        await trio.lowlevel.checkpoint()
        while True:
            while self._idle:
                process = self._idle.pop()
                if process.runs:
                    return process
            self.check_room()
            self._starting += 1
            try:
                await self._nursery.start(self._hold)
            finally:
                self._starting -= 1

    async def _hold(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Start a process, and hold it until it ends; end it when it has been idle, or on cancellation.

        It is idle at first, so that a caller that is gone meanwhile leaves it to others.
        """
        ours, theirs = socket.socketpair()
        options = json.dumps({"memory_bytes": self._limits.search_memory_bytes})
        try:
            with theirs:
                started = await trio.lowlevel.open_process(
                    [*self._program, options],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        process = _Process(started, trio.socket.from_stdlib_socket(ours))
        self._processes.add(process)
        self._idle.append(process)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_idle, process)
                await started.wait()
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            process.close()
            with trio.CancelScope(shield=True):
                await started.wait()
            self._processes.discard(process)
            if process in self._idle:
                self._idle.remove(process)

    async def _end_idle(self, process: _Process) -> None:
        idle_s = self._limits.search_idle_s
        while True:
            await trio.sleep(idle_s / 4)
            if process in self._idle and trio.current_time() - process.idle_since_s >= idle_s:
                self._idle.remove(process)
                process.close()  # it ends by itself
                await trio.sleep(_STOP_S)
                process.kill()

    def _release(self, process: _Process, left: bool) -> None:
        """Take back a process after a search; one that still searches is stopped."""
        if left and process.runs:
            process.idle_since_s = trio.current_time()
            self._idle.append(process)
        elif process.runs:
            self._start(self._stop, process)

    def _start(self, function: Callable[[_Process], Awaitable[None]], process: _Process) -> None:
        try:
            self._nursery.start_soon(function, process)
        except RuntimeError:
            process.kill()  # the broker is shutting down: there is no one to wait for it

    async def _stop(self, process: _Process) -> None:
        """Stop the search of a process, so that it can take another one; kill it if it does not stop."""
        with trio.move_on_after(_STOP_S):
            try:
                await process.send(frame(STOP))
            except OSError:
                return  # it has ended
            while frames := await process.receive():
                if any(kind == LEFT for kind, _ in frames):
                    self._release(process, left=True)
                    return
        process.kill()
