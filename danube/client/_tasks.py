"""A task group that raises only the application's own exceptions.

A plain task group wraps exceptions of its body in an ``ExceptionGroup``. Here the body's exception is raised unwrapped,
and failures of background tasks are raised by calls of the application instead of ending its block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from danube.model.errors import DanubeError

__all__ = ["background_tasks", "copy_error", "start_all", "together"]

T = TypeVar("T")


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Open a task group for background tasks, which are cancelled when the body ends or fails.

    The body's exception is raised unwrapped. An exception of a background task (only a bug lets one escape) ends the
    body and is raised as it is if it is the only one.
    """
    body_error: Exception | None = None
    try:
        async with anyio.create_task_group() as group:
            try:
                yield group
            except Exception as error:  # noqa: BLE001 - raised again below, outside the group that would wrap it
                body_error = error
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        if body_error is None and len(failures.exceptions) == 1:
            raise failures.exceptions[0] from None
        raise
    if body_error is not None:
        raise body_error


async def start_all(group: TaskGroup, tasks: Sequence[Callable[..., Coroutine[Any, Any, None]]]) -> None:
    """Start tasks in ``group`` and wait until all have called ``started()``; raise the first failure as it is.

    The first task starts alone, because it may have to create the topic that the others use, and the others together: a
    thousand partitions must not take a thousand round trips one after the other.
    """
    await group.start(tasks[0])
    try:
        async with anyio.create_task_group() as starters:
            for task in tasks[1:]:
                starters.start_soon(group.start, task)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def copy_error(error: DanubeError) -> DanubeError:
    """Return a fresh exception like ``error``: one outage is raised in many tasks, each with its own traceback."""
    copy = type(error)(error.message, error.details)
    copy.__cause__ = error.__cause__
    return copy


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make calls at the same time; return their results in order, or raise the first error as it is."""
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}

    async def run(index: int) -> None:
        results[index] = await calls[index]()

    try:
        async with anyio.create_task_group() as group:
            for index in range(len(calls)):
                group.start_soon(run, index)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[index] for index in range(len(calls))]
