"""Azurite is installed once, though processes that run tests side by side want it at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage_servers import _azurite

NPM = """\
#!/bin/sh
# Called as: node npm install --prefix DIRECTORY ...
echo run >> "$(dirname "$0")/runs"
mkdir -p "$4/node_modules/azurite"
sleep 0.2
touch "$4/node_modules/azurite/whole"
"""


def test_the_first_installs_and_the_others_wait_for_it(tmp_path: Path) -> None:
    node = tmp_path / "node"
    (node / "bin").mkdir(parents=True)
    (node / "bin" / "node").write_text(NPM)
    (node / "bin" / "node").chmod(0o755)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: _azurite(node, tmp_path / "cache"), range(3)))
    assert all((package / "whole").exists() for package in found)
    assert (node / "bin" / "runs").read_text().split() == ["run"]
