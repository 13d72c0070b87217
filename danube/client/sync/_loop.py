"""The event loop of the blocking client, in a thread of its own."""

from __future__ import annotations

import atexit
import os
import reprlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import anyio
from anyio.from_thread import BlockingPortal

from danube.model.errors import ClosedError, ConfigurationError

__all__ = ["Loop", "run_block"]

T = TypeVar("T")

EXIT_LINGER_S = 5.0
"""How long a thread that waits for the loop keeps waiting at the end of the process, before it gets an error.

Only daemon threads remain at that point. If a thread got the error at once, it could still be handling it when the
interpreter finalizes, and Python aborts a process in which a daemon thread prints at that moment. If it never got the
error, an ``atexit`` handler that joins the thread would block the exit.
"""


@contextmanager
def run_block(block: AbstractAsyncContextManager[T], backend: Literal["asyncio", "trio"]) -> Iterator[tuple[T, Loop]]:
    """Run an asynchronous ``with`` block in an event loop in a thread of its own.

    A process may end without leaving the block, because the client was never closed or a signal has ended the main
    thread. The loop is then cancelled by an exit handler, before the interpreter stops its daemon thread; leaving the
    block later would wait for that thread indefinitely. A forked process does not have the thread, so it refuses all
    calls.

    Raises:
        ConfigurationError: the backend is unknown. Exceptions of entering the block are raised as they are.
    """
    if backend not in ("asyncio", "trio"):
        raise ConfigurationError(f"backend {reprlib.repr(backend)} is not asyncio or trio")
    loop = Loop(backend)
    cancel = True
    try:
        with loop.enter(block) as entered:
            atexit.register(loop.end)
            try:
                yield entered, loop
            finally:
                atexit.unregister(loop.end)
        cancel = False
    finally:
        if not loop.over:
            loop.stop(cancel=cancel)


class Loop:
    """An event loop in a thread of its own, started on creation. Call :meth:`stop` to end it."""

    def __init__(self, backend: Literal["asyncio", "trio"]) -> None:
        started: Future[BlockingPortal] = Future()
        # A daemon, because the interpreter waits for other threads before it calls the exit handlers that end this one.
        self._thread = threading.Thread(target=self._run, args=(backend, started), name="danube-client", daemon=True)
        self._thread.start()
        self._portal = started.result()
        self._ended_by: int | None = None
        """The thread that ended the loop because the process ends (the one that runs the exit handlers)."""
        self._forked = False
        self._stopped = False
        _loops.add(self)

    @property
    def over(self) -> bool:
        """Whether the loop has ended because the process is ending, or belongs to the parent of a forked process."""
        return self._forked or self._ended_by is not None

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: object, **options: object) -> T:
        """Run an asynchronous call in the loop; if the waiting thread is interrupted, the call is cancelled.

        Raises:
            ClosedError: the process is ending (threads other than the one that ends it get this only after
                EXIT_LINGER_S), or was forked; and the errors of the call itself.
        """

        async def call() -> T:
            return await function(*args, **options)

        with self._calling():
            future = self._portal.start_task_soon(call)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

    def call(self, function: Callable[..., T], /, *args: object, **options: object) -> T:
        """Run a plain function in the loop."""

        async def call() -> T:
            return function(*args, **options)

        with self._calling():
            return self._portal.start_task_soon(call).result()

    def soon(self, function: Callable[[], object]) -> None:
        """Schedule a plain function in the loop, without waiting for it."""
        with self._calling():
            self._portal.start_task_soon(function)

    @contextmanager
    def enter(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Run an asynchronous ``with`` block. When the loop is over, the block has been left already."""
        with ExitStack() as stack:
            try:
                with self._calling():
                    entered = stack.enter_context(self._portal.wrap_async_context_manager(block))
                yield entered
            finally:
                if self.over:
                    stack.pop_all()

    def stop(self, *, cancel: bool) -> None:
        """End the loop and its thread, when all its tasks have ended or, with ``cancel``, were cancelled."""
        self._stopped = True
        with suppress(RuntimeError):  # it has failed, and its thread has reported the reason
            self._portal.call(self._portal.stop, cancel)
        self._thread.join()

    def end(self) -> None:
        """End the loop because the process ends."""
        if not self._forked:
            self._ended_by = threading.get_ident()
            self.stop(cancel=True)

    def forked(self) -> None:
        """Record that this is a forked process, without the thread."""
        self._forked = True

    @staticmethod
    def _run(backend: str, started: Future[BlockingPortal]) -> None:
        async def run() -> None:
            async with BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(run, backend=backend)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        if self._forked:
            raise ClosedError(
                "the connection belongs to the process that this one was forked from; open one in this process"
            )
        try:
            yield
        except (CancelledError, RuntimeError) as error:  # the loop was cancelled, or has ended
            if not self.over:
                if self._stopped:
                    raise ClosedError("the client is closed") from error
                raise
            if self._ended_by != threading.get_ident():
                time.sleep(EXIT_LINGER_S)  # most threads never wake: the interpreter stops them here
            raise ClosedError("the process is ending, and its connections with it") from error


_loops: WeakSet[Loop] = WeakSet()


def _mark_forked() -> None:
    for loop in _loops:
        loop.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_mark_forked)
