"""Errors name the object, the cause and the remedy, and never a secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brokers import BrokerProcess
from ports import free_port
from sparks import publish
from storage_servers import S3_KEY, S3_SECRET, SeaweedServer

from danube.client.sync import Client, connect

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PLANTED = "Plant3dS3cr3t"
TOPIC = "/default/errors"


@pytest.fixture(scope="module")
def topic(client: Client) -> str:
    publish(client, TOPIC, [b"x"] * 10)
    return TOPIC


def load(spark: SparkSession, *, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("danube").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def refused(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOfsets": "earliest"}, "has no option 'startingofsets'; did you mean 'startingOffsets'?"),
        ({"topic": "/default/eror"}, "did you mean '/default/errors'?"),
        ({"topic": "orders"}, "must have the form /namespace/topic"),
        ({"startingOffsets": '{"/default/errors": {"1": 5}}'}, "partition 1, which it does not have"),
        ({"endingOffsets": '{"/default/errors": {"0": 50}}'}, "offsets [10, 50) do not exist; it ends at 10"),
        ({"payloadFormat": "jsno", "schema": "a INT"}, "there is no payloadFormat 'jsno'; did you mean 'json'?"),
        ({"schema": "ofset BIGINT"}, "has no column 'ofset'; did you mean 'offset'?"),
        ({"schema": "offset INT"}, "column 'offset' is bigint, not int"),
        ({"topic": "", "topicsPattern": "/default/no.*thing"}, "no topic matches topicsPattern"),
    ],
)
def test_errors_name_the_wrong_option(
    spark: SparkSession, broker: BrokerProcess, topic: str, options: dict[str, str], said: str
) -> None:
    asked = {"servers": broker.url, "topic": topic} | options
    assert said in refused(load(spark, **{name: value for name, value in asked.items() if value}))


def test_json_wants_a_schema(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(PySparkException, match=r"payloadFormat=json needs a schema: \.schema"):
        load(spark, servers=broker.url, topic=topic, payloadFormat="json")


def test_a_broker_that_is_not_there(spark: SparkSession) -> None:
    url = f"danube://127.0.0.1:{free_port()}"
    assert url.removeprefix("danube://") in refused(load(spark, servers=url, topic="/default/errors"))


def test_a_reader_that_takes_filters_needs_sparks_consent(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert load(spark, servers=broker.url, topic=topic).where("offset > 5").count() == 4
        assert name in refused(load(spark, servers=broker.url, topic=topic, pushdown="true").where("offset > 5"))
    finally:
        spark.conf.set(name, "true")


# --- Access to the storage ---


@pytest.fixture(scope="module")
def in_s3(seaweed: SeaweedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker whose history is in S3, with sealed messages, and what it logs."""
    directory = tmp_path_factory.mktemp("in-s3")
    log = directory / "broker.log"
    url = seaweed.storage_url(seaweed.bucket(), "history")
    with BrokerProcess(directory / "data", "--storage", url, stderr=log) as process:
        with connect(process.url) as client:
            publish(client, TOPIC, [b"x"] * 100)
            client.admin.seal_topic(TOPIC)
        yield process, log


def everything_shown(spark: SparkSession, frame: DataFrame) -> str:
    plan: Any = frame._jdf.queryExecution()
    return plan.toString() + plan.explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    )


def test_history_in_s3_is_read_with_hidden_credentials(
    spark: SparkSession, in_s3: tuple[BrokerProcess, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    process, log = in_s3
    options = {"servers": process.url, "topic": TOPIC, "storage.options.key": S3_KEY, "includeTail": "false"}
    right = load(spark, **options, **{"storage.options.secret": S3_SECRET})
    assert right.count() == 100
    wrong = load(spark, **options, **{"storage.options.secret": PLANTED})
    said = refused(wrong)
    assert "give this process credentials that may read" in said
    assert "s3://" in said
    unknown = refused(load(spark, **options, **{"storage.options.sekret": PLANTED}))
    assert "did you mean 'secret'?" in unknown
    misspelt = refused(load(spark, **options, **{"storage.option.secret": PLANTED}))
    assert "storage.options.NAME" in misspelt or "did you mean" in misspelt
    in_url = refused(load(spark, **options, **{"storage.url": f"s3://bucket?nothing=1&secret={PLANTED}"}))
    shown = everything_shown(spark, right) + everything_shown(spark, wrong)
    outputs = capfd.readouterr()
    for text in (said, unknown, misspelt, in_url, shown, outputs.out, outputs.err, log.read_text()):
        assert PLANTED not in text
        assert S3_SECRET not in text
