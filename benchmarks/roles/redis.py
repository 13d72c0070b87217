"""Redis Streams' workers: redis-py, pipelined where Danube is batched.

The blocking client is used: it is the fastest one of redis-py. A pipeline of XADDs corresponds to ``send_many``,
XREADGROUP with one XACK for everything read to ``batches()``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from benchmarks._payloads import Tally, checksum, make_payloads
from benchmarks._processes import Outcome, Work
from benchmarks.roles._pace import Pace
from benchmarks.worker import Control

__all__ = ["ROLES"]

PIPELINE = 500
COUNT = 1_000
FIELD = b"p"


def _connect(work: Work) -> Any:
    return redis.Redis.from_url(work.address, protocol=2)


def _make_group(client: Any, topic: str, group: str) -> None:
    try:
        client.xgroup_create(topic, group, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _create(work: Work, control: Control) -> Outcome:
    """Do nothing: the first XADD creates the stream."""
    began = control.ready()
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=0)


def _delete(work: Work, control: Control) -> Outcome:
    """Delete the stream."""
    client = _connect(work)
    began = control.ready()
    client.delete(work.topic)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=0)


def _publish(work: Work, control: Control) -> Outcome:
    """Send everything in pipelines of XADD."""
    payloads = make_payloads(work.count, work.size)
    expected = checksum(payloads)
    client = _connect(work)
    client.ping()
    began = control.ready()
    sent = 0
    for first in range(0, work.count, PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for payload in payloads[first : first + PIPELINE]:
            pipeline.xadd(work.topic, {FIELD: payload})
        sent += len(pipeline.execute())
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=sent, checksum=expected, cpu_s=cpu_s)


def _read(client: Any, work: Work, group: str, name: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    answer = client.xreadgroup(group, name, {work.topic: ">"}, count=COUNT, block=500)
    return answer[0][1] if answer else []


def _consume(work: Work, control: Control) -> Outcome:
    """Read ``settings.subscriptions`` groups, each in a thread with a connection of its own."""
    groups = [
        f"{work.settings.get('prefix', 'reader')}-{one}" for one in range(int(work.settings.get("subscriptions", 1)))
    ]
    results: list[tuple[int, int]] = []

    def read(group: str) -> None:
        client = _connect(work)
        received, value = 0, 0
        while received < work.count:
            if entries := _read(client, work, group, "one"):
                value = checksum([fields[FIELD] for _, fields in entries], value)
                received += len(entries)
                client.xack(work.topic, group, *[entry for entry, _ in entries])
        results.append((received, value))

    for group in groups:
        _make_group(_connect(work), work.topic, group)
    threads = [threading.Thread(target=read, args=(group,), daemon=True) for group in groups]
    began = control.ready()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    values = {value for _, value in results}
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=sum(received for received, _ in results),
        checksum=values.pop() if len(values) == 1 else -1,
        cpu_s=cpu_s,
    )


def _consume_each(work: Work, control: Control) -> Outcome:
    """Share one group among ``settings.consumers`` connections; an XACK for each message, pipelined."""
    consumers = int(work.settings.get("consumers", 1))
    payloads: list[bytes] = []
    _make_group(_connect(work), work.topic, "shared")
    finished = threading.Event()

    def read(name: str) -> None:
        client = _connect(work)
        while len(payloads) < work.count:
            if entries := _read(client, work, "shared", name):
                pipeline = client.pipeline(transaction=False)
                for entry, fields in entries:
                    payloads.append(fields[FIELD])
                    pipeline.xack(work.topic, "shared", entry)
                pipeline.execute()
        finished.set()

    threads = [threading.Thread(target=read, args=(f"c{one}",), daemon=True) for one in range(consumers)]
    began = control.ready()
    for thread in threads:
        thread.start()
    finished.wait()  # the others only wait for messages that will not come
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    for thread in threads:
        thread.join()
    if consumers == 1:
        return Outcome(
            started_ns=began, finished_ns=ended, count=len(payloads), checksum=checksum(payloads), cpu_s=cpu_s
        )
    tally = Tally(work.count)
    tally.add(payloads)
    return Outcome(started_ns=began, finished_ns=ended, count=tally.total, cpu_s=cpu_s)


def _latency(work: Work, control: Control) -> Outcome:
    """Add one message at a time: first back to back, then on a schedule."""
    payloads = make_payloads(2 * work.count, work.size)
    back_to_back: list[float] = []
    paced: list[float] = []
    client = _connect(work)
    for payload in make_payloads(50, work.size):
        client.xadd(work.topic, {FIELD: payload})
    began = control.ready()
    for payload in payloads[: work.count]:
        before = time.monotonic_ns()
        client.xadd(work.topic, {FIELD: payload})
        back_to_back.append((time.monotonic_ns() - before) / 1000)
    cpu_s = control.cpu_s()
    pace = Pace(float(work.settings["rate"]))
    for payload in payloads[work.count :]:
        due = pace.wait()
        client.xadd(work.topic, {FIELD: payload})
        paced.append((time.monotonic_ns() - due) / 1000)
    return Outcome(
        started_ns=began,
        finished_ns=time.monotonic_ns(),
        count=2 * work.count,
        latencies_us={"back_to_back": back_to_back, "paced": paced},
        cpu_s=cpu_s,
    )


ROLES: dict[str, Callable[[Work, Control], Outcome]] = {
    "create": _create,
    "delete": _delete,
    "publish": _publish,
    "publish_nowait": _publish,
    "consume": _consume,
    "consume_each": _consume_each,
    "consume_shared": _consume_each,
    "replay": _consume,
    "latency": _latency,
}
