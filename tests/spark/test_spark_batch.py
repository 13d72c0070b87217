"""Batch queries against a broker: every message once, from wherever it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from sparks import publish

from danube.client.sync import Client

if TYPE_CHECKING:
    from brokers import BrokerProcess
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"/default/batch{next(_numbers)}"


Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Read:
    def load(topic: str, schema: str = "", **options: Any) -> DataFrame:
        reader = spark.read.format("danube").option("servers", broker.url).option("topic", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    return load


def test_sealed_and_tail_are_one(client: Client, read: Read, topic: str) -> None:
    publish(client, topic, [b"sealed %d" % number for number in range(1000)])
    client.seal_topic(topic)
    publish(client, topic, [b"tail %d" % number for number in range(10)], keys=[f"k{n}" for n in range(10)], name="me")
    rows = read(topic).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(1010))
    assert [bytes(row.payload) for row in rows[998:1002]] == [b"sealed 998", b"sealed 999", b"tail 0", b"tail 1"]
    assert {row.topic for row in rows} == {topic}
    assert {row.partition for row in rows} == {0}
    assert (rows[1009].key, rows[1009].producer, rows[0].key) == ("k9", "me", None)
    assert read(topic, includeTail="false").count() == 1000
