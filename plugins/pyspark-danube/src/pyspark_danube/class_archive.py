"""An archive of Spark's classes, with which the JVM of a session starts in half the time.

A session loads its classes from 280 jars, and Java parses and verifies each of them anew whenever it starts. An archive
(class data sharing, in every OpenJDK) has them as they are in memory::

    python -m pyspark_danube.class_archive      # about a minute, 200 MB, once for each Java and each Spark

That command runs a small session, which writes the archive when it ends::

    <cache>/danube/classes-<digest>/spark.jsa   classes of Spark
                                    base.jsa    classes of Java, if the runtime has no archive of its own

:func:`pyspark_danube.session` uses an archive that is there, and never makes one. The digest is that of the Java
runtime and of all jars; Java itself compares the jars once more, and ignores an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from danube.model.errors import ConfigurationError
from pyspark_danube._files import cache_directory
from pyspark_danube._java import find_java, real_home

__all__ = ["archive_options", "main", "make_archive"]

TIMEOUT_S: Final = 900.0
"""How long making an archive may take."""

_ARCHIVE: Final = "spark.jsa"
_BASE: Final = "base.jsa"
_THEIRS: Final = ("-Xshare", "SharedArchive", "ArchiveClassesAtExit", "-XX:AOT")
"""Options of Java by which users manage archives themselves."""
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is ignored without a word: everything works without it."""


def archive_options(java_home: Path, theirs: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Return the options with which Java uses the archive; empty if there is none for this Java and this Spark.

    Args:
        java_home: the Java runtime.
        theirs: options that the user gives to Java: none are returned if these are about archives, too.
        environment: ``SPARK_HOME``, the cache directory and further options of Java are looked up there; by default
            in the process's.
    """
    environment = os.environ if environment is None else environment
    given = " ".join([theirs, environment.get("JDK_JAVA_OPTIONS", ""), environment.get("JAVA_TOOL_OPTIONS", "")])
    if any(option in given for option in _THEIRS):
        return ""
    place = _place(java_home, environment)
    return _options(place) if place is not None and (place / _ARCHIVE).is_file() else ""


def make_archive() -> Path:
    """Make the archive for the Java and the Spark of this process; return its path. Replaces the one that is there.

    Raises:
        ConfigurationError: there is no Java, its runtime cannot make archives, or the cache cannot be written.
    """
    runtime = find_java()
    place = _place(runtime.home, os.environ)
    if place is None:
        raise ConfigurationError("Spark's jars were not found: is pyspark installed, and does SPARK_HOME name it?")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place) as scratch:
            return _make(runtime.home, place, Path(scratch))
    except OSError as error:
        raise ConfigurationError(f"cannot write the archive to {place}: {error}") from None


def _make(java_home: Path, place: Path, scratch: Path) -> Path:
    base = place / _BASE
    options = f"-XX:ArchiveClassesAtExit={scratch / _ARCHIVE} {_QUIET}"
    if not _has_base(java_home):
        _run([str(java_home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={scratch / _BASE}"], java_home)
        (scratch / _BASE).replace(base)  # an archive of Spark's classes names the base that it was made with
        options = f"-XX:SharedArchiveFile={base} {options}"
    _run([sys.executable, "-m", "pyspark_danube._training", options, str(scratch)], java_home)
    if not (scratch / _ARCHIVE).is_file():
        raise ConfigurationError(f"the Java runtime in {java_home} has ended without writing an archive of its classes")
    return (scratch / _ARCHIVE).replace(place / _ARCHIVE)


def _run(command: list[str], java_home: Path) -> None:
    """Run a program that writes an archive.

    Raises:
        ConfigurationError: it fails, or takes too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"no archive was made within {TIMEOUT_S:.0f} s, with Java in {java_home}") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise ConfigurationError(f"no archive was made, with Java in {java_home}; exit code {done.returncode}:\n{said}")


def _options(place: Path) -> str:
    files = [str(place / name) for name in (_BASE, _ARCHIVE) if (place / name).is_file()]
    return f"-XX:SharedArchiveFile={os.pathsep.join(files)} {_QUIET}"


def _place(java_home: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the directory of the archive for a Java runtime and the installed Spark; None if there are no jars.

    None, too, if Java could not be told of it: its options are separated by spaces.
    """
    import pyspark

    jars = Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    try:
        listed = [(jar.name, jar.stat()) for jar in sorted(jars.iterdir())]
        release = (real_home(java_home) / "release").read_text(errors="replace")
    except OSError:
        return None
    digest = hashlib.sha256(f"{real_home(java_home)}\n{release}\n{jars}\n".encode())
    for name, status in listed:
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    place = cache_directory(environment) / f"classes-{digest.hexdigest()[:16]}"
    return None if any(mark in str(place) for mark in " \"'\\") else place


def _has_base(java_home: Path) -> bool:
    return any((real_home(java_home) / "lib").glob("**/classes.jsa"))


def main() -> None:
    """Make the archive, and print where it is."""
    began = time.monotonic()
    try:
        path = make_archive()
    except ConfigurationError as error:
        raise SystemExit(error.message) from None
    sys.stdout.write(f"{path}: {path.stat().st_size / 1e6:.0f} MB, made in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
