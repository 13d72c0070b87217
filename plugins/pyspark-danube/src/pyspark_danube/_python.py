"""Starts Spark's Python workers with the installed package of pyspark, whose modules are compiled.

Spark puts an archive with the sources of pyspark before everything else on the ``PYTHONPATH`` of its workers. Python
cannot store what it has compiled into an archive, so each process compiles pyspark again, for more than half a second;
a first query starts four of them. Where the archive belongs to the installed package, the package itself will do::

    <cache>/danube/python-<digest>/python       #!/bin/sh ... PYTHONPATH=<without the archive> exec <python> "$@"

Only for sessions on this machine: on others the file does not exist.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import site
import sysconfig
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark_danube._files import cache_directory, install_script

__all__ = ["worker_python"]

_SCRIPT: Final = """\
#!/bin/sh
# Starts Python for Spark with the installed package of pyspark instead of the archive with its sources.
set -f
rest=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        {patterns}) ;;
        *) rest=$rest${{rest:+:}}$entry ;;
    esac
done
unset IFS
set +f
PYTHONPATH=$rest exec {python} "$@"
"""
_ARCHIVES: Final = {"pyspark": "*/python/lib/pyspark.zip", "py4j": "*/python/lib/py4j-*-src.zip"}
"""Packages, and where Spark has archives with their sources."""


def worker_python(
    executable: str, environment: Mapping[str, str] | None = None, *, cache: Path | None = None
) -> tuple[str, str]:
    """Return the program for ``PYSPARK_PYTHON`` in a session on this machine, and the reason for it.

    It is ``executable`` itself if workers would not find the same packages without the archives: pyspark was not
    installed as a package, or ``SPARK_HOME`` names another Spark.

    Args:
        executable: the Python that workers shall run.
        environment: ``PYTHONPATH`` and ``SPARK_HOME`` are looked up there; by default in the process's.
        cache: directory for the start script; by default the user's cache directory.
    """
    environment = os.environ if environment is None else environment
    plain = executable, "workers use this Python, not the first one on PATH"
    package = _package("pyspark")
    home = environment.get("SPARK_HOME")
    if os.name != "posix" or package is None or (home and Path(home).resolve() != package.resolve()):
        return plain
    entries = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    found = _found_by_workers(entries)
    if package.parent.resolve() not in found:
        return plain
    patterns = [_ARCHIVES["pyspark"]]
    py4j = _package("py4j")
    if py4j is not None and py4j.parent.resolve() in found:
        patterns.append(_ARCHIVES["py4j"])
    text = _SCRIPT.format(patterns=" | ".join(patterns), python=shlex.quote(executable))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    script = (cache if cache is not None else cache_directory(environment)) / f"python-{digest}" / "python"
    try:
        install_script(script, text)
    except OSError:
        return plain  # a home directory that cannot be written: workers start as Spark starts them
    return str(script), "workers use this Python, with the compiled modules of pyspark: they start in half the time"


def _package(name: str) -> Path | None:
    """Return the directory of a package; None if it is in an archive, or not there."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    directory = Path(spec.origin).parent
    return directory if directory.is_dir() else None


def _found_by_workers(entries: Collection[str]) -> set[Path]:
    """Return the directories in which a new Python process looks for packages."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    known = [*entries, *user, *site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return {Path(entry).resolve() for entry in known}
