"""A query of two messages that are in no topic: it needs no broker, and loads what real queries need.

The first query of a session starts Spark's Python daemons, imports the client in their workers, and lets Java load a
few thousand classes. :func:`warm_up` runs this query for :func:`pyspark_danube.session`, and the class archive is made
of what it loads (:mod:`pyspark_danube._training`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OPTION", "WarmUpReader", "two_messages", "warm_up"]

logger = logging.getLogger("pyspark_danube")

OPTION: Final = "_warmUp"
"""The option of the source that makes it read these two messages; not for users."""


class WarmUpReader(DataSourceReader):
    """Reads the two messages, one in each task."""

    def partitions(self) -> list[InputPartition]:
        """Return two tasks. This process has then imported what plans real queries."""
        import danube.client.sync  # noqa: F401
        import pyspark_danube._batch  # noqa: F401

        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a message. This process has then imported what reads topics."""
        import pyarrow as pa

        import danube.client.sync  # noqa: F401
        import pyspark_danube._reading  # noqa: F401
        from pyspark_danube._columns import SCHEMA
        from pyspark_danube._spark_apis import to_arrow_schema

        row = {"topic": "/default/t", "partition": 0, "offset": partition.value, "publish_time": 0, "payload": b"1"}
        yield pa.RecordBatch.from_pylist([row | {"schema_id": 0, "schema_version": 0}], to_arrow_schema(SCHEMA))


def two_messages(spark: SparkSession) -> DataFrame:
    """Return the two messages as any query of a topic would return them."""
    return spark.read.format("danube").option(OPTION, "true").load()


def warm_up(spark: SparkSession) -> None:
    """Run the query, and wait for it. A failure is logged: real queries then say what is wrong."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    began = time.monotonic()
    try:
        two_messages(spark).limit(1).collect()
    except (Py4JError, PySparkException) as error:
        reason = str(error).partition("\n")[0]
        logger.warning("the session was not warmed up, so its first query takes longer: %s", reason)
    else:
        logger.info("warmed up the session in %.1f s", time.monotonic() - began)
