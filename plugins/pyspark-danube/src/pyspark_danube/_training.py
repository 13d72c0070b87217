"""Runs a session that loads what queries load, and waits until its JVM has written an archive of these classes.

``python -m pyspark_danube._training OPTIONS DIRECTORY``, started by :mod:`pyspark_danube.class_archive`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark_danube._warming import two_messages

__all__ = ["main"]

_WRITE_TIMEOUT_S: Final = 300.0


def main(options: str, directory: str) -> None:
    """Run queries of several kinds, and let the JVM end."""
    import pyspark_danube

    config = {
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(Path(directory, "local")),
        "spark.sql.warehouse.dir": str(Path(directory, "warehouse")),
    }
    spark = pyspark_danube.session("class-archive", master="local[2]", class_archive=False, config=config)
    rows = two_messages(spark)
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
