"""Export, import, transform and replay, each a flow."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

SERVERS = os.environ.get("DANUBE_URL", "danube://127.0.0.1:6650")
ORDER = "id BIGINT, user STRING, total DOUBLE"
INCOMING = str(Path(os.environ.get("ORDERS_INCOMING", "incoming")).absolute())

spark = SparkSession.active()


def read_topic(topic: str, schema: str = "") -> DataFrame:
    reader = spark.readStream.format("danube").options(servers=SERVERS, topic=topic, startingOffsets="earliest")
    return (reader.option("payloadFormat", "json").schema(schema) if schema else reader).load()


def create_topic_sink(name: str, topic: str) -> None:
    dp.create_sink(name, "danube", {"servers": SERVERS, "topic": topic})


# Export: a topic becomes a table.


@dp.table
def orders() -> DataFrame:
    return read_topic("/default/orders", f"offset BIGINT, publish_time TIMESTAMP, {ORDER}")


# Import: files become messages, each row once.

create_topic_sink("incoming_topic", "/default/incoming")


@dp.append_flow(target="incoming_topic")
def import_files() -> DataFrame:
    rows = spark.readStream.schema(ORDER).json(INCOMING)
    return rows.selectExpr("user AS key", "to_json(struct(*)) AS payload")


# Transform: SQL from topic to topic.

create_topic_sink("large_orders_topic", "/default/large-orders")


@dp.append_flow(target="large_orders_topic")
def find_large_orders() -> DataFrame:
    found = read_topic("/default/orders", ORDER).where("total >= 100")
    return found.selectExpr("user AS key", "to_json(struct(*)) AS payload")


# Replay: what happened, once more.

create_topic_sink("orders_again_topic", "/default/orders-again")


@dp.append_flow(target="orders_again_topic")
def replay_orders() -> DataFrame:
    return read_topic("/default/orders").where("key = 'bob'").select("key", "payload", "attributes")
