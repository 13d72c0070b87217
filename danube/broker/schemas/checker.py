"""Has schemas examined by a child process (:mod:`danube.checker`), one at a time.

The child is started by the first examination, and ends after a minute without one. A child that crashes, hangs or was
killed is replaced: the schema that did it is refused, and nothing else is affected.
"""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import trio

from danube.checker.messages import HEAD_BYTES, READY, TIME_S, Answer, Request, frame, length_of, outcome
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CallRefusedError, InvalidSchemaError
from danube.model.log_events import log_event
from danube.schema.examine import Examination, Finding
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits

__all__ = ["IDLE_S", "MOST_WAITING", "Checker"]

_log = logging.getLogger("danube.broker")

IDLE_S: Final = 60.0
"""How long the child waits for the next examination before it ends."""
MOST_WAITING: Final = 64
"""Most examinations that wait for the child, or are with it."""
_START_S: Final = 30.0
"""How long the child may take to start."""
_ANSWER: Final = msgspec.msgpack.Decoder(Answer)

Start = Callable[..., None]
"""Starts a task that ends with the broker; :meth:`danube.broker.runtime.runtime.Runtime.start`."""


class _EndedError(Exception):
    """The child has ended without an answer."""


class _Child:
    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.is_new = True
        self.idle_at = trio.current_time() + IDLE_S

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        """Wait until the child has started; raise _EndedError if it does not."""
        if await self._answer() != READY:
            raise _EndedError("it says something else than that it is ready")

    async def ask(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            _EndedError: the child has ended, or its answer does not decode.
        """
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(frame(request))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _EndedError("its input is closed") from error
        return await self._answer()

    async def _answer(self) -> Answer:
        try:
            return _ANSWER.decode(await self._read(length_of(await self._read(HEAD_BYTES))))
        except (trio.BrokenResourceError, trio.ClosedResourceError, ValueError, *UNDECODABLE) as error:
            raise _EndedError(f"its output is unreadable: {error}") from error

    async def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        found = bytearray()
        while len(found) < size:
            part = await self._process.stdout.receive_some(size - len(found))
            if not part:
                raise _EndedError("its output has ended")
            found += part
        return bytes(found)

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        return await self._process.wait()

    async def close(self) -> None:
        """Kill the child, and wait for its end."""
        self.kill()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    await pipe.aclose()


async def _open() -> _Child:
    # What it complains about says nothing that its answers do not say, and its input may make it say anything.
    command = [sys.executable, "-m", "danube.checker"]
    process: trio.Process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return _Child(process)


class Checker:
    """Examines schemas in a child process; see the module. Call it.

    Args:
        start: starts the task that owns the child.
        limits: of schemas.
        time_s: how long an examination may take.
        open_child: starts a child.
    """

    def __init__(
        self,
        start: Start,
        limits: SchemaLimits = DEFAULT_LIMITS,
        time_s: float = TIME_S,
        open_child: Callable[[], Awaitable[Any]] = _open,
    ) -> None:
        self._start = start
        self._limits = limits
        self._time_s = time_s
        self._open = open_child
        self._lock = trio.Lock()
        self._waiting = 0
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Of the child; None: there is none now."""
        return None if self._child is None else self._child.pid

    async def __call__(self, examination: Examination) -> Finding:
        """Have a schema parsed and compared. If this is cancelled, the child is replaced.

        Raises:
            InvalidSchemaError: a schema is invalid, takes too long, or crashes the child.
            SchemaTooLargeError: a limit was hit.
            CallRefusedError: too many wait, or no child can be started.
        """
        if self._waiting >= MOST_WAITING:
            raise CallRefusedError(f"{MOST_WAITING} schemas wait to be examined, which is the most; try again")
        self._waiting += 1
        try:
            async with self._lock:
                return await self._examined(Request(examination, self._limits))
        finally:
            self._waiting -= 1

    async def _examined(self, request: Request) -> Finding:
        while True:
            child = self._child or await self._new()
            was_new, child.is_new = child.is_new, False
            child.idle_at = math.inf
            answer: Answer | None = None
            try:
                with trio.move_on_after(self._time_s):
                    answer = await child.ask(request)
            except _EndedError as error:
                if not was_new:
                    continue  # it may not have been this schema: the child was killed while it was idle, for example
                _log.warning(
                    "a schema has crashed the process that examines schemas: %s",
                    error,
                    extra=log_event("schemas.checker_crashed", repeating=True),
                )
                raise InvalidSchemaError("the schema crashes the parser of its type") from error
            finally:
                if answer is None:
                    self._child = None
                    child.kill()
            if answer is None:
                _log.warning(
                    "a schema was examined for %g s, and refused",
                    self._time_s,
                    extra=log_event("schemas.checker_slow", repeating=True),
                )
                raise InvalidSchemaError(f"examining the schema takes longer than {self._time_s:g} s; simplify it")
            child.idle_at = trio.current_time() + IDLE_S
            return outcome(answer)

    async def _new(self) -> _Child:
        try:
            child: _Child = await self._open()
        except OSError as error:
            raise _not_started(error.strerror or str(error)) from error
        self._start(self._keep, child)
        started = False
        try:
            with trio.move_on_after(_START_S):
                await child.ready()
                started = True
        except _EndedError as error:
            raise _not_started(str(error)) from error
        finally:
            if not started:
                child.kill()
        if not started:
            raise _not_started(f"it is not ready after {_START_S:g} s")
        self._child = child
        return child

    async def _keep(self, child: _Child) -> None:
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


def _not_started(why: str) -> CallRefusedError:
    return CallRefusedError(f"the process that examines schemas does not start: {why}; try again")
