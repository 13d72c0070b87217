"""Visits all brokers of a cluster for ``danube doctor --cluster``; the rules are in :mod:`danube.cluster.checkup`."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

import trio

from danube.cli._failures import flatten
from danube.cluster.checkup import Visit, check_cluster
from danube.model.errors import DanubeError

if TYPE_CHECKING:
    from danube.cli._connecting import Target
    from danube.client import Client
    from danube.model.checks import Check
    from danube.model.cluster_api import BrokerRow, ClusterStatus

__all__ = ["check_cluster_at"]

_TIMEOUT_S: Final = 5.0
"""Of each step: connecting to a broker, and a call."""


def check_cluster_at(target: Target) -> list[Check]:
    """Return the checks of the cluster to which a broker belongs. Blocks.

    Raises:
        DanubeError: that broker does not answer.
    """
    return trio.run(_check, target)


async def _check(target: Target) -> list[Check]:
    reference = await _ask(target)
    visits: list[Visit] = []

    async def visit(row: BrokerRow) -> None:
        visits.append(await _visit(row, target))

    async with trio.open_nursery() as nursery:
        for row in reference.brokers:
            if row.session:
                nursery.start_soon(visit, row)
    return check_cluster(reference, sorted(visits, key=lambda each: (len(each.name), each.name)))


async def _ask(target: Target) -> ClusterStatus:
    async with _connect(target) as client:
        return await client.admin.cluster_status()


def _connect(target: Target) -> AbstractAsyncContextManager[Client]:
    return target.connect(connect_timeout_s=_TIMEOUT_S, request_timeout_s=_TIMEOUT_S, reconnect_timeout_s=_TIMEOUT_S)


async def _visit(row: BrokerRow, target: Target) -> Visit:
    """Connect to one broker; measure the way to it and its clock; and ask it what it sees."""
    try:
        async with _connect(target.at(row.address)) as client:
            await client.admin.cluster_status(gather=False)  # the connection is there, and all code is loaded
            began, began_s = time.perf_counter(), time.time()
            short = await client.admin.cluster_status(gather=False)
            rtt_s = time.perf_counter() - began
            own = next((each for each in short.brokers if each.broker == row.broker), None)
            if short.broker != row.broker or own is None or own.figures is None:
                return Visit(row.name, None, f"b{short.broker} of the cluster {short.cluster!r} answers there instead")
            offset_s = own.figures.time_us / 1e6 - (began_s + rtt_s / 2)
            return Visit(row.name, await client.admin.cluster_status(), "", rtt_s, offset_s)
    except (DanubeError, BaseExceptionGroup) as error:
        found = flatten(error)
        if not isinstance(found, DanubeError):
            raise
        return Visit(row.name, None, str(found))
