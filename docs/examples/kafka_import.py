"""Copies a topic of Kafka into a topic, every record exactly once, until Ctrl-C (or, with ``--once``, to its end).

::

    danube serve &
    python docs/examples/kafka_import.py --kafka 127.0.0.1:9092 --from flights --to /default/flights --partitions 3

The checkpoint knows the offsets that were read, and the broker knows the batches that were written. So the script may
be killed and started again at any time; with the same checkpoint nothing is lost, and nothing is stored twice.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

import pyspark
import pyspark_danube
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from danube.client.sync import connect
from danube.model.errors import AlreadyExistsError


def start_session(config: dict[str, str]) -> SparkSession:
    """Start Spark with its Kafka connector, which Spark downloads unless ``spark.jars`` names it."""
    connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    jars = {} if "spark.jars" in config else {"spark.jars.packages": connector}
    # Two threads; a task that loses the broker is tried four times, as in a cluster. "local[2]" would try once.
    return pyspark_danube.session("kafka-import", master="local[2,4]", config=jars | config)


def start_import(
    spark: SparkSession, *, kafka: str, source: str, url: str, topic: str, checkpoint: Path, at_once: int, once: bool
) -> StreamingQuery:
    """Copy records in micro-batches of at most ``at_once``; with ``once`` up to those that there are now."""
    records = spark.readStream.format("kafka").options(
        subscribe=source,
        startingOffsets="earliest",
        includeHeaders="true",
        maxOffsetsPerTrigger=str(at_once),
        **{"kafka.bootstrap.servers": kafka},
    )
    messages = pyspark_danube.kafka_messages(records.load())
    writer = messages.writeStream.format("danube").options(servers=url, topic=topic)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()


def main() -> None:
    """Create the topic, and copy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kafka", default="127.0.0.1:9092", help="Kafka's bootstrap servers")
    parser.add_argument("--from", dest="source", required=True, help="topic of Kafka")
    parser.add_argument("--url", default="danube://127.0.0.1:6650")
    parser.add_argument("--to", dest="topic", required=True, help="topic of Danube")
    parser.add_argument("--partitions", type=int, required=True, help="as many as the topic of Kafka has")
    parser.add_argument("--checkpoint", type=Path, default=Path("kafka-import"))
    parser.add_argument("--at-once", type=int, default=100_000, help="maximum number of records in a micro-batch")
    parser.add_argument("--once", action="store_true", help="end when all records that there are now are copied")
    parser.add_argument("--spark", action="append", default=[], metavar="NAME=VALUE", help="configuration of Spark")
    given = parser.parse_args()
    with connect(given.url) as client, suppress(AlreadyExistsError):
        client.admin.create_topic(given.topic, partitions=given.partitions)
    spark = start_session(dict(each.split("=", 1) for each in given.spark))
    query = start_import(
        spark,
        kafka=given.kafka,
        source=given.source,
        url=given.url,
        topic=given.topic,
        checkpoint=given.checkpoint,
        at_once=given.at_once,
        once=given.once,
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
