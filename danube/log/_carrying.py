"""Carries out what recovery decides, on a disk."""

from __future__ import annotations

from typing import Any, TypeVar

from danube.log._actions import Action, Create, ListFiles, Read, Remove, Rename, Steps, Write
from danube.log.disk import Disk

__all__ = ["carry_out"]

_T = TypeVar("_T")


async def carry_out(disk: Disk, steps: Steps[_T]) -> _T:
    """Carry out actions, one after the other, and return what they lead to.

    Raises:
        OSError: an action has failed, and the steps have no answer to that.

    Other errors of the steps pass. Cancelled between two actions, or in one, if that may be; the steps are closed then.
    """
    try:
        action = next(steps)
        while True:
            try:
                result = await _do(disk, action)
            except OSError as error:
                action = steps.throw(error)
            else:
                action = steps.send(result)
    except StopIteration as stop:
        value: _T = stop.value
        return value
    finally:
        steps.close()


async def _do(disk: Disk, action: Action) -> Any:
    if isinstance(action, Read):
        return await disk.read(action.name, action.position, action.size)
    if isinstance(action, Write):
        return await disk.write(action.name, action.position, action.buffers, sync=action.sync)
    if isinstance(action, Rename):
        return await disk.rename(action.old, action.new)
    if isinstance(action, Remove):
        return await disk.remove(action.name)
    if isinstance(action, Create):
        return await disk.create(action.name, action.size)
    if isinstance(action, ListFiles):
        return await disk.list()
    return await disk.sync_directory()
