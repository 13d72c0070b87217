"""The pipeline jobs: all messages of the source are in the target, once, with their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brokers import BrokerProcess
from sparks import require_spark
from typer.testing import CliRunner

from danube.client.sync import Client
from danube.model.errors import DanubeError, FailedPreconditionError, InvalidArgumentError, TopicNotFoundError

require_spark()

from pyspark_danube.pipeline import (  # noqa: E402 (needs pyspark)
    Progress,
    export_table,
    follow,
    import_stream,
    import_table,
    replay,
    transform,
)
from pyspark_danube.pipeline._progress import plain_errors  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER = "id BIGINT, user STRING, total DOUBLE"


def order(number: int) -> bytes:
    return json.dumps({"id": number, "user": f"user-{number % 7}", "total": number / 2}).encode()


def produce(client: Client, topic: str, numbers: range) -> None:
    with client.producer(topic) as producer:
        for key in range(7):
            payloads = [order(number) for number in numbers if number % 7 == key]
            if payloads:
                producer.send_many(payloads, key=f"user-{key}")


def read(spark: SparkSession, broker: BrokerProcess, topic: str, schema: str = "") -> DataFrame:
    reader = spark.read.format("danube").options(servers=broker.url, topic=topic)
    if schema:
        reader = reader.option("payloadFormat", "json").schema(schema)
    return reader.load()


def table(spark: SparkSession, kind: str, directory: Path) -> Any:
    """Return a table as pandas has it."""
    if kind == "parquet":
        return spark.read.parquet(str(directory / "orders")).toPandas()
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(directory / "orders")).to_pandas()
    from pyiceberg.catalog import load_catalog
    from pyspark_danube.pipeline._iceberg import catalog_properties

    return load_catalog("danube", **catalog_properties(str(directory), {})).load_table("lake.orders").scan().to_pandas()


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_export_goes_on_where_it_was(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, kind: str
) -> None:
    topic = f"/default/export-{kind}"
    client.admin.create_topic(topic, partitions=2)
    produce(client, topic, range(1000))
    typed = kind != "parquet"
    arguments: dict[str, Any] = {"servers": broker.url, "kind": kind, "once": True, "schema": ORDER if typed else ""}
    if kind == "iceberg":
        arguments |= {"target": "lake.orders", "warehouse": str(tmp_path)}
    else:
        arguments |= {"target": str(tmp_path / "orders")}

    shown: list[Progress] = []
    first = follow(export_table(spark, topic, **arguments), shown.append)
    assert shown[-1] == first
    assert (first.rows, first.lag) == (1000, 0)
    assert sum(first.offsets[topic].values()) == 1000
    produce(client, topic, range(1000, 1200))
    assert follow(export_table(spark, topic, **arguments)).rows == 200
    assert follow(export_table(spark, topic, **arguments)).rows == 0

    rows = table(spark, kind, tmp_path)
    assert len(rows) == 1200
    assert rows.groupby("partition").offset.nunique().sum() == 1200
    if typed:
        assert set(rows.columns) == {"topic", "partition", "offset", "publish_time", "key", "id", "user", "total"}
        assert sorted(rows.id) == list(range(1200))
        assert rows.total.sum() == sum(range(1200)) / 2
        assert (rows.key == rows.user).all()
    else:
        assert sorted(json.loads(payload)["id"] for payload in rows.payload) == list(range(1200))


def test_export_of_some_columns(spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    client.admin.create_topic("/default/export-columns")
    produce(client, "/default/export-columns", range(10))
    arguments: dict[str, Any] = {"servers": broker.url, "once": True}
    target = str(tmp_path / "orders")
    with pytest.raises(InvalidArgumentError, match="did you mean 'offset'"):
        export_table(spark, "/default/export-columns", target, columns=["ofset"], **arguments)
    follow(export_table(spark, "/default/export-columns", target, columns=["offset", "key"], **arguments))
    assert list(table(spark, "delta", tmp_path).columns) == ["offset", "key"]
    with pytest.raises(InvalidArgumentError, match="needs a checkpoint"):
        export_table(spark, "/default/export-columns", "s3://bucket/orders?key=planted", **arguments)


def test_import_of_files_is_stored_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.admin.create_topic("/default/imported", partitions=2)
    source = tmp_path / "orders.csv"
    source.write_text("id,user\n" + "".join(f"{n},user-{n % 7}\n" for n in range(500)))
    arguments: dict[str, Any] = {
        "servers": broker.url,
        "format": "csv",
        "path": str(source),
        "options": {"header": "true", "inferSchema": "true"},
        "key": "user",
        "producer_id": "importer",
    }
    for _ in range(2):
        assert import_table(spark, "/default/imported", batch_id=3, **arguments) == 500
    rows = read(spark, broker, "/default/imported", "key STRING, id BIGINT, user STRING").toPandas()
    assert sorted(rows.id) == list(range(500))
    assert (rows.key == rows.user).all()
    import_table(spark, "/default/imported", batch_id=4, **arguments)
    assert read(spark, broker, "/default/imported").count() == 1000
    with pytest.raises(InvalidArgumentError, match="did you mean 'user'"):
        import_table(spark, "/default/imported", batch_id=5, **(arguments | {"key": "usr"}))
    with pytest.raises(InvalidArgumentError, match="producer id and batch id together"):
        import_table(spark, "/default/imported", **arguments)


def test_import_from_a_database(spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    """By JDBC, from the database that comes with Spark: in several tasks, with NULLs, decimals and times."""
    java = spark._jvm  # type: ignore[attr-defined] # no public way to set a property of a running JVM
    java.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    options = {
        "url": f"jdbc:derby:{tmp_path / 'shop'};create=true;user=shop;password=planted",
        "driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }
    rows = spark.range(300).selectExpr(
        "id",
        "concat('user-', id % 7) AS customer",
        "CAST(id / 4 AS DECIMAL(10, 2)) AS total",
        "timestamp_seconds(1700000000 + id) AS placed",
        "CASE WHEN id % 3 = 0 THEN 'gift' END AS note",
    )
    rows.write.format("jdbc").options(**options, dbtable="shop.orders").save()

    client.admin.create_topic("/default/imported-jdbc", partitions=2)
    parts = {"partitionColumn": "id", "lowerBound": "0", "upperBound": "300", "numPartitions": "3"}
    arguments: dict[str, Any] = {"servers": broker.url, "format": "jdbc", "key": "customer"}
    for _ in range(2):
        given: dict[str, Any] = {"options": options | parts | {"dbtable": "shop.orders"}, "producer_id": "jdbc"}
        assert import_table(spark, "/default/imported-jdbc", batch_id=1, **given, **arguments) == 300
    typed = "key STRING, id BIGINT, customer STRING, total DECIMAL(10, 2), placed TIMESTAMP, note STRING"
    stored = read(spark, broker, "/default/imported-jdbc", typed).selectExpr("key", *rows.columns)
    assert stored.count() == 300
    assert stored.drop("key").exceptAll(rows).isEmpty()
    assert stored.where("key <> customer").isEmpty()

    # A query instead of a table, and what a wrong one is answered with.
    dear = options | {"query": 'SELECT "id", "total" FROM shop.orders WHERE "total" > 70'}
    assert import_table(spark, "/default/imported-jdbc", options=dear, **(arguments | {"key": "id"})) == 19
    with pytest.raises(DanubeError) as caught, plain_errors():
        import_table(spark, "/default/imported-jdbc", options=options | {"dbtable": "shop.ordres"}, **arguments)
    assert "ORDRES" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_import_of_a_stream_of_files(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.admin.create_topic("/default/imported-stream")
    directory = tmp_path / "files"
    for number in range(2):
        spark.range(number * 100, number * 100 + 100).selectExpr("CAST(id AS STRING) AS text", "id").write.parquet(
            str(directory / f"n={number}")
        )
        query = import_stream(
            spark,
            "/default/imported-stream",
            servers=broker.url,
            format="parquet",
            path=str(directory),
            payload="text",
            key="n",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
        )
        assert follow(query).rows == 100
    rows = read(spark, broker, "/default/imported-stream").toPandas()
    assert sorted(int(payload) for payload in rows.payload) == list(range(200))
    assert (rows.key == [str(int(payload) // 100) for payload in rows.payload]).all()


def test_transform_by_sql(spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    client.admin.create_topic("/default/raw-orders", partitions=2)
    client.admin.create_topic("/default/large-orders", partitions=2)
    for numbers in (range(100), range(100, 150)):
        produce(client, "/default/raw-orders", numbers)
        query = transform(
            spark,
            {"orders": "/default/raw-orders"},
            "/default/large-orders",
            "SELECT id, upper(user) AS user, total FROM orders WHERE total >= 10",
            servers=broker.url,
            schemas={"orders": ORDER},
            key="user",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
        )
        assert follow(query).rows == len(numbers)
    rows = read(spark, broker, "/default/large-orders", f"key STRING, {ORDER}").toPandas()
    assert sorted(rows.id) == list(range(20, 150))
    assert (rows.key == rows.user).all()
    assert set(rows.user) == {f"USER-{n}" for n in range(7)}


def test_transform_of_several_topics_begins_where_each_is_told(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    for name in ("left", "right", "whole"):
        client.admin.create_topic(f"/default/from-{name}")
        produce(client, f"/default/from-{name}", range(10))
    client.admin.create_topic("/default/from-all")
    views = {name: f"/default/from-{name}" for name in ("left", "right", "whole")}
    sql = " UNION ALL ".join(f"SELECT payload, '{name}' AS key FROM {name}" for name in views)
    arguments: dict[str, Any] = {"servers": broker.url, "checkpoint": str(tmp_path / "checkpoint"), "once": True}
    starting = json.dumps({"/default/from-left": {"0": 8}, "/default/from-right": {"0": 5}})
    follow(transform(spark, views, "/default/from-all", sql, starting=starting, **arguments))
    rows = read(spark, broker, "/default/from-all").toPandas()
    assert rows.groupby("key").size().to_dict() == {"left": 2, "right": 5, "whole": 10}
    for wrong, said in (('{"/default/from-lift": {"0": 1}}', "did you mean '/default/from-left'"), ("{", "not JSON")):
        with pytest.raises(InvalidArgumentError, match=said):
            transform(spark, views, "/default/from-all", sql, starting=wrong, **arguments)


def test_transform_of_messages_and_its_errors(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.admin.create_topic("/default/copied")
    client.admin.create_topic("/default/copy")
    produce(client, "/default/copied", range(21))
    arguments: dict[str, Any] = {
        "servers": broker.url,
        "checkpoint": str(tmp_path / "checkpoint"),
        "once": True,
    }
    views = {"copied": "/default/copied"}
    follow(transform(spark, views, "/default/copy", "SELECT payload, key FROM copied", **arguments))
    rows = read(spark, broker, "/default/copy").toPandas()
    assert sorted(rows.payload) == sorted(order(number) for number in range(21))
    assert set(rows.key) == {f"user-{n}" for n in range(7)}

    with pytest.raises(InvalidArgumentError, match="did you mean 'copied'"):
        transform(spark, views, "/default/copy", "SELECT 1", schemas={"copid": ORDER}, **arguments)
    with pytest.raises(InvalidArgumentError, match="nowhere"), plain_errors():
        transform(spark, views, "/default/copy", "SELECT nowhere FROM copied", **arguments)
    with pytest.raises(InvalidArgumentError, match="needs a checkpoint"):
        transform(spark, views, "/default/copy", "SELECT payload FROM copied", **(arguments | {"checkpoint": ""}))
    arguments["checkpoint"] = str(tmp_path / "other")
    with pytest.raises(TopicNotFoundError, match="/default/copeid"), plain_errors():
        follow(transform(spark, {"v": "/default/copeid"}, "/default/copy", "SELECT payload FROM v", **arguments))


def test_replay_of_a_range(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    topic = "/default/replayed"
    client.admin.create_topic(topic)
    with client.producer(topic) as producer:
        for number in range(20):
            attributes = {"v": "1", "x-original-topic": "older"} if number % 2 else None
            producer.send(order(number), key=f"user-{number}", attributes=attributes)
    before = read(spark, broker, topic).toPandas().set_index("offset")
    arguments: dict[str, Any] = {
        "servers": broker.url,
        "starting": json.dumps({topic: {"0": 5}}),
        "ending": json.dumps({topic: {"0": 15}}),
        "producer_id": "replayer",
        "batch_id": 0,
    }
    for _ in range(2):
        assert replay(spark, topic, topic, where="key <> 'user-7'", **arguments) == 9
    after = read(spark, broker, topic).where("offset >= 20").toPandas()
    assert sorted(after.key) == sorted(f"user-{n}" for n in range(5, 15) if n != 7)
    for row in after.itertuples():
        attributes = dict(row.attributes)
        original = before.loc[int(attributes["x-original-topic-offset"])]
        assert (row.payload, row.key) == (original.payload, original.key)
        assert attributes["x-original-topic"] == topic
        assert attributes["x-original-partition"] == "0"
        stamp = original.publish_time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert attributes["x-original-publish-time"] == stamp
        assert attributes.get("v") == dict(original.attributes or {}).get("v")


# --- The command line ---


@pytest.fixture
def danube(spark: SparkSession, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command with the session of these tests."""
    from pyspark_danube.pipeline import cli

    from danube.cli.app import app

    @contextmanager
    def session(job: str, master: str, config: Any) -> Iterator[SparkSession]:
        assert job in ("export", "import", "transform", "replay")
        with plain_errors():
            yield spark

    monkeypatch.setattr(cli, "_session", session)

    def run(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["pipeline", *arguments, "--url", broker.url])
        assert result.exit_code == code, result.output
        return result

    return run


