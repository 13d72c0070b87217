"""Shared by Spark tests besides fixtures: a quick and quiet configuration, publishing, and separate Pythons."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from danube.client.sync import Client
from danube.model.errors import ConfigurationError

LOG_CONFIGURATION = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n
"""

TEST_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "1g",
}


CHECKOUT = Path(__file__).parents[1]

OTHER_SPARKS = {"4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1"}
"""Releases of Spark that the plugin supports beside the one that is installed."""


def require_spark() -> None:
    """Skip (fail in CI) if Spark, the plugin or Java is not there.

    Spark's workers are processes of their own: where the broker's package is not installed but lies in a checkout, they
    need to be told.
    """
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(CHECKOUT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), *filter(None, known)])
    for module, remedy in (("pyspark", "pip install --group spark"), ("pyspark_danube", "see tox.ini")):
        pytest.importorskip(module, reason=f"{module} is not installed: {remedy}")
    from pyspark_danube._java import find_java

    try:
        find_java()
    except ConfigurationError as error:
        pytest.skip(str(error))


def other_spark(version: str) -> Path:
    """Return a directory with another Spark, for ``PYTHONPATH``; the first call installs it, which takes half a minute.

    It is below the environment that runs the tests (or in the directory ``DANUBE_SPARKS``) and stays there. All other
    packages are those of this environment.
    """
    release = OTHER_SPARKS[version]
    place = Path(os.environ.get("DANUBE_SPARKS") or Path(sys.prefix) / "sparks") / release
    if not place.is_dir():
        place.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=place.parent) as scratch:
            made = Path(scratch) / release
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
            subprocess.run([*pip, "--target", str(made), f"pyspark=={release}"], check=True, timeout=540)
            with suppress(FileExistsError):  # another run was faster
                made.rename(place)
    return place


def java_options(directory: Path) -> str:
    """Options for a JVM that lives for seconds: start quickly, say nothing but errors."""
    log = directory / "log4j2.properties"
    log.write_text(LOG_CONFIGURATION)
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={log.as_uri()}"


def publish(
    client: Client,
    topic: str,
    payloads: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None = None,
    attributes: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """Publish payloads and wait until they are durable; ``options`` are those of the producer."""
    with client.producer(topic, **options) as producer:
        producer.send_many(payloads, keys=keys, attributes=attributes)


def run_python(code: str, *arguments: str, timeout_s: float = 300.0, **environment: str) -> str:
    """Run a program in a Python of its own; return what it printed. Its errors are in the failure."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def nothing_staged(client: Client, timeout_s: float = 10.0) -> bool:
    """Whether all stages go in time: the broker drops that of a task that failed when it sees its stream end."""
    give_up_at = time.monotonic() + timeout_s
    while client.stages.describe().stages:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.02)
    return True
