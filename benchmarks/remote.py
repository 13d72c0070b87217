"""The cost of durability ``remote``: time to acknowledgement and puts per GB, by the latency of the backend.

``python -m benchmarks.remote`` runs the remote journal alone, in this process, against the memory backend with an
injected latency: once with one batch in flight (the latency of a single publish), once at a rate of 1 MB/s, once at the
maximum rate. Batches are 16 KiB; with one in flight each holds one message of 100 B.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import trio

from benchmarks._stats import percentile
from danube.history.catalogue import HistoryCatalogue
from danube.history.remote import RemoteJournal, RemoteState
from danube.history.sole_tenure import SoleTenure
from danube.log import Entry, EntryType, StoredBatch
from danube.metadata.memory import MemoryStore
from danube.model.batch import STAMP_SIZE, check_part, encode_part, write_stamp
from danube.model.errors import DanubeError
from danube.model.ids import FIRST_OFFSET, OwnerEpoch, ProducerEpoch, ProducerId, TopicId
from danube.model.limits import Limits
from danube.model.policies import Durability
from danube.storage import MemoryBackend, Storage, system_wall_clock_us

__all__ = ["main"]

_TOPIC_ID = TopicId(1)
_MODES = ("one in flight", "1 MB/s", "full rate")


class Measured(NamedTuple):
    """One run."""

    ack_s: list[float]
    bytes: int
    took_s: float
    puts: int


class _Ticket:
    """The owner of an entry: the time of its sending, and the waiting task."""

    __slots__ = ("done", "sent")

    def __init__(self) -> None:
        self.sent = time.perf_counter()
        self.done = trio.Event()


class _Broker:
    """The parts of a broker that the remote journal needs, with one topic."""

    def __init__(self) -> None:
        self.ack_s: list[float] = []

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        if error is not None:
            raise error
        now = time.perf_counter()
        for entry in entries:
            if isinstance(entry.owner, _Ticket):
                self.ack_s.append(now - entry.owner.sent)
                entry.owner.done.set()

    def on_stall(self, entries: Sequence[Entry], error: DanubeError) -> None:
        raise error

    def remote_state(self) -> RemoteState:
        return RemoteState({"/default/t": ([_TOPIC_ID], b"")}, {}, {}, {})

    def topic_name(self, topic_id: TopicId) -> str:
        return "/default/t"

    def producer_name(self, topic_id: TopicId, producer_id: ProducerId) -> str:
        return "producer"


class _Publisher:
    """Appends batches to the topic."""

    def __init__(self, journal: RemoteJournal, messages: int) -> None:
        self._journal = journal
        self._next_offset = FIRST_OFFSET
        payloads = [bytes(100)] * messages
        self.part = encode_part(
            payloads, producer_id=ProducerId(1), producer_epoch=ProducerEpoch(1), base_sequence=0, publish_time_us=1
        )
        self._header = check_part(self.part)

    async def send(self) -> _Ticket:
        """Send one batch as soon as it is admitted."""
        size = STAMP_SIZE + len(self.part)
        await self._journal.admit(size)
        ticket = _Ticket()
        base, now_us = self._next_offset, system_wall_clock_us()
        self._next_offset = end = base + self._header.record_count
        stamp = write_stamp(len(self.part), _TOPIC_ID, base, now_us, OwnerEpoch(1))
        batch = StoredBatch(base, end, stamp, self.part, self._header, now_us)
        self._journal.submit(
            Entry(
                EntryType.BATCH,
                _TOPIC_ID,
                Durability.REMOTE,
                (stamp, self.part),
                ticket,
                end_offset=end,
                batch=batch,
                size=size,
            )
        )
        return ticket


async def _publish(mode: str, publisher: _Publisher, seconds: float) -> int:
    """Publish for some seconds; return the bytes."""
    started = time.perf_counter()
    sent = 0
    last = None
    while (elapsed := time.perf_counter() - started) < seconds:
        last = await publisher.send()
        sent += len(publisher.part)
        if mode == "one in flight":
            await last.done.wait()
        elif mode == "1 MB/s":
            await trio.sleep(max(0.0, sent / 1e6 - elapsed))
        else:
            await trio.lowlevel.checkpoint()
    if last is not None:
        await last.done.wait()
    return sent


async def _measure(mode: str, latency_s: float, seconds: float) -> Measured:
    limits = Limits()
    broker = _Broker()
    backend = MemoryBackend(durable=True, latency_s=latency_s)
    storage = Storage(backend, random=random.Random(0), limits=limits)
    async with MemoryStore() as store:
        journal = RemoteJournal(
            storage,
            await HistoryCatalogue.open(store, await SoleTenure.begin(store), "benchmark"),
            broker,
            limits,
            place="benchmark",
            owner="benchmark",
            wall_clock_us=system_wall_clock_us,
            manifests_current=lambda: True,
        )
        await journal.recover()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            await trio.sleep(4 * latency_s)  # the claim and the first snapshot are not what is measured
            puts = storage.stats().operations["put"].calls
            started = time.perf_counter()
            size = await _publish(mode, _Publisher(journal, 1 if mode == "one in flight" else 160), seconds)
            took_s = time.perf_counter() - started
            puts = storage.stats().operations["put"].calls - puts
            nursery.cancel_scope.cancel()
    return Measured(broker.ack_s, size, took_s, puts)


def _row(mode: str, latency_ms: float, found: Measured) -> str:
    p50, p99 = (1000 * percentile(found.ack_s, percent) for percent in (50, 99))
    return (
        f"| {latency_ms:g} ms | {mode} | {p50:.1f} ms | {p99:.1f} ms | {found.bytes / found.took_s / 1e6:,.2f} MB/s |"
        f" {found.puts / found.took_s:,.1f} | {found.puts / found.bytes * 1e9:,.0f} |"
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure; default %(default)s")
    parser.add_argument(
        "--latency-ms",
        type=float,
        nargs="+",
        default=[20.0, 100.0],
        metavar="MS",
        help="of each call to the backend; default 20 100",
    )
    arguments = parser.parse_args()
    print("| latency | offered | ack p50 | ack p99 | rate | puts/s | puts/GB |")
    print("|---|---|---|---|---|---|---|")
    for latency_ms in arguments.latency_ms:
        for mode in _MODES:
            found = trio.run(_measure, mode, latency_ms / 1000, arguments.seconds)
            print(_row(mode, latency_ms, found), flush=True)


if __name__ == "__main__":
    main()