def test_commands(danube: Any, client: Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    client.admin.create_topic("/default/cli-orders")
    client.admin.create_topic("/default/cli-large")
    source = tmp_path / "orders.json"
    source.write_bytes(b"".join(order(number) + b"\n" for number in range(100)))
    imported = danube("import", "/default/cli-orders", str(source), "--format", "json", "--key", "user", "-o", "json")
    assert json.loads(imported.stdout) == {"topic": "/default/cli-orders", "rows": 100}

    sql = tmp_path / "large.sql"
    sql.write_text("SELECT id, user FROM cli_orders WHERE total > 20")
    checkpoint = str(tmp_path / "checkpoint")
    arguments = ["--file", str(sql), "--schema", f"cli_orders={ORDER}", "--key", "user", "--checkpoint", checkpoint]
    danube("transform", "/default/cli-orders", "--to", "/default/cli-large", "--once", *arguments)
    assert read(spark, broker, "/default/cli-large").count() == 59

    danube("replay", "/default/cli-large", "--to", "/default/cli-orders", "--where", "offset < 9", "-o", "json")
    target = str(tmp_path / "orders")
    done = danube("export", "/default/cli-orders", "--to", target, "--as", "delta", "--once", "-o", "json")
    assert json.loads(done.stdout) == {
        "rows": 109,
        "batches": 1,
        "lag": 0,
        "offsets": {"/default/cli-orders": {"0": 109}},
    }
    assert "109 rows" in done.stderr
    assert len(table(spark, "delta", tmp_path)) == 109


def test_wrong_commands_say_what_is_wrong(danube: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "t")
    danube("export", "/default/cli-none", "--to", target, "--format", "json", code=2)
    missing = danube("export", "/default/cli-none", "--to", target, "--once", code=66)
    assert "error: " in missing.stderr
    assert "/default/cli-none" in missing.stderr
    refused = danube("export", "/default/cli-none", "--to", target, "--storage", "planted-secret", code=65)
    assert "--storage must be NAME=VALUE" in refused.stderr
    assert "planted-secret" not in refused.stderr
    danube("import", "/default/cli-none", "--checkpoint", "x", code=2)
    danube("transform", "/default/cli-none", "--to", "/default/t", "--checkpoint", "x", code=2)
    wrong = danube("import", "/default/cli-none", target, "--format", "parqet", code=65)
    assert "parqet" in wrong.stderr


def test_errors_of_spark_become_ours() -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with pytest.raises(FailedPreconditionError, match=r"^no, indeed$"), plain_errors():
        raise PySparkException("[X] ...\ndanube.model.errors.FailedPreconditionError: no, indeed SQLSTATE: 3800\n")
    with pytest.raises(DanubeError, match=r"^Spark failed: something$"), plain_errors():
        raise PySparkException("something\n at org.apache")
    with pytest.raises(DanubeError, match=r"^Spark failed: java.lang.Some: thing$"), plain_errors():
        raise Py4JError("An error occurred while calling o1.x.\n: java.lang.Some: thing\n\tat org.apache")


def test_plans_of_streams_show_no_credentials(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    from pyspark.errors import AnalysisException
    from pyspark_danube.pipeline._topics import stream_topics

    secret = {"storage.options.connection_string": "planted-secret", "storage.url": "s3://b/p?secret=planted-secret"}
    frame = stream_topics(spark, "danube://127.0.0.1:1", "/default/orders", starting="earliest", options=secret)
    frame.explain(True)
    with pytest.raises(AnalysisException, match="nowhere") as refused:
        frame.select("nowhere")
    shown = capfd.readouterr()
    assert "/default/orders" in shown.out
    assert "planted-secret" not in shown.out + shown.err + str(refused.value)


def test_plans_of_exports_show_no_credentials(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark_danube.pipeline._delta import DeltaSource

    spark.dataSource.register(DeltaSource)
    # No "secret" or "password" in it: Spark looks for such words in values, too.
    storage = json.dumps({"account_key": "planted-value"})
    writer = spark.readStream.format("rate").load().writeStream.format("danube_delta").trigger(availableNow=True)
    options = {"path": str(tmp_path / "table"), "checkpointLocation": str(tmp_path / "checkpoint")}
    query = writer.options(**options, storageOptions=storage).start()
    query.awaitTermination()
    query.explain(True)
    shown = capfd.readouterr()
    assert "danube_delta" in shown.out
    assert "planted-value" not in shown.out + shown.err

    # What Spark does to the options of any node of a plan before it shows them.
    given = {"storageOptions": storage, "catalog": '{"uri": "postgresql://me:planted-value@host/db"}', "table": "a.b"}
    java: Any = spark
    conf = java._jsparkSession.sessionState().conf()
    redacted = conf.redactOptions(java._jvm.PythonUtils.toScalaMap(given)).toString()
    assert "planted-value" not in redacted
    assert "a.b" in redacted
