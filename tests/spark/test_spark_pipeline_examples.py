"""The examples in docs/examples, and a job on the command line that is killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brokers import BrokerProcess
from sparks import java_options, require_spark

from danube.client.sync import Client

require_spark()

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TIMEOUT_S = 240.0


def environment(broker: BrokerProcess, **more: str) -> dict[str, str]:
    """What a process needs that brings a Spark of its own."""
    return os.environ | {
        "DANUBE_URL": broker.url,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "NO_COLOR": "1",
        **more,
    }


def count(spark: SparkSession, broker: BrokerProcess, topic: str) -> int:
    return spark.read.format("danube").options(servers=broker.url, topic=topic).load().count()


@pytest.mark.extended
def test_the_declarative_pipeline(spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    project = tmp_path / "orders_pipeline"
    for source in sorted((EXAMPLES / "orders_pipeline").rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            target = project / source.relative_to(EXAMPLES / "orders_pipeline")
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            target.write_text(text.replace("/tmp/danube-orders-pipeline", str(tmp_path / "lake")))
    (tmp_path / "lake").mkdir()
    with (project / "conf" / "spark-defaults.conf").open("a") as defaults:
        defaults.write(f"spark.driver.extraJavaOptions {java_options(tmp_path)}\n")
    for topic in ("orders", "incoming", "large-orders", "orders-again"):
        client.admin.create_topic(f"/default/{topic}")
    with client.producer("/default/orders") as producer:
        for number in range(100):
            user = ("ann", "bob")[number % 2]
            order = {"id": number, "user": user, "total": number * 2.0}
            producer.send(json.dumps(order).encode(), key=user)

    command = [str(Path(sys.executable).parent / "spark-pipelines"), "--remote", "local[2]", "run"]
    done = subprocess.run(
        command,
        cwd=project,
        env=environment(broker, SPARK_CONF_DIR=str(project / "conf")),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (table,) = (tmp_path / "lake" / "warehouse").rglob("orders")
    rows = spark.read.parquet(str(table)).toPandas()
    assert sorted(rows.id) == list(range(100))
    assert sorted(rows.offset) == list(range(100))
    assert count(spark, broker, "/default/incoming") == 3
    assert count(spark, broker, "/default/large-orders") == 50
    assert count(spark, broker, "/default/orders-again") == 50


@pytest.mark.slow
def test_the_jobs_in_a_script_may_be_run_twice(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("pipeline_jobs", EXAMPLES / "pipeline_jobs.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for _ in range(2):
        example.jobs(spark, broker.url, tmp_path)
    assert count(spark, broker, "/default/shop-orders") == 1000
    assert count(spark, broker, "/default/shop-totals") == 933
    assert count(spark, broker, "/default/shop-orders-again") == 100


@pytest.mark.extended
def test_an_export_that_is_killed_goes_on_where_it_was(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    topic, target = "/default/killed-export", str(tmp_path / "table")
    client.admin.create_topic(topic, partitions=2)
    command = [sys.executable, "-m", "danube", "pipeline", "export", topic, "--to", target, "--every", "0.1s"]
    command += [
        "--master",
        "local[2]",
        "--columns",
        "partition,offset,payload",
        "--option",
        "maxOffsetsPerTrigger=1000",
    ]
    sent = 10_000
    with client.producer(topic) as producer:
        for start in range(0, sent, 500):
            producer.send_many([b"%d" % n for n in range(start, start + 500)])
    log = tmp_path / "log"
    with log.open("wb") as errors:
        # In a process group of its own, so that Spark's Java and its workers die with it.
        job = subprocess.Popen(command, env=environment(broker), stdout=errors, stderr=errors, start_new_session=True)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while b" rows, " not in log.read_bytes():
                assert job.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert DeltaTable(target).to_pyarrow_table().num_rows > 0
    done = subprocess.run(
        [*command, "--once", "-o", "json"],
        env=environment(broker),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["lag"] == 0
    assert sum(summary["offsets"][topic].values()) == sent
    rows = DeltaTable(target).to_pandas()
    assert sorted(int(payload) for payload in rows.payload) == list(range(sent))
    assert not rows.duplicated(["partition", "offset"]).any()
