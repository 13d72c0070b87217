"""The event loop in a thread of its own, as blocking objects see it."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from typing import Any, Literal, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from danube.model.errors import ClosedError

__all__ = ["Loop", "run_block"]

T = TypeVar("T")

EXIT_LINGER_S = 5.0
"""How long a thread that waits for the loop goes on waiting when the process ends, before it is told so.

Only daemons are left by then. One that was told at once would run into the interpreter's end with its exception in
hand, and Python aborts a process whose daemon prints at that moment. One that was never told would hold up the end if
something joins it (an ``atexit`` handler older than the connection).
"""


@contextmanager
def run_block(block: AbstractAsyncContextManager[T], backend: Literal["asyncio", "trio"]) -> Iterator[tuple[T, Loop]]:
    """Run an asynchronous ``with`` block in an event loop in a thread of its own.

    A process may end without having left the block: what entered it was never closed, or a signal has ended the main
    thread. The loop is then cancelled before the interpreter takes itself apart. Later nobody could: its thread, a
    daemon, is stopped by then, and to leave the block would wait for it for ever.
    """
    with ExitStack() as loop_stack:
        portal = loop_stack.enter_context(start_blocking_portal(backend))
        with ExitStack() as block_stack:
            entered = block_stack.enter_context(portal.wrap_async_context_manager(block))
            owner = os.getpid()
            loop = Loop(portal)

            def end() -> None:
                if os.getpid() == owner:  # a fork has no such thread
                    loop.ended_by = threading.get_ident()
                    block_stack.pop_all()
                    portal.call(portal.stop, True)
                    loop_stack.close()

            atexit.register(end)
            try:
                yield entered, loop
            finally:
                atexit.unregister(end)


class Loop:
    """The event loop in its thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal
        self.ended_by: int | None = None
        """The thread that ended the loop because the process ends (the one that runs what is left to do at exit)."""

    @property
    def over(self) -> bool:
        """Whether the process ends, and the loop with it."""
        return self.ended_by is not None

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object, **options: object) -> T:
        """Run an asynchronous call in the loop; if the waiting thread is interrupted, the call is cancelled.

        Raises:
            ClosedError: the process is ending (threads other than the one that ends it hear of it only after
                EXIT_LINGER_S); what else the call itself raises.
        """

        async def call() -> T:
            return await function(*args, **options)

        with self._until_it_is_over():
            future = self.portal.start_task_soon(call)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Run a plain function in the loop."""

        async def call() -> T:
            return function(*args)

        with self._until_it_is_over():
            return self.portal.start_task_soon(call).result()

    def soon(self, function: Callable[[], object]) -> None:
        """Have a plain function run in the loop, without waiting for it."""
        with self._until_it_is_over():
            self.portal.start_task_soon(function)

    @contextmanager
    def _until_it_is_over(self) -> Iterator[None]:
        try:
            yield
        except (CancelledError, RuntimeError) as error:  # cancelled with the loop, or too late for it
            if not self.over:
                raise
            if self.ended_by != threading.get_ident():
                time.sleep(EXIT_LINGER_S)  # most never wake: the interpreter stops them here
            raise ClosedError("the process is ending, and its connections with it") from error

    @contextmanager
    def enter(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Be the blocking form of an asynchronous ``with`` block. When the process ends it has been left already."""
        with ExitStack() as stack:
            try:
                yield stack.enter_context(self.portal.wrap_async_context_manager(block))
            finally:
                if self.over:
                    stack.pop_all()
