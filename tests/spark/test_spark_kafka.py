"""An import from a real Kafka: every record is there once, in order, while Spark's driver and the broker are killed.

The driver that does the work is killed with its JVM, while the next one already warms up. It runs the example of the
documentation, and the last one is the example as a script.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from brokers import BrokerProcess
from kafkas import SPARK, KafkaProcess, kafka_connector, require_kafka
from sparks import CHECKOUT, TEST_CONFIG, java_options, nothing_staged, other_spark, require_spark

from danube.client.sync import Client, connect
from danube.model.batch import Record, open_records, read_header
from danube.model.limits import Limits

EXAMPLE = CHECKOUT / "docs" / "examples" / "kafka_import.py"
PARTITIONS = 3
SOURCE = "flights"
TOPIC = "/default/imported"
AT_ONCE = 150
MOST = 8_000
"""Records that are produced at most, however long a run takes."""
SEED = 20_261_128

DRIVER = """
import json, runpy, sys
from pathlib import Path

given = json.loads(sys.argv[1])
example = runpy.run_path(given.pop("example"), run_name="example")
spark = example["start_session"](given.pop("config"))
spark.range(2).mapInArrow(lambda batches: batches, "id BIGINT").collect()
print("warm", flush=True)
sys.stdin.readline()
given["checkpoint"] = Path(given["checkpoint"])
example["start_import"](spark, **given).awaitTermination()
"""


class Sent(NamedTuple):
    """A record of Kafka, as the message that it becomes."""

    payload: bytes
    key: bytes | None
    attributes: dict[str, str] | None
    time_us: int


class Source(threading.Thread):
    """Produces records with all that Kafka has, to each partition in turn, until it is stopped."""

    def __init__(self, kafka: KafkaProcess, seed: int) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self.sent: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self.refused: list[str] = []
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "log_level": 0})

    def produce(self, count: int) -> None:
        """Produce records, and wait for them."""
        for _ in range(count):
            self._one()
        assert self._producer.flush(30) == 0
        assert self.refused == []

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            if sum(map(len, self.sent)) < MOST:
                self.produce(self._chance.randint(10, 40))

    def stop(self) -> int:
        """End, and return how many records there are."""
        self._stopped.set()
        self.join(60)
        assert not self.is_alive()
        assert self.refused == []
        return sum(map(len, self.sent))

    def _one(self) -> None:
        chance = self._chance
        partition = chance.randrange(PARTITIONS)
        number = len(self.sent[partition])
        value = None if chance.random() < 0.02 else json.dumps({"partition": partition, "number": number}).encode()
        key = chance.choice([None, b"\xff\x00", b"N%d" % chance.randrange(40)])
        headers: list[tuple[str, Any]] = []
        attributes = {}
        if chance.random() < 0.5:
            headers = [("carrier", b"old"), ("number", b"%d" % number), ("carrier", "Dänemark".encode())]
            attributes = {"number": str(number), "carrier": "Dänemark"}
            if chance.random() < 0.5:
                headers += [("trace", b"\xff\xfe\x00"), ("empty", b""), ("none", None)]
                attributes |= {"trace.base64": base64.b64encode(b"\xff\xfe\x00").decode(), "empty": "", "none": ""}
        if value is None:
            attributes["kafka.tombstone"] = "true"
        # Times out of order, far from now.
        time_ms = 1_357_000_000_000 + chance.randrange(10**9)
        self.sent[partition].append(Sent(value or b"", key, attributes or None, time_ms * 1000))
        self._producer.produce(
            SOURCE, value, key, partition=partition, timestamp=time_ms, headers=headers, on_delivery=self._delivered
        )
        self._producer.poll(0)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.refused.append(str(error))


class Driver:
    """The import in a process group of its own."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self._log = (directory / f"driver-{time.monotonic_ns()}.log").open("w+")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(other_spark(SPARK)), os.environ["PYTHONPATH"]])}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env=environment,
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

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < give_up_at, self.said()
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL driver and JVM at the same moment; what they have started ends by itself, soon."""
        everything: list[psutil.Process] = []
        if self.process.poll() is None:
            everything = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream is not None
            stream.close()
        _, alive = psutil.wait_procs(everything, timeout=30)
        for process in alive:
            process.kill()
        assert alive == []


def contents(client: Client) -> list[list[Sent]]:
    """Return what is in each partition of the topic, in order."""
    found: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
    for state in client.logs.states([TOPIC]):
        messages = found[int(state.name.rpartition("-")[2])]
        with client.logs.read(state.name, state.start_offset, state.end_offset) as batches:
            for batch in batches:
                header = read_header(batch.part)
                for record in open_records(batch.part, header, Limits().max_batch_bytes):
                    assert isinstance(record, Record)
                    time_us = header.publish_time_us + record.publish_delta_us
                    messages.append(Sent(record.payload, record.key, record.attributes, time_us))
    return found


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaProcess]:
    require_spark()
    require_kafka()
    from confluent_kafka.admin import AdminClient, NewTopic

    with KafkaProcess(tmp_path / "kafka") as process:
        admin = AdminClient({"bootstrap.servers": process.address, "log_level": 0})
        admin.create_topics([NewTopic(SOURCE, PARTITIONS, 1)])[SOURCE].result(60)
        yield process


def run_import(kafka: KafkaProcess, directory: Path, *, kills: int, seed: int) -> None:
    """Import while records come, kill a driver or a driver and the broker as often, and compare in the end."""
    chance = random.Random(seed)
    checkpoint = directory / "checkpoint"
    config = TEST_CONFIG | {
        "spark.driver.extraJavaOptions": java_options(directory),
        "spark.jars": kafka_connector(),
    }

    def committed() -> int:
        return sum(1 for _ in (checkpoint / "commits").glob("[0-9]*"))

    def planned() -> int:
        return sum(1 for _ in (checkpoint / "offsets").glob("[0-9]*"))

    def driver() -> Driver:
        given = {"example": str(EXAMPLE), "config": config, "kafka": kafka.address, "source": SOURCE, "topic": TOPIC}
        given |= {"url": broker.url, "checkpoint": str(checkpoint), "at_once": AT_ONCE, "once": False}
        return Driver(directory, ["-c", DRIVER, json.dumps(given)])

    source = Source(kafka, seed)
    drivers: list[Driver] = []
    unfinished = 0
    with BrokerProcess(directory / "data", "--storage", f"disk://{directory / 'history'}") as broker:
        try:
            with connect(broker.url) as client:
                client.admin.create_topic(TOPIC, partitions=PARTITIONS)
                drivers.append(driver())
                source.produce(500)
                source.start()
                for round_number in range(kills):
                    drivers.append(driver())
                    drivers[0].go()
                    before = planned()
                    drivers[0].wait_for(lambda before=before: planned() > before)  # type: ignore[misc]
                    if round_number % 2:  # the driver goes on when the broker is back
                        time.sleep(chance.uniform(0.0, 0.5))
                        broker.kill()
                        broker.start()
                        done = committed()
                        drivers[0].wait_for(lambda done=done: committed() > done)  # type: ignore[misc]
                    time.sleep(chance.uniform(0.0, 0.6))
                    drivers.pop(0).kill()
                    unfinished += planned() > committed()
                total = source.stop()
                drivers.pop().kill()
                arguments = ["--kafka", kafka.address, "--from", SOURCE, "--url", broker.url, "--to", TOPIC]
                arguments += ["--partitions", str(PARTITIONS), "--checkpoint", str(checkpoint), "--once"]
                arguments += [f"--spark={name}={value}" for name, value in config.items()]
                drivers.append(Driver(directory, [str(EXAMPLE), *arguments]))
                assert drivers[0].process.wait(240) == 0, drivers[0].said()
                found = contents(client)
                assert sum(map(len, found)) == total
                assert found == source.sent
                assert nothing_staged(client)
        finally:
            if source.is_alive():
                source.stop()
            for each in drivers:
                each.kill()
    assert total > 500 + 50 * kills
    assert planned() >= kills
    assert unfinished, "no driver was killed in the middle of a micro-batch; kill them sooner"


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(400)  # the first of a machine installs Spark 4.0 and Kafka
def test_records_of_kafka_are_there_once_whatever_is_killed(kafka: KafkaProcess, tmp_path: Path) -> None:
    run_import(kafka, tmp_path, kills=4, seed=SEED)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_records_of_kafka_are_there_once_after_many_kills(kafka: KafkaProcess, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    run_import(kafka, tmp_path, kills=24, seed=seed)


BATCH = """
import json, sys
import pyspark_danube

