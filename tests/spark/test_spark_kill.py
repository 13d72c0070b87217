"""Drivers, executors and tasks that die: every row is there, once.

A driver is a Python process with a JVM. Starting one takes longer than what is to be seen, so while one of them works
and is killed, the next one already warms up and waits for its turn. Each of them runs two queries side by side: a topic
to Parquet files, and the same topic to another topic.

Speculation needs executors on several hosts, so there is none here: what comes of it, an attempt too many, is in
``test_spark_sink``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from brokers import BrokerProcess
from sparks import TEST_CONFIG, java_options, nothing_staged, publish, require_spark, run_python

from danube.client.sync import Client, connect
from danube.model.batch import open_records, read_header
from danube.model.limits import Limits

SEED = 20_261_121
PER_ROUND = 300
PER_BATCH = 60

DRIVER = """
import json, sys
from pathlib import Path
import pyspark_danube

broker, directory, config, last = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4] == "last"
fast = sys.argv[6] == "fast"
spark = pyspark_danube.session(
    "killed", master="local[2]", frozen_daemon=True, fast_checkpoints=fast, config=config
)
spark.dataSource.register(pyspark_danube.DefaultSource)
spark.range(2).mapInArrow(lambda batches: batches, "id BIGINT").collect()
print("warm", flush=True)
sys.stdin.readline()

frame = spark.readStream.format("danube").options(servers=broker, topic="/default/in", startingOffsets="earliest")
frame = frame.option("maxOffsetsPerTrigger", sys.argv[5]).load()
to_files = frame.writeStream.format("parquet").option("path", str(directory / "table"))
to_topic = frame.selectExpr("key", "payload").writeStream.format("danube")
to_topic = to_topic.options(servers=broker, topic="/default/out")
queries = []
for name, writer in (("files", to_files), ("topic", to_topic)):
    writer = writer.option("checkpointLocation", str(directory / name))
    writer = writer.trigger(availableNow=True) if last else writer.trigger(processingTime="0 seconds")
    queries.append(writer.start())
for query in queries:
    query.awaitTermination()
"""


class Driver:
    """A driver that waits for its turn."""

    def __init__(self, broker: BrokerProcess, directory: Path, config: str, *, last: bool, fast: bool = False) -> None:
        limit = 1_000 if last else PER_BATCH
        arguments = [broker.url, str(directory), config, "last" if last else "", str(limit), "fast" if fast else ""]
        self._log = (directory / f"driver-{time.monotonic_ns()}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def go(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        assert self.process.stdout.readline() == "warm\n", self.said()
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """SIGKILL driver and JVM at the same moment; what they have started ends by itself, soon."""
        if self.process.poll() is not None:
            self.close()
            return
        everything = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.close()
        _, alive = psutil.wait_procs(everything, timeout=30)
        for process in alive:
            process.kill()
        assert alive == []

    def close(self) -> None:
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self._log.close()


def contents(client: Client, topic: str) -> list[bytes]:
    found = []
    for state in client.logs.states([topic]):
        with client.logs.read(state.name, state.start_offset, state.end_offset) as batches:
            for batch in batches:
                records = open_records(batch.part, read_header(batch.part), Limits().max_batch_bytes)
                found += [record if isinstance(record, bytes) else record.payload for record in records]
    return sorted(found)


OWN_DEATHS = ("failed to connect back",)
"""How a driver may die by itself: Spark gives a Python process ten seconds to start; a busy machine takes longer."""


def died(driver: Driver) -> bool:
    """Return whether a driver has ended by itself: one more way to die, and nothing that the source could help."""
    code = driver.process.poll()
    said = driver.said() if code else ""
    assert not code or any(reason in said for reason in OWN_DEATHS), said
    return code is not None


def wait_for(condition: Callable[[], bool], driver: Driver, timeout_s: float = 120.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition() and not died(driver):
        assert time.monotonic() < give_up_at, driver.said()
        time.sleep(0.01)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(6, marks=pytest.mark.extended),
        pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_rows_are_there_once_however_often_the_driver_is_killed(tmp_path: Path, rounds: int) -> None:
    require_spark()
    chance = random.Random(SEED)
    config = json.dumps(TEST_CONFIG | {"spark.driver.extraJavaOptions": java_options(tmp_path)})
    batches = dict.fromkeys(("files", "topic"), 0)

    def planned(name: str) -> int:
        """Return how many batches a query has decided on."""
        directory = tmp_path / name / "offsets"
        return sum(1 for path in directory.glob("[0-9]*")) if directory.exists() else 0

    published = unplanned = 0
    waiting: list[Driver] = []
    with BrokerProcess(tmp_path / "data", "--storage", f"disk://{tmp_path / 'history'}") as broker:
        try:
            with connect(broker.url) as client:
                client.admin.create_topic("/default/in", partitions=2)
                client.admin.create_topic("/default/out", partitions=2)
                waiting.append(Driver(broker, tmp_path, config, last=False))
                for number in range(rounds):
                    batch = [b"%d" % payload for payload in range(published, published + PER_ROUND)]
                    publish(client, "/default/in", batch, keys=[f"k{len(p)}-{p[-1]}" for p in batch])
                    published += PER_ROUND
                    # The ways to write checkpoints take turns: each goes on where the other one was killed.
                    last_one = number == rounds - 1
                    waiting.append(Driver(broker, tmp_path, config, last=last_one, fast=number % 2 == 0))
                    driver = waiting[0]
                    driver.go()
                    for name in batches:
                        before = batches[name] = planned(name)
                        wait_for(lambda name=name, before=before: planned(name) > before, driver)  # type: ignore[misc]
                    time.sleep(chance.uniform(0.0, 1.0))
                    unplanned += driver.process.poll() is not None
                    driver.kill()
                    waiting.pop(0)
                while True:
                    last = waiting[0]
                    last.go()
                    if last.process.wait(300) == 0 or not died(last):
                        break
                    waiting.append(Driver(broker, tmp_path, config, last=True))
                    waiting.pop(0).close()

                expected = sorted(b"%d" % payload for payload in range(published))
                assert contents(client, "/default/out") == expected
                assert nothing_staged(client)
        finally:
            for driver in waiting:
                driver.kill()
    log = sorted((tmp_path / "table" / "_spark_metadata").iterdir())
    assert log
    assert written_files(tmp_path) == expected
    assert unplanned < rounds // 2
    assert min(planned("files"), planned("topic")) >= rounds - unplanned


def written_files(directory: Path) -> list[bytes]:
    """Return the payloads in the files that Spark's sink has committed; those of killed tasks are not in the table."""
    files: dict[str, None] = {}
    for entry in (directory / "table" / "_spark_metadata").glob("[0-9]*"):
        for line in entry.read_text().splitlines()[1:]:
            files[json.loads(line)["path"].removeprefix("file://")] = None
    return sorted(payload for file in files for payload in pq.read_table(file)["payload"].to_pylist())


