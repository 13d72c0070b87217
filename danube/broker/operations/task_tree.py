"""The tasks of a broker as rows: who waits where. Values of variables are not looked at. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final, Protocol

from danube.model.inspect_api import TaskRow

__all__ = ["MOST_CALLS", "Walked", "places_of", "rows_of"]

MOST_CALLS: Final = 12
"""Calls that are shown of a task: the first ones, and the last ones."""
_MOST_NAME: Final = 200
_MOST_FRAMES: Final = 500
"""Calls that are looked at of a task; deeper ones are recursion."""


class Walked(Protocol):
    """A task, as far as the walk needs it; a ``trio.lowlevel.Task``."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def child_nurseries(self) -> Sequence[Any]:
        """Its nurseries, which have ``child_tasks``."""
        ...

    def iter_await_frames(self) -> Iterator[tuple[FrameType, int]]:
        """Yield the frames of its calls, from the first one to the innermost, with their lines."""
        ...


def rows_of(root: Walked | None, most: int) -> tuple[list[TaskRow], int]:
    """Return the tasks below a root, itself first, and the number of all of them.

    Args:
        root: of the tree; None: there is none.
        most: rows; further tasks are counted.
    """
    rows: list[TaskRow] = []
    total = 0
    waiting: list[tuple[int, Walked]] = [] if root is None else [(0, root)]
    while waiting:
        depth, task = waiting.pop()
        total += 1
        if len(rows) < most:
            frames = ((f.f_globals.get("__name__", "?"), f.f_code, line) for f, line in task.iter_await_frames())
            rows.append(TaskRow(depth=depth, name=task.name[:_MOST_NAME], where=places_of(frames)))
        children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        waiting += [(depth + 1, child) for child in sorted(children, key=lambda child: child.name, reverse=True)]
    return rows, total


def places_of(frames: Iterable[tuple[str, CodeType, int]]) -> list[str]:
    """Return the places of calls as text; of many, the first and the last ones.

    Args:
        frames: module, function and line of each.
    """
    shown = [f"{module}:{line} {code.co_qualname}" for module, code, line in islice(frames, _MOST_FRAMES)]
    if len(shown) <= MOST_CALLS:
        return shown
    half = MOST_CALLS // 2
    return [*shown[:half], f"({len(shown) - 2 * half} calls)", *shown[-half:]]
