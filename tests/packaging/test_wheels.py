"""The wheels work by themselves: built from the sources, and installed where nothing of the checkout is.

``wheels`` builds them, ``clean_python`` is the interpreter of an environment that has only them and what they pull in;
:func:`run` executes something there, away from the checkout. It is slow once (about a minute on a busy machine, most of
it downloads), so everything that needs such an environment belongs into this file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from ports import free_port
from storage_servers import FakeGcsServer

pytestmark = pytest.mark.timeout(300)

CHECKOUT = Path(__file__).parents[2]
PLUGIN = "danube-storage-gcs"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")


def run(*command: str | Path, cwd: Path, timeout_s: float = 300.0) -> str:
    """Run a command with nothing of the checkout on any path; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of the broker and of one plugin, built from copies: a build leaves its traces in its directory."""
    place = tmp_path_factory.mktemp("sources")
    broker = place / "broker"
    broker.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, broker)
    shutil.copytree(CHECKOUT / "danube", broker / "danube", ignore=_LEFT_OUT)
    shutil.copytree(CHECKOUT / "plugins" / PLUGIN, place / PLUGIN, ignore=_LEFT_OUT)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place / "wheels")
    run(*pip, broker, place / PLUGIN, cwd=place)
    return sorted((place / "wheels").glob("*.whl"))


@pytest.fixture(scope="module")
def clean_python(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheels and their dependencies, and nothing else."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place / "venv")
    python = place / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", *wheels, cwd=place)
    return python


def test_the_wheels_have_what_they_should_and_no_more(wheels: list[Path]) -> None:
    broker, plugin = wheels
    for wheel, package in ((broker, "danube"), (plugin, "danube_storage_gcs")):
        names = zipfile.ZipFile(wheel).namelist()
        assert f"{package}/py.typed" in names
        assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {package}
    names = zipfile.ZipFile(broker).namelist()
    modules = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "danube").rglob("*.py")}
    assert modules <= set(names)
    pages = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "danube/web/static").rglob("*.*")}
    assert "danube/web/static/index.html" in pages
    assert pages <= set(names)


def test_installed_plugins_are_found(clean_python: Path, tmp_path: Path) -> None:
    danube = clean_python.with_name("danube")
    listed = json.loads(run(danube, "plugins", "-o", "json", cwd=tmp_path))
    (gcs,) = [plugin for plugin in listed if plugin["scheme"] == "gcs"]
    assert (gcs["package"], gcs["version"]) == (PLUGIN, "0.1.0")
    built_in = {plugin["scheme"] for plugin in listed if plugin["package"] == "danube-broker"}
    assert {"memory", "disk", "fsspec"} <= built_in
    where = run(clean_python, "-c", "import danube; print(danube.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(clean_python.parents[1])


_PUT_AND_GET = """
import random, sys
import trio
from danube.storage import open_storage

async def main():
    async with open_storage(sys.argv[1], random=random.Random(1)) as storage:
        await storage.put("a/b", b"from a clean environment", if_absent=True)
        print((await storage.get("a/b", 5)).decode(), storage.url)

trio.run(main)
"""


def test_an_object_goes_to_google_and_back(clean_python: Path, fake_gcs: FakeGcsServer, tmp_path: Path) -> None:
    bucket = fake_gcs.bucket()
    url = fake_gcs.storage_url(bucket, "prefix").replace("gcs://", "gs://")
    said = run(clean_python, "-W", "error", "-c", _PUT_AND_GET, url, cwd=tmp_path)
    assert said.startswith(f"a clean environment gs://{bucket}/prefix?")
    assert "anon" not in said


def test_a_topic_is_sealed_to_google_by_what_was_installed(
    clean_python: Path, fake_gcs: FakeGcsServer, tmp_path: Path
) -> None:
    bucket = fake_gcs.bucket()
    danube = clean_python.with_name("danube")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    port = free_port()
    url = f"danube://127.0.0.1:{port}"
    storage = fake_gcs.storage_url(bucket, "prefix").replace("gcs://", "gs://")
    serve = [danube, "serve", "--listen", f"127.0.0.1:{port}", "--admin-listen", "none", "--http-listen", "none"]
    serve += ["--data-dir", tmp_path / "data", "--storage", storage]
    lines = [f"message {number}" for number in range(1000)]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    for life in range(2):
        broker = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        with broker:
            try:
                assert broker.stdout is not None
                assert "ready" in broker.stdout.readline()
                if not life:
                    run(danube, "produce", "/default/t", "--file", "lines.txt", "--url", url, cwd=tmp_path)
                    sealed = json.loads(
                        run(danube, "topics", "seal", "/default/t", "-o", "json", "--url", url, cwd=tmp_path)
                    )
                    assert sealed[0]["sealed_offset"] == 1000
                else:  # what is in memory now comes from the bucket
                    told = run(
                        danube, "consume", "/default/t", "-s", "s", "--start", "earliest", "--until-caught-up",
                        "--format", "%v", "--url", url, cwd=tmp_path,
                    )  # fmt: skip
                    assert told.splitlines() == lines
            finally:
                broker.kill()
