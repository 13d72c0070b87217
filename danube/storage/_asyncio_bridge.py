"""Calls asyncio code that runs on an event loop in another thread, from Trio.

Client libraries for object stores use asyncio. Their coroutines run on a loop in a thread of its own; the Trio task
waits without a thread, and cancelling it cancels the coroutine::

    Trio task                                    loop thread
    ---------                                    -----------
    call_asyncio(loop, f, x) ----soon---->       create_task(f(x))
      waits                                        ...
                             <---soon----        task done: result or error
    Cancelled: ------------------soon---->       task.cancel()
      waits for its end, with a time limit        ... cleans up, done

A cancelled call returns when its coroutine has ended, so none of it continues in the background. The wait for a
coroutine that ignores its cancellation is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

import trio

__all__ = ["call_asyncio"]

_Result = TypeVar("_Result")

_CANCEL_GRACE_S = 5.0
"""How long a cancelled coroutine may take to end before it is abandoned."""


class _Call(Generic[_Result]):
    """One coroutine in progress on both loops."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        self.ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._function = function
        self._cancelled = False
        self._task: asyncio.Task[_Result] | None = None
        self._start_error: BaseException | None = None

    # On the asyncio loop

    def start(self) -> None:
        if self._cancelled:
            self._notify(None)
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._function())
        except Exception as error:  # noqa: BLE001 - handed over to the Trio side, where result() raises it
            self._start_error = error
            self._notify(None)
        else:
            self._task.add_done_callback(self._notify)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _notify(self, task: asyncio.Task[_Result] | None) -> None:
        if task is not None and not task.cancelled():
            task.exception()  # marks it as retrieved: the waiting task may have been cancelled
        try:
            self._token.run_sync_soon(self.ended.set)
        except trio.RunFinishedError:
            # The Trio run has ended: there is no task to notify.
            return

    # On the Trio side, after ``ended``

    def result(self) -> _Result:
        if self._start_error is not None:
            raise self._start_error
        assert self._task is not None
        if self._task.cancelled():
            raise ConnectionError("the call was cancelled by the client library")
        return self._task.result()


async def call_asyncio(
    loop: asyncio.AbstractEventLoop, function: Callable[..., Coroutine[Any, Any, _Result]], *args: Any, **kwargs: Any
) -> _Result:
    """Run ``function(*args, **kwargs)`` as a task on ``loop`` (running in another thread) and return its result.

    Raises the coroutine's exceptions; :class:`ConnectionError` if other code cancelled it or the loop is closed.
    """
    call = _Call(lambda: function(*args, **kwargs))
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        loop.call_soon_threadsafe(call.start)
    except RuntimeError as error:
        raise ConnectionError(f"the client library's event loop is closed: {error}") from error
    try:
        await call.ended.wait()
    except trio.Cancelled:
        with suppress(RuntimeError):  # the loop may be closed, and its coroutines have ended then
            loop.call_soon_threadsafe(call.cancel)
        with trio.CancelScope(deadline=trio.current_time() + _CANCEL_GRACE_S, shield=True):
            await call.ended.wait()
        raise
    return call.result()
