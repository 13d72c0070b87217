"""Commands that are started without some of the standard streams."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from brokers import BrokerProcess


def run(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, with a redirection such as ``<&-``."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m danube "$@" {redirection}', sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )


def test_producing_from_a_closed_standard_input(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(directory, "--journal-file-size", "16MiB", "--log-level", "warning") as broker:
        done = run("<&-", "produce", "/default/t", "--url", broker.url)
        assert (done.returncode, done.stdout) == (65, "")
        assert done.stderr.strip().splitlines() == [
            "error: standard input cannot be read (Bad file descriptor); give --file or --message"
        ]
        sent = run("<&-", "produce", "/default/t", "-m", "x", "--url", broker.url, "-o", "json")
        assert sent.returncode == 0, sent.stderr


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_output_that_cannot_be_written_is_an_error(redirection: str) -> None:
    done = run(redirection, "version")
    assert done.returncode == 1
    assert done.stderr.startswith("error: [Errno ")
    assert len(done.stderr.splitlines()) == 1


def test_without_any_stream() -> None:
    code = "import os, danube.cli\nos.closerange(0, 3)"  # what is opened next must not become a standard stream
    code += "\nimport sys\nsys.stdin = sys.stdout = sys.stderr = None\nsys.argv = ['danube', 'version']"
    code += "\nfrom danube.cli._streams import reopen_closed_streams\nreopen_closed_streams()"
    code += "\nassert os.open(os.devnull, os.O_RDONLY) == 3\nos._exit(7)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False, close_fds=True).returncode == 7
