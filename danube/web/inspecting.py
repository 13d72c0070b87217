"""Handlers of the broker seen from within: checks, plugins, tasks, the bundle for bug reports, the level of its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio

from danube.http import Response
from danube.model import api
from danube.model.cluster_api import ClusterMethod, GetClusterStatus
from danube.model.connection_api import ConnectionMethod, ListConnections
from danube.model.errors import DanubeError
from danube.model.history_api import HistoryMethod
from danube.model.inspect_api import GetTasks, InspectMethod, ListPlugins, RunDoctor
from danube.model.log_api import ChangeLogLevel, LogMethod
from danube.model.metrics_api import GetMetrics, MetricsMethod
from danube.model.overview_api import GetFindings, OverviewMethod, OverviewSubscriptions
from danube.model.policy_api import PolicyMethod, ShowPolicies
from danube.web.administration import Handler
from danube.web.caller import ApiCall
from danube.web.inspect_routes import GZIP
from danube.web.settings import settings_of
from danube.web.twins import as_native, plain

__all__ = ["HANDLERS"]

_PART_S: Final = 20.0
"""How long one part of a bundle may take."""


async def run_doctor(call: ApiCall) -> Any:
    """Check the machine of the broker."""
    return await call.native(InspectMethod.DOCTOR, RunDoctor())


async def list_plugins(call: ApiCall) -> Any:
    """Return the plugins."""
    return await call.native(InspectMethod.PLUGINS, ListPlugins())


async def show_tasks(call: ApiCall) -> Any:
    """Return the tree of tasks."""
    return await call.native(InspectMethod.TASKS, GetTasks(call.values["limit"]))


async def change_log_level(call: ApiCall) -> Any:
    """Change the level of the log."""
    return await call.native(LogMethod.CHANGE_LEVEL, as_native(call.body, ChangeLogLevel))


async def download_bundle(call: ApiCall) -> Response:
    """Return what a bug report needs. A part that cannot be had says why; the first one needs the right to have any."""
    tasks = await call.native(InspectMethod.TASKS, GetTasks())
    config: Any = call.broker.runtime.config
    parts: dict[str, Any] = {
        "tasks.json": plain(tasks),
        "config.json": plain(settings_of(config, without=frozenset({"limits"}))),
        "limits.json": plain(settings_of(call.broker.runtime.limits)),
    }
    calls: dict[str, tuple[str, Any]] = {
        "info.json": (api.Method.INFO, api.Empty()),
        "findings.json": (OverviewMethod.FINDINGS, GetFindings()),
        "subscriptions.json": (OverviewMethod.SUBSCRIPTIONS, OverviewSubscriptions()),
        "topics.json": (api.Method.LIST_TOPICS, api.ListTopics("")),
        "connections.json": (ConnectionMethod.LIST, ListConnections()),
        "storages.json": (HistoryMethod.STORAGES_STATUS, api.Empty()),
        "cluster.json": (ClusterMethod.STATUS, GetClusterStatus()),
        "policies.json": (PolicyMethod.SHOW, ShowPolicies("")),
        "doctor.json": (InspectMethod.DOCTOR, RunDoctor()),
        "plugins.json": (InspectMethod.PLUGINS, ListPlugins()),
        "metrics.txt": (MetricsMethod.METRICS, GetMetrics()),
    }
    for name, (path, request) in calls.items():
        parts[name] = await _part(call, path, request)
    from danube.web.archive import archived  # most brokers are never asked

    made_s = call.broker.runtime.clock_us() / 1e6
    folder = f"danube-debug-{call.broker.directory.broker}"
    data = await trio.to_thread.run_sync(archived, folder, parts, made_s)
    disposition = ("Content-Disposition", f'attachment; filename="{folder}.tar.gz"')
    return Response(200, data, content_type=GZIP, headers=[disposition, ("Cache-Control", "no-store")])


async def _part(call: ApiCall, path: str, request: Any) -> Any:
    try:
        with trio.fail_after(_PART_S):
            found = await call.native(path, request)
    except DanubeError as error:
        return f"this part could not be had: {error}"
    except trio.TooSlowError:
        return f"this part could not be had: it was not ready within {_PART_S:g} s"
    return found.text.decode() if path == MetricsMethod.METRICS else plain(found)


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (run_doctor, list_plugins, show_tasks, change_log_level, download_bundle)
}