kafka, url, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = pyspark_danube.session("kafka-batch", master="local[2]", config=config)
options = {"kafka.bootstrap.servers": kafka, "subscribe": "flights", "includeHeaders": "true", "minPartitions": "7"}
rows = spark.read.format("kafka").options(**options).load()
for _ in range(2):  # the second time nothing is stored
    writer = pyspark_danube.kafka_messages(rows).write.format("danube").mode("append")
    writer.options(servers=url, topic="/default/imported", producerId="kafka", batchId="1").save()
by_key = pyspark_danube.kafka_messages(rows.drop("headers"), keep_partitions=False)
assert "partition" not in by_key.columns, by_key.columns
print(by_key.count())
try:
    pyspark_danube.kafka_messages(spark.range(1))
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(400)  # the first of a machine installs Spark 4.0 and Kafka
def test_a_batch_of_kafka_is_imported_once_and_in_order(kafka: KafkaProcess, tmp_path: Path) -> None:
    source = Source(kafka, SEED)
    source.produce(3_000)
    config = TEST_CONFIG | {"spark.driver.extraJavaOptions": java_options(tmp_path), "spark.jars": kafka_connector()}
    with BrokerProcess(tmp_path / "data") as broker, connect(broker.url) as client:
        client.admin.create_topic(TOPIC, partitions=PARTITIONS)
        driver = Driver(tmp_path, ["-c", BATCH, kafka.address, broker.url, json.dumps(config)])
        try:
            said, _ = driver.process.communicate(timeout=240)
            assert driver.process.returncode == 0, driver.said()
        finally:
            driver.kill()
        counted, error = said.splitlines()
        assert counted == "3000"
        assert error == (
            "these rows have no column 'key', so they are not what format('kafka') loads; pass those, and select or"
            " filter afterwards"
        )
        assert contents(client) == source.sent
