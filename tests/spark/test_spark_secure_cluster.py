"""Spark and a cluster with access control, TLS and the registry, whose topics move and whose owners are killed.

The driver is a process of its own, since certificates and tokens come from its environment. It tells before each commit
of its stream, and waits for a word, so that what happens then happens in the middle of the commit.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from brokers import BrokerProcess
from cluster_processes import report
from sparks import TEST_CONFIG, java_options, nothing_staged, require_spark
from typer.testing import CliRunner

from danube.cli.app import app
from danube.client.sync import Client, connect
from danube.schema.typed import Avro, Json, Subject

SEED: Final = 20_261_128
ROWS: Final = 1_000
PER_BATCH: Final = 250
BATCHES: Final = ROWS // PER_BATCH
PARTITIONS: Final = 3
IN, OUT, IN_JSON, OUT_JSON = "/shop/in", "/shop/out", "/shop/in-json", "/shop/out-json"
MOVED_AT: Final = 1
"""Number of the micro-batch during whose commit all partitions move."""
KILLED_AT: Final = 2
"""Number of that during whose commit the owner of the first partition is killed: the commit needs it."""

DRIVER = """
import json, sys, time
from pathlib import Path
import pyspark_danube
from pyspark_danube._source import DefaultSource
from pyspark_danube._writer import StreamWriter

servers, directory, config, per_batch = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]


class Telling(StreamWriter):
    def commit(self, messages, batchId):
        (directory / f"at-{batchId}").touch()
        while not (directory / f"go-{batchId}").exists():
            time.sleep(0.002)
        began = time.time()
        super().commit(messages, batchId)
        times = json.dumps([began, time.time()])
        (directory / f"new-{batchId}").write_text(times)
        (directory / f"new-{batchId}").rename(directory / f"done-{batchId}")


class TellingSource(DefaultSource):
    @classmethod
    def name(cls):
        return "telling"

    def streamWriter(self, schema, overwrite):
        made = super().streamWriter(schema, overwrite)
        return Telling(made._options, made._encoding)


spark = pyspark_danube.session("secure", master="local[2]", frozen_daemon=True, fast_checkpoints=True, config=config)
spark.dataSource.register(pyspark_danube.DefaultSource)
spark.dataSource.register(TellingSource)




def source(topic, **options):
    return spark.read.format("danube").options(servers=servers, topic=topic, payloadFormat="registry", **options).load()


def refused(action):
    try:
        action()
    except Exception as error:
        return [line for line in str(error).splitlines() if "PermissionDeniedError: " in line] or [str(error)]
    return ["nothing was refused"]


def write(frame, topic, **options):
    frame.write.format("danube").mode("append").options(servers=servers, topic=topic, **options).save()


def say(**what):
    print(json.dumps(what), flush=True)


plain = spark.sql("SELECT 'x' AS payload")
valued = spark.sql("SELECT struct(1L AS id) AS value")
say(
    reading=refused(lambda: source("/shop/secret", schemaSubject="/shop/in-value").collect()),
    writing=refused(lambda: write(plain, "/shop/secret")),
    registering=refused(lambda: write(valued, "/shop/out", payloadFormat="avro", schemaSubject="secret")),
)
found = source("/shop/in").selectExpr("partition", "value.*").collect()
say(rows=sorted(row.id for row in found), partitions=len({row.partition for row in found}))

