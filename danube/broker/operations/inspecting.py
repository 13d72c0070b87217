"""Operations that inspect a broker from within: checks of its machine, its plugins, its tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.broker.operations.task_tree import rows_of
from danube.model import api
from danube.model.errors import InvalidArgumentError
from danube.model.inspect_api import (
    MAX_TASK_ROWS,
    CheckList,
    CheckRow,
    GetTasks,
    ListPlugins,
    PluginList,
    PluginRow,
    RunDoctor,
    TaskTree,
)

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.operations.storages import StorageOperations
    from danube.model.checks import Check

__all__ = ["InspectOperations", "installed_plugins"]

_FRESH_S: Final = 10.0
"""How long checks of the machine count as new."""


class InspectOperations:
    """See the module.

    Args:
        directory: of the topics.
        storages: operations on storages, for their state.
    """

    def __init__(self, directory: Directory, storages: StorageOperations) -> None:
        self._directory = directory
        self._storages = storages
        self._checking = trio.Lock()
        self._checked: tuple[float, Sequence[Check]] = (-math.inf, ())
        """When the machine was checked, and the result."""

    async def doctor(self, _request: RunDoctor) -> CheckList:
        """Check the machine, sealing and storages.

        The disk is measured for that: once in :data:`_FRESH_S` seconds, for all callers.
        """
        from danube.broker.doctor import check_broker, check_machine  # most brokers are never asked

        config, in_thread = self._directory.runtime.config, self._directory.runtime.seams.in_thread
        status = await self._storages.storages_status(api.Empty())
        async with self._checking:
            if trio.current_time() - self._checked[0] >= _FRESH_S:
                machine = await in_thread(lambda: check_machine(config.data_directory, config.limits))
                self._checked = trio.current_time(), machine
        found = [*self._checked[1], *check_broker(status)]
        rows = [CheckRow(each.name, each.ok, each.detail, "" if each.ok else each.remedy) for each in found]
        return CheckList(rows, self._directory.broker)

    async def plugins(self, _request: ListPlugins) -> PluginList:
        """Return the installed plugins. Each is imported for that, outside the loop."""
        return PluginList(await self._directory.runtime.seams.in_thread(installed_plugins))

    async def tasks(self, request: GetTasks) -> TaskTree:
        """Return the tasks.

        Raises:
            InvalidArgumentError: the limit is out of range.
        """
        if not 1 <= request.limit <= MAX_TASK_ROWS:
            raise InvalidArgumentError(f"limit is a number from 1 to {MAX_TASK_ROWS}, not {request.limit}")
        await trio.lowlevel.checkpoint()
        rows, total = rows_of(trio.lowlevel.current_root_task(), request.limit)
        return TaskTree(tasks=rows, total=total, broker=self._directory.broker)


def installed_plugins() -> list[PluginRow]:
    """Return the storage backends and metadata engines that are installed, imported one after the other."""
    from danube import metadata, storage
    from danube.model.entry_points import load_target
    from danube.model.version import __version__

    rows = []
    found: list[tuple[str, Any]] = [
        *(("storage", plugin) for plugin in storage.installed_plugins()),
        *(("metadata", plugin) for plugin in metadata.installed_plugins()),
    ]
    for kind, plugin in found:
        loadable = True
        try:
            summary = str(load_target(plugin.target).summary)
        except (ImportError, AttributeError) as error:
            summary, loadable = f"cannot be loaded: {error}", False
        rows.append(
            PluginRow(
                kind=kind,
                scheme=plugin.scheme,
                built_in=plugin.built_in,
                package="danube-broker" if plugin.built_in else plugin.distribution,
                version=__version__ if plugin.built_in else plugin.version,
                summary=summary,
                loadable=loadable,
            )
        )
    return rows
