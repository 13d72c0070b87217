"""Workers that use etcd through its plugin: failover."""

from __future__ import annotations

import os
import time

import trio

from benchmarks._processes import Outcome, Work
from benchmarks.roles.cluster import until
from benchmarks.worker import Control
from danube.metadata import open_store

__all__ = ["ROLES"]

_ATTEMPT_S = 0.5
"""After this a put is tried again: one that was passed on to a leader that died may stay without an answer for long."""


async def _failover(work: Work, control: Control) -> Outcome:
    """Send a signal to the leader; measure until a put through another member succeeds."""
    async with open_store(f"etcd://{work.address}/benchmark") as store:
        await store.put("/begun", b"")
        ready = control.ready()
        os.kill(int(work.settings["pid"]), int(work.settings["signal"]))
        began = time.monotonic()

        async def put() -> bool:
            with trio.move_on_after(_ATTEMPT_S):
                await store.put("/next", b"x" * work.size)
                return True
            return False

        write_s = await until(put) - began
    return Outcome(
        started_ns=ready,
        finished_ns=time.monotonic_ns(),
        count=1,
        cpu_s=control.cpu_s(),
        values={"write_s": write_s},
    )


def _failover_role(work: Work, control: Control) -> Outcome:
    return trio.run(_failover, work, control)


ROLES = {"failover": _failover_role}
