"""One Spark session for all files, and one broker.

``spark`` is tuned as users may tune theirs (:func:`pyspark_danube.session` with all that it offers), plus what only a
test wants: no compilation of hot code, no web interface, silence. Sessions that have to be different (Spark Connect,
another Java, a driver that gets killed) are processes of their own: :func:`sparks.run_python`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from brokers import BrokerProcess
from sparks import TEST_CONFIG, java_options, require_spark

from danube.client.sync import Client, connect

if os.environ.get("CI") == "true":
    # A file that skips itself while it is collected is no test that was skipped: here every part must be there.
    import pyspark_danube  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    require_spark()
    import pyspark_danube

    directory = tmp_path_factory.mktemp("spark")
    config = TEST_CONFIG | {
        "spark.driver.extraJavaOptions": java_options(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    session = pyspark_danube.session(
        "danube-tests",
        master="local[2]",
        frozen_daemon=True,
        fast_checkpoints=True,
        unchecked_arrow=True,
        config=config,
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for all tests that do not kill it; its history is on the disk, where executors can read it."""
    directory = tmp_path_factory.mktemp("spark-broker")
    with BrokerProcess(directory / "data", "--storage", f"disk://{directory / 'history'}") as process:
        yield process


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with connect(broker.url) as connection:
        yield connection