frame = spark.readStream.format("danube").options(
    servers=servers, topic="/shop/in", payloadFormat="registry", startingOffsets="earliest",
    maxOffsetsPerTrigger=per_batch,
).load()
query = (
    frame.selectExpr("key", "value")
    .writeStream.format("telling")
    .options(servers=servers, topic="/shop/out", payloadFormat="avro", checkpointLocation=str(directory / "state"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
say(batches=query.lastProgress.batchId + 1)
framed = source("/shop/in-json").selectExpr("CAST(value.id % 7 AS STRING) AS key", "value")
write(framed, "/shop/out-json", payloadFormat="json")
say(rows=sorted(row.id for row in source("/shop/out-json").selectExpr("value.*").collect()))
say(rows=sorted(row.id for row in source("/shop/out").selectExpr("value.*").collect()))
"""


class Order(msgspec.Struct):
    id: int
    user: str = ""


class Secured:
    """Three brokers with TLS and access control, and the administrator's client."""

    def __init__(self, directory: Path) -> None:
        self.security = directory / "danube-security"
        self.directory = directory
        self.brokers = [BrokerProcess(directory / f"b{n}", stderr=directory / f"b{n}.log") for n in (1, 2, 3)]
        self.ca = str(self.security / "ca.pem")

    def init(self) -> None:
        peers = ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)
        for number, broker in enumerate(self.brokers, 1):
            config = self.directory / "danube.toml"
            options = ["--directory", str(self.security), "--data-dir", str(self.brokers[0].data_directory)]
            options += ["--config", str(config), "--host", "127.0.0.1"]
            if number > 1:
                config = self.security / f"b{number}" / "danube.toml"
                options += ["--broker", f"b{number}"]
            done = CliRunner().invoke(
                app, ["security", "init", *options], env={"XDG_CONFIG_HOME": str(self.directory / "home")}
            )
            assert done.exit_code == 0, done.output
            text = config.read_text()
            for name in ("cluster.secret", "server.pem", "server.key", "ca.pem"):
                text = text.replace(f'"{name}"', f'"{config.parent / name}"')
            config.write_text(text)
            address = f"127.0.0.1:{broker.port}"
            broker.options = ("--config", str(config), "--peers", peers, "--advertise", address)

    @contextmanager
    def running(self) -> Iterator[Client]:
        with ExitStack() as stack:
            for broker in self.brokers:
                broker.launch()
                stack.callback(broker.kill)
            for broker in self.brokers:
                assert broker.wait_ready(), self.logs()
            token = (self.security / "admin.token").read_text().strip()
            yield stack.enter_context(connect(self.servers, ca=self.ca, token=token))

    @property
    def servers(self) -> str:
        """The URL with two of the brokers."""
        return "danube+tls://" + ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers[:2])

    def at(self, address: str) -> BrokerProcess:
        return next(broker for broker in self.brokers if address.endswith(f":{broker.port}"))

    def logs(self) -> str:
        return "\n".join(f"--- b{n}\n" + (self.directory / f"b{n}.log").read_text()[-3000:] for n in (1, 2, 3))


def prepare(client: Client, token: Path) -> None:
    client.admin.create_namespace("shop")
    for topic in (IN, OUT, IN_JSON, OUT_JSON):
        client.admin.create_topic(topic, partitions=PARTITIONS)
    client.admin.create_topic("/shop/secret")
    orders = [Order(number, f"u{number % 50}") for number in range(ROWS)]
    keys = [order.user for order in orders]
    with client.producer(IN, schema=Avro(Order)) as producer:
        producer.send_many(orders, keys=keys)
    with client.producer(IN_JSON, schema=Json(Order)) as producer:
        producer.send_many(orders[:300], keys=keys[:300])
    for topic, roles in ((IN, ["consumer"]), (IN_JSON, ["consumer"]), (OUT, ["producer", "consumer"])):
        client.security.grant("service:spark", roles, topic)
    client.security.grant("service:spark", ["producer", "consumer"], OUT_JSON)
    for topic in (OUT, OUT_JSON):
        client.security.grant("service:spark", ["schema-admin"], f"schema:{topic}-value")
    for topic in (IN, IN_JSON):
        client.security.grant("service:spark", ["schema-admin"], f"schema:{topic}-value")
    token.write_text(client.security.create_key("service:spark").text)


def wait_for(condition: Callable[[], bool], driver: subprocess.Popen[str], timeout_s: float = 90.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < give_up_at
        time.sleep(0.002)


def ids(client: Client, topic: str) -> list[int]:
    with client.reader(topic, start="earliest", schema=Subject(f"{topic}-value")) as reader:
        return sorted(value["id"] for batch in reader.batches(until_caught_up=True) for value in batch.values())


def move_everything(client: Client, cluster: Secured, topic: str, chance: random.Random) -> None:
    """Order each partition of a topic to move to another broker than its owner."""
    found = client.admin.lookup_topic(topic)
    for name, owner in zip(found.topics, found.owners, strict=True):
        others = [f"b{n}" for n, broker in enumerate(cluster.brokers, 1) if broker is not cluster.at(owner.address)]
        client.admin.move_topic(name, chance.choice(others))


@pytest.mark.extended
def test_spark_follows_topics_of_a_secure_cluster(tmp_path: Path) -> None:
    require_spark()
    chance = random.Random(SEED)
    cluster = Secured(tmp_path)
    cluster.init()
    token = tmp_path / "spark.token"
    log = tmp_path / "driver.log"
    with cluster.running() as client:
        prepare(client, token)
        assert len({owner.address for owner in client.admin.lookup_topic(OUT).owners}) == 3
        config = json.dumps(
            TEST_CONFIG
            | {"spark.driver.extraJavaOptions": java_options(tmp_path), "spark.ui.showConsoleProgress": "false"}
        )
        with log.open("w") as errors:
            driver = subprocess.Popen(
                [sys.executable, "-c", DRIVER, cluster.servers, str(tmp_path), config, str(PER_BATCH)],
                env=os.environ | {"DANUBE_CA": cluster.ca, "DANUBE_TOKEN_FILE": str(token)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            said = Said(driver)
            denied = said.next()
            assert said.next() == {"rows": list(range(ROWS)), "partitions": PARTITIONS}
            for number in range(BATCHES):
                wait_for((tmp_path / f"at-{number}").exists, driver)
                if number == MOVED_AT:
                    move_everything(client, cluster, OUT, chance)
                victim = cluster.at(client.admin.lookup_topic(OUT).owners[0].address)
                (tmp_path / f"go-{number}").touch()
                if number == KILLED_AT:
                    time.sleep(chance.uniform(0.0, 0.02))
                    victim.kill()
                    killed_at = time.time()
                    victim.start()
                wait_for((tmp_path / f"done-{number}").exists, driver)
                began, ended = json.loads((tmp_path / f"done-{number}").read_text())
                report(f"batch {number} was committed in {ended - began:.2f} s")
                if number == KILLED_AT:
                    assert began < killed_at < ended, "the broker was not killed during the commit"
            assert said.next()["batches"] == BATCHES
            assert said.next() == {"rows": list(range(300))}
            assert said.next() == {"rows": list(range(ROWS))}
            assert driver.wait(30) == 0
            for what, right in (
                ("reading", "Consume on /shop/secret"),
                ("writing", "Produce on /shop/secret"),
                ("registering", "ManageSchema on schema secret"),
            ):
                assert all("service:spark may not call" in line for line in denied[what]), denied
                assert all(f": requires {right};" in line for line in denied[what]), denied
            assert ids(client, OUT) == list(range(ROWS))
            assert ids(client, OUT_JSON) == list(range(300))
            assert nothing_staged(client)
        except BaseException as error:
            error.add_note(log.read_text()[-6000:])
            error.add_note(cluster.logs())
            raise
        finally:
            driver.kill()
            driver.wait()
            assert driver.stdout is not None
            driver.stdout.close()


class Said:
    """What the driver prints, a line at a time."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        self._driver = driver

    def next(self) -> Any:
        assert self._driver.stdout is not None
        line = self._driver.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)
