"""A child process that examines schemas or payloads (:mod:`danube.checker`), one request at a time.

The child is started by the first request, and ends after a minute without one. A child that crashes, hangs or was
killed is replaced: the request that did it has failed, and nothing else is affected.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import trio

from danube.checker.messages import HEAD_BYTES, READY, Answer, Request, frame, length_of
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CallRefusedError
from danube.model.limits import Limits

__all__ = ["IDLE_S", "Child", "CrashedError", "Helper", "OpenChild", "SlowError", "Start", "open_child"]

IDLE_S: Final = 60.0
"""How long the child waits for the next request before it ends."""
_START_S: Final = 30.0
"""How long the child may take to start."""
_ANSWER: Final = msgspec.msgpack.Decoder(Answer)

Start = Callable[..., object]
"""Starts a task that ends with the broker; :meth:`danube.broker.runtime.runtime.Runtime.start`."""
OpenChild = Callable[[Limits, float], Awaitable[Any]]
"""Starts a child, with limits and the time for a request in seconds; returns a :class:`Child`."""


class CrashedError(Exception):
    """The child has ended without an answer."""


class SlowError(Exception):
    """There was no answer in time, and the child was killed."""


class Child:
    """A running child.

    Attributes:
        is_new: whether it was asked nothing yet.
        idle_at: when it ends unless it is asked before that.
        known: numbers of the schemas that it was sent, for requests that name them.
    """

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.is_new = True
        self.idle_at = trio.current_time() + IDLE_S
        self.known: set[int] = set()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until the child has started; raise CrashedError if it does not."""
        if await self._answer() != READY:
            raise CrashedError("it says something else than that it is ready")

    async def ask(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            CrashedError: the child has ended, or its answer does not decode.
        """
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(frame(request))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CrashedError("its input is closed") from error
        return await self._answer()

    async def _answer(self) -> Answer:
        try:
            return _ANSWER.decode(await self._read(length_of(await self._read(HEAD_BYTES))))
        except (trio.BrokenResourceError, trio.ClosedResourceError, ValueError, *UNDECODABLE) as error:
            raise CrashedError(f"its output is unreadable: {error}") from error

    async def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        found = bytearray()
        while len(found) < size:
            part = await self._process.stdout.receive_some(size - len(found))
            if not part:
                raise CrashedError("its output has ended")
            found += part
        return bytes(found)

    def kill(self) -> None:
        """Kill the process, and do not wait for its end."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        return await self._process.wait()

    async def close(self) -> None:
        """Kill the child, and wait for its end."""
        self.kill()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    await pipe.aclose()


async def open_child(limits: Limits, time_s: float) -> Child:
    """Start a child whose memory and time for each request are limited."""
    # What it complains about says nothing that its answers do not say, and its input may make it say anything.
    command = [sys.executable, "-m", "danube.checker", str(limits.schema_checker_memory_bytes), f"{time_s:g}"]
    process: trio.Process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return Child(process)


class Helper:
    """Owns the child, and asks it; see the module.

    Args:
        start: starts the task that owns the child.
        limits: ``schema_checker_memory_bytes``.
        time_s: how long a request may take.
        open_child: starts a child.
        what: the child does, for errors: ``examines schemas``.
    """

    def __init__(self, start: Start, limits: Limits, time_s: float, open_child: OpenChild, what: str) -> None:
        self._start = start
        self._limits = limits
        self.time_s = time_s
        self._open = open_child
        self._what = what
        self._lock = trio.Lock()
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """Of the child; None: there is none now."""
        return None if self._child is None else self._child.pid

    async def ask(self, request_for: Callable[[Child], Request]) -> Answer:
        """Return the answer to a request; earlier requests come first. If this is cancelled, the child is replaced.

        Args:
            request_for: makes the request for a child; called again for another child if the first one was gone.

        Raises:
            CrashedError: the request crashes the child, or the child answers nonsense.
            SlowError: there was no answer in time.
            CallRefusedError: no child can be started.
        """
        async with self._lock:
            while True:
                child = self._child or await self._new()
                was_new, child.is_new = child.is_new, False
                child.idle_at = math.inf
                answer: Answer | None = None
                try:
                    with trio.move_on_after(self.time_s):
                        answer = await child.ask(request_for(child))
                except CrashedError:
                    if not was_new:
                        continue  # it may not have been this request: the child was killed while idle, for example
                    raise
                finally:
                    if answer is None:
                        self._child = None
                        child.kill()
                if answer is None:
                    raise SlowError
                child.idle_at = trio.current_time() + IDLE_S
                return answer

    async def _new(self) -> Child:
        try:
            child: Child = await self._open(self._limits, self.time_s)
        except OSError as error:
            raise self._not_started(error.strerror or str(error)) from error
        self._start(self._keep, child)
        started = False
        try:
            with trio.move_on_after(_START_S):
                await child.ready()
                started = True
        except CrashedError as error:
            raise self._not_started(str(error)) from error
        finally:
            if not started:
                child.kill()
        if not started:
            raise self._not_started(f"it is not ready after {_START_S:g} s")
        self._child = child
        return child

    async def _keep(self, child: Child) -> None:
        """Own a child: end it when it is idle, or has crashed, or with the broker."""
        try:
            while trio.current_time() < child.idle_at or self._lock.locked():
                with trio.move_on_after(max(0.1, min(IDLE_S, child.idle_at - trio.current_time()))):
                    await child.wait()
                    break
        finally:
            if self._child is child:
                self._child = None
            await child.close()

    def _not_started(self, why: str) -> CallRefusedError:
        return CallRefusedError(f"the process that {self._what} does not start: {why}; try again")
