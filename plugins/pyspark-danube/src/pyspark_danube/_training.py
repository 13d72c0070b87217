"""Runs a session that loads what queries load, and waits until its JVM has written an archive of these classes.

``python -m pyspark_danube._training OPTIONS DIRECTORY``, started by :mod:`pyspark_danube.class_archive`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["main"]

_WRITE_TIMEOUT_S: Final = 300.0


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from pyspark_danube._columns import SCHEMA
        from pyspark_danube._spark_apis import to_arrow_schema

        row = {"topic": "/default/t", "partition": 0, "offset": partition.value, "publish_time": 0, "payload": b"1"}
        yield pa.RecordBatch.from_pylist([row | {"schema_id": 0, "schema_version": 0}], to_arrow_schema(SCHEMA))


class _Source(DataSource):
    """Two messages, without a broker."""

    @classmethod
    def name(cls) -> str:
        return "danube_training"

    def schema(self) -> StructType:
        from pyspark_danube._columns import SCHEMA

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()


def main(options: str, directory: str) -> None:
    """Run queries of several kinds, and let the JVM end."""
    import pyspark_danube

    config = {
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(Path(directory, "local")),
        "spark.sql.warehouse.dir": str(Path(directory, "warehouse")),
    }
    spark = pyspark_danube.session("class-archive", master="local[2]", class_archive=False, config=config)
    from pyspark_danube._training import _Source as Source  # by its real name: workers import it

    spark.dataSource.register(Source)
    rows = spark.read.format(Source.name()).load()
    rows.limit(1).collect()
    rows.toArrow()
    rows.groupBy("partition").count().orderBy("partition").collect()
    rows.write.format("noop").mode("overwrite").save()
    rows.createOrReplaceTempView("messages")
    spark.sql("SELECT max(offset), sum(length(payload)) FROM messages WHERE key IS NULL").collect()
    rows.write.parquet(str(Path(directory, "rows")))
    spark.read.parquet(str(Path(directory, "rows"))).selectExpr("cast(payload AS string)").collect()
    stream = spark.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
    stream.option("checkpointLocation", str(Path(directory, "checkpoint"))).start().awaitTermination(60)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    jvm = gateway.proc
    gateway.shutdown()
    jvm.stdin.close()  # it ends then, and writes the archive
    jvm.wait(_WRITE_TIMEOUT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
