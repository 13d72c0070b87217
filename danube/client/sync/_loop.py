"""The event loop in a thread of its own, as blocking objects see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

__all__ = ["Loop"]

T = TypeVar("T")


class Loop:
    """The event loop in its thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object, **options: object) -> T:
        """Run an asynchronous call in the loop; if the waiting thread is interrupted, the call is cancelled."""

        async def call() -> T:
            return await function(*args, **options)

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

        return self.portal.start_task_soon(call).result()

    def enter(self, block: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Return the blocking form of an asynchronous ``with`` block."""
        return self.portal.wrap_async_context_manager(block)
