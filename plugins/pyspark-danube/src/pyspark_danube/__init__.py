"""Danube topics as Spark DataFrames: ``spark.read.format("danube")``, ``readStream``, ``write`` and ``writeStream``.

::

    import pyspark_danube

    spark = pyspark_danube.session()          # optional: a session with recommended settings
    orders = spark.read.format("danube").option("servers", "danube://127.0.0.1:6650").option("topic", "/default/orders")
    orders.load().groupBy("partition").count().show()

Spark finds the source by itself: at the first unknown ``format(...)`` it imports every installed module
whose name begins with ``pyspark_`` and registers their ``DefaultSource``. If the import of another such module fails,
this search fails as a whole; ``spark.dataSource.register(DefaultSource)`` then still works.

This module imports as little as possible, because Spark imports it in processes that may not use Danube, and the
command line imports it to show its help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_danube._avro_text import avro_schema
    from pyspark_danube._kafka import kafka_messages
    from pyspark_danube._session import Setting, session, settings
    from pyspark_danube._source import DefaultSource

__all__ = ["DefaultSource", "Setting", "avro_schema", "kafka_messages", "session", "settings"]


def __getattr__(name: str) -> Any:
    """Load the data source, and Spark with it, at first use; and what makes sessions, which workers do not need."""
    if name == "DefaultSource":
        from pyspark_danube._source import DefaultSource

        return DefaultSource
    if name == "avro_schema":
        from pyspark_danube._avro_text import avro_schema

        return avro_schema
    if name == "kafka_messages":
        from pyspark_danube._kafka import kafka_messages

        return kafka_messages
    if name in __all__:
        from pyspark_danube import _session

        return getattr(_session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
