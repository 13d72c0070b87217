"""``session()``: creates a Spark session with settings for a Python data source.

With Spark's defaults a task costs 75 to 105 ms on a core before it has read a byte; Spark starts Python under the name
``python3``, and writes timestamps in the machine's time zone. The settings here were measured one by one; each is
left unchanged if the user has set it, and :func:`settings` lists them with their origin.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from danube.model.errors import ConfigurationError
from pyspark_danube._java import find_java
from pyspark_danube._python import worker_python
from pyspark_danube._versions import Needs, SparkVersion, check_java, has, lacking, missing
from pyspark_danube.class_archive import archive_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Setting", "session", "settings"]

logger = logging.getLogger("pyspark_danube")

FROZEN_DAEMON: Final = "pyspark_danube.daemon"
"""Module that forks Python workers from a process that has imported everything already."""

_DAEMON_OPTION: Final = "spark.python.daemon.module"
_CHECKPOINT_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_CHECKPOINT_OPTIONS: Final = {
    # Both are needed: Hadoop's FileContext starts a `readlink` process for each access to a file, and its file system
    # with checksums three `chmod` processes for each file. Without them a rename is still a rename(2).
    _CHECKPOINT_MANAGER: (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "a micro-batch writes its checkpoint without starting twenty processes",
    ),
    "spark.hadoop.fs.file.impl": (
        "org.apache.hadoop.fs.RawLocalFileSystem",
        "local files are written without additional checksum files",
    ),
}
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_OPTIONS: Final = {
    _UNIX_SOCKETS: (
        "true",
        "Java and Python communicate through Unix sockets: a task costs half as much",
    ),
    "spark.sql.session.timeZone": ("UTC", "timestamps read as they are stored"),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "toPandas() and createDataFrame() by columns, not by rows"),
    # By default Spark hides options with "url", "secret", "password", "token" or "accesskey" in their names. It also
    # matches the pattern against values, where the word "catalog" alone would match too often.
    "spark.sql.redaction.options.regex": (
        "(?i)url|storage[.]?options|^catalog$",
        "plans of streams, in explain() and in errors, do not show credentials of a storage or a catalogue",
    ),
}
_JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_RUNTIME_OPTIONS: Final = (
    "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.redaction.options.regex",
)


class Setting(NamedTuple):
    """One setting of :func:`session`."""

    name: str
    """Environment variable, or Spark option."""
    value: str
    made_by: str
    """``danube``; ``user`` if it was set before; ``too late`` if the running session cannot change it."""
    reason: str


_RUNNER_VARIABLES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Variables that Spark sets in the environment of a Python source whenever a streaming query starts. The values are
placeholders, which Spark replaces."""

_made: list[Setting] = []
_told: set[SparkVersion] = set()
"""Versions whose missing features were logged: that is done once."""


