"""Streams into Delta and Iceberg tables: every row once despite repetitions, and no partial file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from danube.model.errors import FailedPreconditionError

pytestmark = pytest.mark.spark

KINDS = ["delta", "iceberg"]
SCHEMA = "n BIGINT, name STRING, raw BINARY, moment TIMESTAMP, tags MAP<STRING, STRING>"


class Lake:
    """A table of one of the kinds, and a stream into it that reads JSON files."""

    def __init__(self, spark: Any, directory: Path, kind: str) -> None:
        from pyspark_danube.pipeline._delta import DeltaSource
        from pyspark_danube.pipeline._iceberg import IcebergSource

        self.spark = spark
        self.kind = kind
        self.source = directory / "source"
        self.source.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.warehouse = directory / "warehouse"
        self.options = {"path": str(self.warehouse)}
        if kind == "iceberg":
            self.options = {"table": "lake.rows", "warehouse": str(self.warehouse)}
        spark.dataSource.register(DeltaSource if kind == "delta" else IcebergSource)
        self._files = 0

    def produce(self, numbers: range) -> None:
        self._files += 1
        rows = (
            {"n": n, "name": f"row {n}", "raw": "AAEC", "moment": "2026-01-31T12:00:00.123456Z", "tags": {"n": str(n)}}
            for n in numbers
        )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.source / f"{self._files:03}.json").write_text(text)

    def run(self, schema: str = SCHEMA, transform: Any = None, checkpoint: Path | None = None) -> None:
        frame = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.source))
        frame = transform(frame) if transform else frame
        query = (
            frame.writeStream.format(f"danube_{self.kind}")
            .options(**self.options)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def iceberg(self) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyspark_danube.pipeline._iceberg import catalog_properties

        return load_catalog("danube", **catalog_properties(str(self.warehouse), {})).load_table("lake.rows")

    def rows(self) -> pa.Table:
        if self.kind == "delta":
            return pa.table(DeltaTable(str(self.warehouse)).to_pyarrow_table())
        return self.iceberg().scan().to_arrow()

    def numbers(self) -> list[int]:
        return sorted(self.rows()["n"].to_pylist())

    def data_files(self) -> int:
        return len(list(self.warehouse.rglob("danube-*.parquet")))


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, request.param)


def test_rows_arrive_with_their_types_and_once_when_a_batch_is_repeated(lake: Lake) -> None:
    lake.produce(range(1000))
    lake.produce(range(1000, 1500))
    lake.run()
    assert lake.numbers() == list(range(1500))
    row = lake.rows().slice(0, 1).to_pylist()[0]
    assert row["raw"] == b"\x00\x01\x02"
    assert row["moment"].isoformat() == "2026-01-31T12:00:00.123456+00:00"
    assert dict(row["tags"]) == {"n": str(row["n"])}

    files = lake.data_files()
    for note in (lake.checkpoint / "commits").glob("*1*"):  # Spark never heard that its last batch was stored
        note.unlink()
    lake.produce(range(1500, 1600))
    lake.run()
    assert lake.numbers() == list(range(1600))
    assert lake.data_files() == files + 1


def test_another_checkpoint_is_another_export(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "delta")
    lake.produce(range(10))
    lake.run()
    lake.run(checkpoint=tmp_path / "other")
    assert lake.numbers() == sorted([*range(10)] * 2)


def test_files_of_a_failed_batch_are_not_in_the_table(lake: Lake) -> None:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions

    lake.produce(range(100))
    lake.run()

    def fail(frame: Any) -> Any:
        return frame.withColumn("n", functions.when(frame.n == 150, functions.raise_error("no")).otherwise(frame.n))

    lake.produce(range(100, 200))
    with pytest.raises(StreamingQueryException):
        lake.run(transform=fail)
    assert lake.numbers() == list(range(100))
    lake.run()
    assert lake.numbers() == list(range(200))


def test_a_table_with_other_columns_is_refused(lake: Lake) -> None:
    from pyspark.errors import PySparkException

    lake.produce(range(10))
    lake.run(schema="n BIGINT, name STRING")
    with pytest.raises(PySparkException, match=r"FailedPreconditionError: .*no column 'n' of type string, but n long"):
        lake.run(schema="n STRING, name STRING", checkpoint=lake.source.parent / "second")
    assert lake.numbers() == list(range(10))


def test_a_delta_table_with_partitions_is_refused(tmp_path: Path) -> None:
    from pyspark_danube.pipeline._delta import DeltaSource

    schema = pa.schema([("n", pa.int64()), ("day", pa.string())])
    DeltaTable.create(str(tmp_path), schema, partition_by=["day"])
    with pytest.raises(FailedPreconditionError, match=r"partitioned by day.*without partitions"):
        DeltaSource({"path": str(tmp_path)}).table().ensure(schema)


def test_options_are_checked(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType
    from pyspark_danube.pipeline._delta import DeltaSource
    from pyspark_danube.pipeline._iceberg import IcebergSource, catalog_properties

    from danube.model.errors import InvalidArgumentError

    schema = StructType().add("n", "long")
    with pytest.raises(InvalidArgumentError, match="storageoptions"):
        DeltaSource({"path": str(tmp_path), "storageOption": "{}"}).streamWriter(schema, False)
    with pytest.raises(InvalidArgumentError, match="needs the option 'path'"):
        DeltaSource({}).streamWriter(schema, False)
    with pytest.raises(InvalidArgumentError, match="JSON object") as refused:
        DeltaSource({"path": str(tmp_path), "storageOptions": "key=planted-secret"}).streamWriter(schema, False)
    assert "planted-secret" not in str(refused.value)
    with pytest.raises(InvalidArgumentError, match="warehouse"):
        IcebergSource({"table": "t"}).streamWriter(schema, False)
    with pytest.raises(InvalidArgumentError, match="needs a catalogue"):
        catalog_properties("s3://bucket/warehouse", {})


def test_delta_knows_which_offsets_a_file_has(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "delta")
    lake.produce(range(100, 200))
    lake.run()
    log = (lake.warehouse / "_delta_log" / f"{1:020}.json").read_text()
    (added,) = [json.loads(line)["add"] for line in log.splitlines() if '"add"' in line]
    stats = json.loads(added["stats"])
    assert stats["numRecords"] == 100
    assert (stats["minValues"], stats["maxValues"]) == ({"n": 100}, {"n": 199})


def test_two_writers_of_a_delta_table_do_not_lose_each_other(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    from pyspark_danube.pipeline._delta import DeltaSource
    from pyspark_danube.pipeline._lake import DataFile

    table: Any = DeltaSource({"path": str(tmp_path / "t")}).table()
    schema = pa.schema([("n", pa.int64())])
    table.ensure(schema)

    def file(name: str) -> DataFile:
        path, stream = table.open_file(name)
        pq.write_table(pa.table({"n": [1]}, schema), stream)
        size = stream.tell()
        stream.close()
        return DataFile(path, size, 1, "")

    assert table.commit("a", 0, [file("1.parquet")]) is True
    assert table.commit("b", 0, [file("2.parquet")]) is True
    assert table.commit("a", 0, [file("3.parquet")]) is False
    table.remove_file("3.parquet")
    table.remove_file("3.parquet")
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 2
