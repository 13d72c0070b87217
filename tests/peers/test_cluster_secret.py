"""The file of the cluster's secret, and what is refused with which words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danube.model.errors import ClusterConfigurationError, ConfigurationError, exit_code
from danube.peers.secret import MAX_SECRET_BYTES, read_secret

SECRET = b"0123456789abcdef"
REMEDY = "; make one with: umask 077; openssl rand -hex 32 > FILE"


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ClusterConfigurationError) as caught:
        read_secret(path)
    assert exit_code(caught.value) == 78
    assert isinstance(caught.value, ConfigurationError)
    start = f"the file of --cluster-secret, {path}, "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


@pytest.mark.parametrize(
    "content", [SECRET, SECRET + b"\n", b" \t" + SECRET + b"\r\n\n", b"a b" * 6, bytes(range(128, 160))]
)
def test_the_secret_is_the_content_without_space_around_it(tmp_path: Path, content: bytes) -> None:
    assert read_secret(written(tmp_path / "s", content)) == content.strip()


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640, 0o700])
def test_modes_that_exclude_others(tmp_path: Path, mode: int) -> None:
    assert read_secret(written(tmp_path / "s", SECRET, mode)) == SECRET


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o660, 0o666, 0o777])
def test_modes_that_do_not(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "s", SECRET, mode)
    assert refusal(path) == (
        f"has mode {mode:04o}, so others may read or change it; allow only the broker to read it: chmod 600 {path}"
    )


@pytest.mark.parametrize("content", [b"", b"\n", b" \t\r\n"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    assert refusal(written(tmp_path / "s", content)) == f"is empty{REMEDY}"


def test_a_short_secret(tmp_path: Path) -> None:
    path = written(tmp_path / "s", SECRET[:15] + b"\n" * 20)
    assert refusal(path) == f"has a secret of 15 bytes, and it needs at least 16{REMEDY}"


def test_a_file_that_is_no_secret(tmp_path: Path) -> None:
    assert len(read_secret(written(tmp_path / "s", b"x" * MAX_SECRET_BYTES))) == MAX_SECRET_BYTES
    assert refusal(written(tmp_path / "s", b"x" * (MAX_SECRET_BYTES + 1))) == f"is longer than 4096 bytes{REMEDY}"


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"cannot be read: No such file or directory{REMEDY}"


def test_files_that_are_not_regular_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        assert refusal(path) == f"is not a regular file{REMEDY}"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for content, mode in ((SECRET, 0o600), (b"", 0o600), (SECRET, 0o666)):
        try:
            read_secret(written(tmp_path / "s", content, mode))
        except ClusterConfigurationError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
