"""One repetition: worker processes around one server, a common start, a check of the received messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path

import psutil

from benchmarks._machine import CpuWatch, cpu_seconds
from benchmarks._payloads import CheckError
from benchmarks._processes import Outcome, Processes, Work, Worker
from benchmarks._stats import percentile
from benchmarks.systems import ALL_SYSTEMS, Server

__all__ = ["Run", "Sample", "latency_values", "simple"]

READY_TIMEOUT_S = 120.0
RESULT_TIMEOUT_S = 600.0
MIN_COUNT = 200


@dataclass
class Sample:
    """The result of one repetition."""

    messages: int
    values: dict[str, float]
    cpu_s: dict[str, float] = field(default_factory=dict)
    load_1m: float = 0.0
    other_cpu: float = 0.0


@dataclass
class Run:
    """The surroundings of one repetition."""

    processes: Processes
    server: Server
    scale: float
    directory: Path
    """Data of this arm; its servers get folders inside."""
    tag: str
    """Different in every repetition."""
    full_count: int
    size: int
    sync_delay_ms: float
    seconds: float
    """How long a flow at a fixed rate shall last."""
    memory: dict[str, str] = field(default_factory=dict)
    """What :attr:`Arm.prepare` wants to tell the repetitions."""
    _folders: Iterator[int] = field(default_factory=numbers)

    @property
    def count(self) -> int:
        """Messages of this repetition."""
        return max(MIN_COUNT, int(self.full_count * self.scale))

    def topic(self, suffix: str = "") -> str:
        """A topic that only this repetition uses."""
        return ALL_SYSTEMS[self.server.system].topic(f"{self.tag}{suffix}")

    def work(self, role: str, *, count: int | None = None, topic: str = "", **settings: int | float | str) -> Work:
        """Describe work of this repetition for a role of the server's system."""
        return Work(
            role=f"{self.server.system}.{role}",
            address=self.server.address,
            topic=topic or self.topic(),
            count=self.count if count is None else count,
            size=self.size,
            settings=settings,
        )

    @property
    def result_timeout_s(self) -> float:
        """How long a worker may take."""
        return RESULT_TIMEOUT_S + self.seconds

    def alone(self, work: Work) -> Outcome:
        """Run one worker from start to end."""
        worker = self.processes.worker(work)
        worker.wait_for("ready", READY_TIMEOUT_S)
        worker.send(b"go")
        return worker.outcome(self.result_timeout_s)

    def flow(
        self,
        producers: Sequence[Work],
        consumers: Sequence[Work] = (),
        *,
        own_topic: bool = True,
        each: int = 1,
        part: bool = False,
        beside: Sequence[Worker] = (),
    ) -> tuple[Sample, list[Outcome], list[Outcome]]:
        """Let producers and consumers work at the same time; consumers are subscribed before anything is sent.

        Args:
            producers: workers that send.
            consumers: workers that receive.
            own_topic: create the topic before and delete it afterwards.
            each: how often every message is delivered in all.
            part: consumers stop before all messages have arrived, and only the received ones count.
            beside: workers that are busy during the measurement; their CPU time does not count as other load.

        Returns:
            A sample with ``messages_per_s`` (sent, or delivered if there are only consumers, from the first send to
            the last acknowledgement), the outcomes of the producers, and those of the consumers.

        Raises:
            CheckError: the received messages differ from the sent ones.
            WorkerError: a worker failed.
        """
        if own_topic:
            self.alone(self.work("create"))
        readers = self._start(consumers)
        writers = self._start(producers)
        others = [*self.server.helpers, *(psutil.Process(worker.pid) for worker in beside)]
        watch = CpuWatch()
        broker_before = cpu_seconds(self.server.process)
        others_before = sum(map(cpu_seconds, others))
        for worker in (*readers, *writers):
            worker.send(b"go")
        sent = [worker.outcome(self.result_timeout_s) for worker in writers]
        received = [worker.outcome(self.result_timeout_s) for worker in readers]
        broker_s = cpu_seconds(self.server.process) - broker_before
        others_s = sum(map(cpu_seconds, others)) - others_before
        producer_s, consumer_s = (sum(one.cpu_s for one in group) for group in (sent, received))
        other = watch.other_share(broker_s + producer_s + consumer_s + others_s)
        if sent and received and not part:
            _compare(sent, received, each)
        if own_topic:
            self.alone(self.work("delete"))
        messages = sum(one.count for one in (received if part else sent or received))
        first = min(one.started_ns for one in (sent or received))
        last = max(one.finished_ns for one in (received if part else (*sent, *received)))
        seconds = (last - first) / 1e9
        sample = Sample(
            messages=messages,
            values={"messages_per_s": messages / seconds, "mb_per_s": messages * self.size / seconds / 1e6},
            cpu_s={"broker": broker_s, "producer": producer_s, "consumer": consumer_s},
            load_1m=watch.load_1m,
            other_cpu=other,
        )
        return sample, sent, received

    def _start(self, works: Sequence[Work]) -> list[Worker]:
        workers = [self.processes.worker(work) for work in works]
        for worker in workers:
            worker.wait_for("ready", READY_TIMEOUT_S)
        return workers

    @contextlib.contextmanager
    def fresh_server(self) -> Iterator[Server]:
        """Another server of the same system, with an empty data directory, during the block."""
        folder = self.directory / f"fresh-{self.tag}-{next(self._folders)}"
        folder.mkdir()
        server = ALL_SYSTEMS[self.server.system].start(self.processes, folder, self.sync_delay_ms)
        usual, self.server = self.server, server
        try:
            yield server
        finally:
            self.server = usual
            self.processes.end(server.process)

    def program(self, command: Sequence[str], name: str) -> tuple[str, Sample]:
        """Run an external load generator; return its output, and a sample without values."""
        watch = CpuWatch()
        before = cpu_seconds(self.server.process)
        printed, own_s = self.processes.run(command, name, RESULT_TIMEOUT_S)
        broker_s = cpu_seconds(self.server.process) - before
        other = watch.other_share(broker_s + own_s)
        cpu_s = {"broker": broker_s, "producer": own_s}
        return printed, Sample(self.count, {}, cpu_s, watch.load_1m, other)


def _compare(sent: Sequence[Outcome], received: Sequence[Outcome], each: int) -> None:
    total_sent = sum(one.count for one in sent)
    total_received = sum(one.count for one in received)
    if total_received != total_sent * each:
        raise CheckError(f"{total_sent} messages were sent, {total_received} arrived instead of {total_sent * each}")
    for one in received:
        # A checksum of 0 says that the order was free and every message was ticked off by the worker itself.
        if one.checksum and one.checksum != sent[0].checksum:
            raise CheckError(f"the received checksum is {one.checksum:x}, the sent one {sent[0].checksum:x}")


def latency_values(outcomes: Sequence[Outcome], kind: str, prefix: str = "") -> dict[str, float]:
    """p50, p99 and p99.9 of one kind of latency, over all workers together, in microseconds."""
    pooled = [value for one in outcomes for value in one.latencies_us[kind]]
    return {f"{prefix}p{name}_us": percentile(pooled, share) for name, share in (("50", 50), ("99", 99), ("999", 99.9))}


def simple(publish: str, consume: str) -> Callable[[Run], Sample]:
    """One producer and one consumer at the same time."""

    def repeat(run: Run) -> Sample:
        return run.flow([run.work(publish)], [run.work(consume)])[0]

    return repeat
