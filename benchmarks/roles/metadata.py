"""Workers that use a metadata store of three members: one of this project's, or etcd."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from benchmarks._processes import Outcome, Work
from benchmarks.worker import Control
from danube.metadata import MetadataStore, PutEvent, open_store
from danube.model.errors import UnavailableError

__all__ = ["ROLES"]

MANY = 64
"""Callers at the same time."""
FEW_SHARE = 0.1
"""Part of the calls that one caller makes alone."""
WATCHED_EACH_S = 0.005
"""Pause between changes that are watched."""
_LONGEST_S = 60.0
_KEYS = 1_000
_LEADER_LOOK_S = 0.05


@asynccontextmanager
async def _open(work: Work) -> AsyncGenerator[MetadataStore, None]:
    directory = str(work.settings.get("directory", ""))
    if not directory:
        async with open_store(f"etcd://{work.address}/benchmark") as store:
            yield store
        return
    from benchmarks.members import open_member

    ports = [int(port) for port in work.address.split(",")]
    async with open_member(len(ports), ports, Path(directory)) as member:
        wanted = bool(work.settings["leads"])
        with trio.fail_after(_LONGEST_S):
            # The member tells of no change of its role.
            while member.node.raft.is_leader is not wanted or member.node.raft.leader is None:  # noqa: ASYNC110
                await trio.sleep(_LEADER_LOOK_S)
        yield member


async def _repeat(callers: int, count: int, call: Callable[[int], Awaitable[object]]) -> tuple[float, list[float]]:
    """Make ``count`` calls by so many callers; return the seconds in all, and each call's microseconds."""
    latencies: list[float] = []
    left = iter(range(count))

    async def one_caller() -> None:
        for number in left:
            began = time.perf_counter_ns()
            await call(number)
            latencies.append((time.perf_counter_ns() - began) / 1e3)

    began = time.perf_counter_ns()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(one_caller)
    return (time.perf_counter_ns() - began) / 1e9, latencies


async def _watch(store: MetadataStore, count: int) -> list[float]:
    """Return how many microseconds after its put was called each change was reported by a watch."""
    delays: list[float] = []
    sent: dict[str, int] = {}
    async with store.watch("/watched") as watch, trio.open_nursery() as nursery:

        async def change() -> None:
            for number in range(count):
                key = f"/watched/{number}"
                sent[key] = time.perf_counter_ns()
                await store.put(key, b"x" * 100)
                await trio.sleep(WATCHED_EACH_S)

        nursery.start_soon(change)
        while len(delays) < count:
            batch = await watch.__anext__()
            now = time.perf_counter_ns()
            delays += [(now - sent[event.key]) / 1e3 for event in batch.events if isinstance(event, PutEvent)]
    return delays


async def _settled(store: MetadataStore) -> None:
    """Wait until the members have a leader."""
    with trio.fail_after(_LONGEST_S):
        while True:
            try:
                await store.put("/begun", b"")
            except UnavailableError:
                await trio.sleep(_LEADER_LOOK_S)
            else:
                return


async def _load(work: Work, control: Control) -> Outcome:
    """Puts and gets by one caller and by many, then a watch."""
    few = max(50, int(work.count * FEW_SHARE))
    value = b"x" * work.size
    async with _open(work) as store:
        await _settled(store)

        async def put(number: int) -> None:
            await store.put(f"/keys/{number % _KEYS}", value)

        async def get(number: int) -> None:
            await store.get(f"/keys/{number % _KEYS}")

        began = control.ready()
        values: dict[str, float] = {}
        latencies: dict[str, list[float]] = {}
        for name, call in (("put", put), ("get", get)):
            for callers, calls in ((1, few), (MANY, work.count)):
                seconds, latencies[f"{name}_{callers}"] = await _repeat(callers, calls, call)
                values[f"{name}_{callers}_per_s"] = calls / seconds
        latencies["watch"] = await _watch(store, few)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
        await store.delete("/begun")
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=2 * (few + work.count) + few,
        latencies_us=latencies,
        cpu_s=cpu_s,
        values=values,
    )


def _load_role(work: Work, control: Control) -> Outcome:
    return trio.run(_load, work, control)


ROLES = {"load": _load_role}
