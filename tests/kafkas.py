"""A real Kafka for tests: one broker in a process, and Spark's connector to it, both as Java archives.

The archives come from the public repository of Java packages through Ivy, which is among Spark's own archives, and
stay beside other releases of Spark (:func:`sparks.other_spark`). ``DANUBE_IVY_SETTINGS`` names a file with Ivy's
settings where another repository is to be used.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from ports import free_port
from sparks import other_spark

__all__ = ["SPARK", "KafkaProcess", "kafka_connector", "require_kafka"]

SPARK: Final = "4.0"
"""The version of Spark that the connector is for."""

_BROKER: Final = ("org.apache.kafka", "kafka_2.13", "4.0.0")
_CONNECTOR: Final = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0")

_READY_TIMEOUT_S: Final = 60.0
_FETCH_TIMEOUT_S: Final = 300.0

# Without retention: records with times of years ago would be deleted while a test looks at them.
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/logs
log.message.timestamp.type=CreateTime
log.retention.ms=-1
offsets.topic.replication.factor=1
auto.create.topics.enable=false
"""


def _java() -> str:
    from pyspark_danube._java import find_java

    return str(find_java().home / "bin" / "java")


def _archives(group: str, artifact: str, version: str) -> Path:
    """Return a directory with an artifact and all that it depends on; the first call downloads them."""
    import pyspark

    place = Path(os.environ.get("DANUBE_SPARKS") or Path(sys.prefix) / "sparks") / f"{artifact}-{version}"
    if place.is_dir():
        return place
    place.parent.mkdir(exist_ok=True)
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with TemporaryDirectory(dir=place.parent) as scratch:
        command = [_java(), "-jar", str(ivy), "-cache", f"{scratch}/cache", "-confs", "default"]
        if settings := os.environ.get("DANUBE_IVY_SETTINGS"):
            command += ["-settings", settings]
        command += ["-dependency", group, artifact, version, "-types", "jar", "bundle"]
        command += ["-retrieve", f"{scratch}/found/[artifact](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
        found = Path(scratch) / "found"
        if done.returncode or not (found / f"{artifact}.jar").exists():
            pytest.skip(f"{group}:{artifact}:{version} cannot be downloaded: {(done.stdout + done.stderr)[-2000:]}")
        with suppress(OSError):  # another run was faster
            found.rename(place)
    return place


def require_kafka() -> None:
    """Skip (fail in CI) if Kafka, its Python client, or a Java that runs Spark's version is not there."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install --group test")
    from pyspark_danube._java import find_java
    from pyspark_danube._versions import check_java, parse_version

    from danube.model.errors import ConfigurationError

    try:
        java = find_java()
        check_java(parse_version(SPARK), java.version, java.origin)
    except ConfigurationError as error:
        pytest.skip(str(error))
    _archives(*_BROKER)
    _archives(*_CONNECTOR)
    other_spark(SPARK)


def kafka_connector() -> str:
    """Return the value of ``spark.jars`` with which Spark :data:`SPARK` has the format ``kafka``."""
    jars = other_spark(SPARK) / "pyspark" / "jars"
    added = [jar for jar in _archives(*_CONNECTOR).glob("*.jar") if not any(jars.glob(f"{jar.stem}-[0-9]*.jar"))]
    return ",".join(sorted(map(str, added)))


class KafkaProcess:
    """One broker that is its own controller, on free ports; its data is in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Value for ``bootstrap.servers``."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> KafkaProcess:
        self._directory.mkdir()
        properties = self._directory / "server.properties"
        text = _PROPERTIES.format(port=self._port, controller=free_port(), directory=self._directory)
        properties.write_text(text)
        java = [_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += ["-cp", f"{_archives(*_BROKER)}/*"]
        # Any 16 bytes in base64: the id of the cluster.
        arguments = ["format", "-t", "ZGFudWJlLXRlc3Qta2Fma2E", "-c", str(properties)]
        formatting = [*java, "kafka.tools.StorageTool", *arguments]
        subprocess.run(formatting, capture_output=True, timeout=_READY_TIMEOUT_S, check=True)
        log = self._directory / "log"
        with log.open("wb") as output:
            command = [*java, "kafka.Kafka", str(properties)]
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        give_up_at = time.monotonic() + _READY_TIMEOUT_S
        try:
            while not self._listens():
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise AssertionError(f"Kafka did not become ready: {log.read_text()[-3000:]}")
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1.0):
                return True
        except OSError:
            return False