def session(
    app_name: str = "danube",
    *,
    master: str = "",
    remote: str = "",
    frozen_daemon: bool = False,
    fast_checkpoints: bool = False,
    unchecked_arrow: bool = False,
    class_archive: bool = True,
    warm_up: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session (the running one, if there is one) with the settings that a Danube source needs.

    The settings made are logged in one line by the logger ``pyspark_danube`` and returned by :func:`settings`. Settings
    in ``config``, ``spark-defaults.conf``, a running session or the environment take precedence.

    Args:
        app_name: name of the application.
        master: Spark's master, for example ``local[2]``; by default that of Spark's configuration.
        remote: use Spark Connect: ``sc://host:port``, or ``local[2]`` for a server in a process of its own.
        frozen_daemon: fork Python workers from a process that has imported NumPy, PyArrow and pandas. A task then
            costs 30 instead of 80 ms, and a worker less memory. Spark advises against importing them before a fork,
            because they may start threads. No problems are known; off by default.
        fast_checkpoints: write checkpoints on local disks directly. Hadoop starts about twenty processes in each
            micro-batch to set modes and to resolve links, which takes longer than the rest of a small one. Spark's
            checksums of checkpoint files remain; Hadoop's ``.crc`` files beside local files are no longer written. Off
            by default, because Hive's catalog and S3A require Hadoop's own class for local files.
        unchecked_arrow: let Java read Arrow's buffers without checking each access, which makes rows from Python a
            tenth cheaper. Off by default, because a user function that creates invalid buffers then crashes the JVM
            instead of failing the query.
        class_archive: use the archive of Spark's classes that ``python -m pyspark_danube.class_archive`` has made, if
            there is one for this Java and this Spark: the JVM starts in half the time, and the first query is
            faster, too. An archive is never made here.
        warm_up: run a small query, without a broker, before returning: the first real one then finds Python processes
            and Java's classes, and takes as long as any other. For sessions that wait for people or requests; off by
            default, because the session takes as much longer as that query is faster. Python workers that are idle for
            a minute end, and start again in half a second.
        config: further Spark options.

    Raises:
        ConfigurationError: no Java runtime that this Spark runs on, Spark is too old, or ``master`` and ``remote``
            together.
    """
    from pyspark.sql import SparkSession

    from pyspark_danube._spark_apis import spark_version

    version = spark_version()
    if master and remote:
        raise ConfigurationError("session() takes either master= or remote=, not both")
    given = dict(config or {})
    defaults = {} if remote.startswith("sc://") else _defaults(os.environ)
    made: list[Setting] = []
    on_this_machine = master.startswith("local") or remote.startswith("local")
    python, reason = sys.executable, "workers use this Python, not the first one on PATH"
    if on_this_machine:
        python, reason = worker_python(sys.executable)
    _set_variable(made, "PYSPARK_PYTHON", python, reason)
    archive = ""
    if not remote.startswith("sc://"):
        if on_this_machine:
            _set_variable(made, "SPARK_LOCAL_IP", "127.0.0.1", "a session on this machine does not look up its name")
        runtime = find_java()
        check_java(version, runtime.version, runtime.origin)
        if os.environ.get("JAVA_HOME") != str(runtime.home):
            os.environ["JAVA_HOME"] = str(runtime.home)
            made.append(Setting("JAVA_HOME", str(runtime.home), "danube", f"Java from {runtime.origin}"))
        if class_archive:
            # Java of the driver only: executors on other machines do not have the file.
            theirs = given.get(_JAVA_OPTIONS[0], defaults.get(_JAVA_OPTIONS[0], ""))
            archive = archive_options(runtime.home, theirs)
    wanted = _options(version, fast_checkpoints=fast_checkpoints)
    if frozen_daemon:
        wanted[_DAEMON_OPTION] = (FROZEN_DAEMON, "Python workers start with everything imported")
    for name, (ours, reason) in _java_options(unchecked_arrow=unchecked_arrow, archive=archive).items():
        # Before the user's options: none are lost, and the user's take precedence over contradicting ones.
        wanted[name] = (f"{ours} {given.pop(name, defaults.pop(name, ''))}".strip(), reason)
    if remote.startswith("sc://"):
        wanted = {name: wanted[name] for name in _RUNTIME_OPTIONS}
    running = SparkSession.getActiveSession() if not remote else None
    builder = SparkSession.builder.appName(app_name)
    builder = builder.remote(remote) if remote else builder
    builder = builder.master(master) if master else builder
    for name, value in given.items():
        builder = builder.config(name, value)
    for name, (value, reason) in wanted.items():
        if name in given or name in defaults:
            made.append(Setting(name, given.get(name, defaults.get(name, "")), "user", reason))
            continue
        if running is not None:
            there = running.conf.get(name, None)
            if there is not None or name not in _RUNTIME_OPTIONS:
                made_by = "user" if there is not None else "too late"
                made.append(Setting(name, there or "", made_by if there != value else "danube", reason))
                continue
        builder = builder.config(name, value)
        made.append(Setting(name, value, "danube", reason))
    spark = builder.getOrCreate()
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        _prepare_environments(spark)
    _made[:] = made
    logger.info("Spark %s session %r: set %s", spark.version, app_name, _in_words(made))
    if (lacks := missing(version)) and version not in _told:
        _told.add(version)
        logger.info("%s", "; ".join(lacking(version, need) for need in lacks))
    late = [setting.name for setting in made if setting.made_by == "too late"]
    if late:
        logger.warning("the session was running already: %s can only be set before it starts", ", ".join(late))
    if warm_up:
        from pyspark_danube import _warming

        _warming.warm_up(spark)
    return spark


def _options(version: SparkVersion, *, fast_checkpoints: bool) -> dict[str, tuple[str, str]]:
    """Return the options that a version of Spark has, with values and reasons."""
    wanted = dict(_OPTIONS)
    if not has(version, Needs.UNIX_SOCKETS):
        del wanted[_UNIX_SOCKETS]
    if fast_checkpoints:
        wanted |= _CHECKPOINT_OPTIONS
        if not has(version, Needs.CHECKPOINT_PACKAGE):
            name, reason = wanted[_CHECKPOINT_MANAGER]
            wanted[_CHECKPOINT_MANAGER] = (name.replace(".checkpointing.", "."), reason)
    return wanted


def _java_options(*, unchecked_arrow: bool, archive: str) -> dict[str, tuple[str, str]]:
    """Return the options of Spark that have options for Java, with these and the reasons; ``archive`` may be empty."""
    driver = [(archive, "Java starts with an archive of Spark's classes")] if archive else []
    executor = []
    if unchecked_arrow:
        unchecked = (_UNCHECKED, "Java reads Arrow's buffers without checking each access")
        driver, executor = [unchecked, *driver], [unchecked]
    return {
        name: (" ".join(ours for ours, _ in parts), "; ".join(reason for _, reason in parts))
        for name, parts in zip(_JAVA_OPTIONS, (driver, executor), strict=True)
        if parts
    }


def _prepare_environments(spark: SparkSession) -> None:
    """Ensure that starting a query only replaces entries in the environment of its source, and adds none.

    All queries of a source share that map, and it has no lock. Two queries that start at once may both add the same
    entry, and it is counted twice; from then on executors cannot read any task of the source (OptionalDataException).
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    for name, value in _RUNNER_VARIABLES.items():
        spark.sparkContext.environment.setdefault(name, value)  # of sources that are registered from now on
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        environment = manager.lookupDataSource("danube").dataSourceCls().envVars()
        for name, value in _RUNNER_VARIABLES.items():
            environment.putIfAbsent(name, value)
    except (Py4JError, PySparkException) as error:
        logger.warning(
            "Spark does not find the source by itself (%s): register it with spark.dataSource.register(DefaultSource)",
            str(error).partition("\n")[0],
        )


def settings() -> list[Setting]:
    """Return the settings of the last :func:`session` of this process, and those found already set."""
    return list(_made)


def _defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the contents of ``spark-defaults.conf``, which Spark itself reads only after options were chosen."""
    directory = environment.get("SPARK_CONF_DIR") or os.path.join(environment.get("SPARK_HOME", ""), "conf")
    try:
        lines = Path(directory, "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}  # most installations have none
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines if line.strip()[:1] not in ("", "#"))
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


def _set_variable(made: list[Setting], name: str, value: str, reason: str) -> None:
    there = os.environ.get(name)
    if there is None:
        os.environ[name] = value
    made.append(Setting(name, there or value, "danube" if there in (None, value) else "user", reason))


def _in_words(made: list[Setting]) -> str:
    return ", ".join(f"{setting.name}={setting.value}" for setting in made if setting.made_by == "danube") or "nothing"
