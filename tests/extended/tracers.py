"""``strace`` as a saboteur: the n-th system call of a kind on the journal's files fails, stalls, or kills the broker.

Calls are counted per thread. The journal has one thread that syncs, so "the n-th fdatasync" is the n-th synced commit,
and only files under a journal's name count: new ones are filled with zeros under another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_FILES = 64
"""How many journal files are watched: more than a test comes to write."""
_ATTACH_TIMEOUT_S = 10.0


def require_strace() -> None:
    """Skip the calling test where system calls cannot be traced."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing: run tests/extended/install-debian-packages")
    probe = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip()}")


def sabotage(data_directory: Path, call: str, fault: str) -> list[str]:
    """Return the words to put before a broker's command: ``fault`` befalls ``call`` on its journal files.

    The tracer runs beside the broker, not around it: process id, signals and exit code are the broker's own.
    """
    # With the filter only the calls of interest stop. Injected signals get lost with it: see sabotaged() for those.
    return ["strace", "-D", "-f", "--seccomp-bpf", *_injection(data_directory, call, fault)]


@contextmanager
def sabotaged(pid: int, data_directory: Path, call: str, fault: str) -> Iterator[None]:
    """While in the body, ``fault`` befalls ``call`` of a running broker on its journal files."""
    command = ["strace", "-f", "-p", str(pid), *_injection(data_directory, call, fault)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        watchdog = threading.Timer(_ATTACH_TIMEOUT_S, tracer.kill)
        watchdog.start()
        try:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            assert "attached" in said, f"strace did not attach: {said!r}"
            watchdog.cancel()
            yield
        finally:
            watchdog.cancel()
            tracer.terminate()  # it detaches, and the broker goes on untraced
            tracer.communicate()


def _injection(data_directory: Path, call: str, fault: str) -> Sequence[str]:
    paths = [str(data_directory.resolve() / f"journal-{number:016x}.log") for number in range(1, _FILES + 1)]
    watched = [word for path in paths for word in ("-P", path)]
    return ["-o", os.devnull, *watched, "-e", f"trace={call}", "-e", f"inject={call}:{fault}"]
