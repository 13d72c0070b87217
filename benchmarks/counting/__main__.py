"""Runs one program in this process, and prints what it did as JSON: ``python -m benchmarks.counting s3 100 200``.

The broker and the client are those of the directory in the environment variable ``DANUBE_TREE``, the simulated disk
and network those beside this file, so that another version is measured on the same machine.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

_OURS = Path(__file__).resolve().parents[2]


def _use(tree: Path) -> None:
    """Import the package from a tree from now on, and its test kits from here."""
    sys.path.insert(0, str(tree))
    package = import_module("danube")
    if package.__file__ is None or not Path(package.__file__).resolve().is_relative_to(tree):
        raise SystemExit(f"{tree} has no package danube; it was imported from {package.__file__}")
    for name in ("danube.testing", "danube.testing.simulation"):
        # Without running its __init__, which imports whole worlds.
        module = ModuleType(name)
        module.__path__ = [str(_OURS.joinpath(*name.split(".")))]
        sys.modules[name] = module


def main() -> None:
    """Run the program of the first argument with each number of messages in the others."""
    _use(Path(os.environ.get("DANUBE_TREE") or _OURS).resolve())
    programs: Any = import_module("benchmarks.counting.programs")
    callgrind: Any = import_module("benchmarks.counting.callgrind")
    name, counts = sys.argv[1], [int(one) for one in sys.argv[2:]]
    requests = callgrind.Requests()
    done = programs.run_program(programs.PROGRAMS[name], counts, requests.start, lambda part: requests.stop(str(part)))
    sys.stdout.buffer.write(msgspec.json.encode([one._asdict() for one in done]) + b"\n")


if __name__ == "__main__":
    main()