CLUSTER = """
import json, os, sys, time
from pathlib import Path
import pyspark_danube
from pyspark import TaskContext

broker, directory, config = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
spark = pyspark_danube.session("cluster", master="local-cluster[2,1,1024]", config=config)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def trouble(kind, after):
    def rows(batches):
        context = TaskContext.get()
        (directory / f"{kind}-{context.partitionId()}-{context.attemptNumber()}").touch()
        first = context.partitionId() == 0 and context.attemptNumber() == 0
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if first and seen >= after:
                first = False
                if kind == "task":
                    raise RuntimeError("planted")
                if kind == "executor":
                    # worker, daemon, executor
                    os.kill(parent_of(os.getppid()), 9)
                    time.sleep(60)
    return rows


frame = spark.read.format("danube").options(servers=broker, topic="/default/in", minPartitions="3").load()
frame = frame.select("key", "payload")
for number, kind in enumerate(["task", "executor"]):
    writer = frame.mapInArrow(trouble(kind, 1_000), frame.schema).write.format("danube").mode("append")
    writer.options(servers=broker, topic=f"/default/out-{kind}", producerId="cluster", batchId=str(number)).save()
    print(kind, flush=True)
spark.stop()
"""


@pytest.mark.extended
def test_rows_are_there_once_when_tasks_and_executors_die(tmp_path: Path) -> None:
    require_spark()
    config = TEST_CONFIG | {
        "spark.driver.extraJavaOptions": java_options(tmp_path),
        "spark.executor.extraJavaOptions": java_options(tmp_path),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    }
    with (
        BrokerProcess(tmp_path / "data", "--storage", f"disk://{tmp_path / 'history'}") as broker,
        connect(broker.url) as client,
    ):
        expected = sorted(b"%d" % number for number in range(6_000))
        publish(client, "/default/in", expected, keys=[f"k{number % 100}" for number in range(6_000)])
        client.admin.seal_topic("/default/in")
        for kind in ("task", "executor"):
            client.admin.create_topic(f"/default/out-{kind}", partitions=2)
        said = run_python(CLUSTER, broker.url, str(tmp_path), json.dumps(config), timeout_s=300)
        assert said.split() == ["task", "executor"]
        for kind in ("task", "executor"):
            assert contents(client, f"/default/out-{kind}") == expected, kind
            # It did happen: a second attempt was made.
            assert (tmp_path / f"{kind}-0-1").exists(), kind
        assert nothing_staged(client)
