"""The differences between the versions of Spark: what each lacks, and what to do about it. Pure.

Spark's interface for Python sources has grown from version to version. :data:`FEATURES` is the only place that knows
since when something exists; :mod:`pyspark_danube._spark_apis` picks the classes and functions of the version that is
installed. An option that needs a missing feature is refused with :func:`lacking`, before the query starts.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from danube.model.errors import ConfigurationError

__all__ = [
    "FEATURES",
    "NEWEST",
    "OLDEST",
    "Feature",
    "Needs",
    "SparkVersion",
    "check_java",
    "check_supported",
    "has",
    "lacking",
    "missing",
    "newest_java",
    "parse_version",
    "require",
]


class SparkVersion(NamedTuple):
    """Major and minor version of Spark; patches do not change the interface for sources."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST: Final = SparkVersion(4, 0)
"""Older ones have no Python sources, or only for batches of rows."""
NEWEST: Final = SparkVersion(4, 3)
"""The newest version that the tests run with."""


class Needs(StrEnum):
    """A feature of Spark's that the plugin uses."""

    PUSHDOWN = "filters that are passed to Python sources"
    UNIX_SOCKETS = "Unix sockets between Java and Python"
    READ_LIMITS = "limits for the micro-batches of Python sources"
    REPORTED_LAG = "the end of the logs in progress events"
    NAMED_TIME_ZONE = "Arrow schemas with a named time zone"
    STREAM_ARROW_WRITER = "a class for streaming sinks that take Arrow"
    CHECKPOINT_PACKAGE = "a package of their own for the classes of checkpoints"
    PIPELINES = "Spark Declarative Pipelines"


class Feature(NamedTuple):
    """When a feature came, and how one does without it."""

    since: SparkVersion
    without: str
    """What happens in earlier versions, and what to do; empty if users do not notice."""


FEATURES: Final[dict[Needs, Feature]] = {
    Needs.PUSHDOWN: Feature(
        SparkVersion(4, 1),
        "omit the option pushdown: queries return the same rows, but read all parts of the topics (startingOffsets,"
        " endingOffsets and the timestamps still limit what is read)",
    ),
    Needs.UNIX_SOCKETS: Feature(
        SparkVersion(4, 1),
        "Java and Python communicate through TCP on this machine, so a task costs about 40 ms more",
    ),
    Needs.READ_LIMITS: Feature(
        SparkVersion(4, 2),
        "omit maxOffsetsPerTrigger and maxBytesPerTrigger: each micro-batch has all messages that there are when it"
        " begins, in tasks of targetPartitionBytes",
    ),
    Needs.REPORTED_LAG: Feature(
        SparkVersion(4, 2), "progress events do not show the lag of a stream; `danube jobs list` does"
    ),
    Needs.PIPELINES: Feature(
        SparkVersion(4, 1), "there is no `spark-pipelines`; use the jobs of `danube pipeline` or a script"
    ),
    Needs.NAMED_TIME_ZONE: Feature(SparkVersion(4, 2), ""),
    Needs.STREAM_ARROW_WRITER: Feature(SparkVersion(4, 1), ""),
    Needs.CHECKPOINT_PACKAGE: Feature(SparkVersion(4, 1), ""),
}

_NEWEST_JAVA: Final = {SparkVersion(4, 0): 23, SparkVersion(4, 1): 23}
"""Newest Java of versions that do not run on all newer ones: Java 24 removed what their Hadoop and Arrow call."""

_NUMBERS = re.compile(r"(\d+)\.(\d+)")


def parse_version(text: str) -> SparkVersion:
    """Return the version from text such as ``4.1.4`` or ``4.2.0.dev1``.

    Raises:
        ConfigurationError: it is not a version.
    """
    found = _NUMBERS.match(text)
    if found is None:
        raise ConfigurationError(f"{text!r} is not a version of Spark, such as 4.3.0; install pyspark {_RANGE}")
    return SparkVersion(int(found[1]), int(found[2]))


def check_supported(version: SparkVersion) -> None:
    """Check that the plugin can work with a version. Newer ones than :data:`NEWEST` are taken for that one.

    Raises:
        ConfigurationError: it is too old.
    """
    if version < OLDEST:
        raise ConfigurationError(f"pyspark-danube does not work with Spark {version}: install pyspark {_RANGE}")


def has(version: SparkVersion, need: Needs) -> bool:
    """Whether a version has a feature."""
    return version >= FEATURES[need].since


def missing(version: SparkVersion) -> list[Needs]:
    """Return the features that users of a version notice to be missing, in the order of the table."""
    return [need for need, feature in FEATURES.items() if feature.without and version < feature.since]


def lacking(version: SparkVersion, need: Needs) -> str:
    """Return the sentence for users about a feature that a version lacks."""
    feature = FEATURES[need]
    return f"Spark {version} does not have {need.value}, which came with Spark {feature.since}: {feature.without}"


def require(version: SparkVersion, need: Needs, option: str) -> None:
    """Check that a version has the feature that an option needs.

    Raises:
        ConfigurationError: it has not; the message names the version and what to do.
    """
    if not has(version, need):
        raise ConfigurationError(f"{option} has no effect: {lacking(version, need)}; or upgrade pyspark")


def newest_java(version: SparkVersion) -> int | None:
    """Return the newest major version of Java that a version of Spark runs on; None if no limit is known."""
    return _NEWEST_JAVA.get(version)


def check_java(version: SparkVersion, java: int, origin: str) -> None:
    """Check that a version of Spark runs on a version of Java.

    Args:
        version: of Spark.
        java: major version; 0 if it is unknown.
        origin: where the Java runtime was found.

    Raises:
        ConfigurationError: this Java is too new for this Spark.
    """
    newest = newest_java(version)
    if newest is not None and java > newest:
        raise ConfigurationError(
            f"Spark {version} does not run on Java {java} (from {origin}): install Java 17 or 21 and set"
            " JAVA_HOME, or upgrade pyspark"
        )


_RANGE: Final = f">={OLDEST},<{NEWEST.major}.{NEWEST.minor + 1}"
